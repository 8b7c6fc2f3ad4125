//! `specconv`: converts, quantizes, splits and grafts GGUF files.

use std::process::ExitCode;

use clap::Parser;
use cli::{exit, limits, specconv};

fn main() -> ExitCode {
    limits::install();
    exit::finish(specconv::run(&specconv::Cli::parse()))
}
