//! `specconv`: converts, quantizes, splits and grafts GGUF files.

use std::process::ExitCode;

use cli::{exit, specconv};

fn main() -> ExitCode {
    cli::start();
    exit::finish(specconv::run(
        &specconv::Cli::from_args(std::env::args_os()),
    ))
}
