//! Feed-forward blocks: dense, or a mixture of experts.

use kernels::backend::{Backend, ExpertInput, Gating, Routing};
use schemas::arch::{self, TOKEN_EXPERTS};

use crate::batch::NO_TOKEN;
use crate::error::ModelError;

use super::dflash2::{ShortConv, Side};
use super::matrix::{Matrix, MatrixStack, multiply_each};
use super::projection::Projection;
use super::weights::Weights;
use super::{Pass, Scratch};

/// `x += network (norm x)`, or `x += norm' (network (norm x))`.
pub(super) struct FeedForward<B: Backend> {
    norm: B::Weight,
    norm_after: Option<B::Weight>,
    network: Network<B>,
    /// Convolutions of the network's input and output.
    conv: Option<ShortConv<B>>,
    n_embd: usize,
    eps: f32,
}

enum Network<B: Backend> {
    Dense(Gated<B>),
    Experts(Box<Experts<B>>),
    Branches(Box<Branches<B>>),
}

/// Differences between the feed-forward blocks of architectures.
pub(super) struct Style<'a> {
    /// Name of the norm before the block.
    pub(super) norm: &'a str,
    /// Name of the norm of its output, if there is one.
    pub(super) norm_after: Option<&'a str>,
    pub(super) activation: Activation,
}

/// Activation function of the gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Activation {
    Silu,
    Gelu,
    /// The activation of gpt-oss, which clamps both factors.
    ClampedSilu,
    /// SiLU of a gate up to this limit; the other factor is within the limit.
    LimitedSilu(f32),
    /// `max(x, 0)^2`, in networks without a gate.
    ReluSquared,
}

impl Activation {
    fn has_gate(self) -> bool {
        self != Activation::ReluSquared
    }

    /// Computes `gate = activation(gate) * up`; without a gate, `gate` is the result of `up`.
    fn apply<B: Backend>(self, backend: &B, gate: &mut B::Buffer, up: &B::Buffer, len: usize) {
        match self {
            Activation::Silu => backend.silu_mul(gate, up, len),
            Activation::Gelu => backend.gelu_mul(gate, up, len),
            Activation::ClampedSilu => backend.clamped_silu_mul(gate, up, len),
            Activation::LimitedSilu(limit) => backend.limited_silu_mul(gate, up, limit, len),
            Activation::ReluSquared => backend.relu_squared(gate, len),
        }
    }
}

impl<B: Backend> FeedForward<B> {
    /// Loads the current block, with the named norm before it.
    pub(super) fn load(
        weights: &mut Weights<'_, B>,
        norm: &str,
    ) -> Result<FeedForward<B>, ModelError> {
        let style = Style {
            norm,
            norm_after: None,
            activation: Activation::Silu,
        };
        FeedForward::load_with(weights, &style)
    }

    /// Loads the current block in the given style.
    pub(super) fn load_with(
        weights: &mut Weights<'_, B>,
        style: &Style<'_>,
    ) -> Result<FeedForward<B>, ModelError> {
        let block = weights.block();
        let hparams = weights.hparams.of_block(block);
        let activation = style.activation;
        let is_beside = hparams.arch.blocks.dense_beside_experts;
        let network = match hparams.has_experts(block) {
            true if is_beside => Network::Branches(Box::new(Branches::load(weights, activation)?)),
            true => Network::Experts(Box::new(Experts::load(weights, activation)?)),
            false => Network::Dense(Gated::load(weights, "", hparams.n_ff, activation)?),
        };
        let norm_after = style.norm_after.map(|norm| weights.need(norm));
        Ok(FeedForward {
            norm: weights.need(style.norm)?,
            norm_after: norm_after.transpose()?,
            network,
            conv: ShortConv::load(weights, "ffn")?,
            n_embd: hparams.n_embd as usize,
            eps: hparams.rms_eps,
        })
    }

    /// Sets the activation of the shared expert.
    pub(super) fn with_shared_activation(mut self, activation: Activation) -> FeedForward<B> {
        if let Network::Experts(experts) = &mut self.network
            && let Some(shared) = &mut experts.shared
        {
            shared.network.activation = activation;
        }
        self
    }

    /// Computes `s.ffn_out` from the mixed streams, `s.streams.input`.
    pub(super) fn forward_mixed(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        backend.rms_norm(&s.streams.input, &self.norm, self.eps, n, &mut s.normed);
        self.run(pass);
    }

    pub(super) fn forward(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        backend.rms_norm(&s.x, &self.norm, self.eps, n, &mut s.normed);
        self.run(pass);
        let s = &mut *pass.s;
        let out = match &self.norm_after {
            None => &s.ffn_out,
            Some(norm) => {
                backend.rms_norm(&s.ffn_out, norm, self.eps, n, &mut s.normed);
                &s.normed
            }
        };
        backend.add(&mut s.x, out, n * self.n_embd);
    }

    /// Computes `s.ffn_out` from `s.normed`.
    fn run(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        if let Some(conv) = &self.conv {
            let rows = &mut s.normed;
            conv.prepare(backend, rows, n, &mut s.conv);
            conv.apply(Side::Before, backend, pass.places, rows, &mut s.conv);
        }
        match &self.network {
            Network::Dense(network) => network.forward(backend, n, s),
            Network::Experts(experts) => {
                experts.choose(backend, pass.tokens, n, s);
                experts.forward(backend, n, s);
            }
            Network::Branches(branches) => branches.forward(backend, n, s),
        }
        if let Some(conv) = &self.conv {
            let rows = &mut s.ffn_out;
            conv.apply(Side::After, backend, pass.places, rows, &mut s.conv);
        }
    }
}

/// A dense network and a mixture of experts, each between two norms. The first norm of the dense one is that of the
/// block.
struct Branches<B: Backend> {
    dense: Gated<B>,
    dense_norm: B::Weight,
    experts: Experts<B>,
    experts_norm: B::Weight,
    experts_norm_after: B::Weight,
    router_norm: B::Weight,
    n_embd: usize,
    eps: f32,
}

impl<B: Backend> Branches<B> {
    fn load(
        weights: &mut Weights<'_, B>,
        activation: Activation,
    ) -> Result<Branches<B>, ModelError> {
        let hparams = weights.hparams.of_block(weights.block());
        Ok(Branches {
            dense: Gated::load(weights, "", hparams.n_ff, activation)?,
            dense_norm: weights.need("post_ffw_norm_1.weight")?,
            experts: Experts::load(weights, activation)?,
            experts_norm: weights.need("pre_ffw_norm_2.weight")?,
            experts_norm_after: weights.need("post_ffw_norm_2.weight")?,
            router_norm: weights.need("ffn_gate_inp.scale")?,
            n_embd: hparams.n_embd as usize,
            eps: hparams.rms_eps,
        })
    }

    /// Computes `s.ffn_out` from `s.x`, and from `s.normed`, the input of the dense network.
    fn forward(&self, backend: &B, n: usize, s: &mut Scratch<B>) {
        let (eps, len) = (self.eps, n * self.n_embd);
        self.dense.forward(backend, n, s);
        let dense = &mut s.experts.dense;
        backend.rms_norm(&s.ffn_out, &self.dense_norm, eps, n, dense);
        backend.rms_norm(&s.x, &self.router_norm, eps, n, &mut s.normed);
        backend.scale(&mut s.normed, 1.0 / (self.n_embd as f32).sqrt(), len);
        self.experts.choose(backend, &[], n, s);
        backend.rms_norm(&s.x, &self.experts_norm, eps, n, &mut s.normed);
        self.experts.forward(backend, n, s);
        let norm = &self.experts_norm_after;
        backend.rms_norm(&s.ffn_out, norm, eps, n, &mut s.normed);
        backend.add(&mut s.normed, &s.experts.dense, len);
        backend.copy_rows(&s.normed, 0, &mut s.ffn_out, 0, self.n_embd, n);
    }
}

/// `down (activation (gate x) * up x)`, or `down (activation (up x))`.
struct Gated<B: Backend> {
    /// None if the activation has no gate.
    gate: Option<Matrix<B>>,
    up: Matrix<B>,
    down: Matrix<B>,
    activation: Activation,
    n_ff: usize,
}

impl<B: Backend> Gated<B> {
    /// Loads the network whose tensor names have this suffix.
    fn load(
        weights: &mut Weights<'_, B>,
        suffix: &str,
        n_ff: u64,
        activation: Activation,
    ) -> Result<Gated<B>, ModelError> {
        let mut need = |name: &str| weights.need_matrix(&format!("{name}{suffix}.weight"));
        Ok(Gated {
            gate: match activation.has_gate() {
                true => Some(need("ffn_gate")?),
                false => None,
            },
            up: need("ffn_up")?,
            down: need("ffn_down")?,
            activation,
            n_ff: n_ff as usize,
        })
    }

    /// Computes `s.ffn_out` from `s.normed`.
    fn forward(&self, backend: &B, n: usize, s: &mut Scratch<B>) {
        if let Some(gate) = &self.gate {
            let products = [(gate, &mut s.ffn_gate), (&self.up, &mut s.ffn_up)];
            multiply_each(backend, &s.normed, n, products);
        } else {
            self.up.multiply(backend, &s.normed, n, &mut s.ffn_gate);
        }
        let len = n * self.n_ff;
        (self.activation).apply(backend, &mut s.ffn_gate, &s.ffn_up, len);
        self.down.multiply(backend, &s.ffn_gate, n, &mut s.ffn_out);
    }
}

/// The routed experts, and the shared expert if there is one.
struct Experts<B: Backend> {
    router: Projection<B>,
    /// Added to the router's scores when experts are chosen.
    bias: Option<B::Weight>,
    /// The experts of each token, if they are not chosen by scores: (n_vocab, n_used)
    table: Option<Vec<u32>>,
    routing: Routing,
    /// None if the activation has no gate.
    gate: Option<Stack<B>>,
    up: Stack<B>,
    down: Stack<B>,
    /// Factors on the outputs of experts: (n_expert)
    down_scale: Option<B::Weight>,
    shared: Option<Shared<B>>,
    /// Projections to the width of the experts' inputs and outputs and back, if it is another.
    latent: Option<[Matrix<B>; 2]>,
    activation: Activation,
    n_ff: usize,
    /// Width of the experts' outputs.
    n_out: usize,
    n_embd: usize,
}

/// The matrices of all experts for one projection.
struct Stack<B: Backend> {
    experts: MatrixStack<B>,
    /// (n_expert, n_out)
    bias: Option<B::Weight>,
}

impl<B: Backend> Stack<B> {
    fn without_bias(experts: MatrixStack<B>) -> Stack<B> {
        Stack {
            experts,
            bias: None,
        }
    }

    /// Loads the tensors with this name.
    fn load(weights: &mut Weights<'_, B>, name: &str) -> Result<Stack<B>, ModelError> {
        Ok(Stack {
            experts: weights.need_experts(&format!("{name}.weight"))?,
            bias: weights.get(&format!("{name}.bias"))?,
        })
    }

    /// Computes (n, n_used, n_out) from `n` rows of `x`, or from one row per expert used (`input`).
    fn forward(
        &self,
        backend: &B,
        routes: &B::Routes,
        x: &B::Buffer,
        input: ExpertInput,
        n: usize,
        out: &mut B::Buffer,
    ) {
        (self.experts).multiply(backend, routes, x, input, n, out);
        if let Some(bias) = &self.bias {
            backend.add_expert_bias(out, bias, routes, n);
        }
    }
}

/// The expert that every token uses.
struct Shared<B: Backend> {
    network: Gated<B>,
    /// One row: the expert's weight, before the sigmoid.
    gate: Option<Matrix<B>>,
}

impl<B: Backend> Experts<B> {
    fn load(
        weights: &mut Weights<'_, B>,
        activation: Activation,
    ) -> Result<Experts<B>, ModelError> {
        let hparams = weights.hparams.clone();
        let experts = hparams.experts;
        let shared = match experts.n_ff_shared {
            0 => None,
            n_ff => Some(Shared {
                network: Gated::load(weights, "_shexp", n_ff, activation)?,
                gate: weights.get_matrix("ffn_gate_inp_shexp.weight")?,
            }),
        };
        let (gate, up) = match weights.get_expert_halves("ffn_gate_up_exps.weight")? {
            Some([gate, up]) => (Some(Stack::without_bias(gate)), Stack::without_bias(up)),
            None => (
                match activation.has_gate() {
                    true => Some(Stack::load(weights, "ffn_gate_exps")?),
                    false => None,
                },
                Stack::load(weights, "ffn_up_exps")?,
            ),
        };
        let latent = match experts.n_latent {
            0 => None,
            _ => Some([
                weights.need_matrix("ffn_latent_down.weight")?,
                weights.need_matrix("ffn_latent_up.weight")?,
            ]),
        };
        Ok(Experts {
            router: Projection::load(weights, "ffn_gate_inp")?,
            bias: weights.get("exp_probs_b.bias")?,
            table: weights.token_experts(TOKEN_EXPERTS)?,
            routing: Routing {
                n_expert: experts.n_expert as usize,
                n_used: experts.n_used as usize,
                n_group: experts.n_group as usize,
                n_group_used: experts.n_group_used as usize,
                gating: match experts.gating {
                    arch::Gating::Softmax => Gating::Softmax,
                    arch::Gating::Sigmoid => Gating::Sigmoid,
                    arch::Gating::SqrtSoftplus => Gating::SqrtSoftplus,
                },
                normalised: experts.normalised,
                scale: experts.scale,
            },
            gate,
            up,
            down: Stack::load(weights, "ffn_down_exps")?,
            down_scale: weights.get("ffn_down_exps.scale")?,
            shared,
            latent,
            activation,
            n_ff: experts.n_ff as usize,
            n_out: match experts.n_latent {
                0 => hparams.n_embd as usize,
                n_latent => n_latent as usize,
            },
            n_embd: hparams.n_embd as usize,
        })
    }

    /// Chooses the experts of each row of `s.normed`.
    fn choose(&self, backend: &B, tokens: &[u32], n: usize, s: &mut Scratch<B>) {
        let e = &mut s.experts;
        self.router.forward(backend, &s.normed, n, &mut e.logits);
        if let Some(table) = &self.table {
            let n_used = self.routing.n_used;
            // An embedding has the experts of the first token.
            let row = |&token: &u32| if token == NO_TOKEN { 0 } else { token as usize };
            let experts = tokens.iter().map(row);
            e.given.clear();
            e.given
                .extend(experts.flat_map(|row| &table[row * n_used..][..n_used]));
            return backend.route_to(&e.logits, &e.given, &self.routing, n, &mut e.routes);
        }
        let bias = self.bias.as_ref();
        backend.route(&e.logits, bias, &self.routing, n, &mut e.routes);
    }

    /// Computes `s.ffn_out` from `s.normed`, with the chosen experts.
    fn forward(&self, backend: &B, n: usize, s: &mut Scratch<B>) {
        let e = &mut s.experts;
        let per_row = ExpertInput::PerRow;
        let (hidden, up) = (&mut e.gate, &mut e.up);
        let input = match &self.latent {
            Some([to_latent, _]) => {
                to_latent.multiply(backend, &s.normed, n, &mut e.latent);
                &e.latent
            }
            None => &s.normed,
        };
        if let Some(gate) = &self.gate {
            gate.forward(backend, &e.routes, input, per_row, n, hidden);
            (self.up).forward(backend, &e.routes, input, per_row, n, up);
        } else {
            (self.up).forward(backend, &e.routes, input, per_row, n, hidden);
        }
        let n_slot = n * self.routing.n_used;
        let len = n_slot * self.n_ff;
        (self.activation).apply(backend, &mut e.gate, &e.up, len);
        let per_expert = ExpertInput::PerExpert;
        (self.down).forward(backend, &e.routes, &e.gate, per_expert, n, &mut e.down);
        if let Some(scale) = &self.down_scale {
            backend.scale_experts(&mut e.down, scale, &e.routes, self.n_out, n);
        }
        let sum = match self.shared {
            Some(_) => &mut e.sum,
            None => &mut s.ffn_out,
        };
        match &self.latent {
            Some([_, from_latent]) => {
                backend.combine_experts(&e.routes, &e.down, self.n_out, n, &mut e.latent);
                from_latent.multiply(backend, &e.latent, n, sum);
            }
            None => backend.combine_experts(&e.routes, &e.down, self.n_out, n, sum),
        }
        let Some(shared) = &self.shared else {
            return;
        };
        shared.network.forward(backend, n, s);
        let e = &mut s.experts;
        if let Some(gate) = &shared.gate {
            gate.multiply(backend, &s.normed, n, &mut e.shared_gate);
            backend.sigmoid_mul_rows(&mut s.ffn_out, &e.shared_gate, self.n_embd, n);
        }
        backend.add(&mut s.ffn_out, &e.sum, n * self.n_embd);
    }
}
