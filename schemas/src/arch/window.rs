//! Attention in a sliding window: which layers of a model see only the last positions.

use crate::gguf::Value;

use super::hparams::{HparamsError, Reader};
use super::keys;

/// What readers take for absent keys of an architecture whose attention can have a window.
#[derive(Clone, Copy, Debug)]
pub struct WindowSpec {
    /// Every how many layers one sees all positions: the last of each run.
    pub period: u32,
    /// Base of the rotation in layers with the window, whose positions are not scaled; `None`:
    /// they are rotated as the others.
    pub rope_freq_base: Option<f32>,
}

/// A window of attention, and the layers in which it slides.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// `attention.sliding_window`: positions that a token sees, its own included.
    pub size: u64,
    /// `rope.freq_base_swa`: base of the rotation in these layers, whose positions are not scaled;
    /// `None`: they are rotated as the others.
    pub rope_freq_base: Option<f32>,
    /// Whether it slides in each block; in MTP layers it does not.
    pub layers: Vec<bool>,
}

impl WindowSpec {
    /// Whether the window slides in each of that many trunk layers.
    pub fn layers(&self, n_layer: u32) -> Vec<bool> {
        sliding(self.period, n_layer)
    }

    /// The window of a model with that many trunk layers and blocks, if it has one.
    pub(super) fn read(
        &self,
        read: &Reader<'_>,
        n_layer: u32,
        n_block: u32,
    ) -> Result<Option<Window>, HparamsError> {
        let size = read.optional(keys::SLIDING_WINDOW, 0)?;
        if size == 0 {
            return Ok(None);
        }
        let (metadata, pattern) = (read.metadata, read.key(keys::SLIDING_WINDOW_PATTERN));
        let mut layers = match metadata.get(&pattern) {
            Some(Value::Array(_)) => {
                let layers = metadata.bools(&pattern)?.unwrap_or_default().to_vec();
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
        layers.truncate(n_layer as usize);
        layers.resize(n_block as usize, false);
        let base = read.positive(keys::ROPE_FREQ_BASE_SWA)?;
        Ok(Some(Window {
            size,
            rope_freq_base: base.or(self.rope_freq_base),
            layers,
        }))
    }
}

/// All layers but the last of each run; with runs of no length, all.
fn sliding(period: u32, n_layer: u32) -> Vec<bool> {
    let slides = |layer: u32| period == 0 || layer % period != period - 1;
    (0..n_layer).map(slides).collect()
}
