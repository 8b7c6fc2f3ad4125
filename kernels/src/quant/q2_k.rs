//! Q2_K: superblocks of 256, two-bit codes, scale and minimum of four bits for each 16.

use schemas::gguf::DType;

use super::InvalidKind;
use super::affine::requantize;
use super::block::Block;
use super::float::{Half, energy, error_weights, nearest_int};
use super::search::{Affine, AffineSearch, Clamp, ErrorNorm, fit_affine, fit_positive};

#[repr(C)]
pub(super) struct Q2_K {
    /// Scale low, minimum high.
    scales: [u8; 16],
    /// 32 bytes for each half of the superblock; bits `2k` hold its `k`-th 32 elements.
    qs: [[u8; 32]; 2],
    d: Half,
    dmin: Half,
}

const PLAIN: AffineSearch = AffineSearch {
    max_code: 3,
    first_shift: -0.5,
    shift_step: 0.1,
    n_steps: 15,
    error: ErrorNorm::Absolute,
    clamp: Clamp::Rounded,
};

impl Q2_K {
    /// Scale and minimum of sub-block `j`: its elements are `scale * code - min`.
    #[inline(always)]
    fn sub_block(&self, j: usize) -> (f32, f32) {
        let (scale, min) = (self.scales[j] & 15, self.scales[j] >> 4);
        (
            self.d.to_f32() * f32::from(scale),
            self.dmin.to_f32() * f32::from(min),
        )
    }
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<256> for Q2_K {
    const DTYPE: DType = DType::Q2_K;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        for (j, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (scale, min) = self.sub_block(j);
            let bytes = &self.qs[j / 8].as_chunks::<16>().0[j % 2];
            let shift = 2 * (j % 8 / 2);
            *out = bytes.map(|byte| scale * f32::from((byte >> shift) & 3) - min);
        }
    }

    #[inline(always)]
    fn quantize_row(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        for (i, (x, out)) in x.iter().zip(out).enumerate() {
            *out = quantize(x, weights.map(|w| &w[i]));
        }
    }

    fn invalid(&self) -> Option<InvalidKind> {
        InvalidKind::of(self.d.to_f32()).or(InvalidKind::of(self.dmin.to_f32()))
    }
}

#[inline(always)]
fn quantize(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Q2_K {
    let sigma2 = energy(x) / 256.0;
    let x = x.as_chunks::<16>().0;
    let mut sums = [0.0; 16];
    let fits: [Affine<16>; 16] = std::array::from_fn(|j| match importance {
        None => fit_affine(&x[j], &x[j].map(f32::abs), &PLAIN),
        Some(importance) => {
            let w = error_weights(&x[j], &importance.as_chunks().0[j], sigma2);
            sums[j] = w.iter().fold(0.0, |sum, w| sum + w);
            fit_affine(&x[j], &w, &AffineSearch::weighted(3))
        }
    });
    let round = |values: [f32; 16]| match importance {
        None => round_to_four_bits(values),
        Some(_) => fit_positive(&values, &sums, 15),
    };
    let (d, scales) = round(fits.each_ref().map(|fit| fit.scale));
    let (dmin, mins) = round(fits.each_ref().map(|fit| fit.min));
    let mut block = Q2_K {
        scales: std::array::from_fn(|j| scales[j] | (mins[j] << 4)),
        qs: [[0; 32]; 2],
        d: Half::from_f32(d),
        dmin: Half::from_f32(dmin),
    };
    for (j, x) in x.iter().enumerate() {
        let (scale, min) = block.sub_block(j);
        let codes = requantize(x, scale, min, 3, &fits[j].codes);
        let bytes = &mut block.qs[j / 8].as_chunks_mut::<16>().0[j % 2];
        for (byte, code) in bytes.iter_mut().zip(codes) {
            *byte |= code << (2 * (j % 8 / 2));
        }
    }
    block
}

/// Scales (or minima) as multiples of their largest over 15.
fn round_to_four_bits(values: [f32; 16]) -> (f32, [u8; 16]) {
    let max = values
        .iter()
        .fold(0.0, |max, &v| if v > max { v } else { max });
    if max > 0.0 {
        let inverse = 15.0 / max;
        (max / 15.0, values.map(|v| nearest_int(inverse * v) as u8))
    } else {
        (0.0, [0; 16])
    }
}
