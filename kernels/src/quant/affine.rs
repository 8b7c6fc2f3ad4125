//! The superblock that Q4_K and Q5_K share: eight sub-blocks of 32, each with a scale and a
//! minimum of six bits.

use super::float::{Half, map, nearest_int};
use super::lanes::{Lanes, energies};
use super::search::{AffineSearch, fit_affine, fit_positive, importance_weights, largest};

/// The fields that come before the codes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Scales {
    pub(crate) d: Half,
    pub(crate) dmin: Half,
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

/// Scales and codes of each superblock of a row; `emit` gets its index.
#[inline(always)]
pub(super) fn quantize_row<V: Lanes>(
    x: &[[f32; 256]],
    importance: Option<&[[f32; 256]]>,
    searches: &Searches,
    mut emit: impl FnMut(usize, Scales, &[[u8; 32]; 8]),
) {
    let sub_blocks = x.as_flattened().as_chunks().0;
    let search = match importance {
        None => &searches.plain,
        Some(_) => &searches.weighted,
    };
    let weights = match importance {
        None => sub_blocks
            .iter()
            .zip(energies::<V, 32>(sub_blocks))
            .map(mean_weights)
            .collect(),
        Some(importance) => {
            let importance = importance.as_flattened().as_chunks().0;
            let sigma2: Vec<f32> = energies::<V, 256>(x)
                .iter()
                .map(|e| 2.0 * e / 256.0)
                .collect();
            importance_weights(sub_blocks, importance, &sigma2, 8)
        }
    };
    let fits = fit_affine::<V, 32>(sub_blocks, &weights, search);
    let superblocks = sub_blocks
        .as_chunks::<8>()
        .0
        .iter()
        .zip(fits.as_chunks::<8>().0);
    for (i, (x, fits)) in superblocks.enumerate() {
        let scales = fits.map(|fit| fit.scale);
        let mins = fits.map(|fit| fit.min);
        let ((d, scales), (dmin, mins)) = match importance {
            None => (round_to_six_bits(&scales), round_to_six_bits(&mins)),
            Some(_) => {
                let weights = fits.map(|fit| fit.weight);
                (
                    fit_positive(&scales, &weights, 63),
                    fit_positive(&mins, &weights, 63),
                )
            }
        };
        let scales = Scales::pack(Half::from_f32(d), Half::from_f32(dmin), &scales, &mins);
        let codes = std::array::from_fn(|j| {
            requantize(&x[j], scales.sub_block(j), search.max_code)
                .unwrap_or_else(|| fits[j].codes(&x[j], search))
        });
        emit(i, scales, &codes);
    }
}

/// Weights without an importance matrix: `|x|` above its root mean square in the sub-block.
#[inline(always)]
fn mean_weights((x, energy): (&[f32; 32], f32)) -> [f32; 32] {
    let mean = (energy / 32.0).sqrt();
    map(x, |x| mean + x.abs())
}

/// Scales (or minima) as multiples of their largest over 63.
#[inline(always)]
fn round_to_six_bits(values: &[f32; 8]) -> (f32, [u8; 8]) {
    let max = largest(values);
    let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
    (
        max / 63.0,
        values.map(|v| (nearest_int(inverse * v) as u8).min(63)),
    )
}

/// Codes under the rounded scale and minimum; `None` where the scale has become 0.
#[inline(always)]
pub(super) fn requantize<const N: usize>(
    x: &[f32; N],
    (scale, min): (f32, f32),
    max_code: u8,
) -> Option<[u8; N]> {
    let code = |x: f32| nearest_int((x + min) / scale).clamp(0, i32::from(max_code)) as u8;
    (scale != 0.0).then(|| map(x, code))
}
