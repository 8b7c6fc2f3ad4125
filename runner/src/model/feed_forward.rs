//! Feed-forward blocks: one network for all tokens, or a mixture of experts.

use kernels::backend::{Backend, ExpertInput, Gating, Routing};
use schemas::arch;

use crate::error::ModelError;

use super::weights::Weights;
use super::{Pass, Scratch};

/// `x += network (norm x)`.
pub(super) struct FeedForward<B: Backend> {
    norm: B::Weight,
    network: Network<B>,
    n_embd: usize,
    eps: f32,
}

enum Network<B: Backend> {
    Dense(Gated<B>),
    Experts(Experts<B>),
}

impl<B: Backend> FeedForward<B> {
    /// The block at hand, with the norm of that name before it.
    pub(super) fn load(
        weights: &mut Weights<'_, B>,
        norm: &str,
    ) -> Result<FeedForward<B>, ModelError> {
        let hparams = weights.hparams.clone();
        let network = match hparams.has_experts(weights.block()) {
            true => Network::Experts(Experts::load(weights)?),
            false => Network::Dense(Gated::load(weights, "", hparams.n_ff)?),
        };
        Ok(FeedForward {
            norm: weights.need(norm)?,
            network,
            n_embd: hparams.n_embd as usize,
            eps: hparams.rms_eps,
        })
    }

    pub(super) fn forward(&self, pass: &mut Pass<'_, B>) {
        let (backend, n, s) = (pass.backend, pass.n, &mut *pass.s);
        backend.rms_norm(&s.x, &self.norm, self.eps, n, &mut s.normed);
        match &self.network {
            Network::Dense(network) => network.forward(backend, n, s),
            Network::Experts(experts) => experts.forward(backend, n, s),
        }
        backend.add(&mut s.x, &s.ffn_out, n * self.n_embd);
    }
}

/// `down (silu (gate x) * up x)`.
struct Gated<B: Backend> {
    gate: B::Weight,
    up: B::Weight,
    down: B::Weight,
    n_ff: usize,
}

impl<B: Backend> Gated<B> {
    /// The network whose tensors have that suffix.
    fn load(weights: &mut Weights<'_, B>, suffix: &str, n_ff: u64) -> Result<Gated<B>, ModelError> {
        let mut need = |name: &str| weights.need(&format!("{name}{suffix}.weight"));
        Ok(Gated {
            gate: need("ffn_gate")?,
            up: need("ffn_up")?,
            down: need("ffn_down")?,
            n_ff: n_ff as usize,
        })
    }

    /// From `s.normed` to `s.ffn_out`.
    fn forward(&self, backend: &B, n: usize, s: &mut Scratch<B>) {
        backend.matmul(&self.gate, &s.normed, n, &mut s.ffn_gate);
        backend.matmul(&self.up, &s.normed, n, &mut s.ffn_up);
        backend.silu_mul(&mut s.ffn_gate, &s.ffn_up, n * self.n_ff);
        backend.matmul(&self.down, &s.ffn_gate, n, &mut s.ffn_out);
    }
}

/// The experts that each token chooses, and the one that all use where there is one.
struct Experts<B: Backend> {
    router: B::Weight,
    routing: Routing,
    gate: Vec<B::Weight>,
    up: Vec<B::Weight>,
    down: Vec<B::Weight>,
    shared: Option<Shared<B>>,
    n_ff: usize,
    n_embd: usize,
}

/// The expert of every token.
struct Shared<B: Backend> {
    network: Gated<B>,
    /// One row: how much the expert counts, before the sigmoid.
    gate: Option<B::Weight>,
}

impl<B: Backend> Experts<B> {
    fn load(weights: &mut Weights<'_, B>) -> Result<Experts<B>, ModelError> {
        let hparams = weights.hparams.clone();
        let experts = hparams.experts;
        let shared = match experts.n_ff_shared {
            0 => None,
            n_ff => Some(Shared {
                network: Gated::load(weights, "_shexp", n_ff)?,
                gate: weights.get("ffn_gate_inp_shexp.weight")?,
            }),
        };
        Ok(Experts {
            router: weights.need("ffn_gate_inp.weight")?,
            routing: Routing {
                n_expert: experts.n_expert as usize,
                n_used: experts.n_used as usize,
                n_group: 1,
                n_group_used: 1,
                gating: match experts.gating {
                    arch::Gating::Softmax => Gating::Softmax,
                    arch::Gating::Sigmoid => Gating::Sigmoid,
                },
                normalised: experts.normalised,
                scale: experts.scale,
            },
            gate: weights.need_experts("ffn_gate_exps.weight")?,
            up: weights.need_experts("ffn_up_exps.weight")?,
            down: weights.need_experts("ffn_down_exps.weight")?,
            shared,
            n_ff: experts.n_ff as usize,
            n_embd: hparams.n_embd as usize,
        })
    }

    /// From `s.normed` to `s.ffn_out`.
    fn forward(&self, backend: &B, n: usize, s: &mut Scratch<B>) {
        let e = &mut s.experts;
        backend.matmul(&self.router, &s.normed, n, &mut e.logits);
        backend.route(&e.logits, None, &self.routing, n, &mut e.routes);
        let per_row = ExpertInput::PerRow;
        backend.expert_matmul(&self.gate, &e.routes, &s.normed, per_row, n, &mut e.gate);
        backend.expert_matmul(&self.up, &e.routes, &s.normed, per_row, n, &mut e.up);
        let n_slot = n * self.routing.n_used;
        backend.silu_mul(&mut e.gate, &e.up, n_slot * self.n_ff);
        let per_expert = ExpertInput::PerExpert;
        backend.expert_matmul(&self.down, &e.routes, &e.gate, per_expert, n, &mut e.down);
        let Some(shared) = &self.shared else {
            backend.combine_experts(&e.routes, &e.down, self.n_embd, n, &mut s.ffn_out);
            return;
        };
        backend.combine_experts(&e.routes, &e.down, self.n_embd, n, &mut e.sum);
        shared.network.forward(backend, n, s);
        let e = &mut s.experts;
        if let Some(gate) = &shared.gate {
            backend.matmul(gate, &s.normed, n, &mut e.shared_gate);
            backend.sigmoid_mul_rows(&mut s.ffn_out, &e.shared_gate, self.n_embd, n);
        }
        backend.add(&mut s.ffn_out, &e.sum, n * self.n_embd);
    }
}
