//! `specconv plan`: writes the plan of a command.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use schemas::outfile::{self, OutputNames};
use schemas::report::{
    SCHEMA_VERSION, Verdict, WorkContent, WorkFile, WorkParts, WorkPlan, WorkShard,
};

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
    /// Form of the parts of models [default: shared on local file systems, else separate]
    ///
    /// Shared: the shards write into one file for each output, which "specconv finish" checks and renames. Separate:
    /// each shard writes files of its own, which can be copied between machines; "specconv finish" copies their rows,
    /// and renames those that are a whole output. Several machines may lose data of a shared file on a network file
    /// system
    #[arg(long, value_name = "FORM", global = true)]
    pub(super) parts: Option<Form>,
    /// Replace the plan if it exists
    ///
    /// Parts of the old plan are not accepted for the new one
    #[arg(long, global = true)]
    replace_plan: bool,
}

/// Form of parts, as a flag.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Form {
    Shared,
    Separate,
}

/// Chooses the form of parts.
fn parts(args: &Args, path: &Path) -> anyhow::Result<WorkParts> {
    let is_model = args.command.measurement().is_none();
    ensure!(
        is_model || args.parts.is_none(),
        "--parts: for convert and quantize, whose parts are those of models"
    );
    let is_shared = match args.parts {
        Some(form) => matches!(form, Form::Shared),
        None => is_model && outfile::is_local(outfile::folder_of(path)),
    };
    Ok(match is_shared {
        true => WorkParts::Shared,
        false => WorkParts::Separate,
    })
}

pub(in crate::specconv) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let path = args
        .plan
        .clone()
        .unwrap_or_else(|| PathBuf::from("plan.json"));
    let parts = parts(args, &path)?;
    let divisible = args.command.divisible();
    let work = divisible.open()?;
    let description = work.describe(args.shards as usize)?;
    let existing = match args.replace_plan {
        true => outfile::Existing::Replace,
        false => outfile::Existing::Refuse,
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
        parts,
        shards: shards(&description, parts),
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
pub(super) fn shards(description: &Description, parts: WorkParts) -> Vec<WorkShard> {
    let name = |shard: u32, i: usize, content: &WorkContent| match (parts, content) {
        (WorkParts::Shared, WorkContent::Tensors { output, .. }) => shared_name(*output),
        _ => format!("part-{shard:05}-{i}.gguf"),
    };
    let shards = (0u32..).zip(&description.shards);
    shards
        .map(|(shard, contents)| WorkShard {
            shard,
            files: (contents.iter().enumerate())
                .map(|(i, content)| WorkFile {
                    name: name(shard, i, content),
                    content: content.clone(),
                })
                .collect(),
        })
        .collect()
}

/// Returns the name of the file that shards write for an output, without what depends on the plan.
pub(super) fn shared_name(output: u32) -> String {
    format!("output-{output:05}.gguf")
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
