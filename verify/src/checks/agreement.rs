//! Agreement: drafts at every position of known texts, compared with the target's choices. The target reads each text
//! in wide passes, so this costs a prefill and the drafts, while decoding costs a pass for every few tokens.

use std::time::Instant;

use kernels::backend::Backend;
use runner::run_config::RunConfig;
use runner::sample::Sampler;
use runner::speculate::{DraftLength, DraftedText, KnownText, Proof, Request, SpecType};
use runner::tally::{PositionCounts, Tally};
use runner::tokenizer::EncodeConfig;
use schemas::report::{
    AgreementReport, AgreementTexts, Check, FailedCheck, FitReport, SpeculatorAgreement,
    TargetScores,
};

use crate::error::Error;
use crate::report::{counters, positions};

use super::catch_panic::catch_panic;
use super::failed_checks::{
    failed_choices, failed_floor, failed_run, failed_target, likely_causes,
};
use super::prompt_decoder::{DecodeOptions, PromptDecoder, is_found_while_decoding};
use super::setting::Setting;
use super::verdicts::{floor, is_held};
use super::{GivenText, Stage, VerifyConfig};

/// Maximum number of texts that are read at once.
const MAX_SEQUENCES: usize = 16;
/// Tokens of a piece of a given text, and those at its start after which nothing is drafted.
const PIECE: usize = 256;
const N_LEAD: usize = 64;
/// Maximum number of pieces.
const MAX_PIECES: usize = 32;

/// Texts to draft for.
pub(super) struct Texts {
    origin: AgreementTexts,
    known: Vec<KnownText>,
    /// Tokens that could be generated for each text.
    n_predict: Vec<usize>,
    writing_ms: Option<f64>,
}

/// Returns the runs of the comparison, whose models have to be loaded; `n_texts` and `n_ctx` are the number and the
/// longest context of the prompts.
pub(super) fn runs(
    config: &VerifyConfig,
    settings: &[Setting],
    n_texts: usize,
    n_ctx: usize,
) -> Vec<RunConfig> {
    let (n_texts, n_ctx) = match config.text {
        Some(_) => (MAX_PIECES, PIECE),
        None => (n_texts, n_ctx),
    };
    let mut runs: Vec<RunConfig> = kinds(settings)
        .map(|kind| run(config, kind, n_texts, n_ctx))
        .collect();
    runs.push(writing(config, n_texts).run(&Setting::PLAIN, n_texts, n_ctx));
    runs
}

/// Returns the speculators to compare.
pub(super) fn kinds(settings: &[Setting]) -> impl Iterator<Item = SpecType> {
    let kinds = settings.iter().filter_map(Setting::kind);
    kinds.filter(|kind| kind.spec().model.is_some())
}

/// Returns the configuration for writing the texts, all at once.
fn writing(config: &VerifyConfig, n_texts: usize) -> DecodeOptions {
    DecodeOptions {
        n_parallel: n_texts.clamp(1, MAX_SEQUENCES),
        ..config.options
    }
}

fn run(config: &VerifyConfig, kind: SpecType, n_texts: usize, n_ctx: usize) -> RunConfig {
    let setting = Setting {
        spec_types: vec![kind],
    };
    let mut run = config.options.run(&setting, n_texts, n_ctx);
    run.n_seq = n_texts.clamp(1, MAX_SEQUENCES);
    // Drafts extend past the end of the texts, and are not cut to what pays.
    run.n_ctx = n_ctx.saturating_add(run.n_draft_max() + 1);
    run.drafting.length = DraftLength::Fixed;
    run
}

impl Texts {
    /// Cuts a given text into pieces; a rest that is too short is left out.
    ///
    /// # Errors
    /// The text is shorter than a piece.
    fn given<B: Backend>(bench: &PromptDecoder<'_, B>, text: &GivenText) -> Result<Texts, Error> {
        let config = EncodeConfig {
            add_special: true,
            parse_special: false,
        };
        let tokens = bench.files.tokenizer.encode(&text.text, config);
        if tokens.len() <= N_LEAD {
            return Err(Error::ShortText {
                text: text.name.clone(),
                n_tokens: tokens.len(),
                n_ctx: N_LEAD + 1,
            });
        }
        let pieces = tokens.chunks(PIECE).filter(|piece| piece.len() > N_LEAD);
        let known: Vec<KnownText> = pieces
            .take(MAX_PIECES)
            .enumerate()
            .map(|(i, piece)| KnownText {
                id: format!("piece {}", i + 1),
                tokens: piece.to_vec(),
                embeddings: Vec::new(),
                n_prompt: N_LEAD,
            })
            .collect();
        Ok(Texts {
            origin: AgreementTexts::Given,
            n_predict: vec![0; known.len()],
            known,
            writing_ms: None,
        })
    }

    /// Takes the texts that other checks decoded.
    fn decoded(scores: &TargetScores, requests: &[Request]) -> Texts {
        let prompts = scores.prompts.iter();
        Texts::own(
            requests,
            prompts.map(|prompt| prompt.tokens[prompt.n_prompt_tokens as usize..].to_vec()),
        )
    }

    fn own(requests: &[Request], written: impl Iterator<Item = Vec<u32>>) -> Texts {
        let texts = requests.iter().zip(written);
        let (known, n_predict) = texts
            .map(|(request, written)| {
                let known = KnownText {
                    id: request.id.clone(),
                    tokens: [&request.tokens[..], &written].concat(),
                    embeddings: request.embeddings.clone(),
                    n_prompt: request.tokens.len(),
                };
                (known, request.n_predict)
            })
            .unzip();
        Texts {
            origin: AgreementTexts::Own,
            known,
            n_predict,
            writing_ms: None,
        }
    }

    /// Lets the target continue the prompts, all at once; `Err` is the message of a failed decoding.
    fn write<B: Backend>(
        bench: &PromptDecoder<'_, B>,
        config: &VerifyConfig,
    ) -> Result<Result<Texts, String>, Error> {
        let started = Instant::now();
        let options = writing(config, bench.requests.len());
        let decoded = bench.decode(&Setting::PLAIN, options, Proof::None)?;
        Ok(decoded.map(|decoded| {
            let written = decoded.completions.into_iter().map(|text| text.tokens);
            Texts {
                writing_ms: Some(started.elapsed().as_secs_f64() * 1e3),
                ..Texts::own(bench.requests, written)
            }
        }))
    }

    /// Returns the tokens of a text after its prompt.
    fn written(&self, i: usize) -> &[u32] {
        let text = &self.known[i];
        &text.tokens[text.n_prompt..]
    }
}

/// Compares the drafts of every speculator with a model. Returns failed checks besides the report.
///
/// # Errors
/// A run could not be started.
pub(super) fn agreement<B: Backend>(
    bench: &PromptDecoder<'_, B>,
    config: &VerifyConfig,
    settings: &[Setting],
    scores: Option<&TargetScores>,
    fit: Option<&FitReport>,
) -> Result<(Option<AgreementReport>, Vec<FailedCheck>), Error> {
    let texts = match (&config.text, scores) {
        (Some(text), _) => Texts::given(bench, text)?,
        (None, Some(scores)) => Texts::decoded(scores, bench.requests),
        (None, None) => match Texts::write(bench, config)? {
            Ok(texts) => texts,
            Err(why) => return Ok((None, vec![failed_target(&why)])),
        },
    };
    let mut report = AgreementReport {
        texts: texts.origin,
        n_texts: texts.known.len() as u64,
        n_positions: (0..texts.known.len())
            .map(|i| texts.written(i).len() as u64)
            .sum(),
        n_other_choices: 0,
        writing_ms: texts.writing_ms,
        speculators: Vec::new(),
    };
    let mut failed = Vec::new();
    for kind in kinds(settings) {
        match draft(bench, config, kind, &texts)? {
            Ok(drafted) => {
                let (found, n_other_choices) = judge(bench, config, kind, &texts, &drafted);
                let causes = likely_causes(bench.files, kind, fit)?;
                failed.extend(failed_floor(&found.name, found.floor.as_ref(), causes));
                report.n_other_choices = n_other_choices;
                report.speculators.push(found);
            }
            Err(why) => {
                failed.push(failed_run(Check::Agreement, Some(kind.name()), &why));
                report.speculators.push(SpeculatorAgreement {
                    name: kind.name().to_owned(),
                    by_draft_position: Vec::new(),
                    tokens_per_target_pass: None,
                    decoded: None,
                    elapsed_ms: 0.0,
                    floor: None,
                    floor_held: None,
                    error: Some(why),
                });
            }
        }
    }
    failed.extend(failed_choices(&report));
    Ok((Some(report), failed))
}

/// The drafts of one speculator, and the time that they took.
struct Drafted {
    texts: Vec<DraftedText>,
    elapsed_ms: f64,
}

/// Drafts at every position; `Err` is the message of an error or panic while drafting.
///
/// # Errors
/// The run could not be started, or was interrupted.
fn draft<B: Backend>(
    bench: &PromptDecoder<'_, B>,
    config: &VerifyConfig,
    kind: SpecType,
    texts: &Texts,
) -> Result<Result<Drafted, String>, Error> {
    match catch_panic(|| draft_or_panic(bench, config, kind, texts)) {
        Ok(Err(error)) if is_found_while_decoding(&error) => Ok(Err(error.to_string())),
        Ok(found) => found,
        Err(panic) => Ok(Err(panic)),
    }
}

fn draft_or_panic<B: Backend>(
    bench: &PromptDecoder<'_, B>,
    config: &VerifyConfig,
    kind: SpecType,
    texts: &Texts,
) -> Result<Result<Drafted, String>, Error> {
    let started = Instant::now();
    let lengths = texts.known.iter().map(|text| text.tokens.len());
    let n_ctx = lengths.max().unwrap_or_default();
    let run = run(config, kind, texts.known.len(), n_ctx);
    let mut driver = bench.loaded.driver(&run)?;
    let sampler = Sampler::new(config.options.sample)?;
    let drafted = driver.draft_known(&texts.known, sampler, &config.stop)?;
    if (config.stop)() {
        return Err(Error::Interrupted);
    }
    if let Some(failure) = driver.take_failures().pop() {
        return Ok(Err(failure.error.to_string()));
    }
    Ok(Ok(Drafted {
        texts: drafted,
        elapsed_ms: started.elapsed().as_secs_f64() * 1e3,
    }))
}

/// Counts the drafts of a speculator. Also returns the number of positions where the target chose another token than
/// the text has.
fn judge<B: Backend>(
    bench: &PromptDecoder<'_, B>,
    config: &VerifyConfig,
    kind: SpecType,
    texts: &Texts,
    drafted: &Drafted,
) -> (SpeculatorAgreement, u64) {
    let is_end = |token| bench.files.tokenizer.is_end_of_generation(token);
    let mut total = Tally::default();
    let mut sums: Vec<PositionCounts> = Vec::new();
    let mut n_other_choices = 0;
    for (i, text) in drafted.texts.iter().enumerate() {
        let written = texts.written(i);
        let others = text.choices.iter().zip(written.iter().skip(1));
        n_other_choices += others.filter(|(choice, token)| choice != token).count() as u64;
        for (k, counts) in text.count(written, &is_end).into_iter().enumerate() {
            if sums.len() <= k {
                sums.push(PositionCounts::default());
            }
            sums[k].n_drafted += counts.n_drafted;
            sums[k].n_accepted += counts.n_accepted;
        }
        // A text that does not end by itself is as long as it could be.
        let n_predict = match written.last() {
            Some(&last) if is_end(last) => texts.n_predict[i],
            _ => written.len(),
        };
        total.add_later(&text.decoded(written, kind, n_predict, &is_end));
    }
    let by_draft_position = positions(&sums);
    let rates = by_draft_position.iter().filter_map(|p| p.acceptance);
    let gain: f64 = rates.sum();
    let first = by_draft_position.first().map(|first| first.acceptance);
    // The check of the acceptance measures it.
    let is_judged = !config.is_asked(Stage::Acceptance);
    let n_drafted: u64 = sums.iter().map(|counts| counts.n_drafted).sum();
    let n_accepted: u64 = sums.iter().map(|counts| counts.n_accepted).sum();
    let over_all = (n_drafted > 0).then(|| n_accepted as f64 / n_drafted as f64);
    let floor = is_judged
        .then(|| floor(config, kind, over_all, first.flatten()))
        .flatten();
    let found = SpeculatorAgreement {
        name: kind.name().to_owned(),
        tokens_per_target_pass: first.map(|_| 1.0 + gain),
        by_draft_position,
        decoded: (texts.origin == AgreementTexts::Own).then(|| counters(&total)),
        elapsed_ms: drafted.elapsed_ms,
        floor_held: floor.as_ref().map(is_held),
        floor,
        error: None,
    };
    (found, n_other_choices)
}
