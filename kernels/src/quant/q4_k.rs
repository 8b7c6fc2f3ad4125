//! Q4_K: superblocks of 256, four-bit quants, scale and minimum per 32 elements.

use schemas::gguf::DType;

use super::InvalidKind;
use super::affine::{self, Scales, Searches};
use super::block::Block;
use super::fit_affine::{AffineSearch, Clamp, ErrorNorm};
use super::lanes::Lanes;
use super::one_pass::numbers;

#[repr(C)]
pub(crate) struct Q4_K {
    pub(crate) scales: Scales,
    /// 32 bytes per pair of sub-blocks: the first in the low nibbles, the second in the high nibbles.
    pub(crate) qs: [[u8; 32]; 4],
}

const SEARCHES: Searches = Searches {
    plain: AffineSearch {
        max_code: 15,
        first_shift: -1.0,
        shift_step: 0.1,
        n_steps: 20,
        error: ErrorNorm::Squared,
        clamp: Clamp::Rounded,
    },
    weighted: AffineSearch::weighted(15),
};

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<256> for Q4_K {
    const DTYPE: DType = DType::Q4_K;

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = self.scales.sub_block(j);
            let mut codes = self.qs[j / 2];
            for code in &mut codes {
                *code = (*code >> (4 * (j % 2))) & 15;
            }
            numbers::<V, 32>(&codes, out, |q| V::splat(scale) * q - V::splat(min));
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        affine::quantize_rows::<V>(x, weights, &SEARCHES, |i, scales, codes| {
            let mut qs = [[0; 32]; 4];
            for (qs, [low, high]) in qs.iter_mut().zip(codes.as_chunks().0) {
                for ((byte, low), high) in qs.iter_mut().zip(low).zip(high) {
                    *byte = low | (high << 4);
                }
            }
            out[i] = Q4_K { scales, qs };
        });
    }

    #[inline(always)]
    fn invalid(&self) -> Option<InvalidKind> {
        self.scales.d.invalid().or(self.scales.dmin.invalid())
    }
}
