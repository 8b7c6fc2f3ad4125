//! The older binary format: 32-bit counts and lengths, without a magic number.

use std::collections::BTreeMap;

use super::{ImatrixEntry, ImatrixErrorKind, ImatrixFile, ImatrixFormat, le_floats};

pub(super) fn read(bytes: &[u8]) -> Result<ImatrixFile, ImatrixErrorKind> {
    let mut cursor = Cursor { bytes, offset: 0 };
    let n_entries = cursor.length(1, "a positive number of entries")?;
    let mut entries = BTreeMap::new();
    for _ in 0..n_entries {
        let len = cursor.length(0, "the length of a name")?;
        let name = until_nul(cursor.take(len, "a name")?);
        let name = std::str::from_utf8(name);
        let name = name.map_err(|_| cursor.error("a UTF-8 name"))?;
        let n_calls = cursor.i32("a number of calls")?;
        let n_values = cursor.length(1, "a positive number of values")?;
        let n_bytes = n_values.saturating_mul(size_of::<f32>());
        let entry = ImatrixEntry {
            squares: le_floats(cursor.take(n_bytes, "the values of an entry")?),
            sums: None,
            counts: vec![n_calls.max(0) as u64],
        };
        entries.insert(name.to_owned(), entry);
    }
    let (mut n_chunks, mut datasets) = (0, Vec::new());
    if !cursor.rest().is_empty() {
        n_chunks = cursor.i32("a number of chunks")?.max(0) as u32;
    }
    if !cursor.rest().is_empty() {
        let len = cursor.length(0, "the length of a text's name")?;
        let name = until_nul(cursor.take(len, "the name of a text")?);
        datasets.extend((len > 0).then(|| name.into()));
    }
    Ok(ImatrixFile {
        format: ImatrixFormat::Dat,
        datasets,
        n_chunks,
        chunk_size: 0,
        n_heads: 0,
        entries,
    })
}

pub(super) fn write(file: &ImatrixFile) -> Vec<u8> {
    let has_rows = |entry: &&ImatrixEntry| entry.counts.iter().any(|n| *n > 0);
    let n_entries = file.entries.values().filter(has_rows).count();
    let mut bytes = le(n_entries);
    for (name, entry) in file.entries.iter().filter(|(_, entry)| has_rows(entry)) {
        bytes.extend(le(name.len()));
        bytes.extend(name.as_bytes());
        let n_most = entry.counts.iter().max().copied().unwrap_or_default();
        let n_calls = n_most.div_ceil(u64::from(file.chunk_size.max(1)));
        bytes.extend(le(n_calls as usize));
        bytes.extend(le(entry.squares.len()));
        let matrices = entry.squares.chunks(entry.n_columns().max(1));
        for (squares, &count) in matrices.zip(&entry.counts) {
            let mean = |square: f32| match count {
                // As if the mean were 1.
                0 => 1.0,
                count => square / count as f32,
            };
            let values = squares.iter().map(|&x| mean(x) * n_calls as f32);
            bytes.extend(values.flat_map(f32::to_le_bytes));
        }
    }
    bytes.extend(le(file.n_chunks as usize));
    let name = file.datasets.last().map_or(&b""[..], |name| name);
    bytes.extend(le(name.len()));
    bytes.extend(name);
    bytes
}

fn le(n: usize) -> Vec<u8> {
    i32::try_from(n).unwrap_or(i32::MAX).to_le_bytes().to_vec()
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

/// A reading position in bytes.
struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a [u8] {
        &self.bytes[self.offset..]
    }

    fn error(&self, expected: &'static str) -> ImatrixErrorKind {
        ImatrixErrorKind::Dat {
            offset: self.offset,
            expected,
        }
    }

    fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], ImatrixErrorKind> {
        let taken = self.rest().get(..len).ok_or_else(|| self.error(what))?;
        self.offset += len;
        Ok(taken)
    }

    fn i32(&mut self, what: &'static str) -> Result<i32, ImatrixErrorKind> {
        let bytes = self.take(size_of::<i32>(), what)?;
        let (value, _) = bytes.split_first_chunk().ok_or_else(|| self.error(what))?;
        Ok(i32::from_le_bytes(*value))
    }

    /// Reads a count that must be at least `min`.
    fn length(&mut self, min: i32, what: &'static str) -> Result<usize, ImatrixErrorKind> {
        let (at, value) = (self.offset, self.i32(what)?);
        if value < min {
            self.offset = at;
            return Err(self.error(what));
        }
        Ok(value as usize)
    }
}
