//! `specrun`: one module per command.

mod bench;
mod build_lookup;
mod chat;
pub(crate) mod device;
mod devices;
pub(crate) mod generate;
mod logits;
pub(crate) mod model;
mod model_file;
mod ngrams;
pub(crate) mod page;
mod perplexity;
mod plan;
mod serve;
mod tokenize;
pub(crate) mod verify;

use std::env;
use std::ffi::{OsStr, OsString};

use clap::builder::ArgPredicate;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use schemas::report::Verdict;

use crate::flags;

/// Runs GGUF models with speculative decoding, and verifies the result.
///
/// Exit codes: 0 done, 1 a check ran and failed, 2 could not run, 128 + signal number if a signal ended
/// the program (130 SIGINT, 143 SIGTERM, 129 SIGHUP).
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
    Serve(serve::Args),
    Devices(devices::Args),
}

/// llama.cpp's short flags of several letters, with their long names.
const SHORT_FLAGS: [(&str, &str); 10] = [
    ("-md", "--model-draft"),
    ("-ngl", "--n-gpu-layers"),
    ("-np", "--parallel"),
    ("-nr", "--no-repack"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-ctkd", "--spec-draft-type-k"),
    ("-ctvd", "--spec-draft-type-v"),
    ("-lcs", "--lookup-cache-static"),
    ("-lcd", "--lookup-cache-dynamic"),
];

/// Flags that name a Hub repository, the file flags that they replace, and llama.cpp's environment
/// variables for both.
const REPOSITORIES: [Repository; 2] = [
    Repository {
        names: &["-hf", "-hfr", "--hf-repo"],
        flag: "--model",
        id: "model",
        variable: "LLAMA_ARG_HF_REPO",
        file_variable: "LLAMA_ARG_MODEL",
    },
    Repository {
        names: &["-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"],
        flag: "--model-draft",
        id: "model_draft",
        variable: "LLAMA_ARG_SPEC_DRAFT_HF_REPO",
        file_variable: "LLAMA_ARG_SPEC_DRAFT_MODEL",
    },
];

struct Repository {
    names: &'static [&'static str],
    flag: &'static str,
    /// clap id of the file flag's argument.
    id: &'static str,
    variable: &'static str,
    /// Environment variable of the file flag; it takes precedence.
    file_variable: &'static str,
}

impl Cli {
    /// Parses the command line; ends the program if it is invalid.
    pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Cli {
        let mut command = command();
        let args = expand_flags(args);
        flags::check(&mut command, &args);
        flags::check_removed(&mut command, &args);
        let mut matches = command.get_matches_from(args);
        Cli::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.exit())
    }
}

/// Builds the command line, with repositories from the environment as defaults.
fn command() -> clap::Command {
    let repositories = REPOSITORIES
        .iter()
        .filter(|repository| env::var_os(repository.file_variable).is_none());
    let named = repositories.filter_map(|repository| {
        let name = env::var(repository.variable)
            .ok()
            .filter(|name| !name.is_empty())?;
        Some((repository.id, model_file::hub_reference(&name)))
    });
    let mut command = Cli::command().mut_subcommand("verify", |command| {
        // A server has the model itself.
        command.mut_arg("model", |arg| {
            arg.required(false)
                .required_unless_present("url")
                .default_value_if("url", ArgPredicate::IsPresent, "")
        })
    });
    for (id, reference) in named {
        let has_argument = |command: &clap::Command| {
            let mut arguments = command.get_arguments();
            arguments.any(|argument| argument.get_id() == id)
        };
        let subcommands = command
            .get_subcommands()
            .filter(|command| has_argument(command));
        let names: Vec<String> = subcommands.map(|c| c.get_name().to_owned()).collect();
        for name in names {
            command = command.mut_subcommand(name, |command| {
                command.mut_arg(id, |arg| {
                    arg.required(false).default_value(reference.clone())
                })
            });
        }
    }
    command
}

/// Returns the arguments with long flag names, and with Hub references in place of repository flags.
fn expand_flags(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
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
        Command::Perplexity(args) => perplexity::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::BuildLookup(args) => build_lookup::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Devices(args) => devices::run(args),
    }
}
