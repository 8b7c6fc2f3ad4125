//! gpt-oss: attention with one sink per head, a sliding window in every second layer, experts with
//! biases and a clamped activation.

use kernels::backend::{Backend, RopeLayout};

use crate::error::ModelError;

use super::attention::Attention;
use super::feed_forward::{Activation, FeedForward, Style};
use super::projection::{Projection, forward_each};
use super::weights::Weights;
use super::{Layer, Pass};

struct GptOss<B: Backend> {
    attn_norm: B::Weight,
    q: Projection<B>,
    k: Projection<B>,
    v: Projection<B>,
    output: Projection<B>,
    /// One logit per query head, which no key has: (n_head)
    sinks: B::Weight,
    attention: Attention,
    ffn: FeedForward<B>,
    n_embd: usize,
    eps: f32,
}

pub(super) fn load<B: Backend>(
    weights: &mut Weights<'_, B>,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    let hparams = weights.hparams.clone();
    Ok(Box::new(GptOss {
        n_embd: hparams.n_embd as usize,
        eps: hparams.rms_eps,
        attention: Attention::new(&hparams, RopeLayout::Neox, None)?
            .of_block(&hparams, weights.block()),
        attn_norm: weights.need("attn_norm.weight")?,
        q: Projection::load(weights, "attn_q")?,
        k: Projection::load(weights, "attn_k")?,
        v: Projection::load(weights, "attn_v")?,
        output: Projection::load(weights, "attn_output")?,
        sinks: weights.need("attn_sinks.weight")?,
        ffn: FeedForward::load_with(
            weights,
            &Style {
                norm: "post_attention_norm.weight",
                norm_after: None,
                activation: Activation::ClampedSilu,
            },
        )?,
    }))
}

impl<B: Backend> Layer<B> for GptOss<B> {
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
        self.attention.forward_with(pass, Some(&self.sinks));

        let s = &mut *pass.s;
        self.output.forward(backend, &s.attended, n, &mut s.normed);
        backend.add(&mut s.x, &s.normed, n * self.n_embd);
        self.ffn.forward(pass);
    }
}
