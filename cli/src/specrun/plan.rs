//! `specrun plan`: the memory that a run would need.

use std::fmt::{self, Display};

use runner::model_files::Files;
use runner::run_config::RunConfig;
use schemas::report::{PlanPart, PlanReport, Rollback, Verdict};
use verify::memory_plan::{memory_plan, total};

use super::device::on_device;
use super::model::{ContextArgs, ModelArgs, SpecArgs};
use crate::output::{self, Format};

/// Print the memory that a run needs, without loading the model
///
/// Covers weights, KV caches, recurrent states including those kept for rollback, activations and
/// logits, for the target and for each speculator. Exit code 1: more than the free memory is needed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: specrun plan -m model.gguf --spec-type draft-mtp,ngram-mod -c 8192 -np 4"
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    context: ContextArgs,
    /// Number of parallel sequences [short: -np]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_N_PARALLEL", hide_env_values = true, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    parallel: u16,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let files = Files::open(args.model.path()?, &args.spec.drafts()?)?;
    let n_ctx_train = files.model.hparams.n_ctx_train as usize;
    let config = RunConfig {
        spec_types: match args.spec.spec_types()? {
            Some(spec_types) => spec_types,
            None => files.default_spec_types(),
        },
        policy: args.spec.policy,
        drafting: args.spec.drafting()?,
        n_seq: args.parallel.into(),
        caches: args.spec.caches(&args.model.caches),
        n_ctx: args.context.n_ctx_max().unwrap_or(n_ctx_train),
    };
    let device = args.model.device()?;
    let report = on_device!(&device, backend => {
        memory_plan(&**backend, &files, &config).map_err(Into::into)
    })?;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(Verdict::of(report.fits != Some(false)))
}

/// Text output of the report.
struct Text<'a>(&'a PlanReport);

/// A table row: its title, and the bytes of a part.
type Row = (&'static str, fn(&PlanPart) -> u64);

const ROWS: [Row; 10] = [
    ("weights", |part| part.weight_bytes),
    ("keys and values", |part| part.kv_bytes),
    ("newest recurrent states", |part| part.state_bytes),
    ("states kept behind them", |part| part.kept_state_bytes),
    ("checkpoints", |part| part.checkpoint_bytes),
    ("hidden states for drafts", |part| part.hidden_bytes),
    ("activations of a pass", |part| part.activation_bytes),
    ("logits of a pass", |part| part.logit_bytes),
    ("tables of n-grams", |part| part.table_bytes),
    ("all", total),
];

/// Formats bytes as MiB.
fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let (n_seq, n_ctx) = (r.n_seq, r.n_ctx);
        writeln!(
            f,
            "{}: {n_seq} sequence(s) of {n_ctx} positions; memory in MiB\n",
            r.model
        )?;
        write!(f, "{:<26}", "")?;
        for name in r.parts.iter().map(|part| &part.name[..]).chain(["all"]) {
            write!(f, " {name:>13}")?;
        }
        let is_taken = |(_, bytes): &Row| r.parts.iter().any(|part| bytes(part) > 0);
        for (what, bytes) in ROWS.into_iter().filter(is_taken) {
            write!(f, "\n{what:<26}")?;
            let parts = r.parts.iter().map(bytes);
            let sum = parts.clone().fold(0, u64::saturating_add);
            for bytes in parts.chain([sum]) {
                write!(f, " {:>13}", mib(bytes))?;
            }
        }
        writeln!(f, "\n")?;
        for p in &r.parts {
            if let Some(rollback) = p.rollback {
                writeln!(f, "{}: {}", p.name, way_back(p, rollback))?;
            }
        }
        let free = r.free_bytes.map_or("an unknown amount".to_owned(), mib);
        write!(f, "\n{} needed, {free} free", mib(r.total_bytes))
    }
}

/// Describes how a rejected draft is rolled back, and why.
fn way_back(part: &PlanPart, rollback: Rollback) -> String {
    let longest = part.n_draft_max;
    match rollback {
        Rollback::Truncation => {
            "drafts are taken back by forgetting keys and values, as no layer is recurrent"
                .to_owned()
        }
        Rollback::States => format!(
            "drafts are taken back to a state kept for each of their {longest} tokens, which takes \
             no more than a quarter of the weights"
        ),
        Rollback::Checkpoint => format!(
            "{} states are kept, as more would take over a quarter of the weights; of drafts of up \
             to {longest} tokens, the tokens behind a checkpoint are run again where that is too few",
            part.n_kept_states
        ),
    }
}
