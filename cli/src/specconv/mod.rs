//! `specconv`: one module per command.

mod bundled;
mod card;
mod check;
mod convert;
mod demo;
mod draft_flags;
pub(crate) mod file_type;
mod hash;
mod heads;
mod input;
mod inspect;
mod lock;
mod manifest;
mod merge;
mod passport;
mod publish;
mod purpose;
mod quantize;
mod remote;
pub(crate) mod set_metadata;
mod split;
mod vocab;
mod work;
pub(crate) mod write;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use heads::graft::Surgery;
use schemas::report::Verdict;
use write::WriteArgs;

use crate::LONG_VERSION;
use crate::flags;
use crate::help::{self, specconv::TOPICS};
use crate::output::Verbosity;
use crate::shell;
use crate::specrun;

/// Converts Hugging Face checkpoints to GGUF, quantizes models, and splits and grafts MTP heads.
///
/// Exit codes: 0 done, 1 a check ran and failed, 2 could not run, 128 + signal number if a signal ended
/// the program (130 SIGINT, 143 SIGTERM, 129 SIGHUP).
#[derive(Debug, Parser)]
#[command(name = "specconv", version, long_version = LONG_VERSION)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    verbosity: Verbosity,
}

impl Cli {
    /// Parses the command line; ends the program if it is invalid.
    pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Cli {
        Cli::parse_args(args).unwrap_or_else(|error| flags::exit(&error))
    }

    /// Parses the command line.
    pub(crate) fn parse_args(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        let cli = Cli::parse_words(args)?;
        cli.verbosity.apply();
        Ok(cli)
    }

    /// Parses a command line without applying its flags to this process.
    fn parse_words(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        let mut args: Vec<OsString> = args.into_iter().collect();
        // Commands of specrun can be planned, too.
        if args.get(1).is_some_and(|word| word == "plan") {
            args = specrun::expand_flags(args);
        }
        let mut command = help::arrange(Cli::command(), TOPICS, &args);
        flags::check(&mut command, &args)?;
        let mut matches = command.try_get_matches_from_mut(args)?;
        Cli::from_arg_matches_mut(&mut matches)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Convert(convert::Args),
    Quantize(Box<quantize::Args>),
    SplitMtp(heads::split::Args),
    GraftMtp(heads::graft::Args),
    /// Replace the MTP head of a model
    ///
    /// All other tensors are copied unmodified. Before writing, the new head and the body are compared as by
    /// graft-mtp. If the head is refused, nothing is written and the exit code is 1.
    ReplaceMtp(heads::graft::Args),
    RequantizeMtp(heads::requantize::Args),
    RepairMtp(heads::repair::Args),
    GraftVocab(vocab::graft::Args),
    SplitVocab(vocab::split::Args),
    TrimVocab(vocab::trim::Args),
    MapVocab(vocab::map::Args),
    Split(split::Args),
    Merge(merge::Args),
    Hash(hash::Args),
    Lock(lock::LockArgs),
    Rebuild(lock::RebuildArgs),
    SetMetadata(set_metadata::Args),
    SetChatTemplate(set_metadata::TemplateArgs),
    Inspect(inspect::Args),
    DraftFlags(draft_flags::Args),
    Card(card::Args),
    Publish(publish::Args),
    Plan(Box<work::PlanArgs>),
    Run(work::RunArgs),
    Finish(work::FinishArgs),
    Demo(demo::Args),
    Completions(shell::CompletionsArgs),
    #[command(hide = true)]
    Man(shell::ManArgs),
}

impl Command {
    /// Returns the flags of a command that writes models.
    fn write_args(&mut self) -> Option<&mut WriteArgs> {
        Some(match self {
            Command::Convert(args) => &mut args.write,
            Command::Quantize(args) => &mut args.write,
            Command::SplitMtp(args) => &mut args.write,
            Command::GraftMtp(args) | Command::ReplaceMtp(args) => &mut args.write,
            Command::RequantizeMtp(args) => &mut args.write,
            Command::RepairMtp(args) => &mut args.write,
            Command::GraftVocab(args) => &mut args.write,
            Command::SplitVocab(args) => &mut args.write,
            Command::TrimVocab(args) => &mut args.write,
            Command::MapVocab(args) => &mut args.write,
            Command::Split(args) => &mut args.write,
            Command::Merge(args) => &mut args.write,
            _ => return None,
        })
    }
}

/// Runs the command.
///
/// # Errors
/// The command could not run.
pub fn run(cli: &Cli) -> anyhow::Result<Verdict> {
    match &cli.command {
        Command::Convert(args) => convert::run(args),
        Command::Quantize(args) => quantize::run(args),
        Command::SplitMtp(args) => heads::split::run(args),
        Command::GraftMtp(args) => heads::graft::run(args, Surgery::Graft),
        Command::ReplaceMtp(args) => heads::graft::run(args, Surgery::Replace),
        Command::RequantizeMtp(args) => heads::requantize::run(args),
        Command::RepairMtp(args) => heads::repair::run(args),
        Command::GraftVocab(args) => vocab::graft::run(args),
        Command::SplitVocab(args) => vocab::split::run(args),
        Command::TrimVocab(args) => vocab::trim::run(args),
        Command::MapVocab(args) => vocab::map::run(args),
        Command::Split(args) => split::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Hash(args) => hash::run(args),
        Command::Lock(args) => lock::run_lock(args),
        Command::Rebuild(args) => lock::run_rebuild(args),
        Command::SetMetadata(args) => set_metadata::run(args),
        Command::SetChatTemplate(args) => set_metadata::run_template(args),
        Command::Inspect(args) => inspect::run(args),
        Command::DraftFlags(args) => draft_flags::run(args),
        Command::Card(args) => card::run(args),
        Command::Publish(args) => publish::run(args),
        Command::Plan(args) => work::plan(args),
        Command::Run(args) => work::run(args),
        Command::Finish(args) => work::finish(args),
        Command::Demo(args) => demo::run(args),
        Command::Completions(args) => shell::completions(documented(), args),
        Command::Man(args) => shell::man(documented(), args),
    }
}

/// Returns the command line with its long help.
fn documented() -> clap::Command {
    help::arrange(Cli::command(), TOPICS, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_parse_and_flags_have_groups() {
        help::tests::check(Cli::command(), TOPICS, &|words| {
            Cli::try_parse_from(words).map(drop)
        });
    }
}
