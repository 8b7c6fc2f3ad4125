//! `specconv plan`: writes the plan of a command.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use schemas::outfile::OutputNames;
use schemas::report::{SCHEMA_VERSION, Verdict, WorkContent, WorkFile, WorkPlan, WorkShard};

use super::{PROGRAM, Planned, inputs};
use crate::embedded;
use crate::hint::Hinted;
use crate::output;
use crate::report_file::{self, ReportFile};
use crate::work::{Description, text};

/// Divide a command among machines
///
/// Writes a plan: the types, byte ranges or chunks of each shard, and hashes of inputs and options. Each machine runs
/// "specconv run PLAN.json --shard N" with N from 0, in any order, and "specconv finish PLAN.json" joins the parts. The
/// result is the one of a single machine, bit for bit. docs/scale.md has engines that run plans.
///
/// The parts are written to the folder PLAN.json.parts beside the plan, which all machines need to share.
#[derive(Debug, clap::Args)]
pub(in crate::specconv) struct Args {
    /// The command, with its own arguments
    #[command(subcommand)]
    pub(super) command: Planned,
    /// Number of shards
    ///
    /// May exceed the number of machines: a shard is repeated as a whole if its machine is lost
    #[arg(long, value_name = "N", global = true, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65535))]
    shards: u32,
    /// File to write [default: plan.json]
    #[arg(short = 'o', long = "plan", value_name = "PLAN.json", global = true)]
    plan: Option<PathBuf>,
    /// Do not compare modification times of inputs, of which each machine has its own copy
    #[arg(long, global = true)]
    copied_inputs: bool,
    /// Replace the plan if it exists
    ///
    /// Parts of the old plan are not accepted for the new one
    #[arg(long, global = true)]
    replace_plan: bool,
}

pub(in crate::specconv) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let path = args
        .plan
        .clone()
        .unwrap_or_else(|| PathBuf::from("plan.json"));
    let divisible = args.command.divisible();
    let work = divisible.open()?;
    let description = work.describe(args.shards as usize)?;
    let existing = match args.replace_plan {
        true => schemas::outfile::Existing::Replace,
        false => schemas::outfile::Existing::Refuse,
    };
    let mut names = OutputNames::new(&description.inputs, existing);
    let file = match ReportFile::regular(&path, &mut names) {
        Err(error) if path.exists() && !args.replace_plan => {
            let hint = "--replace-plan replaces it; give another name with -o";
            let message = format!("{error:#}").replace("; pass --overwrite to replace it", "");
            return Err(Hinted::new(message, hint).into());
        }
        file => file?,
    };
    let plan = WorkPlan {
        schema_version: SCHEMA_VERSION,
        program: PROGRAM.to_owned(),
        kind: divisible.kind(),
        command: command()?,
        folder: text(&std::env::current_dir().context("current folder")?)?,
        inputs: (description.inputs.iter())
            .map(|path| inputs::identify(path, args.copied_inputs))
            .collect::<anyhow::Result<_>>()?,
        shards: shards(&description),
        options: description.options,
        sources: description.sources,
        outputs: description.outputs,
    };
    let json = serde_json::to_string_pretty(&plan)? + "\n";
    report_file::publish(vec![(file, json.into_bytes())])?;
    output::data(&summary(&plan, &path))?;
    Ok(Verdict::Pass)
}

/// Returns the arguments from the word `plan` on.
fn command() -> anyhow::Result<Vec<String>> {
    let args = embedded::args().unwrap_or_else(|| std::env::args_os().collect());
    let words = args.into_iter().skip(1).map(|word| {
        word.into_string()
            .map_err(|word| anyhow::anyhow!("{}: not UTF-8, which a plan needs", word.display()))
    });
    words.collect()
}

/// Returns the work of each shard, with the names of its files.
pub(super) fn shards(description: &Description) -> Vec<WorkShard> {
    let shards = (0u32..).zip(&description.shards);
    shards
        .map(|(shard, contents)| WorkShard {
            shard,
            files: (contents.iter().enumerate())
                .map(|(i, content)| WorkFile {
                    name: format!("part-{shard:05}-{i}.gguf"),
                    content: content.clone(),
                })
                .collect(),
        })
        .collect()
}

fn summary(plan: &WorkPlan, path: &Path) -> String {
    let n = plan.shards.len();
    let size = |content: &WorkContent| match content {
        WorkContent::Tensors { slices, .. } => slices.iter().map(|slice| slice.size_bytes).sum(),
        _ => 0u64,
    };
    let largest = plan.shards.iter().map(|shard| {
        let files = shard.files.iter();
        files.map(|file| size(&file.content)).sum::<u64>()
    });
    let sizes = match plan.outputs.is_empty() {
        true => String::new(),
        false => format!(
            ", at most {} each",
            output::bytes(largest.max().unwrap_or(0))
        ),
    };
    let idle = plan.shards.iter().filter(|shard| shard.files.is_empty());
    let idle = match idle.count() {
        0 => String::new(),
        n => format!("\n{} without work", output::count(n as u64, "shard")),
    };
    let shown = path.display();
    let last = n - 1;
    format!(
        "planned {} in {}{sizes}{idle}\nrun each: specconv run {shown} --shard N, with N from 0 to {last}\nthen: specconv finish {shown}\n",
        plan.kind.name(),
        output::count(n as u64, "shard"),
    )
}
