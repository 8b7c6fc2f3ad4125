//! Changes of a file's header where it lies.
//!
//! Both headers are kept beside the file until the new one is on disk, so that an edit that was
//! interrupted can be told from another file, and taken back.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::super::plan::Plan;
use super::super::reserve;
use super::{WriteError, layout, partial};

/// Gives a file the keys of `after` without moving its data, if they fit: `before` is the file as it
/// was opened, `after` the same tensors under other keys. Room comes from what was
/// [reserved](super::super::reserve()) and from padding. A file that goes by several names, or that
/// was named by a link, is left alone, since others may count on it.
///
/// # Errors
/// The operating system refuses, or `after` is no plan that a reader would take.
pub fn edit(path: &Path, before: &Plan, after: &mut Plan) -> Result<bool, WriteError> {
    let io_error = |source| WriteError::Io {
        path: path.to_path_buf(),
        source,
    };
    let plan_error = |source| WriteError::Plan {
        path: path.to_path_buf(),
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
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(io_error)?;
    let mut there = vec![0; old.header.len()];
    file.read_exact_at(&mut there, 0).map_err(io_error)?;
    // Padding that is not zero, for one, would get lost.
    if new.offsets != old.offsets || there != old.header {
        return Ok(false);
    }
    let kept = partial::beside(path, "header");
    keep(&kept, &[old.header, new.header.clone()].concat()).map_err(|source| WriteError::Io {
        path: kept.clone(),
        source,
    })?;
    file.write_all_at(&new.header, 0).map_err(io_error)?;
    file.sync_all().map_err(io_error)?;
    fs::remove_file(&kept).map_err(io_error)?;
    Ok(true)
}

/// Takes back an edit that was interrupted, and says whether there was one. What is kept of an edit of
/// a file that has been replaced since is removed.
///
/// # Errors
/// The operating system refuses.
pub fn mend(path: &Path) -> Result<bool, WriteError> {
    let kept = partial::beside(path, "header");
    let both = match fs::read(&kept) {
        Ok(both) => both,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(WriteError::Io { path: kept, source }),
    };
    let (old, new) = both.split_at(both.len() / 2);
    let mended = File::options()
        .read(true)
        .write(true)
        .open(path)
        .and_then(|file| {
            let mut there = vec![0; old.len()];
            let is_whole = file.read_exact_at(&mut there, 0).is_ok() && old.len() == new.len();
            let mut bytes = there.iter().zip(old.iter().zip(new));
            let is_torn = is_whole && bytes.all(|(found, (a, b))| found == a || found == b);
            if is_torn {
                file.write_all_at(old, 0)?;
                file.sync_all()?;
            }
            fs::remove_file(&kept)?;
            Ok(is_torn)
        });
    mended.map_err(|source| WriteError::Io {
        path: path.to_path_buf(),
        source,
    })
}

/// Writes a whole file that appears under its name at once.
fn keep(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = super::folder_of(path);
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(folder)?.sync_all()
}
