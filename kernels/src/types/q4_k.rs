//! Q4_K: superblocks of 256, four-bit quants, scale and minimum per 32 elements.

use std::mem::offset_of;

use schemas::gguf::DType;

use super::common::block::{Block, Bytes, Codecs};
use super::common::fit_affine::{AffineSearch, Clamp, ErrorNorm};
use super::common::one_pass::numbers;
use super::common::superblock::{self, Scales, Searches};
use super::common::unpack::{Blocks, Form, HalfTile, TileScales, Unpack};
use super::{ElementType, Products};
use crate::simd::lanes::Lanes;
use crate::simd::packed::{Packed, each};

/// The descriptor of Q4_K.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::Q4_K,
    codec: Codecs::of::<Q4_K, 256>(),
    products: Some(Products::quants::<Q4_K>()),
    cache: None,
    cuda: Some(include_str!("q4_k.cuh")),
};

#[repr(C)]
pub(super) struct Q4_K {
    pub(crate) scales: Scales,
    /// 32 bytes per pair of sub-blocks: the first in the low nibbles, the second in the high nibbles.
    pub(crate) qs: [[u8; 32]; 4],
}

const SEARCHES: Searches = Searches {
    plain: AffineSearch {
        max_quant: 15,
        first_shift: -1.0,
        shift_step: 0.1,
        n_steps: 20,
        error: ErrorNorm::Squared,
        clamp: Clamp::Rounded,
    },
    weighted: AffineSearch::weighted(15),
};

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for Q4_K {}

impl Block<256> for Q4_K {
    const HALVES: &'static [usize] = &[offset_of!(Q4_K, scales.d), offset_of!(Q4_K, scales.dmin)];

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = self.scales.sub_block(j);
            let mut quants = self.qs[j / 2];
            for quant in &mut quants {
                *quant = (*quant >> (4 * (j % 2))) & 15;
            }
            numbers::<V, 32>(&quants, out, |q| V::splat(scale) * q - V::splat(min));
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        superblock::quantize_rows::<V>(x, weights, &SEARCHES, |i, scales, quants| {
            let mut qs = [[0; 32]; 4];
            for (qs, [low, high]) in qs.iter_mut().zip(quants.as_chunks().0) {
                for ((byte, low), high) in qs.iter_mut().zip(low).zip(high) {
                    *byte = low | (high << 4);
                }
            }
            out[i] = Q4_K { scales, qs };
        });
    }
}

impl Unpack for Q4_K {
    type Form = Form<1, true, 4>;
    const TILES: usize = 8;
    const OFFSET: i32 = 0;
    type Group<W: Packed> = [HalfTile<W>; 2];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, scales: &mut [TileScales]) {
        superblock::unpack_scales(simd, rows, scales);
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 2] {
        let words = rows.words(simd, 16 + 32 * group + 16 * HALF);
        [
            each!(4, i => simd.bits::<0>(words[i], 15)),
            each!(4, i => simd.bits::<4>(words[i], 15)),
        ]
    }
}
