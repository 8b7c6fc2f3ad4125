//! Quantization settings of a config: the supported methods, and the location of their scales. Other
//! methods are rejected by name.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::Error;
use crate::hf_config::{HfConfig, read_optional_object};

/// Storage of a checkpoint's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantization {
    /// Unquantized.
    None,
    /// Some weights are FP8, with scales in separate tensors.
    Fp8(Fp8),
    /// Some weights are four-bit floats in blocks, with exponents in separate tensors.
    Mxfp4,
    /// Some weights are FP8 with a power of two for each block, others pairs of four-bit floats with exponents of
    /// blocks. The name of the scales ends with `.scale` in the place of `.weight`.
    Mixed(Fp8),
}

/// Location of FP8 scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fp8 {
    /// End of a tensor's name that the suffix replaces.
    pub(crate) replaces: &'static str,
    /// Suffix of a tensor's name that gives the name of its scales.
    pub(crate) suffix: &'static str,
    /// Rows and columns per scale; `None` if the shape of the scales determines them.
    pub(crate) block: Option<[u64; 2]>,
}

impl Fp8 {
    /// Returns the name of a tensor's scales.
    pub(crate) fn scales_of(&self, tensor: &str) -> String {
        let stem = tensor.strip_suffix(self.replaces).unwrap_or(tensor);
        format!("{stem}{}", self.suffix)
    }
}

/// Rows and columns per scale of DeepSeek V4.
const MIXED_BLOCK: [u64; 2] = [128, 128];

/// Returns the storage of a checkpoint of DeepSeek V4, whatever its config says of the method.
///
/// # Errors
/// The config names a method other than FP8.
pub(crate) fn mixed(config: &HfConfig) -> Result<Quantization, Error> {
    let block = match of(config)? {
        Quantization::None => None,
        Quantization::Fp8(Fp8 { block, .. }) => block,
        Quantization::Mxfp4 | Quantization::Mixed(_) => {
            return Err(unsupported(&config.path, "mxfp4"));
        }
    };
    Ok(Quantization::Mixed(Fp8 {
        replaces: ".weight",
        suffix: ".scale",
        block: block.or(Some(MIXED_BLOCK)),
    }))
}

/// Reads the quantization settings of a checkpoint.
///
/// # Errors
/// The config names an unsupported method.
pub(crate) fn of(config: &HfConfig) -> Result<Quantization, Error> {
    let object = |value: &Value| value.as_object().cloned();
    let settings = config
        .fields
        .typed(&["quantization_config"], "an object", object)?;
    if let Some(settings) = settings.filter(|settings| !settings.is_empty()) {
        return read(&config.path, &settings);
    }
    // ModelOpt stores its settings in a separate file.
    let path = config.folder.join("hf_quant_config.json");
    let Some(file) = read_optional_object(&path)? else {
        return Ok(Quantization::None);
    };
    let settings = file.get("quantization").and_then(Value::as_object);
    modelopt(&path, settings.unwrap_or(&Map::new())).map(Quantization::Fp8)
}

fn read(path: &Path, settings: &Map<String, Value>) -> Result<Quantization, Error> {
    match settings.get("quant_method").and_then(Value::as_str) {
        Some("fp8") => fine_grained(path, settings),
        Some("compressed-tensors") => compressed_tensors(path, settings),
        Some("modelopt") => modelopt(path, settings),
        Some("mxfp4") => return Ok(Quantization::Mxfp4),
        method => Err(unsupported(path, method.unwrap_or("unnamed"))),
    }
    .map(Quantization::Fp8)
}

fn unsupported(path: &Path, method: &str) -> Error {
    Error::Quantized {
        path: path.to_path_buf(),
        method: method.to_owned(),
    }
}

/// The format of DeepSeek V3 and of transformers. Despite its name, `weight_scale_inv` is the factor of a
/// block.
fn fine_grained(path: &Path, settings: &Map<String, Value>) -> Result<Fp8, Error> {
    Ok(Fp8 {
        replaces: "",
        suffix: "_scale_inv",
        block: block(path, "weight_block_size", settings.get("weight_block_size"))?,
    })
}

/// The format of LLM Compressor, if all weights are FP8 with the same settings.
fn compressed_tensors(path: &Path, settings: &Map<String, Value>) -> Result<Fp8, Error> {
    let format = settings.get("format").and_then(Value::as_str);
    let refused = || {
        let format = format.unwrap_or("unnamed");
        unsupported(path, &format!("compressed-tensors ({format})"))
    };
    let groups = settings.get("config_groups").and_then(Value::as_object);
    let weights = match groups
        .map(|groups| groups.values().collect::<Vec<_>>())
        .as_deref()
    {
        Some([group]) => group.get("weights").and_then(Value::as_object),
        _ => None,
    };
    let weights = weights.ok_or_else(refused)?;
    let text = |field: &str| weights.get(field).and_then(Value::as_str);
    let is_fp8 = matches!(format, Some("float-quantized" | "naive-quantized"))
        && text("type") == Some("float")
        && weights.get("num_bits").and_then(Value::as_u64) == Some(8)
        && matches!(text("strategy"), Some("tensor" | "channel" | "block"));
    if !is_fp8 {
        return Err(refused());
    }
    Ok(Fp8 {
        replaces: "",
        suffix: "_scale",
        block: block(path, "block_structure", weights.get("block_structure"))?,
    })
}

/// The format of NVIDIA's ModelOpt, if it is FP8 with one scale per tensor.
fn modelopt(path: &Path, settings: &Map<String, Value>) -> Result<Fp8, Error> {
    match settings.get("quant_algo").and_then(Value::as_str) {
        Some("FP8") => Ok(Fp8 {
            replaces: "",
            suffix: "_scale",
            block: None,
        }),
        algorithm => {
            let algorithm = algorithm.unwrap_or("unnamed");
            Err(unsupported(path, &format!("modelopt ({algorithm})")))
        }
    }
}

/// Returns the rows and columns of a block.
fn block(path: &Path, field: &str, value: Option<&Value>) -> Result<Option<[u64; 2]>, Error> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let sizes = value.as_array().map(Vec::as_slice);
    let size = |value: &Value| value.as_u64().filter(|&n| n > 0);
    match sizes {
        Some([rows, columns]) => size(rows).zip(size(columns)),
        _ => None,
    }
    .map(|(rows, columns)| Some([rows, columns]))
    .ok_or_else(|| Error::Field {
        path: path.to_path_buf(),
        field: format!("quantization_config.{field}"),
        expected: "two positive integers".to_owned(),
        found: value.to_string(),
    })
}
