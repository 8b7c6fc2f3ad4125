//! Importance matrices, as llama-imatrix collects them: sums over the inputs of all weights while models
//! evaluate texts in chunks. Drafts are evaluated on the hidden states of their target.

mod collector;
mod follower;
mod state;
pub mod statistics;

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::backend::Backend;
use kernels::distribution::Distribution;
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::loaded_models::{ObservedModels, load_observed};
use runner::model_files::{Files, ModelFile};
use runner::observe::InputObserver;
use runner::speculate::{DraftKind, SpecType};
use schemas::gguf::{Array, Plan, Value};
use schemas::imatrix::{ImatrixEntry, ImatrixFile, ImatrixFormat};
use schemas::progress::{Task, Unit};
use schemas::report::Estimate;
use schemas::threads;

use crate::error::Error;
use crate::perplexity::Text;

use collector::{Collector, TensorSums};
use follower::{Follower, N_OUTPUTS, Pass};
use state::State;
pub(crate) use state::f64_tensor;

/// Maximum number of groups of chunks; see [`groups`].
const MAX_GROUPS: usize = 64;
/// Group lengths are multiples of so many chunks, which a pass evaluates together by default.
const GROUP_STEP: usize = 4;

/// Divides chunks into groups. The sums of each group are complete before they are added to the total, so that
/// machines that share the groups get the same bits as one machine.
pub fn groups(n_chunks: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    let len = group_len(n_chunks);
    (0..n_chunks.div_ceil(len)).map(move |i| i * len..((i + 1) * len).min(n_chunks))
}

fn group_len(n_chunks: usize) -> usize {
    let len = n_chunks.div_ceil(MAX_GROUPS);
    len.next_multiple_of(GROUP_STEP).max(GROUP_STEP)
}

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
    sums: &'a Sums,
    texts: &'a [Text],
    n_ctx: usize,
    resume: Option<&'a Resume>,
}

impl Progress<'_> {
    /// Returns the matrix of the chunks so far.
    pub fn file(&self) -> ImatrixFile {
        let Sums {
            collector, n_heads, ..
        } = self.sums;
        let entries = collector.entries();
        file(self.texts, self.n_ctx, self.n_done, *n_heads, entries)
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
            n_heads: self.sums.n_heads,
            surprises: self.sums.surprises,
            tensors: self.sums.collector.totals(),
            group_surprises: self.sums.group,
            group: self.sums.collector.group(),
        };
        state.write(path, settings)
    }
}

/// Returns a matrix with the names of its texts.
fn file(
    texts: &[Text],
    n_ctx: usize,
    n_chunks: usize,
    n_heads: usize,
    entries: BTreeMap<String, ImatrixEntry>,
) -> ImatrixFile {
    let to_u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let names = texts.iter().map(|text| text.name.as_str().into());
    ImatrixFile {
        format: ImatrixFormat::Gguf,
        datasets: names.collect(),
        n_chunks: to_u32(n_chunks),
        chunk_size: to_u32(n_ctx),
        n_heads: to_u32(n_heads),
        entries,
    }
}

/// Sums of the chunks so far.
struct Sums {
    collector: Arc<Collector>,
    /// Negative log-probabilities in the groups that are complete.
    surprises: Surprises,
    /// Negative log-probabilities in the current group.
    group: Surprises,
    n_heads: usize,
}

impl Sums {
    fn new(config: &ImatrixConfig) -> Sums {
        Sums {
            collector: Arc::new(Collector::new(config.process_output)),
            surprises: Surprises::default(),
            group: Surprises::default(),
            n_heads: 0,
        }
    }

    fn end_group(&mut self) {
        self.collector.end_group();
        self.surprises.merge(std::mem::take(&mut self.group));
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
    let n_resumed = state.n_done.min(chunks.len());
    let mut sums = Sums::new(config);
    (sums.surprises, sums.group) = (state.surprises, state.group_surprises);
    sums.collector.restore(state.tensors, state.group);
    let range = n_resumed..chunks.len();
    evaluate(
        backend,
        files,
        &chunks,
        range,
        config,
        &mut sums,
        |n_done, sums| {
            if ends_group(n_done, chunks.len()) {
                sums.end_group();
                check_sums(files, config, n_done, sums)?;
            }
            after_pass(&Progress {
                n_done,
                sums,
                texts,
                n_ctx: config.n_ctx,
                resume,
            })
        },
    )?;
    let n_chunks = chunks.len();
    let entries = sums.collector.entries();
    Ok(Collected {
        file: file(texts, config.n_ctx, n_chunks, sums.n_heads, entries),
        n_chunks,
        n_resumed,
        perplexity: config.perplexity.then(|| sums.surprises.perplexity()),
    })
}

/// Returns the number of chunks that [`collect`] evaluates.
///
/// # Errors
/// There is no complete chunk.
pub fn n_chunks(texts: &[Text], config: &ImatrixConfig) -> Result<usize, Error> {
    Ok(chunks(texts, config)?.len())
}

/// Collects the sums of consecutive groups of chunks, for [`join_groups`]. Returns one file for each group.
///
/// # Errors
/// See [`collect`].
pub fn collect_groups<B: Backend>(
    backend: &Arc<B>,
    files: &Files,
    texts: &[Text],
    config: &ImatrixConfig,
    range: Range<usize>,
) -> Result<Vec<Plan>, Error> {
    let chunks = chunks(texts, config)?;
    let mut plans = Vec::new();
    let mut sums = Sums::new(config);
    let mut start = range.start;
    evaluate(
        backend,
        files,
        &chunks,
        range,
        config,
        &mut sums,
        |n_done, sums| {
            if ends_group(n_done, chunks.len()) {
                let state = State {
                    n_done: n_done - std::mem::replace(&mut start, n_done),
                    n_heads: sums.n_heads,
                    surprises: std::mem::take(&mut sums.group),
                    tensors: sums.collector.take_group(),
                    ..State::default()
                };
                plans.push(state.plan(GROUP_SETTINGS));
            }
            Ok::<(), Error>(())
        },
    )?;
    Ok(plans)
}

/// Adds the sums of all groups, in their order. `texts` are the names of the texts.
///
/// # Errors
/// A file has no sums of a group, or their total is too large.
pub fn join_groups<'a>(
    texts: &[PathBuf],
    config: &ImatrixConfig,
    groups: impl IntoIterator<Item = (&'a Path, &'a Plan)>,
) -> Result<Collected, Error> {
    let mut totals: Vec<TensorSums> = Vec::new();
    let mut by_name: HashMap<String, usize> = HashMap::new();
    let (mut n_chunks, mut n_heads) = (0, 0);
    let mut surprises = Surprises::default();
    for (path, plan) in groups {
        let state = State::of(plan, path, GROUP_SETTINGS)?;
        n_chunks += state.n_done;
        n_heads = state.n_heads;
        surprises.merge(state.surprises);
        for sums in state.tensors {
            let index = *by_name.entry(sums.name.clone()).or_insert_with(|| {
                totals.push(TensorSums {
                    n_columns: sums.n_columns,
                    n_matrices: sums.n_matrices,
                    is_routed: sums.is_routed,
                    ..TensorSums::named(&sums.name)
                });
                totals.len() - 1
            });
            let total = &mut totals[index];
            let is_same = [total.n_columns, total.n_matrices] == [sums.n_columns, sums.n_matrices];
            let invalid = match is_same {
                true => total.merge(&sums).map(|found| found.to_string()),
                false => Some(format!(
                    "tensor {}: another shape than in other groups",
                    sums.name
                )),
            };
            if let Some(message) = invalid {
                let path = path.to_path_buf();
                return Err(Error::State { path, message });
            }
        }
    }
    let names = texts.iter().map(|path| Text {
        name: path.display().to_string(),
        bos: None,
        tokens: Vec::new(),
    });
    let names: Vec<Text> = names.collect();
    let entries = collector::entries(totals);
    Ok(Collected {
        file: file(&names, config.n_ctx, n_chunks, n_heads, entries),
        n_chunks,
        n_resumed: 0,
        perplexity: config.perplexity.then(|| surprises.perplexity()),
    })
}

/// Settings in the file of a group: the plan of the work has the others.
const GROUP_SETTINGS: &str = "group";

/// Returns true if a group ends after a number of chunks.
fn ends_group(n_done: usize, n_chunks: usize) -> bool {
    n_done == n_chunks || n_done.is_multiple_of(group_len(n_chunks))
}

/// Fails if an input was not a number.
fn check_sums(
    files: &Files,
    config: &ImatrixConfig,
    chunk: usize,
    sums: &Sums,
) -> Result<(), Error> {
    let Some(found) = sums.collector.invalid() else {
        return Ok(());
    };
    Err(Error::InvalidActivation {
        model: model_of(files, draft_file(files, config)?, &found.tensor),
        tensor: found.tensor,
        chunk: config.first_chunk + chunk,
        column: found.column,
        value: found.value,
    })
}

/// Evaluates a range of chunks. Calls `after_pass` with the number of chunks that were added; passes end with groups.
fn evaluate<B: Backend, E: From<Error>>(
    backend: &Arc<B>,
    files: &Files,
    chunks: &[Vec<u32>],
    range: Range<usize>,
    config: &ImatrixConfig,
    sums: &mut Sums,
    mut after_pass: impl FnMut(usize, &mut Sums) -> Result<(), E>,
) -> Result<(), E> {
    let n_seq = (config.n_batch / config.n_ctx).clamp(1, range.len().max(1));
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
    let observer: Arc<dyn InputObserver> = Arc::<Collector>::clone(&sums.collector);
    let loaded = load_observed(files, backend, config.draft, sizes, &observer);
    let ObservedModels { mut target, draft } = loaded.map_err(Error::from)?;
    sums.n_heads = match &draft {
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
    let task = Task::start("imatrix", chunks.len() as u64, Unit::Steps("chunks"));
    task.advance(range.start as u64);
    let mut n_done = range.start;
    while n_done < range.end {
        let to_multiple = |every: usize| every - n_done % every;
        let mut len = n_seq.min(to_multiple(group_len(chunks.len())));
        if let Some(every) = config.stop_every {
            len = len.min(to_multiple(every));
        }
        let chunks = &chunks[n_done..range.end.min(n_done + len)];
        (0..chunks.len()).for_each(|seq| _ = target.truncate(seq, 0));
        for start in (0..config.n_ctx).step_by(n_part) {
            let pass = Pass {
                chunks,
                start,
                end: config.n_ctx.min(start + n_part),
            };
            target.run(&pass.batch(), None);
            if config.process_output || config.perplexity {
                evaluate_outputs(&mut target, pass, config, &mut sums.group);
            }
            if let Some(follower) = &mut follower {
                follower.follow(pass, &target);
            }
            target.check().map_err(Error::from)?;
            if let Some(found) = sums.collector.invalid() {
                let chunk = n_done + found.row / (pass.end - start) + 1;
                check_sums(files, config, chunk, sums)?;
            }
        }
        n_done += chunks.len();
        task.advance(chunks.len() as u64);
        after_pass(n_done, sums)?;
    }
    files.check_unchanged().map_err(Error::from)?;
    Ok(())
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
            is_scored(position).then(|| pass.chunks[row / n_part][position + 1])
        };
        let scored: Vec<(&[f32], u32)> = logits
            .zip(rows)
            .filter_map(|(logits, &row)| Some((logits, next(row)?)))
            .collect();
        let surprise = |(): &mut (), &(logits, next): &(&[f32], u32)| {
            Ok::<f64, Infallible>(Distribution::of(logits).surprise(next))
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

    /// Adds the sums of another group of chunks.
    fn merge(&mut self, group: Surprises) {
        self.n += group.n;
        self.sum += group.sum;
        self.squares += group.squares;
    }

    /// Returns the sums as numbers of a file.
    fn numbers(self) -> Vec<f64> {
        vec![self.n as f64, self.sum, self.squares]
    }

    /// Reads the sums from numbers of a file.
    fn of(numbers: &Array) -> Option<Surprises> {
        let number = |i| match numbers.get(i) {
            Some(Value::F64(number)) => Some(number),
            _ => None,
        };
        Some(Surprises {
            n: number(0)? as u64,
            sum: number(1)?,
            squares: number(2)?,
        })
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
