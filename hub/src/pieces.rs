//! A partly downloaded file: a sparse file, and a record of the ranges present.
//!
//! The record is a text file with one line per range. A line is added after its bytes are on disk,
//! so that it is also true after a crash.

use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use rangemap::RangeSet;

use crate::error::Problem;

/// A partly downloaded file.
pub(crate) struct Pieces {
    path: PathBuf,
    data: File,
    size_bytes: u64,
    record: Mutex<Record>,
}

struct Record {
    file: File,
    ranges: RangeSet<u64>,
}

impl Pieces {
    /// Opens the pieces at `path`, or creates them without any range.
    pub(crate) fn open(path: &Path, size_bytes: u64) -> Result<Pieces, Problem> {
        let record_path = record_path(path);
        let io_error = |source| Problem::Io {
            path: path.to_path_buf(),
            source,
        };
        fs::create_dir_all(path.parent().expect("pieces lie in a folder")).map_err(io_error)?;
        let open = |path: &Path| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            options.open(path)
        };
        let mut record = open(&record_path).map_err(io_error)?;
        match record.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Problem::Locked { path: record_path }),
            // The file system has no locks: other processes cannot be detected.
            Err(TryLockError::Error(_)) => {}
        }
        let text = io::read_to_string(&record).unwrap_or_default();
        let data = open(path).map_err(io_error)?;
        let has_size = data.metadata().map_err(io_error)?.len() == size_bytes;
        let (ranges, kept_bytes) = parse(&text, size_bytes)
            .filter(|_| has_size)
            .unwrap_or_default();
        let mut start = || -> io::Result<()> {
            record.set_len(kept_bytes as u64)?;
            record.seek(SeekFrom::Start(kept_bytes as u64))?;
            if kept_bytes == 0 {
                data.set_len(0)?;
                data.set_len(size_bytes)?;
                writeln!(record, "{}", head(size_bytes))?;
            }
            Ok(())
        };
        start().map_err(io_error)?;
        Ok(Pieces {
            path: path.to_path_buf(),
            data,
            size_bytes,
            record: Mutex::new(Record {
                file: record,
                ranges,
            }),
        })
    }

    /// Returns the missing parts of a range.
    pub(crate) fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        if range.is_empty() {
            return Vec::new();
        }
        self.record().ranges.gaps(range).collect()
    }

    /// Checks whether the file is complete.
    pub(crate) fn is_whole(&self) -> bool {
        self.missing(&(0..self.size_bytes)).is_empty()
    }

    /// Writes bytes that are not yet in the record.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Problem> {
        let written = self.data.write_all_at(bytes, offset);
        written.map_err(|source| self.io_error(source))
    }

    /// Adds a range to the record, after syncing its bytes to disk.
    pub(crate) fn add(&self, range: Range<u64>) -> Result<(), Problem> {
        if range.is_empty() {
            return Ok(());
        }
        self.data.sync_data().map_err(|e| self.io_error(e))?;
        let mut record = self.record();
        let line = format!("{} {}\n", range.start, range.end);
        let written = record.file.write_all(line.as_bytes());
        record.ranges.insert(range);
        written.map_err(|source| self.io_error(source))
    }

    /// Reads bytes of ranges that are present.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Problem> {
        let read = self.data.read_exact_at(out, offset);
        read.map_err(|source| self.io_error(source))
    }

    /// Removes all ranges, in memory and on disk.
    pub(crate) fn discard(&self) {
        let mut record = self.record();
        record.ranges.clear();
        // If a file cannot be removed, the truncated size makes `open` reject the record.
        let _ = self.data.set_len(0);
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(record_path(&self.path));
    }

    /// Renames the complete file and removes its record.
    pub(crate) fn rename(&self, to: &Path) -> Result<(), Problem> {
        let rename = || {
            self.data.sync_all()?;
            fs::rename(&self.path, to)?;
            fs::remove_file(record_path(&self.path))
        };
        rename().map_err(|source| self.io_error(source))
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("no holder of it panics")
    }

    fn io_error(&self, source: io::Error) -> Problem {
        Problem::Io {
            path: self.path.clone(),
            source,
        }
    }
}

/// Returns the path of the record of a file.
fn record_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".ranges");
    PathBuf::from(name)
}

/// Returns the first line of a record, without the line break.
fn head(size_bytes: u64) -> String {
    format!("ranges of {size_bytes} bytes")
}

/// Returns the ranges of a record and the length of its complete lines in bytes; a last line
/// without a line break was cut off by a crash. `None` if this is not a record, or one of a file of
/// another size.
fn parse(text: &str, size_bytes: u64) -> Option<(RangeSet<u64>, usize)> {
    let whole = &text[..text.rfind('\n')? + 1];
    let mut lines = whole.lines();
    if lines.next() != Some(&head(size_bytes)) {
        return None;
    }
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?;
        let range = start.parse().ok()?..end.parse().ok()?;
        (range.start < range.end && range.end <= size_bytes).then_some(range)
    };
    Some((lines.map(range).collect::<Option<_>>()?, whole.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns start and end of each missing part of a range.
    fn missing(pieces: &Pieces, range: Range<u64>) -> Vec<(u64, u64)> {
        let ranges = pieces.missing(&range).into_iter();
        ranges.map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn ranges_are_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blobs/x");
        let pieces = Pieces::open(&path, 100).unwrap();
        assert_eq!(missing(&pieces, 10..90), [(10, 90)]);
        pieces.write(20, &[7; 30]).unwrap();
        assert_eq!(missing(&pieces, 10..90), [(10, 90)]);
        pieces.add(20..40).unwrap();
        pieces.add(40..50).unwrap();
        assert!(matches!(
            Pieces::open(&path, 100),
            Err(Problem::Locked { .. })
        ));
        drop(pieces);
        let pieces = Pieces::open(&path, 100).unwrap();
        assert_eq!(missing(&pieces, 10..90), [(10, 20), (50, 90)]);
        let mut out = [0; 30];
        pieces.read(20, &mut out).unwrap();
        assert_eq!(out, [7; 30]);
        pieces.add(0..20).unwrap();
        pieces.add(50..100).unwrap();
        assert!(pieces.is_whole());
        pieces.rename(&folder.path().join("whole")).unwrap();
        drop(pieces);
        assert!(!record_path(&path).exists());
        assert_eq!(fs::read(folder.path().join("whole")).unwrap().len(), 100);
    }

    #[test]
    fn a_record_that_is_not_of_these_bytes_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let start = |text: &str, len: usize| {
            fs::write(record_path(&path), text).unwrap();
            fs::write(&path, vec![0; len]).unwrap();
            let pieces = Pieces::open(&path, 100).unwrap();
            missing(&pieces, 0..100)
        };
        let head = "ranges of 100 bytes\n";
        assert_eq!(start(&format!("{head}0 50\n"), 100), [(50, 100)]);
        // Cut off while a line was written: "50 1" may be the start of "50 100".
        assert_eq!(start(&format!("{head}0 50\n50 1"), 100), [(50, 100)]);
        let record = fs::read_to_string(record_path(&path)).unwrap();
        assert_eq!(record, format!("{head}0 50\n"));
        for (text, len) in [
            (format!("{head}0 50\n"), 99),
            ("ranges of 99 bytes\n0 50\n".to_owned(), 100),
            (format!("{head}0 101\n"), 100),
            (format!("{head}60 50\n"), 100),
            (format!("{head}0 5O\n"), 100),
            (String::new(), 100),
            ("noise".to_owned(), 100),
        ] {
            assert_eq!(start(&text, len), [(0, 100)], "{text:?}");
        }
    }
}
