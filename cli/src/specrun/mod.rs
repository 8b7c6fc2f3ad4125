//! `specrun`: one module a command.

mod bench;
mod build_lookup;
pub(crate) mod device;
mod devices;
pub(crate) mod generate;
mod logits;
pub(crate) mod model;
mod ngrams;
pub(crate) mod page;
mod perplexity;
mod plan;
mod tokenize;
pub(crate) mod verify;

use std::ffi::OsString;

use clap::{Parser, Subcommand};
use schemas::report::Verdict;

/// Runs GGUF models with speculative decoding, and proves the result.
///
/// Exit codes: 0 done, 1 a check ran and failed, 2 could not run, 128 and the number of a signal that
/// ended the program (130 SIGINT, 143 SIGTERM, 129 SIGHUP).
#[derive(Debug, Parser)]
#[command(name = "specrun", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Generate(generate::Args),
    Verify(verify::Args),
    Bench(bench::Args),
    Logits(logits::Args),
    Perplexity(perplexity::Args),
    Tokenize(tokenize::Args),
    BuildLookup(build_lookup::Args),
    Plan(plan::Args),
    Devices(devices::Args),
}

/// Names of some letters behind one dash, which users know from llama.cpp.
const SHORT_PAIRS: [(&str, &str); 8] = [
    ("-md", "--model-draft"),
    ("-ngl", "--n-gpu-layers"),
    ("-np", "--parallel"),
    ("-nr", "--no-repack"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-ctkd", "--spec-draft-type-k"),
    ("-ctvd", "--spec-draft-type-v"),
];

impl Cli {
    /// Reads the command line; ends the program where it makes no sense.
    pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Cli {
        let spell_out = |arg: OsString| match SHORT_PAIRS.iter().find(|(pair, _)| arg == *pair) {
            Some((_, long)) => OsString::from(long),
            None => arg,
        };
        Cli::parse_from(args.into_iter().map(spell_out))
    }
}

/// Runs the command.
///
/// # Errors
/// It could not run.
pub fn run(cli: &Cli) -> anyhow::Result<Verdict> {
    match &cli.command {
        Command::Generate(args) => generate::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Perplexity(args) => perplexity::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::BuildLookup(args) => build_lookup::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Devices(args) => devices::run(args),
    }
}
