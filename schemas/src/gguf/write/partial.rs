//! A model file while it grows.

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

/// An output that has no name yet.
pub(super) struct Partial {
    file: outfile::Partial,
    /// Devices, and whether the file shares blocks with files there.
    shares: Mutex<HashMap<u64, bool>>,
}

impl Partial {
    /// Takes the room that the file needs, and writes the header.
    pub(super) fn begin(
        file: outfile::Partial,
        layout: &FileLayout,
    ) -> Result<Partial, WriteError> {
        let partial = Partial {
            file,
            shares: Mutex::default(),
        };
        // A full disk is reported now, not after hours of work.
        let reserved = copy::reserve(partial.file(), layout.size_bytes);
        reserved.map_err(|e| partial.io_error(e))?;
        partial.write_at(&layout.header, 0)?;
        Ok(partial)
    }

    /// The file, when it is complete.
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

    /// Sends a chunk that is written on its way to the disk.
    pub(super) fn begin_writeback(&self, chunk: &Chunk<'_>) {
        copy::begin_writeback(self.file(), chunk.offset, chunk.size_bytes());
    }

    /// Has the kernel copy a chunk from `offset` of `input`, and says what it did.
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

    /// Whether whole blocks that are copied from a file are shared with it.
    fn shares_with(&self, input: &File) -> bool {
        // Of all files of a file system the same is true.
        let Ok(device) = input.metadata().map(|found| found.dev()) else {
            return false;
        };
        let mut known = self
            .shares
            .lock()
            .expect("nobody panics while holding this");
        *known
            .entry(device)
            .or_insert_with(|| copy::can_share(input, folder_of(self.file.path())))
    }

    fn io_error(&self, source: io::Error) -> WriteError {
        let path = self.file.path().to_path_buf();
        WriteError::Io { path, source }
    }
}
