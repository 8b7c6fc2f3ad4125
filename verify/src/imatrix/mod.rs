//! Importance matrices, as llama-imatrix collects them: sums over the inputs of all weights while models
//! evaluate texts in chunks. Drafts are evaluated on the hidden states of their target.

mod collector;
mod follower;
mod state;
pub mod statistics;

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use kernels::backend::Backend;
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::loaded_models::{ObservedModels, load_observed};
use runner::model_files::{Files, ModelFile};
use runner::observe::InputObserver;
use runner::speculate::{DraftKind, SpecType};
use schemas::imatrix::{ImatrixFile, ImatrixFormat};
use schemas::progress::{Task, Unit};
use schemas::report::Estimate;
use schemas::threads;

use crate::error::Error;
use crate::perplexity::Text;
use crate::scores::log_sum_exp;

use collector::Collector;
use follower::{Follower, N_OUTPUTS, Pass};
use state::State;

/// Size and content of a collection.
#[derive(Clone, Debug)]
pub struct ImatrixConfig {
    /// Chunk length in tokens.
    pub n_ctx: usize,
    /// Maximum number of tokens of a pass. Whole chunks are evaluated together if they fit.
    pub n_batch: usize,
    /// Number of chunks that are skipped.
    pub first_chunk: usize,
    /// Maximum number of chunks.
    pub n_chunks_max: Option<usize>,
    /// True if the inputs of output heads are collected.
    pub process_output: bool,
    /// True if the perplexity is computed.
    pub perplexity: bool,
    /// The draft that is evaluated with the target.
    pub draft: Option<SpecType>,
    /// Element types of the KV caches.
    pub types: CacheTypes,
    /// State of an earlier run to continue from, if it exists.
    pub resume: Option<Resume>,
    /// If set, passes end after a multiple of this number of chunks.
    pub stop_every: Option<usize>,
}

/// The state file of a run.
#[derive(Clone, Debug)]
pub struct Resume {
    /// Path of the file.
    pub path: PathBuf,
    /// Everything that the sums depend on, one item a line.
    pub settings: String,
}

impl Resume {
    /// Adds the chunks to the settings.
    fn of(&self, chunks: &[Vec<u32>]) -> Resume {
        let mut hasher = DefaultHasher::new();
        chunks.hash(&mut hasher);
        let (n, hash) = (chunks.len(), hasher.finish());
        Resume {
            path: self.path.clone(),
            settings: format!("{}\nchunks {n} {hash:016x}", self.settings),
        }
    }
}

/// An importance matrix that was collected.
#[derive(Clone, Debug)]
pub struct Collected {
    /// The matrix, with the names of the texts.
    pub file: ImatrixFile,
    /// Number of chunks.
    pub n_chunks: usize,
    /// Number of these that an earlier run had added.
    pub n_resumed: usize,
    /// Perplexity of the target on the second halves of the chunks.
    pub perplexity: Option<Estimate>,
}

/// A collection after some chunks.
pub struct Progress<'a> {
    /// Number of chunks that were added.
    pub n_done: usize,
    collector: &'a Collector,
    surprises: Surprises,
    texts: &'a [Text],
    n_ctx: usize,
    n_heads: usize,
    resume: Option<&'a Resume>,
}

impl Progress<'_> {
    /// Returns the matrix of the chunks so far.
    pub fn file(&self) -> ImatrixFile {
        let to_u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let names = self.texts.iter().map(|text| text.name.as_str().into());
        ImatrixFile {
            format: ImatrixFormat::Gguf,
            datasets: names.collect(),
            n_chunks: to_u32(self.n_done),
            chunk_size: to_u32(self.n_ctx),
            n_heads: to_u32(self.n_heads),
            entries: self.collector.entries(),
        }
    }

    /// Writes the state file, from which a run with the same settings can continue.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> Result<(), Error> {
        let Some(Resume { path, settings }) = self.resume else {
            return Ok(());
        };
        let state = State {
            n_done: self.n_done,
            surprises: self.surprises,
            tensors: self.collector.sums(),
        };
        state.write(path, settings)
    }
}

/// Collects an importance matrix over complete chunks of texts. Calls `after_pass` when chunks were added.
///
/// # Errors
/// A model cannot be used, there is no complete chunk, an activation is NaN or infinite, the state to continue
/// from belongs to another run, or `after_pass` fails.
pub fn collect<B: Backend, E: From<Error>>(
    backend: &Arc<B>,
    files: &Files,
    texts: &[Text],
    config: &ImatrixConfig,
    mut after_pass: impl FnMut(&Progress<'_>) -> Result<(), E>,
) -> Result<Collected, E> {
    let chunks = chunks(texts, config)?;
    let resume = config.resume.as_ref().map(|resume| resume.of(&chunks));
    let resume = resume.as_ref();
    let state = match resume {
        Some(Resume { path, settings }) => State::read(path, settings)?,
        None => None,
    };
    let state = state.unwrap_or_default();
    let n_seq = (config.n_batch / config.n_ctx).clamp(1, chunks.len());
    let n_part = config.n_ctx.min(config.n_batch);
    let sizes = ContextConfig {
        cache: CacheConfig {
            n_seq,
            n_ctx: config.n_ctx,
            n_rollback: 0,
            types: config.types,
        },
        n_batch: n_seq * n_part,
        n_outputs: N_OUTPUTS,
    };
    let collector = Arc::new(Collector::new(config.process_output));
    let n_resumed = state.n_done.min(chunks.len());
    let mut surprises = state.surprises;
    collector.restore(state.tensors);
    let observer: Arc<dyn InputObserver> = Arc::<Collector>::clone(&collector);
    let loaded = load_observed(files, backend, config.draft, sizes, &observer);
    let ObservedModels { mut target, draft } = loaded.map_err(Error::from)?;
    let n_heads = match &draft {
        Some(draft) if draft.kind == DraftKind::Mtp => draft.context.model().n_heads(),
        _ => 0,
    };
    let draft_file = draft_file(files, config)?;
    let mut follower = draft.map(|draft| {
        let kind = draft.kind;
        Follower::new(draft, |block| {
            let name = match kind {
                DraftKind::Mtp => format!("blk.{block}.nextn.shared_head_head.weight"),
                _ if !config.process_output => return false,
                _ => "output.weight".to_owned(),
            };
            draft_file.is_some_and(|file| file.plan.tensor(&name).is_some())
        })
    });

    let progress = |n_done, surprises| Progress {
        n_done,
        collector: &collector,
        surprises,
        texts,
        n_ctx: config.n_ctx,
        n_heads,
        resume,
    };
    let task = Task::start("imatrix", chunks.len() as u64, Unit::Steps("chunks"));
    task.advance(n_resumed as u64);
    let mut n_done = n_resumed;
    while n_done < chunks.len() {
        let end = match config.stop_every {
            Some(every) => n_seq.min(every - n_done % every),
            None => n_seq,
        };
        let chunks = &chunks[n_done..chunks.len().min(n_done + end)];
        (0..chunks.len()).for_each(|seq| _ = target.truncate(seq, 0));
        for start in (0..config.n_ctx).step_by(n_part) {
            let pass = Pass {
                chunks,
                start,
                end: config.n_ctx.min(start + n_part),
            };
            target.run(&pass.batch(), None);
            if config.process_output || config.perplexity {
                evaluate_outputs(&mut target, pass, config, &mut surprises);
            }
            if let Some(follower) = &mut follower {
                follower.follow(pass, &target);
            }
            target.check().map_err(Error::from)?;
            if let Some(found) = collector.invalid() {
                return Err(Error::InvalidActivation {
                    model: model_of(files, draft_file, &found.tensor),
                    tensor: found.tensor,
                    chunk: config.first_chunk + n_done + found.row / (pass.end - start) + 1,
                    column: found.column,
                    value: found.value,
                }
                .into());
            }
        }
        n_done += chunks.len();
        task.advance(chunks.len() as u64);
        after_pass(&progress(n_done, surprises))?;
    }
    files.check_unchanged().map_err(Error::from)?;
    Ok(Collected {
        file: progress(n_done, surprises).file(),
        n_chunks: n_done,
        n_resumed,
        perplexity: config.perplexity.then(|| surprises.perplexity()),
    })
}

/// Returns the file of the draft.
fn draft_file<'a>(
    files: &'a Files,
    config: &ImatrixConfig,
) -> Result<Option<&'a ModelFile>, Error> {
    let Some(kind) = config.draft else {
        return Ok(None);
    };
    Ok(files.draft_file(kind)?.map(|draft| draft.file))
}

/// Returns the file that has a tensor.
fn model_of(files: &Files, draft: Option<&ModelFile>, tensor: &str) -> String {
    let has = |file: &&ModelFile| file.plan.tensor(tensor).is_some();
    let file = draft.filter(has).unwrap_or(&files.model);
    file.path.display().to_string()
}

/// Returns the chunks that are evaluated.
fn chunks(texts: &[Text], config: &ImatrixConfig) -> Result<Vec<Vec<u32>>, Error> {
    let n_ctx = config.n_ctx;
    let mut chunks = Vec::new();
    for text in texts {
        if text.tokens.len() < n_ctx {
            return Err(Error::ShortText {
                text: text.name.clone(),
                n_tokens: text.tokens.len(),
                n_ctx,
            });
        }
        chunks.extend(text.tokens.chunks_exact(n_ctx).map(|chunk| {
            let mut chunk = chunk.to_vec();
            chunk[0] = text.bos.unwrap_or(chunk[0]);
            chunk
        }));
    }
    let n_chunks = chunks.len();
    let chunks = chunks.into_iter().skip(config.first_chunk);
    let chunks: Vec<_> = chunks
        .take(config.n_chunks_max.unwrap_or(usize::MAX))
        .collect();
    match chunks.is_empty() {
        true => Err(Error::NoChunks {
            n_chunks,
            first_chunk: config.first_chunk,
        }),
        false => Ok(chunks),
    }
}

/// Evaluates the output head: for all rows if its inputs are collected, else for those that are scored.
fn evaluate_outputs<B: Backend>(
    target: &mut Context<B>,
    pass: Pass<'_>,
    config: &ImatrixConfig,
    surprises: &mut Surprises,
) {
    let n_part = pass.end - pass.start;
    let is_scored = |position: usize| {
        config.perplexity && (config.n_ctx / 2..config.n_ctx - 1).contains(&position)
    };
    let rows = 0..pass.chunks.len() * n_part;
    let rows = rows.filter(|row| config.process_output || is_scored(pass.start + row % n_part));
    let rows: Vec<usize> = rows.collect();
    let n_vocab = target.model().n_out();
    for rows in rows.chunks(N_OUTPUTS) {
        let logits = target.compute_logits(rows).chunks_exact(n_vocab);
        let next = |row: usize| {
            let position = pass.start + row % n_part;
            is_scored(position).then(|| pass.chunks[row / n_part][position + 1] as usize)
        };
        let scored: Vec<(&[f32], usize)> = logits
            .zip(rows)
            .filter_map(|(logits, &row)| Some((logits, next(row)?)))
            .collect();
        let surprise = |(): &mut (), &(logits, next): &(&[f32], usize)| {
            Ok::<f64, Infallible>(log_sum_exp(logits) - f64::from(logits[next]))
        };
        let found = threads::try_map(&scored, || (), surprise);
        surprises.add(&found.unwrap_or_else(|never| match never {}));
    }
}

/// Sums over the negative log-probabilities of scored tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Surprises {
    n: u64,
    sum: f64,
    squares: f64,
}

impl Surprises {
    fn add(&mut self, values: &[f64]) {
        for value in values {
            self.n += 1;
            self.sum += value;
            self.squares += value * value;
        }
    }

    /// Returns the perplexity; the error is propagated through `exp`.
    fn perplexity(&self) -> Estimate {
        let n = self.n as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0) / (n - 1.0).max(1.0);
        Estimate {
            value: mean.exp(),
            standard_error: mean.exp() * variance.sqrt(),
        }
    }
}
