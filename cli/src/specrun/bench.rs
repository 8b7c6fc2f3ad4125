//! `specrun bench`: what passes cost, and when drafting pays.

use std::fmt::{self, Display};

use runner::bench::{BenchConfig, bench};
use runner::load::Opened;
use schemas::report::{BenchReport, Verdict};

use super::model::ModelArgs;
use crate::output::{self, Format};

/// Measure what a pass over 1 to 32 tokens costs, and how many drafted tokens must be accepted
///
/// A draft of n tokens is checked by one pass over n + 1. Where such a pass costs r times a pass
/// over one token, drafting pays if more than r - 1 draft tokens are accepted a pass, and what the
/// drafter takes besides.
///
/// Example: specrun bench -m model.gguf -t 2
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the prompt that is read before
    #[arg(short = 'p', long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..))]
    n_prompt: u16,
    /// Widest pass
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u8).range(1..=64))]
    width: u8,
    /// Rounds that the times are medians of
    #[arg(short, long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..))]
    repetitions: u16,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let backend = args.model.backend()?;
    let config = BenchConfig {
        n_prompt: args.n_prompt.into(),
        n_width: args.width.into(),
        n_rounds: args.repetitions.into(),
        n_threads: backend.threads(),
    };
    let report = bench(&backend, &Opened::new(&args.model.model)?, &config)?;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(Verdict::Pass)
}

/// The report as people read it.
struct Text<'a>(&'a BenchReport);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        writeln!(f, "{}, {}, {} threads", r.model, r.backend, r.n_threads)?;
        writeln!(
            f,
            "prefill {:.1} tokens/s over {} tokens, decode {:.1} tokens/s at {:.1} GB/s of weights",
            r.prefill_tokens_per_s, r.n_prompt, r.decode_tokens_per_s, r.decode_gigabytes_per_s
        )?;
        write!(
            f,
            "tokens  pass ms  T(n)/T(1)  accepted tokens to break even"
        )?;
        for w in &r.widths {
            write!(
                f,
                "\n{:>6}  {:>7.2}  {:>9.2}  {:>29.2}",
                w.n_tokens, w.pass_ms, w.ratio, w.break_even_accepted
            )?;
        }
        Ok(())
    }
}
