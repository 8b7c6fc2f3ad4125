//! Attention heads: their numbers and sizes, and the blocks whose keys and values they attend to.

use super::deepseek2::COMPRESSED;
use super::hparams::{BlockHeads, HparamsError, MAX_DIM, Reader};
use super::keys;
use super::mla::Mla;
use super::window::Window;

/// Shape of the attention heads.
pub(super) struct Heads {
    pub(super) blocks: Vec<BlockHeads>,
    pub(super) head_dim: u64,
    pub(super) value_dim: u64,
    pub(super) n_rot: u64,
    pub(super) mla: Mla,
}

impl Heads {
    pub(super) fn largest(&self, count: impl Fn(&BlockHeads) -> u64) -> u64 {
        self.blocks.iter().map(count).max().unwrap_or_default()
    }
}

impl Reader<'_> {
    /// Reads the block whose keys and values each block attends to.
    pub(super) fn kv_blocks(
        &self,
        window: Option<&Window>,
        n_block: u32,
    ) -> Result<Vec<u32>, HparamsError> {
        // An assistant's own layers have none.
        let n_shared = match self.arch.blocks.window_heads && !self.arch.assistant {
            true => self.optional(keys::SHARED_KV_LAYERS, 0)?,
            false => 0,
        };
        let n_own = u64::from(n_block).saturating_sub(n_shared) as u32;
        let slides = |block: u32| window.is_some_and(|window| window.layers[block as usize]);
        let source = |block: u32| match block < n_own {
            true => Some(block),
            false => (0..n_own).rev().find(|&own| slides(own) == slides(block)),
        };
        let sources = (0..n_block).map(|block| {
            source(block).ok_or_else(|| {
                let expected = "few enough that an earlier layer of each kind has keys and values";
                self.range(keys::SHARED_KV_LAYERS, n_shared, expected.to_owned())
            })
        });
        sources.collect()
    }

    /// Reads a number for each block, from one number or, if blocks may differ, an array.
    pub(super) fn block_counts(
        &self,
        suffix: &str,
        default: &[u64],
        n_block: u32,
    ) -> Result<Vec<u64>, HparamsError> {
        let key = self.key(suffix);
        let value = self.metadata.get(&key);
        if !self.arch.blocks.head_counts || value.is_none_or(|value| value.as_array().is_none()) {
            return match (value, default.first()) {
                (None, Some(_)) => Ok(default.to_vec()),
                _ => Ok(vec![self.dim(suffix)?; n_block as usize]),
            };
        }
        let counts = self.metadata.u32s(&key)?.unwrap_or_default();
        if counts.len() != n_block as usize {
            return Err(HparamsError::PerLayer {
                key,
                found: counts.len(),
                expected: n_block,
            });
        }
        // Blocks without attention have no KV heads, those without a network no width.
        let may_be_zero = self.arch.blocks.single_part && suffix != keys::HEAD_COUNT;
        let min = u64::from(!may_be_zero);
        let range = min..=MAX_DIM;
        let counts = counts.into_iter().map(|count| match u64::from(count) {
            count if range.contains(&count) => Ok(count),
            count => Err(self.range(suffix, count, format!("{min} to {MAX_DIM}"))),
        });
        counts.collect()
    }

    /// Reads the shape of the attention heads.
    pub(super) fn heads(&self, n_embd: u64, n_block: u32) -> Result<Heads, HparamsError> {
        let counts = self.block_counts(keys::HEAD_COUNT, &[], n_block)?;
        let kv_counts = self.block_counts(keys::HEAD_COUNT_KV, &counts, n_block)?;
        let mut blocks = Vec::with_capacity(counts.len());
        for (n_head, n_head_kv) in counts.into_iter().zip(kv_counts) {
            if n_head_kv > 0 && !n_head.is_multiple_of(n_head_kv) {
                let expected = format!("a divisor of the {n_head} heads");
                return Err(self.range(keys::HEAD_COUNT_KV, n_head_kv, expected));
            }
            blocks.push(BlockHeads { n_head, n_head_kv });
        }
        let first = blocks[0];
        let head_dim = self.optional(keys::KEY_LENGTH, n_embd / first.n_head)?;
        let n_rot = match self.arch.blocks.single_part {
            true => 0,
            false => self.optional(keys::ROPE_DIMENSION_COUNT, head_dim)?,
        };
        let unit = if self.arch.blocks.half_rotation { 4 } else { 2 };
        if head_dim == 0 || n_rot > head_dim || !n_rot.is_multiple_of(unit) {
            let kind = if unit == 2 {
                "an even number"
            } else {
                "a multiple of 4"
            };
            let expected = format!("{kind} up to the head width {head_dim}");
            return Err(self.range(keys::ROPE_DIMENSION_COUNT, n_rot, expected));
        }
        let mut specs = self.arch.tensor_specs();
        let mla = match specs.any(|spec| spec.gguf == COMPRESSED) {
            true => Mla::read(self, first.n_head_kv, n_rot)?,
            false => Mla::default(),
        };
        let value_dim = self.optional(keys::VALUE_LENGTH, head_dim)?;
        let is_narrow = self.arch.blocks.narrow_values && (1..head_dim).contains(&value_dim);
        if mla == Mla::default() && value_dim != head_dim && !is_narrow {
            let bound = if self.arch.blocks.narrow_values {
                "at most "
            } else {
                ""
            };
            let expected = format!("{bound}{head_dim}, the key length");
            return Err(self.range(keys::VALUE_LENGTH, value_dim, expected));
        }
        Ok(Heads {
            blocks,
            head_dim,
            value_dim,
            n_rot,
            mla,
        })
    }
}
