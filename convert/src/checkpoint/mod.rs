//! The weights of an HF checkpoint: one or several safetensors files, with or without an index.

mod fp8;
mod mxfp4;
mod scales;
mod stored;

pub(crate) use mxfp4::Blocks;
pub(crate) use scales::Scales;
pub(crate) use stored::StoredTensor;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Component, Path};
use std::sync::Arc;
use std::{fs, io};

use schemas::gguf::{FileRange, LocalFile, ReadAt, SourceError};
use serde_json::Value;

use crate::config::{ConvertConfig, WeightFiles};
use crate::error::{Error, Names};
use crate::hf_config::read_optional_object;
use crate::note::Note;
use crate::quantization::Quantization;
use crate::safetensors_header::{self, Entry};

/// Returns true for checkpoint files that are read whole: those that describe the model, and the index.
pub fn is_description(name: &str) -> bool {
    const FILES: [&str; 15] = [
        "README.md",
        "adapter_config.json",
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "config.json",
        "generation_config.json",
        "hf_quant_config.json",
        "merges.txt",
        INDEX,
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
    ];
    FILES.contains(&name) || name.starts_with("additional_chat_templates/")
}

/// Returns true for checkpoint files that contain weights.
pub fn is_weights(name: &str) -> bool {
    name.starts_with("model") && name.ends_with(".safetensors")
}

/// Index file of a sharded checkpoint.
const INDEX: &str = "model.safetensors.index.json";

/// Returns all tensors of a checkpoint, file by file, sorted by name within a file; scales are attached to
/// their tensors.
pub(crate) fn open(
    config: &ConvertConfig,
    quantization: Quantization,
    notes: &mut Vec<Note>,
) -> Result<Vec<StoredTensor>, Error> {
    let folder = Folder(&config.checkpoint);
    let files: &dyn WeightFiles = match &config.remote {
        Some(remote) => &*remote.weights,
        None => &folder,
    };
    let index_path = config.checkpoint.join(INDEX);
    let index = read_optional_object(&index_path)?
        .map(|index| weight_map(&index_path, index.get("weight_map")))
        .transpose()?;
    let names = match &index {
        Some(index) => index.values().cloned().collect::<BTreeSet<_>>(),
        None => weight_files(files)?,
    };
    let mut tensors = Vec::new();
    for name in &names {
        let file = files.open(name).map_err(Error::Source)?;
        let file = file.ok_or_else(|| missing_file(files, name, index.as_ref()))?;
        tensors.extend(open_file(file)?);
    }
    if let Some(index) = index {
        check_index(&index_path, &index, &tensors)?;
    }
    check_names(&tensors)?;
    match quantization {
        Quantization::Mxfp4 => mxfp4::attach(tensors, &mxfp4::BLOCKS),
        Quantization::Mixed(_) => {
            let tensors = mxfp4::attach(tensors, &mxfp4::PAIRS)?;
            fp8::attach(tensors, quantization, notes)
        }
        Quantization::Fp8(_) | Quantization::None => fp8::attach(tensors, quantization, notes),
    }
}

/// The files of a local folder.
struct Folder<'a>(&'a Path);

impl WeightFiles for Folder<'_> {
    fn location(&self) -> &Path {
        self.0
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string());
        names.flatten().collect()
    }

    fn open(&self, name: &str) -> Result<Option<Arc<dyn ReadAt>>, SourceError> {
        let path = self.0.join(name);
        match LocalFile::open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Io { path, source }.into()),
        }
    }
}

fn missing_file(
    files: &dyn WeightFiles,
    name: &str,
    index: Option<&BTreeMap<String, String>>,
) -> Error {
    let entries = index.into_iter().flatten();
    Error::MissingFile {
        path: files.location().join(name),
        tensors: entries
            .filter(|(_, file)| *file == name)
            .map(|(tensor, _)| tensor.as_str())
            .collect(),
    }
}

/// Returns the map from tensors to files in the index.
fn weight_map(path: &Path, field: Option<&Value>) -> Result<BTreeMap<String, String>, Error> {
    let entries = match field {
        Some(Value::Object(entries)) => entries,
        _ => {
            return Err(Error::Field {
                path: path.to_path_buf(),
                field: "weight_map".to_owned(),
                expected: "an object".to_owned(),
                found: field.map_or("nothing".to_owned(), Value::to_string),
            });
        }
    };
    let mut map = BTreeMap::new();
    for (tensor, file) in entries {
        let file = file.as_str().filter(|file| is_file_name(file));
        let Some(file) = file else {
            return Err(Error::IndexPath {
                path: path.to_path_buf(),
                tensor: tensor.clone(),
                file: entries[tensor].to_string(),
            });
        };
        map.insert(tensor.clone(), file.to_owned());
    }
    Ok(map)
}

/// Returns true if `text` is a plain file name, without a path.
fn is_file_name(text: &str) -> bool {
    let mut components = Path::new(text).components();
    components.next() == Some(Component::Normal(OsStr::new(text))) && components.next().is_none()
}

/// Returns the weight files of a checkpoint without an index.
fn weight_files(files: &dyn WeightFiles) -> Result<BTreeSet<String>, Error> {
    let names = files.names();
    let is_pickle = |name: &String| name.starts_with("pytorch_model") && name.ends_with(".bin");
    let has_pickle = names.iter().any(is_pickle);
    let weights: BTreeSet<String> = names.into_iter().filter(|name| is_weights(name)).collect();
    match weights.is_empty() {
        false => Ok(weights),
        true => Err(Error::NoWeights {
            path: files.location().to_path_buf(),
            hint: match has_pickle {
                true => {
                    "pytorch_model*.bin is a pickle, which can run code and is not read: load it with \
                     transformers and save it as safetensors (save_pretrained)"
                }
                false => "expected the folder of an HF checkpoint",
            },
        }),
    }
}

fn open_file(file: Arc<dyn ReadAt>) -> Result<Vec<StoredTensor>, Error> {
    let entries = safetensors_header::read(&*file).map_err(|source| Error::Safetensors {
        path: file.path().to_path_buf(),
        size_bytes: file.size_bytes(),
        source: Box::new(source),
    })?;
    let stored = |entry: Entry| StoredTensor {
        name: entry.name,
        dtype: entry.dtype,
        shape: entry.shape,
        data: FileRange::new(Arc::clone(&file), entry.range, 1)
            .expect("was checked with the header"),
        scales: None,
        exponents: None,
    };
    Ok(entries.into_iter().map(stored).collect())
}

fn check_index(
    path: &Path,
    index: &BTreeMap<String, String>,
    tensors: &[StoredTensor],
) -> Result<(), Error> {
    let stored: BTreeSet<_> = tensors.iter().map(|tensor| &tensor.name).collect();
    let missing: Names = index
        .iter()
        .filter(|(name, _)| !stored.contains(name))
        .map(|(name, file)| format!("{name} ({file})"))
        .collect();
    let extra: Names = stored
        .iter()
        .filter(|name| !index.contains_key(**name))
        .map(|name| name.as_str())
        .collect();
    if missing.0.is_empty() && extra.0.is_empty() {
        return Ok(());
    }
    Err(Error::IndexMismatch {
        path: path.to_path_buf(),
        missing,
        extra,
    })
}

fn check_names(tensors: &[StoredTensor]) -> Result<(), Error> {
    let mut seen: BTreeMap<String, &StoredTensor> = BTreeMap::new();
    for tensor in tensors {
        if let Some(first) = seen.insert(tensor.text_name(), tensor) {
            return Err(Error::DuplicateTensor {
                path: tensor.path(),
                tensor: tensor.name.clone(),
                first: first.name.clone(),
                first_path: first.path(),
            });
        }
    }
    Ok(())
}
