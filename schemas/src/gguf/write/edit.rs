//! In-place edits of a file's header.
//!
//! An editor locks the file until the edit is published, so that edits of several processes follow
//! one another. A record with both headers is stored beside the file until the new header is on
//! disk. A record of a file that no process has locked belongs to an interrupted edit, which is
//! rolled back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::super::plan::Plan;
use super::super::reserve;
use super::{WriteError, layout};
use crate::outfile::{self, OutfileError, beside, folder_of, open_locked};

/// A file that is locked for editing, from before it is read until its new contents are published.
pub struct Editor {
    path: PathBuf,
    /// Locked. Opened for reading only if the user may not write to the file; it can still be
    /// replaced.
    file: File,
    has_rolled_back: bool,
}

impl Editor {
    /// Locks a file and rolls back an interrupted edit. If another process is editing the file,
    /// calls `waiting` once and waits for the end of that edit.
    ///
    /// The file must be read after this call.
    ///
    /// # Errors
    /// A file operation failed.
    pub fn open(path: &Path, waiting: &dyn Fn()) -> Result<Editor, WriteError> {
        let io_error = |source| WriteError::Io {
            path: path.to_path_buf(),
            source,
        };
        let file = lock(path, waiting).map_err(io_error)?;
        Ok(Editor {
            has_rolled_back: roll_back(path, &file).map_err(io_error)?,
            path: path.to_path_buf(),
            file,
        })
    }

    /// Checks whether an interrupted edit was rolled back.
    pub fn has_rolled_back(&self) -> bool {
        self.has_rolled_back
    }

    /// Writes the keys of `after` to the file without moving its data, if they fit. `before` is the
    /// file as it was read, `after` has the same tensors with other keys. Space comes from
    /// [reserved](super::super::reserve()) bytes and from padding. Returns whether the file was
    /// edited: a file with several hard links, or one named by a symbolic link, is not, because
    /// other users may depend on it.
    ///
    /// # Errors
    /// A file operation failed, or no reader would accept `after`.
    pub fn edit(&self, before: &Plan, after: &mut Plan) -> Result<bool, WriteError> {
        let path = &self.path;
        let io_error = |source| WriteError::Io {
            path: path.clone(),
            source,
        };
        let plan_error = |source| WriteError::Plan {
            path: path.clone(),
            source,
        };
        let found = fs::symlink_metadata(path).map_err(io_error)?;
        let old = layout(before).map_err(plan_error)?;
        if !found.is_file() || found.nlink() > 1 || before.tensors.is_empty() {
            return Ok(false);
        }
        if !reserve::fit(after, old.header.len() as u64).map_err(plan_error)? {
            return Ok(false);
        }
        let new = layout(after).map_err(plan_error)?;
        let mut there = vec![0; old.header.len()];
        let read = self.file.read_exact_at(&mut there, 0);
        read.map_err(io_error)?;
        // The header was not written by our rules: for example, its padding is not zero, which an
        // edit would lose.
        if new.offsets != old.offsets || there != old.header {
            return Ok(false);
        }
        // Missing write permission is reported before a record is created.
        let writable = OpenOptions::new().write(true).open(path);
        drop(writable.map_err(io_error)?);
        let both = [old.header, new.header.clone()].concat();
        keep_record(&beside(path, "header"), &both).map_err(|error| match error {
            // Report the file's name, which the user knows, not the record's.
            OutfileError::Io { source, .. } => io_error(source),
            error => error.into(),
        })?;
        if let Err(error) = self.write_header(&new.header) {
            // A failed edit must leave the file unmodified.
            let _ = roll_back(path, &self.file);
            return Err(io_error(error));
        }
        Ok(true)
    }

    fn write_header(&self, header: &[u8]) -> io::Result<()> {
        self.file.write_all_at(header, 0)?;
        self.file.sync_all()?;
        remove_record(&beside(&self.path, "header"))
    }
}

fn keep_record(path: &Path, bytes: &[u8]) -> Result<(), OutfileError> {
    let record = outfile::Partial::create_one(path)?;
    let written = record.file().write_all(bytes);
    written.map_err(|source| OutfileError::Io {
        path: path.to_path_buf(),
        source,
    })?;
    outfile::publish(vec![record])
}

/// Opens and locks a file; for reading only if the user may not write to it.
fn lock(path: &Path, waiting: &dyn Fn()) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        let kind = io::ErrorKind::InvalidInput;
        return Err(io::Error::new(kind, "expected a regular file"));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let locked = match open_locked(path, &options, Some(waiting)) {
        Err(error) if is_read_only(&error) => {
            open_locked(path, options.write(false), Some(waiting))
        }
        locked => locked,
    };
    Ok(locked?.expect("a blocking lock does not fail with WouldBlock"))
}

fn is_read_only(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::PermissionDenied || kind == io::ErrorKind::ReadOnlyFilesystem
}

/// Rolls back an interrupted edit before a file is read, since its header may be partly old and
/// partly new. Waits for an edit by another process.
pub(in crate::gguf) fn recover(path: &Path) -> io::Result<()> {
    if !beside(path, "header").exists() {
        return Ok(());
    }
    let recovered = lock(path, &|| {}).and_then(|file| roll_back(path, &file));
    recovered.map(drop).map_err(|error| {
        let message = format!("an edit was interrupted and cannot be rolled back: {error}");
        io::Error::new(error.kind(), message)
    })
}

/// Rolls back an interrupted edit of the locked `file`; returns whether there was one. If the file
/// was replaced since, only the record is removed.
fn roll_back(path: &Path, file: &File) -> io::Result<bool> {
    let record = beside(path, "header");
    let both = match fs::read(&record) {
        Ok(both) => both,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let (old, new) = both.split_at(both.len() / 2);
    let mut there = vec![0; old.len()];
    let is_whole = file.read_exact_at(&mut there, 0).is_ok() && old.len() == new.len();
    let mut bytes = there.iter().zip(old.iter().zip(new));
    let is_torn = is_whole && bytes.all(|(found, (a, b))| found == a || found == b);
    if is_torn {
        file.write_all_at(old, 0)?;
        file.sync_all()?;
    }
    remove_record(&record)?;
    Ok(is_torn)
}

/// Removes the record of an edit and syncs the folder: a record that reappeared after a power
/// failure would roll back the next edit.
fn remove_record(record: &Path) -> io::Result<()> {
    fs::remove_file(record)?;
    File::open(folder_of(record))?.sync_all()
}
