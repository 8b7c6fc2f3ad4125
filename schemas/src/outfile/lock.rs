//! Advisory locks on files that can be renamed or removed while a process waits for them.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::{beside, folder_of};

/// Ending of the hidden file of [`lock_beside`].
const LOCK: &str = "lock";

/// Identity of a file under any name: device and inode.
pub(super) type FileId = (u64, u64);

pub(super) fn id(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// Opens the file at `path` and locks it; `None` if another process holds the lock and `waiting` is
/// absent. With `waiting`, the function calls it once and blocks until the lock is free.
///
/// A process that waited may get the lock of a file that was renamed or removed meanwhile, so the
/// file is opened again until the path still names the locked one. On file systems without locks
/// the file is returned unlocked.
pub(crate) fn open_locked(
    path: &Path,
    options: &OpenOptions,
    waiting: Option<&dyn Fn()>,
) -> io::Result<Option<File>> {
    let mut has_waited = false;
    loop {
        let file = options.open(path)?;
        match (file.try_lock(), waiting) {
            (Ok(()), _) => {}
            (Err(TryLockError::WouldBlock), None) => return Ok(None),
            (Err(TryLockError::WouldBlock), Some(waiting)) => {
                if !has_waited {
                    waiting();
                    has_waited = true;
                }
                file.lock()?;
            }
            (Err(TryLockError::Error(_)), _) => return Ok(Some(file)),
        }
        if is_at(&file, path)? {
            return Ok(Some(file));
        }
    }
}

/// Locks the folder of `path` until the result is dropped, so that no other process reads and replaces a
/// file there in between. Waits for the lock; a folder on a file system without locks stays unlocked.
///
/// # Errors
/// The folder cannot be opened.
pub fn lock_folder_of(path: &Path) -> io::Result<File> {
    let folder = File::open(folder_of(path))?;
    // An error means that the file system has no locks.
    let _ = folder.lock();
    Ok(folder)
}

/// Locks a hidden file beside `path` until the result is dropped, so that one process at a time makes the file.
/// Calls `waiting` if another process holds the lock, and waits for it. A file system without locks locks
/// nothing.
///
/// # Errors
/// The hidden file cannot be made.
pub fn lock_beside(path: &Path, waiting: &dyn Fn()) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    open_locked(&beside(path, LOCK), &options, Some(waiting))
}

/// Checks whether the path still names this open file.
pub(crate) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) => Ok(id(&found) == id(&file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
