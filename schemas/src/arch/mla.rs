//! [`Mla`]: multi-head latent attention, with one compressed KV row per position that is expanded
//! to the keys and values of all heads.

use super::hparams::{HparamsError, Reader};
use super::keys;

/// Sizes of multi-head latent attention; zeros for architectures without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mla {
    /// `attention.q_lora_rank`: rank of the low-rank query projection; 0 if queries have a direct
    /// projection.
    pub n_lora_q: u64,
    /// `attention.kv_lora_rank`: width of the compressed part of a KV row.
    pub n_lora_kv: u64,
    /// `attention.key_length_mla`: elements of an expanded key head, including those with RoPE.
    pub key_dim: u64,
    /// `attention.value_length_mla`: elements of an expanded value head.
    pub value_dim: u64,
}

impl Mla {
    /// Returns the elements of a key head without RoPE.
    pub fn plain_dim(&self, n_rot: u64) -> u64 {
        self.key_dim.saturating_sub(n_rot)
    }

    /// Returns the elements of a KV row: the compressed part and the part with RoPE.
    pub fn row_len(&self, n_rot: u64) -> u64 {
        self.n_lora_kv + n_rot
    }

    /// Reads the sizes of a file and checks that all heads share one KV row.
    pub(super) fn read(read: &Reader<'_>, n_head_kv: u64, n_rot: u64) -> Result<Mla, HparamsError> {
        let mla = Mla {
            n_lora_q: read.optional(keys::Q_LORA_RANK, 0)?,
            n_lora_kv: read.dim(keys::KV_LORA_RANK)?,
            key_dim: read.dim(keys::KEY_LENGTH_MLA)?,
            value_dim: read.dim(keys::VALUE_LENGTH_MLA)?,
        };
        // Some MLA models scale queries by position; this is not implemented.
        if let Some(found) = read.positive(keys::TEMPERATURE_SCALE)? {
            let key = read.key(keys::TEMPERATURE_SCALE);
            return Err(HparamsError::Unsupported { key, found });
        }
        let row_len = mla.row_len(n_rot);
        let key_length = read.optional(keys::KEY_LENGTH, row_len)?;
        let value_length = read.optional(keys::VALUE_LENGTH, mla.n_lora_kv)?;
        for (key, found, expected) in [
            (keys::HEAD_COUNT_KV, n_head_kv, 1),
            (keys::KEY_LENGTH, key_length, row_len),
            (keys::VALUE_LENGTH, value_length, mla.n_lora_kv),
        ] {
            if found != expected {
                let expected = format!("{expected}, because all heads share one KV row");
                return Err(read.range(key, found, expected));
            }
        }
        if mla.key_dim <= n_rot {
            let expected = format!("more than rope.dimension_count {n_rot}");
            return Err(read.range(keys::KEY_LENGTH_MLA, mla.key_dim, expected));
        }
        Ok(mla)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Hparams;
    use crate::gguf::{Metadata, Value};

    /// Reads the sizes of a file with some keys changed.
    fn read(changed: &[(&str, u32)]) -> Result<Mla, String> {
        let mut metadata = Metadata::new();
        metadata.set(keys::ARCHITECTURE, "deepseek2");
        let mut set = |key: &str, value| metadata.set(format!("deepseek2.{key}"), value);
        for (key, value) in [
            (keys::BLOCK_COUNT, 2),
            (keys::CONTEXT_LENGTH, 512),
            (keys::EMBEDDING_LENGTH, 64),
            (keys::FEED_FORWARD_LENGTH, 96),
            (keys::HEAD_COUNT, 4),
            (keys::HEAD_COUNT_KV, 1),
            (keys::KV_LORA_RANK, 32),
            (keys::KEY_LENGTH, 40),
            (keys::VALUE_LENGTH, 32),
            (keys::KEY_LENGTH_MLA, 24),
            (keys::VALUE_LENGTH_MLA, 20),
            (keys::ROPE_DIMENSION_COUNT, 8),
            (keys::VOCAB_SIZE, 10),
        ] {
            set(key, Value::U32(value));
        }
        set(keys::RMS_EPSILON, Value::F32(1e-6));
        for &(key, value) in changed {
            set(key, Value::U32(value));
        }
        let hparams = Hparams::from_metadata(&metadata);
        hparams.map(|h| h.mla).map_err(|e| e.to_string())
    }

    #[test]
    fn sizes_must_be_those_of_shared_rows() {
        let mla = read(&[]).expect("is whole");
        assert_eq!(
            (mla.n_lora_q, mla.plain_dim(8), mla.row_len(8)),
            (0, 16, 40)
        );
        for (key, value, message) in [
            (
                keys::HEAD_COUNT_KV,
                4,
                "4, expected 1, because all heads share one KV row",
            ),
            (
                keys::KEY_LENGTH,
                48,
                "48, expected 40, because all heads share one KV row",
            ),
            (
                keys::VALUE_LENGTH,
                40,
                "40, expected 32, because all heads share one KV row",
            ),
            (
                keys::KEY_LENGTH_MLA,
                8,
                "8, expected more than rope.dimension_count 8",
            ),
            (keys::KV_LORA_RANK, 0, "0, expected 1 to 268435456"),
        ] {
            let expected = format!("key deepseek2.{key}: {message}");
            assert_eq!(read(&[(key, value)]), Err(expected));
        }
    }
}
