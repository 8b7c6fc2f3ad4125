//! `specconv trim-vocab`: the output of a draft is reduced to the tokens that texts need.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use convert::{MtpMode, OutType};
use graft::{MapKind, Trimmed};
use runner::tokenizer::{EncodeConfig, Tokenizer};
use schemas::gguf::Plan;
use schemas::input;
use schemas::report::{SCHEMA_VERSION, TrimVocabReport, Verdict};

use super::map_file;
use crate::output;
use crate::specconv::input::Inputs;
use crate::specconv::write::{FileLine, Model, WriteArgs};

/// How the reduced output is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Layout {
    /// As llama.cpp reads it: EAGLE-3 and DFlash drafts only
    Peer,
    /// Ours for MTP heads, which llama.cpp does not read: the file's keys name it
    Specconv,
}

/// Reduce the output of a draft to the tokens that texts need
///
/// Most of what a drafted token reads is the output's row for each token of the vocabulary. This
/// keeps the rows of the most frequent tokens, byte for byte, and those of all special ones. What
/// the target writes does not change: a token that cannot be drafted costs a draft, no more. Every
/// tenth line of the texts is held out, to measure how many of their tokens the draft can still
/// propose.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: specconv trim-vocab mtp-model.gguf --layout specconv --text \
                        corpus.txt -n 32000 -o mtp-model-32k.gguf",
    group = clap::ArgGroup::new("tokens").required(true).args(["text", "ids"])
)]
pub(in crate::specconv) struct Args {
    /// EAGLE-3 or DFlash draft; with --layout specconv a model with an MTP head, or its sidecar
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// Text to count tokens in, best what the target itself wrote; may be given several times
    #[arg(long, value_name = "FILE", requires = "n")]
    text: Vec<PathBuf>,
    /// The tokens to keep instead: ids as graft-vocab takes a map
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    /// How many tokens to keep, special ones not counted
    #[arg(short, value_name = "N")]
    n: Option<usize>,
    /// How to store it
    #[arg(long, value_name = "LAYOUT", default_value = "peer")]
    layout: Layout,
    /// File to write
    #[arg(short, long, value_name = "OUT.gguf")]
    outfile: PathBuf,
    #[command(flatten)]
    write: WriteArgs,
}

/// Tokens of texts.
struct Counted {
    /// Occurrences by id.
    counts: Vec<u64>,
    /// Tokens of the lines that were not counted.
    held_out: Vec<u32>,
}

pub(in crate::specconv) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mut inputs = Inputs::default();
    let input = inputs.open(&args.input, OutType::Auto, MtpMode::Inline)?;
    let name = || args.input.display().to_string();
    let mut special = graft::special_tokens(&input.metadata);
    // Of an output that is reduced already, a part can be kept and nothing else.
    let proposable = graft::proposable(&input).with_context(name)?;
    if let Some(proposable) = &proposable {
        special.retain(|id| proposable.contains(id));
    }
    let tokenizer = Tokenizer::from_metadata(&input.metadata).with_context(name)?;
    let n_target = tokenizer.n_tokens();
    args.text.iter().for_each(|text| inputs.add(text));
    let (ids, counted) = match &args.ids {
        Some(path) => {
            inputs.add(path);
            let (stored, _) = map_file::read(path)?;
            let ids = stored.ids(n_target as u64, Some(MapKind::Absolute));
            let ids: BTreeSet<u32> = ids
                .with_context(|| path.display().to_string())?
                .into_iter()
                .chain(
                    special
                        .iter()
                        .copied()
                        .filter(|&id| (id as usize) < n_target),
                )
                .collect();
            (ids.into_iter().collect(), None)
        }
        None => {
            let counted = count(&tokenizer, &args.text)?;
            let n = args.n.unwrap_or(n_target);
            let mut counts = counted.counts.clone();
            if let Some(proposable) = &proposable {
                for (id, count) in (0..).zip(&mut counts) {
                    *count *= u64::from(proposable.contains(&id));
                }
            }
            let ids = graft::most_frequent(&counts, n, &special);
            (ids, Some(counted))
        }
    };
    ensure!(!ids.is_empty(), "{}: no token would be left", name());
    let Trimmed { plan, saved_bytes } = trim(&input, &ids, args.layout).with_context(name)?;
    let kept: BTreeSet<u32> = ids.iter().copied().collect();
    let held_out = counted
        .as_ref()
        .filter(|counted| !counted.held_out.is_empty());
    let report = TrimVocabReport {
        schema_version: SCHEMA_VERSION,
        input: name(),
        n_target: n_target as u64,
        n_draft: ids.len() as u64,
        n_special: special.intersection(&kept).count() as u64,
        n_counted: counted.as_ref().map(|counted| counted.counts.iter().sum()),
        n_held_out: held_out.map(|counted| counted.held_out.len() as u64),
        coverage: held_out.map(|counted| {
            let covered = counted
                .held_out
                .iter()
                .filter(|id| kept.contains(id))
                .count();
            covered as f64 / counted.held_out.len() as f64
        }),
        saved_bytes_per_token: saved_bytes,
        output: args
            .write
            .write_one(Model::like(plan, &args.input, &args.outfile)?, &inputs)?,
        written: !args.write.dry_run,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    let coverage = report
        .coverage
        .zip(report.n_held_out)
        .map(|(share, n)| format!("\nthey cover {:.2} % of {n} tokens held out", 100.0 * share));
    let text = format!(
        "{}\n{} of {} tokens kept, {} of them special{}\neach drafted token reads {} less",
        FileLine {
            file: &report.output,
            written: report.written,
        },
        report.n_draft,
        report.n_target,
        report.n_special,
        coverage.unwrap_or_default(),
        output::bytes(report.saved_bytes_per_token)
    );
    output::result(args.write.format(), &report, &text)?;
    Ok(Verdict::Pass)
}

fn trim(input: &Plan, ids: &[u32], layout: Layout) -> anyhow::Result<Trimmed> {
    Ok(match layout {
        Layout::Peer => graft::trim_draft(input, ids)?,
        Layout::Specconv => graft::trim_mtp(input, ids)?,
    })
}

/// Counts tokens line by line, and holds every tenth line out.
fn count(tokenizer: &Tokenizer, texts: &[PathBuf]) -> anyhow::Result<Counted> {
    let config = EncodeConfig {
        add_special: false,
        parse_special: true,
    };
    let mut counted = Counted {
        counts: vec![0; tokenizer.n_tokens()],
        held_out: Vec::new(),
    };
    let read = |path: &Path| {
        let text = input::read_text(path, input::Kind::Stream, input::MAX_WHOLE);
        text.with_context(|| path.display().to_string())
    };
    for path in texts {
        for (i, line) in read(path)?.split_inclusive('\n').enumerate() {
            let tokens = tokenizer.encode(line, config);
            match i % 10 {
                9 => counted.held_out.extend(tokens),
                _ => tokens
                    .into_iter()
                    .for_each(|id| counted.counts[id as usize] += 1),
            }
        }
    }
    if counted.counts.iter().all(|&n| n == 0) {
        bail!("the texts hold no tokens");
    }
    Ok(counted)
}
