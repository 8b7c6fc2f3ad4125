//! Products with unpacked tiles: for batches that use each tile many times.

use std::marker::PhantomData;

use super::cpu_matrix::{AddMatrixProducts, is_exact};
use super::cpu_quants::{HalfScales, minus_offset};
use crate::cpu::activation::Quantized;
use crate::cpu::parts;
use crate::cpu::repack::Panel;
use crate::simd::packed::{Packed, ROWS, TileEncoding, TileQuants, array, unrolled};
use crate::simd::{Kernel, Simd};
use crate::types::common::unpack::{
    Blocks, Group, HalfTile, MAX_TILES, Tile, TileForm, TileScales, Unpack,
};

/// Tiles that stay in the L1 cache while all activations of a group are multiplied: whole blocks of every
/// type, for as many rows as are multiplied together.
const STRETCH: usize = 16;

/// Scratch buffers of a product.
pub(super) struct Scratch<'a> {
    /// Unpacked tiles, panel after panel.
    tiles: [Tile; STRETCH],
    /// Scales of one block.
    scales: [TileScales; MAX_TILES],
    /// `(n, panels)`
    sums: &'a mut [[f32; ROWS]],
}

impl<'s> Scratch<'s> {
    /// `sums` has room for all panels that are multiplied together and all activation rows.
    #[inline(always)]
    pub(super) fn new(sums: &'s mut [[f32; ROWS]]) -> Scratch<'s> {
        Scratch {
            tiles: [Tile::ZERO; STRETCH],
            scales: [TileScales::ZERO; MAX_TILES],
            sums,
        }
    }

    /// Computes the products of `P` panels with all rows of `x`, `(n, P)`.
    #[inline(always)]
    pub(super) fn multiply<S: Simd, T: Unpack, const P: usize>(
        &mut self,
        simd: S,
        unit: Option<&S::Matrix>,
        panels: [Panel<'_>; P],
        mut x: Groups<'_>,
    ) -> &[[f32; ROWS]] {
        let n = x.len();
        let all_sums = &mut self.sums[..n * P];
        all_sums.fill([0.0; ROWS]);
        let (sums, _) = all_sums.as_chunks_mut::<P>();
        for stretch in parts(x.n_tile, STRETCH / P) {
            let blocks = stretch.start / T::TILES..stretch.end / T::TILES;
            let tiles = self.tiles.chunks_exact_mut(STRETCH / P);
            for (panel, tiles) in panels.into_iter().zip(tiles) {
                simd.run(UnpackBlocks::<T> {
                    panel,
                    first: blocks.start,
                    tiles: &mut tiles[..stretch.len()],
                    scales: &mut self.scales,
                    of: PhantomData,
                });
            }
            x.first = stretch.start;
            let tiles = array(|p| &self.tiles[p * (STRETCH / P)..][..stretch.len()]);
            let ahead = array(|p| panels[p].ahead::<T>(blocks.clone()));
            let done = match unit {
                Some(unit) if is_exact::<T::Form, P>(tiles) => {
                    simd.run(AddMatrixProducts::<T::Form, S::Matrix, P> {
                        unit,
                        tiles,
                        ahead,
                        x,
                        sums: &mut *sums,
                        form: PhantomData,
                    });
                    n - n % ROWS
                }
                _ => 0,
            };
            simd.run(AddProducts::<T::Form, P> {
                tiles,
                ahead,
                x,
                done,
                minus_offset: minus_offset::<T>(S::WIDE_OFFSET) as f32,
                sums: &mut *sums,
                form: PhantomData,
            });
        }
        all_sums
    }
}

/// Unpacks some blocks of a panel.
struct UnpackBlocks<'a, T> {
    panel: Panel<'a>,
    /// Number of the first block.
    first: usize,
    tiles: &'a mut [Tile],
    /// Scratch memory.
    scales: &'a mut [TileScales; MAX_TILES],
    of: PhantomData<T>,
}

impl<T: Unpack> Kernel for UnpackBlocks<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (i, tiles) in self.tiles.chunks_exact_mut(T::TILES).enumerate() {
            let block = self.panel.block::<T>(self.first + i);
            T::scales(simd, block, &mut self.scales[..T::TILES]);
            for (tile, scales) in tiles.iter_mut().zip(&*self.scales) {
                tile.scales = *scales;
            }
            unpack::<S::Part, T>(simd.part(0), block, tiles);
            if S::PARTS == 2 {
                unpack::<S::Part, T>(simd.part(1), block, tiles);
            }
        }
    }
}

/// Unpacks the quants of one block of each row.
#[inline(always)]
fn unpack<W: Packed, T: Unpack>(simd: W, block: impl Blocks, tiles: &mut [Tile]) {
    let groups = tiles.chunks_exact_mut(<T::Group<W> as Group<_>>::TILES);
    for (group, tiles) in groups.enumerate() {
        // Both before the first is stored: halves may share words.
        let first = T::quants::<W, 0>(simd, block, group);
        let second = T::quants::<W, 1>(simd, block, group);
        for (tile, (first, second)) in tiles
            .iter_mut()
            .zip(first.as_ref().iter().zip(second.as_ref()))
        {
            store_half::<W, T>(simd, *first, 0, &mut tile.quants);
            store_half::<W, T>(simd, *second, 1, &mut tile.quants);
        }
    }
}

/// Encodes the quants of half `half` of a tile.
#[inline(always)]
fn store_half<W: Packed, T: Unpack>(
    simd: W,
    quants: HalfTile<W>,
    half: usize,
    tile: &mut TileQuants,
) {
    let words = 4 * half..4 * (half + 1);
    for (i, &quants) in words.zip(&quants) {
        let quants = match W::TILES.is_signed(T::Form::BITS) {
            true => without_offset::<W, T>(simd, quants),
            false => quants,
        };
        simd.store_words(quants, &mut tile.words[i]);
    }
    if W::TILES == TileEncoding::Signed {
        let part = half % T::Form::SCALES;
        let start = match half - part {
            0 => simd.splat_word(0),
            _ => simd.load_words(&tile.starts[part]),
        };
        let start = simd.add(start, half_start::<W, T>(simd, quants));
        simd.store_words(start, &mut tile.starts[part]);
    }
}

/// Subtracts the offset of unsigned quants.
#[inline(always)]
fn without_offset<W: Packed, T: Unpack>(simd: W, quants: W::Words) -> W::Words {
    let sign = simd.splat_word(0x8080_8080);
    if T::Form::BITS == 8 {
        // The offset is 128.
        return simd.xor(quants, sign);
    }
    // The highest bit keeps bytes from borrowing from each other.
    let minus_offset = u32::from_le_bytes([T::OFFSET as u8; 4]).wrapping_neg();
    let sums = simd.add(simd.or(quants, sign), simd.splat_word(minus_offset));
    simd.xor(sums, sign)
}

/// Returns the share of half a tile in [`TileQuants::starts`].
#[inline(always)]
fn half_start<W: Packed, T: Unpack>(simd: W, quants: HalfTile<W>) -> W::Words {
    // -128 is not an activation, so the products with -64 are doubled.
    let offset = simd.splat_word((64 * 16 * T::OFFSET) as u32);
    let x = [u32::from_le_bytes([-64i8 as u8; 4]); 4];
    simd.shift_left::<1>(match T::Form::BITS {
        8 => simd.add_products::<8>(offset, quants, x),
        _ => simd.add_products::<7>(offset, quants, x),
    })
}

/// Adds the products of some tiles. Generic over the form, so that types share the compiled code.
struct AddProducts<'a, F, const P: usize> {
    /// The tiles of each panel.
    tiles: [&'a [Tile]; P],
    /// Bytes to prefetch, spread over the tiles so that memory access and arithmetic overlap.
    ahead: [&'a [u8]; P],
    x: Groups<'a>,
    /// Activation rows that are done.
    done: usize,
    minus_offset: f32,
    /// Sums per activation row, to be added to.
    sums: &'a mut [[[f32; ROWS]; P]],
    form: PhantomData<F>,
}

impl<F: TileForm, const P: usize> Kernel for AddProducts<'_, F, P> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n = self.sums.len();
        let n_sum = S::SUMS / P;
        // Each pass over the tiles prefetches its share of `ahead`.
        let n_ahead = self.ahead[0].len().div_ceil(n.div_ceil(n_sum));
        let mut ahead = self
            .ahead
            .map(|ahead| ahead.chunks(n_ahead.next_multiple_of(64).max(64)));
        let mut done = self.done;
        while done < n {
            let (x, width) = self.x.group(done, self.tiles[0].len());
            let sums = &mut self.sums[done..done + width];
            let mut at = 0;
            while at < width {
                let run = TileRun {
                    tiles: self.tiles,
                    ahead: array(|p| ahead[p].next().unwrap_or_default()),
                    x,
                    width,
                    minus_offset: self.minus_offset,
                };
                // Constant conditions, so that numbers of sums that cannot occur are not compiled.
                at += match (width - at).min(n_sum) {
                    1 => run.add::<S, F, 1>(simd, at, sums),
                    2 if const { S::SUMS / P >= 2 } => run.add::<S, F, 2>(simd, at, sums),
                    3 if const { S::SUMS / P >= 3 } => run.add::<S, F, 3>(simd, at, sums),
                    4 if const { S::SUMS / P >= 4 } => run.add::<S, F, 4>(simd, at, sums),
                    n => unreachable!("{n} sums do not fit the registers"),
                };
            }
            done += width;
        }
    }
}

/// Blocks of activation rows: groups of interleaved rows, the last of which may have fewer.
#[derive(Clone, Copy)]
pub(super) struct Groups<'a> {
    pub(super) x: &'a [Quantized],
    /// Rows per group.
    pub(super) rows: usize,
    /// Blocks per row.
    pub(super) n_tile: usize,
    /// Block of the first column of the tiles.
    pub(super) first: usize,
}

impl<'a> Groups<'a> {
    /// Rows.
    fn len(self) -> usize {
        self.x.len() / self.n_tile
    }

    /// Returns the blocks that belong to some tiles, `(n_tile, rows)`, and the number of rows, of the group that begins
    /// with row `row`.
    #[inline(always)]
    pub(super) fn group(self, row: usize, n_tile: usize) -> (&'a [Quantized], usize) {
        let rows = self.rows.min(self.len() - row);
        let x = &self.x[row * self.n_tile + self.first * rows..];
        (&x[..n_tile * rows], rows)
    }
}

/// Some tiles and a group of interleaved activation rows.
struct TileRun<'a, const P: usize> {
    tiles: [&'a [Tile]; P],
    ahead: [&'a [u8]; P],
    /// `(tiles, width)`
    x: &'a [Quantized],
    width: usize,
    minus_offset: f32,
}

impl<const P: usize> TileRun<'_, P> {
    /// Adds the products for `C` activation rows, starting at `at`; returns `C`.
    #[inline(always)]
    fn add<S: Simd, F: TileForm, const C: usize>(
        &self,
        simd: S,
        at: usize,
        sums: &mut [[[f32; ROWS]; P]],
    ) -> usize {
        let sums = sums[at..].first_chunk_mut::<C>();
        let sums = sums.expect("a sum for each activation row");
        let minus_offset = match F::HAS_OFFSET && !S::TILES.is_signed(F::BITS) {
            true => Some(simd.splat_floats(self.minus_offset)),
            false => None,
        };
        let mut acc: [[_; P]; C] = array(|c| array(|p| simd.load_floats(&sums[c][p])));
        let n_tile = self.tiles[0].len();
        let tiles: [&[Tile]; P] = array(|p| &self.tiles[p][..n_tile]);
        let n_ahead = self.ahead[0].len().div_ceil(n_tile).next_multiple_of(64);
        let mut ahead = self.ahead;
        for (i, x) in self.x.chunks_exact(self.width).enumerate().take(n_tile) {
            for ahead in &mut ahead {
                if !ahead.is_empty() {
                    let (next, later) = ahead.split_at(n_ahead.min(ahead.len()));
                    simd.prefetch(next);
                    *ahead = later;
                }
            }
            let tiles: [&Tile; P] = array(|p| &tiles[p][i]);
            let x = x[at..].first_chunk();
            let x = x.expect("a block of each activation row");
            let products = tile_products::<S, F, P, C>(simd, tiles, x, minus_offset);
            let acc = simd.in_memory(&mut acc);
            for c in 0..C {
                let scale = simd.splat_floats(x[c].scale);
                for p in 0..P {
                    acc[c][p] = simd.mul_add_floats(scale, products[c][p], acc[c][p]);
                }
            }
        }
        for c in 0..C {
            for p in 0..P {
                simd.store_floats(acc[c][p], &mut sums[c][p]);
            }
        }
        C
    }
}

/// Returns the products of one tile of each panel with one block of each activation row, without the scales of
/// the activations.
#[inline(always)]
fn tile_products<W: Packed, F: TileForm, const P: usize, const C: usize>(
    simd: W,
    tiles: [&Tile; P],
    x: &[Quantized; C],
    minus_offset: Option<W::Floats>,
) -> [[W::Floats; P]; C] {
    let mut products = [[simd.splat_floats(0.0); P]; C];
    unrolled!(half of 4 < F::SCALES => {
        let dots = integer_products::<W, F, P, C>(simd, tiles, x, half);
        // Not an array of scales made by a closure, which might not be inlined.
        for p in 0..P {
            let scales = HalfScales::load::<F>(simd, &tiles[p].scales, half);
            for c in 0..C {
                products[c][p] =
                    scales.apply::<F>(simd, dots[p][c], &x[c], minus_offset, products[c][p]);
            }
        }
    });
    products
}

/// Returns the sums of products of quants that share scale number `half`.
#[inline(always)]
fn integer_products<W: Packed, F: TileForm, const P: usize, const C: usize>(
    simd: W,
    tiles: [&Tile; P],
    x: &[Quantized; C],
    half: usize,
) -> [[W::Words; C]; P] {
    match F::SCALES {
        1 => words_products::<W, F, 8, P, C>(simd, tiles, x, 0),
        _ => words_products::<W, F, 4, P, C>(simd, tiles, x, half),
    }
}

/// Returns the sums of products of the `N` words of part `part` of each tile.
#[inline(always)]
fn words_products<W: Packed, F: TileForm, const N: usize, const P: usize, const C: usize>(
    simd: W,
    tiles: [&Tile; P],
    x: &[Quantized; C],
    part: usize,
) -> [[W::Words; C]; P] {
    let tiles = array(|p| &tiles[p].quants);
    let x: [&[u32; N]; C] = array(|c| &x[c].quants.as_chunks().0[part]);
    match F::BITS {
        4 => simd.products::<4, N, P, C>(tiles, part, x),
        5 => simd.products::<5, N, P, C>(tiles, part, x),
        6 => simd.products::<6, N, P, C>(tiles, part, x),
        7 => simd.products::<7, N, P, C>(tiles, part, x),
        _ => simd.products::<8, N, P, C>(tiles, part, x),
    }
}
