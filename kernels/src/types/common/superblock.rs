//! The superblock shared by Q4_K and Q5_K: eight sub-blocks of 32, each with a six-bit scale and a six-bit
//! minimum.

use super::block::Half;
use super::fit_affine::{AffineSearch, fit_affine};
use super::fit_positive::fit_positive;
use super::one_pass::quants;
use super::unpack::{self, Blocks};
use super::weights::Weights;
use crate::float::{largest, nearest_int};
use crate::simd::lanes::{Lanes, energies};
use crate::simd::packed::Packed;

/// The fields before the quants.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Scales {
    pub(crate) d: Half,
    pub(crate) dmin: Half,
    packed: [u8; 12],
}

impl Scales {
    /// Returns the quantized scale and minimum of sub-block `j`.
    #[inline(always)]
    fn quants(&self, j: usize) -> (u8, u8) {
        let p = &self.packed;
        if j < 4 {
            (p[j] & 63, p[j + 4] & 63)
        } else {
            (
                (p[j + 4] & 15) | ((p[j - 4] >> 6) << 4),
                (p[j + 4] >> 4) | ((p[j] >> 6) << 4),
            )
        }
    }

    /// Returns scale and minimum of sub-block `j`: its elements are `scale * quant - min`.
    #[inline(always)]
    pub(crate) fn sub_block(&self, j: usize) -> (f32, f32) {
        let (scale, min) = self.quants(j);
        (
            self.d.to_f32() * f32::from(scale),
            self.dmin.to_f32() * f32::from(min),
        )
    }

    fn pack(d: Half, dmin: Half, scales: &[u8; 8], mins: &[u8; 8]) -> Scales {
        let mut packed = [0; 12];
        for j in 0..4 {
            packed[j] = scales[j] | ((scales[j + 4] >> 4) << 6);
            packed[j + 4] = mins[j] | ((mins[j + 4] >> 4) << 6);
            packed[j + 8] = (scales[j + 4] & 15) | ((mins[j + 4] & 15) << 4);
        }
        Scales { d, dmin, packed }
    }
}

/// Search parameters of a type, without and with an importance matrix.
pub(crate) struct Searches {
    pub(crate) plain: AffineSearch,
    pub(crate) weighted: AffineSearch,
}

/// Fits and quantizes the superblocks of whole rows; `emit` receives the index of each with its scales and
/// quants.
#[inline(always)]
pub(crate) fn quantize_rows<V: Lanes>(
    x: &[[f32; 256]],
    importance: Option<&[[f32; 256]]>,
    searches: &Searches,
    mut emit: impl FnMut(usize, Scales, &[[u8; 32]; 8]),
) {
    let sub_blocks = x.as_flattened().as_chunks().0;
    let sigma2: Vec<f32>;
    let (search, weights) = match importance {
        None => (&searches.plain, Weights::RmsPlusMagnitude),
        Some(importance) => {
            let energies = energies::<V>(x.as_flattened(), 256);
            sigma2 = energies.iter().map(|e| 2.0 * e / 256.0).collect();
            let weights = Weights::Importance {
                columns: importance.as_flattened().as_chunks().0,
                sigma2: &sigma2,
                per: 8,
            };
            (&searches.weighted, weights)
        }
    };
    let fits = fit_affine::<V, 32>(sub_blocks, weights, search);
    let fits = fits.as_chunks::<8>().0;
    let scales: Vec<_> = fits.iter().map(|f| f.map(|fit| fit.scale)).collect();
    let mins: Vec<_> = fits.iter().map(|f| f.map(|fit| fit.min)).collect();
    let (scales, mins): (Vec<_>, Vec<_>) = match importance {
        None => (
            scales.iter().map(round_to_six_bits).collect(),
            mins.iter().map(round_to_six_bits).collect(),
        ),
        Some(_) => {
            let weights: Vec<_> = fits.iter().map(|f| f.map(|fit| fit.weight)).collect();
            (
                fit_positive::<V, 8>(&scales, &weights, 63),
                fit_positive::<V, 8>(&mins, &weights, 63),
            )
        }
    };
    for (i, x) in sub_blocks.as_chunks::<8>().0.iter().enumerate() {
        let ((d, scales), (dmin, mins)) = (&scales[i], &mins[i]);
        let scales = Scales::pack(Half::from_f32(*d), Half::from_f32(*dmin), scales, mins);
        let mut quants = [[0; 32]; 8];
        for (j, quants) in quants.iter_mut().enumerate() {
            *quants = requantize::<V, 32>(&x[j], scales.sub_block(j), search.max_quant)
                .unwrap_or_else(|| fits[i][j].quants(&x[j], search));
        }
        emit(i, scales, &quants);
    }
}

/// Quantizes scales (or minima) to six bits, relative to the largest.
#[inline(always)]
fn round_to_six_bits(values: &[f32; 8]) -> (f32, [u8; 8]) {
    let max = largest(values);
    let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
    (
        max / 63.0,
        values.map(|v| (nearest_int(inverse * v) as u8).min(63)),
    )
}

/// Quantizes again with the rounded scale and minimum; `None` if the scale has become 0.
#[inline(always)]
pub(crate) fn requantize<V: Lanes, const N: usize>(
    x: &[f32; N],
    (scale, min): (f32, f32),
    max_quant: u8,
) -> Option<[u8; N]> {
    if scale == 0.0 {
        return None;
    }
    let (scale, min) = (V::splat(scale), V::splat(min));
    let quant = |x: V| ((x + min) / scale).round_to_quant(0, i32::from(max_quant));
    Some(quants::<V, N>(x, quant))
}

/// Unpacks scales and minima of Q4_K and Q5_K from the first sixteen bytes of a superblock.
#[inline(always)]
pub(crate) fn unpack_scales<W: Packed>(
    simd: W,
    rows: impl Blocks,
    tiles: &mut [unpack::TileScales],
) {
    let [factors, scales, mins, rest] = rows.words(simd, 0);
    let d = simd.halves_to_floats(factors);
    let minus_dmin = unpack::negate(simd, simd.halves_to_floats(simd.shift_right::<16>(factors)));
    let high = |words| simd.and(simd.shift_right::<2>(words), simd.splat_word(0x3030_3030));
    let scales = [
        simd.bits::<0>(scales, 63),
        simd.or(simd.bits::<0>(rest, 15), high(scales)),
    ];
    let mins = [
        simd.bits::<0>(mins, 63),
        simd.or(simd.bits::<4>(rest, 15), high(mins)),
    ];
    for (i, tiles) in tiles.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (scales, mins) = (unpack::bytes(simd, scales[i]), unpack::bytes(simd, mins[i]));
        for ((tile, scale), min) in tiles.iter_mut().zip(scales).zip(mins) {
            simd.store_floats(simd.mul_floats(d, scale), &mut tile.scales[0]);
            simd.store_floats(simd.mul_floats(minus_dmin, min), &mut tile.minus_mins[0]);
        }
    }
}
