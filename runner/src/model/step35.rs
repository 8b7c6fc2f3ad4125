//! Step 3.5: attention with a gate per head; layers with a sliding window have their own number of heads,
//! the others rotate half of each head.

use kernels::backend::{Backend, RopeLayout};
use schemas::arch::{HparamsError, ROPE_FREQS};

use crate::error::ModelError;

use super::attention::Attention;
use super::feed_forward::FeedForward;
use super::matrix::{Matrix, multiply_each};
use super::weights::Weights;
use super::{Layer, Pass};

struct Step<B: Backend> {
    attn_norm: B::Weight,
    q: Matrix<B>,
    k: Matrix<B>,
    v: Matrix<B>,
    q_norm: B::Weight,
    k_norm: B::Weight,
    /// One row per head: (n_head, n_embd)
    gate: Option<Matrix<B>>,
    output: Matrix<B>,
    attention: Attention,
    ffn: FeedForward<B>,
    n_head: usize,
    n_head_kv: usize,
    head_dim: usize,
    n_embd: usize,
    eps: f32,
}

pub(super) fn load<B: Backend>(
    weights: &mut Weights<'_, B>,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    let block = weights.block();
    let hparams = weights.hparams.of_block(block);
    if let Some((suffix, found)) = hparams.activation_limit {
        let key = format!("{}.{suffix}", hparams.arch.name);
        return Err(HparamsError::Unsupported { key, found }.into());
    }
    // Scaled positions are those of layers without a window.
    let factors = match hparams.window(block) {
        Some(_) => None,
        None => weights.model_values(ROPE_FREQS)?,
    };
    let attention = Attention::new(&hparams, RopeLayout::Neox, factors.as_deref())?;
    Ok(Box::new(Step {
        n_head: hparams.n_head as usize,
        n_head_kv: hparams.n_head_kv as usize,
        head_dim: hparams.head_dim as usize,
        n_embd: hparams.n_embd as usize,
        eps: hparams.rms_eps,
        attention: attention.of_block(&hparams, block),
        attn_norm: weights.need("attn_norm.weight")?,
        q: weights.need_matrix("attn_q.weight")?,
        k: weights.need_matrix("attn_k.weight")?,
        v: weights.need_matrix("attn_v.weight")?,
        q_norm: weights.need("attn_q_norm.weight")?,
        k_norm: weights.need("attn_k_norm.weight")?,
        gate: weights.get_matrix("attn_gate.weight")?,
        output: weights.need_matrix("attn_output.weight")?,
        ffn: FeedForward::load(weights, "ffn_norm.weight")?,
    }))
}

impl<B: Backend> Layer<B> for Step<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s, eps) = (pass.backend, pass.n, &mut *pass.s, self.eps);
        backend.rms_norm(&s.x, &self.attn_norm, eps, n, &mut s.normed);
        multiply_each(
            backend,
            &s.normed,
            n,
            [
                (&self.q, &mut s.q_raw),
                (&self.k, &mut s.k_raw),
                (&self.v, &mut s.v),
            ],
        );
        backend.rms_norm(&s.q_raw, &self.q_norm, eps, n * self.n_head, &mut s.q);
        backend.rms_norm(&s.k_raw, &self.k_norm, eps, n * self.n_head_kv, &mut s.k);
        if let Some(gate) = &self.gate {
            gate.multiply(backend, &s.normed, n, &mut s.gate);
        }
        self.attention.forward(pass);

        let s = &mut *pass.s;
        if self.gate.is_some() {
            let n_heads = n * self.n_head;
            backend.sigmoid_mul_rows(&mut s.attended, &s.gate, self.head_dim, n_heads);
        }
        self.output.multiply(backend, &s.attended, n, &mut s.normed);
        backend.add(&mut s.x, &s.normed, n * self.n_embd);
        self.ffn.forward(pass);
    }
}
