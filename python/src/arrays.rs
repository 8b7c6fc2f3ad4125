//! Quantization and dequantization of rows in memory.

use kernels::types::{Codec, codec, codecs};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use schemas::gguf::DType;

use crate::error::raise_text;

/// Returns the name, the block length and the block size in bytes of every type that arrays can have.
#[pyfunction]
pub(crate) fn types() -> Vec<(String, u64, u64)> {
    let layouts = codecs().filter_map(|codec| codec.dtype().layout().map(|l| (codec.dtype(), l)));
    layouts
        .map(|(dtype, layout)| (dtype.to_string(), layout.block_len, layout.block_bytes))
        .collect()
}

/// Returns the codec of a type and the bytes of its rows.
fn checked_codec(py: Python<'_>, name: &str, n_per_row: u64) -> PyResult<(Codec, usize)> {
    let dtype = DType::by_name(&name.to_uppercase());
    let Some(codec) = dtype.and_then(codec) else {
        let names: Vec<String> = codecs().map(|codec| codec.dtype().to_string()).collect();
        let names = names.join(", ");
        return Err(raise_text(
            py,
            format!("type {name:?}, expected one of {names}"),
        ));
    };
    match codec.dtype().row_bytes(n_per_row) {
        Some(row_bytes) if n_per_row > 0 => Ok((codec, row_bytes as usize)),
        _ => {
            let block_len = codec.dtype().layout().map_or(1, |layout| layout.block_len);
            let message = format!(
                "rows of {n_per_row} values, expected a multiple of {block_len} for {}",
                codec.dtype()
            );
            Err(raise_text(py, message))
        }
    }
}

/// Quantizes rows of little-endian `f32`.
#[pyfunction]
#[pyo3(signature = (data, n_per_row, dtype, importance=None))]
pub(crate) fn quantize_rows<'py>(
    py: Python<'py>,
    data: &[u8],
    n_per_row: u64,
    dtype: &str,
    importance: Option<Vec<f32>>,
) -> PyResult<Bound<'py, PyByteArray>> {
    let (codec, row_bytes) = checked_codec(py, dtype, n_per_row)?;
    let n_columns = n_per_row as usize;
    if let Some(importance) = importance.as_ref().filter(|i| i.len() != n_columns) {
        let message = format!(
            "importance of {} columns, expected {n_per_row}",
            importance.len()
        );
        return Err(raise_text(py, message));
    }
    let n_rows = data.len() / 4 / n_columns;
    let mut invalid = None;
    let bytes = PyByteArray::new_with(py, n_rows * row_bytes, |out| {
        invalid = py.detach(|| {
            let mut row = vec![0.0; n_columns];
            let rows = data.chunks_exact(4 * n_columns);
            for (r, (data, out)) in rows.zip(out.chunks_exact_mut(row_bytes)).enumerate() {
                for (value, bytes) in row.iter_mut().zip(data.as_chunks().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
                if let Some(column) = row.iter().position(|value| !value.is_finite()) {
                    return Some(format!("row {r}, column {column}: {}", row[column]));
                }
                codec.quantize(&row, importance.as_deref(), out);
                if codec.find_invalid(out).is_some() {
                    let dtype = codec.dtype();
                    return Some(format!("row {r}: values beyond the range of {dtype}"));
                }
            }
            None
        });
        Ok(())
    })?;
    match invalid {
        Some(found) => Err(raise_text(py, format!("{found}, expected finite values"))),
        None => Ok(bytes),
    }
}

/// Dequantizes rows to little-endian `f32`.
#[pyfunction]
pub(crate) fn dequantize_rows<'py>(
    py: Python<'py>,
    data: &[u8],
    n_per_row: u64,
    dtype: &str,
) -> PyResult<Bound<'py, PyByteArray>> {
    let (codec, row_bytes) = checked_codec(py, dtype, n_per_row)?;
    if !data.len().is_multiple_of(row_bytes) {
        let message = format!(
            "{} bytes, expected a multiple of {row_bytes} (rows of {n_per_row} values of {})",
            data.len(),
            codec.dtype()
        );
        return Err(raise_text(py, message));
    }
    decode(py, codec, data, n_per_row as usize, row_bytes)
}

/// Decodes rows without the interpreter's lock.
fn decode<'py>(
    py: Python<'py>,
    codec: Codec,
    data: &[u8],
    n_per_row: usize,
    row_bytes: usize,
) -> PyResult<Bound<'py, PyByteArray>> {
    let n_rows = data.len() / row_bytes;
    PyByteArray::new_with(py, n_rows * n_per_row * 4, |out| {
        py.detach(|| {
            let mut row = vec![0.0f32; n_per_row];
            let rows = data.chunks_exact(row_bytes);
            for (data, out) in rows.zip(out.chunks_exact_mut(4 * n_per_row)) {
                codec.dequantize(data, &mut row);
                for (value, bytes) in row.iter().zip(out.as_chunks_mut().0) {
                    *bytes = value.to_le_bytes();
                }
            }
        });
        Ok(())
    })
}

/// Dequantizes a tensor; `None` if its type has no codec.
pub(crate) fn dequantize<'py>(
    py: Python<'py>,
    dtype: DType,
    n_per_row: u64,
    data: &[u8],
) -> Option<PyResult<Bound<'py, PyByteArray>>> {
    let codec = codec(dtype)?;
    let row_bytes = dtype.row_bytes(n_per_row)? as usize;
    Some(decode(py, codec, data, n_per_row as usize, row_bytes))
}
