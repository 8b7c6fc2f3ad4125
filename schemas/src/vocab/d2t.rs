//! `d2t`: the target's token of each row of a trimmed output.
//!
//! In GGUF, `d2t` has absolute ids as I64, one per row, without duplicates.

use std::collections::HashMap;
use std::sync::Arc;

use crate::gguf::{DType, Owned, SourceError, Tensor};

/// Name of the tensor in an EAGLE-3 or DFlash draft. In an MTP head it is
/// [`nextn::D2T`](crate::arch::nextn::D2T) of its block.
pub const D2T: &str = "d2t";

/// Error of a draft-to-target map.
#[derive(Debug, thiserror::Error)]
pub enum D2tError {
    /// The tensor is not a vector of I64.
    #[error("tensor {tensor}: {found}, expected one dimension of I64")]
    Layout {
        /// The name.
        tensor: String,
        /// Type and shape.
        found: String,
    },
    /// The map has more rows than the target has tokens.
    #[error("tensor {tensor}: {found} ids for a target of {n_target} tokens")]
    Length {
        /// The name.
        tensor: String,
        /// Number of ids.
        found: u64,
        /// Number of the target's tokens.
        n_target: u64,
    },
    /// An id is not a token of the target.
    #[error("tensor {tensor}: row {row} maps to token {found}, the target has {n_target} tokens")]
    Range {
        /// The name.
        tensor: String,
        /// Index of the row.
        row: usize,
        /// The id.
        found: i64,
        /// Number of the target's tokens.
        n_target: u64,
    },
    /// Two rows have the same token.
    #[error("tensor {tensor}: rows {first} and {row} both map to token {id}")]
    Duplicate {
        /// The name.
        tensor: String,
        /// The earlier row.
        first: usize,
        /// The later row.
        row: usize,
        /// Id of the token.
        id: i64,
    },
    /// The data cannot be read.
    #[error("tensor {tensor}: {source}")]
    Read {
        /// The name.
        tensor: String,
        /// The cause.
        source: SourceError,
    },
}

/// Reads a map and checks that it has tokens of a target of `n_target` tokens, without duplicates.
///
/// # Errors
/// The tensor is not a valid map.
pub fn read_d2t(tensor: &Tensor, n_target: u64) -> Result<Vec<u32>, D2tError> {
    let name = || tensor.name.clone();
    if tensor.dtype != DType::I64 || tensor.logical_shape().len() != 1 {
        return Err(D2tError::Layout {
            tensor: name(),
            found: format!("{} {:?}", tensor.dtype, tensor.shape),
        });
    }
    // Checked before the data is read, because the header is untrusted.
    if tensor.ne0() > n_target {
        return Err(D2tError::Length {
            tensor: name(),
            found: tensor.ne0(),
            n_target,
        });
    }
    let bytes = tensor.read_all().map_err(|source| D2tError::Read {
        tensor: name(),
        source,
    })?;
    let (ids, _) = bytes.as_chunks::<8>();
    let ids: Vec<i64> = ids.iter().map(|&id| i64::from_le_bytes(id)).collect();
    check_d2t(&tensor.name, &ids, n_target)
}

/// Checks absolute ids; `tensor` is the name used in errors.
///
/// # Errors
/// An id is out of range or occurs twice.
pub fn check_d2t(tensor: &str, ids: &[i64], n_target: u64) -> Result<Vec<u32>, D2tError> {
    // The capacity does not depend on `n_target`, which is untrusted.
    let mut row_of = HashMap::with_capacity(ids.len());
    let mut checked = Vec::with_capacity(ids.len());
    for (row, &id) in ids.iter().enumerate() {
        let exists = u64::try_from(id).is_ok_and(|id| id < n_target);
        let Some(token) = u32::try_from(id).ok().filter(|_| exists) else {
            return Err(D2tError::Range {
                tensor: tensor.to_owned(),
                row,
                found: id,
                n_target,
            });
        };
        if let Some(first) = row_of.insert(token, row) {
            return Err(D2tError::Duplicate {
                tensor: tensor.to_owned(),
                first,
                row,
                id,
            });
        }
        checked.push(token);
    }
    Ok(checked)
}

/// Returns a tensor of these ids.
pub fn write_d2t(name: &str, ids: &[u32]) -> Tensor {
    let bytes = ids.iter().flat_map(|&id| i64::from(id).to_le_bytes());
    let source = Owned {
        bytes: bytes.collect(),
        row_bytes: 8 * ids.len() as u64,
    };
    let shape = vec![ids.len() as u64];
    Tensor::new(name, shape, DType::I64, Arc::new(source)).expect("I64 has no blocks to fill")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read_back() {
        let ids = [7, 0, 3];
        let tensor = write_d2t(D2T, &ids);
        assert_eq!(tensor.shape, [3]);
        assert_eq!(read_d2t(&tensor, 8).unwrap(), ids);
    }

    #[test]
    fn invalid_maps_are_described() {
        let message = |tensor: &Tensor| read_d2t(tensor, 8).unwrap_err().to_string();
        assert_eq!(
            message(&write_d2t("d2t", &[1, 8])),
            "tensor d2t: row 1 maps to token 8, the target has 8 tokens"
        );
        assert_eq!(
            message(&write_d2t("d2t", &[2, 5, 2])),
            "tensor d2t: rows 0 and 2 both map to token 2"
        );
        assert_eq!(
            message(&write_d2t("d2t", &[0; 9])),
            "tensor d2t: 9 ids for a target of 8 tokens"
        );
        let mut floats = write_d2t("d2t", &[0, 1]);
        floats.dtype = DType::F64;
        assert_eq!(
            message(&floats),
            "tensor d2t: F64 [2], expected one dimension of I64"
        );
        let error = check_d2t("d2t", &[-1], 8).unwrap_err().to_string();
        assert_eq!(
            error,
            "tensor d2t: row 0 maps to token -1, the target has 8 tokens"
        );
    }
}
