//! Caches of a model: keys and values of attention layers, states of recurrent layers. Buffers
//! start as NaN and are never cleared, so a read of a cell that no token of the sequence wrote
//! shows in the logits at once.

mod compressed;
mod kv;
mod recurrent;
mod slots;

use std::ops::Range;

use kernels::backend::{Backend, CacheShape, CacheType, KeyRows, Step};
use schemas::arch::{Hparams, LayerKind};

use crate::batch::{Batch, Run, SeqId};
use crate::error::ModelError;

pub use compressed::{CompressedKv, CompressedRows, GroupPlaces};
pub use kv::Kv;
pub use recurrent::Recurrent;
pub use slots::Slots;

use compressed::Groups;

/// The cache of one layer.
pub enum LayerCache<B: Backend> {
    /// Keys and values of every position.
    Kv(Kv<B>),
    /// Keys and values of every position, and compressed ones.
    Compressed(Box<CompressedKv<B>>),
    /// States after the last positions.
    Recurrent(Recurrent<B>),
    /// Nothing: the layer is a feed-forward network.
    Empty,
}

/// Size of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Number of sequences.
    pub n_seq: usize,
    /// Maximum number of positions of each sequence.
    pub n_ctx: usize,
    /// Number of older states kept for recurrent layers: a sequence can be rolled back by this many
    /// positions at no cost. A longer rollback reruns the tokens after the checkpoint.
    pub n_rollback: usize,
    /// Element types of keys and values.
    pub types: CacheTypes,
}

impl CacheConfig {
    /// Rejects a cache larger than the free memory or the address space.
    pub(crate) fn check_memory(self, need_bytes: u128, free_bytes: u64) -> Result<(), ModelError> {
        let free_bytes = free_bytes.min(isize::MAX as u64);
        if need_bytes <= u128::from(free_bytes) {
            return Ok(());
        }
        Err(ModelError::CacheSize {
            n_seq: self.n_seq,
            n_ctx: self.n_ctx,
            need_bytes,
            free_bytes,
        })
    }
}

/// The rollback of a sequence after rejected tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rollback {
    /// Positions are dropped from the KV caches; no layer is recurrent.
    Truncation,
    /// Recurrent layers return to a state kept for the position.
    States,
    /// As `States`; where no state is kept, tokens after a checkpoint are evaluated again.
    Checkpoint,
}

/// Element types of keys and values. States of recurrent layers are always `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheTypes {
    /// Type of keys, and of compressed rows, which are keys and values at once.
    pub k: CacheType,
    /// Type of values.
    pub v: CacheType,
}

impl CacheTypes {
    /// No rounding, for comparisons with implementations that use single precision throughout.
    pub const F32: CacheTypes = CacheTypes {
        k: CacheType::F32,
        v: CacheType::F32,
    };
}

/// Bytes of a cache; the sizes can exceed the address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheBytes {
    /// Keys and values.
    pub kv: u128,
    /// The newest states of recurrent layers.
    pub states: u128,
    /// Older states of recurrent layers, kept for rollback.
    pub rollback: u128,
    /// The state of the checkpoint.
    pub checkpoint: u128,
}

impl CacheBytes {
    /// Returns the sizes of a cache for the given blocks of a file.
    ///
    /// # Errors
    /// The head size is not a multiple of a type's block length.
    pub fn of<B: Backend>(
        hparams: &Hparams,
        blocks: Range<u32>,
        config: CacheConfig,
    ) -> Result<CacheBytes, ModelError> {
        let n_rows = config.n_seq.saturating_mul(config.n_ctx);
        let float = size_of::<f32>() as u128;
        let n_seq = config.n_seq as u128;
        let mut bytes = CacheBytes::default();
        for block in blocks {
            match kind(hparams, block) {
                LayerKind::Recurrent => {
                    let state = n_seq * Recurrent::<B>::slot_len(hparams) as u128 * float;
                    bytes.states += state;
                    bytes.rollback += state * config.n_rollback as u128;
                    bytes.checkpoint += state;
                }
                LayerKind::Attention | LayerKind::Mtp => {
                    let shapes = Kv::<B>::shapes(hparams, block, config.types, n_rows)?;
                    bytes.kv += shapes.iter().map(CacheShape::bytes).sum::<u128>();
                    let groups = Groups::of(hparams, block, config.n_ctx, config.n_rollback);
                    let Some(groups) = groups else { continue };
                    let (newest, rollback) = groups.n_slots();
                    for shape in compressed::shapes(hparams, &groups, config.types, config.n_seq)? {
                        bytes.kv += shape.cache.bytes();
                        bytes.states += shape.kept_bytes(n_seq * newest);
                        bytes.rollback += shape.kept_bytes(n_seq * rollback);
                    }
                }
                LayerKind::FeedForward => {}
            }
        }
        Ok(bytes)
    }

    /// Returns the sum.
    pub fn total(&self) -> u128 {
        self.kv + self.states + self.rollback + self.checkpoint
    }
}

fn kind(hparams: &Hparams, block: u32) -> LayerKind {
    hparams.layers[block as usize]
}

/// The caches of all layers, for all sequences.
pub struct Cache<B: Backend> {
    config: CacheConfig,
    layers: Vec<LayerCache<B>>,
    seqs: Vec<SeqState>,
    has_recurrent: bool,
    /// Groups of compressed positions, one entry for each ratio of the layers.
    groups: Vec<Groups>,
}

/// The positions of a sequence that are in the caches.
#[derive(Clone, Debug, Default)]
struct SeqState {
    /// First position.
    start: u32,
    /// One past the last position.
    len: u32,
    slots: Slots,
    /// Groups of compressed positions, and the first position whose row is still in their ring.
    groups: Vec<(Groups, u32)>,
}

/// The cache rows used by a batch; the same for every layer.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Cache row that receives each token's key and value.
    pub rows: Vec<usize>,
    /// Cache rows that each token attends to.
    pub keys: Vec<KeyRows>,
    /// The same within a sliding window, where tokens attend to whole blocks.
    pub windowed: Vec<KeyRows>,
    /// Recurrent steps, one per token.
    pub steps: Vec<Step>,
    /// Number of tokens of its sequence before each token of the batch.
    pub in_run: Vec<u32>,
    /// Compressed positions, one entry for each ratio of the layers.
    pub groups: Vec<GroupPlaces>,
}

impl Places {
    fn clear(&mut self) {
        self.rows.clear();
        self.keys.clear();
        self.windowed.clear();
        self.steps.clear();
        self.in_run.clear();
    }
}

impl Places {
    /// Lets each token attend to all tokens of its sequence in the batch, and in layers with a window of
    /// `window` positions to those before it in the window and to all after it.
    pub(crate) fn see_whole_runs(&mut self, batch: &Batch, window: Option<usize>) {
        for Run { rows, .. } in batch.runs() {
            let end = self.keys[rows.end - 1].end;
            for keys in &mut self.keys[rows] {
                let before = window.map_or(0, |window| keys.end.saturating_sub(window));
                self.windowed.push(keys.start.max(before)..end);
                keys.end = end;
            }
        }
    }
}

impl<B: Backend> Cache<B> {
    /// Allocates caches for the given blocks of a file.
    ///
    /// # Errors
    /// There is not enough memory, or the head size is not a multiple of a type's block length.
    pub fn new(
        backend: &B,
        hparams: &Hparams,
        blocks: Range<u32>,
        config: CacheConfig,
    ) -> Result<Cache<B>, ModelError> {
        let CacheConfig {
            n_seq,
            n_ctx,
            n_rollback,
            types,
        } = config;
        let slots = n_seq as u128 * Slots::number(n_rollback) as u128;
        let n_rows = n_seq.saturating_mul(n_ctx);
        let need_bytes = CacheBytes::of::<B>(hparams, blocks.clone(), config)?.total();
        config.check_memory(need_bytes, backend.free_bytes().unwrap_or(u64::MAX))?;
        let layer = |block| match kind(hparams, block) {
            LayerKind::Recurrent => Ok(LayerCache::Recurrent(Recurrent::new(
                backend,
                hparams,
                slots as usize,
            ))),
            LayerKind::Attention | LayerKind::Mtp => {
                let shapes = Kv::<B>::shapes(hparams, block, types, n_rows)?;
                let kv = Kv::new(backend, &shapes);
                let Some(groups) = Groups::of(hparams, block, n_ctx, n_rollback) else {
                    return Ok(LayerCache::Kv(kv));
                };
                let shapes = compressed::shapes(hparams, &groups, types, n_seq)?;
                let caches = CompressedKv::new(backend, kv, groups, &shapes, n_seq);
                Ok(LayerCache::Compressed(Box::new(caches)))
            }
            LayerKind::FeedForward => Ok(LayerCache::Empty),
        };
        let is_recurrent = |block| kind(hparams, block) == LayerKind::Recurrent;
        let has_recurrent = blocks.clone().any(is_recurrent);
        let mut groups: Vec<Groups> = blocks
            .clone()
            .filter_map(|block| Groups::of(hparams, block, n_ctx, n_rollback))
            .collect();
        groups.sort_by_key(Groups::ratio);
        groups.dedup();
        let layers = blocks.map(layer).collect::<Result<_, ModelError>>()?;
        Ok(Cache {
            config,
            layers,
            seqs: (0..n_seq)
                .map(|seq| SeqState::new(seq, n_rollback, &groups))
                .collect(),
            has_recurrent,
            groups,
        })
    }

    /// Returns the maximum number of positions of each sequence.
    pub fn n_ctx(&self) -> usize {
        self.config.n_ctx
    }

    /// Returns the number of positions of a sequence.
    pub fn len(&self, seq: SeqId) -> u32 {
        self.seqs[seq].len
    }

    /// Returns the cache of one layer.
    pub fn layer(&mut self, layer: usize) -> &mut LayerCache<B> {
        &mut self.layers[layer]
    }

    /// True if layers have states, which are kept for some positions only: of a recurrence, or of positions that are
    /// compressed next.
    pub fn has_states(&self) -> bool {
        self.has_recurrent || !self.groups.is_empty()
    }

    /// Assigns cache rows to the tokens of a batch and counts them as cached.
    pub fn place(&mut self, batch: &Batch, places: &mut Places) {
        let n_ctx = self.config.n_ctx;
        places.clear();
        let ratios = self.groups.iter().map(Groups::ratio);
        places
            .groups
            .resize_with(self.groups.len(), GroupPlaces::default);
        (places.groups.iter_mut().zip(ratios)).for_each(|(places, ratio)| places.clear(ratio));
        for run in batch.runs() {
            let state = &mut self.seqs[run.seq];
            let end = state.len + run.rows.len() as u32;
            for ((groups, oldest), places) in state.groups.iter_mut().zip(&mut places.groups) {
                groups.place(&run, [state.start, state.len], places);
                *oldest = groups.oldest(end).max(*oldest);
            }
            let Run { seq, rows } = run;
            state.slots.before_run(state.len, rows.len());
            for (in_run, row) in (0..).zip(rows) {
                let position = batch.positions[row];
                assert_eq!(position, state.len, "tokens of a sequence come in order");
                assert!(
                    (position as usize) < n_ctx,
                    "the driver stops at the end of the context"
                );
                state.len += 1;
                let first = seq * n_ctx;
                let keys = first + state.start as usize..first + state.len as usize;
                places.in_run.push(in_run);
                places.rows.push(first + position as usize);
                places.keys.push(keys);
                let before = position.checked_sub(1).filter(|_| position > state.start);
                let read = before.map(|before| state.slots.of(before));
                let write = state.slots.write(position);
                places.steps.push(Step { row, read, write });
            }
        }
    }

    /// Lets each token of a batch attend to all positions before it of its sequence; none is added.
    pub fn see(&self, batch: &Batch, places: &mut Places) {
        places.clear();
        for Run { seq, rows } in batch.runs() {
            let (state, first) = (&self.seqs[seq], seq * self.config.n_ctx);
            let end = |row: usize| state.len.min(batch.positions[row]) as usize;
            let keys = rows.map(|row| first + state.start as usize..first + end(row));
            places.keys.extend(keys);
        }
    }

    /// Drops the positions of a sequence from `len` on. Returns the number of positions kept: fewer
    /// than `len` if recurrent layers no longer have the state after `len - 1`.
    pub fn truncate(&mut self, seq: SeqId, len: u32) -> u32 {
        let state = &mut self.seqs[seq];
        if len <= state.start {
            state.restart(0);
        } else if len < state.len {
            // Only recurrent and compressed layers need states; keys and values just end earlier.
            let left = match self.has_recurrent {
                true => state.slots.truncate(len),
                false => compressed::nearest(&state.groups, state.start, len),
            };
            match left {
                Some(left) => state.end_at(left),
                None => state.restart(state.start),
            }
        }
        state.len
    }

    /// Replaces a sequence by a copy of the first `len` positions of another; fewer if that has fewer, or if
    /// recurrent layers no longer have the state after `len - 1`.
    pub fn share(&mut self, backend: &B, from: SeqId, to: SeqId, len: u32) {
        let n_ctx = self.config.n_ctx;
        let [source, copy] = self
            .seqs
            .get_disjoint_mut([from, to])
            .expect("two sequences of the cache");
        copy.restart(source.start);
        // A sequence that was truncated may have to evaluate its text again.
        let len = len.min(source.len);
        if len <= source.start {
            return;
        }
        let state = match self.has_recurrent {
            true => source.slots.nearest(len).map(|(held, slot)| {
                copy.slots.restart(held - 1);
                (held, [slot, copy.slots.write(held - 1)])
            }),
            false => {
                compressed::nearest(&source.groups, source.start, len).map(|len| (len, [0; 2]))
            }
        };
        let Some((held, slots)) = state else {
            return;
        };
        copy.groups.clone_from(&source.groups);
        copy.end_at(held);
        let row = |seq: SeqId, position: u32| seq * n_ctx + position as usize;
        for layer in &mut self.layers {
            match layer {
                LayerCache::Recurrent(states) => states.copy(backend, slots[0], slots[1]),
                LayerCache::Kv(kv) => {
                    let rows = row(from, source.start)..row(from, held);
                    kv.copy(backend, rows, row(to, source.start));
                }
                LayerCache::Compressed(caches) => {
                    let rows = row(from, source.start)..row(from, held);
                    caches.kv.copy(backend, rows, row(to, source.start));
                    caches.copy(backend, from, to, [source.start, held]);
                }
                LayerCache::Empty => {}
            }
        }
    }

    /// Clears a sequence. Its next token has position `at` and attends to nothing before it.
    pub fn restart(&mut self, seq: SeqId, at: u32) {
        self.seqs[seq].restart(at);
    }
}

impl SeqState {
    fn new(seq: SeqId, n_rollback: usize, groups: &[Groups]) -> SeqState {
        SeqState {
            slots: Slots::new(seq, n_rollback),
            groups: groups.iter().map(|&groups| (groups, 0)).collect(),
            ..SeqState::default()
        }
    }

    /// Drops the positions from `len` on. Rows of later ones are stored from there.
    fn end_at(&mut self, len: u32) {
        self.len = len;
        let oldest = self.groups.iter_mut().map(|(_, oldest)| oldest);
        oldest.for_each(|oldest| *oldest = len.min(*oldest));
    }

    fn restart(&mut self, at: u32) {
        (self.start, self.len) = (at, at);
        self.groups.iter_mut().for_each(|(_, oldest)| *oldest = at);
        self.slots.restart(at);
    }
}
