//! The weights of an HF checkpoint: safetensors files, one or several, with or without an index.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use safetensors::{Dtype, SafeTensors};
use schemas::gguf::Map;
use serde_json::Value;

use crate::error::{Error, Names};
use crate::hf_config::read_optional_object;

/// A tensor where it lies in a file.
#[derive(Clone)]
pub(crate) struct StoredTensor {
    /// The name in the file.
    pub(crate) name: String,
    /// Element type in the file.
    pub(crate) dtype: Dtype,
    /// Elements along each axis, the contiguous one last.
    pub(crate) shape: Vec<u64>,
    /// The mapped file.
    pub(crate) map: Arc<Map>,
    /// Its bytes in the file.
    pub(crate) range: Range<usize>,
}

impl StoredTensor {
    /// The file.
    pub(crate) fn path(&self) -> PathBuf {
        self.map.path().to_path_buf()
    }

    /// The name without what only places the text model inside a larger one.
    pub(crate) fn text_name(&self) -> String {
        let name = self.name.replace("language_model.", "");
        match name.strip_prefix("model.mtp.") {
            Some(rest) => format!("mtp.{rest}"),
            None => name,
        }
    }
}

/// Every tensor of a checkpoint: file by file, by name within a file.
pub(crate) fn open(folder: &Path) -> Result<Vec<StoredTensor>, Error> {
    let index_path = folder.join("model.safetensors.index.json");
    let index = read_optional_object(&index_path)?
        .map(|index| weight_map(&index_path, index.get("weight_map")))
        .transpose()?;
    let files = match &index {
        Some(index) => index.values().cloned().collect::<BTreeSet<_>>(),
        None => part_files(folder)?,
    };
    let mut tensors = Vec::new();
    for file in &files {
        tensors.extend(open_part(&folder.join(file))?);
    }
    if let Some(index) = index {
        check_index(&index_path, &index, &tensors)?;
    }
    check_names(&tensors)?;
    Ok(tensors)
}

/// Tensor to file, as the index has it.
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

/// Whether `text` names something in a folder itself, not above or below it.
fn is_file_name(text: &str) -> bool {
    let mut components = Path::new(text).components();
    components.next() == Some(Component::Normal(OsStr::new(text))) && components.next().is_none()
}

/// The files of a checkpoint without an index.
fn part_files(folder: &Path) -> Result<BTreeSet<String>, Error> {
    let io_error = |source| Error::Io {
        path: folder.to_path_buf(),
        source,
    };
    let mut files = BTreeSet::new();
    let mut has_pickle = false;
    for entry in fs::read_dir(folder).map_err(io_error)? {
        let name = entry.map_err(io_error)?.file_name();
        let Some(name) = name.to_str() else { continue };
        has_pickle |= name.starts_with("pytorch_model") && name.ends_with(".bin");
        if name.starts_with("model") && name.ends_with(".safetensors") {
            files.insert(name.to_owned());
        }
    }
    if files.is_empty() {
        return Err(Error::NoWeights {
            path: folder.to_path_buf(),
            hint: match has_pickle {
                true => "save pytorch_model*.bin as safetensors first",
                false => "expected the folder of an HF checkpoint",
            },
        });
    }
    Ok(files)
}

fn open_part(path: &Path) -> Result<Vec<StoredTensor>, Error> {
    let map = Map::open(path).map_err(|source| Error::Io {
        path: path.to_path_buf(),
        source,
    })?;
    let (header_bytes, metadata) =
        SafeTensors::read_metadata(map.bytes()).map_err(|source| Error::Safetensors {
            path: path.to_path_buf(),
            size_bytes: map.bytes().len() as u64,
            source,
        })?;
    let data_start = size_of::<u64>() + header_bytes;
    let mut tensors: Vec<_> = metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| StoredTensor {
            name,
            dtype: info.dtype,
            shape: info.shape.iter().map(|&n| n as u64).collect(),
            map: Arc::clone(&map),
            // The metadata was read with the check that all data lies inside the file.
            range: data_start + info.data_offsets.0..data_start + info.data_offsets.1,
        })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
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
