//! An incomplete model file.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Mutex;

use super::WriteError;
use super::copy::{self, Copied};
use super::layout::FileLayout;
use super::schedule::Chunk;
use crate::outfile::{self, folder_of};

/// An output under a hidden name.
pub(super) struct Partial {
    file: outfile::Partial,
    /// By device: true if blocks can be shared with files on it.
    shares: Mutex<HashMap<u64, bool>>,
}

impl Partial {
    /// Allocates the file's disk space and writes the header.
    pub(super) fn begin(
        file: outfile::Partial,
        layout: &FileLayout,
    ) -> Result<Partial, WriteError> {
        let partial = Partial {
            file,
            shares: Mutex::default(),
        };
        // Report a full disk before the work, not after hours.
        let reserved = copy::reserve(partial.file(), layout.size_bytes);
        reserved.map_err(|e| partial.io_error(e))?;
        partial.write_at(&layout.header, 0)?;
        Ok(partial)
    }

    /// Returns the file after it is complete.
    pub(super) fn into_file(self) -> outfile::Partial {
        self.file
    }

    fn file(&self) -> &File {
        self.file.file()
    }

    /// Reads back what was written.
    pub(super) fn read_at(&self, out: &mut [u8], offset: u64) -> Result<(), WriteError> {
        let read = self.file().read_exact_at(out, offset);
        read.map_err(|e| self.io_error(e))
    }

    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), WriteError> {
        let written = self.file().write_all_at(bytes, offset);
        written.map_err(|e| self.io_error(e))
    }

    /// Starts writeback of a written chunk.
    pub(super) fn begin_writeback(&self, chunk: &Chunk<'_>) {
        copy::begin_writeback(self.file(), chunk.offset, chunk.size_bytes());
    }

    /// Lets the kernel copy a chunk from `offset` of `input`; returns what it copied and shared.
    pub(super) fn copy_from(
        &self,
        input: &File,
        offset: u64,
        chunk: &Chunk<'_>,
    ) -> Result<Copied, WriteError> {
        let size_bytes = chunk.size_bytes();
        let n_bytes = copy::in_kernel(input, offset, self.file(), chunk.offset, size_bytes)
            .map_err(|e| self.io_error(e))?;
        let blocks = copy::whole_blocks(offset, chunk.offset, n_bytes);
        let shared_bytes = match blocks.end - blocks.start {
            0 => 0,
            n_bytes if self.shares_with(input) => n_bytes,
            _ => 0,
        };
        Ok(Copied {
            n_bytes,
            shared_bytes,
        })
    }

    /// Checks whether whole blocks copied from a file are shared with it.
    fn shares_with(&self, input: &File) -> bool {
        // The result is the same for all files of a file system.
        let Ok(device) = input.metadata().map(|found| found.dev()) else {
            return false;
        };
        let mut known = self
            .shares
            .lock()
            .expect("no thread panics while it holds the lock");
        *known
            .entry(device)
            .or_insert_with(|| copy::can_share(input, folder_of(self.file.path())))
    }

    fn io_error(&self, source: io::Error) -> WriteError {
        let path = self.file.path().to_path_buf();
        WriteError::Io { path, source }
    }
}
