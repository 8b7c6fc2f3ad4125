//! The command lines: arguments become a library's config, and its result a report.
//!
//! Both binaries share [`output`], the only module that prints, and [`exit`], the exit codes.
//! Errors get their last context here and nowhere else. [`embedded`] runs commands inside of another program,
//! such as a Python interpreter.

#![forbid(unsafe_code)]

use kernels::cpu::Cpu;

pub mod embedded;
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
mod work;
mod wrap;

/// Version, commit, target and features, for `--version`.
pub(crate) const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("TOOL_COMMIT"),
    "\ntarget: ",
    env!("TOOL_TARGET"),
    "\nfeatures: ",
    env!("TOOL_FEATURES"),
);

/// Prepares the process. Both programs call it before any other work.
pub fn start() {
    interrupt::install();
    limits::install();
    progress::install();
    if let Some(isa) = Cpu::left_out() {
        output::warning(&format_args!(
            "this program was compiled on another CPU and does not use {isa} instructions, so it is slower; \
             compile it here, or with --features full for every CPU"
        ));
    }
}
