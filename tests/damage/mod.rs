//! Tests of `verify` on damaged copies of the bundled files, each with the check that must detect
//! the damage. docs/verify.md has the table.

mod assistants;
mod blocks;
mod chained;
mod edit;
mod kinds;
mod streams;

use std::fmt::Write;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use kernels::cpu::{Cpu, CpuConfig};
use rayon::prelude::*;
use runner::model_files::DraftFiles;
use runner::run_config::RunCaches;
use runner::sample::SampleConfig;
use runner::speculate::{DraftConfig, Policy};
use schemas::gguf::open;
use schemas::report::{Check, Counters, VerifyReport};
use verify::checks::{Baseline, InvarianceConfig, Tolerances};
use verify::prompts::{self, Prompt};
use verify::{DecodeOptions, Error, Machine, Stage, VerifyConfig, verify};

use crate::run::dequantized;
use crate::util::{Dir, bundled, reference, root};
use edit::{add_noise, each};
use kinds::{Draft, Files, Finder, Kind};

/// Number of prompts on which damage is measured, and tokens generated for each.
const N_PROMPTS: usize = 5;
const N_PREDICT: usize = 40;
/// Decrease of the acceptance rate at the first draft position that is too small to matter.
const FEW_POINTS: f64 = 0.05;
/// The lines of the document before and after the table.
const MARKS: [&str; 2] = ["<!-- table of damage -->", "<!-- end of the table -->"];
const PREDICTION_MARKS: [&str; 2] = ["<!-- predictions -->", "<!-- end of the predictions -->"];

/// Healthy files, and their report with each draft.
struct Healthy {
    dir: Dir,
    files: Files,
    prompts: Vec<Prompt>,
    reports: Vec<(Draft, VerifyReport)>,
}

impl Healthy {
    /// Prepares healthy files and reports for a number of prompts and of tokens per prompt.
    fn new(n_prompts: usize, n_predict: usize) -> Healthy {
        let dir = Dir::new();
        let (target, qwen3) = (bundled("tiny-qwen35-mtp"), reference("qwen3"));
        let convert = |checkpoint: &Path, target: Option<&Path>| {
            let name = checkpoint.file_name().unwrap().to_str().unwrap();
            let of_target = target.map(|path| ["--target-model-dir", path.to_str().unwrap()]);
            let flags = of_target.as_ref().map_or(&[][..], |flags| flags);
            open(&dir.convert(checkpoint, &format!("{name}.gguf"), flags)).unwrap()
        };
        let deepseek4 = |name: &str, flags: &[&str]| {
            let file = dir.convert(&reference("deepseek4-mtp"), name, flags);
            open(&dequantized(&dir, &file)).unwrap()
        };
        let assistant = bundled("tiny-gemma4-assistant");
        let files = Files {
            target: convert(&target, None),
            draft: convert(&bundled("tiny-draft"), None),
            eagle3: convert(&bundled("tiny-eagle3"), Some(&target)),
            dflash: convert(&bundled("tiny-dflash"), Some(&target)),
            qwen3: convert(&qwen3, None),
            dspark: convert(&reference("dspark-qwen3"), Some(&qwen3)),
            step35: convert(&reference("step35"), None),
            mimo2: convert(&reference("mimo2"), None),
            deepseek4: deepseek4("deepseek4.gguf", &[]),
            deepseek4_head: deepseek4("deepseek4-head.gguf", &["--mtp"]),
            gemma4: convert(&bundled("tiny-gemma4"), None),
            assistant: open(&dir.convert(&assistant, "assistant.gguf", &["--no-clusters"]))
                .unwrap(),
            clusters: convert(&assistant, None),
        };
        let mut prompts = prompts::read(&root().join("models/prompts.jsonl")).unwrap();
        // The first prompts are long; the rotation selects prompts of all kinds.
        prompts.rotate_left(4);
        prompts.truncate(n_prompts);
        for prompt in &mut prompts {
            prompt.n_predict = NonZeroUsize::new(n_predict);
        }
        let mut healthy = Healthy {
            dir,
            files,
            prompts,
            reports: Vec::new(),
        };
        let report = |&draft: &Draft| {
            let name = format!("healthy{draft:?}");
            let report = healthy.verify(&healthy.files, draft, &name, &STAGES);
            (draft, report.expect("the healthy files run"))
        };
        healthy.reports = Draft::ALL.par_iter().map(report).collect();
        healthy
    }

    fn report(&self, draft: Draft) -> Option<&VerifyReport> {
        let found = self.reports.iter().find(|(of, _)| *of == draft);
        found.map(|(_, report)| report)
    }

    /// Verifies files, compared with the report of the healthy ones if there is one.
    fn verify(
        &self,
        files: &Files,
        draft: Draft,
        name: &str,
        stages: &[Stage],
    ) -> Result<VerifyReport, Error> {
        let name: String = name.chars().filter(|c| c.is_alphanumeric()).collect();
        let write = |part: &str, plan| self.dir.gguf(&format!("{name}-{part}.gguf"), plan);
        let (spec_type, baseline) = (draft.spec_type(), self.report(draft));
        let model = write("target", draft.target(files));
        let draft = draft.file(files).map(|plan| write("draft", plan));
        let baseline = baseline.map(|report| Baseline {
            path: "healthy".into(),
            report: report.clone(),
            tolerances: Tolerances {
                speed: 0.0,
                // All files have the same element type, so undamaged ones generate the same text.
                text: 0.0,
                ..Tolerances::DEFAULT
            },
        });
        let config = VerifyConfig {
            model: model.clone(),
            drafts: DraftFiles {
                models: draft.iter().cloned().collect(),
                ..DraftFiles::default()
            },
            spec_types: Some(vec![spec_type]),
            prompts: self.prompts.clone(),
            n_predict: 1,
            options: DecodeOptions {
                drafting: DraftConfig::of_length(3),
                policy: Policy::First,
                n_parallel: 1,
                n_ctx_max: None,
                sample: SampleConfig::GREEDY,
                caches: RunCaches::default(),
            },
            matrix: None,
            min_accept: None,
            min_drafted: 0,
            min_speedup: None,
            invariance: InvarianceConfig::QUICK,
            unit: None,
            stop: || false,
            text: None,
            surface: None,
            stages: stages.to_vec(),
            baseline,
        };
        let cpu = Cpu::new(CpuConfig {
            threads: 1,
            ..CpuConfig::default()
        });
        let machine = Machine {
            backend: Arc::new(cpu.unwrap()),
            n_threads: 1,
        };
        let report = verify(&machine, &[], &config);
        for path in draft.iter().chain([&model]) {
            fs::remove_file(path).unwrap();
        }
        report
    }

    fn damaged(&self, kind: &Kind) -> Files {
        let mut files = self.files.clone();
        (kind.damage)(&mut files);
        files
    }

    /// Runs all checks on one kind of damage.
    fn judge(&self, kind: &Kind) -> Result<VerifyReport, Error> {
        self.verify(&self.damaged(kind), kind.draft, kind.name, &PREDICTED)
    }

    /// Decodes with damaged files that the preflight check may reject; `None` if they do not run.
    fn decode(&self, kind: &Kind, judged: &Result<VerifyReport, Error>) -> Option<VerifyReport> {
        let measured = judged.as_ref().ok();
        match measured.filter(|report| report.baseline.is_some()) {
            Some(report) => Some(report.clone()),
            None => {
                let files = self.damaged(kind);
                self.verify(&files, kind.draft, kind.name, &PREDICTED[1..])
                    .ok()
            }
        }
    }
}

impl Effect {
    fn of(report: &VerifyReport) -> Option<Effect> {
        let baseline = report.baseline.as_ref()?;
        Some(Effect {
            acceptance: first_place(report).unwrap_or(0.0),
            n_other_text: baseline.n_prompts - baseline.n_same_text,
            divergence: baseline.measures[0].found,
        })
    }
}

/// The stages that find damage: all except the invariance of logits, which no file can break, and the speed.
const STAGES: [Stage; 3] = [Stage::Preflight, Stage::Identity, Stage::Acceptance];
/// The same, with the predicted acceptance.
const PREDICTED: [Stage; 4] = [
    Stage::Preflight,
    Stage::Identity,
    Stage::Acceptance,
    Stage::Agreement,
];

struct Effect {
    acceptance: f64,
    n_other_text: u64,
    divergence: f64,
}

/// Returns the acceptance rate at the first draft position.
fn first_place(report: &VerifyReport) -> Option<f64> {
    report
        .speculators
        .first()?
        .counters
        .by_draft_position
        .first()?
        .acceptance
}

/// Returns the check that detected the damage, and its message.
fn finder(result: &Result<VerifyReport, Error>) -> (Finder, String) {
    let report = match result {
        Err(error) => return (Finder::Refused(""), error.to_string()),
        Ok(report) => report,
    };
    let Some(failed) = report.failed.first() else {
        return (Finder::Nothing, String::new());
    };
    let found = match failed.check {
        Check::Fit => Finder::Fit(report.fit.as_ref().expect("it failed").findings[0].cause),
        Check::Acceptance => Finder::Acceptance,
        Check::Baseline if failed.message.starts_with("share of prompts") => Finder::OtherText,
        Check::Baseline => Finder::Baseline,
        other => panic!("{other:?} failed: {}", failed.message),
    };
    (found, failed.message.clone())
}

fn is_as_said(said: Finder, found: Finder, message: &str) -> bool {
    match (said, found) {
        (Finder::Refused(text), Finder::Refused(_)) => message.contains(text),
        _ => said == found,
    }
}

#[test]
fn every_kind_of_damage_is_found() {
    let healthy = Healthy::new(N_PROMPTS, N_PREDICT);
    let kinds = kinds::all();
    assert!(kinds.len() > 40, "only {} kinds", kinds.len());
    let judged: Vec<_> = kinds.par_iter().map(|kind| healthy.judge(kind)).collect();
    let wrong: Vec<String> = kinds
        .iter()
        .zip(&judged)
        .filter_map(|(kind, result)| {
            let (found, message) = finder(result);
            // Damage that passes all checks must have almost no effect.
            let before = healthy
                .report(kind.draft)
                .and_then(first_place)
                .unwrap_or(0.0);
            let fall = result
                .as_ref()
                .ok()
                .and_then(first_place)
                .map(|now| before - now);
            let is_harmless = fall.is_none_or(|fall| fall < FEW_POINTS);
            let passes = matches!(found, Finder::Nothing | Finder::OtherText);
            let is_right = is_as_said(kind.found_by, found, &message) && (!passes || is_harmless);
            let said = kind.found_by;
            let name = kind.name;
            (!is_right)
                .then(|| format!("{name}: {said:?}, found by {found:?}: {message} ({fall:?})"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let ran = kinds.iter().zip(&judged);
    let ran = ran.filter_map(|(kind, result)| prediction(kind, result.as_ref().ok()?));
    let ran: Vec<Prediction> = ran.collect();
    assert!(ran.len() > 20, "only {} kinds run", ran.len());
    for values in [first_position, tokens_per_pass] {
        let found = quality(&ran, values);
        assert!(found.0 > 0.98, "{found:?}");
    }
}

/// The acceptance of a damaged file: predicted from drafts at every position, and measured by decoding.
struct Prediction {
    kind: &'static str,
    /// Acceptance at the first draft position.
    first: [f64; 2],
    tokens_per_pass: [f64; 2],
}

/// Returns the prediction of a report; `None` if nothing was decoded.
fn prediction(kind: &Kind, report: &VerifyReport) -> Option<Prediction> {
    let found = report.agreement.as_ref()?.speculators.first()?;
    let measured = &report.speculators.first()?.counters;
    let decoded = found.decoded.as_ref()?;
    // Decoding would have counted the same, for any damage.
    let counts = |c: &Counters| (c.n_target_passes, c.n_drafted, c.by_draft_position.clone());
    assert_eq!(counts(decoded), counts(measured), "{}", kind.name);
    let first = found.by_draft_position.first()?.acceptance?;
    Some(Prediction {
        kind: kind.name,
        first: [first, first_place(report)?],
        tokens_per_pass: [
            found.tokens_per_target_pass?,
            measured.tokens_per_target_pass?,
        ],
    })
}

/// Returns the correlation of predictions with measurements, and the prediction with the largest error.
fn quality(
    found: &[Prediction],
    values: impl Fn(&Prediction) -> [f64; 2],
) -> (f64, f64, &'static str) {
    let pairs: Vec<[f64; 2]> = found.iter().map(&values).collect();
    let n = pairs.len() as f64;
    let mean = |side: usize| pairs.iter().map(|pair| pair[side]).sum::<f64>() / n;
    let means = [mean(0), mean(1)];
    let sum = |a: usize, b: usize| -> f64 {
        let product = |pair: &[f64; 2]| (pair[a] - means[a]) * (pair[b] - means[b]);
        pairs.iter().map(product).sum()
    };
    let correlation = sum(0, 1) / (sum(0, 0) * sum(1, 1)).sqrt();
    let error = |p: &Prediction| {
        let [predicted, measured] = values(p);
        (predicted - measured).abs()
    };
    let worst = found.iter().max_by(|a, b| error(a).total_cmp(&error(b)));
    let worst = worst.expect("a prediction");
    (correlation, error(worst), worst.kind)
}

fn first_position(prediction: &Prediction) -> [f64; 2] {
    prediction.first
}

fn tokens_per_pass(prediction: &Prediction) -> [f64; 2] {
    prediction.tokens_per_pass
}

/// Adds slight noise from `n` seeds to the head and returns the number of heads that pass.
fn noisy_heads_that_pass(healthy: &Healthy, n: u64) -> u64 {
    let passes = |seed: &u64| {
        let mut files = healthy.files.clone();
        let is_matrix = |name: &str| name.starts_with("blk.4.") && !name.contains("norm");
        each(&mut files.target, is_matrix, |x, _| {
            add_noise(x, 0.02, 100 + seed)
        });
        let result = healthy.verify(&files, Draft::Mtp, &format!("noise{seed}"), &STAGES);
        finder(&result).0 == Finder::Nothing
    };
    (0..n).into_par_iter().filter(passes).count() as u64
}

#[test]
fn heads_with_a_little_noise_pass() {
    assert_eq!(
        noisy_heads_that_pass(&Healthy::new(N_PROMPTS, N_PREDICT), 3),
        3
    );
}

/// The document lists every kind of damage. `UPDATE_DAMAGE=1` measures all kinds and rewrites
/// the table.
#[test]
fn the_table_is_of_these_kinds() {
    let path = root().join("docs/verify.md");
    let text = fs::read_to_string(&path).unwrap();
    if std::env::var_os("UPDATE_DAMAGE").is_some() {
        write_table(&path, &text);
        return;
    }
    for kind in kinds::all() {
        assert!(
            text.contains(&format!("| {} |", kind.name)),
            "{} is not in docs/verify.md",
            kind.name
        );
    }
}

fn write_table(path: &Path, text: &str) {
    let healthy = Healthy::new(N_PROMPTS, N_PREDICT);
    let kinds = kinds::all();
    let (rows, predictions): (Vec<String>, Vec<Option<Prediction>>) = kinds
        .par_iter()
        .map(|kind| {
            let judged = healthy.judge(kind);
            let decoded = healthy.decode(kind, &judged);
            let (found, message) = finder(&judged);
            let finder = match found {
                Finder::Refused(_) => "refused".to_owned(),
                Finder::Fit(cause) => format!(
                    "fit: {}",
                    serde_json::to_value(cause).unwrap().as_str().unwrap()
                ),
                Finder::Acceptance => "acceptance".to_owned(),
                Finder::Baseline => "baseline".to_owned(),
                Finder::OtherText => "baseline, text=0".to_owned(),
                Finder::Nothing => "passes".to_owned(),
            };
            // Only the part of the message about the damage, without the file name.
            let said = message
                .rsplit_once(".gguf: ")
                .map_or(&*message, |(_, said)| said);
            let said = said
                .split("; the ")
                .next()
                .unwrap_or(said)
                .replace('|', "\\|");
            let effect = match decoded.as_ref().and_then(Effect::of) {
                Some(e) => format!(
                    "{:.3} | {} | {:.3}",
                    e.acceptance, e.n_other_text, e.divergence
                ),
                None => "- | - | -".to_owned(),
            };
            let row = format!("| {} | {effect} | {finder} | {said} |", kind.name);
            let decoded = decoded.as_ref();
            (row, decoded.and_then(|report| prediction(kind, report)))
        })
        .unzip();
    let mut table = String::from(
        "| damage | acceptance | other texts | mean KL | found by | message |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    rows.iter()
        .for_each(|row| table.push_str(&format!("{row}\n")));
    let n = 100;
    let n_passed = noisy_heads_that_pass(&healthy, n);
    writeln!(
        table,
        "\nOf {n} heads with noise of 2 %, each of another seed, {n_passed} pass."
    )
    .unwrap();
    let predictions: Vec<Prediction> = predictions.into_iter().flatten().collect();
    let line = |name: &str, values: fn(&Prediction) -> [f64; 2]| {
        let (correlation, error, kind) = quality(&predictions, values);
        format!("| {name} | {correlation:.4} | {error:.3} | {kind} |\n")
    };
    let predicted = format!(
        "| of {} files | correlation | largest error | at |\n| --- | --- | --- | --- |\n{}{}",
        predictions.len(),
        line("acceptance at the first draft position", first_position),
        line("tokens per pass", tokens_per_pass)
    );
    let text = replace(text, MARKS, &table);
    fs::write(path, replace(&text, PREDICTION_MARKS, &predicted)).unwrap();
}

/// Replaces the text between two marks.
fn replace(text: &str, marks: [&str; 2], table: &str) -> String {
    let [start, end] = marks.map(|mark| text.find(mark).expect("the document has the marks"));
    let (before, after) = (&text[..start + marks[0].len()], &text[end..]);
    format!("{before}\n{table}{after}")
}
