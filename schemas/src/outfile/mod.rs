//! Output files: the rules for their names, the hidden files beside them while they are written,
//! and the publication of all outputs of a command at once.
//!
//! Every file that a command writes goes through this module, which knows no file formats.

mod hidden;
mod lock;
mod names;
mod partial;
mod space;

use std::io;
use std::path::{Path, PathBuf};

pub use hidden::beside;
pub(crate) use lock::{is_at, open_locked};
pub use lock::{lock_beside, lock_folder_of};
pub use names::{Destination, Existing, OutputNames};
pub use partial::{Partial, publish};
pub use space::is_local;
pub(crate) use space::{Need, check_space};

/// Error of writing an output. Nothing was published.
#[derive(Debug, thiserror::Error)]
pub enum OutfileError {
    /// A file operation failed.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The output, as the user named it.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The name is that of something that an output must not replace.
    #[error("{}: output is {found}, expected the name of a regular file", .path.display())]
    Special {
        /// The output.
        path: PathBuf,
        /// The kind of that object, such as "a directory".
        found: String,
    },
    /// The file exists, and may not be replaced.
    #[error("{} exists; pass --overwrite to replace it", .path.display())]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// Another program made the file while this one was written.
    #[error("{}: another program made this file meanwhile; it was not replaced", .path.display())]
    Appeared {
        /// The output.
        path: PathBuf,
    },
    /// The folder of the output does not exist.
    #[error("{}: folder {} does not exist", .path.display(), folder_of(.path).display())]
    NoFolder {
        /// The output.
        path: PathBuf,
    },
    /// The file system is too small.
    #[error(
        "{}: needs {}, the file system has {} free",
        .path.display(), megabytes(*.needed_bytes), megabytes(*.free_bytes)
    )]
    Space {
        /// The output.
        path: PathBuf,
        /// Bytes of the output.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// The output would replace a file that the command reads.
    #[error("{}: output is also an input, expected another file", .path.display())]
    Input {
        /// The output.
        path: PathBuf,
    },
    /// Two outputs have the same name.
    #[error("{}: used for two outputs, expected different files", .path.display())]
    Twice {
        /// The name.
        path: PathBuf,
    },
    /// Another process holds the lock.
    #[error("{}: another run is writing this file", .path.display())]
    Busy {
        /// The locked file.
        path: PathBuf,
    },
}

fn megabytes(n_bytes: u64) -> String {
    format!("{} MB", n_bytes.div_ceil(1_000_000))
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
