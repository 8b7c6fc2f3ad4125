//! Q2_0: 64 two-bit quants for the values -1 to 2, and a scale.

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::one_pass::{numbers, ternary};
use super::common::unpack::{self, Blocks, Form, HalfTile, Unpack};
use super::{ElementType, Products};
use crate::simd::lanes::Lanes;
use crate::simd::packed::Packed;

/// The descriptor of Q2_0.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::Q2_0,
    codec: Codecs::of::<Q2_0, 64>(),
    products: Some(Products::quants::<Q2_0>()),
    cache: None,
    cuda: Some(include_str!("q2_0.cuh")),
};

#[repr(C)]
pub(super) struct Q2_0 {
    d: Half,
    /// Four consecutive elements per byte, the first in the lowest bits.
    qs: [u8; 16],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for Q2_0 {}

impl Block<64> for Q2_0 {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 64]) {
        let d = self.d.to_f32();
        let mut quants = [0; 64];
        for (quants, byte) in quants.as_chunks_mut::<4>().0.iter_mut().zip(self.qs) {
            *quants = [byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6];
        }
        numbers::<V, 64>(&quants, out, |q| (q - V::splat(1.0)) * V::splat(d));
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 64]], _: Option<&[[f32; 64]]>, out: &mut [Self]) {
        for (x, out) in x.iter().zip(out) {
            let (d, mut quants) = ternary::<V, 64>(x);
            // As in ggml, where the quotients are then beyond the range of integers.
            if d > 0.0 && (1.0 / d).is_infinite() {
                quants = [0; 64];
            }
            out.d = Half::from_f32(d);
            for (byte, &[a, b, c, d]) in out.qs.iter_mut().zip(quants.as_chunks().0) {
                *byte = a | (b << 2) | (c << 4) | (d << 6);
            }
        }
    }
}

impl Unpack for Q2_0 {
    type Form = Form<1, false, 4>;
    const LEAD: usize = 2;
    const TILES: usize = 2;
    const OFFSET: i32 = 1;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 1] {
        let word = rows.word(simd, 2 + 8 * group + 4 * HALF);
        [[
            unpack::spread_pairs::<W, 0>(simd, word),
            unpack::spread_pairs::<W, 8>(simd, word),
            unpack::spread_pairs::<W, 16>(simd, word),
            unpack::spread_pairs::<W, 24>(simd, word),
        ]]
    }
}
