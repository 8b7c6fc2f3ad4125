//! `specrun perplexity`: the perplexity of a text.

use std::fmt::{self, Display};
use std::path::PathBuf;

use anyhow::Context as _;
use runner::model_files::{DraftFiles, Files};
use schemas::input;
use schemas::report::{PerplexityReport, Verdict};
use verify::perplexity::perplexity;

use super::device::on_device;
use super::model::{ModelArgs, SpecialArgs};
use crate::output::{self, Format};

/// Measure the perplexity of a text
///
/// Computed as by llama-perplexity: over complete chunks, scoring the second half of each.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text file
    #[arg(short, long, value_name = "TEXT.txt")]
    file: PathBuf,
    /// Context size in tokens, at least 4: the text is scored in chunks of this length
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    ctx_size: u32,
    /// Maximum number of chunks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    #[command(flatten)]
    special: SpecialArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let path = args.file.display();
    let text = input::read_text(&args.file, input::Kind::Stream, input::MAX_WHOLE);
    let text = text.with_context(|| path.to_string())?;
    let files = Files::open(args.model.path()?, &DraftFiles::default())?;
    let tokens = files.tokenizer.encode(&text, args.special.config());
    let bos = files.tokenizer.bos();
    let mut text = verify::perplexity::Text {
        name: path.to_string(),
        // The text begins with BOS only if the model requires it.
        bos: bos.filter(|bos| tokens.first() == Some(bos)),
        tokens,
    };
    let n_ctx = args.ctx_size as usize;
    if let Some(n) = args.chunks {
        text.tokens.truncate(n as usize * n_ctx);
    }
    let (device, types) = (args.model.device()?, args.model.caches.types());
    let report = on_device!(&device, backend => {
        perplexity(backend, &files.model, &text, n_ctx, types).map_err(Into::into)
    })?;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(Verdict::Pass)
}

/// Text output of the report.
struct Text<'a>(&'a PerplexityReport);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        write!(
            f,
            "perplexity {:.4} +/- {:.4} over {} tokens in {} chunks of {}",
            r.perplexity, r.standard_error, r.n_scored, r.n_chunks, r.n_ctx
        )
    }
}
