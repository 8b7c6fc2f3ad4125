//! Readers for draft-to-target maps: GGUF, safetensors, NumPy, JSON, text.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use graft::{MapKind, StoredMap};
use safetensors::{Dtype, SafeTensors};
use schemas::gguf::{self, DType};
use schemas::input;
use schemas::vocab::D2T;

/// Maximum size of a map file: 256 MiB, enough for the largest vocabulary as text.
const MAX_BYTES: u64 = 256 << 20;

/// Reads a map, and the interpretation of its numbers if the format defines it.
pub(super) fn read(path: &Path) -> anyhow::Result<(StoredMap, Option<MapKind>)> {
    let name = || path.display().to_string();
    let mut magic = [0; 8];
    let n = read_start(path, &mut magic).with_context(name)?;
    if magic[..n].starts_with(b"GGUF") {
        return from_gguf(path).map(|map| (map, Some(MapKind::Absolute)));
    }
    let bytes = input::read(path, input::Kind::File, MAX_BYTES).with_context(name)?;
    let map = if bytes.starts_with(b"\x93NUMPY") {
        from_numpy(&bytes)
    } else if path.extension().is_some_and(|e| e == "safetensors") {
        from_safetensors(&bytes)
    } else {
        from_text(&bytes)
    };
    Ok((map.with_context(name)?, None))
}

fn read_start(path: &Path, out: &mut [u8]) -> std::io::Result<usize> {
    use std::io::Read;
    input::open(path)?.read(out)
}

/// Reads llama.cpp's layout: ids, as I64.
fn from_gguf(path: &Path) -> anyhow::Result<StoredMap> {
    let plan = gguf::open(path)?;
    let name = || path.display().to_string();
    let tensor = plan.tensor(D2T);
    let tensor = tensor.with_context(|| format!("{}: tensor {D2T} is missing", name()))?;
    ensure!(
        tensor.dtype == DType::I64 && tensor.size_bytes <= MAX_BYTES,
        "{}: tensor {D2T}: {tensor:?}, expected I64",
        name()
    );
    let bytes = tensor
        .read_all()
        .map_err(|e| anyhow::anyhow!("{}: {e}", name()))?;
    let (ids, _) = bytes.as_chunks::<8>();
    Ok(StoredMap {
        d2t: ids.iter().map(|&id| i64::from_le_bytes(id)).collect(),
        t2d: None,
    })
}

fn from_safetensors(bytes: &[u8]) -> anyhow::Result<StoredMap> {
    let file = SafeTensors::deserialize(bytes)?;
    let d2t = file.tensor("d2t").context("tensor d2t")?;
    let d2t = match d2t.dtype() {
        Dtype::I64 => integers(d2t.data(), i64::from_le_bytes),
        Dtype::I32 => integers(d2t.data(), |b| i32::from_le_bytes(b).into()),
        other => bail!("tensor d2t: type {other:?}, expected I64 or I32"),
    };
    let t2d = match file.tensor("t2d") {
        Err(_) => None,
        Ok(mask) if mask.dtype() == Dtype::BOOL => {
            Some(mask.data().iter().map(|&b| b != 0).collect())
        }
        Ok(mask) => bail!("tensor t2d: type {:?}, expected BOOL", mask.dtype()),
    };
    Ok(StoredMap { d2t, t2d })
}

fn integers<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> i64) -> Vec<i64> {
    let (numbers, _) = bytes.as_chunks::<N>();
    numbers.iter().map(|&n| read(n)).collect()
}

/// Reads a one-dimensional array of little-endian integers in NumPy's format, versions 1 to 3: magic,
/// version, header length, a header that is a Python dictionary, data.
fn from_numpy(bytes: &[u8]) -> anyhow::Result<StoredMap> {
    let wide = bytes.get(6).is_some_and(|&major| major >= 2);
    let length = match (wide, bytes.get(8..12)) {
        (true, Some(&[a, b, c, d])) => Some(u32::from_le_bytes([a, b, c, d]) as usize),
        (false, Some(&[a, b, ..])) => Some(usize::from(u16::from_le_bytes([a, b]))),
        _ => None,
    };
    let start: usize = if wide { 12 } else { 10 };
    let header = length.and_then(|n| bytes.get(start..start.checked_add(n)?));
    let header = header.context("NumPy header is truncated")?;
    let data = &bytes[start + header.len()..];
    let text = std::str::from_utf8(header)?.replace([' ', '"'], "");
    let text = text.replace('\'', "");
    let shape = text
        .split_once("shape:(")
        .and_then(|(_, rest)| rest.split_once(')'));
    let axes = shape.map(|(shape, _)| shape.split(',').filter(|axis| !axis.is_empty()));
    let axes: Vec<&str> = axes.into_iter().flatten().collect();
    let d2t = match text.split_once("descr:").map(|(_, rest)| rest) {
        Some(rest) if rest.starts_with("<i8") => integers(data, i64::from_le_bytes),
        Some(rest) if rest.starts_with("<i4") => {
            integers(data, |b: [u8; 4]| i32::from_le_bytes(b).into())
        }
        _ => bail!("NumPy header {text:?}: expected type <i8 or <i4"),
    };
    ensure!(
        axes.len() == 1 && axes[0].parse() == Ok(d2t.len()),
        "NumPy header {text:?}: expected one axis of the {} numbers in the file",
        d2t.len()
    );
    Ok(StoredMap { d2t, t2d: None })
}

/// Reads a JSON list, a JSON object with `d2t` and optionally `t2d`, or separated numbers.
fn from_text(bytes: &[u8]) -> anyhow::Result<StoredMap> {
    let text = std::str::from_utf8(bytes).context("neither a known format nor text")?;
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Json {
        List(Vec<i64>),
        Both {
            d2t: Vec<i64>,
            t2d: Option<Vec<bool>>,
        },
    }
    if text.trim_start().starts_with(['[', '{']) {
        return Ok(match serde_json::from_str(text)? {
            Json::List(d2t) => StoredMap { d2t, t2d: None },
            Json::Both { d2t, t2d } => StoredMap { d2t, t2d },
        });
    }
    let words = text.split(|c: char| c.is_whitespace() || c == ',');
    let words = words.filter(|word| !word.is_empty());
    let number = |word: &str| {
        word.parse()
            .with_context(|| format!("{word:?} is not a number"))
    };
    Ok(StoredMap {
        d2t: words.map(number).collect::<anyhow::Result<_>>()?,
        t2d: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numpy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let header =
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn maps_are_read_from_text_json_and_numpy() {
        let d2t =
            |found: anyhow::Result<StoredMap>| found.map(|map| map.d2t).map_err(|e| e.to_string());
        assert_eq!(d2t(from_text(b"3, 1\n4\n")), Ok(vec![3, 1, 4]));
        assert_eq!(d2t(from_text(b" [3, -1]")), Ok(vec![3, -1]));
        let both = from_text(br#"{"d2t": [0], "t2d": [true, false]}"#).unwrap();
        assert_eq!(both.t2d, Some(vec![true, false]));
        assert_eq!(
            d2t(from_text(b"3 x")),
            Err("\"x\" is not a number".to_owned())
        );
        let data = [7i64, -2].map(i64::to_le_bytes).concat();
        assert_eq!(
            d2t(from_numpy(&numpy("<i8", "(2,)", &data))),
            Ok(vec![7, -2])
        );
        assert_eq!(
            d2t(from_numpy(&numpy("<i4", "(4,)", &data))),
            Ok(vec![7, 0, -2, -1])
        );
        for (descr, shape) in [("<i8", "(3,)"), ("<i8", "(1, 2)"), ("<f8", "(2,)")] {
            let error = d2t(from_numpy(&numpy(descr, shape, &data))).unwrap_err();
            assert!(error.starts_with("NumPy header"), "{error}");
        }
        assert!(d2t(from_numpy(b"\x93NUMPY\x01\x00\xff\xff")).is_err());
    }
}
