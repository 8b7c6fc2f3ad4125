//! Rotary position embedding.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::backend::Storage;

/// Rotary position embedding.
pub trait RopeOp: Storage {
    /// Rotates `n_head` heads in each row of x, `(positions.len(), n_head * head_dim)`, in place.
    fn rope(&self, x: &mut Self::Buffer, rope: &Rope, n_head: usize, positions: &[u32]);
}

/// Pairing of the elements of a head that are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// `(2i, 2i + 1)`: llama, eagle3.
    Norm,
    /// `(i, i + n_rot / 2)`: the Qwen family; interleaved M-RoPE with equal text positions too.
    Neox,
}

/// Rotary position embedding.
#[derive(Clone, Debug)]
pub struct Rope {
    /// Pairing.
    pub layout: RopeLayout,
    /// Elements per head.
    pub head_dim: usize,
    /// First rotated element of a head; `2 * inv_freq.len()` are rotated, the rest pass through.
    pub first: usize,
    /// Angle of pair `i` per position, in radians: `freq_base^(-2i / n_rot)`, possibly changed by RoPE
    /// scaling.
    pub inv_freq: Vec<f32>,
    /// Factor on rotated elements.
    pub magnitude: f32,
}
