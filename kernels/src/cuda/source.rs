//! Sources of all kernels, embedded in the program.

use std::borrow::Cow;

use schemas::gguf::DType;

use super::device::{Types, Unit};
use crate::backend::CacheType;
use crate::types::{ElementType, TYPES};

/// A header file.
#[derive(Clone)]
pub struct Header {
    /// Name in `#include`.
    pub name: Cow<'static, str>,
    /// Contents.
    pub text: &'static str,
}

macro_rules! headers {
    ($($folder:literal $name:literal),*) => {
        [$(Header {
            name: Cow::Borrowed($name),
            text: include_str!(concat!($folder, $name)),
        }),*]
    };
}

macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!($name, ".cu")))),*]
    };
}

/// Headers other than those of element types.
static SHARED_HEADERS: [Header; 9] = headers![
    "" "activation.cuh",
    "" "cache.cuh",
    "" "common.cuh",
    "" "math.cuh",
    "" "matmul.cuh",
    "" "stage.cuh",
    "" "tensor.cuh",
    "../types/common/" "superblock.cuh",
    "../types/common/" "unpack.cuh"
];

/// Returns all headers that kernels include.
pub fn headers() -> impl Iterator<Item = Header> {
    let of_types = TYPES.iter().filter_map(|t| {
        Some(Header {
            name: header_name(t.dtype).into(),
            text: t.cuda?,
        })
    });
    SHARED_HEADERS.iter().cloned().chain(of_types)
}

/// Returns the name of the header of an element type.
fn header_name(dtype: DType) -> String {
    format!("{}.cuh", dtype.to_string().to_lowercase())
}

/// Name and contents of each source file.
static FILES: [(&str, &str); 14] = files![
    "activation",
    "attention",
    "cache",
    "causal_conv",
    "choose",
    "elementwise",
    "embed",
    "gated_delta",
    "matmul_float",
    "matmul_quants",
    "moe",
    "norm",
    "rope",
    "rows"
];

/// Bytes of dynamic shared memory per block for kernels declared with `KERNEL_SHARING`: `MOST_SHARED` of
/// `common.cuh`.
const MOST_SHARED: u32 = 99 << 10;

/// Returns all units to compile.
pub fn units() -> impl Iterator<Item = Unit> {
    FILES.iter().flat_map(|&(file, _)| {
        let weights = || TYPES.iter().filter(|t| t.cuda.is_some());
        let of = |types: &mut dyn Iterator<Item = &ElementType>| -> Vec<Types> {
            types.map(|t| Types::Weight(t.dtype)).collect()
        };
        let caches = || CacheType::all().map(CacheType::dtype);
        let types: Vec<Types> = match file {
            "embed" => of(&mut weights()),
            "matmul_quants" => of(&mut weights().filter(|t| t.is_quantized())),
            "matmul_float" => of(&mut weights().filter(|t| !t.is_quantized())),
            "cache" => caches().map(Types::Cells).collect(),
            "attention" => {
                let values = |keys| caches().map(move |values| Types::Caches(keys, values));
                caches().flat_map(values).collect()
            }
            _ => vec![Types::None],
        };
        types.into_iter().map(move |types| Unit { file, types })
    })
}

impl Unit {
    /// Returns the source text, before headers are included: the headers of its element types, then the
    /// file.
    pub fn text(&self) -> String {
        let types = match self.types {
            Types::None => Vec::new(),
            Types::Weight(dtype) | Types::Cells(dtype) => vec![dtype],
            Types::Caches(keys, values) => vec![keys, values],
        };
        let includes = types.into_iter().map(header_name);
        let includes: String = includes
            .map(|name| format!("#include \"{name}\"\n"))
            .collect();
        includes + self.file_text()
    }

    /// Returns the contents of the source file.
    fn file_text(&self) -> &'static str {
        let file = FILES.iter().find(|(name, _)| *name == self.file);
        file.expect("units are made of files").1
    }

    /// Returns the dynamic shared memory of a kernel per block, in bytes.
    pub fn shared_bytes(&self, kernel: &str) -> u32 {
        let declaration = format!("KERNEL_SHARING({kernel},");
        if self.file_text().contains(&declaration) {
            MOST_SHARED
        } else {
            0
        }
    }

    /// Returns the macros to define: names and values.
    pub fn definitions(&self) -> Vec<(&'static str, String)> {
        let cells = |dtype: DType| format!("Cells{dtype}");
        match self.types {
            Types::None => Vec::new(),
            Types::Weight(weight) => vec![("WEIGHT", weight.to_string())],
            Types::Cells(element) => vec![("CELLS", cells(element))],
            Types::Caches(keys, values) => vec![("KEYS", cells(keys)), ("VALUES", cells(values))],
        }
    }
}
