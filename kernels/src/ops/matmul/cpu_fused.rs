//! Products with weights that are unpacked in registers: for decoding and short drafts, where a weight is
//! used a few times only. Loads and arithmetic alternate closely, so that arithmetic does not interrupt the
//! stream from memory.

use std::marker::PhantomData;

use super::cpu_quants::{HalfScales, minus_offset};
use crate::cpu::activation::Quantized;
use crate::cpu::repack::{Geometry, Interleaved, Line, Panel};
use crate::simd::packed::{
    LinesBetween, MAX_FUSED, MAX_PARTS, MAX_PASSES, Packed, ROWS, array, each,
};
use crate::simd::{Kernel, Simd};
use crate::types::common::unpack::{
    Blocks, Group, HalfTile, MAX_GROUP, MAX_TILES, TileForm, TileScales, Unpack,
};

/// Distances at which a pass over a panel prefetches, in cache lines.
#[derive(Clone, Copy)]
pub(super) struct Distances {
    /// The distance for all lines of the panel, or 0 for none.
    all: usize,
    /// Those of a cycle in which passes take turns. A distance of 0 is that of a line in the caches.
    in_turn: [usize; MAX_PASSES],
}

impl Distances {
    /// One pass prefetches `distance` lines ahead. Of several, the first brings the panel into the caches, and each
    /// prefetches its share of the next one, `next` lines ahead, so that memory is read all the time.
    #[inline(always)]
    pub(super) fn of_pass(pass: usize, n_pass: usize, distance: usize, next: usize) -> Self {
        Distances {
            all: if pass == 0 { distance } else { next },
            in_turn: array(|turn| match (n_pass, turn % n_pass) {
                (1, _) => distance,
                (_, whose) if whose == pass => next,
                _ => 0,
            }),
        }
    }

    /// The distance in one of the turns of a pass with `C` rows. A last pass with fewer than others has no time to wait
    /// for its turns.
    #[inline(always)]
    fn of_turn<const C: usize>(self, turn: usize) -> usize {
        match C {
            MAX_FUSED => self.in_turn[turn % MAX_PASSES],
            _ => self.all,
        }
    }
}

/// Multiplies a panel by the activation rows `x`, `(tiles, n)`: one array of sums for each. There are at most
/// [`Packed::FUSED`] of them. `scales` is scratch memory.
#[inline(always)]
pub(super) fn multiply<S: Simd, T: Unpack>(
    simd: S,
    panel: Panel<'_>,
    ahead: Distances,
    x: &[Quantized],
    n_tile: usize,
    scales: &mut [TileScales; MAX_TILES],
) -> [[f32; ROWS]; MAX_FUSED] {
    let mut sums = [[0.0; ROWS]; MAX_FUSED];
    let product = PanelProduct::<T> {
        panel,
        ahead,
        x,
        scales,
        sums: &mut sums,
        of: PhantomData,
    };
    // Constant conditions, so that numbers of rows that cannot occur are not compiled.
    match x.len() / n_tile {
        1 if ahead.all == 0 => simd.run(OfRows::<T, false, 1>(product)),
        1 => simd.run(OfRows::<T, true, 1>(product)),
        2 if const { S::FUSED >= 2 } => simd.run(OfRows::<T, true, 2>(product)),
        3 if const { S::FUSED >= 3 } => simd.run(OfRows::<T, true, 3>(product)),
        4 if const { S::FUSED >= 4 } => simd.run(OfRows::<T, true, 4>(product)),
        n => unreachable!("{n} activation rows are multiplied by tiles"),
    }
    sums
}

/// The product of a panel with a few activation rows.
struct PanelProduct<'a, T> {
    panel: Panel<'a>,
    ahead: Distances,
    x: &'a [Quantized],
    /// Scratch memory.
    scales: &'a mut [TileScales; MAX_TILES],
    sums: &'a mut [[f32; ROWS]; MAX_FUSED],
    of: PhantomData<T>,
}

/// A product with `C` activation rows.
struct OfRows<'a, T, const PREFETCH: bool, const C: usize>(PanelProduct<'a, T>);

impl<T: Unpack, const PREFETCH: bool, const C: usize> Kernel for OfRows<'_, T, PREFETCH, C> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let PanelProduct {
            panel,
            ahead,
            x,
            scales,
            sums,
            ..
        } = self.0;
        let mut acc = [simd.splat_floats(0.0); C];
        let mut part_acc = [[simd.part(0).splat_floats(0.0); C]; MAX_PARTS];
        let (x, _) = x.as_chunks::<C>();
        for (i, x) in x.chunks_exact(T::TILES).enumerate() {
            let block = panel.block::<T>(i);
            let loads_prefetch = PREFETCH && !const { spreads_prefetches::<S, T>(C) };
            let scales_block = match loads_prefetch {
                true => block.prefetching(ahead.all),
                false => block,
            };
            T::scales(simd, scales_block, &mut scales[..T::TILES]);
            let n_tile = const { group_tiles::<S, T>() };
            let n_group = T::TILES / n_tile;
            for group in 0..n_group {
                let x = &x[group * n_tile..][..n_tile];
                let scales = &scales[group * n_tile..][..n_tile];
                let turn = i * n_group + group;
                let mut halves = [block; 2];
                if loads_prefetch {
                    halves[0] = block.prefetching(ahead.of_turn::<C>(2 * turn));
                    halves[1] = block.prefetching(ahead.of_turn::<C>(2 * turn + 1));
                }
                let distance = ahead.of_turn::<C>(turn);
                let lines = LinesAhead::<PREFETCH>::of_group::<S, T>(block, group, distance);
                // Not a loop, so that the position of each part is a constant.
                if const { by_parts::<S, T>() } {
                    let [acc, second_acc] = &mut part_acc;
                    let (part, second_part) = (simd.part(0), simd.part(1));
                    add_group::<_, T, _, C>(part, halves, group, x, scales, lines, acc);
                    let acc = second_acc;
                    add_group::<_, T, _, C>(second_part, halves, group, x, scales, lines, acc);
                } else {
                    add_group::<_, T, _, C>(simd, halves, group, x, scales, lines, &mut acc);
                }
            }
        }
        // Not a loop, which would keep the sums in memory all the time.
        if const { by_parts::<S, T>() } {
            store_part(simd.part(0), &part_acc[0], sums);
            store_part(simd.part(1), &part_acc[1], sums);
        } else {
            store_part(simd, &acc, sums);
        }
    }
}

/// Returns whether the parts of the rows are multiplied one after the other: large groups of tiles, and products of
/// 8 bits, need more registers than there are for all rows.
const fn by_parts<S: Simd, T: Unpack>() -> bool {
    let large = group_tiles::<S, T>() == MAX_GROUP || T::Form::BITS == 8;
    S::PARTS == 2 && large
}

/// Writes the sums of some rows.
#[inline(always)]
fn store_part<W: Packed, const C: usize>(
    simd: W,
    acc: &[W::Floats; C],
    sums: &mut [[f32; ROWS]; MAX_FUSED],
) {
    for c in 0..C {
        simd.store_floats(acc[c], &mut sums[c]);
    }
}

/// Returns whether prefetches are spread over the products with `n` activation rows, instead of alternating with the
/// loads of the panel. Many at once would occupy the buffers that loads from the L2 cache need. The products of large
/// groups follow a long unpacking, and with one row, those of more than four bits are few for the lines they read.
const fn spreads_prefetches<W: Packed, T: Unpack>(n: usize) -> bool {
    W::SPREADS_PREFETCHES && group_tiles::<W, T>() < MAX_GROUP && (n > 1 || T::Form::BITS == 4)
}

/// Cache lines to prefetch during the products of a group of tiles; none without `PREFETCH`.
#[derive(Clone, Copy)]
struct LinesAhead<const PREFETCH: bool> {
    first: *const Line,
    n: usize,
}

impl<const PREFETCH: bool> LinesAhead<PREFETCH> {
    /// The lines `distance` after those of a group.
    #[inline(always)]
    fn of_group<W: Packed, T: Unpack>(
        block: Interleaved<'_, T>,
        group: usize,
        distance: usize,
    ) -> LinesAhead<PREFETCH> {
        let n = const {
            let n_tile = group_tiles::<W, T>();
            let n = Geometry::of::<T>().max_lines().div_ceil(T::TILES / n_tile);
            // Each tile has eight words.
            assert!(n <= 8 * n_tile * LinesBetween::MAX_COUNT);
            n
        };
        LinesAhead {
            first: block.address(group * n + distance),
            n,
        }
    }

    /// Returns the share of one of `n_step` steps, each with the products of four words.
    #[inline(always)]
    fn share(self, step: usize, n_step: usize) -> LinesBetween {
        if !PREFETCH {
            return LinesBetween::NONE;
        }
        // Lines before those of a word.
        let before = |word| (4 * step + word) * self.n / (4 * n_step);
        LinesBetween {
            first: self.first.wrapping_add(before(0)).cast(),
            counts: each!(4, word => before(word + 1) - before(word)),
        }
    }
}

/// Tiles per group.
const fn group_tiles<W: Packed, T: Unpack>() -> usize {
    <T::Group<W> as Group<HalfTile<W>>>::TILES
}

/// Adds the products of one group of tiles with `C` activation rows.
#[inline(always)]
fn add_group<W: Packed, T: Unpack, const PREFETCH: bool, const C: usize>(
    simd: W,
    [block, second_block]: [impl Blocks; 2],
    group: usize,
    x: &[[Quantized; C]],
    scales: &[TileScales],
    lines: LinesAhead<PREFETCH>,
    acc: &mut [W::Floats; C],
) {
    let minus_offset = match T::Form::HAS_OFFSET {
        true => Some(simd.splat_floats(minus_offset::<T>(W::WIDE_OFFSET))),
        false => None,
    };
    let first = T::quants::<W, 0>(simd, block, group);
    let mut dots = [[simd.splat_word(0); C]; MAX_GROUP];
    add_half::<W, T, _, 0, C>(simd, first.as_ref(), x, lines, &mut dots);
    let mut products = [[simd.splat_floats(0.0); C]; MAX_GROUP];
    if T::Form::SCALES == 2 {
        for (tile, scales) in scales.iter().enumerate() {
            let scales = HalfScales::load::<T::Form>(simd, scales, 0);
            for c in 0..C {
                let (dot, product) = (dots[tile][c], products[tile][c]);
                products[tile][c] =
                    scales.apply::<T::Form>(simd, dot, &x[tile][c], minus_offset, product);
            }
        }
        dots = [[simd.splat_word(0); C]; MAX_GROUP];
    }
    let second = T::quants::<W, 1>(simd, second_block, group);
    add_half::<W, T, _, 1, C>(simd, second.as_ref(), x, lines, &mut dots);
    for (tile, scales) in scales.iter().enumerate() {
        let scales = HalfScales::load::<T::Form>(simd, scales, T::Form::SCALES - 1);
        for c in 0..C {
            let (dot, product) = (dots[tile][c], products[tile][c]);
            let product = scales.apply::<T::Form>(simd, dot, &x[tile][c], minus_offset, product);
            let scale = simd.splat_floats(x[tile][c].scale);
            acc[c] = simd.mul_add_floats(scale, product, acc[c]);
        }
    }
}

/// Evaluates an expression for each index below a constant of at most 4. Not a loop, so that what depends on the index is
/// constant.
macro_rules! unrolled {
    ($i:ident < $n:expr => $body:expr) => {{
        unrolled!($i = 0 < $n => $body);
        unrolled!($i = 1 < $n => $body);
        unrolled!($i = 2 < $n => $body);
        unrolled!($i = 3 < $n => $body);
    }};
    ($i:ident = $index:literal < $n:expr => $body:expr) => {
        if const { $index < $n } {
            let $i = $index;
            $body
        }
    };
}

/// Adds the products of one half of each tile of a group.
#[inline(always)]
fn add_half<W: Packed, T: Unpack, const PREFETCH: bool, const HALF: usize, const C: usize>(
    simd: W,
    quants: &[HalfTile<W>],
    x: &[[Quantized; C]],
    lines: LinesAhead<PREFETCH>,
    dots: &mut [[W::Words; C]; MAX_GROUP],
) {
    let n_tile = const { group_tiles::<W, T>() };
    unrolled!(tile < group_tiles::<W, T>() => unrolled!(c < C => {
        let (dot, quants, x) = (dots[tile][c], quants[tile], x[tile][c].half(HALF));
        let lines = match const { spreads_prefetches::<W, T>(C) } {
            true => lines.share((HALF * n_tile + tile) * C + c, 2 * n_tile * C),
            false => LinesBetween::NONE,
        };
        // With several activation rows word by word, also for quants of fewer bits: sums of several words need
        // registers that unpacking needs.
        dots[tile][c] = match (T::Form::BITS, C) {
            (4 | 5, 1) => simd.add_products_between::<5>(dot, quants, x, lines),
            (6, 1) => simd.add_products_between::<6>(dot, quants, x, lines),
            (8, _) => simd.add_products_between::<8>(dot, quants, x, lines),
            _ => simd.add_products_between::<7>(dot, quants, x, lines),
        };
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_share_all_lines() {
        for (n, n_step) in [(9, 16), (9, 4), (27, 32), (9, 2), (5, 2), (0, 8)] {
            let lines = LinesAhead::<true> {
                first: std::ptr::null(),
                n,
            };
            let mut next = lines.first;
            for step in 0..n_step {
                let share = lines.share(step, n_step);
                assert_eq!(share.first, next.cast());
                assert!(share.counts.iter().all(|&n| n <= LinesBetween::MAX_COUNT));
                next = next.wrapping_add(share.counts.iter().sum());
            }
            assert_eq!(next, lines.first.wrapping_add(n));
        }
    }

    #[test]
    fn passes_share_the_next_panel() {
        const DISTANCE: usize = 64;
        const NEXT: usize = 144;
        for n_pass in 1..=MAX_PASSES {
            let passes = (0..n_pass).map(|pass| Distances::of_pass(pass, n_pass, DISTANCE, NEXT));
            let passes: Vec<Distances> = passes.collect();
            for turn in 0..MAX_PASSES {
                let distances = passes.iter().map(|pass| pass.of_turn::<MAX_FUSED>(turn));
                let distances: Vec<usize> = distances.filter(|&distance| distance > 0).collect();
                assert_eq!(distances, [if n_pass == 1 { DISTANCE } else { NEXT }]);
            }
        }
    }
}
