//! [`Assistant`]: a draft that attends to the keys and values of its target.

use super::hparams::{HparamsError, Reader};
use super::keys;
use super::spec::Dim;

/// A draft that attends to the keys and values of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assistant {
    /// `embedding_length_out`: width of the target's hidden states.
    pub n_embd_target: u64,
    /// `centroid_count`: number of clusters of tokens; 0 if logits are those of all tokens.
    pub n_centroid: u64,
    /// `centroid_used_count`: number of clusters whose tokens get logits.
    pub n_centroid_used: u64,
}

/// Maximum number of clusters; devices have the same limit.
const MAX_CENTROIDS: u64 = 2048;

pub(super) const N_EMBD_TARGET: Dim = |h| h.assistant.map_or(0, |own| own.n_embd_target);
pub(super) const N_CENTROID: Dim = |h| h.assistant.map_or(0, |own| own.n_centroid);

impl Assistant {
    /// Reads the keys of an assistant with `n_vocab` tokens.
    pub(super) fn read(read: &Reader<'_>, n_vocab: u64) -> Result<Assistant, HparamsError> {
        let n_centroid = read.optional(keys::CENTROID_COUNT, 0)?;
        let is_valid = n_centroid <= MAX_CENTROIDS && n_vocab.is_multiple_of(n_centroid);
        if n_centroid > 0 && !is_valid {
            let expected = format!("a divisor of {n_vocab} tokens, at most {MAX_CENTROIDS}");
            return Err(read.range(keys::CENTROID_COUNT, n_centroid, expected));
        }
        Ok(Assistant {
            n_embd_target: read.dim(keys::EMBEDDING_LENGTH_OUT)?,
            n_centroid,
            n_centroid_used: match n_centroid {
                0 => 0,
                n => read.within(keys::CENTROID_USED_COUNT, 1, n)?,
            },
        })
    }

    /// Returns the number of tokens with logits, of `n_vocab`.
    pub fn n_scored(&self, n_vocab: u64) -> u64 {
        match self.n_centroid {
            0 => n_vocab,
            n => n_vocab / n * self.n_centroid_used,
        }
    }
}
