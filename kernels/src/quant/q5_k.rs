//! Q5_K: superblocks of 256, five-bit codes, scale and minimum for each 32.

use schemas::gguf::DType;

use super::InvalidKind;
use super::affine::{self, Scales, Searches};
use super::block::Block;
use super::lanes::Lanes;
use super::search::{AffineSearch, Clamp, ErrorNorm};

#[repr(C)]
pub(crate) struct Q5_K {
    pub(crate) scales: Scales,
    /// Bit `j` of byte `l` is the fifth bit of element `l` of sub-block `j`.
    pub(crate) qh: [u8; 32],
    /// 32 bytes for each two sub-blocks: the first low, the second high.
    pub(crate) qs: [[u8; 32]; 4],
}

const SEARCHES: Searches = Searches {
    plain: AffineSearch {
        max_code: 31,
        first_shift: -0.5,
        shift_step: 0.1,
        n_steps: 15,
        error: ErrorNorm::Squared,
        clamp: Clamp::Rounded,
    },
    weighted: AffineSearch::weighted(31),
};

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<256> for Q5_K {
    const DTYPE: DType = DType::Q5_K;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = self.scales.sub_block(j);
            *out = std::array::from_fn(|l| {
                let low = (self.qs[j / 2][l] >> (4 * (j % 2))) & 15;
                let code = low | (((self.qh[l] >> j) & 1) << 4);
                scale * f32::from(code) - min
            });
        }
    }

    #[inline(always)]
    fn quantize_row<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        affine::quantize_row::<V>(x, weights, &SEARCHES, |i, scales, codes| {
            let byte = |p: usize, l: usize| (codes[2 * p][l] & 15) | (codes[2 * p + 1][l] << 4);
            let qs = std::array::from_fn(|p| std::array::from_fn(|l| byte(p, l)));
            let fifth_bits = |l: usize| (0..8).fold(0, |bits, j| bits | ((codes[j][l] >> 4) << j));
            out[i] = Q5_K {
                scales,
                qh: std::array::from_fn(fifth_bits),
                qs,
            };
        });
    }

    fn invalid(&self) -> Option<InvalidKind> {
        InvalidKind::of(self.scales.d.to_f32()).or(InvalidKind::of(self.scales.dmin.to_f32()))
    }
}
