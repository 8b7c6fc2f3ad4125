//! The command lines: arguments become a library's config, and its result a report.
//!
//! Both binaries share [`output`], the only module that prints, and [`exit`], the exit codes.
//! Errors get their last context here and nowhere else.

#![forbid(unsafe_code)]

pub mod exit;
mod flags;
mod help;
mod hint;
mod hub_config;
pub mod interrupt;
pub mod limits;
pub mod output;
mod progress;
mod provenance;
mod report_file;
mod shell;
pub mod specconv;
pub mod specrun;

/// Version of both programs with the commit that they were built from, and the platform.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("TOOL_COMMIT"),
    ", ",
    env!("TOOL_TARGET"),
    ")"
);

/// Prepares the process. Both programs call it before any other work.
pub fn start() {
    interrupt::install();
    limits::install();
    progress::install();
}
