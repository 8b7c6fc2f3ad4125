//! EAGLE-3: the layer of a draft that reads hidden states of its target, and their fusion.

use kernels::backend::{Backend, Columns, RopeLayout};
use schemas::arch::ROPE_FREQS;

use crate::error::ModelError;

use super::attention::Attention;
use super::feed_forward::FeedForward;
use super::matrix::{Matrix, multiply_each};
use super::weights::Weights;
use super::{Layer, Pass};

/// Fuses each token's concatenated hidden states of the target to one row: `fc x`, `fc norm(x)`, or for
/// block drafts `norm(fc x)`.
pub struct Fusion<B: Backend> {
    /// (width)
    pub(super) norm: Option<B::Weight>,
    /// Norm of the result: (n_embd)
    pub(super) norm_after: Option<B::Weight>,
    /// (n_embd, width)
    pub(super) fc: Matrix<B>,
    pub(super) eps: f32,
}

impl<B: Backend> Fusion<B> {
    /// Fuses `features`, (n, width), into `out`, (n, n_embd); `scratch` is as large as what is normalised:
    /// `features` or `out`.
    pub fn forward(
        &self,
        backend: &B,
        features: &B::Buffer,
        n: usize,
        scratch: &mut B::Buffer,
        out: &mut B::Buffer,
    ) {
        if let Some(norm) = &self.norm_after {
            self.fc.multiply(backend, features, n, scratch);
            return backend.rms_norm(scratch, norm, self.eps, n, out);
        }
        let Some(norm) = &self.norm else {
            return self.fc.multiply(backend, features, n, out);
        };
        backend.rms_norm(features, norm, self.eps, n, scratch);
        self.fc.multiply(backend, scratch, n, out);
    }
}

/// Start of the layer's residual stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Residual {
    /// The input of the layer.
    Input,
    /// The input of the layer after its norm.
    Normed,
}

/// Attention reads the concatenation of the token's normalised embedding and the normalised
/// residual stream.
struct Eagle3<B: Backend> {
    hidden_norm: B::Weight,
    /// Shape of `q`, `k` and `v`: (rows, 2 * n_embd)
    q: Matrix<B>,
    k: Matrix<B>,
    v: Matrix<B>,
    output: Matrix<B>,
    attention: Attention,
    ffn: FeedForward<B>,
    residual: Residual,
    n_embd: usize,
    eps: f32,
}

pub(super) fn load<B: Backend>(
    weights: &mut Weights<'_, B>,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    let freq_factors = weights.model_values(ROPE_FREQS)?;
    let hparams = weights.hparams.clone();
    let normed = hparams.features.as_ref().map(|f| f.norm_before_residual);
    Ok(Box::new(Eagle3 {
        n_embd: hparams.n_embd as usize,
        eps: hparams.rms_eps,
        residual: match normed {
            Some(true) => Residual::Normed,
            _ => Residual::Input,
        },
        attention: Attention::new(&hparams, RopeLayout::Norm, freq_factors.as_deref())?,
        hidden_norm: weights.need("attn_norm_2.weight")?,
        q: weights.need_matrix("attn_q.weight")?,
        k: weights.need_matrix("attn_k.weight")?,
        v: weights.need_matrix("attn_v.weight")?,
        output: weights.need_matrix("attn_output.weight")?,
        ffn: FeedForward::load(weights, "ffn_norm.weight")?,
    }))
}

impl<B: Backend> Layer<B> for Eagle3<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        let n_embd = self.n_embd;
        let place = |stride, offset| Columns { stride, offset };

        // The embedding is already in the first half, see `Model::enter`.
        let (whole, second) = (place(n_embd, 0), place(2 * n_embd, n_embd));
        backend.rms_norm(&s.x, &self.hidden_norm, self.eps, n, &mut s.normed);
        backend.copy_columns(&s.normed, whole, &mut s.joined, second, n_embd, n);
        if self.residual == Residual::Normed {
            backend.copy_rows(&s.normed, 0, &mut s.x, 0, n_embd, n);
        }
        multiply_each(
            backend,
            &s.joined,
            n,
            [
                (&self.q, &mut s.q),
                (&self.k, &mut s.k),
                (&self.v, &mut s.v),
            ],
        );
        self.attention.forward(pass);

        let s = &mut *pass.s;
        self.output.multiply(backend, &s.attended, n, &mut s.normed);
        backend.add(&mut s.x, &s.normed, n * n_embd);
        self.ffn.forward(pass);
    }
}
