//! DFlash, DFlash2 and DSpark: the layers of a draft whose keys and values of the verified text come from features of
//! its target, and those of a block of new tokens from the tokens themselves.

use kernels::backend::{Backend, RopeLayout};

use crate::error::ModelError;

use super::attention::Attention;
use super::dflash2::{ShortConv, Side};
use super::feed_forward::FeedForward;
use super::matrix::{Matrix, multiply_each};
use super::weights::Weights;
use super::{Layer, Pass};

struct Dflash<B: Backend> {
    attn_norm: B::Weight,
    q: Matrix<B>,
    k: Matrix<B>,
    v: Matrix<B>,
    q_norm: B::Weight,
    k_norm: B::Weight,
    /// One logit per query head, which no key has: (n_head)
    sinks: Option<B::Weight>,
    output: Matrix<B>,
    attention: Attention,
    /// Convolutions of the input and output of attention.
    conv: Option<ShortConv<B>>,
    ffn: FeedForward<B>,
    /// Factor on the output of attention.
    scale: Option<f32>,
    n_head: usize,
    n_head_kv: usize,
    n_embd: usize,
    eps: f32,
}

/// The head of a DSpark draft that adds a bias to logits, given the token before.
pub(super) struct Markov<B: Backend> {
    /// (n_vocab, rank)
    pub(super) embd: B::Weight,
    /// (n_out, rank)
    pub(super) bias: Matrix<B>,
    /// Projection of a hidden state and the token before to the confidence in a token: (1, n_embd + rank)
    pub(super) confidence: Option<Matrix<B>>,
    /// (1)
    pub(super) confidence_bias: Option<B::Weight>,
    pub(super) rank: usize,
}

pub(super) fn load<B: Backend>(
    weights: &mut Weights<'_, B>,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    let hparams = weights.hparams.clone();
    let block = hparams
        .features
        .as_ref()
        .and_then(|features| features.block);
    let attention = Attention::new(&hparams, RopeLayout::Neox, None)?;
    let attention = attention.of_block(&hparams, weights.block());
    let is_causal = block.is_some_and(|block| block.causal);
    Ok(Box::new(Dflash {
        n_head: hparams.n_head as usize,
        n_head_kv: hparams.n_head_kv as usize,
        n_embd: hparams.n_embd as usize,
        eps: hparams.rms_eps,
        attention: match is_causal {
            true => attention,
            false => attention.of_whole_blocks(),
        },
        attn_norm: weights.need("attn_norm.weight")?,
        q: weights.need_matrix("attn_q.weight")?,
        k: weights.need_matrix("attn_k.weight")?,
        v: weights.need_matrix("attn_v.weight")?,
        q_norm: weights.need("attn_q_norm.weight")?,
        k_norm: weights.need("attn_k_norm.weight")?,
        sinks: weights.get("attn_sinks.weight")?,
        output: weights.need_matrix("attn_output.weight")?,
        conv: ShortConv::load(weights, "attn")?,
        ffn: FeedForward::load(weights, "ffn_norm.weight")?,
        scale: hparams.value_scale,
    }))
}

impl<B: Backend> Layer<B> for Dflash<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s, eps) = (pass.backend, pass.n, &mut *pass.s, self.eps);
        backend.rms_norm(&s.x, &self.attn_norm, eps, n, &mut s.normed);
        if let Some(conv) = &self.conv {
            let rows = &mut s.normed;
            conv.prepare(backend, rows, n, &mut s.conv);
            conv.apply(Side::Before, backend, pass.places, rows, &mut s.conv);
        }
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
        self.attention.forward_with(pass, self.sinks.as_ref());

        let s = &mut *pass.s;
        self.output.multiply(backend, &s.attended, n, &mut s.normed);
        if let Some(scale) = self.scale {
            backend.scale(&mut s.normed, scale, n * self.n_embd);
        }
        if let Some(conv) = &self.conv {
            let rows = &mut s.normed;
            conv.apply(Side::After, backend, pass.places, rows, &mut s.conv);
        }
        backend.add(&mut s.x, &s.normed, n * self.n_embd);
        self.ffn.forward(pass);
    }

    fn inject(&self, pass: &mut Pass<'_, B>, features: &B::Buffer) {
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        multiply_each(
            backend,
            features,
            n,
            [(&self.k, &mut s.k_raw), (&self.v, &mut s.v)],
        );
        let n_heads = n * self.n_head_kv;
        backend.rms_norm(&s.k_raw, &self.k_norm, self.eps, n_heads, &mut s.k);
        self.attention.store(pass);
    }
}
