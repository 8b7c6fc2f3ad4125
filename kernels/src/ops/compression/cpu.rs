//! Compression of positions, and the choice of compressed positions.

use super::CompressionOp;
use crate::backend::{
    CompressionInput, CompressionShape, IndexerInput, IndexerShape, KeyRows, Largest, SourceRow,
};
use crate::cpu::Cpu;
use crate::cpu::arena::Arena;
use crate::cpu::buffer::Buffer;
use crate::cpu::math::exp;
use crate::ops::cache::cpu::Cache;
use crate::simd::{Kernel, LANES, Simd};
use crate::types::common::cache::Square;

impl CompressionOp for Cpu {
    fn compress(
        &self,
        shape: &CompressionShape,
        input: CompressionInput<'_, Self>,
        sources: &[SourceRow],
        out: &mut Buffer,
    ) {
        let input = &input;
        let groups = sources.chunks_exact(shape.n_source());
        let tasks = groups.zip(out.chunks_exact_mut(shape.dim));
        let work = 16 * sources.len() * shape.dim;
        self.run(work, tasks, |(sources, out)| Compress {
            shape,
            input,
            sources,
            out,
        });
    }

    fn keep_rows(
        &self,
        kv: &Buffer,
        gate: &Buffer,
        width: usize,
        pairs: &[(usize, usize)],
        kept: &mut Buffer,
    ) {
        for &(row, slot) in pairs {
            let to = &mut kept[2 * slot * width..][..2 * width];
            to[..width].copy_from_slice(&kv[row * width..][..width]);
            to[width..].copy_from_slice(&gate[row * width..][..width]);
        }
    }

    fn choose_rows(
        &self,
        shape: &IndexerShape,
        input: IndexerInput<'_, Self>,
        visible: &[KeyRows],
        chosen: &mut Vec<Largest>,
    ) {
        let IndexerShape {
            n_head,
            head_dim,
            n_chosen,
        } = *shape;
        if n_chosen == 0 {
            return;
        }
        let n = visible.len();
        let q = input.q[..n * n_head * head_dim].chunks_exact(n_head * head_dim);
        let weights = input.weights[..n * n_head].chunks_exact(n_head);
        let k = input.k;
        let tasks = q
            .zip(weights)
            .zip(visible)
            .zip(chosen.chunks_exact_mut(n_chosen));
        let n_key: usize = visible.iter().map(KeyRows::len).sum();
        let work = n_key * n_head * head_dim;
        self.run(work, tasks, |(((q, weights), visible), chosen)| {
            ChooseRows {
                q,
                weights,
                k,
                visible: visible.clone(),
                chosen,
            }
        });
    }
}

/// Reduces one group.
struct Compress<'a> {
    shape: &'a CompressionShape,
    input: &'a CompressionInput<'a, Cpu>,
    sources: &'a [SourceRow],
    out: &'a mut [f32],
}

impl Compress<'_> {
    /// Returns the values, the scores and what is added to them, of a source; `None` if it is missing.
    #[inline(always)]
    fn source<'s>(&'s self, i: usize, ape: &'s [f32]) -> Option<[&'s [f32]; 3]> {
        let (width, dim, ratio) = (self.shape.width(), self.shape.dim, self.shape.ratio);
        // The second half of the sources are those of the group itself.
        let first = i / ratio * dim;
        let (kv, gate) = match self.sources[i] {
            SourceRow::Missing => return None,
            SourceRow::Batch(row) => (
                &self.input.kv[row * width..][..width],
                &self.input.gate[row * width..][..width],
            ),
            SourceRow::Kept(slot) => {
                self.input.kept[2 * slot * width..][..2 * width].split_at(width)
            }
        };
        let ape = &ape[i % ratio * width..][..width];
        Some([kv, gate, ape].map(|row| &row[first..first + dim]))
    }
}

impl Kernel for Compress<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let arena = Arena::new();
        let ape = self.input.ape.decoded(&arena);
        let dim = self.shape.dim;
        let largest = arena.filled(f32::NEG_INFINITY, dim);
        let sums = arena.filled(0.0, dim);
        let totals = arena.filled(0.0, dim);
        for i in 0..self.sources.len() {
            let Some([_, gate, ape]) = self.source(i, ape) else {
                continue;
            };
            for ((largest, &gate), &ape) in largest.iter_mut().zip(gate).zip(ape) {
                let score = gate + ape;
                *largest = if score > *largest { score } else { *largest };
            }
        }
        for i in 0..self.sources.len() {
            let Some([kv, gate, ape]) = self.source(i, ape) else {
                continue;
            };
            let scores = kv.iter().zip(gate.iter().zip(ape)).zip(&*largest);
            for (((&kv, (&gate, &ape)), &largest), (sum, total)) in
                scores.zip(sums.iter_mut().zip(totals.iter_mut()))
            {
                let weight = exp(gate + ape - largest);
                *sum += weight;
                *total += weight * kv;
            }
        }
        for (out, (sum, total)) in self.out.iter_mut().zip(sums.iter().zip(&*totals)) {
            *out = total / sum;
        }
    }
}

/// Chooses the rows of one query.
struct ChooseRows<'a> {
    q: &'a [f32],
    weights: &'a [f32],
    k: &'a Cache,
    visible: KeyRows,
    chosen: &'a mut [Largest],
}

impl Kernel for ChooseRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n_key = self.visible.len();
        if n_key <= self.chosen.len() {
            for (i, chosen) in self.chosen[..n_key].iter_mut().enumerate() {
                chosen.index = i as u32;
            }
            return;
        }
        let arena = Arena::new();
        let scores = arena.filled(0.0, n_key);
        let mut square = Square::ZERO;
        let head_dim = self.q.len() / self.weights.len();
        let dots = arena.filled([0.0f32; LANES], self.weights.len());
        for (block, scores) in scores.chunks_mut(LANES).enumerate() {
            let first = self.visible.start + block * LANES;
            dots.fill([0.0; LANES]);
            for chunk in 0..head_dim.div_ceil(LANES) {
                self.k
                    .transpose(simd, 0, first..first + scores.len(), chunk, &mut square);
                let columns = chunk * LANES..head_dim.min((chunk + 1) * LANES);
                for (dots, q) in dots.iter_mut().zip(self.q.chunks_exact(head_dim)) {
                    let mut sums = simd.lanes(|_| simd.splat(0.0));
                    for (&q, keys) in q[columns.clone()].iter().zip(&square.0) {
                        let (q, keys) = (simd.splat(q), simd.load_partial(keys));
                        sums = simd.lanes(|i| simd.mul_add(q, keys[i], sums[i]));
                    }
                    let mut product = [0.0; LANES];
                    simd.store_partial(sums, &mut product);
                    dots.iter_mut().zip(product).for_each(|(x, y)| *x += y);
                }
            }
            for (dots, &weight) in dots.iter().zip(self.weights) {
                for (score, &dot) in scores.iter_mut().zip(dots) {
                    let positive = if dot < 0.0 { 0.0 } else { dot };
                    *score += positive * weight;
                }
            }
        }
        let order = arena.alloc_slice_fill_with(n_key, |i| i as u32);
        let n = self.chosen.len();
        order.select_nth_unstable_by(n - 1, |&a, &b| {
            let [x, y] = [a, b].map(|i| scores[i as usize] + 0.0);
            y.total_cmp(&x).then(a.cmp(&b))
        });
        order[..n].sort_unstable();
        for (chosen, &index) in self.chosen.iter_mut().zip(&*order) {
            chosen.index = index;
        }
    }
}
