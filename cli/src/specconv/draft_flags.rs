//! `specconv draft-flags`: the flags of a file's verified speculator.

use std::path::PathBuf;

use schemas::gguf;
use schemas::report::{DraftFlagsReport, SCHEMA_VERSION, Verdict};

use super::passport;
use crate::hint::Hinted;
use crate::output::{self, Format};

/// Print the draft flags that were verified with a file
///
/// Reads the passport that specrun verify --stamp wrote, compares it with the tensors, and prints the flags of the
/// fastest speculator as llama-server and specrun accept them. A passport that was edited, or is about other
/// tensors or another draft file beside the model, prints nothing and exits with 1.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// GGUF file, or first shard of a split model
    file: PathBuf,
    /// Do not read the tensors to compare them with the passport
    #[arg(long)]
    no_hash: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let path = args.file.display();
    let plan = gguf::open(&args.file)?;
    let found = passport::check(&plan, &args.file, !args.no_hash)?;
    let found = found.ok_or_else(|| {
        let message = format!("{path}: has no passport, expected keys specconv.verify.*");
        let advice = format!("\"specrun verify {path} --stamp\" verifies the file and writes one");
        Hinted::new(message, advice)
    })?;
    let others = match &found.passport {
        Some(passport) if !args.no_hash => passport::other_drafts(passport, &args.file)?,
        _ => Vec::new(),
    };
    let other = others.first().map(|draft| {
        format!("passport is stale: the tensors of {draft} differ from those that were verified")
    });
    let problem = passport::problem(found.status).map(str::to_owned).or(other);
    let flags = match (&problem, &found.passport) {
        (None, Some(passport)) => passport::flags(passport),
        _ => Vec::new(),
    };
    if let Some(problem) = &problem {
        output::note(&format_args!("{path}: {problem}"));
    }
    let text = flags.join(" ");
    let report = DraftFlagsReport {
        schema_version: SCHEMA_VERSION,
        path: path.to_string(),
        passport: found,
        flags,
    };
    output::result(Format::of(args.json), &report, &text)?;
    Ok(Verdict::of(problem.is_none()))
}
