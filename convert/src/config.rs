//! What to convert, and into what.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use schemas::gguf::{DType, ReadAt, SourceError};

use crate::quantization::Quantization;

/// What to convert, and into what.
#[derive(Clone, Debug)]
pub struct ConvertConfig {
    /// Folder of an HF checkpoint: `config.json`, `tokenizer.json`, `model*.safetensors`.
    pub checkpoint: PathBuf,
    /// Its weights and its name, where the folder has neither.
    pub remote: Option<Remote>,
    /// Element type of the matrices.
    pub outtype: OutType,
    /// What becomes of an MTP head.
    pub mtp: MtpMode,
    /// Folder whose tokenizer the file gets, in place of the checkpoint's own.
    pub tokenizer_from: Option<PathBuf>,
    /// Folder of the target's checkpoint, where this one is a draft that sees its hidden states:
    /// its `config.json` and tokenizer are read.
    pub target: Option<PathBuf>,
}

/// What of a checkpoint is not in its folder.
#[derive(Clone)]
pub struct Remote {
    /// What the model is called, as a folder would be.
    pub name: String,
    /// The files with the weights.
    pub weights: Arc<dyn WeightFiles>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("name", &self.name).finish()
    }
}

/// Files with weights that are not in a folder.
pub trait WeightFiles: Send + Sync {
    /// What messages call the place.
    fn place(&self) -> &Path;

    /// Names of all files there.
    fn names(&self) -> Vec<String>;

    /// Opens a file; `None` if there is none of that name.
    ///
    /// # Errors
    /// It cannot be had.
    fn open(&self, name: &str) -> Result<Option<Arc<dyn ReadAt>>, SourceError>;
}

/// Element type of the matrices; vectors, norms and convolutions are F32 in every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutType {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a 32-bit float.
    BF16,
    /// Blocks of 32 signed bytes with a scale; rows that are no whole blocks become F16.
    Q8_0,
    /// BF16 or F16, whichever the checkpoint's first 16-bit matrix is; F16 if there is none.
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

/// The name is none of `f32`, `f16`, `bf16`, `q8_0`, `auto`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown type {found:?}, expected f32, f16, bf16, q8_0 or auto")]
pub struct UnknownOutType {
    /// What was given.
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

/// What becomes of a checkpoint's MTP head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MtpMode {
    /// It is written behind the trunk, in one file.
    Inline,
    /// It is written alone, with the embedding, the output norm and the output head it needs.
    Only,
    /// It is left out.
    Without,
}

/// A file's element type, once `auto` is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileType {
    /// Type of the matrices.
    pub(crate) dtype: DType,
    /// `general.file_type`.
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
    /// `general.file_type` of files with experts in MXFP4, whatever their other matrices are.
    const MXFP4_MOE: u32 = 38;

    /// The type of a file that keeps the blocks of a checkpoint stored so.
    pub(crate) fn with_blocks(self, quantization: Quantization) -> FileType {
        match (quantization, self) {
            (Quantization::Mxfp4, FileType::F32 | FileType::F16 | FileType::BF16) => FileType {
                id: FileType::MXFP4_MOE,
                ..self
            },
            _ => self,
        }
    }

    /// What names of files say of it.
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
