//! `specrun verify`: proves that speculation changes nothing but the speed, and that it drafts.
//!
//! Every prompt is decoded once without drafts, alone and token by token; that is the reference.
//! Then under every speculator, several sequences at once. Tokens must be equal, and the logits of
//! every committed position bit-identical. A head that is dead or grafted wrongly still passes
//! that, so its acceptance must reach a floor too.

use std::path::PathBuf;
use std::sync::Arc;

use kernels::backend::Backend;
use schemas::report::{
    Check, Difference, FailedCheck, FirstDifference, Floor, FloorMeasure, SCHEMA_VERSION,
    SpeculatorVerdict, Verdict, VerifyReport, VerifyRun,
};

use crate::error::Error;
use crate::load::{DraftFiles, Files, RunConfig};
use crate::metrics::Tally;
use crate::prompts::Prompt;
use crate::sample::{SampleConfig, Sampler};
use crate::speculate::{
    ChainConfig, Completion, DecodeConfig, Failure, Policy, Request, SpecType, Verification,
};
use crate::tokenizer::EncodeConfig;

/// Acceptance that a speculator must reach at the first place of its drafts.
///
/// Trained MTP heads are published at 0.6 to 0.9 there, EAGLE-3 drafts a little below, whatever the
/// text; one that is zeroed, shuffled or fed the wrong hidden state agrees with the trunk on little
/// more than the commonest tokens. A model or a text that drafts by itself has no floor: it may
/// just be a bad one.
pub fn floor(kind: SpecType) -> Option<f64> {
    match kind {
        SpecType::DraftMtp => Some(0.4),
        SpecType::DraftEagle3 => Some(0.3),
        SpecType::DraftSimple
        | SpecType::NgramSimple
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
    /// How long the drafts of a model are.
    pub chain: ChainConfig,
    /// Sequences decoded at once under a speculator.
    pub n_parallel: usize,
    /// Acceptance every speculator must reach over all drafted tokens, instead of its own floor.
    pub min_accept: Option<f64>,
    /// How tokens are chosen.
    pub sample: SampleConfig,
}

/// Runs all checks; a failed check is in the report, not an error.
///
/// # Errors
/// A file cannot be used, or a prompt cannot be decoded.
pub fn verify<B: Backend>(backend: &Arc<B>, config: &VerifyConfig) -> Result<VerifyReport, Error> {
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
    let n_ctx = files.n_ctx(&requests);
    let sizes = |spec_types: &[SpecType], n_seq| RunConfig {
        spec_types: spec_types.to_vec(),
        policy: Policy::First,
        chain: config.chain,
        n_seq,
        n_ctx,
    };
    let mut failures = Vec::new();
    let mut decode = |sizes: RunConfig| -> Result<(Vec<Completion>, Tally), Error> {
        let mut decode = DecodeConfig {
            sampler: Sampler::new(config.sample)?,
            verification: Verification::Match,
            is_end: &|token| files.tokenizer.is_end_of_generation(token),
            on_token: &mut |_| {},
            on_failure: &mut |failure| failures.push(failed_speculator(failure)),
        };
        files
            .driver(backend, &sizes)?
            .decode(&requests, &mut decode)
    };
    let (plain, _) = decode(sizes(&[], 1))?;

    let mut report = VerifyReport {
        schema_version: SCHEMA_VERSION,
        model: config.model.display().to_string(),
        draft: draft_names(&config.drafts),
        n_draft_max: config.chain.n_max as u32,
        n_parallel: config.n_parallel as u32,
        runs: Vec::new(),
        speculators: Vec::new(),
        failed: Vec::new(),
        verdict: Verdict::Pass,
    };
    for &kind in &spec_types {
        let (drafted, total) = decode(sizes(&[kind], config.n_parallel))?;
        let first_run = report.runs.len();
        for (i, prompt) in config.prompts.iter().enumerate() {
            let run = compare(prompt, &requests[i], kind, &plain[i], &drafted[i]);
            report.failed.extend(failed_identity(&run));
            report.runs.push(run);
        }
        let runs = &report.runs[first_run..];
        let verdict = judge(kind, runs, &total, config.min_accept);
        report.failed.extend(failed_floor(&verdict));
        report.speculators.push(verdict);
    }
    report.failed.extend(failures);
    if !report.failed.is_empty() {
        report.verdict = Verdict::Fail;
    }
    Ok(report)
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
    }
}

/// One prompt under one speculator against plain decoding.
fn compare(
    prompt: &Prompt,
    request: &Request,
    kind: SpecType,
    plain: &Completion,
    drafted: &Completion,
) -> VerifyRun {
    let side = |completion: &Completion, i: usize| Difference {
        token: completion.tokens.get(i).copied(),
        logits_hash: completion.hashes.get(i).map(ToString::to_string),
    };
    let len = plain.tokens.len().max(drafted.tokens.len());
    let first_difference = (0..len)
        .find(|&i| side(plain, i) != side(drafted, i))
        .map(|i| FirstDifference {
            position: (request.tokens.len() + i) as u64,
            plain: side(plain, i),
            speculative: side(drafted, i),
        });
    VerifyRun {
        prompt_id: prompt.id.clone(),
        prompt_kind: prompt.kind.clone(),
        n_prompt_tokens: request.tokens.len() as u64,
        speculator: kind.name().to_owned(),
        tokens_identical: plain.tokens == drafted.tokens,
        logits_identical: plain.hashes == drafted.hashes,
        first_difference,
        counters: drafted.tally.report(),
        last_logits_hash: drafted
            .hashes
            .last()
            .map(ToString::to_string)
            .unwrap_or_default(),
    }
}

/// A speculator that was switched off; what it drafted until then is judged as well.
fn failed_speculator(failure: &Failure) -> FailedCheck {
    FailedCheck {
        check: Check::Speculator,
        speculator: failure.kind.name().to_owned(),
        prompt_id: None,
        message: format!("switched off, as it failed: {}", failure.error),
    }
}

fn failed_identity(run: &VerifyRun) -> Option<FailedCheck> {
    let difference = run.first_difference.as_ref()?;
    let check = if run.tokens_identical {
        Check::Logits
    } else {
        Check::Tokens
    };
    let show = |side: &Difference| match (&side.token, &side.logits_hash) {
        (Some(token), Some(hash)) => format!("token {token} from logits {hash}"),
        _ => "the end of the text".to_owned(),
    };
    Some(FailedCheck {
        check,
        speculator: run.speculator.clone(),
        prompt_id: Some(run.prompt_id.clone()),
        message: format!(
            "position {}: plain decoding has {}, speculation has {}",
            difference.position,
            show(&difference.plain),
            show(&difference.speculative),
        ),
    })
}

/// One speculator over all prompts.
fn judge(
    kind: SpecType,
    runs: &[VerifyRun],
    total: &Tally,
    min_accept: Option<f64>,
) -> SpeculatorVerdict {
    let floor = match min_accept {
        Some(acceptance) => Some(Floor {
            acceptance,
            over: FloorMeasure::AllDrafts,
            measured: total.acceptance(),
        }),
        None => floor(kind).map(|acceptance| Floor {
            acceptance,
            over: FloorMeasure::FirstDraftPosition,
            measured: total.acceptance_at(0),
        }),
    };
    // A drafter that never drafted did not reach anything.
    let holds = |floor: &Floor| {
        floor
            .measured
            .is_some_and(|found| found >= floor.acceptance)
    };
    let floor_held = floor.as_ref().is_none_or(holds);
    let identical = |run: &&VerifyRun| run.tokens_identical && run.logits_identical;
    let n_identical = runs.iter().filter(identical).count();
    let pass = floor_held && n_identical == runs.len();
    SpeculatorVerdict {
        name: kind.name().to_owned(),
        n_prompts: runs.len() as u64,
        n_identical: n_identical as u64,
        counters: total.report(),
        floor,
        floor_held,
        verdict: if pass { Verdict::Pass } else { Verdict::Fail },
    }
}

fn failed_floor(verdict: &SpeculatorVerdict) -> Option<FailedCheck> {
    let floor = verdict.floor.as_ref().filter(|_| !verdict.floor_held)?;
    let place = match floor.over {
        FloorMeasure::AllDrafts => "acceptance over all drafted tokens",
        FloorMeasure::FirstDraftPosition => "acceptance at the first draft position",
    };
    let found = match floor.measured {
        Some(found) => format!("is {found:.3}"),
        None => "is unknown, as nothing was drafted".to_owned(),
    };
    let dead = match (floor.over, floor.measured) {
        (FloorMeasure::FirstDraftPosition, Some(_)) => {
            "; the head is dead: it does not belong to this trunk, or was converted or grafted \
             wrongly"
        }
        _ => "",
    };
    Some(FailedCheck {
        check: Check::Acceptance,
        speculator: verdict.name.clone(),
        prompt_id: None,
        message: format!(
            "{place} {found}, expected at least {:.3}{dead}",
            floor.acceptance
        ),
    })
}
