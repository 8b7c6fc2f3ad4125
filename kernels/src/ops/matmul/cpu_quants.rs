//! Products of quantized weights with quantized activations.
//!
//! One output element is accumulated over blocks of 32 columns: `sum += x.scale * (scale * (quants .
//! x.quants - OFFSET * sum of x.quants) - min * sum of x.quants)`. The integer parts are exact, and every
//! `f32` operation is rounded once, in this order (a type with two scales per block adds its halves one
//! after the other). The result does not depend on other rows, on other activations, or on the number of
//! threads.

use std::marker::PhantomData;
use std::ops::Range;

use crate::cpu::activation::{Activations, BLOCK, Quantized};
use crate::cpu::arena::Arena;
use crate::cpu::columns::ColumnsMut;
use crate::cpu::repack::{Panels, sixteen_rows};
use crate::cpu::weight::Weight;
use crate::cpu::{Cpu, parts};
use crate::simd::dispatch::Implementation;
use crate::simd::packed::{ROWS, array};
use crate::simd::{Kernel, LANES, Simd};
use crate::types::common::unpack::{Blocks, InRows, Tile, TileForm, Unpack};

/// Tiles that stay in the L1 cache while all activations of a group are multiplied: whole blocks of every
/// type, for as many rows as are multiplied together.
const STRETCH: usize = 16;

/// Bytes of activations that stay in the L2 cache while weight rows pass by.
const ACTIVATION_BYTES: usize = 1 << 20;

/// The functions of a quantized type that products need.
pub(crate) struct QuantKernels {
    /// Multiplies activations by some rows of a weight.
    pub(crate) multiply: fn(Implementation, QuantProduct<'_>),
    /// Interleaves the rows of a weight.
    pub(crate) repack: fn(&Cpu, &Weight) -> Panels,
}

impl QuantKernels {
    /// The functions of blocks `T`.
    pub(crate) const fn of<T: Unpack>() -> QuantKernels {
        QuantKernels {
            multiply: |on, product| {
                on.run(OfType::<T> {
                    product,
                    of: PhantomData,
                });
            },
            repack: Panels::new::<T>,
        }
    }
}

/// The product of a range of weight rows with all activations.
pub(crate) struct QuantProduct<'a> {
    pub(crate) w: &'a Weight,
    pub(crate) x: &'a Activations<'a>,
    /// First weight row, a multiple of sixteen.
    pub(crate) first: usize,
    /// One column per weight row, `(n, rows)`.
    pub(crate) out: ColumnsMut<'a>,
}

/// A product with a weight of blocks `T`.
struct OfType<'a, T> {
    product: QuantProduct<'a>,
    of: PhantomData<T>,
}

impl<T: Unpack> Kernel for OfType<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let QuantProduct {
            w,
            x,
            first,
            mut out,
        } = self.product;
        let n_tile = w.n_cols / LANES;
        let n_group = ACTIVATION_BYTES / (n_tile * size_of::<Quantized>()).max(1);
        let arena = Arena::new();
        let n_sum = n_group.next_multiple_of(BLOCK).min(x.len());
        let mut scratch = Scratch {
            tiles: [Tile::EMPTY; STRETCH],
            sums: arena.filled([0.0; ROWS], S::PANELS * n_sum),
        };
        for (first_x, x) in x.parts(n_group) {
            let n = x.len() / n_tile;
            let mut done = 0;
            while done < out.n_cols() {
                let start = first + done;
                let sums = match w.panels() {
                    Some(panels) if S::PANELS == 2 && done + ROWS < out.n_cols() => {
                        let next = start + 2 * ROWS;
                        let pair: [_; 2] =
                            array(|p| panels.panel(start + p * ROWS, next + p * ROWS));
                        let block = |p: usize, i| pair[p].block::<T>(i);
                        let ahead = |p: usize, blocks| pair[p].ahead::<T>(blocks);
                        scratch.multiply::<S, T, 2, _>(simd, block, ahead, x, n)
                    }
                    Some(panels) => {
                        let panel = panels.panel(start, start + ROWS);
                        let block = |_, i| panel.block::<T>(i);
                        let ahead = |_, blocks| panel.ahead::<T>(blocks);
                        scratch.multiply::<S, T, 1, _>(simd, block, ahead, x, n)
                    }
                    None => {
                        let bytes = sixteen_rows::<T>(w, start);
                        let next = sixteen_rows::<T>(w, start + ROWS);
                        let block = |_, i: usize| {
                            // Rows are too short for the hardware prefetcher to predict the next ones.
                            next.iter().for_each(|row| simd.prefetch(row[i].as_bytes()));
                            InRows(array(|row| &bytes[row][i]))
                        };
                        let ahead = |_, _| &[][..];
                        scratch.multiply::<S, T, 1, _>(simd, block, ahead, x, n)
                    }
                };
                let n_panel = sums.len() / n;
                for (i, sums) in sums.iter().enumerate() {
                    let from = done + i % n_panel * ROWS;
                    let rows = from..out.n_cols().min(from + ROWS);
                    let out = out.row(first_x + i / n_panel, rows);
                    match out.first_chunk_mut() {
                        Some(out) => *out = *sums,
                        None => out.copy_from_slice(&sums[..out.len()]),
                    }
                }
                done += n_panel * ROWS;
            }
        }
    }
}

/// Scratch buffers of a product.
struct Scratch<'a> {
    /// Unpacked tiles, panel after panel.
    tiles: [Tile; STRETCH],
    /// `(n, panels)`
    sums: &'a mut [[f32; ROWS]],
}

impl Scratch<'_> {
    /// Computes the products of `P` panels of sixteen rows with `n` activation rows, `(n, P)`.
    /// `ahead(p, blocks)` returns the bytes of panel `p` to prefetch while `blocks` are multiplied.
    #[inline(always)]
    fn multiply<'a, S, T, const P: usize, B>(
        &mut self,
        simd: S,
        block: impl Fn(usize, usize) -> B,
        ahead: impl Fn(usize, Range<usize>) -> &'a [u8],
        x: &[Quantized],
        n: usize,
    ) -> &[[f32; ROWS]]
    where
        S: Simd,
        T: Unpack,
        B: Blocks,
    {
        let all_sums = &mut self.sums[..n * P];
        all_sums.fill([0.0; ROWS]);
        let (sums, _) = all_sums.as_chunks_mut::<P>();
        let n_tile = x.len() / n;
        for stretch in parts(n_tile, STRETCH / P) {
            let blocks = stretch.start / T::TILES..stretch.end / T::TILES;
            for (p, tiles) in self.tiles.chunks_exact_mut(STRETCH / P).enumerate() {
                for (i, tiles) in blocks.clone().zip(tiles.chunks_exact_mut(T::TILES)) {
                    T::unpack(simd, block(p, i), tiles);
                }
            }
            simd.run(AddProducts::<T::Form, P> {
                tiles: array(|p| &self.tiles[p * (STRETCH / P)..][..stretch.len()]),
                ahead: array(|p| ahead(p, blocks.clone())),
                x,
                n_tile,
                first: stretch.start,
                minus_offset: -T::OFFSET as f32,
                sums: &mut *sums,
                form: PhantomData,
            });
        }
        all_sums
    }
}

/// Adds the products of some tiles. Generic over the form, so that types share the compiled code.
struct AddProducts<'a, F, const P: usize> {
    /// The tiles of each panel.
    tiles: [&'a [Tile]; P],
    /// Bytes to prefetch, spread over the tiles so that memory access and arithmetic overlap.
    ahead: [&'a [u8]; P],
    /// Blocks of activations; the columns of the tiles start at block `first` of each row.
    x: &'a [Quantized],
    n_tile: usize,
    first: usize,
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
        let mut done = 0;
        while done < n {
            let width = BLOCK.min(n - done);
            let n_quantized = self.tiles[0].len() * width;
            let x = &self.x[done * self.n_tile + self.first * width..][..n_quantized];
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
                at += match (width - at).min(n_sum) {
                    1 => run.add::<S, F, 1>(simd, at, sums),
                    2 => run.add::<S, F, 2>(simd, at, sums),
                    3 => run.add::<S, F, 3>(simd, at, sums),
                    4 => run.add::<S, F, 4>(simd, at, sums),
                    5 => run.add::<S, F, 5>(simd, at, sums),
                    6 => run.add::<S, F, 6>(simd, at, sums),
                    7 => run.add::<S, F, 7>(simd, at, sums),
                    _ => run.add::<S, F, 8>(simd, at, sums),
                };
            }
            done += width;
        }
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
        let minus_offset = simd.splat_floats(self.minus_offset);
        let mut acc: [[S::Floats; P]; C] = array(|c| array(|p| simd.load_floats(&sums[c][p])));
        let n_tile = self.tiles[0].len();
        let n_ahead = self.ahead[0].len().div_ceil(n_tile).next_multiple_of(64);
        for i in 0..n_tile {
            for ahead in self.ahead {
                let ahead = ahead.get(i * n_ahead..).unwrap_or_default();
                simd.prefetch(&ahead[..ahead.len().min(n_ahead)]);
            }
            let tiles = array(|p| &self.tiles[p][i]);
            let x = self.x[i * self.width + at..].first_chunk();
            let x = x.expect("a block of each activation row");
            let products = tile_products::<S, F, P, C>(simd, tiles, x, minus_offset);
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
fn tile_products<S: Simd, F: TileForm, const P: usize, const C: usize>(
    simd: S,
    tiles: [&Tile; P],
    x: &[Quantized; C],
    minus_offset: S::Floats,
) -> [[S::Floats; P]; C] {
    let mut products = [[simd.splat_floats(0.0); P]; C];
    for half in 0..F::SCALES {
        let dots = integer_products::<S, F, P, C>(simd, tiles, x, half);
        let scales: [_; P] = array(|p| simd.load_floats(&tiles[p].scales[half]));
        let minus_mins: [_; P] = array(|p| simd.load_floats(&tiles[p].minus_mins[half]));
        for c in 0..C {
            let sum = match F::SCALES {
                1 => x[c].sum,
                _ => x[c].half_sums[half],
            };
            let sum = simd.splat_floats(sum);
            for p in 0..P {
                let mut dot = simd.to_floats(dots[c][p]);
                if F::HAS_OFFSET {
                    // Integers of less than 24 bits, so the result is exact.
                    dot = simd.mul_add_floats(sum, minus_offset, dot);
                }
                products[c][p] = match half {
                    0 => simd.mul_floats(scales[p], dot),
                    _ => simd.mul_add_floats(scales[p], dot, products[c][p]),
                };
                if F::HAS_MINS {
                    products[c][p] = simd.mul_add_floats(minus_mins[p], sum, products[c][p]);
                }
            }
        }
    }
    products
}

/// Returns the sums of products of quants that share scale number `half`.
#[inline(always)]
fn integer_products<S: Simd, F: TileForm, const P: usize, const C: usize>(
    simd: S,
    tiles: [&Tile; P],
    x: &[Quantized; C],
    half: usize,
) -> [[S::Words; P]; C] {
    let mut dots = [[simd.splat_word(0); P]; C];
    let n_word = LANES / 4 / F::SCALES;
    for group in half * n_word..(half + 1) * n_word {
        let quants: [_; P] = array(|p| simd.load_words(&tiles[p].quants[group]));
        for c in 0..C {
            let x = x[c].quants[group];
            for p in 0..P {
                dots[c][p] = if F::IS_WIDE {
                    simd.add_products::<true>(dots[c][p], quants[p], x)
                } else {
                    simd.add_products::<false>(dots[c][p], quants[p], x)
                };
            }
        }
    }
    dots
}
