//! Positional file reads. Reading costs a buffer, not a memory map, so memory does not grow with
//! the file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::plan::{Extent, FilePosition, Origin, Source, SourceError};
use super::read::ReadError;
use super::stamp::Stamp;
use crate::input;

/// A file that is read by position: on disk, or remote.
pub trait ReadAt: Send + Sync {
    /// Returns the file's name in messages.
    fn path(&self) -> &Path;

    /// Returns the size of the file in bytes.
    fn size_bytes(&self) -> u64;

    /// Fills `out` with the bytes at `offset`.
    ///
    /// # Errors
    /// The file ends before `offset + out.len()`, or the bytes cannot be read or fetched.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError>;

    /// Returns the local file with the same bytes, if there is one.
    fn file(&self) -> Option<&File> {
        None
    }

    /// Checks that the file has not changed since it was opened.
    ///
    /// # Errors
    /// The size or modification time changed.
    fn check_unchanged(&self) -> Result<(), ReadError> {
        Ok(())
    }
}

/// A file on disk.
pub struct LocalFile {
    path: PathBuf,
    file: File,
    /// The file's state when it was opened.
    stamp: Stamp,
}

impl LocalFile {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// It cannot be opened, or is not a regular file.
    pub fn open(path: &Path) -> io::Result<Arc<LocalFile>> {
        let file = input::open(path)?;
        Ok(Arc::new(LocalFile {
            path: path.to_path_buf(),
            stamp: Stamp::new(&file.metadata()?),
            file,
        }))
    }
}

/// Error of reading a local file.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot read {len} bytes at offset {offset}: {source}", .path.display())]
struct ReadAtError {
    path: PathBuf,
    offset: u64,
    len: usize,
    source: io::Error,
}

impl ReadAt for LocalFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn size_bytes(&self) -> u64 {
        self.stamp.size_bytes
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.file.read_exact_at(out, offset).map_err(|source| {
            ReadAtError {
                path: self.path.clone(),
                offset,
                len: out.len(),
                source,
            }
            .into()
        })
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        self.stamp.check(&self.path, &self.file)
    }
}

/// A byte range of a file as the source of a tensor.
#[derive(Clone)]
pub struct FileRange {
    file: Arc<dyn ReadAt>,
    range: Range<u64>,
    row_bytes: u64,
}

impl FileRange {
    /// Creates a source of the bytes `range` with `row_bytes` per row; `None` if they exceed the
    /// file.
    pub fn new(file: Arc<dyn ReadAt>, range: Range<u64>, row_bytes: u64) -> Option<FileRange> {
        let inside = range.start <= range.end && range.end <= file.size_bytes();
        inside.then_some(FileRange {
            file,
            range,
            row_bytes,
        })
    }

    /// Returns the same bytes with another row size.
    pub fn with_rows(&self, row_bytes: u64) -> FileRange {
        FileRange {
            row_bytes,
            ..self.clone()
        }
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the size of the range in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns the position in the file of the range's byte `offset`.
    pub fn position(&self, offset: u64) -> FilePosition<'_> {
        FilePosition {
            path: self.path(),
            offset: self.range.start + offset,
        }
    }

    /// Returns the file and the range.
    pub fn extent(&self) -> Extent {
        Extent {
            path: self.path().to_path_buf(),
            range: self.range.clone(),
        }
    }

    /// Fills `out` with the range's bytes starting at `offset`.
    ///
    /// # Errors
    /// The range ends before that, or the file cannot be read.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let left = self.size_bytes().checked_sub(offset);
        if left.is_none_or(|left| left < out.len() as u64) {
            return Err(format!(
                "{}: {} bytes at offset {offset} exceed a range of {} bytes",
                self.path().display(),
                out.len(),
                self.size_bytes()
            )
            .into());
        }
        self.file.read_at(self.range.start + offset, out)
    }
}

impl Source for FileRange {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        self.read_at(rows.start * self.row_bytes, out)
    }

    fn origin(&self) -> Option<Origin<'_>> {
        Some(Origin {
            path: self.path(),
            file: self.file.file()?,
            offset: self.range.start,
        })
    }

    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        Some(self.position(row * self.row_bytes))
    }

    fn extents(&self) -> Vec<Extent> {
        vec![self.extent()]
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        self.file.check_unchanged()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_by_rows_and_no_further() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = LocalFile::open(&path).unwrap();
        assert!(FileRange::new(file.clone(), 4..11, 2).is_none());
        let range = FileRange::new(file, 3..9, 2).unwrap();
        let mut out = [0; 4];
        range.read(1..3, &mut out).unwrap();
        assert_eq!(&out, b"5678");
        assert_eq!(range.origin().unwrap().offset, 3);
        assert!(range.read_at(3, &mut out).is_err());
        assert!(range.read_at(u64::MAX, &mut out).is_err());
        assert!(LocalFile::open(folder.path()).is_err());
    }

    #[test]
    fn errors_name_a_file_that_shrank() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, [0; 8]).unwrap();
        let range = FileRange::new(LocalFile::open(&path).unwrap(), 2..8, 2).unwrap();
        range.check_unchanged().unwrap();
        std::fs::write(&path, [0; 5]).unwrap();
        let message = range.check_unchanged().unwrap_err().to_string();
        assert!(message.contains("found 5 bytes, expected 8"), "{message}");
        let message = range.read_at(0, &mut [0; 6]).unwrap_err().to_string();
        let expected = format!("{}: cannot read 6 bytes at offset 2: ", path.display());
        assert!(message.starts_with(&expected), "{message}");
    }
}
