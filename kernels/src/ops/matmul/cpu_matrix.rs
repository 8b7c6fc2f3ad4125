//! Products of unpacked tiles with sixteen activation rows at a time, on a matrix unit.
//!
//! The unit leaves integer sums in memory. They become floats without a conversion, which would take as long as a
//! multiplication: an integer below 2^22 plus the bits of [`SHIFT`] is the float `SHIFT` plus that integer, exactly. Its
//! product with a scale, less the scale times `SHIFT`, is the product that other instruction sets compute, rounded once,
//! if the scale times `SHIFT` is exact.
//!
//! Only a product of zero may have another sign. It makes no difference: sums begin with positive zero, which stays positive
//! whatever zeros are added, unless a sum that is not zero rounds to zero. None does if scales and minima are multiples
//! of 2^-30 and the scales of activations of 2^-119, because terms are then multiples of 2^-149.

use std::marker::PhantomData;

use super::cpu_tiled::Groups;
use crate::cpu::activation::Quantized;
use crate::simd::matrix::MatrixUnit;
use crate::simd::packed::{Packed, ROWS, WordBytes, array};
use crate::simd::{Kernel, Simd};
use crate::types::common::unpack::{Tile, TileForm};

/// 1.5 * 2^23: adding an integer of less than 22 bits changes the lowest bits of the fraction only.
const SHIFT: f32 = 12_582_912.0;

/// Returns whether products with the unit have the bits of others: a tile has one scale per row, all scales times
/// [`SHIFT`] are exact and finite, and scales and minima are multiples of 2^-30.
#[inline(always)]
pub(super) fn is_exact<F: TileForm, const P: usize>(tiles: [&[Tile]; P]) -> bool {
    /// 2^100, far above scales of models.
    const LIMIT: u32 = (127 + 100) << 23;
    let mut low_bits = 0;
    let mut largest = 0;
    let mut are_multiples = true;
    for tile in tiles.into_iter().flatten() {
        for (scale, min) in tile.scales.scales[0].iter().zip(&tile.scales.minus_mins[0]) {
            // `SHIFT` has two significant bits.
            low_bits |= scale.to_bits() & 3;
            largest = largest.max(scale.abs().to_bits());
            are_multiples &= is_multiple(*scale) && (!F::HAS_MINS || is_multiple(*min));
        }
    }
    F::SCALES == 1 && low_bits == 0 && largest < LIMIT && are_multiples
}

/// Checks for a multiple of 2^-30, exactly.
#[inline(always)]
fn is_multiple(x: f32) -> bool {
    let scaled = x * (1u32 << 30) as f32;
    scaled.trunc() == scaled
}

/// Sums of one tile.
#[repr(align(64))]
struct TileSums([WordBytes; ROWS]);

/// Adds the products of some tiles with whole groups of sixteen activation rows.
pub(super) struct AddMatrixProducts<'a, F, U, const P: usize> {
    pub(super) unit: &'a U,
    /// The tiles of each panel.
    pub(super) tiles: [&'a [Tile]; P],
    /// Bytes to prefetch, spread over the groups.
    pub(super) ahead: [&'a [u8]; P],
    pub(super) x: Groups<'a>,
    /// Sums per activation row, to be added to.
    pub(super) sums: &'a mut [[[f32; ROWS]; P]],
    pub(super) form: PhantomData<F>,
}

impl<F: TileForm, U: MatrixUnit, const P: usize> Kernel for AddMatrixProducts<'_, F, U, P> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n_tile = self.tiles[0].len();
        let (groups, _) = self.sums.as_chunks_mut::<ROWS>();
        let n_ahead = self.ahead[0].len().div_ceil(groups.len().max(1));
        let n_ahead = n_ahead.next_multiple_of(64).max(64);
        let mut ahead = self.ahead.map(|ahead| ahead.chunks(n_ahead));
        let mut stored = [const { TileSums([[0; 4 * ROWS]; ROWS]) }; 2];
        for (i, sums) in groups.iter_mut().enumerate() {
            let (x, _) = self.x.group(i * ROWS, n_tile);
            for p in 0..P {
                simd.prefetch(ahead[p].next().unwrap_or_default());
                let mut acc = array(|c| simd.load_floats(&sums[c][p]));
                let mut panel = PanelSums {
                    unit: self.unit,
                    tiles: self.tiles[p],
                    x: x.as_chunks().0,
                    stored: &mut stored,
                };
                // Two more steps than tiles, in pairs.
                for i in (0..n_tile + 2).step_by(2) {
                    panel.step::<S, F, 0, 1>(simd, i, &mut acc);
                    panel.step::<S, F, 1, 0>(simd, i + 1, &mut acc);
                }
                for c in 0..ROWS {
                    simd.store_floats(acc[c], &mut sums[c][p]);
                }
            }
        }
    }
}

/// The tiles of one panel and the sums of two of them.
struct PanelSums<'a, U> {
    unit: &'a U,
    tiles: &'a [Tile],
    x: &'a [[Quantized; ROWS]],
    stored: &'a mut [TileSums; 2],
}

impl<U: MatrixUnit> PanelSums<'_, U> {
    /// Multiplies tile `i`, stores the sums of the one before it, and adds those of the one before that, each if it
    /// exists: the unit works while sums are added. `ACCUMULATOR` is that of tile `i`, `OTHER` that of the tile before.
    #[inline(always)]
    fn step<S: Simd, F: TileForm, const ACCUMULATOR: usize, const OTHER: usize>(
        &mut self,
        simd: S,
        i: usize,
        acc: &mut [S::Floats; ROWS],
    ) {
        if let (Some(tile), Some(x)) = (self.tiles.get(i), self.x.get(i)) {
            let words = &tile.quants.words;
            self.unit
                .multiply::<ACCUMULATOR, _>(words, x, |x| &x.quants);
        }
        if (1..=self.tiles.len()).contains(&i) {
            self.unit.store::<OTHER>(&mut self.stored[OTHER].0);
        }
        let Some(last) = i.checked_sub(2) else { return };
        if let (Some(tile), Some(x)) = (self.tiles.get(last), self.x.get(last)) {
            add_scaled::<S, F>(simd, tile, x, &self.stored[ACCUMULATOR].0, acc);
        }
    }
}

/// Adds the sums of one tile, with the scales and minima of the weights and the scales of the activations.
#[inline(always)]
fn add_scaled<W: Packed, F: TileForm>(
    simd: W,
    tile: &Tile,
    x: &[Quantized; ROWS],
    sums: &[WordBytes; ROWS],
    acc: &mut [W::Floats; ROWS],
) {
    let start = simd.load_words(&tile.quants.starts[0]);
    let start = simd.add(start, simd.splat_word(SHIFT.to_bits()));
    let scale = simd.load_floats(&tile.scales.scales[0]);
    let minus_shift = simd.mul_floats(scale, simd.splat_floats(-SHIFT));
    let minus_min = simd.load_floats(&tile.scales.minus_mins[0]);
    for c in 0..ROWS {
        let shifted = simd.bits_to_floats(simd.add(start, simd.load_words(&sums[c])));
        let mut product = simd.mul_add_floats(shifted, scale, minus_shift);
        if F::HAS_MINS {
            let sum = simd.splat_floats(x[c].sum);
            product = simd.mul_add_floats(minus_min, sum, product);
        }
        let scale = simd.splat_floats(x[c].scale);
        acc[c] = simd.mul_add_floats(scale, product, acc[c]);
    }
}
