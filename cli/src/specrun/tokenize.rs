//! `specrun tokenize`: the tokens of a text.

use runner::model_files::{DraftFiles, Files};
use runner::tokenizer::Tokenizer;
use schemas::report::{SCHEMA_VERSION, TokenizeReport, Verdict};

use super::model::{SpecialArgs, TextArgs};
use super::model_file::TargetArgs;
use crate::output::{self, Format};

/// Show the tokens of a text
///
/// Special tokens in the text, such as <|im_start|>, are parsed as tokens.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: TargetArgs,
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    special: SpecialArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let model = args.model.path()?;
    let files = Files::open(model, &DraftFiles::default())?;
    let tokens = args.text.encode(&args.model, &files, &args.special)?;
    let text: Vec<String> = tokens
        .iter()
        .map(|&token| shown_token(&files.tokenizer, token))
        .collect();
    let report = TokenizeReport {
        schema_version: SCHEMA_VERSION,
        model: model.display().to_string(),
        tokens,
    };
    output::result(Format::of(args.json), &report, &text.join("\n"))?;
    Ok(Verdict::Pass)
}

/// Formats a token as its id and its text; an id outside the vocabulary has no text.
pub(super) fn shown_token(tokenizer: &Tokenizer, token: u32) -> String {
    let bytes = match (token as usize) < tokenizer.n_tokens() {
        true => tokenizer.token_bytes(token),
        false => &[],
    };
    format!("{token:>7} {:?}", String::from_utf8_lossy(bytes))
}
