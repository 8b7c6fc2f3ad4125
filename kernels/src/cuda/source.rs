//! Sources of all kernels, embedded in the program.

use schemas::gguf::DType;

use super::device::{Types, Unit};
use crate::backend::CacheType;

/// A header file.
pub struct Header {
    /// Name in `#include`.
    pub name: &'static str,
    /// Contents.
    pub text: &'static str,
}

macro_rules! headers {
    ($($name:literal),*) => {
        [$(Header { name: $name, text: include_str!($name) }),*]
    };
}

macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!($name, ".cu")))),*]
    };
}

/// All headers that kernels include.
pub static HEADERS: [Header; 9] = headers![
    "activation.cuh",
    "cache.cuh",
    "coded.cuh",
    "common.cuh",
    "math.cuh",
    "matmul.cuh",
    "stage.cuh",
    "tensor.cuh",
    "weight.cuh"
];

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
    "matmul_codes",
    "matmul_numbers",
    "moe",
    "norm",
    "rope",
    "rows"
];

/// Bytes of dynamic shared memory per block for kernels declared with `KERNEL_SHARING`: `MOST_SHARED` of
/// `common.cuh`.
const MOST_SHARED: u32 = 99 << 10;

/// Weight types that kernels read.
pub const WEIGHTS: [DType; 16] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::IQ4_NL,
    DType::IQ4_XS,
    DType::MXFP4,
];

/// True if the type is quantized.
pub(super) fn is_coded(dtype: DType) -> bool {
    !matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Returns all units to compile.
pub fn units() -> impl Iterator<Item = Unit> {
    FILES.iter().flat_map(|&(file, _)| {
        let of_weights = |wanted: fn(DType) -> bool| {
            let weights = WEIGHTS.into_iter().filter(|&dtype| wanted(dtype));
            weights.map(Types::Weight).collect()
        };
        let cells = CacheType::NAMES.map(|(_, element)| element.dtype());
        let types: Vec<Types> = match file {
            "embed" => of_weights(|_| true),
            "matmul_codes" => of_weights(is_coded),
            "matmul_numbers" => of_weights(|dtype| !is_coded(dtype)),
            "cache" => cells.map(Types::Cells).to_vec(),
            "attention" => {
                let values = |keys| cells.map(|values| Types::Caches(keys, values));
                cells.into_iter().flat_map(values).collect()
            }
            _ => vec![Types::None],
        };
        types.into_iter().map(move |types| Unit { file, types })
    })
}

impl Unit {
    /// Returns the source text, before headers are included.
    pub fn text(&self) -> &'static str {
        let file = FILES.iter().find(|(name, _)| *name == self.file);
        file.expect("units are made of files").1
    }

    /// Returns the dynamic shared memory of a kernel per block, in bytes.
    pub fn shared_bytes(&self, kernel: &str) -> u32 {
        let declaration = format!("KERNEL_SHARING({kernel},");
        match self.text().contains(&declaration) {
            true => MOST_SHARED,
            false => 0,
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
