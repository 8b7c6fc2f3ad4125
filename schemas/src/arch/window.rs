//! Sliding window attention: layers that attend only to the last positions.

use crate::gguf::{Array, Value};

use super::hparams::{HparamsError, Reader};
use super::keys;

/// Defaults for absent keys of sliding window attention.
#[derive(Clone, Copy, Debug)]
pub struct WindowSpec {
    /// Interval of layers with full attention; it is the last of each interval.
    pub period: u32,
    /// Base of RoPE frequencies in layers with a window, which have no RoPE scaling; `None` to use
    /// the base and scaling of the other layers.
    pub rope_freq_base: Option<f32>,
    /// True if MTP layers have the window, too, unless the file has an entry for each block.
    pub heads: bool,
}

/// A sliding window and its layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// `attention.sliding_window`: number of positions in the window, including the token's own.
    pub size: u64,
    /// `rope.freq_base_swa`: base of RoPE frequencies in these layers, which have no RoPE scaling;
    /// `None` to use the base and scaling of the other layers.
    pub rope_freq_base: Option<f32>,
    /// Head size of these layers, if they have their own.
    pub heads: Option<WindowHeads>,
    /// For each block, true if it has the window; false for MTP layers unless the file has an entry for
    /// each block.
    pub layers: Vec<bool>,
}

/// Head size of layers with a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowHeads {
    /// `attention.key_length_swa`: elements of a head.
    pub head_dim: u64,
    /// `rope.dimension_count_swa`: elements of a head with RoPE.
    pub n_rot: u64,
}

impl WindowHeads {
    /// Reads the keys; `head_dim` is the size of other layers' heads.
    fn read(read: &Reader<'_>, head_dim: u64) -> Result<WindowHeads, HparamsError> {
        let own = read.optional(keys::KEY_LENGTH_SWA, head_dim)?;
        let value = read.optional(keys::VALUE_LENGTH_SWA, own)?;
        if own == 0 || value != own {
            let expected = format!("{own}, the key length, and at least 1");
            return Err(read.range(keys::VALUE_LENGTH_SWA, value, expected));
        }
        let n_rot = read.optional(keys::ROPE_DIMENSION_COUNT_SWA, own)?;
        if n_rot > own || !n_rot.is_multiple_of(2) {
            let expected = format!("an even number up to the head width {own}");
            return Err(read.range(keys::ROPE_DIMENSION_COUNT_SWA, n_rot, expected));
        }
        Ok(WindowHeads {
            head_dim: own,
            n_rot,
        })
    }
}

impl WindowSpec {
    /// Returns for each of `n_layer` trunk layers whether it has the window.
    pub fn layers(&self, n_layer: u32) -> Vec<bool> {
        sliding(self.period, n_layer)
    }

    /// Reads the window of a model with these numbers of trunk layers and blocks, if it has one; `head_dim`
    /// is the head size of layers without it.
    pub(super) fn read(
        &self,
        read: &Reader<'_>,
        head_dim: u64,
        n_layer: u32,
        n_block: u32,
    ) -> Result<Option<Window>, HparamsError> {
        let size = read.optional(keys::SLIDING_WINDOW, 0)?;
        if size == 0 {
            return Ok(None);
        }
        let (metadata, pattern) = (read.metadata, read.key(keys::SLIDING_WINDOW_PATTERN));
        let mut layers = match metadata.get(&pattern) {
            Some(Value::Array(array)) => {
                // Some files store numbers.
                let layers = match array {
                    Array::Bool(layers) => layers.clone(),
                    _ => {
                        let layers = metadata.u32s(&pattern)?.unwrap_or_default();
                        layers.iter().map(|&layer| layer != 0).collect()
                    }
                };
                if layers.len() != n_block as usize {
                    return Err(HparamsError::PerLayer {
                        key: pattern,
                        found: layers.len(),
                        expected: n_block,
                    });
                }
                layers
            }
            _ => sliding(metadata.u32(&pattern)?.unwrap_or(self.period), n_layer),
        };
        layers.resize(n_block as usize, self.heads);
        let base = read.positive(keys::ROPE_FREQ_BASE_SWA)?;
        Ok(Some(Window {
            size,
            rope_freq_base: base.or(self.rope_freq_base),
            heads: match read.arch.blocks.window_heads {
                true => Some(WindowHeads::read(read, head_dim)?),
                false => None,
            },
            layers,
        }))
    }
}

/// Returns true for all layers but the last of each interval; with `period` 0, for all.
fn sliding(period: u32, n_layer: u32) -> Vec<bool> {
    let slides = |layer: u32| period == 0 || layer % period != period - 1;
    (0..n_layer).map(slides).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Hparams;
    use crate::gguf::Metadata;

    /// Returns for each of seven layers whether it has a window, in a file with these keys.
    fn layers(keys: &[(&str, Value)]) -> Result<Vec<bool>, String> {
        let mut metadata = Metadata::new();
        metadata.set(keys::ARCHITECTURE, "gemma3");
        for (key, value) in [
            (keys::BLOCK_COUNT, 7),
            (keys::CONTEXT_LENGTH, 512),
            (keys::EMBEDDING_LENGTH, 64),
            (keys::FEED_FORWARD_LENGTH, 96),
            (keys::HEAD_COUNT, 4),
            (keys::VOCAB_SIZE, 10),
        ] {
            metadata.set(format!("gemma3.{key}"), Value::U32(value));
        }
        metadata.set(format!("gemma3.{}", keys::RMS_EPSILON), Value::F32(1e-6));
        for (key, value) in keys {
            metadata.set(format!("gemma3.{key}"), value.clone());
        }
        let hparams = Hparams::from_metadata(&metadata).map_err(|e| e.to_string())?;
        Ok((0..7).map(|i| hparams.window(i).is_some()).collect())
    }

    #[test]
    fn layers_are_those_of_the_file_or_of_the_architecture() {
        let window = (keys::SLIDING_WINDOW, Value::U32(8));
        let with =
            |pattern: Value| layers(&[window.clone(), (keys::SLIDING_WINDOW_PATTERN, pattern)]);
        let all_but = |full: &[usize]| Ok((0..7).map(|i| !full.contains(&i)).collect());
        assert_eq!(layers(&[]), all_but(&[0, 1, 2, 3, 4, 5, 6]));
        assert_eq!(layers(std::slice::from_ref(&window)), all_but(&[5]));
        assert_eq!(with(Value::U32(3)), all_but(&[2, 5]));
        assert_eq!(with(Value::U32(1)), all_but(&[0, 1, 2, 3, 4, 5, 6]));
        assert_eq!(with(Value::U32(0)), all_but(&[]));
        let listed: Vec<bool> = (0..7).map(|i| i != 1).collect();
        assert_eq!(with(listed.into()), all_but(&[1]));
        let message = "key gemma3.attention.sliding_window_pattern: 2 entries, expected 7, one for \
                       each block";
        assert_eq!(with(vec![true, false].into()), Err(message.to_owned()));
    }
}
