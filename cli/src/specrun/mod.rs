//! `specrun`: one module per command.

mod bench;
mod build_lookup;
mod chat;
mod conformance;
pub mod device;
mod devices;
pub(crate) mod generate;
pub(crate) mod imatrix;
pub(crate) mod kld;
mod logits;
pub(crate) mod model;
mod model_file;
mod ngrams;
pub(crate) mod page;
mod perplexity;
mod plan;
#[cfg(feature = "serve")]
mod serve;
mod tokenize;
mod tune;
pub(crate) mod verify;

use std::env;
use std::ffi::{OsStr, OsString};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use schemas::report::Verdict;

use crate::LONG_VERSION;
use crate::flags;
use crate::help::{self, specrun::TOPICS};
use crate::output::Verbosity;
use crate::shell;

/// Runs GGUF models with speculative decoding, and verifies the result.
///
/// Exit codes: 0 done, 1 a check ran and failed, 2 could not run, 128 + signal number if a signal ended
/// the program (130 SIGINT, 143 SIGTERM, 129 SIGHUP).
#[derive(Debug, Parser)]
#[command(name = "specrun", version, long_version = LONG_VERSION)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    verbosity: Verbosity,
}

#[derive(Debug, Subcommand)]
enum Command {
    Generate(generate::Args),
    Verify(Box<verify::Args>),
    Bench(bench::Args),
    Logits(logits::Args),
    Conformance(conformance::Args),
    Perplexity(perplexity::Args),
    Kld(kld::Args),
    Imatrix(Box<imatrix::Args>),
    Tune(Box<tune::Args>),
    Tokenize(tokenize::Args),
    BuildLookup(build_lookup::Args),
    Plan(plan::Args),
    #[cfg(feature = "serve")]
    Serve(serve::Args),
    Devices(devices::Args),
    Completions(shell::CompletionsArgs),
    #[command(hide = true)]
    Man(shell::ManArgs),
}

/// llama.cpp's short flags of several letters, with their long names.
const SHORT_FLAGS: [(&str, &str); 11] = [
    ("-md", "--model-draft"),
    ("-ngl", "--n-gpu-layers"),
    ("-np", "--parallel"),
    ("-nr", "--no-repack"),
    ("-ofreq", "--output-frequency"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-ctkd", "--spec-draft-type-k"),
    ("-ctvd", "--spec-draft-type-v"),
    ("-lcs", "--lookup-cache-static"),
    ("-lcd", "--lookup-cache-dynamic"),
];

/// Flags that name a Hub repository, and the file flags that they replace.
const REPOSITORIES: [Repository; 2] = [
    Repository {
        names: &["-hf", "-hfr", "--hf-repo"],
        flag: "--model",
    },
    Repository {
        names: &["-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"],
        flag: "--model-draft",
    },
];

struct Repository {
    names: &'static [&'static str],
    flag: &'static str,
}

/// llama.cpp's environment variables for a draft: its file, and a repository that is used if the file's
/// variable is not set.
const DRAFT_VARIABLES: [&str; 2] = ["LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_SPEC_DRAFT_HF_REPO"];

/// Commands whose arguments are a model and a text: with -m, the first argument is the text.
const TEXT_COMMANDS: [&str; 3] = ["generate", "logits", "tokenize"];

impl Cli {
    /// Parses the command line; ends the program if it is invalid.
    pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Cli {
        Cli::parse_args(args).unwrap_or_else(|error| flags::exit(&error))
    }

    /// Parses the command line.
    pub(crate) fn parse_args(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        let args = expand_flags(args);
        let mut command = help::arrange(command(), TOPICS, &args);
        flags::check(&mut command, &args)?;
        flags::check_removed(&mut command, &args)?;
        let mut matches = command.try_get_matches_from_mut(args)?;
        let cli = Cli::from_arg_matches_mut(&mut matches)?;
        cli.verbosity.apply();
        Ok(cli)
    }
}

/// Builds the command line, with a draft's repository from the environment as a default.
fn command() -> clap::Command {
    let [file, repository] = DRAFT_VARIABLES.map(|name| env::var(name).unwrap_or_default());
    let draft = match file.is_empty() && !repository.is_empty() {
        true => Some(model_file::hub_reference(&repository)),
        false => None,
    };
    let has = |command: &clap::Command, id| command.get_arguments().any(|arg| arg.get_id() == id);
    Cli::command().mut_subcommands(|mut command| {
        if let Some(draft) = draft.clone().filter(|_| has(&command, "model_draft")) {
            command = command.mut_arg("model_draft", |arg| arg.default_value(draft));
        }
        let is_text = TEXT_COMMANDS.contains(&command.get_name());
        if has(&command, "target") && !is_text {
            command = command.mut_arg("target", |arg| arg.conflicts_with("model"));
        }
        command
    })
}

/// Returns the arguments with long flag names, and with Hub references in place of repository flags.
pub(crate) fn expand_flags(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args = args.into_iter();
    let mut out = Vec::new();
    while let Some(arg) = args.next() {
        if arg == "--" {
            out.push(arg);
            break;
        }
        let (name, value) = match arg.to_str().and_then(|arg| arg.split_once('=')) {
            Some((name, value)) => (OsStr::new(name), Some(OsString::from(value))),
            None => (&*arg, None),
        };
        let repository = REPOSITORIES
            .iter()
            .find(|r| r.names.iter().any(|n| name == *n));
        let short = SHORT_FLAGS.iter().find(|(short, _)| name == *short);
        let (long, is_repository) = match (repository, short) {
            (Some(repository), _) => (repository.flag, true),
            (None, Some((_, long))) => (*long, false),
            (None, None) => {
                out.push(arg);
                continue;
            }
        };
        out.push(OsString::from(long));
        let value = value.or_else(|| if is_repository { args.next() } else { None });
        out.extend(
            value.map(|value| match value.to_str().filter(|_| is_repository) {
                Some(name) if !name.starts_with('-') => {
                    OsString::from(model_file::hub_reference(name))
                }
                _ => value,
            }),
        );
    }
    out.extend(args);
    out
}

/// Runs the command.
///
/// # Errors
/// The command could not run.
pub fn run(cli: &Cli) -> anyhow::Result<Verdict> {
    match &cli.command {
        Command::Generate(args) => generate::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Conformance(args) => conformance::run(args),
        Command::Perplexity(args) => perplexity::run(args),
        Command::Kld(args) => kld::run(args),
        Command::Imatrix(args) => imatrix::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::BuildLookup(args) => build_lookup::run(args),
        Command::Plan(args) => plan::run(args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Completions(args) => shell::completions(documented(), args),
        Command::Man(args) => shell::man(documented(), args),
    }
}

/// Returns the command line with its long help.
fn documented() -> clap::Command {
    help::arrange(command(), TOPICS, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_parse_and_flags_have_groups() {
        help::tests::check(command(), TOPICS, &|words| {
            let mut matches = command().try_get_matches_from(expand_flags(words))?;
            Cli::from_arg_matches_mut(&mut matches).map(drop)
        });
    }
}
