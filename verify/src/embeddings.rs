//! Files with embeddings: `.npy` of numpy, or safetensors with one tensor. Both have rows of `f32`.

use std::path::Path;

use runner::batch::Embedding;
use schemas::input;
use serde_json::{Map, Value};

/// First bytes of a `.npy` file, without its version.
const NPY: &[u8] = b"\x93NUMPY";
/// Limit of the header of either format: a few numbers and names.
const MAX_HEADER: usize = 1 << 20;

/// The elements of a file, (n, width).
struct Rows<'a> {
    n: usize,
    width: usize,
    data: &'a [u8],
}

/// Reads the rows of a file.
///
/// # Errors
/// The file cannot be read, is of neither format, or has a number that is not finite. The message names
/// the file.
pub(crate) fn read(path: &Path) -> Result<Vec<Embedding>, String> {
    let name = |message: String| format!("{}: {message}", path.display());
    let bytes = input::read(path, input::Kind::File, input::MAX_WHOLE);
    let bytes = bytes.map_err(|error| name(error.to_string()))?;
    let rows = match bytes.starts_with(NPY) {
        true => npy(&bytes),
        false => safetensors(&bytes),
    };
    rows.and_then(|rows| embeddings(&rows)).map_err(name)
}

fn embeddings(rows: &Rows<'_>) -> Result<Vec<Embedding>, String> {
    let Rows { n, width, data } = *rows;
    let size = n.checked_mul(width).and_then(|n| n.checked_mul(4));
    if size != Some(data.len()) || width == 0 || n == 0 {
        return Err(format!(
            "shape [{n}, {width}] of f32, but {} bytes of data",
            data.len()
        ));
    }
    let rows = data.chunks_exact(4 * width).enumerate().map(|(i, row)| {
        let values = row.as_chunks().0.iter();
        let row: Embedding = values.map(|&value| f32::from_le_bytes(value)).collect();
        match row.iter().all(|x| x.is_finite()) {
            true => Ok(row),
            false => Err(format!("row {i} has a NaN or infinite value")),
        }
    });
    rows.collect()
}

/// Reads the header of a `.npy` file: a Python dictionary.
fn npy(bytes: &[u8]) -> Result<Rows<'_>, String> {
    let rest = &bytes[NPY.len()..];
    let (&[major, _minor], rest) = rest.split_first_chunk().ok_or_else(truncated)?;
    let (len, rest) = match major {
        1 => {
            let (len, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
            (u16::from_le_bytes(*len).into(), rest)
        }
        2 | 3 => {
            let (len, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
            (u32::from_le_bytes(*len) as usize, rest)
        }
        _ => return Err(format!("version {major} of the format, expected 1 to 3")),
    };
    if len > MAX_HEADER {
        return Err(format!(
            "a header of {len} bytes, expected at most {MAX_HEADER}"
        ));
    }
    let (header, data) = rest.split_at_checked(len).ok_or_else(truncated)?;
    let header = String::from_utf8_lossy(header);
    let field = |name: &str| {
        let (_, value) = header.split_once(&format!("'{name}':"))?;
        Some(value.trim_start())
    };
    let has = |name: &str, value: &str| field(name).is_some_and(|found| found.starts_with(value));
    if !has("descr", "'<f4'") || !has("fortran_order", "False") {
        return Err("expected elements '<f4' in C order".to_owned());
    }
    let shape = field("shape").and_then(|shape| shape.strip_prefix('(')?.split_once(')'));
    let shape = shape.map(|(shape, _)| shape.split(',').map(|n| n.trim().parse().ok()));
    match shape
        .map(Iterator::collect::<Vec<Option<usize>>>)
        .as_deref()
    {
        Some([Some(n), Some(width)]) => Ok(Rows {
            n: *n,
            width: *width,
            data,
        }),
        _ => Err(two_dimensions()),
    }
}

/// Reads the header of a safetensors file with one tensor.
fn safetensors(bytes: &[u8]) -> Result<Rows<'_>, String> {
    let neither = || "neither .npy nor safetensors".to_owned();
    let (len, rest) = bytes.split_first_chunk().ok_or_else(neither)?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| neither())?;
    if len > MAX_HEADER {
        return Err(neither());
    }
    let (header, data) = rest.split_at_checked(len).ok_or_else(neither)?;
    let header: Map<String, Value> = serde_json::from_slice(header).map_err(|_| neither())?;
    let mut tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    let (Some((_, tensor)), None) = (tensors.next(), tensors.next()) else {
        return Err(format!(
            "{} tensors, expected one",
            header.keys().filter(|name| *name != "__metadata__").count()
        ));
    };
    if tensor.get("dtype").and_then(Value::as_str) != Some("F32") {
        return Err("expected a tensor of F32".to_owned());
    }
    let numbers = |field: &str| -> Option<[usize; 2]> {
        let numbers = tensor.get(field)?.as_array()?.iter();
        let numbers: Option<Vec<usize>> = numbers
            .map(|n| n.as_u64().and_then(|n| n.try_into().ok()))
            .collect();
        numbers?.try_into().ok()
    };
    let [n, width] = numbers("shape").ok_or_else(two_dimensions)?;
    let [start, end] = numbers("data_offsets").ok_or_else(truncated)?;
    let data = data.get(start..end).ok_or_else(truncated)?;
    Ok(Rows { n, width, data })
}

fn truncated() -> String {
    "the file is truncated".to_owned()
}

fn two_dimensions() -> String {
    "expected two dimensions: rows, and the model's embedding length".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy_file(header: &str, values: &[f32]) -> Vec<u8> {
        let mut bytes = [NPY, &[1, 0], &(header.len() as u16).to_le_bytes()].concat();
        bytes.extend(header.bytes());
        bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        bytes
    }

    fn safetensors_file(header: &str, values: &[f32]) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        bytes
    }

    fn read_bytes(bytes: &[u8]) -> Result<Vec<Vec<f32>>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("e");
        std::fs::write(&path, bytes).unwrap();
        let rows = read(&path).map_err(|message| {
            let prefix = format!("{}: ", path.display());
            message.strip_prefix(&prefix).unwrap().to_owned()
        })?;
        Ok(rows.iter().map(|row| row.to_vec()).collect())
    }

    const NPY_HEADER: &str = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
    const HEADER: &str =
        r#"{"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;
    const VALUES: [f32; 6] = [1.0, 2.0, 3.0, -4.0, 5.5, 0.0];

    #[test]
    fn both_formats_are_read() {
        let expected = vec![vec![1.0, 2.0, 3.0], vec![-4.0, 5.5, 0.0]];
        let found = read_bytes(&npy_file(NPY_HEADER, &VALUES));
        assert_eq!(found, Ok(expected.clone()));
        assert_eq!(read_bytes(&safetensors_file(HEADER, &VALUES)), Ok(expected));
    }

    #[test]
    fn damaged_files_are_refused() {
        let npy = |from: &str, to: &str| npy_file(&NPY_HEADER.replace(from, to), &VALUES);
        let tensors = |from: &str, to: &str| safetensors_file(&HEADER.replace(from, to), &VALUES);
        let long = [NPY, &[2, 0], &u32::MAX.to_le_bytes()].concat();
        for (bytes, expected) in [
            (npy("<f4", "<f8"), "expected elements '<f4' in C order"),
            (npy("False", "True"), "expected elements '<f4' in C order"),
            (npy("(2, 3)", "(2,)"), "expected two dimensions"),
            (npy("(2, 3)", "(-2, 3)"), "expected two dimensions"),
            (npy("(2, 3)", "(2, 4)"), "shape [2, 4] of f32, but 24 bytes"),
            (npy("(2, 3)", "(0, 3)"), "shape [0, 3] of f32, but 24 bytes"),
            (
                npy("(2, 3)", "(9223372036854775807, 9223372036854775807)"),
                "shape [9223372036854775807",
            ),
            (NPY.to_vec(), "the file is truncated"),
            (
                npy_file(NPY_HEADER, &VALUES)[..30].to_vec(),
                "the file is truncated",
            ),
            (long, "a header of 4294967295 bytes"),
            (b"text".to_vec(), "neither .npy nor safetensors"),
            (vec![0xff; 64], "neither .npy nor safetensors"),
            (tensors("F32", "F16"), "expected a tensor of F32"),
            (tensors("[2,3]", "[6]"), "expected two dimensions"),
            (tensors("[0,24]", "[0,99]"), "the file is truncated"),
            (tensors("[0,24]", "[24,0]"), "the file is truncated"),
            (
                tensors("\"x\"", "\"__metadata__\""),
                "0 tensors, expected one",
            ),
        ] {
            let error = read_bytes(&bytes).unwrap_err();
            assert!(error.starts_with(expected), "{error}: {expected}");
        }
        let mut values = VALUES;
        values[4] = f32::NAN;
        let error = read_bytes(&npy_file(NPY_HEADER, &values)).unwrap_err();
        assert_eq!(error, "row 1 has a NaN or infinite value");
    }
}
