//! Names of the hidden files beside an output while it is written.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use super::folder_of;

/// Suffix of the hidden files of one process. The process holds a lock on them, so an unlocked one
/// was left by a process that died.
pub(super) const PARTIAL: &str = ".specconv-partial";
/// Random characters before [`PARTIAL`].
pub(super) const N_RANDOM: usize = 8;
/// Maximum length of file names on common file systems, in bytes.
const NAME_MAX: usize = 255;

/// Returns a hidden path beside a file that is the same in every run: `.NAME.WHAT`.
pub fn beside(path: &Path, what: &str) -> PathBuf {
    let suffix = format!(".{what}");
    let mut name = stem(path, suffix.len());
    name.push(suffix);
    path.with_file_name(name)
}

/// Returns the first part of a partial file's name: `.NAME.`; [`N_RANDOM`] characters and
/// [`PARTIAL`] follow.
pub(super) fn partial_prefix(path: &Path) -> OsString {
    let mut name = stem(path, 1 + N_RANDOM + PARTIAL.len());
    name.push(".");
    name
}

/// Checks whether a name starts like [`partial_prefix`] and ends in [`N_RANDOM`] characters and
/// [`PARTIAL`].
pub(super) fn is_partial(name: &OsStr) -> bool {
    let name = name.as_bytes().strip_suffix(PARTIAL.as_bytes());
    let Some((before, random)) = name.and_then(|name| name.split_last_chunk::<N_RANDOM>()) else {
        return false;
    };
    let is_random = random.iter().all(u8::is_ascii_alphanumeric);
    is_random && before.len() > 2 && before.starts_with(b".") && before.ends_with(b".")
}

/// Returns `.NAME`, shortened so that `n_more` bytes can follow. A hash replaces the removed part,
/// so that long names with the same prefix stay distinct.
fn stem(path: &Path, n_more: usize) -> OsString {
    let name = path.file_name().unwrap_or_default();
    let room = name_max(folder_of(path)).saturating_sub(1 + n_more);
    let mut stem = OsString::from(".");
    if name.len() <= room {
        stem.push(name);
        return stem;
    }
    let hash = format!("~{:016x}", XxHash3_64::oneshot(name.as_bytes()));
    let mut n_kept = room.saturating_sub(hash.len());
    // Some file systems reject incomplete UTF-8 characters.
    while name
        .to_str()
        .is_some_and(|text| !text.is_char_boundary(n_kept))
    {
        n_kept -= 1;
    }
    stem.push(OsStr::from_bytes(&name.as_bytes()[..n_kept]));
    stem.push(hash);
    stem
}

/// Returns the maximum length of names on the file system of a folder, in bytes.
fn name_max(folder: &Path) -> usize {
    let limit = rustix::fs::statvfs(folder).map_or(0, |found| found.f_namemax as usize);
    match limit {
        0 => NAME_MAX,
        limit => limit.min(NAME_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_names_fit_and_stay_apart() {
        let folder = tempfile::tempdir().unwrap();
        let hidden = |name: &str| {
            let path = beside(&folder.path().join(name), "journal");
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(hidden("m.gguf"), ".m.gguf.journal");
        for character in ["a", "é", "字"] {
            let long = character.repeat(255 / character.len());
            let names = [format!("{}b", &long[character.len()..]), long];
            let [first, second] = names.each_ref().map(|name| hidden(name));
            assert!(first.len() <= 255 && second.len() <= 255);
            assert_ne!(first, second);
            let prefix = partial_prefix(&folder.path().join(&names[0]));
            assert!(prefix.len() + N_RANDOM + PARTIAL.len() <= 255);
        }
    }

    #[test]
    fn only_our_own_partial_files_are_recognised() {
        let path = Path::new("m.gguf");
        let mut ours = partial_prefix(path);
        ours.push(format!("aB3dE6gH{PARTIAL}"));
        assert!(is_partial(&ours));
        for name in [
            ".m.gguf.partial",
            ".m.gguf.journal",
            "m.gguf.aB3dE6gH.specconv-partial",
            ".m.gguf.aB3dE6g.specconv-partial",
            ".m.gguf.aB3dE6g/.specconv-partial",
            ".aB3dE6gH.specconv-partial",
            ".m.gguf.aB3dE6gH.specconv-partial.partial",
        ] {
            assert!(!is_partial(OsStr::new(name)), "{name}");
        }
    }
}
