//! [`Stamp`]: detects files that change while they are read.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::read::{ReadError, ReadErrorKind};

/// Size and modification time of a file, which change with its contents.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) size_bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Stamp {
    pub(super) fn new(metadata: &Metadata) -> Stamp {
        Stamp {
            size_bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }

    /// Compares the stamp of an open file with an earlier one.
    ///
    /// # Errors
    /// The file has changed since, or its state cannot be read.
    pub(super) fn check(self, path: &Path, file: &File) -> Result<(), ReadError> {
        let error = |kind| ReadError {
            path: path.to_path_buf(),
            kind,
        };
        let metadata = file.metadata().map_err(|e| error(e.into()))?;
        let now = Stamp::new(&metadata);
        match now == self {
            true => Ok(()),
            false => Err(error(ReadErrorKind::Changed {
                found: now.size_bytes,
                expected: self.size_bytes,
            })),
        }
    }
}
