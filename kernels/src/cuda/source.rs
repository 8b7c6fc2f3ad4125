//! Sources of all kernels, embedded in the program.

use std::borrow::Cow;
use std::sync::LazyLock;

use schemas::gguf::DType;

use super::activation;
use super::device::{Types, Unit};
use crate::backend::CacheType;
use crate::ops::CUDA_SOURCES;
use crate::types::common::grid_points;
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

/// A source file of kernels.
pub struct Source {
    /// Name without extension.
    pub name: &'static str,
    /// Contents.
    pub(crate) text: &'static str,
    /// The element types that it is compiled for.
    pub(crate) compiled_for: CompiledFor,
}

/// Element types that a source file is compiled for, one at a time.
#[derive(Clone, Copy)]
pub(crate) enum CompiledFor {
    /// None: it is compiled once.
    Single,
    /// Every type of weights.
    Weights,
    /// Types of weights that are multiplied as floats.
    FloatWeights,
    /// Types of weights that are multiplied as quants.
    QuantizedWeights,
    /// Every type of caches.
    Caches,
    /// Every pair of a type of keys and a type of values.
    CachePairs,
}

impl CompiledFor {
    fn types(self) -> Vec<Types> {
        let weights = |wanted: fn(&ElementType) -> bool| -> Vec<Types> {
            let found = TYPES.iter().filter(|t| t.cuda.is_some() && wanted(t));
            found.map(|t| Types::Weight(t.dtype)).collect()
        };
        let caches = || CacheType::all().map(CacheType::dtype);
        match self {
            CompiledFor::Single => vec![Types::None],
            CompiledFor::Weights => weights(|_| true),
            CompiledFor::FloatWeights => weights(|t| !t.is_quantized()),
            CompiledFor::QuantizedWeights => weights(ElementType::is_quantized),
            CompiledFor::Caches => caches().map(Types::Cells).collect(),
            CompiledFor::CachePairs => {
                let values = |keys| caches().map(move |values| Types::Caches(keys, values));
                caches().flat_map(values).collect()
            }
        }
    }
}

/// Returns all source files.
fn sources() -> impl Iterator<Item = &'static Source> {
    CUDA_SOURCES.iter().chain([&activation::SOURCE])
}

/// Headers other than those of element types.
static SHARED_HEADERS: [Header; 10] = headers![
    "" "activation.cuh",
    "../ops/cache/" "cache.cuh",
    "" "common.cuh",
    "" "math.cuh",
    "../ops/matmul/" "matmul.cuh",
    "../ops/matmul/" "stage.cuh",
    "../ops/matmul/" "tensor.cuh",
    "../types/common/" "grid.cuh",
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
    let of_grids = GRID_HEADERS.iter().map(|(name, text)| Header {
        name: name.as_str().into(),
        text,
    });
    SHARED_HEADERS
        .iter()
        .cloned()
        .chain(of_grids)
        .chain(of_types)
}

/// Names and texts of the headers with the points of a grid each.
static GRID_HEADERS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let header = |(grid, points): (&str, &[u16])| {
        let numbers: Vec<String> = points.iter().map(u16::to_string).collect();
        let text = format!(
            "#pragma once\n__device__ static const uint16_t POINTS_{grid}[{}] = {{{}}};\n",
            points.len(),
            numbers.join(", ")
        );
        (format!("points_{}.cuh", grid.to_lowercase()), text)
    };
    grid_points::ALL.map(header).into()
});

/// Returns the name of the header of an element type.
fn header_name(dtype: DType) -> String {
    format!("{}.cuh", dtype.to_string().to_lowercase())
}

/// Bytes of dynamic shared memory per block for kernels declared with `KERNEL_SHARING`: `MOST_SHARED` of
/// `common.cuh`.
const MOST_SHARED: u32 = 99 << 10;

/// Returns all units to compile.
pub fn units() -> impl Iterator<Item = Unit> {
    sources().flat_map(|source| {
        let types = source.compiled_for.types().into_iter();
        types.map(|types| Unit {
            file: source.name,
            types,
        })
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
        let source = sources().find(|source| source.name == self.file);
        source.expect("units are made of files").text
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
