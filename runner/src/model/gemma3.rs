//! Gemma 3: sliding-window attention except in every sixth layer, each block between two norms.

use kernels::backend::{Backend, RopeLayout};

use crate::error::ModelError;

use super::attention::Attention;
use super::feed_forward::{Activation, FeedForward, Style};
use super::matrix::{Matrix, multiply_each};
use super::weights::Weights;
use super::{Layer, Pass};

struct Gemma3<B: Backend> {
    attn_norm: B::Weight,
    q: Matrix<B>,
    k: Matrix<B>,
    v: Matrix<B>,
    q_norm: B::Weight,
    k_norm: B::Weight,
    output: Matrix<B>,
    attention: Attention,
    post_attention_norm: B::Weight,
    ffn: FeedForward<B>,
    n_head: usize,
    n_head_kv: usize,
    n_embd: usize,
    eps: f32,
}

pub(super) fn load<B: Backend>(
    weights: &mut Weights<'_, B>,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    let hparams = weights.hparams.clone();
    let attention = Attention::new(&hparams, RopeLayout::Neox, None)?
        .of_block(&hparams, weights.block())
        .scaled(1.0 / (hparams.query_width() as f32).sqrt());
    Ok(Box::new(Gemma3 {
        n_head: hparams.n_head as usize,
        n_head_kv: hparams.n_head_kv as usize,
        n_embd: hparams.n_embd as usize,
        eps: hparams.rms_eps,
        attention,
        attn_norm: weights.need("attn_norm.weight")?,
        q: weights.need_matrix("attn_q.weight")?,
        k: weights.need_matrix("attn_k.weight")?,
        v: weights.need_matrix("attn_v.weight")?,
        q_norm: weights.need("attn_q_norm.weight")?,
        k_norm: weights.need("attn_k_norm.weight")?,
        output: weights.need_matrix("attn_output.weight")?,
        post_attention_norm: weights.need("post_attention_norm.weight")?,
        ffn: FeedForward::load_with(
            weights,
            &Style {
                norm: "ffn_norm.weight",
                norm_after: Some("post_ffw_norm.weight"),
                activation: Activation::Gelu,
            },
        )?,
    }))
}

impl<B: Backend> Layer<B> for Gemma3<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        backend.rms_norm(&s.x, &self.attn_norm, self.eps, n, &mut s.normed);
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
        backend.rms_norm(&s.q_raw, &self.q_norm, self.eps, n * self.n_head, &mut s.q);
        backend.rms_norm(
            &s.k_raw,
            &self.k_norm,
            self.eps,
            n * self.n_head_kv,
            &mut s.k,
        );
        self.attention.forward(pass);

        let s = &mut *pass.s;
        self.output
            .multiply(backend, &s.attended, n, &mut s.ffn_out);
        let norm = &self.post_attention_norm;
        backend.rms_norm(&s.ffn_out, norm, self.eps, n, &mut s.normed);
        backend.add(&mut s.x, &s.normed, n * self.n_embd);
        self.ffn.forward(pass);
    }
}
