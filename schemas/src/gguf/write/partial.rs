//! A file while it grows: beside its place, under another name.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tempfile::NamedTempFile;

use super::copy::Copied;
use super::layout::FileLayout;
use super::schedule::Chunk;
use super::{WriteError, copy, folder_of};

/// An output that has no name yet.
pub(super) struct Partial<'a> {
    path: &'a Path,
    growing: Growing,
    /// Devices, and whether the file shares blocks with files there.
    shares: Mutex<HashMap<u64, bool>>,
}

enum Growing {
    /// Removed when dropped.
    Temporary(NamedTempFile),
    /// Stays for the next run if this one fails.
    Kept { file: File, path: PathBuf },
}

impl<'a> Partial<'a> {
    /// Makes a file that goes away if this run fails.
    pub(super) fn create(path: &'a Path, layout: &FileLayout) -> Result<Partial<'a>, WriteError> {
        let folder = folder_of(path);
        let Some(name) = path.file_name() else {
            return Err(no_name(path));
        };
        let file = tempfile::Builder::new()
            .prefix(&format!(".{}.", name.to_string_lossy()))
            .suffix(".partial")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            // Without the name of the partial file, which tells a user nothing.
            .map_err(|e| {
                let source = e.raw_os_error().map_or(e, io::Error::from_raw_os_error);
                io_error(folder, source)
            })?;
        Partial::begin(path, Growing::Temporary(file), layout)
    }

    /// Opens what an earlier run left, or makes a file that stays if this run fails.
    pub(super) fn keep(path: &'a Path, layout: &FileLayout) -> Result<Partial<'a>, WriteError> {
        if path.file_name().is_none() {
            return Err(no_name(path));
        }
        let kept = beside(path, "partial");
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(&kept)
            .map_err(|e| io_error(&kept, e))?;
        let growing = Growing::Kept { file, path: kept };
        Partial::begin(path, growing, layout)
    }

    /// Takes the room that the file needs, and writes the header.
    fn begin(
        path: &'a Path,
        growing: Growing,
        layout: &FileLayout,
    ) -> Result<Partial<'a>, WriteError> {
        let partial = Partial {
            path,
            growing,
            shares: Mutex::default(),
        };
        // A full disk is told now, not after hours of work.
        copy::reserve(partial.file(), layout.size_bytes).map_err(|e| io_error(path, e))?;
        partial.write_at(&layout.header, 0)?;
        Ok(partial)
    }

    fn file(&self) -> &File {
        match &self.growing {
            Growing::Temporary(file) => file.as_file(),
            Growing::Kept { file, .. } => file,
        }
    }

    /// Reads back what was written.
    pub(super) fn read_at(&self, out: &mut [u8], offset: u64) -> Result<(), WriteError> {
        let read = self.file().read_exact_at(out, offset);
        read.map_err(|e| io_error(self.path, e))
    }

    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), WriteError> {
        let written = self.file().write_all_at(bytes, offset);
        written.map_err(|e| io_error(self.path, e))
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
            .map_err(|e| io_error(self.path, e))?;
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
            .or_insert_with(|| copy::can_share(input, folder_of(self.path)))
    }
}

/// Brings whole files to the disk, then gives them their names.
pub(super) fn publish(partials: Vec<Partial<'_>>) -> Result<(), WriteError> {
    for partial in &partials {
        let synced = partial.file().sync_all();
        synced.map_err(|e| io_error(partial.path, e))?;
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    for Partial { path, growing, .. } in partials {
        let named = match growing {
            Growing::Temporary(file) => file.persist(path).map(drop).map_err(|e| e.error),
            Growing::Kept { path: kept, .. } => fs::rename(kept, path),
        };
        named.map_err(|e| io_error(path, e))?;
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

/// The hidden name beside a file, the same in every run.
pub(super) fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{what}"));
    path.with_file_name(name)
}

fn no_name(path: &Path) -> WriteError {
    let kind = io::ErrorKind::InvalidInput;
    io_error(path, io::Error::new(kind, "not a file name"))
}

fn io_error(path: &Path, source: io::Error) -> WriteError {
    let path = path.to_path_buf();
    WriteError::Io { path, source }
}
