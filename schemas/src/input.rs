//! Reads input files up to a size limit. A link to an endless device, or the wrong file, results in
//! an error before it fills the memory.

use std::fs::{self, File};
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Maximum size in bytes of a hand-written text: a recipe, a list of rules, a chat template.
pub const MAX_HANDWRITTEN: u64 = 16 << 20;
/// Maximum size in bytes of a list of prompts, or of a report.
pub const MAX_LIST: u64 = 256 << 20;
/// Maximum size in bytes of a corpus or table that is loaded as a whole.
pub const MAX_WHOLE: u64 = 1 << 30;

/// Allowed type of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A regular file, a pipe, a socket or a terminal.
    Stream,
}

/// Opens a regular file. The type is checked before opening: opening a pipe without a writer would
/// block.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    check_regular(&fs::metadata(path)?)?;
    let file = File::open(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

fn check_regular(metadata: &fs::Metadata) -> io::Result<()> {
    let file_type = metadata.file_type();
    let found = match () {
        () if file_type.is_file() => return Ok(()),
        () if file_type.is_dir() => {
            let message = "is a directory, not a file";
            return Err(io::Error::new(ErrorKind::IsADirectory, message));
        }
        () if file_type.is_fifo() => "a pipe",
        () if file_type.is_socket() => "a socket",
        () => "a device",
    };
    Err(invalid(format!("is {found}, expected a regular file")))
}

/// Reads an input of at most `limit` bytes.
///
/// # Errors
/// The input cannot be read, has another type, or is larger.
pub fn read(path: &Path, kind: Kind, limit: u64) -> io::Result<Vec<u8>> {
    let file = match kind {
        Kind::File => open(path)?,
        Kind::Stream => open_stream(path)?,
    };
    let size_bytes = file.metadata()?.len();
    let too_large = || {
        Err(invalid(format!(
            "larger than {limit} bytes, the limit for this kind of file"
        )))
    };
    if size_bytes > limit {
        return too_large();
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size_bytes as usize)?;
    let n = file.take(limit + 1).read_to_end(&mut bytes)?;
    match n as u64 > limit {
        true => too_large(),
        false => Ok(bytes),
    }
}

/// Returns line and column of a byte offset in a text, both counted from 1.
pub fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.rfind('\n').map_or(0, |newline| newline + 1);
    let n_lines = before.matches('\n').count();
    (n_lines + 1, before[line..].chars().count() + 1)
}

/// Reads a text of at most `limit` bytes.
///
/// # Errors
/// See [`read()`]. Fails also if the text is not UTF-8.
pub fn read_text(path: &Path, kind: Kind, limit: u64) -> io::Result<String> {
    String::from_utf8(read(path, kind, limit)?).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        invalid(format!("byte {offset}: not UTF-8"))
    })
}

fn open_stream(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    let file_type = file.metadata()?.file_type();
    let is_stream = file_type.is_fifo() || file_type.is_socket() || file.is_terminal();
    if !is_stream {
        check_regular(&file.metadata()?)?;
    }
    Ok(file)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;
    use std::thread;

    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "abcd").unwrap();
        for kind in [Kind::File, Kind::Stream] {
            assert_eq!(read(&path, kind, 4).unwrap(), b"abcd");
            let error = read(&path, kind, 3).unwrap_err().to_string();
            assert_eq!(
                error,
                "larger than 3 bytes, the limit for this kind of file"
            );
        }
        fs::write(&path, b"ab\xffcd").unwrap();
        let error = read_text(&path, Kind::File, 8).unwrap_err().to_string();
        assert_eq!(error, "byte 2: not UTF-8");
    }

    #[test]
    fn devices_are_refused_and_so_are_links_to_them() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("config.json");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for path in [Path::new("/dev/zero"), &link] {
            for kind in [Kind::File, Kind::Stream] {
                let error = read(path, kind, 4).unwrap_err().to_string();
                assert_eq!(error, "is a device, expected a regular file");
            }
        }
        let error = read(folder.path(), Kind::Stream, 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
    }

    #[test]
    fn pipes_are_streams_but_not_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        // There is no writer, so opening it would block.
        let error = read(&path, Kind::File, 4).unwrap_err().to_string();
        assert_eq!(error, "is a pipe, expected a regular file");
        for (text, limit) in [("abcd", 4), ("abcde", 4)] {
            thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    let mut pipe = File::options().write(true).open(&path).unwrap();
                    pipe.write_all(text.as_bytes()).unwrap();
                });
                let found = read(&path, Kind::Stream, limit);
                match text.len() as u64 > limit {
                    true => assert!(found.is_err()),
                    false => assert_eq!(found.unwrap(), text.as_bytes()),
                }
                writer.join().unwrap();
            });
        }
    }
}
