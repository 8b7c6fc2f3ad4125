//! `specrun verify`: proves that speculation changes nothing but the speed, and that it drafts.
//!
//! First the files are checked ([`fit`](crate::preflight)); a model that cannot work is not run. Then
//! every prompt is decoded without drafts, alone and token by token, as the reference, and then
//! with every speculator, several sequences in parallel. Tokens must be equal, and the logits of
//! every committed position bit-identical. A dead or wrongly grafted head passes these checks, so
//! its acceptance rate must reach a floor too.

mod agreement;
mod baseline;
mod catch_panic;
mod failed_checks;
mod invariance;
mod matrix;
mod merge;
mod prompt_decoder;
mod setting;
mod speed;
mod surface;
mod verdicts;

use std::path::PathBuf;
use std::sync::Arc;

use kernels::backend::Backend;
use runner::batch::NO_TOKEN;
use runner::cache::CacheConfig;
use runner::context::ContextConfig;
use runner::loaded_models::LoadedModels;
use runner::model_files::{DraftFiles, Files};
use runner::speculate::{Completion, Proof, Request, SpecType};
use schemas::report::{
    Check, SCHEMA_VERSION, SpeculatorVerdict, SpeedComparison, Verdict, VerifyReport,
};

use crate::bench::width_costs;
use crate::error::Error;
use crate::preflight::preflight;
use crate::prompts::Prompt;
use crate::scores::{N_ROWS, Scored, score};

use catch_panic::catch_panic;
use failed_checks::{
    all_causes, disabled, failed_drafted, failed_fit, failed_floor, failed_identity,
    failed_invariance, failed_measure, failed_run, failed_scores, failed_speedup, failed_target,
    likely_causes,
};
use invariance::{NamedText, invariance};
use prompt_decoder::{Decoded, PromptDecoder};
use setting::Setting;
use speed::{Speeds, measure_speeds};
use verdicts::{compare, judge};

pub use baseline::{Baseline, Tolerances};
pub use invariance::InvarianceConfig;
pub use matrix::{Matrix, MatrixConfig};
pub use merge::merge;
pub use prompt_decoder::DecodeOptions;
pub use surface::SurfaceConfig;

/// A check to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The files, before anything runs.
    Preflight,
    /// Tokens and logits with and without drafts are equal.
    Identity,
    /// The acceptance rate reaches its floor.
    Acceptance,
    /// Logits of a text do not depend on how it is computed.
    Invariance,
    /// Tokens per second with and without drafts.
    Speed,
    /// Drafts at every position of known texts agree with the target's choices.
    Agreement,
}

impl Stage {
    /// All checks, by the names used on the command line.
    pub const NAMES: [(&'static str, Stage); 6] = [
        ("fit", Stage::Preflight),
        ("identity", Stage::Identity),
        ("acceptance", Stage::Acceptance),
        ("invariance", Stage::Invariance),
        ("speed", Stage::Speed),
        ("agreement", Stage::Agreement),
    ];

    /// The checks of models that are quickly decoded.
    pub const DEFAULT: [Stage; 5] = [
        Stage::Preflight,
        Stage::Identity,
        Stage::Acceptance,
        Stage::Invariance,
        Stage::Speed,
    ];
    /// The checks of large models, which cost little more than writing a text once.
    pub const LARGE: [Stage; 2] = [Stage::Preflight, Stage::Agreement];
}

/// Configuration of a verification.
pub struct VerifyConfig {
    /// The target.
    pub model: PathBuf,
    /// The files of the drafters.
    pub drafts: DraftFiles,
    /// The speculators. Each is verified alone, and then all of them as one chain in this order.
    /// Empty verifies the target alone; `None` verifies each speculator that the files allow,
    /// without a chain.
    pub spec_types: Option<Vec<SpecType>>,
    /// The prompts to continue.
    pub prompts: Vec<Prompt>,
    /// Tokens to generate if a prompt does not specify a number.
    pub n_predict: usize,
    /// The decoding configuration.
    pub options: DecodeOptions,
    /// Other configurations in which tokens and logits must be the same.
    pub matrix: Option<MatrixConfig>,
    /// Minimum acceptance rate of every speculator over all drafted tokens, instead of its own
    /// floor.
    pub min_accept: Option<f64>,
    /// Minimum number of tokens that every speculator, and the chain, must draft.
    pub min_drafted: u64,
    /// Minimum speedup of a speculator over plain decoding; if set, speeds are measured for any
    /// stages.
    pub min_speedup: Option<f64>,
    /// Size of the invariance check.
    pub invariance: InvarianceConfig,
    /// Checks to run.
    pub stages: Vec<Stage>,
    /// Text whose positions the agreement check compares, instead of those of the target's own texts.
    pub text: Option<GivenText>,
    /// Context lengths and temperatures at which acceptance and speed are measured besides.
    pub surface: Option<SurfaceConfig>,
    /// An earlier report; this one must not be worse.
    pub baseline: Option<Baseline>,
    /// Part of the checks, by its index in [`units`]; `None` for all.
    pub unit: Option<usize>,
    /// Returns true if decoding has to end.
    pub stop: fn() -> bool,
}

/// A text of a file.
#[derive(Clone, Debug)]
pub struct GivenText {
    /// Name of the file in messages.
    pub name: String,
    /// The text.
    pub text: String,
}

/// A backend with its number of threads.
pub struct Machine<B: Backend> {
    /// The backend.
    pub backend: Arc<B>,
    /// Number of its threads.
    pub n_threads: usize,
}

impl VerifyConfig {
    fn is_asked(&self, stage: Stage) -> bool {
        let is_of_target = stage == Stage::Invariance;
        if is_of_target && !self.checks_target() {
            return false;
        }
        self.stages.contains(&stage) || (stage == Stage::Speed && self.min_speedup.is_some())
    }
}

impl VerifyConfig {
    /// True if the checks of the target are part of this run.
    fn checks_target(&self) -> bool {
        self.unit.is_none_or(|unit| unit == 0)
    }

    /// Returns the settings to verify, given the speculators.
    fn settings(&self, spec_types: &[SpecType]) -> Vec<Setting> {
        let all = Setting::all(spec_types, self.spec_types.is_some());
        match self.unit {
            None => all,
            Some(0) => Vec::new(),
            Some(unit) => all.into_iter().skip(unit - 1).take(1).collect(),
        }
    }

    /// Returns the speculators to verify.
    fn types(&self, files: &Files) -> Vec<SpecType> {
        match &self.spec_types {
            Some(types) => types.clone(),
            None => files.default_spec_types(),
        }
    }
}

/// Returns the names of the parts of a verification, which can run on several machines: the checks of the target,
/// then those of each speculator and of the chain. [`merge`] joins their reports.
///
/// # Errors
/// A file cannot be used.
pub fn units(config: &VerifyConfig) -> Result<Vec<String>, Error> {
    let files = Files::open(&config.model, &config.drafts)?;
    let settings = Setting::all(&config.types(&files), config.spec_types.is_some());
    let names = settings.iter().map(Setting::name);
    Ok([TARGET.to_owned()].into_iter().chain(names).collect())
}

/// Name of the checks of the target.
const TARGET: &str = "target";

/// Runs all checks; a failed check is reported, not an error. The invariance check also runs on
/// `others`, which differ in their number of threads.
///
/// # Errors
/// A file cannot be used, or a prompt cannot be decoded.
pub fn verify<B: Backend>(
    machine: &Machine<B>,
    others: &[Machine<B>],
    config: &VerifyConfig,
) -> Result<VerifyReport, Error> {
    let files = Files::open(&config.model, &config.drafts)?;
    let spec_types = config.types(&files);
    let requests: Vec<Request> = config
        .prompts
        .iter()
        .map(|prompt| prompt.request(&files.tokenizer, config.n_predict))
        .collect();
    let mut report = VerifyReport {
        schema_version: SCHEMA_VERSION,
        provenance: None,
        model: config.model.display().to_string(),
        draft: draft_names(&config.drafts),
        backend: machine.backend.name(),
        n_threads: machine.n_threads as u32,
        n_draft_max: config.options.drafting.limits.n_max as u32,
        n_parallel: config.options.n_parallel as u32,
        policy: Some(config.options.policy.name().to_owned()),
        fit: None,
        runs: Vec::new(),
        speculators: Vec::new(),
        widths: Vec::new(),
        matrix: Vec::new(),
        target: None,
        baseline: None,
        invariance: None,
        agreement: None,
        surface: None,
        failed: Vec::new(),
        verdict: Verdict::Pass,
    };
    if config.is_asked(Stage::Preflight) {
        let tokens = |request: &Request| {
            let tokens = request.tokens.iter().copied();
            tokens.filter(|&token| token != NO_TOKEN).collect()
        };
        let tokens: Vec<Vec<u32>> = requests.iter().map(tokens).collect();
        let found = preflight(&files, &spec_types, &tokens)?;
        report.failed = found.findings.iter().filter_map(failed_fit).collect();
        report.fit = Some(found);
    }
    let is_run = |(_, stage)| stage != Stage::Preflight && config.is_asked(stage);
    // A model that cannot work is not run.
    let is_measured = config.surface.is_some() || Stage::NAMES.into_iter().any(is_run);
    if report.failed.is_empty() && is_measured {
        let settings = config.settings(&spec_types);
        run_all(
            machine,
            others,
            config,
            &files,
            &settings,
            &requests,
            &mut report,
        )?;
    }
    files.check_unchanged()?;
    report.verdict = Verdict::of(report.failed.is_empty());
    Ok(report)
}

/// Runs all checks except those of the files.
fn run_all<B: Backend>(
    machine: &Machine<B>,
    others: &[Machine<B>],
    config: &VerifyConfig,
    files: &Files,
    settings: &[Setting],
    requests: &[Request],
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let (n_ctx, plain) = (
        files.n_ctx(requests, config.options.n_ctx_max),
        Setting::PLAIN,
    );
    let runs = settings.iter().chain(std::iter::once(&plain));
    let runs = runs.map(|setting| config.options.run(setting, requests.len(), n_ctx));
    let mut runs: Vec<_> = runs.collect();
    if asks_agreement(config, settings) {
        runs.extend(agreement::runs(config, settings, requests.len(), n_ctx));
    }
    if let Some(surface) = &config.surface {
        runs.extend(surface::runs(config, surface, settings));
    }
    let loaded = LoadedModels::new(files, &machine.backend, &runs)?;
    let bench = PromptDecoder::new(files, &loaded, requests, config.stop);
    let decoding = [Stage::Identity, Stage::Acceptance, Stage::Speed];
    if decoding.into_iter().any(|stage| config.is_asked(stage)) {
        decode_all(&bench, config, settings, report)?;
    }
    if asks_agreement(config, settings) && !is_broken(report) {
        let target = report.target.as_ref();
        let (found, failed) =
            agreement::agreement(&bench, config, settings, target, report.fit.as_ref())?;
        report.agreement = found;
        report.failed.extend(failed);
    }
    if let Some(wanted) = &config.surface
        && !is_broken(report)
    {
        let (found, failed) = surface::surface(&bench, config, wanted, settings)?;
        report.surface = Some(found);
        report.failed.extend(failed);
    }
    let texts = named_texts(requests, config.invariance);
    if config.is_asked(Stage::Invariance) && !is_broken(report) && !texts.is_empty() {
        let machines: Vec<&Machine<B>> = [machine].into_iter().chain(others).collect();
        match catch_panic(|| invariance(&loaded, &machines, &texts, config)) {
            Ok(found) => {
                let found = found?;
                report.failed.extend(failed_invariance(&found));
                report.invariance = Some(found);
            }
            Err(panic) => report
                .failed
                .push(failed_run(Check::Invariance, None, &panic)),
        }
    }
    Ok(())
}

/// True if drafts at known positions are compared here; a machine that drafts nothing leaves it to the others.
fn asks_agreement(config: &VerifyConfig, settings: &[Setting]) -> bool {
    let is_own = config.unit.is_none() || agreement::kinds(settings).next().is_some();
    is_own && config.is_asked(Stage::Agreement)
}

/// True if the target cannot decode.
fn is_broken(report: &VerifyReport) -> bool {
    report.failed.iter().any(|f| f.check == Check::Target)
}

/// Decodes all prompts without drafts and in each setting, and judges the results.
fn decode_all<B: Backend>(
    bench: &PromptDecoder<'_, B>,
    config: &VerifyConfig,
    settings: &[Setting],
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let plain = match bench.decode(&Setting::PLAIN, config.options.alone(), Proof::Logits)? {
        Ok(plain) => plain,
        Err(why) => {
            report.failed.push(failed_target(&why));
            return Ok(());
        }
    };
    let mut proven = Vec::new();
    for setting in settings {
        proven.push(bench.decode(setting, config.options, Proof::Logits)?);
    }
    let speeds = match config.is_asked(Stage::Speed) {
        true => Some(measure_speeds(
            bench,
            config,
            &plain,
            settings,
            &mut proven,
        )?),
        false => None,
    };
    for (i, (setting, proven)) in settings.iter().zip(&proven).enumerate() {
        let verdict = match proven {
            Ok(drafted) => {
                let speeds = speeds.as_ref().map(|speeds| &speeds.drafted[i]);
                prove(bench, config, setting, [&plain, drafted], speeds, report)?
            }
            Err(why) => {
                let name = setting.name();
                report
                    .failed
                    .push(failed_run(Check::Speculator, Some(&name), why));
                verdicts::broken(name, bench.requests.len(), why)
            }
        };
        report.speculators.push(verdict);
    }
    if let Some(matrix) = &config.matrix {
        let cells = matrix::run(bench, config, matrix, settings)?;
        report.failed.extend(cells.failed);
        report.matrix = cells.cells;
    }
    if !config.checks_target() {
        return Ok(());
    }
    let scored =
        catch_panic(|| score_all(bench, config, &plain.completions, speeds.as_ref(), report));
    match scored {
        Ok(result) => result?,
        Err(panic) => report.failed.push(failed_target(&panic)),
    }
    Ok(())
}

/// Compares the texts of a setting with those of plain decoding, and judges them.
fn prove<B: Backend>(
    bench: &PromptDecoder<'_, B>,
    config: &VerifyConfig,
    setting: &Setting,
    [plain, drafted]: [&Decoded; 2],
    speed: Option<&Option<SpeedComparison>>,
    report: &mut VerifyReport,
) -> Result<SpeculatorVerdict, Error> {
    let name = setting.name();
    let first_run = report.runs.len();
    let shown = bench.shown(setting, config.options)?;
    let texts = plain.completions.iter().zip(&drafted.completions);
    let prompts = config.prompts.iter().zip(bench.requests);
    for ((prompt, request), (plain, drafted)) in prompts.zip(texts) {
        let run = compare(shown, prompt, request, &name, plain, drafted);
        if config.is_asked(Stage::Identity) {
            report.failed.extend(failed_identity(&run));
        }
        report.runs.push(run);
    }
    let failures = drafted.disabled.iter();
    report
        .failed
        .extend(failures.map(|(kind, why)| disabled(&name, *kind, why)));
    let verdict = judge(setting, &report.runs[first_run..], drafted, speed, config);
    let causes = match setting.kind() {
        Some(kind) => likely_causes(bench.files, kind, report.fit.as_ref())?,
        None => Vec::new(),
    };
    let floor = verdict.floor.as_ref();
    report
        .failed
        .extend(failed_floor(&verdict.name, floor, causes));
    report
        .failed
        .extend(failed_drafted(&verdict, config.min_drafted));
    let speedup = config.min_speedup;
    report
        .failed
        .extend(speedup.and_then(|min| failed_speedup(&verdict, min)));
    Ok(verdict)
}

/// Rounds whose median is the cost of a pass.
const WIDTH_ROUNDS: usize = 5;

/// Scores the prompts and the target's own texts, and compares them with the baseline.
fn score_all<B: Backend>(
    bench: &PromptDecoder<'_, B>,
    config: &VerifyConfig,
    plain: &[Completion],
    speeds: Option<&Speeds>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let (loaded, requests) = (bench.loaded, bench.requests);
    // The other scores of a report have only tokens.
    let texts = requests.iter().zip(plain);
    let texts = texts.filter(|(request, _)| request.embeddings.is_empty());
    let texts = texts.map(|(request, plain)| Scored {
        id: &request.id,
        tokens: [&request.tokens[..], &plain.tokens].concat(),
        n_prompt: request.tokens.len(),
    });
    let texts: Vec<Scored<'_>> = texts.collect();
    if texts.is_empty() {
        return Ok(());
    }
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
            types: config.options.caches.target,
        },
        n_batch: N_ROWS,
        n_outputs: N_ROWS,
    })?;
    let speed = speeds.and_then(|speeds| speeds.plain);
    let (scores, not_finite) = score(&mut context, texts, speed)?;
    report
        .failed
        .extend(not_finite.map(|first| failed_scores(&scores, &first)));
    report.target = Some(scores);
    let mut of_tokens = requests
        .iter()
        .filter(|request| request.embeddings.is_empty());
    if let Some(request) = of_tokens.find(|request| !request.tokens.is_empty()) {
        let n_width = (config.options.drafting.limits.n_max + 1).min(N_ROWS);
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

/// Returns the prompts without embeddings, cut to the size of the invariance check.
fn named_texts(requests: &[Request], config: InvarianceConfig) -> Vec<NamedText> {
    let is_text = |request: &&Request| !request.tokens.is_empty() && request.embeddings.is_empty();
    let texts = requests.iter().filter(is_text);
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
