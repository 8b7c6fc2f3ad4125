//! DeepSeek V4: hyper-connections, and attention with one key-value head whose rows are keys and values at once. A token
//! attends to the rows of its window and, in most layers, to compressed rows of earlier positions: to all of them, or to
//! those that an indexer chooses.
//!
//! The rows that a token attends to are copied to a scratch cache, one after another, so that attention reads them
//! like those of a sequence. llama.cpp multiplies the indexer's queries and keys by a Hadamard matrix, which changes
//! scores only by rounding, so it is left out here.

use std::mem;

use kernels::backend::{
    AttentionInput, AttentionShape, Backend, CacheShape, CacheType, CompressionInput,
    CompressionShape, ExpertInput, GatheredRows, IndexerInput, IndexerShape, KeyRows, Rope,
    RopeLayout,
};
use schemas::arch::{Compressed, Hparams, LayerKind, RopeScaling};

use crate::cache::{CompressedKv, CompressedRows, GroupPlaces, LayerCache};
use crate::error::ModelError;
use crate::memory::Memory;

use super::feed_forward::{Activation, FeedForward, Style};
use super::matrix::{Matrix, MatrixStack, multiply_each};
use super::rope::rope;
use super::scratch::ScratchShape;
use super::streams::Mixer;
use super::weights::Weights;
use super::{Layer, Pass, Scratch, unweighted_norm};

struct DeepSeek4<B: Backend> {
    attn_connection: Mixer<B>,
    ffn_connection: Mixer<B>,
    attn_norm: B::Weight,
    q_a: Matrix<B>,
    q_a_norm: B::Weight,
    q_b: Matrix<B>,
    kv: Matrix<B>,
    kv_norm: B::Weight,
    sinks: B::Weight,
    /// One per group of heads: (n_lora_out, group width)
    output_a: MatrixStack<B>,
    output_b: Matrix<B>,
    compressor: Option<Compressor<B>>,
    indexer: Option<Indexer<B>>,
    ffn: FeedForward<B>,
    shape: AttentionShape,
    rope: Rope,
    /// The opposite rotation, of the output.
    rope_back: Rope,
    eps: f32,
}

/// The reduction of groups of positions to one.
struct Compressor<B: Backend> {
    kv: Matrix<B>,
    gate: Matrix<B>,
    ape: B::Weight,
    norm: B::Weight,
    shape: CompressionShape,
    rope: Rope,
    eps: f32,
}

/// The choice of compressed positions.
struct Indexer<B: Backend> {
    q: Matrix<B>,
    weights: Matrix<B>,
    compressor: Compressor<B>,
    shape: IndexerShape,
}

/// Activations of attention to compressed positions.
pub(super) struct CompressedScratch<M: Memory> {
    /// (n, n_lora_q)
    low_rank: M::Floats,
    /// Normalised `low_rank`
    low_rank_normed: M::Floats,
    /// Values and scores of positions: (n, 2 * head_dim)
    kv: M::Floats,
    gate: M::Floats,
    /// Compressed rows, before and after the norm: (n, head_dim)
    pooled: M::Floats,
    pooled_normed: M::Floats,
    /// Queries of the indexer, and the weights of its heads: (n, n_head_indexer * indexer_dim), (n, n_head_indexer)
    indexer_q: M::Floats,
    indexer_weights: M::Floats,
    /// Compressed rows that tokens attend to: (n, n_chosen)
    chosen: M::Tokens,
    n_chosen: usize,
    /// Rows that tokens attend to, one token after another.
    gathered: M::Cache,
    n_gathered: usize,
    /// Rows of the tokens that attend at the same time, and their places in `gathered`.
    parts: Vec<GatheredRows>,
    gathered_rows: Vec<KeyRows>,
    /// Output of the groups: (n, n_group, n_lora_out)
    low_rank_out: M::Floats,
    /// Routes of every row to all groups: (n, n_group)
    groups: M::Routes,
}

/// Rows of the scratch cache, if a token does not need more.
const GATHERED_ROWS: usize = 1 << 14;

impl<M: Memory> CompressedScratch<M> {
    /// Allocates buffers for a pass; empty ones if the model has no compressed rows.
    pub(super) fn new(memory: &M, hparams: &Hparams, shape: ScratchShape) -> CompressedScratch<M> {
        let own = &hparams.compressed;
        let n_batch = shape.n_batch;
        let rows = |width: u64| memory.scratch(n_batch * width as usize);
        let is_used = own.n_stream > 0;
        let head_dim = if is_used { hparams.head_dim } else { 0 };
        let width = (2 * head_dim).max(2 * own.indexer_dim);
        let n_used = n_chosen(own, shape.n_ctx);
        let most =
            own.ratios.iter().filter(|ratio| **ratio > 0).map(
                |&ratio| match Compressed::has_indexer(ratio) {
                    true => n_used,
                    false => shape.n_ctx / ratio as usize,
                },
            );
        let window = hparams
            .window
            .as_ref()
            .map_or(u64::MAX, |window| window.size);
        let window = usize::try_from(window)
            .unwrap_or(usize::MAX)
            .min(shape.n_ctx);
        let per_token = most.max().map(|most| most + window);
        let n_gathered = per_token.map_or(0, |most| {
            (n_batch.saturating_mul(most)).min(most.max(GATHERED_ROWS))
        });
        CompressedScratch {
            low_rank: rows(own.n_lora_q),
            low_rank_normed: rows(own.n_lora_q),
            kv: rows(width),
            gate: rows(width),
            pooled: rows(width / 2),
            pooled_normed: rows(width / 2),
            indexer_q: rows(own.n_head_indexer * own.indexer_dim),
            indexer_weights: rows(own.n_head_indexer),
            chosen: memory.chosen_tokens(n_batch * n_used),
            n_chosen: n_used,
            gathered: memory.scratch_cache(&CacheShape {
                n_rows: n_gathered,
                n_head: 1,
                head_dim: head_dim as usize,
                element: match is_used {
                    true => shape.cache_type,
                    false => CacheType::F32,
                },
            }),
            n_gathered,
            parts: Vec::new(),
            gathered_rows: Vec::new(),
            low_rank_out: rows(own.n_group * own.n_lora_out),
            groups: memory.expert_routes(n_batch, own.n_group as usize),
        }
    }
}

/// Returns the maximum number of compressed positions that a token attends to in blocks that choose them.
fn n_chosen(own: &Compressed, n_ctx: usize) -> usize {
    let ratio = own
        .ratios
        .iter()
        .find(|ratio| Compressed::has_indexer(**ratio));
    ratio.map_or(0, |&ratio| {
        let n_chosen = usize::try_from(own.n_chosen).unwrap_or(usize::MAX);
        n_chosen.min(n_ctx / ratio as usize)
    })
}

pub(super) fn load<B: Backend>(
    weights: &mut Weights<'_, B>,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    let hparams = weights.hparams.of_block(weights.block());
    let own = &hparams.compressed;
    let is_head = weights.kind() == LayerKind::Mtp;
    let ratio = if is_head { 0 } else { own.ratio };
    let (head_dim, eps) = (hparams.head_dim as usize, hparams.rms_eps);
    let rope = layer_rope(&hparams, ratio, head_dim)?;
    let [limit, shared_limit] = own.limit;
    let [activation, shared_activation] =
        [limit, shared_limit].map(|limit| match limit > SMALLEST_LIMIT {
            true => Activation::LimitedSilu(limit),
            false => Activation::Silu,
        });
    let compressor = match ratio {
        0 => None,
        _ => Some(Compressor::load(
            weights,
            "attn_compressor",
            &hparams,
            head_dim,
        )?),
    };
    let indexer = match Compressed::has_indexer(ratio) {
        true => Some(Indexer {
            q: weights.need_matrix("indexer.attn_q_b.weight")?,
            weights: weights.need_matrix("indexer.proj.weight")?,
            compressor: Compressor::load(
                weights,
                "indexer_compressor",
                &hparams,
                own.indexer_dim as usize,
            )?,
            shape: IndexerShape {
                n_head: own.n_head_indexer as usize,
                head_dim: own.indexer_dim as usize,
                n_chosen: usize::try_from(own.n_chosen).unwrap_or(usize::MAX),
            },
        }),
        false => None,
    };
    Ok(Box::new(DeepSeek4 {
        attn_connection: Mixer::connection(weights, "attn")?,
        ffn_connection: Mixer::connection(weights, "ffn")?,
        attn_norm: weights.need("attn_norm.weight")?,
        q_a: weights.need_matrix("attn_q_a.weight")?,
        q_a_norm: weights.need("attn_q_a_norm.weight")?,
        q_b: weights.need_matrix("attn_q_b.weight")?,
        kv: weights.need_matrix("attn_kv.weight")?,
        kv_norm: weights.need("attn_kv_a_norm.weight")?,
        sinks: weights.need("attn_sinks.weight")?,
        output_a: weights.need_heads("attn_output_a.weight", own.n_group as usize)?,
        output_b: weights.need_matrix("attn_output_b.weight")?,
        compressor,
        indexer,
        ffn: FeedForward::load_with(
            weights,
            &Style {
                norm: "ffn_norm.weight",
                norm_after: None,
                activation,
            },
        )?
        .with_shared_activation(shared_activation),
        shape: AttentionShape {
            n_head: hparams.n_head as usize,
            n_head_kv: 1,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: hparams
                .window(weights.block())
                .map(|window| usize::try_from(window.size).unwrap_or(usize::MAX)),
        },
        rope_back: Rope {
            inv_freq: rope.inv_freq.iter().map(|x| -x).collect(),
            ..rope.clone()
        },
        rope,
        eps,
    }))
}

/// Limits of activations up to this are no limits, as in llama.cpp.
const SMALLEST_LIMIT: f32 = 1e-6;

/// Returns the RoPE of the last elements of heads: with the base and the scaling of compressed positions, or without
/// scaling in layers without them. Rotated elements are never scaled.
fn layer_rope(hparams: &Hparams, ratio: u64, head_dim: usize) -> Result<Rope, ModelError> {
    let mut own = hparams.clone();
    match ratio {
        0 => own.rope_scaling = RopeScaling::None,
        _ => own.rope_freq_base = own.compressed.rope_freq_base,
    }
    Ok(Rope {
        first: head_dim.saturating_sub(own.n_rot as usize),
        magnitude: 1.0,
        ..rope(&own, RopeLayout::Norm, head_dim, None)?
    })
}

impl<B: Backend> Compressor<B> {
    fn load(
        weights: &mut Weights<'_, B>,
        name: &str,
        hparams: &Hparams,
        dim: usize,
    ) -> Result<Compressor<B>, ModelError> {
        let ratio = hparams.compressed.ratio;
        Ok(Compressor {
            kv: weights.need_matrix(&format!("{name}_kv.weight"))?,
            gate: weights.need_matrix(&format!("{name}_gate.weight"))?,
            ape: weights.need(&format!("{name}_ape.weight"))?,
            norm: weights.need(&format!("{name}_norm.weight"))?,
            shape: CompressionShape {
                ratio: ratio as usize,
                dim,
                overlaps: Compressed::has_indexer(ratio),
            },
            rope: layer_rope(hparams, ratio, dim)?,
            eps: hparams.rms_eps,
        })
    }

    /// Computes and stores the compressed rows of the groups that end in the batch, and keeps the rows of its last
    /// positions.
    fn forward(
        &self,
        backend: &B,
        places: &GroupPlaces,
        rows: &mut CompressedRows<B>,
        n: usize,
        s: &mut Scratch<B>,
    ) {
        let c = &mut s.compressed;
        multiply_each(
            backend,
            &s.normed,
            n,
            [(&self.kv, &mut c.kv), (&self.gate, &mut c.gate)],
        );
        let n_group = places.rows.len();
        if n_group > 0 {
            let input = CompressionInput {
                kv: &c.kv,
                gate: &c.gate,
                kept: &rows.kept,
                ape: &self.ape,
            };
            backend.compress(&self.shape, input, &places.sources, &mut c.pooled);
            let pooled = &mut c.pooled_normed;
            backend.rms_norm(&c.pooled, &self.norm, self.eps, n_group, pooled);
            backend.rope(pooled, &self.rope, 1, &places.positions);
            backend.store_rows(pooled, &places.rows, &mut rows.cache);
        }
        let width = self.shape.width();
        backend.keep_rows(&c.kv, &c.gate, width, &places.pairs, &mut rows.kept);
    }
}

impl<B: Backend> DeepSeek4<B> {
    /// Attends to the window, and to compressed rows; computes `s.attended`.
    fn attend(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        let keys = &pass.places.keys;
        let caches = match &mut *pass.cache {
            LayerCache::Kv(kv) => {
                backend.store_rows(&s.k, &pass.places.rows, &mut kv.k);
                let input = AttentionInput {
                    q: &s.q,
                    k: &kv.k,
                    v: &kv.k,
                    sinks: Some(&self.sinks),
                };
                return backend.attention(&self.shape, input, keys, &mut s.attended);
            }
            LayerCache::Compressed(caches) => &mut **caches,
            _ => unreachable!("an attention layer is loaded with a key-value cache"),
        };
        let mut groups = pass.places.groups.iter();
        let places = groups.find(|groups| groups.ratio == caches.ratio);
        let (Some(places), Some(compressor)) = (places, &self.compressor) else {
            unreachable!("a cache has the groups of its layers")
        };
        backend.store_rows(&s.k, &pass.places.rows, &mut caches.kv.k);
        compressor.forward(backend, places, &mut caches.main, n, s);
        if let (Some(indexer), Some(rows)) = (&self.indexer, &mut caches.indexer) {
            indexer.choose(backend, places, pass.positions, rows, n, s);
        }
        self.attend_to_rows(backend, caches, places, keys, s);
    }

    /// Makes the rows that tokens attend to consecutive, for as many tokens at a time as there is room for, and
    /// attends to them.
    fn attend_to_rows(
        &self,
        backend: &B,
        caches: &CompressedKv<B>,
        places: &GroupPlaces,
        keys: &[KeyRows],
        s: &mut Scratch<B>,
    ) {
        let n_chosen = self.indexer.as_ref().map(|_| s.compressed.n_chosen);
        let width = self.shape.n_head * self.shape.head_dim;
        let shape = AttentionShape {
            window: None,
            ..self.shape
        };
        // Taken out of the scratch buffers, so that they can be read while others are written.
        let mut parts = mem::take(&mut s.compressed.parts);
        let mut gathered = mem::take(&mut s.compressed.gathered_rows);
        let mut start = 0;
        while start < keys.len() {
            parts.clear();
            let mut to = 0;
            let visible = keys.iter().zip(&places.visible).enumerate();
            for (query, (keys, compressed)) in visible.skip(start) {
                let first = self.shape.visible(keys);
                let mut second = compressed.clone();
                if let Some(n_chosen) = n_chosen {
                    second.end = second.end.min(second.start.saturating_add(n_chosen));
                }
                let part = GatheredRows {
                    query,
                    first,
                    second,
                    to,
                };
                if part.gathered().end > s.compressed.n_gathered {
                    break;
                }
                to = part.gathered().end;
                parts.push(part);
            }
            let n = parts.len();
            assert!(n > 0, "there is room for the rows of one token");
            let c = &mut s.compressed;
            let chosen = n_chosen.map(|_| (&c.chosen, c.n_chosen));
            let sources = [&caches.kv.k, &caches.main.cache];
            backend.gather_cached(sources, chosen, &parts, &mut c.gathered);
            gathered.clear();
            gathered.extend(parts.iter().map(GatheredRows::gathered));
            let whole = n == keys.len();
            if !whole {
                backend.copy_rows(&s.q, start, &mut s.q_raw, 0, width, n);
            }
            let input = AttentionInput {
                q: if whole { &s.q } else { &s.q_raw },
                k: &c.gathered,
                v: &c.gathered,
                sinks: Some(&self.sinks),
            };
            match whole {
                true => backend.attention(&shape, input, &gathered, &mut s.attended),
                false => {
                    backend.attention(&shape, input, &gathered, &mut s.gate);
                    backend.copy_rows(&s.gate, 0, &mut s.attended, start, width, n);
                }
            }
            start += n;
        }
        (s.compressed.parts, s.compressed.gathered_rows) = (parts, gathered);
    }
}

impl<B: Backend> Layer<B> for DeepSeek4<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        let AttentionShape {
            n_head, head_dim, ..
        } = self.shape;
        self.attn_connection.gather(backend, n, s);
        backend.rms_norm(
            &s.streams.input,
            &self.attn_norm,
            self.eps,
            n,
            &mut s.normed,
        );
        let c = &mut s.compressed;
        self.q_a.multiply(backend, &s.normed, n, &mut c.low_rank);
        let low_rank = &mut c.low_rank_normed;
        backend.rms_norm(&c.low_rank, &self.q_a_norm, self.eps, n, low_rank);
        self.q_b.multiply(backend, low_rank, n, &mut s.q);
        unweighted_norm(backend, &mut s.q, self.eps, head_dim, n * n_head);
        backend.rope(&mut s.q, &self.rope, n_head, pass.positions);
        self.kv.multiply(backend, &s.normed, n, &mut s.k_raw);
        backend.rms_norm(&s.k_raw, &self.kv_norm, self.eps, n, &mut s.k);
        backend.rope(&mut s.k, &self.rope, 1, pass.positions);
        self.attend(pass);
        let s = &mut *pass.s;
        backend.rope(&mut s.attended, &self.rope_back, n_head, pass.positions);
        let c = &mut s.compressed;
        backend.choose_all(n, &mut c.groups);
        let each = ExpertInput::PerExpert;
        (self.output_a).multiply(
            backend,
            &c.groups,
            &s.attended,
            each,
            n,
            &mut c.low_rank_out,
        );
        (self.output_b).multiply(backend, &c.low_rank_out, n, &mut s.ffn_out);
        self.attn_connection.scatter(backend, n, s);
        self.ffn_connection.gather(backend, n, s);
        self.ffn.forward_mixed(pass);
        self.ffn_connection.scatter(backend, n, pass.s);
    }
}

impl<B: Backend> Indexer<B> {
    /// Chooses the compressed rows that each token attends to.
    fn choose(
        &self,
        backend: &B,
        places: &GroupPlaces,
        positions: &[u32],
        rows: &mut CompressedRows<B>,
        n: usize,
        s: &mut Scratch<B>,
    ) {
        let IndexerShape {
            n_head, head_dim, ..
        } = self.shape;
        self.compressor.forward(backend, places, rows, n, s);
        let c = &mut s.compressed;
        self.q
            .multiply(backend, &c.low_rank_normed, n, &mut c.indexer_q);
        backend.rope(&mut c.indexer_q, &self.compressor.rope, n_head, positions);
        self.weights
            .multiply(backend, &s.normed, n, &mut c.indexer_weights);
        let factor = 1.0 / ((head_dim * n_head) as f32).sqrt();
        backend.scale(&mut c.indexer_weights, factor, n * n_head);
        let input = IndexerInput {
            q: &c.indexer_q,
            weights: &c.indexer_weights,
            k: &rows.cache,
        };
        let shape = IndexerShape {
            n_chosen: c.n_chosen,
            ..self.shape
        };
        backend.choose_rows(&shape, input, &places.visible, &mut c.chosen);
    }
}
