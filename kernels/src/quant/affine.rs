//! The superblock shared by Q4_K and Q5_K: eight sub-blocks of 32, each with a six-bit scale and a six-bit
//! minimum.

use super::fit_affine::{AffineSearch, fit_affine};
use super::fit_positive::fit_positive;
use super::float::{Half, largest, nearest_int};
use super::lanes::{Lanes, energies};
use super::one_pass::codes;
use super::weights::Weights;

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
    fn codes(&self, j: usize) -> (u8, u8) {
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
    pub(super) fn sub_block(&self, j: usize) -> (f32, f32) {
        let (scale, min) = self.codes(j);
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
pub(super) struct Searches {
    pub(super) plain: AffineSearch,
    pub(super) weighted: AffineSearch,
}

/// Fits and quantizes the superblocks of whole rows; `emit` receives the index of each with its scales and
/// quants.
#[inline(always)]
pub(super) fn quantize_rows<V: Lanes>(
    x: &[[f32; 256]],
    importance: Option<&[[f32; 256]]>,
    searches: &Searches,
    mut emit: impl FnMut(usize, Scales, &[[u8; 32]; 8]),
) {
    let sub_blocks = x.as_flattened().as_chunks().0;
    let sigma2: Vec<f32>;
    let (search, weights) = match importance {
        None => (&searches.plain, Weights::AboveMean),
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
        let mut codes = [[0; 32]; 8];
        for (j, codes) in codes.iter_mut().enumerate() {
            *codes = requantize::<V, 32>(&x[j], scales.sub_block(j), search.max_code)
                .unwrap_or_else(|| fits[i][j].codes(&x[j], search));
        }
        emit(i, scales, &codes);
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
pub(super) fn requantize<V: Lanes, const N: usize>(
    x: &[f32; N],
    (scale, min): (f32, f32),
    max_code: u8,
) -> Option<[u8; N]> {
    if scale == 0.0 {
        return None;
    }
    let (scale, min) = (V::splat(scale), V::splat(min));
    let code = |x: V| ((x + min) / scale).round_to_code(0, i32::from(max_code));
    Some(codes::<V, N>(x, code))
}
