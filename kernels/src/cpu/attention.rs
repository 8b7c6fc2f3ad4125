//! Softmax attention, one pass over the keys.

use std::ops::Range;

use super::Cpu;
use super::math::exp;
use super::simd::{Kernel, LANES, Simd};
use super::weight::Weight;
use crate::backend::{AttentionInput, AttentionShape, KeyRows};

/// Keys between two corrections of the running maximum, counted from the first of the sequence.
const KEY_BLOCK: usize = 2 * LANES;

/// Query rows of a task: each block of keys is used for all of them while it is in a cache.
const ROWS: usize = 8;

/// [`Backend::attention`](crate::backend::Backend::attention).
pub(super) fn attention(
    cpu: &Cpu,
    shape: &AttentionShape,
    input: &AttentionInput<'_, Cpu>,
    keys: &[KeyRows],
    out: &mut [f32],
) {
    let len = keys.len() * shape.n_head * shape.head_dim;
    let (q, out) = (&input.q[..len], &mut out[..len]);
    let n_key: usize = keys.iter().map(|past| shape.visible(past).len()).sum();
    let work = 2 * n_key * shape.n_head * shape.head_dim;
    // The query heads that share a key head lie side by side.
    let group_len = shape.n_head / shape.n_head_kv * shape.head_dim;
    let groups = q
        .chunks_exact(group_len)
        .zip(out.chunks_exact_mut(group_len));
    let mut queries: Vec<Query<'_>> = groups
        .enumerate()
        .map(|(i, (q, out))| {
            let (row, head_kv) = (i / shape.n_head_kv, i % shape.n_head_kv);
            Query {
                q,
                start: keys[row].start,
                keys: shape.visible(&keys[row]),
                head_kv,
                out,
            }
        })
        .collect();
    // Rows of one sequence read the same keys.
    let place = |query: &Query<'_>| (query.start, query.head_kv);
    queries.sort_by_key(place);
    let mut tasks = Vec::new();
    for queries in queries.chunk_by_mut(|a, b| place(a) == place(b)) {
        tasks.extend(queries.chunks_mut(ROWS));
    }
    let sinks = input.sinks.map(Weight::to_f32);
    cpu.run(work, tasks, |queries| Attend {
        shape,
        k: input.k,
        v: input.v,
        sinks: sinks.as_deref(),
        queries,
    });
}

/// The query heads of one row that share a key head.
struct Query<'a> {
    /// `(n_head / n_head_kv, head_dim)`
    q: &'a [f32],
    /// First row of the sequence.
    start: usize,
    /// Rows that the query sees.
    keys: KeyRows,
    head_kv: usize,
    /// as `q`
    out: &'a mut [f32],
}

/// Queries of the same sequence.
struct Attend<'a, 'b> {
    shape: &'a AttentionShape,
    /// `(rows, n_head_kv * head_dim)`
    k: &'a [f32],
    /// as `k`
    v: &'a [f32],
    /// Scores that begin the sum of each query head, `(n_head)`
    sinks: Option<&'a [f32]>,
    queries: &'a mut [Query<'b>],
}

/// Running state of one query head.
#[derive(Clone, Copy)]
struct Softmax {
    /// The largest score so far.
    largest: f32,
    /// The sum of `exp(score - largest)`.
    sum: f32,
}

impl Kernel for Attend<'_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let AttentionShape {
            n_head,
            n_head_kv,
            head_dim,
            scale,
            window: _,
        } = *self.shape;
        let n_group = n_head / n_head_kv;
        let Some(start) = self.queries.first().map(|query| query.start) else {
            return;
        };
        let keys = self.queries.iter().map(|query| &query.keys);
        let first = keys.clone().map(|keys| keys.start).min().unwrap_or(start);
        let end = keys.map(|keys| keys.end).max().unwrap_or(start);
        let first_block = first - (first - start) % KEY_BLOCK;
        let mut softmax = Vec::new();
        for query in &mut *self.queries {
            query.out.fill(0.0);
            let heads = query.head_kv * n_group..(query.head_kv + 1) * n_group;
            softmax.extend(heads.map(|head| match self.sinks {
                None => Softmax {
                    largest: f32::NEG_INFINITY,
                    sum: 0.0,
                },
                Some(sinks) => Softmax {
                    largest: sinks[head],
                    sum: 1.0,
                },
            }));
        }
        for block in (first_block..end).step_by(KEY_BLOCK) {
            for (query, softmax) in self
                .queries
                .iter_mut()
                .zip(softmax.chunks_exact_mut(n_group))
            {
                let Range { start, end } = query.keys;
                let rows = block.max(start)..end.min(block + KEY_BLOCK);
                if rows.is_empty() {
                    continue;
                }
                let at = |row: usize| (row * n_head_kv + query.head_kv) * head_dim;
                let k = rows.clone().map(|row| &self.k[at(row)..][..head_dim]);
                let v = rows.map(|row| &self.v[at(row)..][..head_dim]);
                let heads = query
                    .q
                    .chunks_exact(head_dim)
                    .zip(query.out.chunks_exact_mut(head_dim));
                for ((q, out), softmax) in heads.zip(softmax) {
                    let mut weights = [f32::NEG_INFINITY; KEY_BLOCK];
                    for (weight, k) in weights.iter_mut().zip(k.clone()) {
                        *weight = simd.dot(q, k) * scale;
                    }
                    let correction = softmax.add(simd, &mut weights);
                    let weighted = weights.iter().copied().zip(v.clone());
                    // As many sums at a time as eight registers hold, to overlap their additions.
                    if S::REGISTERS == 2 {
                        add_weighted::<S, 4>(simd, correction, weighted, out);
                    } else {
                        add_weighted::<S, 2>(simd, correction, weighted, out);
                    }
                }
            }
        }
        let heads = self
            .queries
            .iter_mut()
            .flat_map(|query| query.out.chunks_exact_mut(head_dim));
        for (out, softmax) in heads.zip(softmax) {
            for out in out {
                *out /= softmax.sum;
            }
        }
    }
}

impl Softmax {
    /// Turns the scores of a block into weights; the factor that corrects those of the blocks
    /// before it.
    #[inline(always)]
    fn add<S: Simd>(&mut self, simd: S, scores: &mut [f32; KEY_BLOCK]) -> f32 {
        let largest = scores.iter().fold(self.largest, |a, &b| a.max(b));
        for score in scores.iter_mut() {
            *score = exp(*score - largest);
        }
        let correction = exp(self.largest - largest);
        let (first, second) = scores.split_at(LANES);
        let (first, second) = (simd.load_part(first), simd.load_part(second));
        let sum = simd.sum(simd.scale_add(simd.splat(1.0), first, second));
        *self = Softmax {
            largest,
            sum: self.sum * correction + sum,
        };
        correction
    }
}

/// `out = correction * out + sum(weight * v)`, key by key, `N` chunks of columns at a time.
#[inline(always)]
fn add_weighted<'a, S: Simd, const N: usize>(
    simd: S,
    correction: f32,
    weighted: impl Iterator<Item = (f32, &'a [f32])> + Clone,
    out: &mut [f32],
) {
    let correction = simd.splat(correction);
    let (chunks, rest) = out.as_chunks_mut::<LANES>();
    let (tiles, single) = chunks.as_chunks_mut::<N>();
    let mut column = 0;
    for tile in tiles {
        let mut acc = [simd.lanes(|_| correction); N];
        for (acc, out) in acc.iter_mut().zip(&*tile) {
            *acc = simd.scale(correction, simd.load_part(out));
        }
        for (weight, v) in weighted.clone() {
            let weight = simd.splat(weight);
            let v = &v[column..column + N * LANES];
            for (acc, v) in acc.iter_mut().zip(v.as_chunks::<LANES>().0) {
                *acc = simd.lanes(|i| simd.mul_add(weight, simd.load(v, i), acc[i]));
            }
        }
        for (acc, out) in acc.into_iter().zip(tile) {
            simd.store_part(acc, out);
        }
        column += N * LANES;
    }
    for out in single
        .iter_mut()
        .map(<[f32; LANES]>::as_mut_slice)
        .chain((!rest.is_empty()).then_some(rest))
    {
        let mut acc = simd.scale(correction, simd.load_part(out));
        for (weight, v) in weighted.clone() {
            let v = &v[column..column + out.len()];
            acc = simd.scale_add(simd.splat(weight), simd.load_part(v), acc);
        }
        simd.store_part(acc, out);
        column += out.len();
    }
}
