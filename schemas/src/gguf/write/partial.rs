//! A file while it grows: beside its place, under another name.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::layout::FileLayout;
use super::schedule::Chunk;
use super::{WriteError, copy, folder_of};

/// An output that has no name yet. Removed when dropped.
pub(super) struct Partial<'a> {
    path: &'a Path,
    file: NamedTempFile,
}

impl<'a> Partial<'a> {
    /// Makes the file, takes the room that it needs, and writes the header.
    pub(super) fn create(path: &'a Path, layout: &FileLayout) -> Result<Partial<'a>, WriteError> {
        let folder = folder_of(path);
        let Some(name) = path.file_name() else {
            let kind = io::ErrorKind::InvalidInput;
            return Err(io_error(path, io::Error::new(kind, "not a file name")));
        };
        let file = tempfile::Builder::new()
            .prefix(&format!(".{}.", name.to_string_lossy()))
            .suffix(".partial")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            // Without the name of the partial file, which tells a user nothing.
            .map_err(|e| {
                io_error(
                    folder,
                    e.raw_os_error().map_or(e, io::Error::from_raw_os_error),
                )
            })?;
        let partial = Partial { path, file };
        // A full disk is told now, not after hours of work.
        copy::reserve(partial.file.as_file(), layout.size_bytes).map_err(|e| io_error(path, e))?;
        partial.write_at(&layout.header, 0)?;
        Ok(partial)
    }

    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), WriteError> {
        self.file
            .as_file()
            .write_all_at(bytes, offset)
            .map_err(|e| io_error(self.path, e))
    }

    /// Has the kernel copy a chunk from `offset` of `input`; returns how many bytes it did.
    pub(super) fn copy_from(
        &self,
        input: &File,
        offset: u64,
        chunk: &Chunk<'_>,
    ) -> Result<u64, WriteError> {
        copy::in_kernel(
            input,
            offset,
            self.file.as_file(),
            chunk.offset,
            chunk.size_bytes(),
        )
        .map_err(|e| io_error(self.path, e))
    }
}

/// Brings whole files to the disk, then gives them their names.
pub(super) fn publish(partials: Vec<Partial<'_>>) -> Result<(), WriteError> {
    for partial in &partials {
        let synced = partial.file.as_file().sync_all();
        synced.map_err(|e| io_error(partial.path, e))?;
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    for Partial { path, file } in partials {
        file.persist(path).map_err(|e| io_error(path, e.error))?;
        folders.push(folder_of(path).to_path_buf());
    }
    // The names themselves must reach the disk, or a crash could leave the old ones.
    folders.dedup();
    for folder in folders {
        let synced = File::open(&folder).and_then(|folder| folder.sync_all());
        synced.map_err(|e| io_error(&folder, e))?;
    }
    Ok(())
}

fn io_error(path: &Path, source: io::Error) -> WriteError {
    let path = path.to_path_buf();
    WriteError::Io { path, source }
}
