//! DeepSeek V2 and V3: attention over one compressed row per position (MLA).
//!
//! All heads share the row: a rotated part, then the normalised compressed part, which could be
//! expanded to keys and values of every head. Instead the expansion of keys is applied to the
//! queries, and that of values to the attention output, so every head uses the unmodified row as
//! key and as value. (Files store `attn_k_b` and `attn_v_b` for this.)

use kernels::backend::{
    AttentionInput, AttentionShape, Backend, Columns, ExpertInput, Rope, RopeLayout,
};
use schemas::arch::{Hparams, RopeScaling};

use crate::cache::LayerCache;
use crate::error::ModelError;
use crate::memory::Memory;

use super::feed_forward::FeedForward;
use super::matrix::{Matrix, MatrixStack};
use super::rope::{mscale, rope};
use super::weights::Weights;
use super::{Layer, Pass, Scratch};

struct DeepSeek<B: Backend> {
    attn_norm: B::Weight,
    query: Query<B>,
    /// The compressed part, then the part to rotate: (n_lora_kv + n_rot, n_embd)
    kv: Matrix<B>,
    kv_norm: B::Weight,
    /// One per head: (n_lora_kv, plain_dim)
    key: MatrixStack<B>,
    /// One per head: (value_dim, n_lora_kv)
    value: MatrixStack<B>,
    output: Matrix<B>,
    ffn: FeedForward<B>,
    shape: AttentionShape,
    rope: Rope,
    dims: Dims,
    eps: f32,
}

/// Queries of all heads: (n_head * (plain_dim + n_rot), n_embd), in one step or in two.
enum Query<B: Backend> {
    Direct(Matrix<B>),
    LowRank {
        a: Matrix<B>,
        norm: B::Weight,
        b: Matrix<B>,
    },
}

/// Sizes of rows and of the parts of a head, in elements.
#[derive(Clone, Copy)]
struct Dims {
    n_embd: usize,
    n_head: usize,
    /// Part of a key without rotation.
    plain: usize,
    /// Rotated part of a key.
    rotated: usize,
    /// Compressed part of a row.
    compressed: usize,
}

/// Activations of compressed attention.
pub(super) struct MlaScratch<M: Memory> {
    /// Queries after the first of two projections: (n, n_lora_q)
    low_rank: M::Floats,
    /// Normalised `low_rank`
    low_rank_normed: M::Floats,
    /// Queries as projected, the rotated part last: (n, n_head, key_dim)
    query: M::Floats,
    /// Part of the queries without rotation: (n, n_head, plain_dim)
    plain: M::Floats,
    /// Unrotated query parts multiplied by `attn_k_b`: (n, n_head, n_lora_kv)
    compressed: M::Floats,
    /// Compressed parts as projected, with the parts to rotate: (n, n_lora_kv + n_rot)
    kv: M::Floats,
    /// Compressed parts alone: (n, n_lora_kv)
    kv_compressed: M::Floats,
    /// Normalised `kv_compressed`
    kv_normed: M::Floats,
    /// (n, n_head, value_dim)
    value: M::Floats,
    /// Routes of every row to all heads: (n, n_head)
    heads: M::Routes,
}

impl<M: Memory> MlaScratch<M> {
    /// Allocates buffers for batches of up to `n_batch` tokens; empty ones if the model has no
    /// compressed rows.
    pub(super) fn new(memory: &M, hparams: &Hparams, n_batch: usize) -> MlaScratch<M> {
        let mla = hparams.mla;
        let rows = |width: u64| memory.scratch(n_batch * width as usize);
        let head_rows = |width: u64| rows(hparams.n_head * width);
        MlaScratch {
            low_rank: rows(mla.n_lora_q),
            low_rank_normed: rows(mla.n_lora_q),
            query: head_rows(mla.key_dim),
            plain: head_rows(mla.key_dim),
            compressed: head_rows(mla.n_lora_kv),
            kv: rows(mla.row_len(hparams.n_rot)),
            kv_compressed: rows(mla.n_lora_kv),
            kv_normed: rows(mla.n_lora_kv),
            value: head_rows(mla.value_dim),
            heads: memory.expert_routes(n_batch, hparams.n_head as usize),
        }
    }
}

pub(super) fn load<B: Backend>(
    weights: &mut Weights<'_, B>,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    let hparams = weights.hparams.clone();
    let (mla, n_head) = (hparams.mla, hparams.n_head as usize);
    let dims = Dims {
        n_embd: hparams.n_embd as usize,
        n_head,
        plain: mla.plain_dim(hparams.n_rot) as usize,
        rotated: hparams.n_rot as usize,
        compressed: mla.n_lora_kv as usize,
    };
    let head_dim = dims.rotated + dims.compressed;
    // Models with a log multiplier scale the attention scores, not the rotated elements.
    let mscale = match &hparams.rope_scaling {
        RopeScaling::Yarn(yarn) => mscale(yarn.factor, yarn.log_multiplier),
        _ => 1.0,
    };
    Ok(Box::new(DeepSeek {
        attn_norm: weights.need("attn_norm.weight")?,
        query: match mla.n_lora_q {
            0 => Query::Direct(weights.need_matrix("attn_q.weight")?),
            _ => Query::LowRank {
                a: weights.need_matrix("attn_q_a.weight")?,
                norm: weights.need("attn_q_a_norm.weight")?,
                b: weights.need_matrix("attn_q_b.weight")?,
            },
        },
        kv: weights.need_matrix("attn_kv_a_mqa.weight")?,
        kv_norm: weights.need("attn_kv_a_norm.weight")?,
        key: weights.need_heads("attn_k_b.weight", n_head)?,
        value: weights.need_heads("attn_v_b.weight", n_head)?,
        output: weights.need_matrix("attn_output.weight")?,
        ffn: FeedForward::load(weights, "ffn_norm.weight")?,
        shape: AttentionShape {
            n_head,
            n_head_kv: 1,
            head_dim,
            scale: mscale * mscale / (mla.key_dim as f32).sqrt(),
            window: None,
        },
        rope: rope(&hparams, RopeLayout::Norm, head_dim, None)?,
        dims,
        eps: hparams.rms_eps,
    }))
}

impl<B: Backend> DeepSeek<B> {
    /// Computes `s.q` from `s.normed`: for each head its rotated part, then the factor on
    /// compressed rows.
    fn queries(&self, backend: &B, n: usize, s: &mut Scratch<B>) {
        let (m, dims) = (&mut s.mla, &self.dims);
        match &self.query {
            Query::Direct(weight) => weight.multiply(backend, &s.normed, n, &mut m.query),
            Query::LowRank { a, norm, b } => {
                a.multiply(backend, &s.normed, n, &mut m.low_rank);
                backend.rms_norm(&m.low_rank, norm, self.eps, n, &mut m.low_rank_normed);
                b.multiply(backend, &m.low_rank_normed, n, &mut m.query);
            }
        }
        let n_heads = n * dims.n_head;
        let place = |stride, offset| Columns { stride, offset };
        let (key_dim, row_len) = (dims.plain + dims.rotated, dims.rotated + dims.compressed);
        let (from, to) = (place(key_dim, 0), place(dims.plain, 0));
        backend.copy_columns(&m.query, from, &mut m.plain, to, dims.plain, n_heads);
        let each = ExpertInput::PerExpert;
        backend.choose_all(n, &mut m.heads);
        (self.key).multiply(backend, &m.heads, &m.plain, each, n, &mut m.compressed);
        let (from, to) = (place(key_dim, dims.plain), place(row_len, 0));
        backend.copy_columns(&m.query, from, &mut s.q, to, dims.rotated, n_heads);
        let (from, to) = (place(dims.compressed, 0), place(row_len, dims.rotated));
        backend.copy_columns(&m.compressed, from, &mut s.q, to, dims.compressed, n_heads);
    }

    /// Computes `s.k` from `s.normed`: the row that all heads share, before rotation.
    fn row(&self, backend: &B, n: usize, s: &mut Scratch<B>) {
        let (m, dims) = (&mut s.mla, &self.dims);
        let place = |stride, offset| Columns { stride, offset };
        let row_len = dims.rotated + dims.compressed;
        self.kv.multiply(backend, &s.normed, n, &mut m.kv);
        let (from, to) = (place(row_len, 0), place(dims.compressed, 0));
        backend.copy_columns(&m.kv, from, &mut m.kv_compressed, to, dims.compressed, n);
        backend.rms_norm(
            &m.kv_compressed,
            &self.kv_norm,
            self.eps,
            n,
            &mut m.kv_normed,
        );
        let (from, to) = (place(row_len, dims.compressed), place(row_len, 0));
        backend.copy_columns(&m.kv, from, &mut s.k, to, dims.rotated, n);
        let (from, to) = (place(dims.compressed, 0), place(row_len, dims.rotated));
        backend.copy_columns(&m.kv_normed, from, &mut s.k, to, dims.compressed, n);
    }
}

impl<B: Backend> Layer<B> for DeepSeek<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        let LayerCache::Kv(cache) = &mut *pass.cache else {
            unreachable!("an attention layer is loaded with a key-value cache")
        };
        let (backend, n, s, dims) = (pass.backend, pass.n, &mut *pass.s, &self.dims);
        backend.rms_norm(&s.x, &self.attn_norm, self.eps, n, &mut s.normed);
        self.queries(backend, n, s);
        self.row(backend, n, s);
        let row_len = dims.rotated + dims.compressed;
        backend.rope(&mut s.q, &self.rope, dims.n_head, pass.positions);
        backend.rope(&mut s.k, &self.rope, 1, pass.positions);
        backend.store_rows(&s.k, &pass.places.rows, &mut cache.k);
        // A row is its own value; the output for the rotated part is not used.
        let input = AttentionInput {
            q: &s.q,
            k: &cache.k,
            v: &cache.k,
            sinks: None,
        };
        backend.attention(&self.shape, input, &pass.places.keys, &mut s.attended);

        let m = &mut s.mla;
        let place = |stride, offset| Columns { stride, offset };
        let (from, to) = (place(row_len, dims.rotated), place(dims.compressed, 0));
        let n_heads = n * dims.n_head;
        backend.copy_columns(
            &s.attended,
            from,
            &mut m.compressed,
            to,
            dims.compressed,
            n_heads,
        );
        let each = ExpertInput::PerExpert;
        (self.value).multiply(backend, &m.heads, &m.compressed, each, n, &mut m.value);
        self.output.multiply(backend, &m.value, n, &mut s.normed);
        backend.add(&mut s.x, &s.normed, n * dims.n_embd);
        self.ffn.forward(pass);
    }
}
