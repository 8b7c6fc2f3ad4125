//! Mixture-of-experts layers.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::backend::Storage;

/// Mixture-of-experts layers.
pub trait MoeOp: Storage {
    /// Returns storage for the choice of `n_used` experts by each of `n` rows.
    fn routes(&self, n: usize, n_used: usize) -> Self::Routes;

    /// Chooses the experts of `n` rows from the router logits, `(n, n_expert)`: the largest probabilities,
    /// the first one if several are equal. `bias`, `(n_expert)`, is added for the choice only. The weight
    /// of an expert is its probability, divided by the sum over the chosen experts if `routing.normalised`,
    /// times `routing.scale`.
    fn route(
        &self,
        logits: &Self::Buffer,
        bias: Option<&Self::Weight>,
        routing: &Routing,
        n: usize,
        routes: &mut Self::Routes,
    );

    /// Routes each of `n` rows to the given experts, `(n, n_used)`, with the weights that [`MoeOp::route`] gives them.
    fn route_to(
        &self,
        logits: &Self::Buffer,
        experts: &[u32],
        routing: &Routing,
        n: usize,
        routes: &mut Self::Routes,
    );

    /// Routes each of `n` rows to experts `0..n_used`, all with weight 1. Used where the experts are
    /// the heads of a projection.
    fn choose_all(&self, n: usize, routes: &mut Self::Routes);

    /// Copies the experts of `n` rows to the host: `(n, n_used)`, in order of choice. If the device failed, they
    /// are all 0.
    fn download_experts(&self, routes: &Self::Routes, n: usize) -> Vec<u32>;

    /// [`MatmulOp::matmul`] of each row with its chosen experts: out `(n, n_used, n_out)`, in order of
    /// choice. Every expert is a weight `(n_out, n_in)`.
    fn expert_matmul(
        &self,
        experts: &[Self::Weight],
        routes: &Self::Routes,
        x: &Self::Buffer,
        input: ExpertInput,
        n: usize,
        out: &mut Self::Buffer,
    );

    /// Adds the bias of each chosen expert to its output: x `(n, n_used, dim)`, bias `(n_expert, dim)`.
    fn add_expert_bias(
        &self,
        x: &mut Self::Buffer,
        bias: &Self::Weight,
        routes: &Self::Routes,
        n: usize,
    );

    /// Multiplies the output of each chosen expert by its factor: x `(n, n_used, dim)`, factors `(n_expert)`.
    fn scale_experts(
        &self,
        x: &mut Self::Buffer,
        factors: &Self::Weight,
        routes: &Self::Routes,
        dim: usize,
        n: usize,
    );

    /// Sums the expert outputs of each row, `(n, n_used, dim)`, with the routing weights, in order of
    /// choice: out `(n, dim)`.
    fn combine_experts(
        &self,
        routes: &Self::Routes,
        x: &Self::Buffer,
        dim: usize,
        n: usize,
        out: &mut Self::Buffer,
    );
}

/// Expert selection of a mixture-of-experts layer.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// Experts.
    pub n_expert: usize,
    /// Experts used per row.
    pub n_used: usize,
    /// Groups of consecutive experts; 0 or 1 for no groups.
    pub n_group: usize,
    /// Groups that a row's experts may come from: the ones with the largest sum of their two best scores.
    pub n_group_used: usize,
    /// Function that turns router logits into probabilities.
    pub gating: Gating,
    /// True if the weights of a row's experts are normalised to sum to one.
    pub normalised: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// Function that turns router logits into probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each expert's logit.
    Sigmoid,
    /// Square root of the softplus of each expert's logit.
    SqrtSoftplus,
}

/// Input layout of an expert product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertInput {
    /// All experts of a row multiply the same row: `(n, n_in)`.
    PerRow,
    /// Each expert has its own input row: `(n, n_used, n_in)`.
    PerExpert,
}
