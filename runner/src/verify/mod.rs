//! `specrun verify`: proves that speculation changes nothing but the speed, and that it drafts.
//!
//! First the files are looked at ([`fit`](crate::fit)); what cannot work is not run. Then every prompt is decoded once without drafts, alone and token by token; that is the reference.
//! Then under every speculator, several sequences at once. Tokens must be equal, and the logits of
//! every committed position bit-identical. A head that is dead or grafted wrongly still passes
//! that, so its acceptance must reach a floor too.

mod baseline;
mod failed;
mod invariance;
mod judge;
mod matrix;

use std::path::PathBuf;
use std::sync::Arc;

use kernels::backend::Backend;
use schemas::report::{FailedCheck, SCHEMA_VERSION, Verdict, VerifyReport, WayShape};

use crate::bench::width_costs;
use crate::cache::CacheConfig;
use crate::context::ContextConfig;
use crate::error::Error;
use crate::fit::fit;
use crate::load::{DraftFiles, Files, RunCaches, RunConfig};
use crate::loaded::Loaded;
use crate::metrics::Tally;
use crate::prompts::Prompt;
use crate::sample::{SampleConfig, Sampler};
use crate::scores::{N_ROWS, Scored, score};
use crate::speculate::{
    Completion, DecodeConfig, Drafting, Policy, Proof, Request, SpecType, Verification,
};
use crate::tokenizer::EncodeConfig;

use failed::{
    all_causes, failed_fit, failed_floor, failed_identity, failed_invariance, failed_measure,
    failed_speculator, failed_speedup, likely_causes,
};
use invariance::{NamedText, invariance};
use judge::{Shown, compare, judge};

pub use baseline::{Baseline, Tolerances};
pub use invariance::InvarianceConfig;
pub use matrix::{Matrix, MatrixConfig};

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The files, before anything runs.
    Fit,
    /// Tokens and logits with and without drafts.
    Identity,
    /// Acceptance against its floor.
    Acceptance,
    /// Logits of one text however it is computed.
    Invariance,
}

impl Stage {
    /// All of them, by the names users give.
    pub const NAMES: [(&'static str, Stage); 4] = [
        ("fit", Stage::Fit),
        ("identity", Stage::Identity),
        ("acceptance", Stage::Acceptance),
        ("invariance", Stage::Invariance),
    ];
}

/// Acceptance that a speculator must reach at the first place of its drafts.
///
/// Trained MTP heads are published at 0.6 to 0.9 there, EAGLE-3 drafts and small models of the
/// target's family a little below, whatever the text; one that is zeroed, shuffled or fed the wrong
/// hidden state agrees with the trunk on little more than the commonest tokens. What a text drafts
/// by itself has no floor: some texts never repeat.
pub fn floor(kind: SpecType) -> Option<f64> {
    match kind {
        SpecType::DraftMtp => Some(0.4),
        SpecType::DraftEagle3 | SpecType::DraftSimple => Some(0.3),
        SpecType::NgramSimple
        | SpecType::NgramMapK
        | SpecType::NgramMapK4v
        | SpecType::NgramMod
        | SpecType::NgramCache => None,
    }
}

/// What to verify.
pub struct VerifyConfig {
    /// The target.
    pub model: PathBuf,
    /// What drafts beside the target.
    pub drafts: DraftFiles,
    /// Speculators, each verified by itself; empty for what the files can draft with.
    pub spec_types: Vec<SpecType>,
    /// What to continue.
    pub prompts: Vec<Prompt>,
    /// Tokens to write where a prompt does not say.
    pub n_predict: usize,
    /// How they are decoded.
    pub way: Way,
    /// Other ways in which tokens and logits must be the same.
    pub matrix: Option<MatrixConfig>,
    /// Acceptance every speculator must reach over all drafted tokens, instead of its own floor.
    pub min_accept: Option<f64>,
    /// Smallest tokens a second under a speculator, over those without drafts.
    pub min_speedup: Option<f64>,
    /// How much the invariance check tries.
    pub invariance: InvarianceConfig,
    /// What is checked.
    pub stages: Vec<Stage>,
    /// An earlier report that this one must not be worse than.
    pub baseline: Option<Baseline>,
}

/// Where to compute, with its number of threads.
pub struct Machine<B: Backend> {
    /// The backend.
    pub backend: Arc<B>,
    /// Its threads.
    pub n_threads: usize,
}

/// Runs all checks; a failed check is in the report, not an error. The invariance check runs on
/// `others`, too, which differ in their number of threads.
///
/// # Errors
/// A file cannot be used, or a prompt cannot be decoded.
pub fn verify<B: Backend>(
    machine: &Machine<B>,
    others: &[Machine<B>],
    config: &VerifyConfig,
) -> Result<VerifyReport, Error> {
    let backend = &machine.backend;
    let files = Files::open(&config.model, &config.drafts)?;
    let mut spec_types = config.spec_types.clone();
    if spec_types.is_empty() {
        spec_types = files.default_spec_types();
        if spec_types.is_empty() {
            let path = config.model.clone();
            return Err(Error::NothingToVerify { path });
        }
    }
    let requests: Vec<Request> = config
        .prompts
        .iter()
        .map(|prompt| request(&files, prompt, config))
        .collect();
    let mut report = VerifyReport {
        schema_version: SCHEMA_VERSION,
        model: config.model.display().to_string(),
        draft: draft_names(&config.drafts),
        backend: backend.name(),
        n_threads: machine.n_threads as u32,
        n_draft_max: config.way.drafting.chain.n_max as u32,
        n_parallel: config.way.n_parallel as u32,
        fit: None,
        runs: Vec::new(),
        speculators: Vec::new(),
        widths: Vec::new(),
        matrix: Vec::new(),
        target: None,
        baseline: None,
        invariance: None,
        failed: Vec::new(),
        verdict: Verdict::Pass,
    };
    if config.stages.contains(&Stage::Fit) {
        let tokens: Vec<Vec<u32>> = requests.iter().map(|r| r.tokens.clone()).collect();
        let found = fit(&files, &spec_types, &tokens)?;
        report.failed = found.findings.iter().filter_map(failed_fit).collect();
        report.fit = Some(found);
    }
    let is_asked = |stages: &[Stage]| stages.iter().any(|stage| config.stages.contains(stage));
    // What cannot work is not run.
    if report.failed.is_empty() && config.stages.iter().any(|&stage| stage != Stage::Fit) {
        let n_ctx = files.n_ctx(&requests);
        let kinds = spec_types.iter().map(|&kind| Some(kind));
        let runs = kinds.chain([None]);
        let runs = runs.map(|kind| config.way.run(kind, requests.len(), n_ctx));
        let loaded = Loaded::new(&files, backend, &runs.collect::<Vec<_>>())?;
        if is_asked(&[Stage::Identity, Stage::Acceptance]) {
            decode_all(&loaded, &files, config, &spec_types, &requests, &mut report)?;
        }
        if is_asked(&[Stage::Invariance]) {
            let texts = named_texts(&requests, config.invariance);
            let machines: Vec<&Machine<B>> = [machine].into_iter().chain(others).collect();
            let found = invariance(&loaded, &machines, &texts, config)?;
            report.failed.extend(failed_invariance(&found));
            report.invariance = Some(found);
        }
    }
    report.verdict = Verdict::of(report.failed.is_empty());
    Ok(report)
}

/// A run of several decodings over one set of loaded files.
struct Bench<'a, B: Backend> {
    files: &'a Files,
    loaded: &'a Loaded<'a, B>,
    requests: &'a [Request],
    n_ctx: usize,
    /// Speculators that were switched off.
    failures: Vec<FailedCheck>,
}

/// One way to decode the prompts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// How drafts are made.
    pub drafting: Drafting,
    /// Sequences decoded at once under a speculator.
    pub n_parallel: usize,
    /// How tokens are chosen.
    pub sample: SampleConfig,
    /// How caches keep keys and values.
    pub caches: RunCaches,
}

impl Way {
    /// The way without drafts.
    fn alone(self) -> Way {
        Way {
            n_parallel: 1,
            ..self
        }
    }

    /// A run of so many texts, under one speculator or without drafts.
    fn run(self, kind: Option<SpecType>, n_text: usize, n_ctx: usize) -> RunConfig {
        RunConfig {
            spec_types: kind.into_iter().collect(),
            policy: Policy::First,
            drafting: self.drafting,
            n_seq: self.n_parallel.min(n_text),
            n_ctx,
            caches: self.caches,
        }
    }

    fn shape(self) -> WayShape {
        WayShape {
            n_draft_max: self.drafting.chain.n_max as u32,
            n_parallel: self.n_parallel as u32,
            // As it was written: 0.8 is no f32.
            temperature: (f64::from(self.sample.temperature) * 1e6).round() / 1e6,
            seed: self.sample.seed,
        }
    }
}

impl<B: Backend> Bench<'_, B> {
    fn sizes(&self, kind: Option<SpecType>, way: Way) -> RunConfig {
        way.run(kind, self.requests.len(), self.n_ctx)
    }

    /// What differences under a speculator are shown with.
    fn shown(&self, kind: SpecType, way: Way) -> Result<Shown<'_>, Error> {
        let sizes = self.sizes(Some(kind), way);
        Ok(Shown {
            tokenizer: &self.files.tokenizer,
            rollback: self.files.target_sizes::<B>(&sizes)?.rollback,
        })
    }

    /// Decodes all prompts, under one speculator or without drafts.
    fn decode(
        &mut self,
        kind: Option<SpecType>,
        way: Way,
    ) -> Result<(Vec<Completion>, Tally), Error> {
        let sizes = self.sizes(kind, way);
        let (tokenizer, failures) = (&self.files.tokenizer, &mut self.failures);
        let mut decode = DecodeConfig {
            sampler: Sampler::new(way.sample)?,
            verification: Verification::Match,
            proof: Proof::Logits,
            is_end: &|token| tokenizer.is_end_of_generation(token),
            on_token: &mut |_| {},
            on_round: &mut |_| {},
            on_failure: &mut |failure| failures.push(failed_speculator(failure)),
        };
        self.loaded
            .driver(&sizes)?
            .decode(self.requests, &mut decode)
    }
}

/// Decodes all prompts without drafts and under each speculator, and judges the results.
fn decode_all<B: Backend>(
    loaded: &Loaded<'_, B>,
    files: &Files,
    config: &VerifyConfig,
    spec_types: &[SpecType],
    requests: &[Request],
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let mut bench = Bench {
        files,
        loaded,
        requests,
        n_ctx: files.n_ctx(requests),
        failures: Vec::new(),
    };
    let (plain, plain_total) = bench.decode(None, config.way.alone())?;
    // Speeds compare at the same number of sequences.
    let beside = match config.min_speedup {
        Some(_) if config.way.n_parallel > 1 => Some(bench.decode(None, config.way)?.1),
        _ => None,
    };
    for &kind in spec_types {
        let (drafted, total) = bench.decode(Some(kind), config.way)?;
        let first_run = report.runs.len();
        let shown = bench.shown(kind, config.way)?;
        for (i, prompt) in config.prompts.iter().enumerate() {
            let run = compare(shown, prompt, &requests[i], kind, &plain[i], &drafted[i]);
            if config.stages.contains(&Stage::Identity) {
                report.failed.extend(failed_identity(&run));
            }
            report.runs.push(run);
        }
        let totals = [beside.as_ref().unwrap_or(&plain_total), &total];
        let verdict = judge(kind, &report.runs[first_run..], totals, config);
        let causes = likely_causes(files, kind, report.fit.as_ref())?;
        report.failed.extend(failed_floor(&verdict, causes));
        let speedup = config
            .min_speedup
            .and_then(|min| failed_speedup(&verdict, min));
        report.failed.extend(speedup);
        report.speculators.push(verdict);
    }
    report.failed.append(&mut bench.failures);
    if let Some(matrix) = &config.matrix {
        let cells = matrix::run(loaded, files, config, matrix, spec_types, requests)?;
        report.failed.extend(cells.failed);
        report.matrix = cells.cells;
    }
    score_all(loaded, config, requests, &plain, &plain_total, report)
}

/// Rounds that the cost of a pass is the median of.
const WIDTH_ROUNDS: usize = 5;

/// What the target makes of the prompts and of its own text, and how that is beside the baseline.
fn score_all<B: Backend>(
    loaded: &Loaded<'_, B>,
    config: &VerifyConfig,
    requests: &[Request],
    plain: &[Completion],
    plain_total: &Tally,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let texts = requests.iter().zip(plain);
    let texts = texts.map(|(request, plain)| Scored {
        id: &request.id,
        tokens: [&request.tokens[..], &plain.tokens].concat(),
        n_prompt: request.tokens.len(),
    });
    let texts: Vec<Scored<'_>> = texts.collect();
    let earlier = config
        .baseline
        .iter()
        .filter_map(|b| b.report.target.as_ref());
    let earlier = earlier.flat_map(|target| &target.prompts);
    let lengths = earlier.map(|prompt| prompt.tokens.len());
    let longest = lengths
        .chain(texts.iter().map(|text| text.tokens.len()))
        .max();
    let n_ctx = longest.unwrap_or_default();
    let mut context = loaded.target(ContextConfig {
        cache: CacheConfig {
            n_seq: 1,
            n_ctx,
            n_rollback: 0,
            types: config.way.caches.target,
        },
        n_batch: N_ROWS,
        n_outputs: N_ROWS,
    })?;
    let speed = plain_total.report().tokens_per_s;
    report.target = Some(score(&mut context, texts, speed)?);
    if let Some(request) = requests.iter().find(|request| !request.tokens.is_empty()) {
        let n_width = (config.way.drafting.chain.n_max + 1).min(N_ROWS);
        let tokens: Vec<u32> = request
            .tokens
            .iter()
            .copied()
            .cycle()
            .take(n_width)
            .collect();
        context.truncate(0, 0);
        report.widths = width_costs(&mut context, &tokens[..n_width.min(n_ctx)], WIDTH_ROUNDS);
    }
    if let Some(baseline) = &config.baseline {
        let found = baseline.compare(&mut context, report)?;
        for measure in found.measures.iter().filter(|measure| !measure.holds) {
            let causes = all_causes(report.fit.as_ref());
            report.failed.push(failed_measure(measure, causes));
        }
        report.baseline = Some(found);
    }
    Ok(())
}

/// The prompts cut to what an invariance check takes of them.
fn named_texts(requests: &[Request], config: InvarianceConfig) -> Vec<NamedText> {
    let texts = requests.iter().filter(|request| !request.tokens.is_empty());
    let text = |request: &Request| NamedText {
        id: request.id.clone(),
        tokens: request.tokens[..request.tokens.len().min(config.n_tokens)].to_vec(),
    };
    texts.map(text).take(config.n_texts).collect()
}

fn draft_names(drafts: &DraftFiles) -> Option<String> {
    let names = drafts.models.iter().map(|path| path.display().to_string());
    let names: Vec<String> = names.collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn request(files: &Files, prompt: &Prompt, config: &VerifyConfig) -> Request {
    let encode = EncodeConfig {
        add_special: true,
        parse_special: true,
    };
    Request {
        id: prompt.id.clone(),
        tokens: files.tokenizer.encode(&prompt.prompt, encode),
        n_predict: prompt.n_predict.map_or(config.n_predict, |n| n.get()),
        embeddings: Vec::new(),
    }
}
