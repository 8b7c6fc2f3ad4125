//! `specconv split-vocab`: extracts the draft-to-target map of a draft.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use convert::{MtpMode, OutType};
use schemas::gguf::{Metadata, Plan};
use schemas::report::{SCHEMA_VERSION, SplitVocabReport, Verdict};
use schemas::vocab::{D2T, write_d2t};

use crate::output;
use crate::specconv::input::Inputs;
use crate::specconv::write::{FileLine, Model, WriteArgs};

/// Extract the draft-to-target map of a draft
///
/// The map is written as a GGUF file that contains only the tensor d2t (ids as I64). graft-vocab reads
/// it.
#[derive(Debug, clap::Args)]
pub(in crate::specconv) struct Args {
    /// EAGLE-3 or DFlash draft with a map
    #[arg(value_name = "DRAFT.gguf")]
    draft: PathBuf,
    /// Output file for the map
    #[arg(long, value_name = "MAP.gguf")]
    map: PathBuf,
    /// Output file for the draft without the map [default: not written]
    #[arg(short, long, value_name = "OUT.gguf")]
    outfile: Option<PathBuf>,
    #[command(flatten)]
    pub(in crate::specconv) write: WriteArgs,
}

pub(in crate::specconv) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mut inputs = Inputs::new(&args.write);
    let draft = inputs.open(&args.draft, OutType::Auto, MtpMode::Inline)?;
    let name = || args.draft.display().to_string();
    let (without, ids) = graft::split_vocab(&draft).with_context(name)?;
    let mut map = Plan::new(Metadata::new());
    map.tensors.push(write_d2t(D2T, &ids));
    let map = Model::one(map, &args.map);
    let (map, output) = match &args.outfile {
        None => (args.write.write_one(map, &inputs)?, None),
        Some(path) => {
            let draft = Model::sharded_like(without, &args.draft, path)?;
            let [map, draft] = args.write.write([map, draft], &inputs)?;
            (map, Some(draft))
        }
    };
    let report = SplitVocabReport {
        schema_version: SCHEMA_VERSION,
        draft: name(),
        n_draft: ids.len() as u64,
        map,
        output,
        written: !args.write.dry_run,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    let written = report.written;
    let files = std::iter::once(&report.map).chain(&report.output);
    let lines: Vec<String> = files
        .map(|file| FileLine { file, written }.to_string())
        .collect();
    output::result(args.write.format(), &report, &lines.join("\n"))?;
    Ok(Verdict::Pass)
}
