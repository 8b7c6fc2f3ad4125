//! The superblock that Q4_K and Q5_K share: eight sub-blocks of 32, each with a scale and a
//! minimum of six bits.

use super::float::{Half, energy, error_weights, nearest_int};
use super::search::{Affine, AffineSearch, fit_affine, fit_positive};

/// The fields that come before the codes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Scales {
    pub(super) d: Half,
    pub(super) dmin: Half,
    packed: [u8; 12],
}

impl Scales {
    /// Scale and minimum of sub-block `j`, as codes.
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

    /// Scale and minimum of sub-block `j`: its elements are `scale * code - min`.
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

/// How one type searches.
pub(super) struct Searches {
    pub(super) plain: AffineSearch,
    pub(super) weighted: AffineSearch,
}

/// Scales and codes of one superblock.
#[inline(always)]
pub(super) fn quantize(
    x: &[f32; 256],
    importance: Option<&[f32; 256]>,
    searches: &Searches,
) -> (Scales, [[u8; 32]; 8]) {
    let x = sub_blocks(x);
    let (fits, scales) = match importance {
        None => {
            let fits = x.each_ref().map(|x| {
                let mean = (energy(x) / 32.0).sqrt();
                fit_affine(x, &x.map(|x| mean + x.abs()), &searches.plain)
            });
            let (d, scales) = round_to_six_bits(fits.each_ref().map(|fit| fit.scale));
            let (dmin, mins) = round_to_six_bits(fits.each_ref().map(|fit| fit.min));
            (fits, Scales::pack(d, dmin, &scales, &mins))
        }
        Some(importance) => {
            let importance = sub_blocks(importance);
            let sigma2 = 2.0 * energy(x.as_flattened()) / 256.0;
            let mut sums = [0.0; 8];
            let fits: [Affine<32>; 8] = std::array::from_fn(|j| {
                let w = error_weights(&x[j], &importance[j], sigma2);
                sums[j] = w.iter().fold(0.0, |sum, w| sum + w);
                fit_affine(&x[j], &w, &searches.weighted)
            });
            let (d, scales) = fit_positive(&fits.each_ref().map(|fit| fit.scale), &sums, 63);
            let (dmin, mins) = fit_positive(&fits.each_ref().map(|fit| fit.min), &sums, 63);
            let (d, dmin) = (Half::from_f32(d), Half::from_f32(dmin));
            (fits, Scales::pack(d, dmin, &scales, &mins))
        }
    };
    let codes = std::array::from_fn(|j| {
        let (scale, min) = scales.sub_block(j);
        requantize(&x[j], scale, min, searches.plain.max_code, &fits[j].codes)
    });
    (scales, codes)
}

fn sub_blocks(x: &[f32; 256]) -> &[[f32; 32]; 8] {
    x.as_chunks().0.try_into().expect("256 is 8 times 32")
}

/// Scales (or minima) as multiples of their largest over 63.
fn round_to_six_bits(values: [f32; 8]) -> (Half, [u8; 8]) {
    let max = values
        .iter()
        .fold(0.0, |max, &v| if v > max { v } else { max });
    let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
    let codes = values.map(|v| (nearest_int(inverse * v) as u8).min(63));
    (Half::from_f32(max / 63.0), codes)
}

/// Codes under the rounded scale and minimum; `searched` where the scale has become 0.
#[inline(always)]
pub(super) fn requantize<const N: usize>(
    x: &[f32; N],
    scale: f32,
    min: f32,
    max_code: u8,
    searched: &[u8; N],
) -> [u8; N] {
    if scale == 0.0 {
        return *searched;
    }
    x.map(|x| nearest_int((x + min) / scale).clamp(0, i32::from(max_code)) as u8)
}
