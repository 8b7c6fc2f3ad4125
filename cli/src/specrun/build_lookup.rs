//! `specrun build-lookup`: n-gram counts of a corpus, for the speculator `ngram-cache`.

use std::fmt;
use std::path::PathBuf;

use anyhow::Context;
use runner::model_files::{DraftFiles, Files};
use runner::speculate::lookup::{Lookup, MAX_LEN, STATIC_LEN};
use runner::tokenizer::EncodeConfig;
use schemas::input;
use schemas::outfile::OutputNames;
use schemas::report::{BuildLookupReport, SCHEMA_VERSION, Verdict};

use super::model_file::ModelFlag;
use crate::output::{self, Format};
use crate::report_file::{self, OverwriteArgs, ReportFile};

/// Count n-grams of texts for the speculator ngram-cache
///
/// Writes a file for --lookup-cache-static: the tokens that follow each pair of tokens. With --dynamic,
/// a file for --lookup-cache-dynamic: the tokens that follow one to four tokens. llama.cpp reads both.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelFlag,
    /// File to write
    #[arg(short, long, value_name = "OUT.lookup")]
    outfile: PathBuf,
    /// Write a dynamic lookup file: counts after one to four tokens
    #[arg(long)]
    dynamic: bool,
    /// Lookup file whose counts are added to the result
    #[arg(long, value_name = "FILE.lookup")]
    add: Option<PathBuf>,
    /// Text files; n-grams do not cross file boundaries
    #[arg(required = true, value_name = "TEXT")]
    texts: Vec<PathBuf>,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let model = args.model.path()?;
    let inputs = args.add.iter().chain(&args.texts).map(PathBuf::as_path);
    let mut names = OutputNames::new([model].into_iter().chain(inputs), args.overwrite.existing());
    let file = ReportFile::regular(&args.outfile, &mut names)?;
    let files = Files::open(model, &DraftFiles::default())?;
    let n_vocab = files.model.hparams.n_vocab as usize;
    let mut lookup = match &args.add {
        Some(path) => Lookup::read(path, n_vocab)?,
        None => Lookup::default(),
    };
    let (min_len, max_len) = if args.dynamic {
        (1, MAX_LEN)
    } else {
        (STATIC_LEN, STATIC_LEN)
    };
    // The corpus is tokenized unmodified, without the special tokens of a prompt.
    let encode = EncodeConfig {
        add_special: false,
        parse_special: true,
    };
    let mut n_tokens = 0;
    for path in &args.texts {
        let text = input::read(path, input::Kind::Stream, input::MAX_WHOLE);
        let text = text.with_context(|| path.display().to_string())?;
        let text = String::from_utf8_lossy(&text);
        let tokens = files.tokenizer.encode(&text, encode);
        lookup.count(&tokens, 0, min_len..=max_len);
        n_tokens += tokens.len() as u64;
    }
    let bytes = lookup.to_bytes();
    let report = BuildLookupReport {
        schema_version: SCHEMA_VERSION,
        model: model.display().to_string(),
        output: args.outfile.display().to_string(),
        size_bytes: bytes.len() as u64,
        lengths: [min_len as u32, max_len as u32],
        n_texts: args.texts.len() as u64,
        n_tokens,
        n_ngrams: lookup.len() as u64,
    };
    report_file::publish(vec![(file, bytes)])?;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(Verdict::Pass)
}

struct Text<'a>(&'a BuildLookupReport);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let size = output::bytes(r.size_bytes);
        write!(
            f,
            "wrote {}: {size}, {} n-grams from {} tokens of {} texts",
            r.output, r.n_ngrams, r.n_tokens, r.n_texts
        )
    }
}
