//! Element-wise operations.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::backend::Storage;

/// Element-wise operations.
pub trait ElementwiseOp: Storage {
    /// `x += y` over the first `len` elements.
    fn add(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// Adds `bias` to each of `n` rows of as many elements as it has.
    fn add_bias(&self, x: &mut Self::Buffer, bias: &Self::Weight, n: usize);

    /// `x = silu(x) * y` over the first `len` elements; `silu(v) = v / (1 + exp(-v))`.
    fn silu_mul(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// `x = gelu(x) * y` over the first `len` elements, with the approximation
    /// `gelu(v) = v / 2 (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3)))`.
    fn gelu_mul(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// `x = g * sigmoid(1.702 g) * (u + 1)` over the first `len` elements, with `g = min(x, 7)` and `u =
    /// clamp(y, -7, 7)`.
    fn clamped_silu_mul(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// `x = silu(min(x, limit)) * clamp(y, -limit, limit)` over the first `len` elements.
    fn limited_silu_mul(&self, x: &mut Self::Buffer, y: &Self::Buffer, limit: f32, len: usize);

    /// `x = max(x, 0)^2` over the first `len` elements.
    fn relu_squared(&self, x: &mut Self::Buffer, len: usize);

    /// `x = x * factor` over the first `len` elements.
    fn scale(&self, x: &mut Self::Buffer, factor: f32, len: usize);

    /// `x = cap * tanh(x / cap)` over the first `len` elements.
    fn softcap(&self, x: &mut Self::Buffer, cap: f32, len: usize);

    /// `x = x * sigmoid(y)` over the first `len` elements.
    fn sigmoid_mul(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// Multiplies each of `n` rows of `dim` elements by the sigmoid of its element of `gate`, `(n)`.
    fn sigmoid_mul_rows(&self, x: &mut Self::Buffer, gate: &Self::Buffer, dim: usize, n: usize);
}
