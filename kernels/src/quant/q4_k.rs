//! Q4_K: superblocks of 256, four-bit codes, scale and minimum for each 32.

use schemas::gguf::DType;

use super::InvalidKind;
use super::affine::{self, Scales, Searches};
use super::block::Block;
use super::lanes::Lanes;
use super::search::{AffineSearch, Clamp, ErrorNorm};

#[repr(C)]
pub(crate) struct Q4_K {
    pub(crate) scales: Scales,
    /// 32 bytes for each two sub-blocks: the first low, the second high.
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
    fn dequantize(&self, out: &mut [f32; 256]) {
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = self.scales.sub_block(j);
            let shift = 4 * (j % 2);
            for (out, byte) in out.iter_mut().zip(&self.qs[j / 2]) {
                *out = scale * f32::from((byte >> shift) & 15) - min;
            }
        }
    }

    #[inline(always)]
    fn quantize_row<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        affine::quantize_row::<V>(x, weights, &SEARCHES, |i, scales, codes| {
            let byte = |p: usize, l: usize| codes[2 * p][l] | (codes[2 * p + 1][l] << 4);
            let qs = std::array::from_fn(|p| std::array::from_fn(|l| byte(p, l)));
            out[i] = Q4_K { scales, qs };
        });
    }

    fn invalid(&self) -> Option<InvalidKind> {
        InvalidKind::of(self.scales.d.to_f32()).or(InvalidKind::of(self.scales.dmin.to_f32()))
    }
}
