//! Changes of a file's header in place.
//!
//! An editor locks the file until the change is published, so that edits of several processes follow
//! one another. Both headers are kept beside the file until the new one is on disk. What is kept of a
//! file that nobody has locked belongs to an edit that was interrupted, and the edit is rolled back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::super::plan::Plan;
use super::super::reserve;
use super::{WriteError, layout};
use crate::outfile::{self, OutfileError, beside, folder_of, open_locked};

/// A file that this process alone edits, from before it is read until its new content is published.
pub struct Editor {
    path: PathBuf,
    /// Locked. Open for reading only if the user may not write to the file; it can be replaced then.
    file: File,
    has_rolled_back: bool,
}

impl Editor {
    /// Locks a file and rolls back an edit that was interrupted. If another process edits the file,
    /// calls `waiting` once and waits until that edit is done.
    ///
    /// Read the file only after this.
    ///
    /// # Errors
    /// The operating system refuses.
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

    /// Whether an interrupted edit was rolled back.
    pub fn has_rolled_back(&self) -> bool {
        self.has_rolled_back
    }

    /// Gives the file the keys of `after` without moving its data, if they fit: `before` is the file as
    /// it was read, `after` the same tensors with other keys. Room comes from what was
    /// [reserved](super::super::reserve()) and from padding. Returns whether the file was changed: one
    /// that has several names, or that was named by a link, is left alone, since others may count on it.
    ///
    /// # Errors
    /// The operating system refuses, or `after` is a plan that no reader would take.
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
        // Padding that is not zero, for one, would get lost.
        if new.offsets != old.offsets || there != old.header {
            return Ok(false);
        }
        // A file that the user may not write to is reported before anything is kept of it.
        let writable = OpenOptions::new().write(true).open(path);
        drop(writable.map_err(io_error)?);
        let both = [old.header, new.header.clone()].concat();
        keep_record(&beside(path, "header"), &both).map_err(|error| match error {
            // The user knows the file, not its record.
            OutfileError::Io { source, .. } => io_error(source),
            error => error.into(),
        })?;
        if let Err(error) = self.write_header(&new.header) {
            // An edit that failed has changed nothing.
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

/// Opens and locks a file, for reading only where the user may not write to it.
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
    Ok(locked?.expect("whoever waits gets the lock"))
}

fn is_read_only(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::PermissionDenied || kind == io::ErrorKind::ReadOnlyFilesystem
}

/// Rolls back an interrupted edit of a file that is about to be read, whose header may be old in one place
/// and new in another. Waits for an edit that another process is making.
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

/// Rolls back an edit of the locked `file` that was interrupted, and returns whether there was one.
/// What was kept of a file that has been replaced since is removed.
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

/// Removes the record of an edit, also from the disk: a record that came back after a power failure
/// would take the next edit for an interrupted one.
fn remove_record(record: &Path) -> io::Result<()> {
    fs::remove_file(record)?;
    File::open(folder_of(record))?.sync_all()
}
