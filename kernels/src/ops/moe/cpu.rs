//! Mixture-of-experts layers.

use super::MoeOp;
use crate::backend::{ExpertInput, Gating, Routing};
use crate::cpu::Cpu;
use crate::cpu::arena::Arena;
use crate::cpu::buffer::Buffer;
use crate::cpu::math::{exp, sigmoid, softplus};
use crate::cpu::weight::Weight;
use crate::ops::matmul::cpu::{Factor, Place, Term, multiply_all};
use crate::simd::{Kernel, Simd};

/// Most rows that several experts multiply in one operation, which limits the scratch memory for their products.
const ROWS_AT_ONCE: usize = 64;

impl MoeOp for Cpu {
    fn routes(&self, n: usize, n_used: usize) -> Routes {
        Routes::new(n, n_used)
    }

    fn route(
        &self,
        logits: &Buffer,
        bias: Option<&Weight>,
        routing: &Routing,
        n: usize,
        routes: &mut Routes,
    ) {
        let logits = &logits[..n * routing.n_expert];
        let Routing {
            n_expert, n_used, ..
        } = *routing;
        assert!(n_used == routes.n_used && n_used <= n_expert);
        let bias = bias.map(Weight::to_f32);
        let chosen = routes.experts.chunks_exact_mut(n_used);
        let weights = routes.weights.chunks_exact_mut(n_used);
        let tasks = logits.chunks_exact(n_expert).zip(chosen.zip(weights));
        // An exponential and a scan over the experts each cost about sixteen multiply-adds per logit.
        let work = 16 * logits.len() * (1 + n_used);
        self.run(work, tasks, |(logits, (experts, weights))| Choose {
            logits,
            bias: bias.as_deref(),
            routing,
            is_given: false,
            experts,
            weights,
        });
    }

    fn route_to(
        &self,
        logits: &Buffer,
        experts: &[u32],
        routing: &Routing,
        n: usize,
        routes: &mut Routes,
    ) {
        let n_expert = routing.n_expert;
        let logits = &logits[..n * n_expert];
        assert!(experts.iter().all(|&expert| (expert as usize) < n_expert));
        routes.experts[..n * routing.n_used].copy_from_slice(experts);
        let chosen = routes.experts.chunks_exact_mut(routing.n_used);
        let weights = routes.weights.chunks_exact_mut(routing.n_used);
        let tasks = logits.chunks_exact(n_expert).zip(chosen.zip(weights));
        let work = 16 * logits.len();
        self.run(work, tasks, |(logits, (experts, weights))| Choose {
            logits,
            bias: None,
            routing,
            is_given: true,
            experts,
            weights,
        });
    }

    fn choose_all(&self, n: usize, routes: &mut Routes) {
        routes.choose_all(n);
    }

    fn download_experts(&self, routes: &Routes, n: usize) -> Vec<u32> {
        routes.experts[..n * routes.n_used].to_vec()
    }

    fn expert_matmul(
        &self,
        experts: &[Weight],
        routes: &Routes,
        x: &Buffer,
        input: ExpertInput,
        n: usize,
        out: &mut Buffer,
    ) {
        let out = &mut out[..n * routes.n_used * experts[0].n_rows];
        let n_out = experts[0].n_rows;
        let n_slot = out.len() / n_out;
        let arena = Arena::new();
        // Rows with the same expert are multiplied together, so that its weights are read once.
        let slots = arena.alloc_slice_fill_with(n_slot, |slot| slot);
        let expert = |&slot: &usize| routes.experts[slot];
        slots.sort_unstable_by_key(|slot| (expert(slot), *slot));
        let n_row = match input {
            ExpertInput::PerRow => n_slot / routes.n_used,
            ExpertInput::PerExpert => n_slot,
        };
        let x = &x[..n_row * experts[0].n_cols];
        let x = Factor::new(self, &arena, &experts[0], x);
        let mut each = slots.chunk_by(|a, b| expert(a) == expert(b)).peekable();
        while each.peek().is_some() {
            let arena = Arena::new();
            let mut n_row = 0;
            let mut inputs = bumpalo::collections::Vec::new_in(&arena);
            while let Some(slots) =
                each.next_if(|slots| n_row == 0 || n_row + slots.len() <= ROWS_AT_ONCE)
            {
                n_row += slots.len();
                let rows = arena.alloc_slice_fill_iter(slots.iter().map(|slot| match input {
                    ExpertInput::PerRow => slot / routes.n_used,
                    ExpertInput::PerExpert => *slot,
                }));
                inputs.push((slots, x.gather(self, &arena, rows)));
            }
            let products = arena.filled(0.0, n_row * n_out);
            let mut rest = &mut *products;
            let terms = inputs.iter().map(|(slots, x)| Term {
                x,
                w: &experts[expert(&slots[0]) as usize],
                out: rest
                    .split_off_mut(..slots.len() * n_out)
                    .expect("products of all rows"),
            });
            multiply_all(self, Place::Varying, terms);
            let slots = inputs.iter().flat_map(|(slots, _)| *slots);
            for (&slot, product) in slots.zip(products.chunks_exact(n_out)) {
                out[slot * n_out..][..n_out].copy_from_slice(product);
            }
        }
    }

    fn add_expert_bias(&self, x: &mut Buffer, bias: &Weight, routes: &Routes, n: usize) {
        let x = &mut x[..n * routes.n_used * bias.n_cols];
        let (dim, bias) = (bias.n_cols, bias.to_f32());
        for (x, &expert) in x.chunks_exact_mut(dim).zip(&routes.experts) {
            let bias = &bias[expert as usize * dim..][..dim];
            x.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
    }

    fn scale_experts(
        &self,
        x: &mut Buffer,
        factors: &Weight,
        routes: &Routes,
        dim: usize,
        n: usize,
    ) {
        let (x, factors) = (&mut x[..n * routes.n_used * dim], factors.to_f32());
        for (x, &expert) in x.chunks_exact_mut(dim).zip(&routes.experts) {
            let factor = factors[expert as usize];
            x.iter_mut().for_each(|x| *x *= factor);
        }
    }

    fn combine_experts(&self, routes: &Routes, x: &Buffer, dim: usize, n: usize, out: &mut Buffer) {
        let x = &x[..n * routes.n_used * dim];
        let rows = x.chunks_exact(routes.n_used * dim);
        let weights = routes.weights.chunks_exact(routes.n_used);
        let tasks = rows.zip(weights).zip(out.chunks_exact_mut(dim));
        self.run(x.len(), tasks, |((x, weights), out)| Combine {
            x,
            weights,
            out,
        });
    }
}

/// The experts of each row, best first, and their weights: both `(n, n_used)`.
pub struct Routes {
    pub(crate) n_used: usize,
    pub(crate) experts: Vec<u32>,
    pub(crate) weights: Vec<f32>,
}

impl Routes {
    /// Allocates the choice of `n` rows.
    pub(crate) fn new(n: usize, n_used: usize) -> Routes {
        Routes {
            n_used,
            experts: vec![0; n * n_used],
            weights: vec![f32::NAN; n * n_used],
        }
    }

    /// [`Backend::choose_all`](crate::backend::Backend::choose_all).
    pub(crate) fn choose_all(&mut self, n: usize) {
        for (i, expert) in self.experts[..n * self.n_used].iter_mut().enumerate() {
            *expert = (i % self.n_used) as u32;
        }
        self.weights[..n * self.n_used].fill(1.0);
    }
}

/// Chooses the experts of one row.
struct Choose<'a> {
    logits: &'a [f32],
    bias: Option<&'a [f32]>,
    routing: &'a Routing,
    /// True if the experts are given, and only their weights are computed.
    is_given: bool,
    experts: &'a mut [u32],
    weights: &'a mut [f32],
}

impl Kernel for Choose<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let arena = Arena::new();
        let probabilities = probabilities(&arena, self.logits, self.routing.gating);
        if !self.is_given {
            let scores = arena.alloc_slice_copy(probabilities);
            if let Some(bias) = self.bias {
                scores.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
            }
            leave_groups(&arena, scores, self.routing);
            largest(scores, self.experts);
        }
        let mut sum = 0.0;
        for (weight, &expert) in self.weights.iter_mut().zip(&*self.experts) {
            *weight = probabilities[expert as usize];
            sum += *weight;
        }
        let divisor = if self.routing.normalised {
            sum.max(SMALLEST_SUM)
        } else {
            1.0
        };
        for weight in self.weights {
            *weight = *weight / divisor * self.routing.scale;
        }
    }
}

/// Lower limit of the divisor when weights are normalised: the smallest normal f16, as in llama.cpp.
const SMALLEST_SUM: f32 = 6.103_515_6e-5;

#[inline(always)]
fn probabilities<'a>(arena: &'a Arena, logits: &[f32], gating: Gating) -> &'a [f32] {
    let values = arena.alloc_slice_copy(logits);
    match gating {
        Gating::SqrtSoftplus => values.iter_mut().for_each(|x| *x = softplus(*x).sqrt()),
        Gating::Sigmoid => values.iter_mut().for_each(|x| *x = sigmoid(*x)),
        Gating::Softmax => {
            let largest = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
            values.iter_mut().for_each(|x| *x = exp(*x - largest));
            let sum: f32 = values.iter().sum();
            values.iter_mut().for_each(|x| *x /= sum);
        }
    }
    values
}

/// Excludes the experts of all but the best groups. The score of a group is the sum of its two best
/// experts.
#[inline(always)]
fn leave_groups(arena: &Arena, scores: &mut [f32], routing: &Routing) {
    let Routing {
        n_group,
        n_group_used,
        ..
    } = *routing;
    if n_group <= 1 || n_group_used >= n_group {
        return;
    }
    let group_len = scores.len() / n_group;
    let good = |group: &[f32]| {
        let mut best = [0; 2];
        let best = &mut best[..group.len().min(2)];
        largest(group, best);
        best.iter().map(|&i| group[i as usize]).sum::<f32>()
    };
    let groups = arena.alloc_slice_fill_iter(scores.chunks_exact(group_len).map(good));
    let kept = arena.filled(0, n_group_used);
    largest(groups, kept);
    for (i, group) in scores.chunks_exact_mut(group_len).enumerate() {
        if !kept.contains(&(i as u32)) {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// Writes the indices of the largest values in descending order; of equal values, the first comes first.
#[inline(always)]
fn largest(values: &[f32], places: &mut [u32]) {
    for n in 0..places.len() {
        let (taken, rest) = places.split_at_mut(n);
        let free = (0..values.len()).filter(|&i| !taken.contains(&(i as u32)));
        let best = free.reduce(|best, i| if values[i] > values[best] { i } else { best });
        rest[0] = best.expect("fewer are asked for than there are") as u32;
    }
}

/// Computes the weighted sum of one row's expert outputs.
struct Combine<'a> {
    x: &'a [f32],
    weights: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Combine<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        self.out.fill(0.0);
        for (x, &weight) in self.x.chunks_exact(self.out.len()).zip(self.weights) {
            for (out, &x) in self.out.iter_mut().zip(x) {
                *out += weight * x;
            }
        }
    }
}
