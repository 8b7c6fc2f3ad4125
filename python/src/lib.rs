//! The Python module `specconv`: both programs, commands as functions, arrays of GGUF files, and the engine.
//!
//! The package in `python/specconv` has the names that users see, with their types; this crate is its private
//! module `specconv._native`. Work runs on a thread of its own without the interpreter's lock, while the calling
//! thread waits for it and checks for signals (`wait.rs`).

#![forbid(unsafe_code)]

mod arrays;
mod commands;
mod error;
mod gguf_file;
mod model;
mod wait;

use pyo3::prelude::*;

/// The private module of the package.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::arrays::{dequantize_rows, quantize_rows, types};
    #[pymodule_export]
    use crate::commands::{call, main};
    #[pymodule_export]
    use crate::gguf_file::File;
    #[pymodule_export]
    use crate::model::{Engine, Generation};

    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
