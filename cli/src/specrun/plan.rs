//! `specrun plan`: the memory that a run would need.

use std::fmt::{self, Display};

use runner::model_files::Files;
use runner::run_config::RunConfig;
use schemas::report::{PlanPart, PlanReport, Rollback, Verdict};
use verify::memory_plan::{memory_plan, total};

use super::device::on_device;
use super::model::{ContextArgs, ModelArgs, ParallelArgs, SpecArgs};
use crate::output::{self, Format, count};

/// Print the memory that a run needs, without loading the model
///
/// Covers weights, KV caches, recurrent states including those kept for rollback, activations and
/// logits, for the target and for each speculator. The exit code is 1 if the run does not fit in free
/// memory.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    parallel: ParallelArgs,
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
        n_seq: args.parallel.n_seq(),
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
    ("KV cache", |part| part.kv_bytes),
    ("recurrent states", |part| part.state_bytes),
    ("states for rollback", |part| part.kept_state_bytes),
    ("checkpoints", |part| part.checkpoint_bytes),
    ("pending hidden states", |part| part.hidden_bytes),
    ("activations", |part| part.activation_bytes),
    ("logits", |part| part.logit_bytes),
    ("n-gram tables", |part| part.table_bytes),
    ("total", total),
];

/// Formats bytes as MiB.
fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let (sequences, n_ctx) = (count(r.n_seq, "sequence"), r.n_ctx);
        writeln!(
            f,
            "{}: {sequences}, {n_ctx} tokens of context each; memory in MiB\n",
            r.model
        )?;
        write!(f, "{:<26}", "")?;
        for name in r.parts.iter().map(|part| &part.name[..]).chain(["total"]) {
            write!(f, " {name:>13}")?;
        }
        let is_used = |(_, bytes): &Row| r.parts.iter().any(|part| bytes(part) > 0);
        for (title, bytes) in ROWS.into_iter().filter(is_used) {
            write!(f, "\n{title:<26}")?;
            let parts = r.parts.iter().map(bytes);
            let sum = parts.clone().fold(0, u64::saturating_add);
            for bytes in parts.chain([sum]) {
                write!(f, " {:>13}", mib(bytes))?;
            }
        }
        writeln!(f, "\n")?;
        for p in &r.parts {
            if let Some(rollback) = p.rollback {
                writeln!(f, "{}: {}", p.name, rollback_text(p, rollback))?;
            }
        }
        let free = r.free_bytes.map_or("an unknown amount".to_owned(), mib);
        write!(f, "\n{} needed, {free} free", mib(r.total_bytes))
    }
}

/// Describes how a rejected draft is rolled back, and why.
fn rollback_text(part: &PlanPart, rollback: Rollback) -> String {
    let (n_max, n_states) = (part.n_draft_max, part.n_kept_states);
    match rollback {
        Rollback::Truncation => {
            "drafts are rolled back by truncating the KV cache; no layer is recurrent".to_owned()
        }
        Rollback::States => format!(
            "drafts of up to {n_max} tokens are rolled back to a recurrent state that is kept for each \
             token; these states take at most a quarter of the size of the weights"
        ),
        Rollback::Checkpoint if n_states == 0 => format!(
            "drafts of up to {n_max} tokens are rolled back to a checkpoint, and the tokens after it are \
             evaluated again; states for each token would take over a quarter of the size of the weights"
        ),
        Rollback::Checkpoint => format!(
            "drafts of up to {n_states} tokens are rolled back to a recurrent state that is kept for each \
             token; longer ones, of up to {n_max} tokens, to a checkpoint, and the tokens after it are \
             evaluated again; more states would take over a quarter of the size of the weights"
        ),
    }
}
