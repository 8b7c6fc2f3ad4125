//! Q3_K: superblocks of 256, three-bit codes around a middle, a signed six-bit scale for each 16.

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::float::{Half, energy, error_weights, extreme, nearest_int};
use super::search::{NEARLY_ZERO, Symmetric, fit_symmetric};

#[repr(C)]
pub(super) struct Q3_K {
    /// Bit `e / 32` of byte `e % 32` is the third bit of element `e`.
    hmask: [u8; 32],
    /// 32 bytes for each half of the superblock; bits `2k` hold its `k`-th 32 elements.
    qs: [[u8; 32]; 2],
    packed_scales: [u8; 12],
    d: Half,
}

impl Q3_K {
    /// Scale of sub-block `j`.
    #[inline(always)]
    fn scale(&self, j: usize) -> f32 {
        let low = (self.packed_scales[j % 8] >> (4 * (j / 8))) & 15;
        let high = (self.packed_scales[8 + j % 4] >> (2 * (j / 4))) & 3;
        self.d.to_f32() * f32::from((low | (high << 4)) as i8 - 32)
    }
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<256> for Q3_K {
    const DTYPE: DType = DType::Q3_K;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        for (j, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = self.scale(j);
            let low = &self.qs[j / 8].as_chunks::<16>().0[j % 2];
            let high = &self.hmask.as_chunks::<16>().0[j % 2];
            for l in 0..16 {
                let low = (low[l] >> (2 * (j % 8 / 2))) & 3;
                let high = (high[l] >> (j / 2)) & 1;
                out[l] = scale * f32::from((low | (high << 2)) as i8 - 4);
            }
        }
    }

    #[inline(always)]
    fn quantize_row(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        for (i, (x, out)) in x.iter().zip(out).enumerate() {
            *out = quantize(x, weights.map(|w| &w[i]));
        }
    }

    fn invalid(&self) -> Option<InvalidKind> {
        InvalidKind::of(self.d.to_f32())
    }
}

#[inline(always)]
fn quantize(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Q3_K {
    let sigma2 = 2.0 * energy(x) / 256.0;
    let x = x.as_chunks::<16>().0;
    let mut sums = [0.0; 16];
    let fits: [Symmetric<16>; 16] = std::array::from_fn(|j| match importance {
        None => descend(&x[j]),
        Some(importance) => {
            let w = error_weights(&x[j], &importance.as_chunks().0[j], sigma2);
            sums[j] = w.iter().fold(0.0, |sum, w| sum + w);
            fit_symmetric(&x[j], &w, 4)
        }
    });
    let scales = fits.each_ref().map(|fit| fit.scale);
    let (d, scale_codes) = match importance {
        None => round_scales(&scales),
        Some(_) => {
            let outer = fit_symmetric(&scales, &sums, 32);
            (outer.scale, outer.codes)
        }
    };
    let mut block = Q3_K {
        hmask: [0; 32],
        qs: [[0; 32]; 2],
        packed_scales: [0; 12],
        d: Half::from_f32(d),
    };
    for (j, code) in scale_codes.into_iter().enumerate() {
        block.packed_scales[j % 8] |= (code & 15) << (4 * (j / 8));
        block.packed_scales[8 + j % 4] |= (code >> 4) << (2 * (j / 4));
    }
    for (j, x) in x.iter().enumerate() {
        let scale = block.scale(j);
        let codes = if scale == 0.0 {
            fits[j].codes
        } else {
            x.map(|x| (nearest_int(x / scale).clamp(-4, 3) + 4) as u8)
        };
        let low = &mut block.qs[j / 8].as_chunks_mut::<16>().0[j % 2];
        let high = &mut block.hmask.as_chunks_mut::<16>().0[j % 2];
        for (l, code) in codes.into_iter().enumerate() {
            low[l] |= (code & 3) << (2 * (j % 8 / 2));
            high[l] |= (code >> 2) << (j / 2);
        }
    }
    block
}

/// Scales as multiples of the one of the largest magnitude over -32; codes are 32 above.
fn round_scales(scales: &[f32; 16]) -> (f32, [u8; 16]) {
    let max = extreme(scales);
    if max == 0.0 {
        return (0.0, [0; 16]);
    }
    let inverse = -32.0 / max;
    let code = |scale: f32| (nearest_int(inverse * scale) as i8).clamp(-32, 31) + 32;
    (1.0 / inverse, scales.map(|scale| code(scale) as u8))
}

/// Scale and codes `0..8` by coordinate descent, errors weighted by `x^2`: `make_q3_quants` of
/// ggml.
#[inline(always)]
fn descend(x: &[f32; 16]) -> Symmetric<16> {
    let value = extreme(x);
    if value.abs() < NEARLY_ZERO {
        return Symmetric {
            scale: 0.0,
            codes: [0; 16],
        };
    }
    let inverse = -4.0 / value;
    let w = x.map(|x| x * x);
    let mut codes = x.map(|x| nearest_int(inverse * x).clamp(-4, 3));
    let (mut sum_xl, mut sum_l2) = (0.0, 0.0);
    for i in 0..16 {
        let l = codes[i] as f32;
        sum_xl += w[i] * x[i] * l;
        sum_l2 += w[i] * l * l;
    }
    for _ in 0..5 {
        let mut changed = false;
        for i in 0..16 {
            let l = codes[i] as f32;
            let mut trial_xl = sum_xl - w[i] * x[i] * l;
            if trial_xl > 0.0 {
                let mut trial_l2 = sum_l2 - w[i] * l * l;
                let code = nearest_int(x[i] * trial_l2 / trial_xl).clamp(-4, 3);
                if code != codes[i] {
                    let l = code as f32;
                    trial_xl += w[i] * x[i] * l;
                    trial_l2 += w[i] * l * l;
                    if trial_l2 > 0.0 && trial_xl * trial_xl * sum_l2 > sum_xl * sum_xl * trial_l2 {
                        codes[i] = code;
                        (sum_xl, sum_l2) = (trial_xl, trial_l2);
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    let scale = if sum_l2 > 0.0 { sum_xl / sum_l2 } else { 0.0 };
    Symmetric {
        scale,
        codes: codes.map(|code| (code + 4) as u8),
    }
}
