//! `specrun`: runs GGUF models with speculative decoding, and proves the result.

use std::process::ExitCode;

use cli::{exit, interrupt, specrun};

fn main() -> ExitCode {
    interrupt::install();
    exit::finish(specrun::run(&specrun::Cli::from_args(std::env::args_os())))
}
