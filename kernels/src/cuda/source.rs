//! The sources of all kernels, as they were when the program was built.

use schemas::gguf::DType;

use super::device::{Types, Unit};
use crate::backend::CacheType;

/// A file that others include.
pub struct Header {
    /// The name by which it is included.
    pub name: &'static str,
    /// What it holds.
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

/// What kernels include.
pub static HEADERS: [Header; 7] = headers![
    "activation.cuh",
    "cache.cuh",
    "coded.cuh",
    "common.cuh",
    "math.cuh",
    "tensor.cuh",
    "weight.cuh"
];

/// Name and text of each file.
static FILES: [(&str, &str); 13] = files![
    "activation",
    "attention",
    "cache",
    "causal_conv",
    "choose",
    "elementwise",
    "embed",
    "gated_delta",
    "matmul",
    "moe",
    "norm",
    "rope",
    "rows"
];

/// Types of weights that kernels read.
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

/// Everything that can be compiled.
pub fn units() -> impl Iterator<Item = Unit> {
    FILES.iter().flat_map(|&(file, _)| {
        let cells = CacheType::NAMES.map(|(_, element)| element.dtype());
        let types: Vec<Types> = match file {
            "embed" | "matmul" => WEIGHTS.map(Types::Weight).to_vec(),
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
    /// The text to compile, headers not yet included.
    pub fn text(&self) -> &'static str {
        let file = FILES.iter().find(|(name, _)| *name == self.file);
        file.expect("units are made of files").1
    }

    /// What the preprocessor is told: names and values.
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
