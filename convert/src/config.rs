//! Options of a conversion.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use schemas::gguf::{DType, ReadAt, SourceError};

use crate::quantization::Quantization;

/// Options of a conversion.
#[derive(Clone, Debug)]
pub struct ConvertConfig {
    /// Folder of an HF checkpoint: `config.json`, `tokenizer.json`, `model*.safetensors`.
    pub checkpoint: PathBuf,
    /// Source of the weights and the model's name, if they are not in the folder.
    pub remote: Option<Remote>,
    /// Element type of the matrices.
    pub outtype: OutType,
    /// Treatment of an MTP head.
    pub mtp: MtpMode,
    /// Keeps the clusters of an assistant's tokens, if its config uses them. llama.cpp cannot load a file with them.
    pub clusters: bool,
    /// Folder of another tokenizer to use instead of the checkpoint's own.
    pub tokenizer_from: Option<PathBuf>,
    /// Folder of the target's checkpoint, for drafts that read the target's hidden states. Its
    /// `config.json` and tokenizer are used.
    pub target: Option<PathBuf>,
}

/// Parts of a checkpoint that are not in its folder.
#[derive(Clone)]
pub struct Remote {
    /// Name of the model, in place of a folder name.
    pub name: String,
    /// The weight files.
    pub weights: Arc<dyn WeightFiles>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("name", &self.name).finish()
    }
}

/// Weight files outside a local folder.
pub trait WeightFiles: Send + Sync {
    /// Returns the location for messages.
    fn location(&self) -> &Path;

    /// Returns the names of all files.
    fn names(&self) -> Vec<String>;

    /// Opens a file; `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be accessed.
    fn open(&self, name: &str) -> Result<Option<Arc<dyn ReadAt>>, SourceError>;
}

/// Element type of the matrices. Vectors, norms and convolutions are always F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutType {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a 32-bit float.
    BF16,
    /// 8-bit quants in blocks of 32 with a scale; rows that are not a multiple of 32 become F16.
    Q8_0,
    /// BF16 or F16, like the checkpoint's first 16-bit matrix; F16 if there is none.
    Auto,
}

impl OutType {
    const NAMES: [(&str, OutType); 5] = [
        ("f32", OutType::F32),
        ("f16", OutType::F16),
        ("bf16", OutType::BF16),
        ("q8_0", OutType::Q8_0),
        ("auto", OutType::Auto),
    ];
}

/// The name is not `f32`, `f16`, `bf16`, `q8_0` or `auto`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown type {found:?}, expected f32, f16, bf16, q8_0 or auto")]
pub struct UnknownOutType {
    /// The unknown name.
    pub found: String,
}

impl FromStr for OutType {
    type Err = UnknownOutType;

    fn from_str(name: &str) -> Result<OutType, UnknownOutType> {
        OutType::NAMES
            .into_iter()
            .find(|(known, _)| *known == name)
            .map(|(_, outtype)| outtype)
            .ok_or_else(|| UnknownOutType {
                found: name.to_owned(),
            })
    }
}

impl fmt::Display for OutType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = OutType::NAMES
            .into_iter()
            .find(|(_, outtype)| outtype == self)
            .expect("every variant is in the list");
        f.write_str(name)
    }
}

/// Treatment of a checkpoint's MTP head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MtpMode {
    /// Written after the trunk, in the same file.
    Inline,
    /// Written alone, with the embedding, output norm and output head that it needs.
    Only,
    /// Left out.
    Without,
    /// The DSpark draft alone that checkpoints of DeepSeek V4 may have in the place of an MTP head.
    DSpark,
}

/// A file's element type, after `auto` is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileType {
    /// Type of the matrices.
    pub(crate) dtype: DType,
    /// Value of `general.file_type`.
    pub(crate) id: u32,
}

impl FileType {
    pub(crate) const F32: FileType = FileType {
        dtype: DType::F32,
        id: 0,
    };
    pub(crate) const F16: FileType = FileType {
        dtype: DType::F16,
        id: 1,
    };
    pub(crate) const Q8_0: FileType = FileType {
        dtype: DType::Q8_0,
        id: 7,
    };
    pub(crate) const BF16: FileType = FileType {
        dtype: DType::BF16,
        id: 32,
    };
    /// `general.file_type` of files with MXFP4 experts, whatever the type of the other matrices.
    const MXFP4_MOE: u32 = 38;

    /// Returns the type of a file whose experts are unmodified blocks.
    pub(crate) fn with_mxfp4_experts(self) -> FileType {
        FileType {
            id: FileType::MXFP4_MOE,
            ..self
        }
    }

    /// Returns the type of a file that keeps the checkpoint's quantized blocks.
    pub(crate) fn with_blocks(self, quantization: Quantization) -> FileType {
        match (quantization, self) {
            (Quantization::Mxfp4, FileType::F32 | FileType::F16 | FileType::BF16) => {
                self.with_mxfp4_experts()
            }
            _ => self,
        }
    }

    /// Returns the type's name in file names.
    pub(crate) fn name(self) -> String {
        match self.id {
            FileType::MXFP4_MOE => "MXFP4_MOE".to_owned(),
            _ => self.dtype.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (name, outtype) in OutType::NAMES {
            assert_eq!(name.parse(), Ok(outtype));
            assert_eq!(outtype.to_string(), name);
        }
        assert_eq!(
            "q4".parse::<OutType>().unwrap_err().to_string(),
            "unknown type \"q4\", expected f32, f16, bf16, q8_0 or auto"
        );
    }
}
