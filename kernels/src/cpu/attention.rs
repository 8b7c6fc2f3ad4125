//! Softmax attention, one pass over the keys.

use super::Cpu;
use super::math::exp;
use super::simd::{Kernel, LANES, Simd};
use crate::backend::{AttentionShape, KeyRows};

/// Keys between two corrections of the running maximum, counted from a query's first key.
const KEY_BLOCK: usize = 2 * LANES;

/// [`Backend::attention`](crate::backend::Backend::attention).
pub(super) fn attention(
    cpu: &Cpu,
    shape: &AttentionShape,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    keys: &[KeyRows],
    out: &mut [f32],
) {
    let n_key: usize = keys.iter().map(KeyRows::len).sum();
    let work = 2 * n_key * shape.n_head * shape.head_dim;
    // The query heads that share a key head lie side by side.
    let group_len = shape.n_head / shape.n_head_kv * shape.head_dim;
    let groups = q
        .chunks_exact(group_len)
        .zip(out.chunks_exact_mut(group_len));
    let tasks = groups.enumerate().collect();
    cpu.run(work, tasks, |(i, (q, out))| {
        let (row, head_kv) = (i / shape.n_head_kv, i % shape.n_head_kv);
        Attend {
            shape,
            q,
            k,
            v,
            keys: keys[row].clone(),
            head_kv,
            out,
        }
    });
}

/// The query heads of one row that share a key head.
struct Attend<'a> {
    shape: &'a AttentionShape,
    /// `(n_head / n_head_kv, head_dim)`
    q: &'a [f32],
    /// `(rows, n_head_kv * head_dim)`
    k: &'a [f32],
    /// as `k`
    v: &'a [f32],
    keys: KeyRows,
    head_kv: usize,
    /// as `q`
    out: &'a mut [f32],
}

impl Kernel for Attend<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let AttentionShape {
            n_head,
            n_head_kv,
            head_dim,
            scale,
        } = *self.shape;
        // Per query head: the largest score so far and the sum of exp(score - largest).
        let mut softmax = vec![(f32::NEG_INFINITY, 0.0); n_head / n_head_kv];
        self.out.fill(0.0);
        for start in self.keys.clone().step_by(KEY_BLOCK) {
            let block = start..self.keys.end.min(start + KEY_BLOCK);
            let head = |row: usize| (row * n_head_kv + self.head_kv) * head_dim;
            let heads = self
                .q
                .chunks_exact(head_dim)
                .zip(self.out.chunks_exact_mut(head_dim));
            for ((q, out), (largest, sum)) in heads.zip(&mut softmax) {
                let mut weights = [f32::NEG_INFINITY; KEY_BLOCK];
                for (weight, row) in weights.iter_mut().zip(block.clone()) {
                    *weight = simd.dot(q, &self.k[head(row)..][..head_dim]) * scale;
                }
                let new_largest = weights.iter().fold(*largest, |a, &b| a.max(b));
                for weight in &mut weights {
                    *weight = exp(*weight - new_largest);
                }
                let correction = exp(*largest - new_largest);
                let mut lanes = [0.0; LANES];
                for (l, lane) in lanes.iter_mut().enumerate() {
                    *lane = weights[l] + weights[l + LANES];
                }
                *largest = new_largest;
                *sum = *sum * correction + simd.sum(simd.load_part(&lanes));

                for (i, out) in out.chunks_mut(LANES).enumerate() {
                    let mut acc = simd.scale(simd.splat(correction), simd.load_part(out));
                    for (&weight, row) in weights.iter().zip(block.clone()) {
                        let v = &self.v[head(row) + i * LANES..][..out.len()];
                        acc = simd.scale_add(simd.splat(weight), simd.load_part(v), acc);
                    }
                    simd.store_part(acc, out);
                }
            }
        }
        for (out, (_, sum)) in self.out.chunks_exact_mut(head_dim).zip(softmax) {
            for out in out {
                *out /= sum;
            }
        }
    }
}
