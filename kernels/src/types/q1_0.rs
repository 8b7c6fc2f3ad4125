//! Q1_0: 128 signs and a scale, the mean magnitude.

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::unpack::{self, Blocks, Form, HalfTile, Unpack};
use super::{ElementType, Products};
use crate::simd::lanes::{Lanes, MAX_LANES, transpose};
use crate::simd::packed::Packed;

/// The descriptor of Q1_0.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::Q1_0,
    codec: Codecs::of::<Q1_0, 128>(),
    products: Some(Products::quants::<Q1_0>()),
    cache: None,
    cuda: Some(include_str!("q1_0.cuh")),
};

#[repr(C)]
pub(super) struct Q1_0 {
    d: Half,
    /// One bit per element, set if it is not negative.
    bits: [u8; 16],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for Q1_0 {}

impl Block<128> for Q1_0 {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 128]) {
        let d = self.d.to_f32();
        for (out, byte) in out.as_chunks_mut::<8>().0.iter_mut().zip(self.bits) {
            for (i, out) in out.iter_mut().enumerate() {
                *out = if byte >> i & 1 == 1 { d } else { -d };
            }
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 128]], _: Option<&[[f32; 128]]>, out: &mut [Self]) {
        for (x, out) in x.chunks(V::N).zip(out.chunks_mut(V::N)) {
            let mut sum = V::splat(0.0);
            for x in transpose::<V, 128>(x) {
                sum = sum + x.abs();
            }
            let mut d = [0.0; MAX_LANES];
            (sum / V::splat(128.0)).store(&mut d);
            for ((x, out), d) in x.iter().zip(out).zip(d) {
                let mut negative = 0u128;
                for (i, x) in x.chunks_exact(V::N).enumerate() {
                    let bits = V::bits(V::splat(0.0).gt(V::load(x)));
                    negative |= u128::from(bits) << (i * V::N);
                }
                *out = Q1_0 {
                    d: Half::from_f32(d),
                    bits: (!negative).to_le_bytes(),
                };
            }
        }
    }
}

impl Unpack for Q1_0 {
    type Form = Form<1, false, 4>;
    const LEAD: usize = 2;
    const TILES: usize = 4;
    const OFFSET: i32 = 1;
    type Group<W: Packed> = [HalfTile<W>; 1];

    /// The quants are 0 and 2.
    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 1] {
        let word = rows.word(simd, 2 + 4 * group);
        let word = match HALF {
            0 => word,
            _ => simd.shift_right::<16>(word),
        };
        [[
            unpack::spread_bits::<W, 0, 1>(simd, word),
            unpack::spread_bits::<W, 4, 1>(simd, word),
            unpack::spread_bits::<W, 8, 1>(simd, word),
            unpack::spread_bits::<W, 12, 1>(simd, word),
        ]]
    }
}
