//! A tensor of a checkpoint: its name, type, shape and byte range.

use std::path::PathBuf;

use safetensors::Dtype;
use schemas::gguf::FileRange;

use super::scales::Scales;
use crate::error::Error;

/// A tensor of a safetensors file.
#[derive(Clone)]
pub(crate) struct StoredTensor {
    /// Name in the file.
    pub(crate) name: String,
    /// Element type in the file.
    pub(crate) dtype: Dtype,
    /// Elements along each axis, the contiguous one last.
    pub(crate) shape: Vec<u64>,
    /// Byte range of its data.
    pub(crate) data: FileRange,
    /// Scales of FP8 elements.
    pub(crate) scales: Option<Scales>,
    /// Block exponents, if the data are pairs of four-bit floats. The shape is that of the elements.
    pub(crate) exponents: Option<FileRange>,
}

impl StoredTensor {
    /// Returns the path of the file.
    pub(crate) fn path(&self) -> PathBuf {
        self.data.path().to_path_buf()
    }

    /// Reads the whole tensor; for vocabulary maps, which are small.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; self.data.size_bytes() as usize];
        self.data.read_at(0, &mut bytes).map_err(Error::Source)?;
        Ok(bytes)
    }

    /// Returns the name as in the tables, without prefixes of multimodal models.
    pub(crate) fn text_name(&self) -> String {
        let name = self.name.replace("language_model.", "");
        let renamed = PREFIXES.iter().find_map(|(from, to)| {
            let rest = name.strip_prefix(from)?;
            Some(format!("{to}{rest}"))
        });
        let name = renamed.unwrap_or(name);
        match name.starts_with("model.layers.") {
            true => name.replacen(HEAD_INFIX, ".", 1),
            false => name,
        }
    }
}

/// Part of the names of MTP heads' output heads in Step's checkpoints.
const HEAD_INFIX: &str = ".transformer.";

/// Prefix replacements from checkpoint names to table names: heads inside the model, the layer of an
/// EAGLE-3 draft in its two layouts, the other tensors of drafts and of DeepSeek V4, and models with Mamba layers.
const PREFIXES: [(&str, &str); 10] = [
    ("model.mtp.", "mtp."),
    ("midlayer.", "model.layers.0."),
    ("layers.", "model.layers."),
    ("norm.", "model.norm."),
    ("embed_tokens.", "model.embed_tokens."),
    ("embed.", "model.embed_tokens."),
    ("head.", "lm_head."),
    ("backbone.layers.", "model.layers."),
    ("backbone.norm_f.", "model.norm."),
    ("backbone.embeddings.", "model.embed_tokens."),
];
