//! The one memory map: read-only bytes of a file, shared by every view of it.
//!
//! What is touched through the map stays in the process's memory as long as the system likes, so
//! data that is only passed on is read from the open file instead ([`Map::read_at`]).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::plan::{Origin, Place, Source, SourceError};
use crate::input;

/// What Linux takes in around a page that is read, in bytes.
const READ_AROUND: usize = 1 << 16;

/// A whole file, open and mapped read-only.
pub struct Map {
    path: PathBuf,
    file: File,
    /// `None` for an empty file, which cannot be mapped.
    bytes: Option<memmap2::Mmap>,
}

impl Map {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// The file cannot be opened, is not a regular file, or cannot be mapped.
    pub fn open(path: &Path) -> io::Result<Arc<Map>> {
        let file = input::open(path)?;
        let metadata = file.metadata()?;
        let bytes = if metadata.len() == 0 {
            None
        } else {
            // SAFETY: the map is read-only and private to this process. Another process that
            // truncates the file under us could still raise SIGBUS; our own writer never does,
            // since it renames a finished file into place.
            Some(unsafe { memmap2::Mmap::map(&file)? })
        };
        Ok(Arc::new(Map {
            path: path.to_path_buf(),
            file,
            bytes,
        }))
    }

    /// Where the bytes come from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }

    /// Lets the system take bytes out of memory, and what it may have taken in around them; whoever
    /// reads any of it again finds it as it was.
    pub fn let_go(&self, bytes: Range<usize>) {
        use memmap2::UncheckedAdvice::DontNeed;
        if let Some(map) = &self.bytes {
            // It counts from address 0, not from the beginning of the file.
            let address = map.as_ptr().addr();
            let start = (address + bytes.start) / READ_AROUND * READ_AROUND;
            let start = start.saturating_sub(address);
            let end = (address + bytes.end).next_multiple_of(READ_AROUND) - address;
            let end = end.min(map.len());
            // SAFETY: pages of a file that are mapped read-only come back from the file.
            let done = unsafe { map.unchecked_advise_range(DontNeed, start, end - start) };
            // A system that keeps them does no harm.
            let _ = done;
        }
    }

    /// Reads bytes of the file without keeping them in memory.
    ///
    /// # Errors
    /// The file cannot be read, or has become shorter.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    /// A part of the file as a tensor source; `None` if it reaches past the end.
    pub fn part(self: &Arc<Map>, range: Range<usize>, row_bytes: u64) -> Option<Mapped> {
        self.bytes().get(range.clone())?;
        Some(Mapped {
            map: Arc::clone(self),
            range,
            row_bytes,
        })
    }
}

/// A tensor's bytes where they lie in a mapped file.
pub struct Mapped {
    map: Arc<Map>,
    range: Range<usize>,
    row_bytes: u64,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.map.bytes()[self.range.clone()]
    }
}

impl Source for Mapped {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let offset = self.range.start as u64 + rows.start * self.row_bytes;
        Ok(self.map.read_at(offset, out)?)
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(self.as_ref())
    }

    fn let_go(&self, bytes: Range<usize>) {
        let start = self.range.start;
        self.map.let_go(start + bytes.start..start + bytes.end);
    }

    fn origin(&self) -> Option<Origin<'_>> {
        Some(Origin {
            path: self.map.path(),
            file: &self.map.file,
            offset: self.range.start as u64,
        })
    }

    fn input(&self, row: u64) -> Option<Place<'_>> {
        Some(Place {
            path: self.map.path(),
            offset: self.range.start as u64 + row * self.row_bytes,
        })
    }
}
