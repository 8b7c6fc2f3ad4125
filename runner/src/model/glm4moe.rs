//! GLM 4.5 to 4.7: attention with biases, and with norms of queries and keys if the file has them.

use kernels::backend::{Backend, RopeLayout};

use crate::error::ModelError;

use super::attention::Attention;
use super::feed_forward::FeedForward;
use super::matrix::Matrix;
use super::projection::{Projection, forward_each};
use super::weights::Weights;
use super::{Layer, Pass};

struct Glm<B: Backend> {
    attn_norm: B::Weight,
    q: Projection<B>,
    k: Projection<B>,
    v: Projection<B>,
    /// Norms of queries and keys, per head.
    norms: Option<[B::Weight; 2]>,
    output: Matrix<B>,
    attention: Attention,
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
    let norms = match weights.get("attn_q_norm.weight")? {
        None => None,
        Some(q_norm) => Some([q_norm, weights.need("attn_k_norm.weight")?]),
    };
    Ok(Box::new(Glm {
        n_head: hparams.n_head as usize,
        n_head_kv: hparams.n_head_kv as usize,
        n_embd: hparams.n_embd as usize,
        eps: hparams.rms_eps,
        attention: Attention::new(&hparams, RopeLayout::Neox, None)?,
        attn_norm: weights.need("attn_norm.weight")?,
        q: Projection::load(weights, "attn_q")?,
        k: Projection::load(weights, "attn_k")?,
        v: Projection::load(weights, "attn_v")?,
        norms,
        output: weights.need_matrix("attn_output.weight")?,
        ffn: FeedForward::load(weights, "post_attention_norm.weight")?,
    }))
}

impl<B: Backend> Layer<B> for Glm<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s, eps) = (pass.backend, pass.n, &mut *pass.s, self.eps);
        backend.rms_norm(&s.x, &self.attn_norm, eps, n, &mut s.normed);
        self.v.forward(backend, &s.normed, n, &mut s.v);
        match &self.norms {
            None => {
                forward_each(
                    backend,
                    &s.normed,
                    n,
                    [(&self.q, &mut s.q), (&self.k, &mut s.k)],
                );
            }
            Some([q_norm, k_norm]) => {
                forward_each(
                    backend,
                    &s.normed,
                    n,
                    [(&self.q, &mut s.q_raw), (&self.k, &mut s.k_raw)],
                );
                backend.rms_norm(&s.q_raw, q_norm, eps, n * self.n_head, &mut s.q);
                backend.rms_norm(&s.k_raw, k_norm, eps, n * self.n_head_kv, &mut s.k);
            }
        }
        self.attention.forward(pass);

        let s = &mut *pass.s;
        self.output.multiply(backend, &s.attended, n, &mut s.normed);
        backend.add(&mut s.x, &s.normed, n * self.n_embd);
        self.ffn.forward(pass);
    }
}
