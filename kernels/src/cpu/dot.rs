//! Products of quantized weights with quantized activations.
//!
//! For one output element, block after block of 32 columns:
//! `sum += x.scale * (scale * (codes . x.codes - OFFSET * sum of x.codes) - min * sum of x.codes)`,
//! where what is in integers is exact and every `f32` operation is rounded once, in that order
//! (a type with two scales a block adds its halves one after the other). Nothing in this depends
//! on other rows, on other activations, or on how many work on them.

use std::marker::PhantomData;
use std::ops::Range;

use super::activation::{Activations, BLOCK, Quantized};
use super::arena::Arena;
use super::coded::{Coded, ForType, Products, Tile, for_type};
use super::panel::{Blocks, InRows, sixteen_rows};
use super::parts;
use super::rows::ColumnsMut;
use super::simd::{Kernel, LANES, Simd};
use super::weight::Weight;
use super::words::{ROWS, array};

/// Tiles that lie in the first-level cache while activations pass by: whole blocks of every type.
const STRETCH: usize = 16;

/// Bytes of activations that stay in the second-level cache while weight rows pass by.
const PART_BYTES: usize = 1 << 20;

/// Some weight rows of a type times all activations.
pub(super) struct CodedProduct<'a> {
    pub(super) w: &'a Weight,
    pub(super) x: &'a Activations<'a>,
    /// First weight row, a multiple of sixteen.
    pub(super) first: usize,
    /// A column for each weight row, `(n, rows)`.
    pub(super) out: ColumnsMut<'a>,
}

impl Kernel for CodedProduct<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for_type(
            self.w.dtype(),
            OfType {
                simd,
                product: self,
            },
        );
    }
}

/// A product whose type is to be told.
struct OfType<'a, S> {
    simd: S,
    product: CodedProduct<'a>,
}

impl<S: Simd> ForType for OfType<'_, S> {
    type Result = ();

    #[inline(always)]
    fn run<T: Coded<BYTES, LEAD>, const BYTES: usize, const LEAD: usize>(self) {
        let Self { simd, product } = self;
        let CodedProduct {
            w,
            x,
            first,
            mut out,
        } = product;
        let n_tile = w.n_cols / LANES;
        let n_part = PART_BYTES / (n_tile * size_of::<Quantized>()).max(1);
        let arena = Arena::new();
        let sums = arena.filled([0.0; ROWS], n_part.next_multiple_of(BLOCK).min(x.len()));
        let mut tiles = [Tile::EMPTY; STRETCH];
        for (first_x, x) in x.parts(n_part) {
            let sums = &mut sums[..x.len() / n_tile];
            for rows in parts(out.n_cols(), ROWS) {
                sums.fill([0.0; ROWS]);
                let start = first + rows.start;
                match w.panels() {
                    Some(panels) => {
                        let panel = panels.panel(start);
                        let block = |i| panel.block::<BYTES, LEAD>(i);
                        let ahead = |blocks| panel.ahead::<BYTES, LEAD>(blocks);
                        add_rows::<S, T, BYTES, LEAD, _>(simd, block, ahead, x, &mut tiles, sums);
                    }
                    None => {
                        let bytes = sixteen_rows::<BYTES>(w, start);
                        let next = sixteen_rows::<BYTES>(w, start + ROWS);
                        let block = |i: usize| {
                            // Rows are short: the processor does not guess the next ones.
                            next.iter().for_each(|row| simd.prefetch(&row[i]));
                            InRows(array(|row| &bytes[row][i]))
                        };
                        let ahead = |_| &[][..];
                        add_rows::<S, T, BYTES, LEAD, _>(simd, block, ahead, x, &mut tiles, sums);
                    }
                }
                for (i, sums) in sums.iter().enumerate() {
                    let out = out.row(first_x + i, rows.clone());
                    match out.first_chunk_mut() {
                        Some(out) => *out = *sums,
                        None => out.copy_from_slice(&sums[..out.len()]),
                    }
                }
            }
        }
    }
}

/// Adds the products of sixteen rows with all of `x` to `sums`. `ahead` are the bytes that are needed
/// behind some blocks.
#[inline(always)]
fn add_rows<'a, S, T, const BYTES: usize, const LEAD: usize, B>(
    simd: S,
    block: impl Fn(usize) -> B,
    ahead: impl Fn(Range<usize>) -> &'a [u8],
    x: &[Quantized],
    tiles: &mut [Tile; STRETCH],
    sums: &mut [[f32; ROWS]],
) where
    S: Simd,
    T: Coded<BYTES, LEAD>,
    B: Blocks,
{
    let n_tile = x.len() / sums.len();
    for stretch in parts(n_tile, STRETCH) {
        let mut n = 0;
        while n < stretch.len() {
            let tiles = &mut tiles[n..n + T::TILES];
            T::unpack(simd, block((stretch.start + n) / T::TILES), tiles);
            n += T::TILES;
        }
        simd.run(AddProducts::<T::Form> {
            tiles: &tiles[..n],
            ahead: ahead(stretch.start / T::TILES..stretch.end / T::TILES),
            x,
            n_tile,
            first: stretch.start,
            minus_offset: -T::OFFSET as f32,
            sums: &mut *sums,
            form: PhantomData,
        });
    }
}

/// Products of some tiles, in one of the few forms that types have.
struct AddProducts<'a, F> {
    tiles: &'a [Tile],
    /// Asked for on the way, a little with each tile, so that memory and arithmetic go on together.
    ahead: &'a [u8],
    /// Blocks of activations, of whose columns those of the tiles begin at `first`.
    x: &'a [Quantized],
    n_tile: usize,
    first: usize,
    minus_offset: f32,
    /// What they are added to, for each activation row.
    sums: &'a mut [[f32; ROWS]],
    form: PhantomData<F>,
}

impl<F: Products> Kernel for AddProducts<'_, F> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n = self.sums.len();
        let mut done = 0;
        while done < n {
            let width = BLOCK.min(n - done);
            let x = &self.x[done * self.n_tile + self.first * width..][..self.tiles.len() * width];
            let part = Part {
                tiles: self.tiles,
                ahead: if done == 0 { self.ahead } else { &[] },
                x,
                width,
                minus_offset: self.minus_offset,
            };
            let sums = &mut self.sums[done..done + width];
            let mut at = 0;
            while at < width {
                at += match (width - at).min(S::SUMS) {
                    1 => part.add::<S, F, 1>(simd, at, sums),
                    2 => part.add::<S, F, 2>(simd, at, sums),
                    3 => part.add::<S, F, 3>(simd, at, sums),
                    4 => part.add::<S, F, 4>(simd, at, sums),
                    5 => part.add::<S, F, 5>(simd, at, sums),
                    6 => part.add::<S, F, 6>(simd, at, sums),
                    7 => part.add::<S, F, 7>(simd, at, sums),
                    _ => part.add::<S, F, 8>(simd, at, sums),
                };
            }
            done += width;
        }
    }
}

/// Some tiles and a block of activations.
struct Part<'a> {
    tiles: &'a [Tile],
    ahead: &'a [u8],
    /// `(tiles, width)`
    x: &'a [Quantized],
    width: usize,
    minus_offset: f32,
}

impl Part<'_> {
    /// For `C` activation rows from `at` on; returns `C`.
    #[inline(always)]
    fn add<S: Simd, F: Products, const C: usize>(
        &self,
        simd: S,
        at: usize,
        sums: &mut [[f32; ROWS]],
    ) -> usize {
        let sums = sums[at..].first_chunk_mut::<C>();
        let sums = sums.expect("that many sums are left");
        let minus_offset = simd.splat_rows(self.minus_offset);
        let mut acc: [S::Rows; C] = array(|c| simd.load_rows(&sums[c]));
        let ahead = if at == 0 { self.ahead } else { &[] };
        let n_ahead = ahead.len().div_ceil(self.tiles.len()).next_multiple_of(64);
        for (i, tile) in self.tiles.iter().enumerate() {
            let ahead = ahead.get(i * n_ahead..).unwrap_or_default();
            simd.prefetch(&ahead[..ahead.len().min(n_ahead)]);
            let x = self.x[i * self.width + at..].first_chunk::<C>();
            let x = x.expect("a code of each activation row");
            let mut products = [simd.splat_rows(0.0); C];
            for half in 0..F::SCALES {
                let mut dots = [simd.splat_word(0); C];
                let n_group = tile.codes.len() / F::SCALES;
                for group in half * n_group..(half + 1) * n_group {
                    let codes = simd.load_words(&tile.codes[group]);
                    for c in 0..C {
                        let x = x[c].codes[group];
                        dots[c] = if F::IS_WIDE {
                            simd.add_products::<true>(dots[c], codes, x)
                        } else {
                            simd.add_products::<false>(dots[c], codes, x)
                        };
                    }
                }
                let scale = simd.load_rows(&tile.scales[half]);
                let minus_min = simd.load_rows(&tile.minus_mins[half]);
                for c in 0..C {
                    let sum = match F::SCALES {
                        1 => x[c].sum,
                        _ => x[c].half_sums[half],
                    };
                    let sum = simd.splat_rows(sum);
                    let mut dot = simd.to_rows(dots[c]);
                    if F::HAS_OFFSET {
                        // Integers of less than 24 bits: exact.
                        dot = simd.mul_add_rows(sum, minus_offset, dot);
                    }
                    products[c] = match half {
                        0 => simd.mul_rows(scale, dot),
                        _ => simd.mul_add_rows(scale, dot, products[c]),
                    };
                    if F::HAS_MINS {
                        products[c] = simd.mul_add_rows(minus_min, sum, products[c]);
                    }
                }
            }
            for c in 0..C {
                acc[c] = simd.mul_add_rows(simd.splat_rows(x[c].scale), products[c], acc[c]);
            }
        }
        for c in 0..C {
            simd.store_rows(acc[c], &mut sums[c]);
        }
        C
    }
}
