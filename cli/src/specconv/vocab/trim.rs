//! `specconv trim-vocab`: reduces the output of a draft to frequent tokens.

use std::collections::BTreeSet;
use std::fmt;
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

/// Storage layout of the reduced output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Layout {
    /// llama.cpp's layout: EAGLE-3 and DFlash drafts only
    Peer,
    /// specconv's layout for MTP heads, named in the file's keys; llama.cpp cannot read it
    Specconv,
}

/// Reduce the output of a draft to the most frequent tokens
///
/// Most of the memory traffic of a drafted token is the output matrix, which has one row per token of
/// the vocabulary. This command keeps the rows of the most frequent tokens and of all special tokens,
/// unmodified. The target's text does not change: tokens without a row cost speed only, because they are
/// never drafted. Every tenth line of the texts is held out, to measure the share of tokens that the draft
/// can still propose.
#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("tokens").required(true).args(["text", "ids"])
)]
pub(in crate::specconv) struct Args {
    /// EAGLE-3 or DFlash draft; with --layout specconv, a model with an MTP head or its sidecar
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// Text file to count tokens in; may be given several times
    ///
    /// Text that the target generated gives the best selection
    #[arg(long, value_name = "FILE", requires = "n")]
    text: Vec<PathBuf>,
    /// File of token ids to keep, in a format of graft-vocab --map; replaces counting
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    /// Number of tokens to keep, in addition to special tokens
    #[arg(short, value_name = "N")]
    n: Option<usize>,
    /// Storage layout of the reduced output
    #[arg(long, value_name = "LAYOUT", default_value = "peer")]
    layout: Layout,
    /// File to write
    #[arg(short, long, value_name = "OUT.gguf")]
    outfile: PathBuf,
    #[command(flatten)]
    pub(in crate::specconv) write: WriteArgs,
}

/// Token counts of the texts.
struct Counted {
    /// Occurrences by token id.
    counts: Vec<u64>,
    /// Tokens of the held-out lines, which are not counted.
    held_out: Vec<u32>,
}

pub(in crate::specconv) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mut inputs = Inputs::new(&args.write);
    let input = inputs.open(&args.input, OutType::Auto, MtpMode::Inline)?;
    let name = || args.input.display().to_string();
    let tokenizer = Tokenizer::from_metadata(&input.metadata).with_context(name)?;
    // If the output is already reduced, only a subset of its tokens can be kept.
    let proposable = graft::proposable(&input).with_context(name)?;
    let mut special = graft::special_tokens(&input.metadata);
    if let Some(proposable) = &proposable {
        special.retain(|id| proposable.contains(id));
    }
    for path in args.text.iter().chain(&args.ids) {
        inputs.add(path);
    }
    let (ids, counted) = match &args.ids {
        Some(path) => (listed_ids(path, &special, tokenizer.n_tokens())?, None),
        None => {
            let counted = count(&tokenizer, &args.text)?;
            let n = args.n.unwrap_or(tokenizer.n_tokens());
            let ids = frequent_ids(&counted, n, &special, proposable.as_ref());
            (ids, Some(counted))
        }
    };
    ensure!(!ids.is_empty(), "{}: no tokens to keep", name());
    let Trimmed { plan, saved_bytes } = trim(&input, &ids, args.layout).with_context(name)?;
    let kept: BTreeSet<u32> = ids.iter().copied().collect();
    let held_out = counted.as_ref().map(|counted| &counted.held_out);
    let held_out = held_out.filter(|tokens| !tokens.is_empty());
    let report = TrimVocabReport {
        schema_version: SCHEMA_VERSION,
        input: name(),
        n_target: tokenizer.n_tokens() as u64,
        n_draft: ids.len() as u64,
        n_special: special.intersection(&kept).count() as u64,
        n_counted: counted.as_ref().map(|counted| counted.counts.iter().sum()),
        n_held_out: held_out.map(|tokens| tokens.len() as u64),
        coverage: held_out.map(|tokens| {
            let n_covered = tokens.iter().filter(|id| kept.contains(id)).count();
            n_covered as f64 / tokens.len() as f64
        }),
        saved_bytes_per_token: saved_bytes,
        output: args.write.write_one(
            Model::sharded_like(plan, &args.input, &args.outfile)?,
            &inputs,
        )?,
        written: !args.write.dry_run,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    output::result(args.write.format(), &report, &Text(&report))?;
    Ok(Verdict::Pass)
}

/// Returns the ids of a file, with those special tokens that have a row.
fn listed_ids(path: &Path, special: &BTreeSet<u32>, n_vocab: usize) -> anyhow::Result<Vec<u32>> {
    let (stored, _) = map_file::read(path)?;
    let ids = stored.ids(n_vocab as u64, Some(MapKind::Absolute));
    let mut ids: BTreeSet<u32> = ids
        .with_context(|| path.display().to_string())?
        .into_iter()
        .collect();
    ids.extend(special.iter().filter(|&&id| (id as usize) < n_vocab));
    Ok(ids.into_iter().collect())
}

/// Returns the ids of the `n` most frequent tokens and of all special tokens, limited to the tokens that
/// the draft can propose.
fn frequent_ids(
    counted: &Counted,
    n: usize,
    special: &BTreeSet<u32>,
    proposable: Option<&BTreeSet<u32>>,
) -> Vec<u32> {
    let mut counts = counted.counts.clone();
    if let Some(proposable) = proposable {
        for (id, count) in (0..).zip(&mut counts) {
            if !proposable.contains(&id) {
                *count = 0;
            }
        }
    }
    graft::most_frequent(&counts, n, special)
}

/// Text output of the report.
struct Text<'a>(&'a TrimVocabReport);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let (file, written) = (&r.output, r.written);
        writeln!(f, "{}", FileLine { file, written })?;
        let (n_draft, n_target, n_special) = (r.n_draft, r.n_target, r.n_special);
        writeln!(
            f,
            "kept {n_draft} of {n_target} tokens, {n_special} of them special"
        )?;
        if let (Some(coverage), Some(n)) = (r.coverage, r.n_held_out) {
            writeln!(
                f,
                "coverage: {:.2} % of {n} held-out tokens",
                100.0 * coverage
            )?;
        }
        let saved = output::bytes(r.saved_bytes_per_token);
        write!(f, "each drafted token reads {saved} less")
    }
}

fn trim(input: &Plan, ids: &[u32], layout: Layout) -> anyhow::Result<Trimmed> {
    Ok(match layout {
        Layout::Peer => graft::trim_draft(input, ids)?,
        Layout::Specconv => graft::trim_mtp(input, ids)?,
    })
}

/// Counts tokens line by line, and holds out every tenth line.
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
        bail!("the texts contain no tokens");
    }
    Ok(counted)
}
