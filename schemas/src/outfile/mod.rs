//! Output files: which names are allowed, the hidden file that grows beside each name, and the
//! moment when all outputs of a command get their names.
//!
//! Every file that a command writes goes through this module, whatever it holds. The module knows no
//! file format.

mod hidden;
mod lock;
mod names;
mod partial;

use std::io;
use std::path::{Path, PathBuf};

pub(crate) use hidden::beside;
pub(crate) use lock::{is_at, open_locked};
pub use names::{Destination, OutputNames};
pub use partial::{Partial, publish};

/// An output could not be written. Nothing was published.
#[derive(Debug, thiserror::Error)]
pub enum OutfileError {
    /// The operating system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The output, by the name that the user gave.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The name belongs to something that a finished file must not replace.
    #[error("{}: output is {found}, expected the name of a regular file", .path.display())]
    Special {
        /// The output.
        path: PathBuf,
        /// What has that name, such as "a directory".
        found: String,
    },
    /// The output would replace a file that the command reads.
    #[error("{}: output is an input too, expected another file", .path.display())]
    Input {
        /// The output.
        path: PathBuf,
    },
    /// One output would replace another.
    #[error("{}: named for two outputs, expected a file for each", .path.display())]
    Twice {
        /// The name that was given twice.
        path: PathBuf,
    },
    /// Another process holds the lock.
    #[error("{}: another run is writing this", .path.display())]
    Busy {
        /// The locked file.
        path: PathBuf,
    },
}

impl OutfileError {
    fn io(path: &Path, source: io::Error) -> OutfileError {
        let path = path.to_path_buf();
        OutfileError::Io { path, source }
    }
}

/// Returns the folder that a file is in; `.` for a bare name.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
