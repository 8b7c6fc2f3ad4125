//! `specconv graft-vocab`: adds a draft-to-target map to a draft.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use clap::ValueEnum;
use convert::{MtpMode, OutType};
use graft::MapKind;
use schemas::arch::keys;
use schemas::report::{GraftVocabReport, SCHEMA_VERSION, Verdict};

use super::map_file;
use crate::output;
use crate::specconv::input::Inputs;
use crate::specconv::write::{FileLine, Model, WriteArgs};

/// Interpretation of the numbers of a map.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Target token ids
    Ids,
    /// Differences between target token id and row number
    Offsets,
}

/// Add a draft-to-target map to an EAGLE-3 or DFlash draft
///
/// The map assigns a target token to each row of the draft's output. Ids and offsets are distinguished
/// by which of them forms a valid map: in range, without repetition, and matching the t2d mask if there
/// is one.
#[derive(Debug, clap::Args)]
pub(in crate::specconv) struct Args {
    /// Draft whose output has as many rows as the map has numbers
    #[arg(long, value_name = "DRAFT.gguf")]
    draft: PathBuf,
    /// Map file: GGUF or safetensors with a tensor d2t (and t2d), NumPy, JSON, or numbers as text
    #[arg(long, value_name = "MAP")]
    map: PathBuf,
    /// Interpretation of the numbers, required if both are possible
    #[arg(long = "as", value_name = "KIND")]
    kind: Option<Kind>,
    /// File to write
    #[arg(short, long, value_name = "OUT.gguf")]
    outfile: PathBuf,
    #[command(flatten)]
    pub(in crate::specconv) write: WriteArgs,
}

pub(in crate::specconv) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mut inputs = Inputs::new(&args.write);
    let draft = inputs.open(&args.draft, OutType::Auto, MtpMode::Inline)?;
    inputs.add(&args.map);
    let (stored, known) = map_file::read(&args.map)?;
    let kind = args.kind.map(|kind| match kind {
        Kind::Ids => MapKind::Absolute,
        Kind::Offsets => MapKind::Offset,
    });
    let tokens = draft.metadata.strings(keys::TOKENS)?;
    let n_target = tokens.map_or(0, |tokens| tokens.len() as u64);
    let name = |path: &PathBuf| path.display().to_string();
    let ids = stored.ids(n_target, kind.or(known));
    let ids = ids.with_context(|| name(&args.map))?;
    let grafted = graft::graft_vocab(&draft, &ids).with_context(|| name(&args.draft))?;
    let special = graft::special_tokens(&draft.metadata);
    let missing = special.into_iter().filter(|id| !ids.contains(id));
    let missing_special: Vec<u32> = missing.collect();
    if !missing_special.is_empty() {
        output::note(&format!(
            "not in the map, so never drafted: {} of the target, {missing_special:?}",
            output::count(missing_special.len() as u64, "special token"),
        ));
    }
    let model = Model::sharded_like(grafted, &args.draft, &args.outfile)?;
    let report = GraftVocabReport {
        schema_version: SCHEMA_VERSION,
        draft: name(&args.draft),
        map: name(&args.map),
        n_draft: ids.len() as u64,
        n_target,
        missing_special,
        output: args.write.write_one(model, &inputs)?,
        written: !args.write.dry_run,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    let text = format!(
        "{}\n{} of {} tokens can be drafted",
        FileLine {
            file: &report.output,
            written: report.written,
        },
        report.n_draft,
        report.n_target
    );
    output::result(args.write.format(), &report, &text)?;
    Ok(Verdict::Pass)
}
