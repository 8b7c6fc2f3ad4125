//! The command lines.
