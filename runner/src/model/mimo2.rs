//! MiMo V2: attention whose value heads may be narrower than its key heads, with one sink per head in some
//! layers, and a factor on its output.
//!
//! Caches and attention have one width for keys and values, so values are padded with zeros.

use kernels::backend::{Backend, Columns, RopeLayout};

use crate::error::ModelError;

use super::attention::Attention;
use super::feed_forward::FeedForward;
use super::matrix::{Matrix, multiply_each};
use super::weights::Weights;
use super::{Layer, Pass, Scratch};

struct MiMo<B: Backend> {
    attn_norm: B::Weight,
    q: Matrix<B>,
    k: Matrix<B>,
    v: Matrix<B>,
    /// One logit per query head, which no key has: (n_head)
    sinks: Option<B::Weight>,
    output: Matrix<B>,
    attention: Attention,
    ffn: FeedForward<B>,
    dims: Dims,
    /// Factor on the output of attention.
    scale: Option<f32>,
    eps: f32,
}

/// Sizes in elements.
#[derive(Clone, Copy)]
struct Dims {
    n_embd: usize,
    n_head: usize,
    n_head_kv: usize,
    key: usize,
    value: usize,
}

pub(super) fn load<B: Backend>(
    weights: &mut Weights<'_, B>,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    let block = weights.block();
    let hparams = weights.hparams.of_block(block);
    let dims = Dims {
        n_embd: hparams.n_embd as usize,
        n_head: hparams.n_head as usize,
        n_head_kv: hparams.n_head_kv as usize,
        key: hparams.head_dim as usize,
        value: hparams.value_dim as usize,
    };
    let groups = [
        dims.n_head * dims.key,
        dims.n_head_kv * dims.key,
        dims.n_head_kv * dims.value,
    ];
    let joined = weights.get_rows("attn_qkv.weight", &groups)?;
    let [q, k, v] = match joined.map(<[Matrix<B>; 3]>::try_from) {
        Some(Ok(parts)) => parts,
        _ => [
            weights.need_matrix("attn_q.weight")?,
            weights.need_matrix("attn_k.weight")?,
            weights.need_matrix("attn_v.weight")?,
        ],
    };
    let attention = Attention::new(&hparams, RopeLayout::Neox, None)?;
    Ok(Box::new(MiMo {
        attention: attention.of_block(&hparams, block),
        attn_norm: weights.need("attn_norm.weight")?,
        q,
        k,
        v,
        sinks: weights.get("attn_sinks.weight")?,
        output: weights.need_matrix("attn_output.weight")?,
        ffn: FeedForward::load(weights, "ffn_norm.weight")?,
        dims,
        scale: hparams.value_scale,
        eps: hparams.rms_eps,
    }))
}

impl<B: Backend> MiMo<B> {
    /// Computes `s.v` from `s.normed`: value heads of the width of keys. Uses `s.k`, whose values are
    /// finite.
    fn values(&self, backend: &B, n: usize, s: &mut Scratch<B>) {
        let Dims {
            n_head_kv,
            key,
            value,
            ..
        } = self.dims;
        if value == key {
            return self.v.multiply(backend, &s.normed, n, &mut s.v);
        }
        self.v.multiply(backend, &s.normed, n, &mut s.k_raw);
        let width = n_head_kv * key;
        backend.copy_rows(&s.k, 0, &mut s.v, 0, width, n);
        backend.scale(&mut s.v, 0.0, n * width);
        let place = |stride| Columns { stride, offset: 0 };
        let n_heads = n * n_head_kv;
        backend.copy_columns(&s.k_raw, place(value), &mut s.v, place(key), value, n_heads);
    }
}

impl<B: Backend> Layer<B> for MiMo<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s, dims) = (pass.backend, pass.n, &mut *pass.s, self.dims);
        backend.rms_norm(&s.x, &self.attn_norm, self.eps, n, &mut s.normed);
        multiply_each(
            backend,
            &s.normed,
            n,
            [(&self.q, &mut s.q), (&self.k, &mut s.k)],
        );
        self.values(backend, n, s);
        self.attention.forward_with(pass, self.sinks.as_ref());

        let s = &mut *pass.s;
        let place = |stride| Columns { stride, offset: 0 };
        let (from, to) = (place(dims.key), place(dims.value));
        let n_heads = n * dims.n_head;
        backend.copy_columns(&s.attended, from, &mut s.q_raw, to, dims.value, n_heads);
        self.output.multiply(backend, &s.q_raw, n, &mut s.normed);
        if let Some(scale) = self.scale {
            backend.scale(&mut s.normed, scale, n * dims.n_embd);
        }
        backend.add(&mut s.x, &s.normed, n * dims.n_embd);
        self.ffn.forward(pass);
    }
}
