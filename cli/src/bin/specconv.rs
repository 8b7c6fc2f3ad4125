//! `specconv`: converts, quantizes, splits and grafts GGUF files.

use std::process::ExitCode;

use clap::Parser;
use cli::{exit, interrupt, specconv};

fn main() -> ExitCode {
    interrupt::install();
    exit::finish(specconv::run(&specconv::Cli::parse()))
}
