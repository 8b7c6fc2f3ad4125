//! Parses the header of a safetensors file: eight bytes with its length, then JSON with the byte range of
//! each tensor. Only the header is read.
//!
//! The rules are those of the reference implementation: tensors do not overlap, and together they cover the
//! file. They are checked here, because the reference implementation needs the whole file in memory and
//! does not name the offending tensors.

use std::fmt;
use std::ops::Range;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use schemas::gguf::{ReadAt, SourceError};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

/// Maximum header size of the reference implementation, in bytes.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Offset of the header's JSON.
const PREFIX_BYTES: u64 = size_of::<u64>() as u64;

/// A tensor of the header.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    /// Elements along each axis, the contiguous one last.
    pub(crate) shape: Vec<u64>,
    /// Byte range in the file.
    pub(crate) range: Range<u64>,
}

/// The reason why a file is not a valid safetensors file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields say what the message says")]
pub enum HeaderError {
    /// The file is too short for the header's length.
    #[error("expected at least {PREFIX_BYTES}")]
    TooShort,
    /// The header is longer than the file or the limit.
    #[error(
        "a header of {found} bytes, expected at most {max}; is the file truncated, or a Git LFS pointer?"
    )]
    Length { found: u64, max: u64 },
    /// The file cannot be read.
    #[error("{0}")]
    Read(SourceError),
    /// The header is not valid JSON of the expected structure.
    #[error("header: {0}")]
    Json(serde_json::Error),
    /// Two entries have the same name.
    #[error("tensor {tensor}: listed twice")]
    Duplicate { tensor: String },
    /// The size of a tensor's data does not match its shape and element type.
    #[error("tensor {tensor}: {found} bytes at {begin}, but {dtype} {shape:?} takes {expected}")]
    Size {
        tensor: String,
        begin: u64,
        found: i128,
        dtype: Dtype,
        shape: Vec<usize>,
        expected: String,
    },
    /// Two tensors overlap.
    #[error(
        "tensor {tensor}: begins at byte {begin} of the data, inside {other}, which ends at {end}"
    )]
    Overlap {
        tensor: String,
        begin: u64,
        other: String,
        end: u64,
    },
    /// There are bytes between two tensors.
    #[error(
        "tensor {tensor}: begins at byte {begin} of the data, but the tensor before it ends at {end}"
    )]
    Hole {
        tensor: String,
        begin: u64,
        end: u64,
    },
    /// The data is shorter or longer than the header states.
    #[error("data of {found} bytes, expected {expected}; download the file again")]
    DataSize { found: u64, expected: u64 },
}

/// Reads and checks the header; returns the tensors sorted by name.
pub(crate) fn read(file: &dyn ReadAt) -> Result<Vec<Entry>, HeaderError> {
    let mut prefix = [0; PREFIX_BYTES as usize];
    let Some(left) = file.size_bytes().checked_sub(PREFIX_BYTES) else {
        return Err(HeaderError::TooShort);
    };
    file.read_at(0, &mut prefix).map_err(HeaderError::Read)?;
    let header_bytes = u64::from_le_bytes(prefix);
    let max = left.min(MAX_HEADER_BYTES);
    if header_bytes > max {
        return Err(HeaderError::Length {
            found: header_bytes,
            max,
        });
    }
    let mut json = vec![0; header_bytes as usize];
    file.read_at(PREFIX_BYTES, &mut json)
        .map_err(HeaderError::Read)?;
    let List(mut infos) = serde_json::from_slice(&json).map_err(HeaderError::Json)?;
    check_sizes(&infos)?;
    check_cover(&mut infos, left - header_bytes)?;
    let data_start = PREFIX_BYTES + header_bytes;
    infos.sort_by(|(a, _), (b, _)| a.cmp(b));
    if let Some(pair) = infos.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(HeaderError::Duplicate {
            tensor: pair[0].0.clone(),
        });
    }
    let entry = |(name, info): (String, TensorInfo)| {
        let (begin, end) = info.data_offsets;
        Entry {
            name,
            dtype: info.dtype,
            shape: info.shape.iter().map(|&n| n as u64).collect(),
            range: data_start + begin as u64..data_start + end as u64,
        }
    };
    Ok(infos.into_iter().map(entry).collect())
}

/// Checks that the data of every tensor has the size of its shape and type.
fn check_sizes(infos: &[(String, TensorInfo)]) -> Result<(), HeaderError> {
    for (name, info) in infos {
        let (begin, end) = info.data_offsets;
        let n_elements = info.shape.iter().try_fold(1usize, |n, &m| n.checked_mul(m));
        let bits = n_elements.and_then(|n| n.checked_mul(info.dtype.bitsize()));
        let expected = bits.filter(|bits| bits % 8 == 0).map(|bits| bits / 8);
        let found = end as i128 - begin as i128;
        if expected.map(|n| n as i128) != Some(found) {
            return Err(HeaderError::Size {
                tensor: name.clone(),
                begin: begin as u64,
                found,
                dtype: info.dtype,
                shape: info.shape.clone(),
                expected: expected
                    .map_or("an invalid number of bytes".to_owned(), |n| n.to_string()),
            });
        }
    }
    Ok(())
}

/// Checks that tensors cover the data without gaps or overlaps.
fn check_cover(infos: &mut [(String, TensorInfo)], data_bytes: u64) -> Result<(), HeaderError> {
    infos.sort_by_key(|(_, info)| info.data_offsets);
    let mut covered = 0;
    let mut last = "";
    for (name, info) in infos.iter() {
        let (begin, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        if begin < covered {
            return Err(HeaderError::Overlap {
                tensor: name.clone(),
                begin,
                other: last.to_owned(),
                end: covered,
            });
        }
        if begin > covered {
            return Err(HeaderError::Hole {
                tensor: name.clone(),
                begin,
                end: covered,
            });
        }
        (covered, last) = (end, name);
    }
    match covered == data_bytes {
        true => Ok(()),
        false => Err(HeaderError::DataSize {
            found: data_bytes,
            expected: covered,
        }),
    }
}

/// Entries in file order, including duplicate names, of which a map would keep only one.
struct List(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = List;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<List, A::Error> {
                let mut infos = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        infos.push((name, map.next_value()?));
                    }
                }
                Ok(List(infos))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}
