//! Gemma 4: layers with a sliding window have their own head size; the last layers attend to the keys and
//! values of earlier ones. Small models add an embedding of each token for each layer.

use kernels::backend::{Backend, Columns, RopeLayout};
use schemas::arch::{Hparams, HparamsError, ROPE_FREQS, keys};

use crate::error::ModelError;

use super::attention::Attention;
use super::feed_forward::{Activation, FeedForward, Style};
use super::matrix::Matrix;
use super::scratch::Scratch;
use super::weights::Weights;
use super::{Layer, Pass, PassInput, unweighted_norm};

struct Gemma4<B: Backend> {
    attn_norm: B::Weight,
    q: Matrix<B>,
    q_norm: B::Weight,
    /// `None` where the cache has the keys and values of another layer.
    key_value: Option<KeyValue<B>>,
    output: Matrix<B>,
    attention: Attention,
    post_attention_norm: B::Weight,
    ffn: FeedForward<B>,
    per_layer: Option<PerLayer<B>>,
    /// Factor on the output of the layer.
    scale: Option<f32>,
    n_head: usize,
    n_embd: usize,
    eps: f32,
}

struct KeyValue<B: Backend> {
    k: Matrix<B>,
    /// Without it, values are keys before their norm.
    v: Option<Matrix<B>>,
    k_norm: B::Weight,
    n_head_kv: usize,
    head_dim: usize,
}

/// Adds `norm (proj (gelu (gate x) * embedding))`, with the token's embedding for this layer.
struct PerLayer<B: Backend> {
    gate: Matrix<B>,
    proj: Matrix<B>,
    norm: B::Weight,
    width: usize,
    /// First column of the embedding among those of all layers.
    offset: usize,
    stride: usize,
}

pub(super) fn load<B: Backend>(
    weights: &mut Weights<'_, B>,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    let block = weights.block();
    let hparams = weights.hparams.of_block(block);
    let shape = attention_shape(&weights.hparams, block)?;
    let key_value = match hparams.shares_kv {
        true => None,
        false => Some(KeyValue {
            k: weights.need_matrix("attn_k.weight")?,
            v: weights.get_matrix("attn_v.weight")?,
            k_norm: weights.need("attn_k_norm.weight")?,
            n_head_kv: hparams.n_head_kv as usize,
            head_dim: hparams.head_dim as usize,
        }),
    };
    let attention = attention(weights, &shape)?;
    let per_layer = match hparams.n_embd_per_layer as usize {
        0 => None,
        width => Some(PerLayer {
            gate: weights.need_matrix("inp_gate.weight")?,
            proj: weights.need_matrix("proj.weight")?,
            norm: weights.need("post_norm.weight")?,
            width,
            offset: block as usize * width,
            stride: hparams.n_layer as usize * width,
        }),
    };
    let scale = weights.values("layer_output_scale.weight")?;
    Ok(Box::new(Gemma4 {
        attn_norm: weights.need("attn_norm.weight")?,
        q: weights.need_matrix("attn_q.weight")?,
        q_norm: weights.need("attn_q_norm.weight")?,
        key_value,
        output: weights.need_matrix("attn_output.weight")?,
        attention,
        post_attention_norm: weights.need("post_attention_norm.weight")?,
        ffn: FeedForward::load_with(
            weights,
            &Style {
                norm: "ffn_norm.weight",
                norm_after: Some("post_ffw_norm.weight"),
                activation: Activation::Gelu,
            },
        )?,
        per_layer,
        scale: scale.map(|values| values[0]),
        n_head: hparams.n_head as usize,
        n_embd: hparams.n_embd as usize,
        eps: hparams.rms_eps,
    }))
}

/// Returns the hyperparameters of a block, with the number of KV heads of the block that it attends to.
fn attention_shape(hparams: &Hparams, block: u32) -> Result<Hparams, ModelError> {
    let mut own = hparams.of_block(block);
    let source = hparams.of_block(hparams.kv_blocks[block as usize]);
    if !own.n_head.is_multiple_of(source.n_head_kv) {
        return Err(HparamsError::Range {
            key: format!("{}.{}", own.arch.name, keys::HEAD_COUNT_KV),
            found: source.n_head_kv,
            expected: format!("a divisor of the {} heads of block {block}", own.n_head),
        }
        .into());
    }
    own.n_head_kv = source.n_head_kv;
    Ok(own)
}

/// Creates the attention of the current block, with these hyperparameters.
fn attention<B: Backend>(
    weights: &Weights<'_, B>,
    hparams: &Hparams,
) -> Result<Attention, ModelError> {
    let block = weights.block();
    // Only full attention rotates a part of each head.
    let factors = match hparams.window(block) {
        Some(_) => None,
        None => weights.model_values(ROPE_FREQS)?,
    };
    let attention = Attention::new(hparams, RopeLayout::Neox, factors.as_deref())?;
    let attention = attention.of_block(hparams, block).scaled(1.0);
    Ok(match hparams.arch.assistant {
        true => attention.without_own_key(),
        false => attention,
    })
}

impl<B: Backend> KeyValue<B> {
    /// Computes `s.k` and `s.v` from `s.normed`. Values have a norm without weights.
    fn forward(&self, backend: &B, eps: f32, n: usize, s: &mut Scratch<B>) {
        let (n_heads, dim) = (n * self.n_head_kv, self.head_dim);
        self.k.multiply(backend, &s.normed, n, &mut s.k_raw);
        match &self.v {
            Some(v) => v.multiply(backend, &s.normed, n, &mut s.v),
            None => backend.copy_rows(&s.k_raw, 0, &mut s.v, 0, dim, n_heads),
        }
        backend.rms_norm(&s.k_raw, &self.k_norm, eps, n_heads, &mut s.k);
        unweighted_norm(backend, &mut s.v, eps, dim, n_heads);
    }
}

impl<B: Backend> PerLayer<B> {
    /// Computes `s.normed` from `s.x`.
    fn forward(&self, backend: &B, eps: f32, n: usize, s: &mut Scratch<B>) {
        let p = &mut s.per_layer;
        let place = |stride, offset| Columns { stride, offset };
        self.gate.multiply(backend, &s.x, n, &mut p.gate);
        let (from, to) = (place(self.stride, self.offset), place(self.width, 0));
        backend.copy_columns(&p.embedded, from, &mut p.own, to, self.width, n);
        backend.gelu_mul(&mut p.gate, &p.own, n * self.width);
        self.proj.multiply(backend, &p.gate, n, &mut s.ffn_out);
        backend.rms_norm(&s.ffn_out, &self.norm, eps, n, &mut s.normed);
    }
}

impl<B: Backend> Layer<B> for Gemma4<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s, eps) = (pass.backend, pass.n, &mut *pass.s, self.eps);
        backend.rms_norm(&s.x, &self.attn_norm, eps, n, &mut s.normed);
        self.q.multiply(backend, &s.normed, n, &mut s.q_raw);
        backend.rms_norm(&s.q_raw, &self.q_norm, eps, n * self.n_head, &mut s.q);
        match &self.key_value {
            Some(key_value) => {
                key_value.forward(backend, eps, n, s);
                self.attention.forward(pass);
            }
            None => self.attention.attend(pass, None),
        }

        let s = &mut *pass.s;
        self.output
            .multiply(backend, &s.attended, n, &mut s.ffn_out);
        let norm = &self.post_attention_norm;
        backend.rms_norm(&s.ffn_out, norm, eps, n, &mut s.normed);
        backend.add(&mut s.x, &s.normed, n * self.n_embd);
        self.ffn.forward(pass);

        let s = &mut *pass.s;
        if let Some(per_layer) = &self.per_layer {
            per_layer.forward(backend, eps, n, s);
            backend.add(&mut s.x, &s.normed, n * self.n_embd);
        }
        if let Some(scale) = self.scale {
            backend.scale(&mut s.x, scale, n * self.n_embd);
        }
    }
}

/// Embeddings of tokens for each layer: of the token, plus a projection of its usual embedding.
pub(super) struct PerLayerInput<B: Backend> {
    /// (n_vocab, n_layer * width)
    embd: B::Weight,
    /// (n_layer * width, n_embd)
    proj: Matrix<B>,
    /// (width)
    norm: B::Weight,
    n_embd: usize,
    n_layer: usize,
    width: usize,
    eps: f32,
}

impl<B: Backend> PerLayerInput<B> {
    /// Loads the tensors, if the model has them.
    pub(super) fn load(weights: &mut Weights<'_, B>) -> Result<Option<Self>, ModelError> {
        let hparams = weights.hparams.clone();
        if hparams.n_embd_per_layer == 0 {
            return Ok(None);
        }
        Ok(Some(PerLayerInput {
            embd: weights.need_table("per_layer_token_embd.weight")?,
            proj: weights.need_matrix("per_layer_model_proj.weight")?,
            norm: weights.need("per_layer_proj_norm.weight")?,
            n_embd: hparams.n_embd as usize,
            n_layer: hparams.n_layer as usize,
            width: hparams.n_embd_per_layer as usize,
            eps: hparams.rms_eps,
        }))
    }

    /// Computes `s.per_layer.embedded`, (n, n_layer * width), from the embeddings in `s.x`. Given embeddings
    /// have token 0.
    pub(super) fn forward(&self, backend: &B, input: &PassInput<'_, B>, s: &mut Scratch<B>) {
        let (n, p) = (input.tokens.len(), &mut s.per_layer);
        let n_rows = n * self.n_layer;
        let len = n_rows * self.width;
        match input.chosen {
            Some((chosen, places)) => {
                backend.embed_chosen(&self.embd, chosen, places, &mut p.embedded);
            }
            None => backend.embed(&self.embd, &s.tokens, &mut p.embedded),
        }
        backend.scale(&mut p.embedded, (self.width as f32).sqrt(), len);
        self.proj.multiply(backend, &s.x, n, &mut p.projected);
        let scale = 1.0 / (self.n_embd as f32).sqrt();
        backend.scale(&mut p.projected, scale, len);
        backend.rms_norm(&p.projected, &self.norm, self.eps, n_rows, &mut p.normed);
        backend.add(&mut p.embedded, &p.normed, len);
        backend.scale(&mut p.embedded, std::f32::consts::FRAC_1_SQRT_2, len);
    }
}
