//! Qwen3.5 and Qwen3-Next: gated attention in every few layers and in the MTP head, gated delta
//! nets in the others.

use kernels::backend::{Backend, Columns, DeltaInput, DeltaShape, HeadOrder, RopeLayout};
use schemas::arch::LayerKind;

use crate::cache::LayerCache;
use crate::error::ModelError;

use super::attention::Attention;
use super::feed_forward::FeedForward;
use super::matrix::{Matrix, multiply_each};
use super::scratch::RecurrentScratch;
use super::weights::Weights;
use super::{Layer, Pass};

/// Epsilon of the norm of queries and keys in the delta net.
const L2_EPS: f32 = 1e-6;

/// Attention whose output is gated by the block's input.
struct GatedAttention<B: Backend> {
    attn_norm: B::Weight,
    /// Per head: the query's rows, then the gate's.
    q_gate: Matrix<B>,
    k: Matrix<B>,
    v: Matrix<B>,
    q_norm: B::Weight,
    k_norm: B::Weight,
    output: Matrix<B>,
    attention: Attention,
    ffn: FeedForward<B>,
    n_head: usize,
    n_head_kv: usize,
    head_dim: usize,
    n_embd: usize,
    eps: f32,
}

/// A linear-time layer with a matrix state per head.
struct GatedDeltaNet<B: Backend> {
    attn_norm: B::Weight,
    qkv: Matrix<B>,
    z: Matrix<B>,
    gates: Gates<B>,
    conv: B::Weight,
    dt_bias: B::Weight,
    a: B::Weight,
    head_norm: B::Weight,
    output: Matrix<B>,
    ffn: FeedForward<B>,
    shape: DeltaShape,
    n_embd: usize,
    eps: f32,
}

/// Projections to the decay and the write strength of each value head.
enum Gates<B: Backend> {
    Apart {
        alpha: Matrix<B>,
        beta: Matrix<B>,
    },
    /// Per key head: the strengths of its value heads, then their decays.
    Joined(Matrix<B>),
}

/// Loads a layer of Qwen3.5, where value heads are tiled over key heads.
pub(super) fn load<B: Backend>(
    weights: &mut Weights<'_, B>,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    load_with(weights, HeadOrder::Tiled)
}

/// Loads a layer with value heads in this order.
pub(super) fn load_with<B: Backend>(
    weights: &mut Weights<'_, B>,
    order: HeadOrder,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    match weights.kind() {
        LayerKind::Recurrent => Ok(Box::new(GatedDeltaNet::load(weights, order)?)),
        LayerKind::Attention | LayerKind::Mtp => Ok(Box::new(GatedAttention::load(weights)?)),
        LayerKind::FeedForward => unreachable!("blocks of this family have two parts"),
    }
}

impl<B: Backend> GatedAttention<B> {
    fn load(weights: &mut Weights<'_, B>) -> Result<Self, ModelError> {
        let hparams = weights.hparams.clone();
        Ok(GatedAttention {
            n_head: hparams.n_head as usize,
            n_head_kv: hparams.n_head_kv as usize,
            head_dim: hparams.head_dim as usize,
            n_embd: hparams.n_embd as usize,
            eps: hparams.rms_eps,
            // Interleaved multi-axis RoPE equals this one if all axes have the same position.
            attention: Attention::new(&hparams, RopeLayout::Neox, None)?,
            attn_norm: weights.need("attn_norm.weight")?,
            q_gate: weights.need_matrix("attn_q.weight")?,
            k: weights.need_matrix("attn_k.weight")?,
            v: weights.need_matrix("attn_v.weight")?,
            q_norm: weights.need("attn_q_norm.weight")?,
            k_norm: weights.need("attn_k_norm.weight")?,
            output: weights.need_matrix("attn_output.weight")?,
            ffn: FeedForward::load(weights, "post_attention_norm.weight")?,
        })
    }
}

impl<B: Backend> Layer<B> for GatedAttention<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        let (n_heads, width) = (n * self.n_head, self.head_dim);
        let whole = Columns {
            stride: width,
            offset: 0,
        };
        let half = |offset| Columns {
            stride: 2 * width,
            offset,
        };

        backend.rms_norm(&s.x, &self.attn_norm, self.eps, n, &mut s.normed);
        self.q_gate.multiply(backend, &s.normed, n, &mut s.q_gate);
        backend.copy_columns(&s.q_gate, half(0), &mut s.q_raw, whole, width, n_heads);
        backend.copy_columns(&s.q_gate, half(width), &mut s.gate, whole, width, n_heads);
        multiply_each(
            backend,
            &s.normed,
            n,
            [(&self.k, &mut s.k_raw), (&self.v, &mut s.v)],
        );
        backend.rms_norm(&s.q_raw, &self.q_norm, self.eps, n_heads, &mut s.q);
        backend.rms_norm(
            &s.k_raw,
            &self.k_norm,
            self.eps,
            n * self.n_head_kv,
            &mut s.k,
        );
        self.attention.forward(pass);

        let s = &mut *pass.s;
        backend.sigmoid_mul(&mut s.attended, &s.gate, n_heads * width);
        self.output.multiply(backend, &s.attended, n, &mut s.normed);
        backend.add(&mut s.x, &s.normed, n * self.n_embd);
        self.ffn.forward(pass);
    }
}

impl<B: Backend> Gates<B> {
    fn load(weights: &mut Weights<'_, B>, order: HeadOrder) -> Result<Self, ModelError> {
        Ok(match order {
            HeadOrder::Tiled => Gates::Apart {
                alpha: weights.need_matrix("ssm_alpha.weight")?,
                beta: weights.need_matrix("ssm_beta.weight")?,
            },
            HeadOrder::Grouped => Gates::Joined(weights.need_matrix("ssm_ba.weight")?),
        })
    }

    /// Computes `d.alpha` and `d.beta` from `x`.
    fn forward(
        &self,
        backend: &B,
        x: &B::Buffer,
        n: usize,
        shape: &DeltaShape,
        d: &mut RecurrentScratch<B>,
    ) {
        match self {
            Gates::Apart { alpha, beta } => {
                alpha.multiply(backend, x, n, &mut d.alpha);
                beta.multiply(backend, x, n, &mut d.beta);
            }
            Gates::Joined(weight) => {
                weight.multiply(backend, x, n, &mut d.gates);
                let width = shape.n_head_v / shape.n_head_k;
                let n_group = n * shape.n_head_k;
                let whole = Columns {
                    stride: width,
                    offset: 0,
                };
                let half = |offset| Columns {
                    stride: 2 * width,
                    offset,
                };
                backend.copy_columns(&d.gates, half(0), &mut d.beta, whole, width, n_group);
                backend.copy_columns(&d.gates, half(width), &mut d.alpha, whole, width, n_group);
            }
        }
    }
}

impl<B: Backend> GatedDeltaNet<B> {
    fn load(weights: &mut Weights<'_, B>, order: HeadOrder) -> Result<Self, ModelError> {
        let hparams = weights.hparams.clone();
        let ssm = hparams.ssm;
        Ok(GatedDeltaNet {
            shape: DeltaShape {
                n_head_k: ssm.group_count as usize,
                n_head_v: ssm.time_step_rank as usize,
                head_dim_k: ssm.state_size as usize,
                head_dim_v: ssm.state_size as usize,
                order,
            },
            n_embd: hparams.n_embd as usize,
            eps: hparams.rms_eps,
            attn_norm: weights.need("attn_norm.weight")?,
            qkv: weights.need_matrix("attn_qkv.weight")?,
            z: weights.need_matrix("attn_gate.weight")?,
            gates: Gates::load(weights, order)?,
            conv: weights.need("ssm_conv1d.weight")?,
            dt_bias: weights.need("ssm_dt.bias")?,
            a: weights.need("ssm_a")?,
            head_norm: weights.need("ssm_norm.weight")?,
            output: weights.need_matrix("ssm_out.weight")?,
            ffn: FeedForward::load(weights, "post_attention_norm.weight")?,
        })
    }
}

impl<B: Backend> Layer<B> for GatedDeltaNet<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        let LayerCache::Recurrent(state) = &mut *pass.cache else {
            unreachable!("a delta net layer is loaded with a recurrent cache")
        };
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        let (d, steps) = (&mut s.recurrent, &pass.places.steps);
        let DeltaShape {
            n_head_k,
            n_head_v,
            head_dim_k,
            head_dim_v,
            ..
        } = self.shape;
        let (key_dim, inner) = (n_head_k * head_dim_k, n_head_v * head_dim_v);

        backend.rms_norm(&s.x, &self.attn_norm, self.eps, n, &mut s.normed);
        multiply_each(
            backend,
            &s.normed,
            n,
            [(&self.qkv, &mut d.qkv), (&self.z, &mut d.z)],
        );
        self.gates.forward(backend, &s.normed, n, &self.shape, d);

        backend.causal_conv(
            &d.qkv,
            &self.conv,
            None,
            steps,
            &mut state.conv,
            &mut d.mixed,
        );
        let whole = |width| Columns {
            stride: width,
            offset: 0,
        };
        let part = |offset| Columns {
            stride: 2 * key_dim + inner,
            offset,
        };
        backend.copy_columns(&d.mixed, part(0), &mut d.q, whole(key_dim), key_dim, n);
        backend.copy_columns(
            &d.mixed,
            part(key_dim),
            &mut d.k,
            whole(key_dim),
            key_dim,
            n,
        );
        backend.copy_columns(
            &d.mixed,
            part(2 * key_dim),
            &mut d.v,
            whole(inner),
            inner,
            n,
        );
        backend.l2_norm(&mut d.q, L2_EPS, head_dim_k, n * n_head_k);
        backend.l2_norm(&mut d.k, L2_EPS, head_dim_k, n * n_head_k);

        let input = DeltaInput {
            q: &d.q,
            k: &d.k,
            v: &d.v,
            alpha: &d.alpha,
            beta: &d.beta,
            dt_bias: &self.dt_bias,
            a: &self.a,
        };
        backend.gated_delta_rule(&self.shape, input, steps, &mut state.states, &mut d.out);
        backend.rms_norm(
            &d.out,
            &self.head_norm,
            self.eps,
            n * n_head_v,
            &mut d.normed,
        );
        backend.silu_mul(&mut d.z, &d.normed, n * inner);
        self.output.multiply(backend, &d.z, n, &mut s.normed);
        backend.add(&mut s.x, &s.normed, n * self.n_embd);
        self.ffn.forward(pass);
    }
}
