//! Products with weights that are unpacked in registers: for decoding and short drafts, where a weight is
//! used a few times only. Loads and arithmetic alternate closely, so that arithmetic does not interrupt the
//! stream from memory.

use std::marker::PhantomData;

use super::cpu_prefetch::{PassPrefetches, Shape, share};
use super::cpu_quants::{HalfScales, minus_offset};
use crate::cpu::activation::{GROUP, Quantized};
use crate::cpu::repack::Panel;
use crate::simd::packed::{MAX_FUSED, MAX_PARTS, Packed, Prefetches, ROWS};
use crate::simd::{Kernel, Simd};
use crate::types::common::unpack::{
    Blocks, Group, HalfTile, MAX_GROUP, MAX_TILES, TileForm, TileScales, Unpack,
};

/// Multiplies a panel by the activation rows `x`, groups of `(tiles, rows)`: one array of sums for each row. There are at
/// most [`Packed::FUSED`] of them. `scales` is scratch memory.
#[inline(always)]
pub(super) fn multiply<S: Simd, T: Unpack>(
    simd: S,
    panel: Panel<'_>,
    prefetches: PassPrefetches,
    x: &[Quantized],
    n_tile: usize,
    scales: &mut [TileScales; MAX_TILES],
) -> [[f32; ROWS]; MAX_FUSED] {
    let mut sums = [[0.0; ROWS]; MAX_FUSED];
    let product = PanelProduct::<T> {
        panel,
        prefetches,
        x,
        scales,
        sums: &mut sums,
        of: PhantomData,
    };
    // Constant conditions, so that numbers of rows that cannot occur are not compiled.
    match x.len() / n_tile {
        1 if prefetches.is_none() => simd.run(OfRows::<T, false, 1>(product)),
        1 => simd.run(OfRows::<T, true, 1>(product)),
        2 if const { S::FUSED >= 2 } => simd.run(OfRows::<T, true, 2>(product)),
        3 if const { S::FUSED >= 3 } => simd.run(OfRows::<T, true, 3>(product)),
        4 if const { S::FUSED >= 4 } => simd.run(OfRows::<T, true, 4>(product)),
        5 if const { S::FUSED >= 5 } => simd.run(OfRows::<T, true, 5>(product)),
        6 if const { S::FUSED >= 6 } => simd.run(OfRows::<T, true, 6>(product)),
        7 if const { S::FUSED >= 7 } => simd.run(OfRows::<T, true, 7>(product)),
        8 if const { S::FUSED >= 8 } => simd.run(OfRows::<T, true, 8>(product)),
        n => unreachable!("{n} activation rows are multiplied by tiles"),
    }
    sums
}

/// The product of a panel with a few activation rows.
struct PanelProduct<'a, T> {
    panel: Panel<'a>,
    prefetches: PassPrefetches,
    x: &'a [Quantized],
    /// Scratch memory.
    scales: &'a mut [TileScales; MAX_TILES],
    sums: &'a mut [[f32; ROWS]; MAX_FUSED],
    of: PhantomData<T>,
}

/// A product with `N` activation rows.
struct OfRows<'a, T, const PREFETCH: bool, const N: usize>(PanelProduct<'a, T>);

impl<T: Unpack, const PREFETCH: bool, const N: usize> Kernel for OfRows<'_, T, PREFETCH, N> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let PanelProduct {
            panel,
            prefetches,
            x,
            scales,
            sums,
            ..
        } = self.0;
        const { assert!(S::SPREADS_PREFETCHES == <S::Part as Packed>::SPREADS_PREFETCHES) };
        let mut acc = [simd.splat_floats(0.0); N];
        let mut part_acc = [[simd.part(0).splat_floats(0.0); N]; MAX_PARTS];
        let n_block = x.len() / N / T::TILES;
        let x = Rows::<N>::new(x);
        for i in 0..n_block {
            let x = x.tiles(i * T::TILES, T::TILES);
            let block = match const { turns::<S, T>(N) } {
                1 => panel.block::<T>(i),
                _ => panel.block::<T>(i).of_known_length(),
            };
            let loads_prefetch = PREFETCH && !S::SPREADS_PREFETCHES;
            let scales_block = match loads_prefetch {
                true => block.prefetching(prefetches.distance::<N>(i)),
                false => block,
            };
            T::scales(simd, scales_block, &mut scales[..T::TILES]);
            let n_tile = const { group_tiles::<S, T>() };
            let n_group = T::TILES / n_tile;
            for group in 0..n_group {
                let x = x.tiles(group * n_tile, n_tile);
                let scales = &scales[group * n_tile..][..n_tile];
                let number = i * n_group + group;
                let lines = &mut prefetches.of_group::<S, T, N>(block, group, number);
                let block = match loads_prefetch {
                    true => block.prefetching(prefetches.distance::<N>(number)),
                    false => block,
                };
                // Not a loop, so that the position of each part is a constant.
                if const { by_parts::<S, T>() } {
                    let [acc, second_acc] = &mut part_acc;
                    let (part, second_part) = (simd.part(0), simd.part(1));
                    add_group::<_, T, PREFETCH, N>(part, block, group, x, scales, lines, acc);
                    let acc = second_acc;
                    add_group::<_, T, PREFETCH, N>(
                        second_part,
                        block,
                        group,
                        x,
                        scales,
                        lines,
                        acc,
                    );
                } else {
                    add_group::<_, T, PREFETCH, N>(simd, block, group, x, scales, lines, &mut acc);
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

/// Blocks of `N` activation rows: those of a group of interleaved rows, and those of the second group if there are more
/// than [`GROUP`] rows.
#[derive(Clone, Copy)]
struct Rows<'a, const N: usize> {
    groups: [&'a [Quantized]; 2],
}

impl<'a, const N: usize> Rows<'a, N> {
    /// Rows of each group.
    const WIDTHS: [usize; 2] = match N {
        ..=GROUP => [N, 0],
        _ => [GROUP, N - GROUP],
    };

    /// `x` has the blocks of the first group, `(tiles, rows)`, then those of the second.
    #[inline(always)]
    fn new(x: &'a [Quantized]) -> Self {
        let (first, second) = x.split_at(x.len() / N * Self::WIDTHS[0]);
        Rows {
            groups: [first, second],
        }
    }

    /// Returns the blocks of some tiles.
    #[inline(always)]
    fn tiles(self, first: usize, n: usize) -> Self {
        let [width, second_width] = Self::WIDTHS;
        let [group, second_group] = self.groups;
        let second_group = match second_width {
            0 => second_group,
            _ => &second_group[first * second_width..][..n * second_width],
        };
        Rows {
            groups: [&group[first * width..][..n * width], second_group],
        }
    }

    /// Returns the block of a tile and a row.
    #[inline(always)]
    fn block(self, tile: usize, row: usize) -> &'a Quantized {
        let (group, row) = (row / GROUP, row % GROUP);
        &self.groups[group][tile * Self::WIDTHS[group] + row]
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
fn store_part<W: Packed, const N: usize>(
    simd: W,
    acc: &[W::Floats; N],
    sums: &mut [[f32; ROWS]; MAX_FUSED],
) {
    for row in 0..N {
        simd.store_floats(acc[row], &mut sums[row]);
    }
}

/// Returns the number of tiles per group.
pub(super) const fn group_tiles<W: Packed, T: Unpack>() -> usize {
    <T::Group<W> as Group<HalfTile<W>>>::TILES
}

/// Evaluates an expression for each index below a constant of at most 4. Not a loop, so that what depends on the index is
/// constant.
macro_rules! unrolled {
    ($i:ident < $n:expr => $body:expr) => {{
        const { assert!($n <= 4) };
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

/// Returns the number of tiles of a group whose sums for `rows` activation rows fit the register file.
const fn tiles_at_once<W: Packed, T: Unpack>(rows: usize) -> usize {
    // Sums for which there are registers beside quants, scales and activations.
    const MAX_SUMS: usize = 20;
    let mut n = group_tiles::<W, T>();
    while W::FUSED == MAX_FUSED && n > 1 && rows * (n * T::Form::SCALES + 1) > MAX_SUMS {
        n /= 2;
    }
    n
}

/// Returns the number of turns in which the tiles of a group are multiplied by `rows` activation rows.
const fn turns<W: Packed, T: Unpack>(rows: usize) -> usize {
    group_tiles::<W, T>() / tiles_at_once::<W, T>(rows)
}

/// Returns the number of the stored product, of a sum and a negated offset, with which the products of half `half` begin.
const fn start_of<W: Packed, T: Unpack>(half: usize) -> Option<usize> {
    Quantized::start_of(minus_offset::<T>(W::WIDE_OFFSET), T::Form::SCALES, half)
}

/// Returns the value with which the sum of the products of half `HALF` begins.
#[inline(always)]
fn start<W: Packed, T: Unpack, const HALF: usize>(simd: W, x: &Quantized) -> W::Words {
    match const { start_of::<W, T>(HALF) } {
        Some(number) => simd.splat_word(x.start(number) as u32),
        None => simd.splat_word(0),
    }
}

/// Adds the products of one group of tiles with `N` activation rows.
#[inline(always)]
fn add_group<W: Packed, T: Unpack, const PREFETCH: bool, const N: usize>(
    simd: W,
    block: impl Blocks,
    group: usize,
    x: Rows<'_, N>,
    scales: &[TileScales],
    prefetches: &mut Prefetches,
    acc: &mut [W::Floats; N],
) {
    let minus_offset = match const { minus_offset::<T>(W::WIDE_OFFSET) } {
        0 => None,
        _ if const { start_of::<W, T>(0).is_some() } => None,
        minus_offset => Some(simd.splat_floats(minus_offset as f32)),
    };
    unrolled!(turn < turns::<W, T>(N) => {
        let n = const { tiles_at_once::<W, T>(N) };
        let tiles = turn * n..(turn + 1) * n;
        let mut products = [[simd.splat_floats(0.0); N]; MAX_GROUP];
        let mut dots = [[simd.splat_word(0); N]; MAX_GROUP];
        // Unpacked again in each turn: the compiler leaves out the quants of the other tiles.
        let first = T::quants::<W, 0>(simd, block, group);
        let quants = &first.as_ref()[tiles.clone()];
        add_half::<W, T, PREFETCH, 0, N>(simd, quants, tiles.start, x, prefetches, &mut dots);
        if T::Form::SCALES == 2 {
            for (i, tile) in tiles.clone().enumerate() {
                let scales = HalfScales::load::<T::Form>(simd, &scales[tile], 0);
                for row in 0..N {
                    let (dot, product) = (dots[i][row], products[i][row]);
                    let x = x.block(tile, row);
                    products[i][row] =
                        scales.apply::<T::Form>(simd, dot, x, minus_offset, product);
                }
            }
        }
        let second = T::quants::<W, 1>(simd, block, group);
        let quants = &second.as_ref()[tiles.clone()];
        add_half::<W, T, PREFETCH, 1, N>(simd, quants, tiles.start, x, prefetches, &mut dots);
        for (i, tile) in tiles.enumerate() {
            let scales = HalfScales::load::<T::Form>(simd, &scales[tile], T::Form::SCALES - 1);
            for row in 0..N {
                let (dot, product) = (dots[i][row], products[i][row]);
                let x = x.block(tile, row);
                let product = scales.apply::<T::Form>(simd, dot, x, minus_offset, product);
                let scale = simd.splat_floats(x.scale);
                acc[row] = simd.mul_add_floats(scale, product, acc[row]);
            }
        }
    });
}

/// Adds the products of one half of some tiles of a group, from tile `first` on.
#[inline(always)]
fn add_half<W: Packed, T: Unpack, const PREFETCH: bool, const HALF: usize, const N: usize>(
    simd: W,
    quants: &[HalfTile<W>],
    first: usize,
    x: Rows<'_, N>,
    prefetches: &mut Prefetches,
    dots: &mut [[W::Words; N]; MAX_GROUP],
) {
    let n = const { tiles_at_once::<W, T>(N) };
    let n_step = const { 2 * group_tiles::<W, T>() * N };
    unrolled!(i < tiles_at_once::<W, T>(N) => unrolled!(group < N.div_ceil(GROUP) => unrolled!(c < GROUP => {
        let row = group * GROUP + c;
        if row < N {
            let (x, quants) = (x.block(first + i, row), quants[i]);
            // Not before the loop: the registers are needed for other sums.
            let dot = match const { HALF == 0 || T::Form::SCALES == 2 } {
                true => start::<W, T, HALF>(simd, x),
                false => dots[i][row],
            };
            let x = x.half(HALF);
            // Between the products: many prefetches at once would occupy the buffers that loads from the L2 cache need.
            let counts = match PREFETCH && W::SPREADS_PREFETCHES {
                true => {
                    let n_line = const { Shape::of::<W, T>() }.n_line;
                    share(n_line, (2 * first + HALF * n + i) * N + row, n_step)
                }
                false => [0; 4],
            };
            // With several activation rows word by word, also for quants of fewer bits: sums of several words need
            // registers that unpacking needs.
            dots[i][row] = match (T::Form::BITS, N) {
                (4 | 5, 1) => simd.add_products_and_prefetch::<5>(dot, quants, x, counts, prefetches),
                (6, 1) => simd.add_products_and_prefetch::<6>(dot, quants, x, counts, prefetches),
                (8, _) => simd.add_products_and_prefetch::<8>(dot, quants, x, counts, prefetches),
                _ => simd.add_products_and_prefetch::<7>(dot, quants, x, counts, prefetches),
            };
        }
    })));
}
