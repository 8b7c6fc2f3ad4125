//! Free space for outputs, checked before they are written.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{OutfileError, folder_of};

/// Bytes that an output needs.
pub(crate) struct Need<'a> {
    /// The output.
    pub(crate) path: &'a Path,
    /// Bytes that are written.
    pub(crate) written: u64,
    /// Bytes that are copied unmodified from another file; some file systems share their blocks.
    pub(crate) copied: u64,
}

/// Fails if outputs need more space than their file systems have. File systems that do not state
/// their free space pass.
///
/// # Errors
/// The outputs on one file system do not fit.
pub(crate) fn check_space(needs: &[Need<'_>]) -> Result<(), OutfileError> {
    let mut free: HashMap<u64, u64> = HashMap::new();
    for need in needs {
        let folder = folder_of(need.path);
        let Ok(device) = fs::metadata(folder).map(|found| found.dev()) else {
            continue;
        };
        let Ok(found) = rustix::fs::statvfs(folder) else {
            continue;
        };
        let free = free
            .entry(device)
            .or_insert(found.f_bavail.saturating_mul(found.f_frsize));
        let copied = match shares_blocks(folder) {
            true => 0,
            false => need.copied,
        };
        let needed_bytes = need.written.saturating_add(copied);
        if needed_bytes > *free {
            return Err(OutfileError::Space {
                path: need.path.to_path_buf(),
                needed_bytes,
                free_bytes: *free,
            });
        }
        *free -= needed_bytes;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
const BTRFS: u64 = 0x9123_683e;
#[cfg(target_os = "linux")]
const XFS: u64 = 0x5846_5342;
/// Other local file systems: ext2 to ext4, F2FS, bcachefs, ZFS, tmpfs, overlayfs.
#[cfg(target_os = "linux")]
const OTHERS: [u64; 6] = [
    0xef53,
    0xf2f5_2010,
    0xca45_1a4e,
    0x2fc1_2fc1,
    0x0102_1994,
    0x794c_7630,
];

/// Returns the type of the file system of a folder.
#[cfg(target_os = "linux")]
fn file_system(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statfs(folder).ok()?;
    Some(found.f_type as u64 & 0xffff_ffff)
}

/// Checks whether a file system can store a copy without using space (reflinks).
fn shares_blocks(folder: &Path) -> bool {
    #[cfg(target_os = "linux")]
    return file_system(folder).is_some_and(|found| [BTRFS, XFS].contains(&found));
    #[cfg(not(target_os = "linux"))]
    {
        let _ = folder;
        true
    }
}

/// Checks whether a folder is on a local file system, whose processes can write neighbouring bytes of one file. Network
/// file systems, FUSE and unknown ones may lose such writes.
pub fn is_local(folder: &Path) -> bool {
    #[cfg(target_os = "linux")]
    return file_system(folder)
        .is_some_and(|found| [BTRFS, XFS].contains(&found) || OTHERS.contains(&found));
    #[cfg(not(target_os = "linux"))]
    {
        let _ = folder;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn unknown_file_systems_are_not_local() {
        assert!(!is_local(Path::new("/proc")));
        assert!(!is_local(Path::new("/proc/none")));
        let memory = Path::new("/dev/shm");
        assert!(is_local(memory) || file_system(memory) != Some(0x0102_1994));
    }

    #[test]
    fn outputs_of_one_file_system_share_its_space() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let found = rustix::fs::statvfs(folder.path()).unwrap();
        let half = found.f_bavail * found.f_frsize / 2 + (1 << 40);
        let need = |written| Need {
            path: &path,
            written,
            copied: 0,
        };
        check_space(&[need(1)]).unwrap();
        let error = check_space(&[need(half), need(half)]).unwrap_err();
        assert!(error.to_string().contains("m.gguf: needs "), "{error}");
    }
}
