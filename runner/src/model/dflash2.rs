//! The additions of DFlash2 to DFlash: short convolutions around the modules of a layer, and a selector of candidates.
//!
//! Both compute on the host. Blocks are short, and no other model has these operations.

use kernels::backend::Backend;
use schemas::arch::{BlockDraft, Hparams};

use crate::cache::Places;
use crate::error::ModelError;
use crate::memory::Memory;

use super::matrix::Matrix;
use super::weights::Weights;
use super::{Model, Scratch};

/// A convolution before a module or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Before,
    After,
}

/// Number of [`Side`]s.
const N_SIDE: usize = 2;

/// The convolutions of a module: each row of a block becomes a weighted sum of itself and the rows before it. The
/// weights are learned ones plus those that a projection of the row computes, which groups of channels share.
pub(super) struct ShortConv<B: Backend> {
    /// (N_SIDE, kernel, n_embd)
    base: Vec<f32>,
    /// (N_SIDE * kernel * n_group, n_embd)
    projection: Matrix<B>,
    kernel: usize,
    n_group: usize,
    n_embd: usize,
}

impl<B: Backend> ShortConv<B> {
    /// Loads the convolutions of a module of the current block, if the model has them.
    pub(super) fn load(
        weights: &mut Weights<'_, B>,
        module: &str,
    ) -> Result<Option<ShortConv<B>>, ModelError> {
        let Some(block) = block(&weights.hparams).filter(|block| block.conv_kernel > 0) else {
            return Ok(None);
        };
        Ok(Some(ShortConv {
            base: weights.need_values(&format!("{module}_conv_base"))?,
            projection: weights.need_matrix(&format!("{module}_conv_proj.weight"))?,
            kernel: block.conv_kernel as usize,
            n_group: block.n_conv_group as usize,
            n_embd: weights.hparams.n_embd as usize,
        }))
    }

    /// Computes the weights of rows from the input of the module.
    pub(super) fn prepare(&self, backend: &B, input: &B::Buffer, n: usize, s: &mut ConvScratch<B>) {
        self.projection.multiply(backend, input, n, &mut s.weights);
        let len = n * N_SIDE * self.kernel * self.n_group;
        s.host_weights.resize(len, 0.0);
        backend.download(&s.weights, 0, &mut s.host_weights);
    }

    /// Replaces the rows by their convolution, with the weights of [`ShortConv::prepare`].
    pub(super) fn apply(
        &self,
        side: Side,
        backend: &B,
        places: &Places,
        rows: &mut B::Buffer,
        s: &mut ConvScratch<B>,
    ) {
        let (n, n_embd) = (places.in_run.len(), self.n_embd);
        let (x, out) = (&mut s.x, &mut s.out);
        x.resize(n * n_embd, 0.0);
        out.resize(n * n_embd, 0.0);
        backend.download(rows, 0, x);
        let weights = s
            .host_weights
            .chunks_exact(N_SIDE * self.kernel * self.n_group);
        let outs = out.chunks_exact_mut(n_embd);
        for (row, ((out, weights), &place)) in outs.zip(weights).zip(&places.in_run).enumerate() {
            out.fill(0.0);
            for tap in 0..self.kernel.min(place as usize + 1) {
                let at = side as usize * self.kernel + tap;
                let base = &self.base[at * n_embd..][..n_embd];
                let of_groups = &weights[at * self.n_group..][..self.n_group];
                let x = &x[(row - tap) * n_embd..][..n_embd];
                let width = n_embd / self.n_group;
                let groups = out
                    .chunks_exact_mut(width)
                    .zip(base.chunks_exact(width))
                    .zip(x.chunks_exact(width))
                    .zip(of_groups);
                for (((out, base), x), &of_group) in groups {
                    for ((out, base), x) in out.iter_mut().zip(base).zip(x) {
                        *out += (of_group + base) * x;
                    }
                }
            }
        }
        backend.upload(out, rows, 0);
    }
}

/// Buffers of [`ShortConv`].
pub(super) struct ConvScratch<M: Memory> {
    /// (n, N_SIDE * kernel * n_group)
    weights: M::Floats,
    /// The same on the host.
    host_weights: Vec<f32>,
    /// Rows before a convolution: (n, n_embd)
    x: Vec<f32>,
    /// Rows after it: (n, n_embd)
    out: Vec<f32>,
}

impl<M: Memory> ConvScratch<M> {
    pub(super) fn new(memory: &M, hparams: &Hparams, n_batch: usize) -> ConvScratch<M> {
        let block = block(hparams).filter(|block| block.conv_kernel > 0);
        let width = block.map_or(0, |block| block.conv_kernel * block.n_conv_group);
        ConvScratch {
            weights: memory.scratch(n_batch * N_SIDE * width as usize),
            host_weights: Vec::new(),
            x: Vec::new(),
            out: Vec::new(),
        }
    }
}

/// Scores the most likely tokens of a row, given the token before.
pub(super) struct Selector<B: Backend> {
    /// (n_vocab, rank)
    predecessor: B::Weight,
    /// (n_vocab, rank)
    successor: B::Weight,
    /// (rank, n_embd)
    hidden: Matrix<B>,
    rank: usize,
    /// Number of candidates of a row.
    n_candidate: usize,
}

impl<B: Backend> Selector<B> {
    /// Loads the selector, if the model has one.
    pub(super) fn load(weights: &mut Weights<'_, B>) -> Result<Option<Selector<B>>, ModelError> {
        let Some(block) = block(&weights.hparams).filter(|block| block.selector_rank > 0) else {
            return Ok(None);
        };
        Ok(Some(Selector {
            predecessor: weights.need("selector_predecessor.weight")?,
            successor: weights.need("selector_successor.weight")?,
            hidden: weights.need_matrix("selector_hidden.weight")?,
            rank: block.selector_rank as usize,
            n_candidate: block.n_candidate as usize,
        }))
    }
}

/// Buffers of [`Selector`].
pub(super) struct SelectorScratch<M: Memory> {
    /// (n_outputs, rank)
    gate: M::Floats,
    /// (n_outputs, rank)
    predecessors: M::Floats,
    /// (n_outputs, n_candidate, rank)
    successors: M::Floats,
    /// All of these on the host.
    host: Vec<f32>,
}

impl<M: Memory> SelectorScratch<M> {
    pub(super) fn new(memory: &M, hparams: &Hparams, n_outputs: usize) -> SelectorScratch<M> {
        let block = block(hparams).filter(|block| block.selector_rank > 0);
        let [rank, n_candidate] = block.map_or([0, 0], |block| {
            [block.selector_rank as usize, block.n_candidate as usize]
        });
        let rows = |n: usize| n_outputs * n * rank;
        SelectorScratch {
            gate: memory.scratch(rows(1)),
            predecessors: memory.scratch(rows(1)),
            successors: memory.scratch(rows(n_candidate)),
            host: Vec::new(),
        }
    }
}

fn block(hparams: &Hparams) -> Option<BlockDraft> {
    hparams.features.as_ref()?.block
}

/// Returns the bytes of host memory for passes over `n` rows, and for the candidates of `n_seq` sequences.
pub(crate) fn host_bytes(hparams: &Hparams, n: usize, n_seq: usize) -> u64 {
    let Some(block) = block(hparams) else {
        return 0;
    };
    let of_conv = match block.conv_kernel {
        0 => 0,
        kernel => N_SIDE as u64 * kernel * block.n_conv_group + 2 * hparams.n_embd,
    };
    let n_candidate = block.n_candidate;
    let of_selector = match block.selector_rank {
        0 => 0,
        // The score and the token of each candidate.
        rank => (2 + n_candidate) * rank + 2 * n_candidate,
    };
    (n as u64 * of_conv + n_seq as u64 * of_selector) * size_of::<f32>() as u64
}

impl<B: Backend> Model<B> {
    /// Returns the number of candidates among which a block draft selects a token; `None` if it takes the most
    /// likely one.
    pub(crate) fn n_candidate(&self) -> Option<usize> {
        Some(self.selector.as_ref()?.n_candidate)
    }

    /// Adds to `scores`, (n, n_candidate), how well candidates follow the tokens before, in these rows of the
    /// last pass.
    pub(crate) fn score_candidates(
        &self,
        backend: &B,
        rows: &[usize],
        previous: &[u32],
        candidates: &[u32],
        scores: &mut [f32],
        s: &mut Scratch<B>,
    ) {
        let Some(selector) = &self.selector else {
            return;
        };
        let (n, rank) = (rows.len(), selector.rank);
        let n_embd = self.hparams.n_embd as usize;
        let c = &mut s.selector;
        backend.gather_rows(&s.hidden, n_embd, rows, &mut s.wanted);
        selector.hidden.multiply(backend, &s.wanted, n, &mut c.gate);
        backend.embed(&selector.predecessor, previous, &mut c.predecessors);
        backend.embed(&selector.successor, candidates, &mut c.successors);
        c.host.resize((2 * n + candidates.len()) * rank, 0.0);
        let (gates, rest) = c.host.split_at_mut(n * rank);
        let (predecessors, rest) = rest.split_at_mut(n * rank);
        backend.download(&c.gate, 0, gates);
        backend.download(&c.predecessors, 0, predecessors);
        backend.download(&c.successors, 0, rest);
        for (before, gate) in predecessors.iter_mut().zip(gates) {
            *before *= *gate;
        }
        let of_rows = rest.chunks_exact(selector.n_candidate * rank);
        let before = predecessors.chunks_exact(rank);
        let scores = scores.chunks_exact_mut(selector.n_candidate);
        for ((successors, before), scores) in of_rows.zip(before).zip(scores) {
            for (successor, score) in successors.chunks_exact(rank).zip(scores) {
                *score += before
                    .iter()
                    .zip(successor)
                    .map(|(x, y)| x * y)
                    .sum::<f32>();
            }
        }
    }
}
