//! A partial output file: hidden, in the folder where it will be published.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tempfile::TempPath;

use super::hidden::{N_RANDOM, PARTIAL, beside, is_partial, partial_prefix};
use super::{OutfileError, folder_of, is_at, open_locked};

/// Maximum attempts to create a file, in case another process removes it as a stray before it is
/// locked.
const N_ATTEMPTS: usize = 16;

/// An output under a hidden name, locked while this process writes it.
#[derive(Debug)]
pub struct Partial {
    path: PathBuf,
    file: File,
    hidden: Hidden,
    /// True if no file had the final name when this one was created.
    is_new: bool,
}

#[derive(Debug)]
enum Hidden {
    /// Removed on drop.
    Temporary(TempPath),
    /// Kept for the next run if this one fails.
    Kept(PathBuf),
    /// The final path: other processes write the file, too.
    Shared(PathBuf),
}

impl AsRef<Path> for Hidden {
    fn as_ref(&self) -> &Path {
        match self {
            Hidden::Temporary(path) => path,
            Hidden::Kept(path) | Hidden::Shared(path) => path,
        }
    }
}

impl Partial {
    /// Creates a file for each path, which is removed unless it is published. First removes files
    /// that dead processes left in these folders.
    ///
    /// # Errors
    /// A file operation failed.
    pub fn create_all(paths: &[&Path]) -> Result<Vec<Partial>, OutfileError> {
        sweep(paths);
        let create = |path: &&Path| Partial::create(path).map_err(|e| OutfileError::io(path, e));
        paths.iter().map(create).collect()
    }

    /// [`Partial::create_all`] for one path.
    ///
    /// # Errors
    /// A file operation failed.
    pub fn create_one(path: &Path) -> Result<Partial, OutfileError> {
        let mut partials = Partial::create_all(&[path])?;
        Ok(partials.pop().expect("one path makes one file"))
    }

    fn create(path: &Path) -> io::Result<Partial> {
        for _ in 0..N_ATTEMPTS {
            let created = tempfile::Builder::new()
                .prefix(&partial_prefix(path))
                .rand_bytes(N_RANDOM)
                .suffix(PARTIAL)
                .permissions(Permissions::from_mode(0o666))
                .tempfile_in(folder_of(path));
            let created = created.map_err(without_path)?;
            let (file, hidden) = created.into_parts();
            // Another process may have swept the file between its creation and its lock.
            let is_busy = matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock));
            if !is_busy && is_at(&file, &hidden)? {
                return Ok(Partial {
                    path: path.to_path_buf(),
                    file,
                    hidden: Hidden::Temporary(hidden),
                    is_new: fs::symlink_metadata(path).is_err(),
                });
            }
        }
        Err(io::Error::other(
            "the partial file was removed several times",
        ))
    }

    /// Makes an output that is another name of a complete file, without copying it. `None` if the file system
    /// cannot do this, such as between two file systems.
    ///
    /// # Errors
    /// The folder is not writable.
    pub fn linked(path: &Path, complete: &Path) -> Result<Option<Partial>, OutfileError> {
        let made = tempfile::Builder::new()
            .prefix(&partial_prefix(path))
            .rand_bytes(N_RANDOM)
            .suffix(PARTIAL)
            .make_in(folder_of(path), |hidden| {
                fs::hard_link(complete, hidden)?;
                File::options().read(true).write(true).open(hidden)
            });
        let (file, hidden) = match made.map_err(without_path) {
            Ok(made) => made.into_parts(),
            Err(error) => {
                let lacks_links = [
                    io::ErrorKind::CrossesDevices,
                    io::ErrorKind::PermissionDenied,
                    io::ErrorKind::Unsupported,
                    io::ErrorKind::TooManyLinks,
                ];
                return match lacks_links.contains(&error.kind()) {
                    true => Ok(None),
                    false => Err(OutfileError::io(path, error)),
                };
            }
        };
        // Only protects the hidden file from being removed as a stray.
        let _ = file.try_lock();
        Ok(Some(Partial {
            path: path.to_path_buf(),
            file,
            hidden: Hidden::Temporary(hidden),
            is_new: fs::symlink_metadata(path).is_err(),
        }))
    }

    /// Opens the file that an earlier run kept for each path, or creates one that is kept if this
    /// run fails.
    ///
    /// # Errors
    /// Another process writes one of the files, or a file operation failed.
    pub(crate) fn keep_all(paths: &[&Path]) -> Result<Vec<Partial>, OutfileError> {
        sweep(paths);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let keep = |path: &&Path| {
            let kept = beside(path, "partial");
            let file = open_locked(&kept, &options, None).map_err(|e| OutfileError::io(path, e))?;
            let is_new = fs::symlink_metadata(path).is_err();
            let path = path.to_path_buf();
            match file {
                Some(file) => Ok(Partial {
                    path,
                    file,
                    hidden: Hidden::Kept(kept),
                    is_new,
                }),
                None => Err(OutfileError::Busy { path }),
            }
        };
        paths.iter().map(keep).collect()
    }

    /// Opens or creates a file that other processes write, too. It has its final name already, so publication only
    /// syncs it.
    ///
    /// # Errors
    /// A file operation failed.
    pub(crate) fn shared(path: &Path) -> Result<Partial, OutfileError> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(path).map_err(|e| OutfileError::io(path, e))?;
        Ok(Partial {
            path: path.to_path_buf(),
            file,
            hidden: Hidden::Shared(path.to_path_buf()),
            is_new: false,
        })
    }

    /// Returns the final path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the current, hidden path.
    pub fn hidden(&self) -> &Path {
        self.hidden.as_ref()
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Effect of publishing a file, which decides how it is undone.
enum Published {
    /// The name was free.
    New,
    /// The previous file now has the hidden name.
    Exchanged,
    /// The previous file is gone.
    Replaced,
    /// The file had its name before.
    Named,
}

/// Publishes complete files under their final names: all of them, or none.
///
/// All files are synced first. If one cannot be renamed, the others are undone and replaced files
/// restored, if the file system can exchange names. Files are renamed one after another: a crash in
/// between leaves complete files, old or new.
///
/// # Errors
/// A file operation failed.
pub fn publish(partials: Vec<Partial>) -> Result<(), OutfileError> {
    for Partial { path, file, .. } in &partials {
        file.sync_all().map_err(|e| OutfileError::io(path, e))?;
    }
    let is_alone = partials.len() == 1;
    let mut published = Vec::with_capacity(partials.len());
    for partial in &partials {
        match give_name(partial, is_alone) {
            Ok(way) => published.push((partial, way)),
            Err(error) => {
                published.iter().rev().for_each(take_name);
                return Err(match error.kind() {
                    io::ErrorKind::AlreadyExists => OutfileError::Appeared {
                        path: partial.path.clone(),
                    },
                    _ => OutfileError::io(&partial.path, error),
                });
            }
        }
    }
    for (partial, way) in &published {
        if let (Published::Exchanged, Hidden::Kept(kept)) = (way, &partial.hidden) {
            fs::remove_file(kept).map_err(|e| OutfileError::io(&partial.path, e))?;
        }
    }
    // The folders must be synced, too, or a crash could bring back the old names.
    let folders = partials.iter().map(|partial| folder_of(&partial.path));
    for folder in distinct(folders) {
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|e| OutfileError::io(folder, e))?;
    }
    Ok(())
}

fn give_name(partial: &Partial, is_alone: bool) -> io::Result<Published> {
    let Partial { path, hidden, .. } = partial;
    if let Hidden::Shared(_) = hidden {
        return Ok(Published::Named);
    }
    if partial.is_new {
        rename_new(hidden.as_ref(), path)?;
        return Ok(Published::New);
    }
    let is_new = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => return Err(rustix::io::Errno::ISDIR.into()),
        Ok(_) => false,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(error),
    };
    if !is_new && !is_alone && exchange(hidden.as_ref(), path).is_ok() {
        return Ok(Published::Exchanged);
    }
    fs::rename(hidden, path)?;
    Ok(match is_new {
        true => Published::New,
        false => Published::Replaced,
    })
}

/// Renames a file to a name that no file has: another program may have taken it meanwhile.
fn rename_new(hidden: &Path, path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => return Err(rustix::io::Errno::ISDIR.into()),
        Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, hidden, CWD, path, RenameFlags::NOREPLACE) {
            // The file system does not have this flag.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            result => return Ok(result?),
        }
    }
    fs::rename(hidden, path)
}

/// Returns the error of the system, without the name of the hidden file, which the user does not know.
fn without_path(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.split_once(" at path ") {
        Some((reason, _)) => io::Error::new(error.kind(), reason),
        None => error,
    }
}

fn take_name((partial, way): &(&Partial, Published)) {
    let Partial { path, hidden, .. } = partial;
    // Only the first failure is reported.
    let _ = match way {
        Published::New => fs::rename(path, hidden),
        Published::Exchanged => exchange(hidden.as_ref(), path),
        Published::Replaced | Published::Named => Ok(()),
    };
}

fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
    }
    #[cfg(not(target_os = "linux"))]
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// Removes partial files in the folders of `paths` that no process has locked: their processes
/// died. Files that cannot be read or removed are ignored.
fn sweep(paths: &[&Path]) {
    for folder in distinct(paths.iter().map(|path| folder_of(path))) {
        let Ok(entries) = fs::read_dir(folder) else {
            continue;
        };
        for entry in entries.flatten() {
            if is_partial(&entry.file_name()) {
                let _ = remove_stray(&entry.path());
            }
        }
    }
}

fn remove_stray(path: &Path) -> io::Result<()> {
    let mut options = File::options();
    options.read(true).write(true);
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let file = options.open(path)?;
    // Only a lock that was acquired proves that no process writes the file.
    let is_stray = file.metadata()?.is_file() && file.try_lock().is_ok();
    match is_stray && is_at(&file, path)? {
        true => fs::remove_file(path),
        false => Ok(()),
    }
}

fn distinct<'a>(folders: impl Iterator<Item = &'a Path>) -> Vec<&'a Path> {
    let mut folders: Vec<&Path> = folders.collect();
    folders.sort_unstable();
    folders.dedup();
    folders
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<String> = entries.map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    }

    fn filled(path: &Path, bytes: &[u8]) -> Partial {
        let partial = Partial::create_one(path).unwrap();
        partial.file().write_all(bytes).unwrap();
        partial
    }

    #[test]
    fn files_get_their_names_together_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let [new, old, last] = ["new", "old", "last"].map(|name| folder.path().join(name));
        fs::write(&old, "before").unwrap();
        let partials = || {
            [&new, &old, &last]
                .map(|path| filled(path, b"after"))
                .into()
        };
        // A directory takes the last name while the files are written.
        let staged = partials();
        fs::create_dir(&last).unwrap();
        let error = publish(staged).unwrap_err().to_string();
        assert!(error.starts_with(last.to_str().unwrap()), "{error}");
        assert_eq!(names(folder.path()), ["last", "old"]);
        assert_eq!(fs::read(&old).unwrap(), b"before");
        fs::remove_dir(&last).unwrap();
        publish(partials()).unwrap();
        assert_eq!(names(folder.path()), ["last", "new", "old"]);
        for path in [&new, &old, &last] {
            assert_eq!(fs::read(path).unwrap(), b"after");
        }
    }

    #[test]
    fn a_file_of_another_run_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let [first, second] = [b"first", b"other"].map(|bytes| filled(&path, bytes));
        publish(vec![first]).unwrap();
        let error = publish(vec![second]).unwrap_err();
        assert!(matches!(error, OutfileError::Appeared { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(names(folder.path()), ["m"]);
        // A file that existed before is replaced.
        publish(vec![filled(&path, b"other")]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"other");
    }

    #[test]
    fn a_complete_file_gets_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let [part, path] = ["part", "m"].map(|name| folder.path().join(name));
        fs::write(&part, "complete").unwrap();
        let linked = Partial::linked(&path, &part).unwrap().unwrap();
        drop(linked);
        assert_eq!(names(folder.path()), ["part"]);
        let linked = Partial::linked(&path, &part).unwrap().unwrap();
        publish(vec![linked]).unwrap();
        assert_eq!(names(folder.path()), ["m", "part"]);
        assert_eq!(fs::read(&path).unwrap(), b"complete");
        let elsewhere = Partial::linked(Path::new("/proc/m"), &part);
        assert!(elsewhere.is_err() || elsewhere.unwrap().is_none());
    }

    #[test]
    fn errors_do_not_name_the_hidden_file() {
        let path = Path::new("/proc/m.gguf");
        let error = Partial::create_one(path).unwrap_err().to_string();
        assert!(!error.contains("partial"), "{error}");
    }

    #[test]
    fn only_files_of_dead_processes_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let stray = ".m.gguf.aB3dE6gH.specconv-partial";
        let others = [
            ".m.gguf.partial",
            ".m.gguf.journal",
            ".m.gguf.aB3dE6g.specconv-partial",
        ];
        for name in others.iter().chain([&stray]) {
            fs::write(at(name), "").unwrap();
        }
        fs::create_dir(at(".d.aB3dE6gH.specconv-partial")).unwrap();
        std::os::unix::fs::symlink(others[0], at(".l.aB3dE6gH.specconv-partial")).unwrap();
        let first = filled(&at("a"), b"");
        let second = filled(&at("b"), b"");
        assert!(!at(stray).exists());
        // Files being written are locked, also against other parts of this process.
        assert!(first.hidden().exists() && second.hidden().exists());
        drop((first, second));
        assert_eq!(names(folder.path()).len(), others.len() + 2);
    }
}
