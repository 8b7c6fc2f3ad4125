//! `specrun logits`: the logits after each token.

use std::fmt::{self, Write};
use std::path::PathBuf;

use anyhow::{bail, ensure};
use runner::batch::NO_TOKEN;
use runner::model_files::{DraftFiles, Files};
use runner::speculate::Request;
use runner::tokenizer::Tokenizer;
use schemas::report::{LogitsReport, Verdict};
use verify::logits::logits;
use verify::prompts;

use super::device::on_device;
use super::model::{ModelArgs, SpecialArgs, TextArgs, unexpected};
use super::tokenize::shown_token;
use crate::output::{self, Format};

/// Show the largest logits after each token
///
/// --verbose adds a hash of all logits of a position. Equal hashes of two runs mean bit-identical logits.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// File with one prompt as a line of JSON, with prompt or parts (texts and files of embeddings)
    #[arg(short = 'f', long, visible_alias = "file", value_name = "FILE", conflicts_with_all = ["text", "prompt", "tokens"])]
    prompts: Option<PathBuf>,
    #[command(flatten)]
    special: SpecialArgs,
    /// Number of logits to show per position
    #[arg(long, value_name = "K", default_value_t = 8)]
    top: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let files = Files::open(args.model.path()?, &DraftFiles::default())?;
    let request = request(args, &files)?;
    let prompt = request.prompt();
    ensure!(!prompt.is_empty(), "the prompt has no tokens");
    let (device, types) = (args.model.device()?, args.model.caches.types());
    let report = on_device!(&device, backend => {
        logits(backend, &files.model, prompt, args.top, types).map_err(Into::into)
    })?;
    output::result(
        Format::of(args.json),
        &report,
        &Text(&report, &files.tokenizer),
    )?;
    Ok(Verdict::Pass)
}

/// Returns the prompt: the only one of a file, or a text.
fn request(args: &Args, files: &Files) -> anyhow::Result<Request> {
    let special = &args.special;
    let Some(path) = &args.prompts else {
        let tokens = args.text.encode(args.model.target(), files, special)?;
        return Ok(Request::new("", tokens, 0));
    };
    if let Some(spare) = args.model.target().spare_argument() {
        return Err(unexpected(spare).into());
    }
    let prompts = prompts::read(path)?;
    let [prompt] = prompts.as_slice() else {
        bail!(
            "{}: {} prompts, expected one",
            path.display(),
            prompts.len()
        );
    };
    Ok(prompt.request_of(&files.tokenizer, special.config(), 0))
}

/// One line per position: the token, and the likeliest next tokens with their logits.
struct Text<'a>(&'a LogitsReport, &'a Tokenizer);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.0.tokens.iter().zip(&self.0.positions).enumerate();
        for (position, (token, logits)) in rows {
            if position > 0 {
                f.write_char('\n')?;
            }
            match *token {
                NO_TOKEN => write!(f, "{position:>5} {:>7} embedding", "")?,
                token => write!(f, "{position:>5} {}", shown_token(self.1, token))?,
            }
            if output::is_verbose() {
                write!(f, "  {}", logits.logits_hash)?;
            }
            for top in &logits.top {
                write!(f, "  {} {:.4}", shown_token(self.1, top.id), top.logit)?;
            }
        }
        Ok(())
    }
}
