//! Other configurations for the same prompts: longer and shorter drafts, several parallel
//! sequences, sampled tokens. Tokens and logits must be those of the same prompts without drafts.

use kernels::backend::Backend;
use runner::sample::SampleConfig;
use runner::speculate::{DraftConfig, DraftLimits, Proof, Request};
use schemas::report::{Check, FailedCheck, MatrixCell, VerifyRun};

use crate::error::Error;

use super::failed_checks::{disabled, failed_cell, failed_identity, failed_run, failed_target};
use super::prompt_decoder::{Decoded, PromptDecoder};
use super::setting::Setting;
use super::verdicts::compare;
use super::{DecodeOptions, VerifyConfig};

/// Number of configurations to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrix {
    /// Three, each with shortened texts.
    Quick,
    /// All combinations of six draft lengths and three numbers of sequences, greedy and sampled.
    Full,
}

/// Configurations to check.
#[derive(Clone, Debug)]
pub struct MatrixConfig {
    /// The configurations.
    pub options: Vec<DecodeOptions>,
    /// Maximum number of tokens to generate.
    pub n_predict: usize,
}

/// Temperature of the sampled configurations.
const TEMPERATURE: f32 = 0.8;

impl Matrix {
    /// Returns the configurations: drafting and caches as in `basis`, except for the draft lengths.
    pub fn config(self, basis: DecodeOptions) -> MatrixConfig {
        let options = |n_max: usize, n_parallel, sampled: Option<u64>| DecodeOptions {
            drafting: DraftConfig {
                limits: DraftLimits {
                    n_max,
                    ..basis.drafting.limits
                },
                ..basis.drafting
            },
            n_parallel,
            sample: match sampled {
                Some(seed) => SampleConfig::at(TEMPERATURE, seed),
                None => SampleConfig::GREEDY,
            },
            ..basis
        };
        match self {
            Matrix::Quick => MatrixConfig {
                options: vec![
                    options(1, 1, None),
                    options(8, 2, None),
                    options(3, 5, Some(1)),
                ],
                n_predict: 32,
            },
            Matrix::Full => {
                let mut all = Vec::new();
                for sampled in [None, Some(1)] {
                    for n_parallel in [1, 2, 5] {
                        let lengths = [1, 2, 3, 5, 8, 16];
                        all.extend(lengths.map(|n_max| options(n_max, n_parallel, sampled)));
                    }
                }
                MatrixConfig {
                    options: all,
                    n_predict: usize::MAX,
                }
            }
        }
    }
}

/// Results of all configurations.
pub(super) struct Cells {
    pub(super) cells: Vec<MatrixCell>,
    pub(super) failed: Vec<FailedCheck>,
}

/// Decodes the prompts in every configuration and every setting.
pub(super) fn run<B: Backend>(
    bench: &PromptDecoder<'_, B>,
    config: &VerifyConfig,
    matrix: &MatrixConfig,
    settings: &[Setting],
) -> Result<Cells, Error> {
    let shorter = |request: &Request| Request {
        n_predict: request.n_predict.min(matrix.n_predict),
        ..request.clone()
    };
    let requests: Vec<Request> = bench.requests.iter().map(shorter).collect();
    let bench = bench.of(&requests);
    let (mut cells, mut failed) = (Vec::new(), Vec::new());
    // Texts without drafts depend on the sampler alone.
    let mut plain: Option<(SampleConfig, Decoded)> = None;
    for &options in &matrix.options {
        if plain
            .as_ref()
            .is_none_or(|(sample, _)| *sample != options.sample)
        {
            match bench.decode(&Setting::PLAIN, options.alone(), Proof::Logits)? {
                Ok(decoded) => plain = Some((options.sample, decoded)),
                Err(why) => {
                    failed.push(failed_target(&why));
                    continue;
                }
            }
        }
        let Some((_, plain)) = &plain else { continue };
        for setting in settings {
            let name = setting.name();
            let mut cell = MatrixCell {
                speculator: name.clone(),
                shape: options.shape(),
                n_prompts: requests.len() as u64,
                n_identical: 0,
                n_tokens: 0,
                acceptance: None,
            };
            let found = match bench.decode(setting, options, Proof::Logits)? {
                Ok(drafted) => {
                    let shown = bench.shown(setting, options)?;
                    let texts = plain.completions.iter().zip(&drafted.completions);
                    let prompts = config.prompts.iter().zip(&requests);
                    let runs = prompts
                        .zip(texts)
                        .map(|((prompt, request), (plain, drafted))| {
                            compare(shown, prompt, request, &name, plain, drafted)
                        });
                    let runs: Vec<VerifyRun> = runs.collect();
                    let is_same = |run: &&VerifyRun| run.first_difference.is_none();
                    cell.n_identical = runs.iter().filter(is_same).count() as u64;
                    cell.n_tokens = drafted.total.n_tokens;
                    cell.acceptance = drafted.total.acceptance();
                    let failures = drafted.disabled.iter();
                    let failures = failures.map(|(kind, why)| disabled(&name, *kind, why));
                    let different = runs.iter().filter_map(failed_identity);
                    different.chain(failures).collect()
                }
                Err(why) => vec![failed_run(Check::Speculator, Some(&name), &why)],
            };
            failed.extend(found.into_iter().map(|found| failed_cell(&cell, found)));
            cells.push(cell);
        }
    }
    Ok(Cells { cells, failed })
}
