//! `specconv map-vocab`: maps the tokens of a target to those of a draft model with another tokenizer.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use convert::{MtpMode, OutType};
use graft::{Coverage, Side, TokenText};
use runner::tokenizer::Tokenizer;
use schemas::arch::keys;
use schemas::gguf::Metadata;
use schemas::report::{CoverageReport, MapVocabReport, SCHEMA_VERSION, Verdict};
use schemas::vocab::Vocabulary;

use crate::output;
use crate::specconv::input::Inputs;
use crate::specconv::write::{FileLine, Model, WriteArgs};

/// Map the tokens of a target to those of a draft model
///
/// Each token is mapped to the token with the same bytes, or else to the sequence of the longest tokens
/// that spell it. specrun reads the map for draft-simple (--spec-vocab-map). The target's text does not
/// change: a wrong translation costs speed only.
#[derive(Debug, clap::Args)]
pub(in crate::specconv) struct Args {
    /// Target model (GGUF)
    #[arg(long, value_name = "TARGET.gguf")]
    target: PathBuf,
    /// Draft model (GGUF)
    #[arg(long, value_name = "DRAFT.gguf")]
    draft: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "MAP.gguf")]
    outfile: PathBuf,
    #[command(flatten)]
    pub(in crate::specconv) write: WriteArgs,
}

pub(in crate::specconv) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mut inputs = Inputs::new(&args.write);
    let mut open = |path: &Path| inputs.open(path, OutType::Auto, MtpMode::Inline);
    let [target, draft] = [open(&args.target)?, open(&args.draft)?];
    let tokenizer = |metadata: &Metadata, path: &Path| {
        Tokenizer::from_metadata(metadata).with_context(|| path.display().to_string())
    };
    let of_target = tokenizer(&target.metadata, &args.target)?;
    let of_draft = tokenizer(&draft.metadata, &args.draft)?;
    let (map, [target_side, draft_side]) = graft::map_vocab(
        &side(&target.metadata, &of_target)?,
        &side(&draft.metadata, &of_draft)?,
    );
    ensure!(
        target_side.n_exact + target_side.n_sequence > 0,
        "{} and {}: no token of one vocabulary can be spelled with tokens of the other",
        args.target.display(),
        args.draft.display()
    );
    let report = MapVocabReport {
        schema_version: SCHEMA_VERSION,
        target: args.target.display().to_string(),
        draft: args.draft.display().to_string(),
        target_to_draft: coverage(target_side),
        draft_to_target: coverage(draft_side),
        output: args
            .write
            .write_one(Model::one(map.to_plan(), &args.outfile), &inputs)?,
        written: !args.write.dry_run,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    let line = |direction: &str, c: &CoverageReport| {
        format!(
            "\n{direction}: {} tokens map to one token, {} to several, {} to none",
            c.n_exact, c.n_sequence, c.n_none
        )
    };
    let text = format!(
        "{}{}{}",
        FileLine {
            file: &report.output,
            written: report.written,
        },
        line("target to draft", &report.target_to_draft),
        line("draft to target", &report.draft_to_target)
    );
    output::result(args.write.format(), &report, &text)?;
    Ok(Verdict::Pass)
}

fn coverage(found: Coverage) -> CoverageReport {
    CoverageReport {
        n_exact: found.n_exact,
        n_sequence: found.n_sequence,
        n_none: found.n_none,
    }
}

/// Returns the tokens of a file by the bytes that they represent.
fn side<'a>(metadata: &Metadata, tokenizer: &'a Tokenizer) -> anyhow::Result<Side<'a>> {
    let tokens = metadata.strings(keys::TOKENS)?.cloned().unwrap_or_default();
    let special = graft::special_tokens(metadata);
    let id = |key: &str| metadata.u32(&format!("tokenizer.ggml.{key}_token_id"));
    let texts = (0..tokens.len() as u32).map(|token| TokenText {
        bytes: tokenizer.token_bytes(token),
        is_control: special.contains(&token),
    });
    Ok(Side {
        vocabulary: Vocabulary::of(&tokens),
        tokens: texts.collect(),
        roles: vec![id("bos")?, id("eos")?, id("eot")?],
    })
}
