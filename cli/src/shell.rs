//! Shell completions and manual pages, made from the definition of the command line.

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use schemas::report::Verdict;

use crate::output;

/// Print completions of commands and flags for a shell
///
/// The shell reads the script from its folder for completions; open a new shell after writing it there.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    shell: Shell,
}

/// Print the manual page of the program, or of one command
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Command to describe [default: the program]
    command: Option<String>,
}

/// Prints completions of `program`.
///
/// # Errors
/// Stdout is closed or full.
pub(crate) fn completions(mut program: Command, args: &CompletionsArgs) -> anyhow::Result<Verdict> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, name, &mut script);
    output::raw(&script)?;
    Ok(Verdict::Pass)
}

/// Prints a manual page of `program`.
///
/// # Errors
/// There is no such command, or stdout is closed or full.
pub(crate) fn man(mut program: Command, args: &ManArgs) -> anyhow::Result<Verdict> {
    program.build();
    let described = match &args.command {
        Some(name) => program
            .find_subcommand(name)
            .cloned()
            .with_context(|| format!("{name}: no such command of {}", program.get_name()))?,
        None => program,
    };
    let mut page = Vec::new();
    Man::new(described).render(&mut page)?;
    output::raw(&page)?;
    Ok(Verdict::Pass)
}
