//! The GGUF container, versions 2 and 3, little endian.

mod dtype;

pub use dtype::{DType, Layout};
