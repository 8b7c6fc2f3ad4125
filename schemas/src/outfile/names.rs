//! Rules for output names.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::lock::{FileId, id};
use super::{OutfileError, folder_of};

/// Maximum number of symbolic links that are followed, as on Linux.
const MAX_LINKS: usize = 40;

/// The outputs of one command. Every output claims its name here before the work begins.
///
/// A name is rejected if it is an input (by device and inode, so hard links count), if another
/// output has it, or if it resolves to something that is not a regular file. A symbolic link to a
/// regular file is treated like that file: if it may be replaced, the output replaces the link, and
/// the file that it points to is unmodified.
#[derive(Debug, Default)]
pub struct OutputNames {
    inputs: HashSet<FileId>,
    taken: HashSet<PathBuf>,
    existing: Existing,
}

/// Treatment of a regular file that already has the name of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// The output replaces it.
    #[default]
    Replace,
    /// The name is rejected.
    Refuse,
}

/// Destination of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A file, published when it is complete.
    File(PathBuf),
    /// Standard output.
    Stdout,
    /// A device, a FIFO or an open file; the report is written to it directly.
    Stream(PathBuf),
}

/// Target of an output name.
enum Found {
    /// Nothing: the name is free.
    Nothing,
    /// A regular file.
    File(FileId),
    /// An open file of this process, by its descriptor, such as /dev/stdout and /proc/self/fd/5.
    Open(String),
    /// A stream: bytes can be written without replacing it.
    Stream(&'static str),
    /// Anything else.
    Other(&'static str),
}

impl OutputNames {
    /// Starts with the files that the command reads; missing ones are ignored.
    pub fn new(
        inputs: impl IntoIterator<Item = impl AsRef<Path>>,
        existing: Existing,
    ) -> OutputNames {
        let id_of = |path: &Path| fs::metadata(path).ok().map(|found| id(&found));
        let inputs = inputs.into_iter();
        OutputNames {
            inputs: inputs.filter_map(|path| id_of(path.as_ref())).collect(),
            taken: HashSet::new(),
            existing,
        }
    }

    /// Claims the name of a file that the command updates: it may exist.
    ///
    /// # Errors
    /// The name is an input, another output, or not that of a regular file.
    pub fn claim_update(&mut self, path: &Path) -> Result<(), OutfileError> {
        let existing = std::mem::replace(&mut self.existing, Existing::Replace);
        let claimed = self.claim_file(path);
        self.existing = existing;
        claimed
    }

    /// Claims the name of a file, such as a model, that is published when it is complete.
    ///
    /// # Errors
    /// The name is an input, another output, an existing file, or not that of a regular file.
    pub fn claim_file(&mut self, path: &Path) -> Result<(), OutfileError> {
        let special = |found: String| {
            let path = path.to_path_buf();
            Err(OutfileError::Special { path, found })
        };
        match self.claim(path)? {
            Found::Nothing | Found::File(_) => Ok(()),
            Found::Open(number) => special(open_file(&number)),
            Found::Stream(kind) | Found::Other(kind) => special(kind.to_owned()),
        }
    }

    /// Claims the destination of a report, which may also be a stream: `-` is standard output.
    ///
    /// # Errors
    /// The name is an input, another output, an existing file, or neither a regular file nor a stream.
    pub fn claim_report(&mut self, path: &Path) -> Result<Destination, OutfileError> {
        let path = path.to_path_buf();
        match self.claim(&path)? {
            Found::Nothing | Found::File(_) => Ok(Destination::File(path)),
            Found::Open(number) if number == "1" => Ok(Destination::Stdout),
            Found::Open(_) | Found::Stream(_) => Ok(Destination::Stream(path)),
            Found::Other(kind) => {
                let found = kind.to_owned();
                Err(OutfileError::Special { path, found })
            }
        }
    }

    fn claim(&mut self, path: &Path) -> Result<Found, OutfileError> {
        let (found, place) = look_up(path).map_err(|e| OutfileError::io(path, e))?;
        // The only place that decides whether an existing file may be replaced.
        if let Found::File(id) = &found {
            let path = path.to_path_buf();
            if self.inputs.contains(id) {
                return Err(OutfileError::Input { path });
            }
            if self.existing == Existing::Refuse && !self.taken.contains(&place) {
                return Err(OutfileError::Exists { path });
            }
        }
        if matches!(found, Found::Nothing) && !folder_of(path).is_dir() {
            let path = path.to_path_buf();
            return Err(OutfileError::NoFolder { path });
        }
        // Devices such as /dev/null can take any number of outputs.
        if !matches!(found, Found::Stream(_)) && !self.taken.insert(place) {
            let path = path.to_path_buf();
            return Err(OutfileError::Twice { path });
        }
        Ok(found)
    }
}

fn open_file(number: &str) -> String {
    match number {
        "1" => "standard output".to_owned(),
        number => format!("open file {number} of this process"),
    }
}

/// Resolves an output name through symbolic links. Also returns the absolute path that the output
/// will replace, with its folder canonicalized; it identifies the output.
fn look_up(path: &Path) -> io::Result<(Found, PathBuf)> {
    if path == Path::new("-") {
        return Ok((Found::Open("1".to_owned()), PathBuf::from("-")));
    }
    let mut first = None;
    let mut hop = path.to_path_buf();
    for _ in 0..=MAX_LINKS {
        let ends_in_slash = hop.as_os_str().as_encoded_bytes().ends_with(b"/");
        let (Some(name), false) = (hop.file_name(), ends_in_slash) else {
            return Ok((Found::Other("a directory"), first.unwrap_or(hop)));
        };
        let folder = match fs::canonicalize(folder_of(&hop)) {
            Ok(folder) => folder,
            // A missing folder is reported when the file is created.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Found::Nothing, first.unwrap_or(hop)));
            }
            Err(error) => return Err(error),
        };
        let place = folder.join(name);
        if let Some(found) = of_the_system(&folder, &place) {
            // Standard output has many names but one identity.
            let place = match &found {
                Found::Open(number) if number == "1" => PathBuf::from("-"),
                _ => place,
            };
            return Ok((found, place));
        }
        let metadata = match fs::symlink_metadata(&place) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Found::Nothing, first.unwrap_or(place)));
            }
            Err(error) => return Err(error),
        };
        let kind = metadata.file_type();
        if kind.is_symlink() {
            hop = folder.join(fs::read_link(&place)?);
            first.get_or_insert(place);
            continue;
        }
        let found = match kind {
            kind if kind.is_file() => Found::File(id(&metadata)),
            kind if kind.is_dir() => Found::Other("a directory"),
            kind if kind.is_char_device() => Found::Stream("a character device"),
            kind if kind.is_fifo() => Found::Stream("a FIFO"),
            kind if kind.is_block_device() => Found::Other("a block device"),
            _ => Found::Other("a socket"),
        };
        return Ok((found, first.unwrap_or(place)));
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Classifies a path in a folder of the operating system. Links there, such as /proc/self/fd/1,
/// cannot be resolved like other links.
fn of_the_system(folder: &Path, place: &Path) -> Option<Found> {
    let own = PathBuf::from(format!("/proc/{}/fd", std::process::id()));
    let name = || place.file_name().unwrap_or_default().to_string_lossy();
    if folder == own || folder == Path::new("/dev/fd") {
        return Some(Found::Open(name().into_owned()));
    }
    let is_system = folder.starts_with("/proc") || folder.starts_with("/sys");
    is_system.then_some(Found::Other("a file of the operating system"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(inputs: &[PathBuf]) -> OutputNames {
        OutputNames::new(inputs, Existing::Replace)
    }

    fn message(claimed: Result<(), OutfileError>) -> String {
        claimed.unwrap_err().to_string()
    }

    #[test]
    fn files_links_to_files_and_new_names_are_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink("nothing", at("dangling")).unwrap();
        let mut names = names(&[at("missing")]);
        for name in ["file", "link", "dangling", "new"] {
            names.claim_file(&at(name)).unwrap();
        }
        let twice = names.claim_file(&at("../").join(folder.path()).join("./new"));
        assert!(message(twice).ends_with("used for two outputs, expected different files"));
    }

    #[test]
    fn existing_files_are_refused_unless_they_are_updated() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "").unwrap();
        symlink("file", at("link")).unwrap();
        let mut names = OutputNames::new([at("in")], Existing::Refuse);
        for name in ["file", "link"] {
            let expected = format!(
                "{} exists; pass --overwrite to replace it",
                at(name).display()
            );
            assert_eq!(message(names.claim_file(&at(name))), expected);
            assert_eq!(
                names.claim_report(&at(name)).unwrap_err().to_string(),
                expected
            );
        }
        names.claim_update(&at("file")).unwrap();
        names.claim_file(&at("new")).unwrap();
        names.claim_report(Path::new("/dev/null")).unwrap();
        let missing = message(names.claim_file(&at("no/file")));
        assert!(missing.ends_with("/no does not exist"), "{missing}");
    }

    #[test]
    fn an_input_is_refused_under_every_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("in"), "").unwrap();
        fs::hard_link(at("in"), at("hard")).unwrap();
        symlink("hard", at("soft")).unwrap();
        symlink("soft", at("softer")).unwrap();
        for name in ["in", "hard", "soft", "softer"] {
            let mut names = names(&[at("in")]);
            let found = message(names.claim_file(&at(name)));
            let expected = format!("{}: output is also an input", at(name).display());
            assert!(found.starts_with(&expected), "{found}");
            assert!(names.claim_report(&at(name)).is_err());
        }
    }

    #[test]
    fn special_files_are_rejected_or_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        let fifo = rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), kind, mode, 0);
        fifo.unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        symlink("/dev/null", at("null")).unwrap();
        symlink("/proc/self/fd/1", at("stdout")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let stream = |name: &str| Some(Destination::Stream(at(name)));
        let cases = [
            (at("fifo"), "a FIFO", stream("fifo")),
            (at("null"), "a character device", stream("null")),
            (at("socket"), "a socket", None),
            (at(""), "a directory", None),
            (at("new/"), "a directory", None),
            (at("stdout"), "standard output", Some(Destination::Stdout)),
            ("-".into(), "standard output", Some(Destination::Stdout)),
            (
                "/dev/stdout".into(),
                "standard output",
                Some(Destination::Stdout),
            ),
            (
                "/proc/self/fd/77".into(),
                "open file 77 of this process",
                Some(Destination::Stream("/proc/self/fd/77".into())),
            ),
            (
                "/proc/self/status".into(),
                "a file of the operating system",
                None,
            ),
            (at("loop"), "too many", None),
        ];
        for (path, kind, destination) in cases {
            let mut names = OutputNames::default();
            let found = message(names.claim_file(&path)).to_lowercase();
            assert!(found.contains(&kind.to_lowercase()), "{found}");
            let report = OutputNames::default().claim_report(&path).ok();
            assert_eq!(report, destination, "{}", path.display());
        }
        let mut names = OutputNames::default();
        names.claim_report(Path::new("-")).unwrap();
        assert!(names.claim_report(&at("stdout")).is_err());
        names.claim_report(&at("null")).unwrap();
        names.claim_report(&at("null")).unwrap();
    }

    /// A name that is too long for the file system is rejected before the work, with the name that
    /// the user gave.
    #[test]
    fn a_name_that_is_too_long_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n".repeat(256));
        let found = message(OutputNames::default().claim_file(&path));
        assert!(found.contains("nnn: File name too long"), "{found}");
        let path = folder.path().join("n".repeat(255));
        OutputNames::default().claim_file(&path).unwrap();
    }
}
