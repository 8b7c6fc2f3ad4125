//! Decodes the same prompts several times with one set of loaded files.

use std::time::{Duration, Instant};

use kernels::backend::Backend;
use runner::loaded_models::LoadedModels;
use runner::model_files::Files;
use runner::run_config::{RunCaches, RunConfig};
use runner::sample::{SampleConfig, SampleError, Sampler};
use runner::speculate::{
    Completion, DecodeConfig, DraftConfig, Policy, Proof, Request, SpecType, TextConfig, TokenEvent,
};
use runner::tally::Tally;
use schemas::progress::{Task, Unit};
use schemas::report::WayShape;

use crate::error::Error;
use crate::report;

use super::catch_panic::catch_panic;
use super::setting::Setting;
use super::verdicts::Shown;

/// A configuration for decoding the prompts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeOptions {
    /// Configuration of drafting.
    pub drafting: DraftConfig,
    /// The choice between drafts of several speculators.
    pub policy: Policy,
    /// Sequences decoded in parallel with a speculator.
    pub n_parallel: usize,
    /// Maximum context of each sequence in tokens; the model's training context without it.
    pub n_ctx_max: Option<usize>,
    /// Sampling of tokens.
    pub sample: SampleConfig,
    /// Element types of the caches.
    pub caches: RunCaches,
}

impl DecodeOptions {
    /// Returns the configuration for plain decoding: one sequence.
    pub(super) fn alone(self) -> DecodeOptions {
        DecodeOptions {
            n_parallel: 1,
            ..self
        }
    }

    /// Returns the run configuration for `n_text` texts in a setting.
    pub(super) fn run(self, setting: &Setting, n_text: usize, n_ctx: usize) -> RunConfig {
        RunConfig {
            spec_types: setting.spec_types.clone(),
            policy: self.policy,
            drafting: self.drafting,
            n_seq: self.n_parallel.min(n_text),
            n_ctx,
            caches: self.caches,
        }
    }

    pub(super) fn shape(self) -> WayShape {
        WayShape {
            n_draft_max: self.drafting.limits.n_max as u32,
            n_parallel: self.n_parallel as u32,
            // Rounded to the decimal the user gave: 0.8 has no exact `f32`.
            temperature: (f64::from(self.sample.temperature) * 1e6).round() / 1e6,
            seed: self.sample.seed,
        }
    }
}

/// Loaded files, and the prompts to decode with them.
pub(super) struct PromptDecoder<'a, B: Backend> {
    pub(super) files: &'a Files,
    pub(super) loaded: &'a LoadedModels<'a, B>,
    pub(super) requests: &'a [Request],
    stop: fn() -> bool,
}

/// Result of decoding all prompts.
pub(super) struct Decoded {
    pub(super) completions: Vec<Completion>,
    pub(super) total: Tally,
    /// Speculators that failed and were disabled, with the error.
    pub(super) disabled: Vec<(SpecType, String)>,
    /// Wall time, prompts included.
    pub(super) wall: Duration,
}

impl<'a, B: Backend> PromptDecoder<'a, B> {
    pub(super) fn new(
        files: &'a Files,
        loaded: &'a LoadedModels<'a, B>,
        requests: &'a [Request],
        stop: fn() -> bool,
    ) -> PromptDecoder<'a, B> {
        PromptDecoder {
            files,
            loaded,
            requests,
            stop,
        }
    }

    /// Returns a decoder of other prompts with the same files.
    pub(super) fn of<'b>(&self, requests: &'b [Request]) -> PromptDecoder<'b, B>
    where
        'a: 'b,
    {
        PromptDecoder { requests, ..*self }
    }

    fn sizes(&self, setting: &Setting, options: DecodeOptions) -> RunConfig {
        let n_ctx = self.files.n_ctx(self.requests, options.n_ctx_max);
        options.run(setting, self.requests.len(), n_ctx)
    }

    /// Returns the context needed to describe differences in a setting.
    pub(super) fn shown(
        &self,
        setting: &Setting,
        options: DecodeOptions,
    ) -> Result<Shown<'a>, Error> {
        let sizes = self.sizes(setting, options);
        Ok(Shown {
            tokenizer: &self.files.tokenizer,
            rollback: report::rollback(self.files.target_sizes::<B>(&sizes)?.rollback),
        })
    }

    /// Decodes all prompts. Returns their texts, or the message of an error or panic while
    /// decoding.
    ///
    /// # Errors
    /// The run could not be started (out of memory, a prompt that cannot be decoded), or the device
    /// failed.
    pub(super) fn decode(
        &self,
        setting: &Setting,
        options: DecodeOptions,
        proof: Proof,
    ) -> Result<Result<Decoded, String>, Error> {
        match catch_panic(|| self.decode_or_panic(setting, options, proof)) {
            Ok(Ok(decoded)) => Ok(Ok(decoded)),
            Ok(Err(error)) if is_found_while_decoding(&error) => Ok(Err(error.to_string())),
            Ok(Err(error)) => Err(error),
            Err(panic) => Ok(Err(panic)),
        }
    }

    fn decode_or_panic(
        &self,
        setting: &Setting,
        options: DecodeOptions,
        proof: Proof,
    ) -> Result<Decoded, Error> {
        let started = Instant::now();
        let tokenizer = &self.files.tokenizer;
        let mut disabled = Vec::new();
        let is_end = |token| tokenizer.is_end_of_generation(token);
        let text = TextConfig::new(Sampler::new(options.sample)?);
        let n_tokens = self.requests.iter().map(|request| request.n_predict as u64);
        let label = match setting.spec_types.as_slice() {
            [] => "decode without drafts".to_owned(),
            _ => format!("decode with {}", setting.name()),
        };
        let task = Task::start(&label, n_tokens.sum(), Unit::Steps("tokens"));
        let mut count = |_: TokenEvent<'_>| task.advance(1);
        let mut decode = DecodeConfig {
            on_token: Some(&mut count),
            on_failure: Some(&mut |failure| {
                let message = failure.error.to_string();
                disabled.push((failure.kind, message));
            }),
            ..DecodeConfig::new(text.with_proof(proof), &is_end)
        };
        let mut driver = self.loaded.driver(&self.sizes(setting, options))?;
        let (completions, total) = driver.decode_until(self.requests, &mut decode, &self.stop)?;
        if (self.stop)() {
            return Err(Error::Interrupted);
        }
        Ok(Decoded {
            completions,
            total,
            disabled,
            wall: started.elapsed(),
        })
    }
}

/// True if decoding itself failed. Every other error means that the run could not be started.
pub(super) fn is_found_while_decoding(error: &Error) -> bool {
    use SampleError::{Logit, NoCandidate};
    match error {
        Error::Run(runner::Error::Sample(error)) => {
            matches!(error, Logit { .. } | NoCandidate { .. })
        }
        error => matches!(error, Error::Run(runner::Error::NoSuchText { .. })),
    }
}
