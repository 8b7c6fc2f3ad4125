//! Other ways to decode the same prompts: longer and shorter drafts, several sequences at once,
//! sampled tokens. Tokens and logits must be those of the same prompts without drafts.

use kernels::backend::Backend;
use schemas::report::{FailedCheck, MatrixCell};

use crate::error::Error;
use crate::load::Files;
use crate::loaded::Loaded;
use crate::sample::SampleConfig;
use crate::speculate::{ChainConfig, Completion, Drafting, Request, SpecType};

use super::failed::failed_cell;
use super::judge::compare;
use super::{Bench, VerifyConfig, Way};

/// How many ways are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrix {
    /// Three, each on the beginning of the texts.
    Quick,
    /// All of six lengths of drafts, three numbers of sequences, with the likeliest tokens and
    /// sampled ones.
    Full,
}

/// Ways to decode.
#[derive(Clone, Debug)]
pub struct MatrixConfig {
    /// All of them.
    pub ways: Vec<Way>,
    /// Tokens written at most.
    pub n_predict: usize,
}

/// Temperature of the sampled ways.
const TEMPERATURE: f32 = 0.8;

impl Matrix {
    /// The ways, drafts made as in `basis` but for their lengths, and with its caches.
    pub fn config(self, basis: Way) -> MatrixConfig {
        let way = |n_max: usize, n_parallel, sampled: Option<u64>| Way {
            drafting: Drafting {
                chain: ChainConfig {
                    n_max,
                    ..basis.drafting.chain
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
                ways: vec![way(1, 1, None), way(8, 2, None), way(3, 5, Some(1))],
                n_predict: 32,
            },
            Matrix::Full => {
                let mut ways = Vec::new();
                for sampled in [None, Some(1)] {
                    for n_parallel in [1, 2, 5] {
                        let lengths = [1, 2, 3, 5, 8, 16];
                        ways.extend(lengths.map(|n_max| way(n_max, n_parallel, sampled)));
                    }
                }
                MatrixConfig {
                    ways,
                    n_predict: usize::MAX,
                }
            }
        }
    }
}

/// What all ways came to.
pub(super) struct Cells {
    pub(super) cells: Vec<MatrixCell>,
    pub(super) failed: Vec<FailedCheck>,
}

/// Decodes the prompts in every way, under every speculator.
pub(super) fn run<B: Backend>(
    loaded: &Loaded<'_, B>,
    files: &Files,
    config: &VerifyConfig,
    matrix: &MatrixConfig,
    spec_types: &[SpecType],
    requests: &[Request],
) -> Result<Cells, Error> {
    let shorter = |request: &Request| Request {
        n_predict: request.n_predict.min(matrix.n_predict),
        ..request.clone()
    };
    let requests: Vec<Request> = requests.iter().map(shorter).collect();
    let mut bench = Bench {
        files,
        loaded,
        requests: &requests,
        n_ctx: files.n_ctx(&requests),
        failures: Vec::new(),
    };
    let (mut cells, mut failed) = (Vec::new(), Vec::new());
    // Texts without drafts depend on nothing but how tokens are chosen.
    let mut plain: Option<(SampleConfig, Vec<Completion>)> = None;
    for &way in &matrix.ways {
        if plain
            .as_ref()
            .is_none_or(|(sample, _)| *sample != way.sample)
        {
            plain = Some((way.sample, bench.decode(None, way.alone())?.0));
        }
        for &kind in spec_types {
            let (drafted, total) = bench.decode(Some(kind), way)?;
            let shown = bench.shown(kind, way)?;
            let plain = plain.iter().flat_map(|(_, plain)| plain);
            let pairs = config
                .prompts
                .iter()
                .zip(&requests)
                .zip(plain.zip(&drafted));
            let runs = pairs.map(|((prompt, request), (plain, drafted))| {
                compare(shown, prompt, request, kind, plain, drafted)
            });
            let runs: Vec<_> = runs.collect();
            let is_same = |run: &&_| {
                let run: &schemas::report::VerifyRun = run;
                run.first_difference.is_none()
            };
            let cell = MatrixCell {
                speculator: kind.name().to_owned(),
                shape: way.shape(),
                n_prompts: runs.len() as u64,
                n_identical: runs.iter().filter(is_same).count() as u64,
                n_tokens: total.n_tokens,
                acceptance: total.acceptance(),
            };
            failed.extend(runs.iter().filter_map(|run| failed_cell(&cell, run)));
            cells.push(cell);
        }
    }
    failed.append(&mut bench.failures);
    Ok(Cells { cells, failed })
}
