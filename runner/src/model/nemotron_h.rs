//! Nemotron-H: each layer is a Mamba-2 layer, attention without positions, or a feed-forward network. The MTP
//! head has attention and a network.

use kernels::backend::{Backend, RopeLayout, StateSpaceInput, StateSpaceShape};
use schemas::arch::LayerKind;

use crate::cache::LayerCache;
use crate::error::ModelError;

use super::attention::Attention;
use super::feed_forward::{Activation, FeedForward, Style};
use super::matrix::{Matrix, multiply_each};
use super::weights::Weights;
use super::{Layer, Pass};

pub(super) fn load<B: Backend>(
    weights: &mut Weights<'_, B>,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    Ok(match weights.kind() {
        LayerKind::Recurrent => Box::new(Mamba::load(weights)?),
        LayerKind::Attention => Box::new(UnrotatedAttention::load(weights)?),
        LayerKind::FeedForward => Box::new(Network(network(weights, "attn_norm.weight")?)),
        LayerKind::Mtp => Box::new(Head {
            attention: UnrotatedAttention::load(weights)?,
            network: network(weights, "post_attention_norm.weight")?,
        }),
    })
}

/// Loads the network of a block, with the named norm before it.
fn network<B: Backend>(
    weights: &mut Weights<'_, B>,
    norm: &str,
) -> Result<FeedForward<B>, ModelError> {
    let style = Style {
        norm,
        norm_after: None,
        activation: Activation::ReluSquared,
    };
    FeedForward::load_with(weights, &style)
}

/// A feed-forward network alone.
struct Network<B: Backend>(FeedForward<B>);

impl<B: Backend> Layer<B> for Network<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        self.0.forward(pass);
    }
}

/// Attention and a network in one block.
struct Head<B: Backend> {
    attention: UnrotatedAttention<B>,
    network: FeedForward<B>,
}

impl<B: Backend> Layer<B> for Head<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        self.attention.forward(pass);
        self.network.forward(pass);
    }
}

/// Attention without positions.
struct UnrotatedAttention<B: Backend> {
    norm: B::Weight,
    q: Matrix<B>,
    k: Matrix<B>,
    v: Matrix<B>,
    output: Matrix<B>,
    attention: Attention,
    n_embd: usize,
    eps: f32,
}

impl<B: Backend> UnrotatedAttention<B> {
    fn load(weights: &mut Weights<'_, B>) -> Result<Self, ModelError> {
        let hparams = weights.hparams.of_block(weights.block());
        Ok(UnrotatedAttention {
            norm: weights.need("attn_norm.weight")?,
            q: weights.need_matrix("attn_q.weight")?,
            k: weights.need_matrix("attn_k.weight")?,
            v: weights.need_matrix("attn_v.weight")?,
            output: weights.need_matrix("attn_output.weight")?,
            attention: Attention::new(&hparams, RopeLayout::Neox, None)?,
            n_embd: hparams.n_embd as usize,
            eps: hparams.rms_eps,
        })
    }

    fn forward(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        backend.rms_norm(&s.x, &self.norm, self.eps, n, &mut s.normed);
        multiply_each(
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
        self.output.multiply(backend, &s.attended, n, &mut s.normed);
        backend.add(&mut s.x, &s.normed, n * self.n_embd);
    }
}

impl<B: Backend> Layer<B> for UnrotatedAttention<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        UnrotatedAttention::forward(self, pass);
    }
}

/// A Mamba-2 layer: a convolution and a linear recurrence with a matrix state per head.
struct Mamba<B: Backend> {
    norm: B::Weight,
    gate: Matrix<B>,
    /// Input of all heads, then what is written to and read from the states, for each group.
    channels: Matrix<B>,
    time_step: Matrix<B>,
    conv: B::Weight,
    conv_bias: Option<B::Weight>,
    dt_bias: B::Weight,
    a: B::Weight,
    d: B::Weight,
    /// (n_group, inner_size / n_group)
    group_norm: B::Weight,
    output: Matrix<B>,
    shape: StateSpaceShape,
    n_embd: usize,
    eps: f32,
}

impl<B: Backend> Mamba<B> {
    fn load(weights: &mut Weights<'_, B>) -> Result<Self, ModelError> {
        let hparams = weights.hparams.clone();
        let ssm = hparams.ssm;
        let name = "ssm_in.weight";
        let groups = [ssm.inner_size, ssm.n_channel(), ssm.time_step_rank];
        let parts = weights.get_rows(name, &groups.map(|n| n as usize))?;
        let parts = parts.map(<[Matrix<B>; 3]>::try_from);
        let Some(Ok([gate, channels, time_step])) = parts else {
            let tensor = format!("blk.{}.{name}", weights.block());
            return Err(ModelError::MissingTensor { tensor });
        };
        Ok(Mamba {
            norm: weights.need("attn_norm.weight")?,
            gate,
            channels,
            time_step,
            conv: weights.need("ssm_conv1d.weight")?,
            conv_bias: weights.get("ssm_conv1d.bias")?,
            dt_bias: weights.need("ssm_dt.bias")?,
            a: weights.need("ssm_a")?,
            d: weights.need("ssm_d")?,
            group_norm: weights.need("ssm_norm.weight")?,
            output: weights.need_matrix("ssm_out.weight")?,
            shape: StateSpaceShape {
                n_head: ssm.time_step_rank as usize,
                head_dim: (ssm.inner_size / ssm.time_step_rank) as usize,
                n_group: ssm.group_count as usize,
                state_dim: ssm.state_size as usize,
            },
            n_embd: hparams.n_embd as usize,
            eps: hparams.rms_eps,
        })
    }
}

impl<B: Backend> Layer<B> for Mamba<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) {
        let LayerCache::Recurrent(state) = &mut *pass.cache else {
            unreachable!("a Mamba layer is loaded with a recurrent cache")
        };
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        let (r, steps) = (&mut s.recurrent, &pass.places.steps);
        let inner = self.shape.n_head * self.shape.head_dim;

        backend.rms_norm(&s.x, &self.norm, self.eps, n, &mut s.normed);
        multiply_each(
            backend,
            &s.normed,
            n,
            [
                (&self.gate, &mut r.z),
                (&self.channels, &mut r.qkv),
                (&self.time_step, &mut r.alpha),
            ],
        );
        let bias = self.conv_bias.as_ref();
        backend.causal_conv(
            &r.qkv,
            &self.conv,
            bias,
            steps,
            &mut state.conv,
            &mut r.mixed,
        );
        let input = StateSpaceInput {
            mixed: &r.mixed,
            dt: &r.alpha,
            dt_bias: &self.dt_bias,
            a: &self.a,
            d: &self.d,
        };
        backend.state_space(&self.shape, input, steps, &mut state.states, &mut r.out);
        backend.silu_mul(&mut r.z, &r.out, n * inner);
        let n_norm = n * self.shape.n_group;
        backend.rms_norm(&r.z, &self.group_norm, self.eps, n_norm, &mut r.normed);
        self.output.multiply(backend, &r.normed, n, &mut s.normed);
        backend.add(&mut s.x, &s.normed, n * self.n_embd);
    }
}
