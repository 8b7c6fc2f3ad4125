//! Products of quantized weights with quantized activations.
//!
//! For one output element, block after block of 32 columns:
//! `sum += x.scale * (scale * (codes . x.codes - OFFSET * sum of x.codes) - min * sum of x.codes)`,
//! where what is in integers is exact and every `f32` operation is rounded once, in that order
//! (a type with two scales a block adds its halves one after the other). Nothing in this depends
//! on other rows, on other activations, or on how many work on them.

use std::marker::PhantomData;

use super::activation::Quantized;
use super::coded::{Coded, Form, Tile};
use super::parts;
use super::simd::{Kernel, LANES, Simd};
use super::weight::Weight;
use super::words::{ROWS, array};

/// Tiles that lie in the first-level cache while activations pass by: whole blocks of every type.
const STRETCH: usize = 16;

/// Bytes of activations that stay in the second-level cache while weight rows pass by.
const BLOCK_BYTES: usize = 1 << 20;

/// Some weight rows of a type times all activations.
pub(super) struct CodedProduct<'a> {
    pub(super) w: &'a Weight,
    /// `(n, n_cols / 32)`
    pub(super) x: &'a [Quantized],
    /// First weight row.
    pub(super) first: usize,
    /// Per activation row, one element per weight row.
    pub(super) out: Vec<&'a mut [f32]>,
}

impl Kernel for CodedProduct<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        use super::coded::*;
        use schemas::gguf::DType;
        match self.w.dtype() {
            DType::Q8_0 => self.product::<S, Q8_0, 34>(simd),
            DType::Q4_0 => self.product::<S, Q4_0, 18>(simd),
            DType::Q4_1 => self.product::<S, Q4_1, 20>(simd),
            DType::Q5_0 => self.product::<S, Q5_0, 22>(simd),
            DType::Q5_1 => self.product::<S, Q5_1, 24>(simd),
            DType::Q2_K => self.product::<S, Q2_K, 84>(simd),
            DType::Q3_K => self.product::<S, Q3_K, 110>(simd),
            DType::Q4_K => self.product::<S, Q4_K, 144>(simd),
            DType::Q5_K => self.product::<S, Q5_K, 176>(simd),
            DType::Q6_K => self.product::<S, Q6_K, 210>(simd),
            DType::IQ4_NL => self.product::<S, IQ4_NL, 18>(simd),
            DType::IQ4_XS => self.product::<S, IQ4_XS, 136>(simd),
            DType::MXFP4 => self.product::<S, MXFP4, 17>(simd),
            other => unreachable!("{other} has no codes"),
        }
    }
}

impl CodedProduct<'_> {
    #[inline(always)]
    fn product<S: Simd, T: Coded<BYTES>, const BYTES: usize>(self, simd: S)
    where
        for<'a> AddProducts<'a, T::Form>: Kernel,
    {
        let Self {
            w,
            x,
            first,
            mut out,
        } = self;
        let n_tile = w.n_cols / LANES;
        let block_len = (BLOCK_BYTES / size_of::<Quantized>()).div_ceil(n_tile);
        let n_rows = out[0].len();
        let mut tiles = [Tile::EMPTY; STRETCH];
        let mut sums = vec![[0.0; ROWS]; out.len().min(block_len)];
        let blocks = x.chunks(block_len * n_tile).zip(out.chunks_mut(block_len));
        for (x, out) in blocks {
            for rows in parts(n_rows, ROWS) {
                let sums = &mut sums[..out.len()];
                sums.fill([0.0; ROWS]);
                let bytes = sixteen_rows::<BYTES>(w, first + rows.start);
                let next = sixteen_rows::<BYTES>(w, first + rows.end);
                for stretch in parts(n_tile, STRETCH) {
                    let blocks = stretch.start / T::TILES..stretch.end / T::TILES;
                    for (block, tiles) in blocks.clone().zip(tiles.chunks_exact_mut(T::TILES)) {
                        // Rows are short: the processor does not guess the next ones.
                        next.iter().for_each(|row| simd.prefetch(&row[block]));
                        T::unpack(simd, array(|row| &bytes[row][block]), tiles);
                    }
                    simd.run(AddProducts::<T::Form> {
                        tiles: &tiles[..stretch.len()],
                        x,
                        n_tile,
                        first: stretch.start,
                        offset: T::OFFSET,
                        sums,
                        form: PhantomData,
                    });
                }
                for (out, sums) in out.iter_mut().zip(sums) {
                    let out = &mut out[rows.clone()];
                    out.copy_from_slice(&sums[..out.len()]);
                }
            }
        }
    }
}

/// The blocks of sixteen rows from `start` on; beyond the last row of the weight that stands in.
#[inline(always)]
fn sixteen_rows<const BYTES: usize>(w: &Weight, start: usize) -> [&[[u8; BYTES]]; ROWS] {
    let last = w.n_rows - 1;
    array(|row| w.row((start + row).min(last)).as_chunks().0)
}

/// Products of some tiles, in one of the few forms that types have.
struct AddProducts<'a, F> {
    tiles: &'a [Tile],
    /// `(n, n_tile)`, of which the columns of the tiles begin at `first`.
    x: &'a [Quantized],
    n_tile: usize,
    first: usize,
    offset: i32,
    /// `(n, ROWS)`: what they are added to.
    sums: &'a mut [[f32; ROWS]],
    form: PhantomData<F>,
}

impl<const SCALES: usize, const HAS_MINS: bool, const IS_WIDE: bool> Kernel
    for AddProducts<'_, Form<SCALES, HAS_MINS, IS_WIDE>>
{
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let mut done = 0;
        while done < self.sums.len() {
            done += match (self.sums.len() - done).min(S::SUMS) {
                1 => self.add_columns::<S, 1>(simd, done),
                2..4 => self.add_columns::<S, 2>(simd, done),
                4..8 => self.add_columns::<S, 4>(simd, done),
                _ => self.add_columns::<S, 8>(simd, done),
            };
        }
    }
}

impl<const SCALES: usize, const HAS_MINS: bool, const IS_WIDE: bool>
    AddProducts<'_, Form<SCALES, HAS_MINS, IS_WIDE>>
{
    /// For `C` activation rows from `first` on; returns `C`.
    #[inline(always)]
    fn add_columns<S: Simd, const C: usize>(&mut self, simd: S, first: usize) -> usize {
        let sums = self.sums[first..].first_chunk_mut::<C>();
        let sums = sums.expect("that many sums are left");
        let x: [&[Quantized]; C] =
            array(|c| &self.x[(first + c) * self.n_tile + self.first..][..self.tiles.len()]);
        let mut acc: [S::Rows; C] = array(|c| simd.load_rows(&sums[c]));
        for (i, tile) in self.tiles.iter().enumerate() {
            let mut products = [simd.splat_rows(0.0); C];
            for half in 0..SCALES {
                let x_sums: [i32; C] = array(|c| match SCALES {
                    1 => x[c][i].sums[0] + x[c][i].sums[1],
                    _ => x[c][i].sums[half],
                });
                let mut dots: [S::Words; C] =
                    array(|c| simd.splat_word((-self.offset * x_sums[c]) as u32));
                let n_group = tile.codes.len() / SCALES;
                for group in half * n_group..(half + 1) * n_group {
                    let codes = simd.load_words(&tile.codes[group]);
                    for c in 0..C {
                        let x = x[c][i].codes[group];
                        dots[c] = simd.add_products::<IS_WIDE>(dots[c], codes, x);
                    }
                }
                let scale = simd.load_rows(&tile.scales[half]);
                for c in 0..C {
                    let dot = simd.to_rows(dots[c]);
                    products[c] = match half {
                        0 => simd.mul_rows(scale, dot),
                        _ => simd.mul_add_rows(scale, dot, products[c]),
                    };
                }
                if HAS_MINS {
                    let minus_min = simd.load_rows(&tile.minus_mins[half]);
                    for c in 0..C {
                        let sum = simd.splat_rows(x_sums[c] as f32);
                        products[c] = simd.mul_add_rows(minus_min, sum, products[c]);
                    }
                }
            }
            for c in 0..C {
                acc[c] = simd.mul_add_rows(simd.splat_rows(x[c][i].scale), products[c], acc[c]);
            }
        }
        for (sums, acc) in sums.iter_mut().zip(acc) {
            simd.store_rows(acc, sums);
        }
        C
    }
}
