//! `specrun verify`: proves that speculation changes nothing but the speed, and that it drafts.

use std::fmt::{self, Display};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use runner::VerifyConfig;
use runner::prompts::{self, Prompt};
use schemas::report::{SpeculatorVerdict, Verdict, VerifyReport, VerifyRun};

use super::generate::N_PREDICT;
use super::model::{ModelArgs, SampleArgs, SpecArgs};
use crate::output::{self, Format, PendingFile};

/// Prove that speculation changes nothing but the speed, and that it drafts
///
/// Each prompt is decoded without drafts, then under each speculator by itself; without
/// --spec-type under the one that the files make possible. Tokens must be equal, and
/// the logits of every committed position bit-identical. A dead or wrongly grafted head would
/// pass that, so acceptance must reach a floor: --min-accept for all, else at the first draft
/// position 0.4 for draft-mtp and 0.3 for draft-eagle3. Exits with 1 if a check fails, and names it.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    spec: SpecArgs,
    /// File of prompts: JSON lines with id, prompt, and if wanted kind and n_predict
    /// [default: ten built-in prompts]
    #[arg(short = 'f', long, value_name = "FILE.jsonl")]
    prompts: Option<PathBuf>,
    /// Tokens to write at most [default: a prompt's own n_predict, else 128]
    #[arg(short, long, value_name = "N", visible_alias = "predict")]
    n_predict: Option<NonZeroUsize>,
    /// Acceptance that every speculator must reach over all drafted tokens
    #[arg(long, value_name = "R", value_parser = acceptance)]
    min_accept: Option<f64>,
    #[command(flatten)]
    sample: SampleArgs,
    /// Prompts to decode at once; -np for short
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    parallel: u16,
    /// Also write the result to a file, as JSON
    #[arg(long, value_name = "OUT.json")]
    report: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn acceptance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

/// Prompts of the bundled models, for whoever brings none.
const PROMPTS: &str = include_str!("../../../models/prompts.jsonl");

/// The built-in prompts.
pub(crate) fn built_in_prompts() -> anyhow::Result<Vec<Prompt>> {
    Ok(prompts::parse(Path::new("built-in prompts"), PROMPTS)?)
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let mut prompts = match &args.prompts {
        Some(path) => prompts::read(path)?,
        None => built_in_prompts()?,
    };
    for prompt in &mut prompts {
        prompt.n_predict = args.n_predict.or(prompt.n_predict);
    }
    let spec_types = args.spec.spec_types()?;
    ensure!(
        spec_types.as_ref().is_none_or(|types| !types.is_empty()),
        "--spec-type none: expected a speculator to verify"
    );
    let config = VerifyConfig {
        model: args.model.model.clone(),
        drafts: args.spec.drafts(),
        spec_types: spec_types.unwrap_or_default(),
        n_parallel: usize::from(args.parallel).min(prompts.len()),
        prompts,
        n_predict: N_PREDICT,
        chain: args.spec.chain(),
        min_accept: args.min_accept,
        sample: args.sample.config(),
    };
    let inputs = [&config.model].into_iter().chain(config.drafts.paths());
    let inputs: Vec<&Path> = inputs.chain(&args.prompts).map(PathBuf::as_path).collect();
    let file = args
        .report
        .as_ref()
        .map(|path| PendingFile::new(path, &inputs));
    let file = file.transpose()?;
    let report = runner::verify(&args.model.backend()?, &config)?;
    if let Some(file) = file {
        file.finish(serde_json::to_string_pretty(&report)? + "\n")?;
    }
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(report.verdict)
}

/// The report as people read it.
struct Text<'a>(&'a VerifyReport);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let name = |run: &VerifyRun| format!("{} {}", run.prompt_id, run.speculator);
        let width = r.runs.iter().map(|run| name(run).len()).max().unwrap_or(0);
        writeln!(
            f,
            "{:<width$}  tokens  logits  written  drafted  accepted   rate  tokens/pass  last logits",
            "prompt"
        )?;
        for run in &r.runs {
            let c = &run.counters;
            writeln!(
                f,
                "{:<width$}  {:<6}  {:<6}  {:>7}  {:>7}  {:>8}  {:>5}  {:>11}  {}",
                name(run),
                same(run.tokens_identical),
                same(run.logits_identical),
                c.n_tokens,
                c.n_drafted,
                c.n_accepted,
                ratio(c.acceptance, 3),
                ratio(c.tokens_per_target_pass, 2),
                run.last_logits_hash
            )?;
        }
        r.speculators
            .iter()
            .try_for_each(|speculator| totals(f, speculator))?;
        for check in &r.failed {
            let prompt = check.prompt_id.iter();
            let prompt: String = prompt.map(|id| format!(", prompt {id}")).collect();
            let kind = format!("{:?}", check.check).to_lowercase();
            writeln!(
                f,
                "\nFAILED {kind}, {}{prompt}: {}",
                check.speculator, check.message
            )?;
        }
        write!(f, "\nverdict: {}", verdict(r.verdict))
    }
}

/// Places in the draft that the text shows; the report has all.
const MAX_PLACES: usize = 8;

fn totals(f: &mut fmt::Formatter<'_>, s: &SpeculatorVerdict) -> fmt::Result {
    let c = &s.counters;
    writeln!(
        f,
        "\n{}: {} of {} prompts identical, {}",
        s.name,
        s.n_identical,
        s.n_prompts,
        verdict(s.verdict)
    )?;
    writeln!(
        f,
        "  drafted {}, accepted {}, acceptance {}, {} tokens/pass, {} tok/s",
        c.n_drafted,
        c.n_accepted,
        ratio(c.acceptance, 3),
        ratio(c.tokens_per_target_pass, 2),
        ratio(c.tokens_per_s, 1)
    )?;
    let places = c.by_draft_position.iter().take(MAX_PLACES);
    let places: Vec<String> = places.map(|place| ratio(place.acceptance, 3)).collect();
    let more = match c.by_draft_position.len() > MAX_PLACES {
        true => " ...",
        false => "",
    };
    let places = places.join(" ");
    writeln!(f, "  acceptance by draft position: {places}{more}")?;
    let lengths = c.accepted_lengths.iter().enumerate();
    let lengths = lengths.filter(|&(_, &n)| n > 0);
    let lengths: Vec<String> = lengths.map(|(k, n)| format!("{k}: {n}")).collect();
    writeln!(f, "  passes by accepted tokens: {}", lengths.join(", "))?;
    if let Some(floor) = &s.floor {
        let held = match s.floor_held {
            true => "held",
            false => "missed",
        };
        writeln!(
            f,
            "  floor {:.3}, found {}: {held}",
            floor.acceptance,
            ratio(floor.measured, 3)
        )?;
    }
    Ok(())
}

fn same(identical: bool) -> &'static str {
    match identical {
        true => "same",
        false => "DIFFER",
    }
}

pub(crate) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail => "FAIL",
    }
}

/// A number with that many digits behind the point, or a dash.
pub(crate) fn ratio(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}
