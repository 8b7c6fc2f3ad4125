//! What a model remembers of each sequence: keys and values in attention layers, a state in
//! recurrent ones. Buffers start as NaN and are never cleared, so a read of what no token of the
//! sequence wrote would show in the logits at once.

mod kv;
mod recurrent;

use kernels::backend::{Backend, CacheShape, CacheType, KeyRows, Step};
use schemas::arch::{Hparams, LayerKind};

use crate::batch::{Batch, SeqId};
use crate::error::{Error, ModelError};

pub use kv::Kv;
pub use recurrent::Recurrent;

/// The memory of one layer.
pub enum LayerCache<B: Backend> {
    /// Keys and values of every position.
    Kv(Kv<B>),
    /// States after the last positions.
    Recurrent(Recurrent<B>),
}

/// How much a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Sequences.
    pub n_seq: usize,
    /// Positions of each sequence.
    pub n_ctx: usize,
    /// Positions that a sequence can be taken back by: the longest draft.
    pub n_rollback: usize,
    /// How keys and values are kept.
    pub types: CacheTypes,
}

/// Element types of keys and values. States of recurrent layers are always `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheTypes {
    /// Of keys, and of compressed rows, which are keys and values at once.
    pub k: CacheType,
    /// Of values.
    pub v: CacheType,
}

impl CacheTypes {
    /// Nothing is rounded: for comparisons with what computes in single precision throughout.
    pub const F32: CacheTypes = CacheTypes {
        k: CacheType::F32,
        v: CacheType::F32,
    };
}

/// The memory of all layers, for all sequences.
pub struct Cache<B: Backend> {
    config: CacheConfig,
    layers: Vec<LayerCache<B>>,
    seqs: Vec<SeqState>,
    has_recurrent: bool,
}

/// How far a sequence has come.
#[derive(Clone, Copy, Debug, Default)]
struct SeqState {
    /// Positions held: 0 to `len - 1`.
    len: u32,
    /// First position whose recurrent state is still held.
    oldest: u32,
}

/// Where the rows of one batch lie in the caches: the same for every layer.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Cache row that receives each token's key and value.
    pub rows: Vec<usize>,
    /// Cache rows that each token attends to.
    pub keys: Vec<KeyRows>,
    /// Recurrent steps, one a token.
    pub steps: Vec<Step>,
}

impl<B: Backend> Cache<B> {
    /// Room for the given layers of a model.
    ///
    /// # Errors
    /// There is not that much memory, or a type does not divide the heads.
    pub fn new(
        backend: &B,
        hparams: &Hparams,
        kinds: &[LayerKind],
        config: CacheConfig,
    ) -> Result<Cache<B>, ModelError> {
        let CacheConfig {
            n_seq,
            n_ctx,
            n_rollback,
            types,
        } = config;
        let slots = n_seq as u128 * (n_rollback as u128 + 1);
        let shapes = Kv::<B>::shapes(hparams, types, n_seq.saturating_mul(n_ctx))?;
        let state_bytes = || (Recurrent::<B>::slot_len(hparams) * size_of::<f32>()) as u128;
        let need_bytes: u128 = kinds
            .iter()
            .map(|kind| match kind {
                LayerKind::Recurrent => slots * state_bytes(),
                _ => shapes.iter().map(CacheShape::bytes).sum(),
            })
            .sum();
        let free_bytes = backend.free_bytes().unwrap_or(isize::MAX as u64);
        if need_bytes > u128::from(free_bytes.min(isize::MAX as u64)) {
            return Err(ModelError::CacheSize {
                n_seq,
                n_ctx,
                need_bytes,
                free_bytes,
            });
        }
        let layers = kinds
            .iter()
            .map(|kind| match kind {
                LayerKind::Recurrent => {
                    LayerCache::Recurrent(Recurrent::new(backend, hparams, slots as usize))
                }
                _ => LayerCache::Kv(Kv::new(backend, &shapes)),
            })
            .collect();
        let has_recurrent = kinds.contains(&LayerKind::Recurrent);
        Ok(Cache {
            config,
            layers,
            seqs: vec![SeqState::default(); n_seq],
            has_recurrent,
        })
    }

    /// Positions of each sequence.
    pub fn n_ctx(&self) -> usize {
        self.config.n_ctx
    }

    /// Positions held of a sequence.
    pub fn len(&self, seq: SeqId) -> u32 {
        self.seqs[seq].len
    }

    /// The memory of one layer.
    pub fn layer(&mut self, layer: usize) -> &mut LayerCache<B> {
        &mut self.layers[layer]
    }

    /// Reserves the places of a batch's tokens and counts them as held.
    pub fn place(&mut self, batch: &Batch) -> Places {
        let CacheConfig {
            n_ctx, n_rollback, ..
        } = self.config;
        let n_slot = n_rollback + 1;
        let slot = |seq: SeqId, position: u32| seq * n_slot + position as usize % n_slot;
        let mut places = Places::default();
        for (row, (&seq, &position)) in batch.seqs.iter().zip(&batch.positions).enumerate() {
            let state = &mut self.seqs[seq];
            assert_eq!(position, state.len, "tokens of a sequence come in order");
            assert!(
                (position as usize) < n_ctx,
                "the driver stops at the end of the context"
            );
            state.len += 1;
            state.oldest = state.oldest.max(state.len.saturating_sub(n_slot as u32));
            let first = seq * n_ctx;
            places.rows.push(first + position as usize);
            places.keys.push(first..first + state.len as usize);
            let read = position.checked_sub(1).map(|before| slot(seq, before));
            places.steps.push(Step {
                row,
                read,
                write: slot(seq, position),
            });
        }
        places
    }

    /// Forgets all positions of a sequence from `len` on.
    ///
    /// # Errors
    /// The state after `len - 1` is no longer held: more than `n_rollback` positions back.
    pub fn truncate(&mut self, seq: SeqId, len: u32) -> Result<(), Error> {
        let state = &mut self.seqs[seq];
        if len >= state.len {
            return Ok(());
        }
        // Only recurrent layers need the state itself; keys and values just end earlier.
        if len == 0 {
            *state = SeqState::default();
        } else if self.has_recurrent && len - 1 < state.oldest {
            return Err(Error::Rollback {
                seq,
                len,
                oldest: state.oldest,
            });
        } else {
            state.len = len;
        }
        Ok(())
    }
}
