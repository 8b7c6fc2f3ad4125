//! Sizes of a run's contexts, and their kind of rollback.

use std::ops::Range;

use kernels::backend::Backend;

use crate::cache::{CacheBytes, CacheConfig, CacheTypes, Rollback};
use crate::context::{ContextConfig, MAX_DRAFT, N_BATCH};
use crate::error::Error;
use crate::memory::{Counted, Memory};
use crate::model::{Scratch, ScratchShape, host_bytes, mtp_blocks};
use crate::model_files::{DraftFile, Files, ModelFile};
use crate::run_config::RunConfig;
use crate::speculate::{AssistantStates, DraftKind, Features, States};

/// Draft tokens per target token that a translated context has room for.
const TRANSLATED_LENGTH: usize = 4;
/// States kept for rollback take at most one part in this many of the weights' size.
const WEIGHTS_PER_STATES: u128 = 4;
/// Every target computes the logits of at least this many rows at a time, so that scoring a prompt does
/// not read the output head once per token.
const MIN_OUTPUTS: usize = 16;

/// The sizes of one context.
#[derive(Clone, Debug)]
pub struct ContextSize {
    /// Configuration of the context.
    pub config: ContextConfig,
    /// Bytes of the weights that only this context uses.
    pub weight_bytes: u64,
    /// Bytes of the caches.
    pub cache: CacheBytes,
    /// Bytes of the largest pass's activations, and of the chosen tokens.
    pub activation_bytes: u64,
    /// Bytes of the target's hidden states that a draft keeps.
    pub hidden_state_bytes: u64,
    /// Bytes of the logits, and of other numbers, that are copied to the host.
    pub logit_bytes: u64,
    /// The kind of rollback after rejected tokens.
    pub rollback: Rollback,
}

/// Requirements of a context.
struct ContextNeeds {
    /// Blocks of the file that it runs.
    blocks: Range<u32>,
    n_seq: usize,
    n_ctx: usize,
    /// Maximum draft length to roll back.
    longest: usize,
    /// Maximum number of rows of a pass with logits.
    n_outputs: usize,
    /// Number of logits per row.
    n_out: u64,
    /// Number of layers whose input a draft reads.
    n_tap: usize,
    types: CacheTypes,
}

impl Files {
    /// Returns the sizes of the target's context in a run.
    ///
    /// # Errors
    /// The head size is not a multiple of the block length of the cache's type.
    pub fn target_sizes<B: Backend>(&self, config: &RunConfig) -> Result<ContextSize, Error> {
        let longest = config.n_draft_max();
        let needs = ContextNeeds {
            blocks: 0..self.model.hparams.n_layer,
            n_seq: config.n_seq,
            n_ctx: config.n_ctx,
            longest,
            n_outputs: (config.n_seq * (longest + 1)).max(MIN_OUTPUTS),
            n_out: self.model.hparams.n_vocab,
            n_tap: self.taps(&config.spec_types)?.len(),
            types: config.caches.target,
        };
        needs.sizes::<B>(&self.model)
    }

    /// Returns the sizes of a draft's context in a run.
    ///
    /// # Errors
    /// The head size is not a multiple of the block length of the cache's type, or a file without an
    /// MTP head was given as one.
    pub fn draft_sizes<B: Backend>(
        &self,
        draft: DraftFile<'_>,
        config: &RunConfig,
    ) -> Result<ContextSize, Error> {
        let DraftFile { kind, model, file } = draft;
        let draft_kind = draft.draft_kind();
        let blocks = match draft_kind {
            DraftKind::Mtp => mtp_blocks(&file.hparams).map_err(|e| file.error(e))?,
            _ => 0..file.hparams.n_layer,
        };
        let n_max = (kind.spec().n_max)(&config.drafting);
        let is_block = matches!(model.kind, DraftKind::Dflash | DraftKind::Dspark);
        let needs = ContextNeeds {
            blocks,
            n_seq: config.n_seq,
            // Another tokenizer may need more tokens for the same text.
            n_ctx: match model.takes_vocab_map && self.vocab_map.is_some() {
                true => config.n_ctx.saturating_mul(TRANSLATED_LENGTH),
                // A block may extend past the end of a text.
                false if is_block => config.n_ctx.saturating_add(n_max + 1),
                false => config.n_ctx,
            },
            // Only its own drafts are rolled back: tokens of other drafts are evaluated after they
            // are accepted.
            longest: n_max,
            n_outputs: config.n_seq * if is_block { n_max } else { 1 },
            n_out: match model.reads_hidden_states {
                true => file.hparams.n_vocab_draft,
                false => file.hparams.n_vocab,
            },
            n_tap: 0,
            types: config.caches.draft,
        };
        let mut sizes = needs.sizes::<B>(file)?;
        if model.reads_hidden_states {
            let (config, hparams) = (&sizes.config, &file.hparams);
            sizes.hidden_state_bytes = Counted::of(|memory: &Counted| match draft_kind {
                DraftKind::Assistant => drop(AssistantStates::new(memory, config, hparams)),
                _ if is_block => drop(Features::new(memory, config, hparams)),
                _ => drop(States::new(memory, config, hparams)),
            });
        }
        if is_block {
            let n = config.n_seq * (n_max + 1);
            sizes.logit_bytes += host_bytes(&file.hparams, n, config.n_seq);
        }
        if model.kind == DraftKind::Dspark {
            // The drafter has a row of biased logits per sequence.
            let row = file.hparams.n_vocab_draft * size_of::<f32>() as u64;
            sizes.logit_bytes += config.n_seq as u64 * row;
        }
        Ok(sizes)
    }
}

impl ContextNeeds {
    fn sizes<B: Backend>(self, file: &ModelFile) -> Result<ContextSize, Error> {
        let weight_bytes = file.weight_bytes(self.blocks.clone());
        let ContextNeeds {
            blocks,
            n_seq,
            n_ctx,
            longest,
            n_outputs,
            n_out,
            n_tap,
            types,
        } = self;
        let cache = |n_rollback| CacheConfig {
            n_seq,
            n_ctx,
            n_rollback,
            types,
        };
        let bytes = |n_rollback| {
            let bytes = CacheBytes::of::<B>(&file.hparams, blocks.clone(), cache(n_rollback));
            bytes.map_err(|e| file.error(e))
        };
        let (n_rollback, rollback) = rollback(longest, bytes(1)?, weight_bytes);
        // Short sequences need no large batch; a draft may extend past the end of one.
        let n_batch = match file.hparams.assistant {
            // A step has one token of each sequence.
            Some(_) => n_seq,
            None => N_BATCH
                .max(n_seq * (MAX_DRAFT + 1))
                .min(n_seq.saturating_mul(n_ctx.saturating_add(MAX_DRAFT + 1))),
        };
        let shape = ScratchShape {
            n_batch,
            n_outputs,
            n_out: n_out as usize,
            n_tap,
            n_ctx,
            cache_type: types.k,
        };
        let config = ContextConfig {
            cache: cache(n_rollback),
            n_batch,
            n_outputs,
        };
        Ok(ContextSize {
            config,
            cache: bytes(n_rollback)?,
            activation_bytes: Counted::of(|memory| {
                memory.chosen_tokens(config.n_chosen());
                Scratch::new(memory, &file.hparams, shape)
            }),
            logit_bytes: n_outputs as u64 * n_out * size_of::<f32>() as u64,
            hidden_state_bytes: 0,
            weight_bytes,
            rollback,
        })
    }
}

impl ModelFile {
    /// Returns the bytes of the tensors that these blocks need. For a head inside the target's
    /// file, only its block counts.
    pub(crate) fn weight_bytes(&self, blocks: Range<u32>) -> u64 {
        let is_head = blocks.start > 0;
        let is_own = |name: &str| {
            let rest = name
                .strip_prefix("blk.")
                .and_then(|rest| rest.split_once('.'));
            match rest.and_then(|(block, _)| block.parse().ok()) {
                Some(block) => blocks.contains(&block),
                None => !is_head || !self.has_trunk(),
            }
        };
        let tensors = self.plan.tensors.iter();
        let own = tensors.filter(|tensor| is_own(&tensor.name));
        own.map(|tensor| tensor.size_bytes).sum()
    }
}

/// Returns the number of states to keep for drafts of up to this length, if one state per sequence
/// takes `state.rollback` bytes.
fn rollback(longest: usize, state: CacheBytes, weight_bytes: u64) -> (usize, Rollback) {
    if state.rollback == 0 {
        return (0, Rollback::Truncation);
    }
    let room = u128::from(weight_bytes) / WEIGHTS_PER_STATES / state.rollback;
    match usize::try_from(room) {
        Ok(room) if room < longest => (room, Rollback::Checkpoint),
        _ => (longest, Rollback::States),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_take_no_more_than_their_share() {
        let state = CacheBytes {
            rollback: 100,
            ..CacheBytes::default()
        };
        assert_eq!(rollback(3, state, 1200), (3, Rollback::States));
        assert_eq!(rollback(4, state, 1200), (3, Rollback::Checkpoint));
        assert_eq!(rollback(64, state, 8000), (20, Rollback::Checkpoint));
        assert_eq!(rollback(64, state, 100), (0, Rollback::Checkpoint));
        assert_eq!(
            rollback(64, CacheBytes::default(), 100),
            (0, Rollback::Truncation)
        );
    }
}
