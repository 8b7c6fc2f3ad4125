//! Products with weights that are unpacked in registers: for decoding and short drafts, where a weight is
//! used a few times only. Loads and arithmetic alternate closely, so that arithmetic does not interrupt the
//! stream from memory.

use std::marker::PhantomData;

use super::cpu_prefetch::{PassPrefetches, Shape, share};
use super::cpu_quants::{HalfScales, minus_offset};
use crate::cpu::activation::{GROUP, Quantized};
use crate::cpu::repack::Panel;
use crate::simd::packed::{MAX_FUSED, Packed, Prefetches, ROWS, Sums, each, each_of, unrolled};
use crate::simd::{Kernel, Simd};
use crate::types::common::unpack::{
    Blocks, Group, HalfTile, MAX_GROUP, MAX_TILES, TileForm, TileScales, Unpack,
};

/// Activation rows from which two panels are multiplied together, where registers suffice.
pub(super) const PAIR_ROWS: usize = 4;

/// Returns the number of panels that products with [`PAIR_ROWS`] activation rows multiply together.
pub(super) const fn panels_at_once<W: Packed, T: Unpack>() -> usize {
    // Of the types with two scales per tile, which take more registers, only that of 6 bits has been faster.
    let gains = T::Form::SCALES == 1 || T::Form::BITS == 6;
    match gains && !W::WORD_BY_WORD && W::FUSED >= PAIR_ROWS {
        true => W::PANELS,
        false => 1,
    }
}

/// Multiplies `P` panels by the activation rows `x`, groups of `(tiles, rows)`: one array of sums for each row. There are at
/// most [`Packed::FUSED`] of them. `scales` is scratch memory.
#[inline(always)]
pub(super) fn multiply<S: Simd, T: Unpack, const P: usize>(
    simd: S,
    panels: [Panel<'_>; P],
    prefetches: PassPrefetches,
    x: &[Quantized],
    n_tile: usize,
    scales: &mut [[TileScales; MAX_TILES]; P],
) -> [[[f32; ROWS]; MAX_FUSED]; P] {
    let mut sums = [[[0.0; ROWS]; MAX_FUSED]; P];
    let n = x.len() / n_tile;
    if n < PAIR_ROWS {
        for p in 0..P {
            let product = PanelProduct::<T, 1> {
                panels: [panels[p]],
                prefetches,
                x,
                scales: scales[p..].first_chunk_mut().expect("scales of the panel"),
                sums: sums[p..].first_chunk_mut().expect("sums of the panel"),
                of: PhantomData,
            };
            // Constant conditions, so that numbers of rows that cannot occur are not compiled.
            match n {
                1 if prefetches.is_none() => simd.run(OfRows::<T, false, 1, 1>(product)),
                1 => simd.run(OfRows::<T, true, 1, 1>(product)),
                2 if const { S::FUSED >= 2 } => simd.run(OfRows::<T, true, 2, 1>(product)),
                3 if const { S::FUSED >= 3 } => simd.run(OfRows::<T, true, 3, 1>(product)),
                n => unreachable!("{n} activation rows are multiplied by tiles"),
            }
        }
        return sums;
    }
    let product = PanelProduct::<T, P> {
        panels,
        prefetches,
        x,
        scales,
        sums: &mut sums,
        of: PhantomData,
    };
    // As above.
    match n {
        4 if const { fits_together::<S, T, P>(4) } => simd.run(OfRows::<T, true, 4, P>(product)),
        5 if const { fits_together::<S, T, P>(5) } => simd.run(OfRows::<T, true, 5, P>(product)),
        6 if const { fits_together::<S, T, P>(6) } => simd.run(OfRows::<T, true, 6, P>(product)),
        7 if const { fits_together::<S, T, P>(7) } => simd.run(OfRows::<T, true, 7, P>(product)),
        8 if const { fits_together::<S, T, P>(8) } => simd.run(OfRows::<T, true, 8, P>(product)),
        n => unreachable!("{n} activation rows of {P} panels are not multiplied together"),
    }
    sums
}

/// Returns whether `rows` activation rows, at least [`PAIR_ROWS`], are multiplied by `panels` panels together.
const fn fits_together<W: Packed, T: Unpack, const P: usize>(rows: usize) -> bool {
    rows <= W::FUSED && P == panels_at_once::<W, T>()
}

/// The product of `P` panels with a few activation rows.
struct PanelProduct<'a, T, const P: usize> {
    panels: [Panel<'a>; P],
    prefetches: PassPrefetches,
    x: &'a [Quantized],
    /// Scratch memory.
    scales: &'a mut [[TileScales; MAX_TILES]; P],
    sums: &'a mut [[[f32; ROWS]; MAX_FUSED]; P],
    of: PhantomData<T>,
}

/// A product with `N` activation rows.
struct OfRows<'a, T, const PREFETCH: bool, const N: usize, const P: usize>(PanelProduct<'a, T, P>);

impl<T: Unpack, const PREFETCH: bool, const N: usize, const P: usize> Kernel
    for OfRows<'_, T, PREFETCH, N, P>
{
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let PanelProduct {
            panels,
            prefetches,
            x,
            scales,
            sums,
            ..
        } = self.0;
        let mut acc = [[simd.splat_floats(0.0); N]; P];
        let n_block = x.len() / N / T::TILES;
        let x = Rows::<N>::new(x);
        for i in 0..n_block {
            let x = x.tiles(i * T::TILES, T::TILES);
            let blocks = each_of!(p < P => match const { turns::<S, T>(N, P) } {
                1 => panels[p].block::<T>(i),
                _ => panels[p].block::<T>(i).of_known_length(),
            });
            unrolled!(p of 2 < P => T::scales(simd, blocks[p], &mut scales[p][..T::TILES]));
            let n_tile = const { group_tiles::<S, T>() };
            let n_group = T::TILES / n_tile;
            for group in 0..n_group {
                let x = x.tiles(group * n_tile, n_tile);
                let number = i * n_group + group;
                let lines = &mut prefetches.of_group::<S, T, N, P>(blocks[0], group, number);
                let tiles = Tiles {
                    blocks,
                    group,
                    scales: each_of!(p < P => &scales[p][group * n_tile..][..n_tile]),
                };
                add_group::<_, T, _, PREFETCH, N, P>(simd, tiles, x, lines, &mut acc);
            }
        }
        for (sums, acc) in sums.iter_mut().zip(acc) {
            for (sums, acc) in sums.iter_mut().zip(acc) {
                simd.store_floats(acc, sums);
            }
        }
    }
}

/// A group of tiles of `P` panels.
#[derive(Clone, Copy)]
struct Tiles<'a, B, const P: usize> {
    blocks: [B; P],
    /// Number of the group in each block.
    group: usize,
    scales: [&'a [TileScales]; P],
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

/// Returns the number of tiles per group.
pub(super) const fn group_tiles<W: Packed, T: Unpack>() -> usize {
    <T::Group<W> as Group<HalfTile<W>>>::TILES
}

/// Returns the number of tiles of a group whose sums for `rows` activation rows of `panels` panels fit the register file.
const fn tiles_at_once<W: Packed, T: Unpack>(rows: usize, panels: usize) -> usize {
    let mut n = group_tiles::<W, T>();
    while n > 1 && !fits::<W, T>(rows * panels, n) {
        n /= 2;
    }
    n
}

/// Returns whether the sums of `tiles` tiles for `rows` rows fit beside quants, scales and activations.
const fn fits<W: Packed, T: Unpack>(rows: usize, tiles: usize) -> bool {
    match (W::WORD_BY_WORD, W::FUSED) {
        // Sums of floats stay in memory.
        (true, _) => rows * tiles <= W::SUMS,
        (false, MAX_FUSED) => rows * (tiles * T::Form::SCALES + 1) <= 20,
        _ => true,
    }
}

/// Returns the number of sums of products that go word by word; 0 if others do.
const fn sums_at_once<W: Packed, T: Unpack>(rows: usize) -> usize {
    match W::WORD_BY_WORD && rows <= W::FUSED {
        true => tiles_at_once::<W, T>(rows, 1) * rows,
        // The compiler also checks products that are never called.
        false => 0,
    }
}

/// Returns the number of turns in which the tiles of a group of `panels` panels are multiplied by `rows` activation rows.
const fn turns<W: Packed, T: Unpack>(rows: usize, panels: usize) -> usize {
    group_tiles::<W, T>() / tiles_at_once::<W, T>(rows, panels)
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
fn add_group<
    W: Packed,
    T: Unpack,
    B: Blocks,
    const PREFETCH: bool,
    const N: usize,
    const P: usize,
>(
    simd: W,
    tiles: Tiles<'_, B, P>,
    mut x: Rows<'_, N>,
    prefetches: &mut Prefetches,
    acc: &mut [[W::Floats; N]; P],
) {
    let minus_offset = match const { minus_offset::<T>(W::WIDE_OFFSET) } {
        0 => None,
        _ if const { start_of::<W, T>(0).is_some() } => None,
        minus_offset => Some(simd.splat_floats(minus_offset as f32)),
    };
    unrolled!(turn of 4 < turns::<W, T>(N, P) => {
        let n = const { tiles_at_once::<W, T>(N, P) };
        let first = turn * n;
        let mut products = [[[simd.splat_floats(0.0); N]; P]; MAX_GROUP];
        let mut sums = [[[Sums::new(simd, simd.splat_word(0)); N]; P]; MAX_GROUP];
        x = add_half::<W, T, _, PREFETCH, 0, N, P>(simd, tiles, first, x, prefetches, &mut sums);
        if T::Form::SCALES == 2 {
            for (i, tile) in (first..first + n).enumerate() {
                unrolled!(p of 2 < P => {
                    let scales = HalfScales::load::<T::Form>(simd, &tiles.scales[p][tile], 0);
                    unrolled!(row of 8 < N => {
                        let dot = simd.total(sums[i][p][row]);
                        let (x, product) = (x.block(tile, row), products[i][p][row]);
                        products[i][p][row] =
                            scales.apply::<T::Form>(simd, dot, x, minus_offset, product);
                    });
                });
            }
        }
        x = add_half::<W, T, _, PREFETCH, 1, N, P>(simd, tiles, first, x, prefetches, &mut sums);
        for (i, tile) in (first..first + n).enumerate() {
            unrolled!(p of 2 < P => {
                let scales = &tiles.scales[p][tile];
                let scales = HalfScales::load::<T::Form>(simd, scales, T::Form::SCALES - 1);
                unrolled!(row of 8 < N => {
                    let dot = simd.total(sums[i][p][row]);
                    let (x, product) = (x.block(tile, row), products[i][p][row]);
                    let product = scales.apply::<T::Form>(simd, dot, x, minus_offset, product);
                    let scale = simd.splat_floats(x.scale);
                    acc[p][row] = simd.mul_add_floats(scale, product, acc[p][row]);
                });
            });
        }
    });
}

/// Adds the products of one half of some tiles of a group, those of one turn, from tile `first` on. Returns `x`, for what
/// is computed afterwards.
#[inline(always)]
fn add_half<
    'x,
    W: Packed,
    T: Unpack,
    B: Blocks,
    const PREFETCH: bool,
    const HALF: usize,
    const N: usize,
    const P: usize,
>(
    simd: W,
    tiles: Tiles<'_, B, P>,
    first: usize,
    mut x: Rows<'x, N>,
    prefetches: &mut Prefetches,
    sums: &mut [[[Sums<W>; N]; P]; MAX_GROUP],
) -> Rows<'x, N> {
    // Not before the loops: the registers are needed for other sums.
    let is_first = HALF == 0 || T::Form::SCALES == 2;
    if const { W::WORD_BY_WORD } {
        add_pairs::<W, T, _, PREFETCH, HALF, N, P>(simd, tiles, first, x, prefetches, sums);
        return x;
    }
    // Unpacked again in each turn: the compiler leaves out the quants of the other tiles.
    let quants = each_of!(p < P => T::quants::<W, HALF>(simd, tiles.blocks[p], tiles.group));
    let n = const { tiles_at_once::<W, T>(N, P) };
    let n_step = const { 8 * group_tiles::<W, T>() * N };
    unrolled!(i of 4 < tiles_at_once::<W, T>(N, P) => unrolled!(row of 8 < N => {
        let quants = each_of!(p < P => quants[p].as_ref()[first + i]);
        let x_block = x.block(first + i, row);
        let wide = each_of!(p < P => match is_first {
            true => start::<W, T, HALF>(simd, x_block),
            false => sums[i][p][row].wide,
        });
        // Between the products: many prefetches at once would occupy the buffers that loads from the L2 cache need.
        let counts = match PREFETCH {
            true => {
                let n_line = const { Shape::of::<W, T>(P) }.n_line;
                let step = 4 * ((2 * first + HALF * n + i) * N + row);
                each!(4, word => share(n_line, step + word, n_step))
            }
            false => [0; 4],
        };
        let words = x_block.half(HALF);
        let mut wide = match T::Form::BITS {
            8 => simd.add_products_and_prefetch::<8, P>(wide, quants, words, counts, prefetches),
            _ => simd.add_products_and_prefetch::<7, P>(wide, quants, words, counts, prefetches),
        };
        if P > 1 {
            x.groups = simd.in_order(&mut wide, x.groups);
        }
        unrolled!(p of 2 < P => {
            sums[i][p][row].wide = wide[p];
        });
    }));
    x
}

/// [`add_half`], two words of every tile and activation row at a time.
#[inline(always)]
fn add_pairs<
    W: Packed,
    T: Unpack,
    B: Blocks,
    const PREFETCH: bool,
    const HALF: usize,
    const N: usize,
    const P: usize,
>(
    simd: W,
    tiles: Tiles<'_, B, P>,
    first: usize,
    x: Rows<'_, N>,
    prefetches: &mut Prefetches,
    sums: &mut [[[Sums<W>; N]; P]; MAX_GROUP],
) {
    let n = const { tiles_at_once::<W, T>(N, 1) };
    let n_step = const { 4 * group_tiles::<W, T>() * N };
    unrolled!(pair of 2 => {
        // Unpacked again for each pair: the compiler leaves out the other words, which would not fit the registers.
        let quants = T::quants::<W, HALF>(simd, tiles.blocks[0], tiles.group);
        let quants = &quants.as_ref()[first..first + n];
        // Not nested for tiles and rows, which would take the compiler long.
        unrolled!(at of 4 < sums_at_once::<W, T>(N) => {
            let (i, row) = (at / N, at % N);
            let x = x.block(first + i, row);
            let sum = match pair == 0 && (HALF == 0 || T::Form::SCALES == 2) {
                true => Sums::new(simd, start::<W, T, HALF>(simd, x)),
                false => sums[i][0][row],
            };
            let quants = each!(2, word => quants[i][2 * pair + word]);
            let x = each!(2, word => x.quants[4 * HALF + 2 * pair + word]);
            // Words that share a scale.
            let before = 2 * pair + if T::Form::SCALES == 1 { 4 * HALF } else { 0 };
            sums[i][0][row] = match T::Form::BITS {
                4 => simd.add_words::<4>(sum, quants, x, before),
                5 => simd.add_words::<5>(sum, quants, x, before),
                6 => simd.add_words::<6>(sum, quants, x, before),
                7 => simd.add_words::<7>(sum, quants, x, before),
                _ => simd.add_words::<8>(sum, quants, x, before),
            };
            if PREFETCH {
                let n_line = const { Shape::of::<W, T>(1) }.n_line;
                let step = 4 * first * N + (2 * HALF + pair) * n * N + at;
                prefetches.prefetch(simd, share(n_line, step, n_step));
            }
        });
    });
}
