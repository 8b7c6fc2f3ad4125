//! [`Features`]: hidden states of the target that a draft reads, and [`BlockDraft`].

use crate::gguf::{KeyError, Metadata};

use super::hparams::{HparamsError, Reader};
use super::keys;

/// Number of target layers that an EAGLE-3 draft reads.
const N_TARGET_LAYERS: usize = 3;
/// Maximum number of tokens of a block draft's pass.
const MAX_BLOCK_SIZE: u64 = 1 << 16;

/// Hidden states of the target that a draft reads, and their normalization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// `target_layers`: the target's layers whose inputs are read, in the order of concatenation;
    /// the target's number of layers means the output of its last layer.
    pub layers: Vec<u32>,
    /// `target_hidden_size`: width of each hidden state.
    pub n_embd_target: u64,
    /// `norm_before_residual`: true if the residual stream starts from the normalized features.
    pub norm_before_residual: bool,
    /// `norm_before_fc`: true if the concatenated features are normalized before `fc`.
    pub norm_before_fc: bool,
    /// The block of a draft that proposes all of its tokens in one pass.
    pub block: Option<BlockDraft>,
}

/// A draft that proposes all of its tokens in one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDraft {
    /// `block_size`: maximum number of tokens of a pass.
    pub size: u64,
    /// `tokenizer.ggml.mask_token_id`: the token of positions to be predicted.
    pub mask_token: u32,
    /// `attention.causal`: true if tokens of a block attend only to those before them.
    pub causal: bool,
    /// `sample_from_anchor`: true if the first row proposes the first token; false if the second.
    pub from_anchor: bool,
    /// Rank of the Markov head; 0 if there is none. No key states it.
    pub markov_rank: u64,
    /// `conv_kernel_size`: taps of the convolutions; 0 if there are none.
    pub conv_kernel: u64,
    /// `embedding_length` divided by `conv_group_size`: groups of channels that share weights.
    pub n_conv_group: u64,
    /// `selector_rank`: rank of the selector of candidates; 0 if there is none.
    pub selector_rank: u64,
    /// `selector_top_k`: number of candidates of the selector.
    pub n_candidate: u64,
}

/// Checks whether the layers of a file have hyper-connections.
pub fn has_streams(metadata: &Metadata, arch: &str) -> bool {
    let key = format!("{arch}.{}", keys::HYPER_CONNECTION_COUNT);
    metadata.u32(&key).is_ok_and(|n| n.is_some_and(|n| n > 0))
}

impl Features {
    /// Returns the width of the concatenated features.
    pub fn width(&self) -> u64 {
        self.layers.len() as u64 * self.n_embd_target
    }

    /// Reads the keys of a draft.
    pub(super) fn read(read: &Reader<'_>, n_embd: u64) -> Result<Features, HparamsError> {
        let block = match read.metadata.contains(&read.key(keys::BLOCK_SIZE)) {
            true => Some(BlockDraft::read(read, n_embd)?),
            false => None,
        };
        let key = read.key(keys::TARGET_LAYERS);
        let layers = read.metadata.u32s(&key)?;
        let layers = layers.ok_or_else(|| KeyError::Missing { key: key.clone() })?;
        if block.is_none() && layers.len() != N_TARGET_LAYERS || layers.is_empty() {
            return Err(HparamsError::Count {
                key,
                found: layers.len(),
                expected: N_TARGET_LAYERS,
            });
        }
        let flag = |suffix| read.metadata.bool(&read.key(suffix));
        Ok(Features {
            layers,
            n_embd_target: match block {
                Some(_) => n_embd,
                None => read.dim(keys::TARGET_HIDDEN_SIZE)?,
            },
            block,
            norm_before_residual: flag(keys::NORM_BEFORE_RESIDUAL)?.unwrap_or(false),
            norm_before_fc: flag(keys::NORM_BEFORE_FC)?.unwrap_or(false),
        })
    }
}

impl BlockDraft {
    /// Reads the keys of the block.
    fn read(read: &Reader<'_>, n_embd: u64) -> Result<BlockDraft, HparamsError> {
        let flag = |suffix| read.metadata.bool(&read.key(suffix));
        let group = read.optional(keys::CONV_GROUP_SIZE, n_embd)?.max(1);
        if !n_embd.is_multiple_of(group) {
            let expected = format!("a divisor of embedding_length {n_embd}");
            return Err(read.range(keys::CONV_GROUP_SIZE, group, expected));
        }
        Ok(BlockDraft {
            size: read.within(keys::BLOCK_SIZE, 1, MAX_BLOCK_SIZE)?,
            mask_token: read.metadata.need_u32(keys::MASK_TOKEN_ID)?,
            causal: flag(keys::CAUSAL)?.unwrap_or(false),
            from_anchor: flag(keys::SAMPLE_FROM_ANCHOR)?.unwrap_or(false),
            markov_rank: 0,
            conv_kernel: read.optional(keys::CONV_KERNEL_SIZE, 0)?,
            n_conv_group: n_embd / group,
            selector_rank: read.optional(keys::SELECTOR_RANK, 0)?,
            n_candidate: read.optional(keys::SELECTOR_TOP_K, 0)?,
        })
    }
}
