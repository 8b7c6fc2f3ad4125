//! Llama, Mistral and Mixtral: interleaved RoPE, with frequency factors and biases if the file has
//! them.

use kernels::backend::{Backend, RopeLayout};
use schemas::arch::ROPE_FREQS;

use crate::error::ModelError;

use super::attention::Attention;
use super::feed_forward::FeedForward;
use super::projection::{Projection, forward_each};
use super::weights::Weights;
use super::{Layer, Pass};

struct Llama<B: Backend> {
    attn_norm: B::Weight,
    q: Projection<B>,
    k: Projection<B>,
    v: Projection<B>,
    output: Projection<B>,
    attention: Attention,
    ffn: FeedForward<B>,
    n_embd: usize,
    eps: f32,
}

pub(super) fn load<B: Backend>(
    weights: &mut Weights<'_, B>,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    let freq_factors = weights.model_values(ROPE_FREQS)?;
    let hparams = weights.hparams.clone();
    Ok(Box::new(Llama {
        n_embd: hparams.n_embd as usize,
        eps: hparams.rms_eps,
        attention: Attention::new(&hparams, RopeLayout::Norm, freq_factors.as_deref())?,
        attn_norm: weights.need("attn_norm.weight")?,
        q: Projection::load(weights, "attn_q")?,
        k: Projection::load(weights, "attn_k")?,
        v: Projection::load(weights, "attn_v")?,
        output: Projection::load(weights, "attn_output")?,
        ffn: FeedForward::load(weights, "ffn_norm.weight")?,
    }))
}

impl<B: Backend> Layer<B> for Llama<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        backend.rms_norm(&s.x, &self.attn_norm, self.eps, n, &mut s.normed);
        forward_each(
            backend,
            &s.normed,
            n,
            [
                (&self.q, &mut s.q),
                (&self.k, &mut s.k),
                (&self.v, &mut s.v),
            ],
        );
        self.attention.forward(pass);

        let s = &mut *pass.s;
        self.output.forward(backend, &s.attended, n, &mut s.normed);
        backend.add(&mut s.x, &s.normed, n * self.n_embd);
        self.ffn.forward(pass);
    }
}
