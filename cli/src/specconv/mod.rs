//! `specconv`: one module a command.

mod bundled;
mod check;
mod convert;
mod demo;
mod file;
mod file_type;
mod graft_mtp;
mod inspect;
mod merge;
mod quantize;
mod split;
mod split_mtp;

use clap::{Parser, Subcommand};
use schemas::report::Verdict;

/// Converts HF checkpoints to GGUF, quantizes, and splits and grafts speculative heads.
///
/// Exit codes: 0 done, 1 a check ran and failed, 2 could not run.
#[derive(Debug, Parser)]
#[command(name = "specconv", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Convert(convert::Args),
    Quantize(Box<quantize::Args>),
    SplitMtp(split_mtp::Args),
    GraftMtp(graft_mtp::Args),
    Split(split::Args),
    Merge(merge::Args),
    Inspect(inspect::Args),
    Demo(demo::Args),
}

/// Runs the command.
///
/// # Errors
/// It could not run.
pub fn run(cli: &Cli) -> anyhow::Result<Verdict> {
    match &cli.command {
        Command::Convert(args) => convert::run(args),
        Command::Quantize(args) => quantize::run(args),
        Command::SplitMtp(args) => split_mtp::run(args),
        Command::GraftMtp(args) => graft_mtp::run(args),
        Command::Split(args) => split::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Demo(args) => demo::run(args),
    }
}
