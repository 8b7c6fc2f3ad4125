//! Softmax attention over KV caches in one pass over the keys.
//!
//! Keys are processed in blocks of 32, and blocks in spans of [`SPAN`] keys, both counted from the first
//! row of the sequence. Within a block, scores and weighted sums of values are chains of fused
//! multiply-adds, one chain per lane: over the chunks of a head for scores, over the keys for values.
//! Blocks are added to the state of their span, and spans are joined in order. The order of these
//! operations does not depend on which queries share a task, or on how the spans of a query are split
//! between tasks. Keys outside a query's window do not enter its chains.
//!
//! A few query heads are multiplied with keys and values in registers while these are decoded. More of them share blocks
//! that are decoded to memory ([`Square`]).

use std::ops::Range;
use std::ptr;

use bumpalo::collections::Vec;

use super::AttentionOp;
use crate::backend::{AttentionInput, AttentionShape, KeyRows};
use crate::cpu::arena::Arena;
use crate::cpu::buffer::Buffer;
use crate::cpu::math::exp;
use crate::cpu::pool::{Distribution, equal_share};
use crate::cpu::weight::Weight;
use crate::cpu::{Cpu, parts, read_ahead};
use crate::ops::cache::cpu::Cache;
use crate::simd::packed::array;
use crate::simd::{Kernel, LANES, LINE, Simd};
use crate::types::common::cache::{Ahead, FewHeads, MAX_FUSED_HEADS, Square, WeightedValues};

impl AttentionOp for Cpu {
    fn attention(
        &self,
        shape: &AttentionShape,
        input: AttentionInput<'_, Self>,
        keys: &[KeyRows],
        out: &mut Buffer,
    ) {
        let input = &input;
        let n_group = shape.n_head / shape.n_head_kv;
        let group_len = n_group * shape.head_dim;
        let len = keys.len() * shape.n_head * shape.head_dim;
        // Query heads that share a key head are adjacent in memory.
        let groups = input.q[..len]
            .chunks_exact(group_len)
            .zip(out[..len].chunks_exact_mut(group_len));
        let arena = Arena::new();
        let queries = groups.enumerate().map(|(i, (q, out))| {
            let (row, head_kv) = (i / shape.n_head_kv, i % shape.n_head_kv);
            let keys = &keys[row];
            let query = Query {
                q,
                start: keys.start,
                keys: shape.visible(keys),
                head_kv,
            };
            (query, out)
        });
        let mut queries = Vec::from_iter_in(queries, &arena);
        // Queries of one sequence that read the same keys become neighbours and share tasks.
        queries.sort_unstable_by_key(|(query, _)| (query.sequence_and_head(), query.keys.end));
        let mut outs = Vec::with_capacity_in(queries.len(), &arena);
        let queries = queries.into_iter().map(|(query, out)| {
            outs.push(out);
            query
        });
        let queries = Vec::from_iter_in(queries, &arena);
        let sinks = input.sinks.map(Weight::to_f32);

        let tasks = || {
            let same = queries.chunk_by(|a, b| a.sequence_and_head() == b.sequence_and_head());
            same.flat_map(|queries| queries.chunks(TASK_HEADS.div_ceil(n_group)))
        };
        let is_split = tasks().count() < 4 * self.threads();
        let mut all = Vec::new_in(&arena);
        for queries in tasks() {
            let spans = spans(queries);
            let part = if is_split { 1 } else { spans.len() };
            all.extend(parts(spans.len(), part).map(|part| {
                let sinks = sinks.as_deref().filter(|_| part.start == 0);
                SpanTask {
                    queries,
                    spans: spans.start + part.start..spans.start + part.end,
                    state: State::new(&arena, shape, queries, sinks),
                }
            }));
        }
        let n_key: usize = queries.iter().map(|query| query.keys.len()).sum();
        // Decoding keys and values takes as long as the products with a few heads.
        let work = 4 * n_key * group_len;
        let (k, v) = (input.k, input.v);
        let mut distribution = Distribution::default();
        if keys.len() <= read_ahead::MAX_ROWS {
            self.read_order.record(&k.follower, |last| {
                let shares = (0..self.threads()).map(|i| equal_share(all.len(), i, self.threads()));
                let starts = shares.map(|share| {
                    let tasks = all[share].iter();
                    tasks.flat_map(|task| task.addresses([k, v])).collect()
                });
                last.clear();
                last.extend(starts);
            });
            distribution.ahead = Some(arena.alloc_slice_clone(&k.follower.starts()));
        }
        self.distribute(work, &mut all, distribution, |task| {
            let attend = Attend { shape, k, v, task };
            self.implementation.run_operation(attend);
        });
        let mut joins = Vec::new_in(&arena);
        let mut outs = &mut outs[..];
        for parts in all.chunk_by_mut(|a, b| ptr::eq(a.queries, b.queries)) {
            let (these, later) = outs.split_at_mut(parts[0].queries.len());
            outs = later;
            joins.push((parts, these));
        }
        self.run(len, joins, |(parts, outs)| Join {
            states: parts.iter_mut().map(|part| &mut part.state),
            outs: outs
                .iter_mut()
                .flat_map(|out| out.chunks_exact_mut(shape.head_dim)),
        });
    }
}

/// Keys per span. A span is reduced independently, on any thread.
const SPAN: usize = 512;

/// Query heads per task, at least those of one row: each block of keys is decoded once for all of them.
const TASK_HEADS: usize = 48;

/// [`LANES`] elements of a head, or one element of [`LANES`] keys.
type Chunk = [f32; LANES];

/// The query heads of one row that share a key head.
struct Query<'a> {
    /// `(n_head / n_head_kv, head_dim)`
    q: &'a [f32],
    /// First row of the sequence.
    start: usize,
    /// Visible rows.
    keys: KeyRows,
    head_kv: usize,
}

impl Query<'_> {
    /// Returns the sequence and the key head. Queries with equal values read the same keys.
    fn sequence_and_head(&self) -> (usize, usize) {
        (self.start, self.head_kv)
    }
}

/// Returns the rows from the first to the last one that at least one of the queries attends to. All queries are of one
/// sequence.
#[inline(always)]
fn seen_by(queries: &[Query<'_>]) -> KeyRows {
    let start = queries.iter().map(|query| query.keys.start).min();
    let end = queries.iter().map(|query| query.keys.end).max();
    start.unwrap_or(0)..end.unwrap_or(0)
}

/// Returns the spans of these rows.
fn spans(queries: &[Query<'_>]) -> Range<usize> {
    let KeyRows { start, end } = seen_by(queries);
    let first = (start - queries[0].start) / SPAN;
    first..(end - queries[0].start).div_ceil(SPAN).max(first + 1)
}

/// Some spans of keys for some queries of one sequence: the unit of work of a task.
struct SpanTask<'a> {
    queries: &'a [Query<'a>],
    spans: Range<usize>,
    state: State<'a>,
}

impl SpanTask<'_> {
    /// Returns the addresses that the task reads of each cache.
    fn addresses(&self, caches: [&Cache; 2]) -> [Range<usize>; 2] {
        let queries = self.queries;
        let KeyRows { start, end } = seen_by(queries);
        let first = queries[0].start;
        let spans = first + self.spans.start * SPAN..first + self.spans.end * SPAN;
        let rows = start.max(spans.start)..end.min(spans.end);
        caches.map(|cache| {
            let bytes = cache.bytes(queries[0].head_kv, rows.clone()).as_ptr_range();
            bytes.start.addr()..bytes.end.addr()
        })
    }
}

/// Running attention result of some query heads.
struct State<'a> {
    /// Softmax state per head.
    softmax: &'a mut [Softmax],
    /// Weighted sums of values: `(heads, chunks of a head)`.
    sums: &'a mut [Chunk],
}

/// Running softmax of one query head.
#[derive(Clone, Copy)]
struct Softmax {
    /// The largest score so far.
    largest: f32,
    /// The sum of `exp(score - largest)`.
    sum: f32,
}

impl Softmax {
    /// The state before any score.
    const EMPTY: Softmax = Softmax {
        largest: f32::NEG_INFINITY,
        sum: 0.0,
    };
}

impl<'a> State<'a> {
    /// Returns the state before any key. Sinks, `(n_head)`, are scores without a value.
    fn new(
        arena: &'a Arena,
        shape: &AttentionShape,
        queries: &[Query<'_>],
        sinks: Option<&[f32]>,
    ) -> State<'a> {
        let n_group = shape.n_head / shape.n_head_kv;
        let n_heads = queries.len() * n_group;
        let head_kv = queries.first().map_or(0, |query| query.head_kv);
        let softmax = |i: usize| match sinks {
            None => Softmax::EMPTY,
            Some(sinks) => Softmax {
                largest: sinks[head_kv * n_group + i % n_group],
                sum: 1.0,
            },
        };
        State {
            softmax: arena.alloc_slice_fill_with(n_heads, softmax),
            sums: arena.filled([0.0; LANES], n_heads * shape.head_dim.div_ceil(LANES)),
        }
    }

    /// Adds the state of later keys.
    #[inline(always)]
    fn join<S: Simd>(&mut self, simd: S, later: &State<'_>) {
        let n_chunk = self.sums.len() / self.softmax.len();
        let sums = self.sums.chunks_exact_mut(n_chunk);
        let later_sums = later.sums.chunks_exact(n_chunk);
        let sums = sums.zip(later_sums);
        for ((softmax, later), (sums, later_sums)) in
            self.softmax.iter_mut().zip(&*later.softmax).zip(sums)
        {
            // No visible keys.
            if later.sum == 0.0 {
                continue;
            }
            let largest = softmax.largest.max(later.largest);
            let (old, new) = (exp(softmax.largest - largest), exp(later.largest - largest));
            *softmax = Softmax {
                largest,
                sum: softmax.sum * old + later.sum * new,
            };
            let (old, new) = (simd.splat(old), simd.splat(new));
            for (sums, later) in sums.iter_mut().zip(later_sums) {
                let scaled = simd.scale(old, simd.load_partial(sums));
                simd.store_partial(simd.scale_add(new, simd.load_partial(later), scaled), sums);
            }
        }
    }
}

/// Joins the states of some queries, in order, and writes their results.
struct Join<I, O> {
    states: I,
    outs: O,
}

impl<'a, 's: 'a, I, O> Kernel for Join<I, O>
where
    I: Iterator<Item = &'a mut State<'s>>,
    O: Iterator<Item = &'a mut [f32]>,
{
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let Some(state) = self.states.next() else {
            return;
        };
        for later in self.states {
            state.join(simd, later);
        }
        let n_chunk = state.sums.len() / state.softmax.len();
        let heads = state.sums.chunks_exact(n_chunk).zip(&*state.softmax);
        for (out, (sums, softmax)) in self.outs.zip(heads) {
            for (out, sum) in out.iter_mut().zip(sums.as_flattened()) {
                // Normalises the sign of zero, which may depend on keys with a weight of zero.
                *out = sum / softmax.sum + 0.0;
            }
        }
    }
}

/// Computes the state of a task.
struct Attend<'a, 'b> {
    shape: &'a AttentionShape,
    k: &'a Cache,
    v: &'a Cache,
    task: &'a mut SpanTask<'b>,
}

/// Scratch buffers for one block of keys.
struct Scratch<'a> {
    /// Heads per query.
    n_group: usize,
    /// Queries, padded with zeros: `(heads, chunks of a head)`.
    q: &'a mut [Chunk],
    /// Visible keys of the block, per head.
    seen: &'a mut [Range<usize>],
    /// All heads.
    tiles: &'a mut [Tile],
    /// Scores per head, later the weights.
    scores: &'a mut [Chunk],
    /// Rescaling factor of earlier sums, per head.
    corrections: &'a mut [f32],
    /// A chunk of keys or values for all rows of the block.
    square: Square,
}

/// Heads whose sums fit the registers, and the keys of a block that they attend to.
#[derive(Clone)]
struct Tile {
    heads: Range<usize>,
    /// The keys that all of them attend to.
    shared: Range<usize>,
    /// True if they attend to no other keys.
    is_shared: bool,
}

impl Tile {
    /// Splits the heads into tiles of about equal size that fit the registers.
    #[inline(always)]
    fn split<S: Simd>(n_heads: usize) -> impl ExactSizeIterator<Item = Tile> {
        let len = n_heads.div_ceil(n_heads.div_ceil(S::COLUMNS));
        (0..n_heads.div_ceil(len)).map(move |i| Tile {
            heads: i * len..n_heads.min((i + 1) * len),
            shared: 0..0,
            is_shared: true,
        })
    }

    /// Stores the keys that the heads attend to; `seen` has those of every head.
    #[inline(always)]
    fn see(&mut self, seen: &[Range<usize>]) {
        let seen = &seen[self.heads.clone()];
        let (mut start, mut end) = (0, LANES);
        for seen in seen {
            (start, end) = (start.max(seen.start), end.min(seen.end));
        }
        self.shared = start..end.max(start);
        self.is_shared = seen.iter().all(|seen| *seen == self.shared);
    }

    /// True if the heads attend to no key of the block.
    #[inline(always)]
    fn sees_nothing(&self) -> bool {
        self.is_shared && self.shared.is_empty()
    }
}

impl Kernel for Attend<'_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let head_dim = self.shape.head_dim;
        let n_chunk = head_dim.div_ceil(LANES);
        let queries = self.task.queries;
        let heads = queries.iter().flat_map(|q| q.q.chunks_exact(head_dim));
        let n_heads = self.task.state.softmax.len();
        let arena = Arena::new();
        let q = arena.filled([0.0; LANES], n_heads * n_chunk);
        for (padded, head) in q.chunks_exact_mut(n_chunk).zip(heads) {
            padded.as_flattened_mut()[..head_dim].copy_from_slice(head);
        }
        let mut scratch = Scratch {
            n_group: n_heads / queries.len(),
            q,
            seen: arena.alloc_slice_fill_default(n_heads),
            tiles: arena.alloc_slice_fill_iter(Tile::split::<S>(n_heads)),
            scores: arena.filled([0.0; LANES], n_heads),
            corrections: arena.filled(1.0, n_heads),
            square: Square::ZERO,
        };
        let start = queries[0].start;
        let mut state = State::new(&arena, self.shape, queries, None);
        for span in self.task.spans.clone() {
            state.softmax.fill(Softmax::EMPTY);
            state.sums.fill([0.0; LANES]);
            let first = start + span * SPAN;
            for block in (first..first + SPAN).step_by(LANES) {
                self.add_block(simd, block, &mut scratch, &mut state);
            }
            self.task.state.join(simd, &state);
        }
    }
}

impl Attend<'_, '_> {
    /// Adds a block of keys to the state of its span.
    #[inline(always)]
    fn add_block<S: Simd>(
        &self,
        simd: S,
        block: usize,
        scratch: &mut Scratch<'_>,
        state: &mut State<'_>,
    ) {
        let groups = scratch.seen.chunks_exact_mut(scratch.n_group);
        for (seen, query) in groups.zip(self.task.queries) {
            let KeyRows { start, end } = query.keys;
            let (start, end) = (start.max(block), end.min(block + LANES));
            seen.fill(match start < end {
                true => start - block..end - block,
                false => 0..0,
            });
        }
        for tile in scratch.tiles.iter_mut() {
            tile.see(scratch.seen);
        }
        let seen = scratch.seen.iter().filter(|seen| !seen.is_empty());
        let first = seen.clone().map(|seen| seen.start).min();
        let end = seen.map(|seen| seen.end).max();
        let (Some(first), Some(end)) = (first, end) else {
            return;
        };
        let head_kv = self.task.queries[0].head_kv;
        let is_fused = scratch.tiles.len() == 1 && scratch.scores.len() <= MAX_FUSED_HEADS;
        if is_fused {
            let heads = FewHeads {
                keys: self.k.chunks(head_kv, block..block + end, 0),
                q: scratch.q,
                ahead: self.ahead(self.k, block),
            };
            self.k.score(simd, heads, scratch.scores);
        } else {
            self.score(simd, block..block + end, scratch);
        }
        self.weigh(simd, scratch, state);
        if is_fused && scratch.tiles[0].is_shared {
            let values = WeightedValues {
                values: self.v.chunks(head_kv, block + first..block + end, 0),
                first,
                weights: scratch.scores,
                corrections: scratch.corrections,
                ahead: self.ahead(self.v, block),
            };
            self.v.add_values(simd, values, state.sums);
        } else {
            self.add_values(simd, block, first..end, scratch, state);
        }
    }

    /// Returns the bytes of the block after this one, to be prefetched while it is used: of the next head, if it is the
    /// last one of this head; its own, if there is none. Chunks are read with a stride, which hardware prefetchers do not
    /// follow.
    #[inline(always)]
    fn ahead<'c>(&self, cache: &'c Cache, block: usize) -> &'c [u8] {
        let KeyRows { start, end } = seen_by(self.task.queries);
        let head = self.task.queries[0].head_kv;
        let (head, next) = match block + LANES {
            next if next < end => (head, next),
            _ if head + 1 < self.shape.n_head_kv => (head + 1, start),
            _ => (head, block),
        };
        cache.bytes(head, next..end.min(next + LANES))
    }

    /// Computes the dot products of queries and keys.
    #[inline(always)]
    fn score<S: Simd>(&self, simd: S, keys: Range<usize>, scratch: &mut Scratch<'_>) {
        let head_kv = self.task.queries[0].head_kv;
        let n_heads = scratch.scores.len();
        let n_chunk = scratch.q.len() / n_heads;
        scratch.scores.fill([0.0; LANES]);
        let ahead = self.ahead(self.k, keys.start);
        let n_line = lines_at_once(ahead, n_chunk * scratch.tiles.len());
        let mut ahead = Ahead::new(ahead);
        for chunk in 0..n_chunk {
            let Scratch {
                q,
                scores,
                square,
                tiles,
                ..
            } = scratch;
            self.k.transpose(simd, head_kv, keys.clone(), chunk, square);
            for tile in tiles.iter() {
                ahead.prefetch(simd, n_line);
                if tile.sees_nothing() {
                    continue;
                }
                let q = |i| &q[(tile.heads.start + i) * n_chunk + chunk];
                let scores = Scores(&mut scores[tile.heads.clone()]);
                add_tile(simd, tile.heads.len(), q, 0..LANES, &square.0, scores);
            }
        }
    }

    /// Turns scores into softmax weights.
    #[inline(always)]
    fn weigh<S: Simd>(&self, simd: S, scratch: &mut Scratch<'_>, state: &mut State<'_>) {
        let mut heads = Heads {
            seen: scratch.seen,
            scores: scratch.scores,
            corrections: scratch.corrections,
            softmax: state.softmax,
        };
        while let Some(group) = heads.take::<MAX_GROUP>() {
            self.weigh_group(simd, group);
        }
        while let Some(group) = heads.take::<2>() {
            self.weigh_group(simd, group);
        }
        if let Some(group) = heads.take::<1>() {
            self.weigh_group(simd, group);
        }
    }

    /// Turns the scores of some heads into softmax weights, all heads at once.
    #[inline(always)]
    fn weigh_group<S: Simd, const N: usize>(&self, simd: S, heads: Group<'_, N>) {
        let Group {
            seen,
            scores,
            corrections,
            softmax,
        } = heads;
        for (scores, seen) in scores.iter_mut().zip(seen) {
            scores.iter_mut().for_each(|x| *x *= self.shape.scale);
            if seen.len() < LANES {
                scores[..seen.start].fill(f32::NEG_INFINITY);
                scores[seen.end..].fill(f32::NEG_INFINITY);
            }
        }
        let largest = simd.largest(rows(simd, scores));
        // The exponential of zero: the sums stay the same.
        let mut factors = [0.0; MAX_GROUP];
        for (i, softmax) in softmax.iter_mut().enumerate() {
            if !seen[i].is_empty() {
                let largest = larger(softmax.largest, largest[i]);
                factors[i] = softmax.largest - largest;
                softmax.largest = largest;
            }
        }
        for factor in &mut factors {
            *factor = exp(*factor);
        }
        corrections.copy_from_slice(&factors[..N]);
        for (scores, softmax) in scores.iter_mut().zip(&*softmax) {
            for score in scores.iter_mut() {
                *score = exp(*score - softmax.largest);
            }
        }
        let sums = simd.sums(rows(simd, scores));
        for (i, softmax) in softmax.iter_mut().enumerate() {
            if !seen[i].is_empty() {
                softmax.sum = softmax.sum * factors[i] + sums[i];
            }
        }
    }

    /// Adds weighted values. `rows` are the rows of the block that at least one query attends to.
    #[inline(always)]
    fn add_values<S: Simd>(
        &self,
        simd: S,
        block: usize,
        rows: Range<usize>,
        scratch: &mut Scratch<'_>,
        state: &mut State<'_>,
    ) {
        let Scratch {
            seen,
            scores: weights,
            corrections,
            square,
            tiles,
            ..
        } = scratch;
        let head_kv = self.task.queries[0].head_kv;
        let n_chunk = state.sums.len() / weights.len();
        let ahead = self.ahead(self.v, block);
        let n_line = lines_at_once(ahead, n_chunk * tiles.len());
        let mut ahead = Ahead::new(ahead);
        for chunk in 0..n_chunk {
            let keys = block + rows.start..block + rows.end;
            let values = &mut square.0[rows.clone()];
            self.v.decode(simd, head_kv, keys, chunk, values);
            for tile in tiles.iter() {
                ahead.prefetch(simd, n_line);
                if tile.sees_nothing() {
                    continue;
                }
                let Tile { heads, shared, .. } = tile;
                let (weights, seen) = (&weights[heads.clone()], &seen[heads.clone()]);
                let mut sums = Values {
                    sums: &mut state.sums[heads.start * n_chunk..],
                    corrections: &corrections[heads.start..],
                    n_chunk,
                    chunk,
                };
                let (n, values) = (heads.len(), &square.0);
                let of = |i: usize| &weights[i];
                if tile.is_shared {
                    add_tile(simd, n, of, shared.clone(), values, sums);
                    continue;
                }
                // Keys that all heads of the tile attend to are added together; the keys before and after
                // those, head by head.
                let mut products = [[0.0; LANES]; MAX_TILE];
                let products = &mut products[..n];
                for (i, seen) in seen.iter().enumerate() {
                    let before = seen.start..seen.end.min(shared.start);
                    if !before.is_empty() {
                        let product = Products(&mut products[i..i + 1]);
                        add_tile(simd, 1, |_| of(i), before, values, product);
                    }
                }
                add_tile(simd, n, of, shared.clone(), values, Products(products));
                for (i, seen) in seen.iter().enumerate() {
                    let after = seen.start.max(shared.end)..seen.end;
                    if !after.is_empty() {
                        let product = Products(&mut products[i..i + 1]);
                        add_tile(simd, 1, |_| of(i), after, values, product);
                    }
                    sums.finish(simd, i, simd.load_partial(&products[i]));
                }
            }
        }
    }
}

/// Returns how many lines to prefetch `n` times.
#[inline(always)]
fn lines_at_once(bytes: &[u8], n: usize) -> usize {
    bytes.len().div_ceil(LINE).div_ceil(n)
}

/// Returns the larger number; `b` if `a` is NaN.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Operands of the softmax of some heads.
struct Heads<'a> {
    /// The keys that each head attends to.
    seen: &'a [Range<usize>],
    scores: &'a mut [Chunk],
    corrections: &'a mut [f32],
    softmax: &'a mut [Softmax],
}

/// Maximum number of heads whose softmax is computed at once.
const MAX_GROUP: usize = 8;

/// [`Heads`] of a constant number.
struct Group<'a, const N: usize> {
    seen: &'a [Range<usize>; N],
    scores: &'a mut [Chunk; N],
    corrections: &'a mut [f32; N],
    softmax: &'a mut [Softmax; N],
}

impl<'a> Heads<'a> {
    /// Splits off the first `N` heads, if there are so many.
    #[inline(always)]
    fn take<const N: usize>(&mut self) -> Option<Group<'a, N>> {
        Some(Group {
            seen: self.seen.split_off(..N)?.first_chunk()?,
            scores: self.scores.split_off_mut(..N)?.first_chunk_mut()?,
            corrections: self.corrections.split_off_mut(..N)?.first_chunk_mut()?,
            softmax: self.softmax.split_off_mut(..N)?.first_chunk_mut()?,
        })
    }
}

/// Returns the scores of some heads, and zeros.
#[inline(always)]
fn rows<S: Simd, const N: usize>(simd: S, scores: &[Chunk; N]) -> [S::Lanes; MAX_GROUP] {
    array(|i| match scores.get(i) {
        Some(scores) => simd.lanes(|register| simd.load(scores, register)),
        None => simd.lanes(|_| simd.splat(0.0)),
    })
}

/// Maximum number of heads per tile on any instruction set.
const MAX_TILE: usize = 6;

/// The sums of a tile of heads. Not closures, which the compiler would not inline into every size of tile.
trait Sums<S: Simd> {
    /// Returns the sum of head `c` so far.
    #[inline(always)]
    fn start(&self, simd: S, _c: usize) -> S::Lanes {
        simd.lanes(|_| simd.splat(0.0))
    }

    /// Takes the sum of head `c`.
    fn finish(&mut self, simd: S, c: usize, sum: S::Lanes);
}

/// Sums to be continued.
struct Products<'a>(&'a mut [Chunk]);

impl<S: Simd> Sums<S> for Products<'_> {
    #[inline(always)]
    fn start(&self, simd: S, c: usize) -> S::Lanes {
        simd.load_partial(&self.0[c])
    }

    #[inline(always)]
    fn finish(&mut self, simd: S, c: usize, sum: S::Lanes) {
        simd.store_partial(sum, &mut self.0[c]);
    }
}

/// Scores, to which the sum of each chunk is added.
struct Scores<'a>(&'a mut [Chunk]);

impl<S: Simd> Sums<S> for Scores<'_> {
    #[inline(always)]
    fn finish(&mut self, simd: S, c: usize, sum: S::Lanes) {
        let score = simd.load_partial(&self.0[c]);
        // A sum: a product with 1 is exact.
        let score = simd.scale_add(simd.splat(1.0), sum, score);
        simd.store_partial(score, &mut self.0[c]);
    }
}

/// Weighted sums of values, which are rescaled before the sum of a block is added.
struct Values<'a> {
    /// `(heads, chunks of a head)`
    sums: &'a mut [Chunk],
    /// A factor per head.
    corrections: &'a [f32],
    n_chunk: usize,
    chunk: usize,
}

impl<S: Simd> Sums<S> for Values<'_> {
    #[inline(always)]
    fn finish(&mut self, simd: S, c: usize, sum: S::Lanes) {
        let sums = &mut self.sums[c * self.n_chunk + self.chunk];
        let correction = simd.splat(self.corrections[c]);
        let sum = simd.scale_add(correction, simd.load_partial(sums), sum);
        simd.store_partial(sum, sums);
    }
}

/// Adds `a(c)[i] * b[i]` to the sums of `n` heads, in order of `i`.
#[inline(always)]
fn add_tile<'a, S: Simd>(
    simd: S,
    n: usize,
    a: impl Fn(usize) -> &'a Chunk,
    range: Range<usize>,
    b: &[Chunk; LANES],
    sums: impl Sums<S>,
) {
    match n {
        1 => add_products::<S, 1>(simd, a, range, b, sums),
        2 => add_products::<S, 2>(simd, a, range, b, sums),
        3 => add_products::<S, 3>(simd, a, range, b, sums),
        4 => add_products::<S, 4>(simd, a, range, b, sums),
        5 => add_products::<S, 5>(simd, a, range, b, sums),
        MAX_TILE => add_products::<S, MAX_TILE>(simd, a, range, b, sums),
        n => unreachable!("{n} heads in a tile"),
    }
}

/// [`add_tile`] for `C` heads.
#[inline(always)]
fn add_products<'a, S: Simd, const C: usize>(
    simd: S,
    a: impl Fn(usize) -> &'a Chunk,
    range: Range<usize>,
    b: &[Chunk; LANES],
    mut sums: impl Sums<S>,
) {
    let b = b.get(range.clone()).unwrap_or_default();
    let a: [&[f32]; C] = array(|c| &a(c)[range.start..][..b.len()]);
    let mut acc: [S::Lanes; C] = array(|c| sums.start(simd, c));
    for (i, b) in b.iter().enumerate() {
        let a: [_; C] = array(|c| simd.splat(a[c][i]));
        // Register by register: those of a whole chunk and of all sums would not fit the register file.
        for register in 0..S::REGISTERS {
            let b = simd.load(b, register);
            for (acc, a) in acc.iter_mut().zip(a) {
                acc[register] = simd.mul_add(a, b, acc[register]);
            }
        }
    }
    for (c, acc) in acc.into_iter().enumerate() {
        sums.finish(simd, c, acc);
    }
}
