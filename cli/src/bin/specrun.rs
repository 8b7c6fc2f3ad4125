//! `specrun`: runs GGUF models with speculative decoding, and verifies the result.

use std::process::ExitCode;

use cli::{exit, specrun};

fn main() -> ExitCode {
    cli::start();
    exit::finish(specrun::run(&specrun::Cli::from_args(std::env::args_os())))
}
