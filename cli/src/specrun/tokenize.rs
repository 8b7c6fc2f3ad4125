//! `specrun tokenize`: the tokens of a text.

use runner::model_files::{DraftFiles, Files};
use schemas::report::{SCHEMA_VERSION, TokenizeReport, Verdict};

use super::model::SpecialArgs;
use super::model_file::TargetArgs;
use crate::output::{self, Format};

/// Show the tokens of a text
///
/// Special tokens in the text, such as <|im_start|>, are parsed as tokens.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: specrun tokenize -m model.gguf -p 'def main():'")]
pub(super) struct Args {
    #[command(flatten)]
    model: TargetArgs,
    /// Text to tokenize
    #[arg(short, long, value_name = "TEXT")]
    prompt: String,
    #[command(flatten)]
    special: SpecialArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let model = args.model.path()?;
    let files = Files::open(model, &DraftFiles::default())?;
    let tokens = files.tokenizer.encode(&args.prompt, args.special.config());
    let text: Vec<String> = tokens
        .iter()
        .map(|&token| {
            let bytes = files.tokenizer.token_bytes(token);
            format!("{token:>7}  {:?}", String::from_utf8_lossy(bytes))
        })
        .collect();
    let report = TokenizeReport {
        schema_version: SCHEMA_VERSION,
        model: model.display().to_string(),
        tokens,
    };
    output::result(Format::of(args.json), &report, &text.join("\n"))?;
    Ok(Verdict::Pass)
}
