//! Q5_0: 32 five-bit quants with an offset, and a scale.

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::nibbles;
use super::common::unpack::{self, Blocks, Form, HalfTile, Unpack};
use super::q4_0;
use super::{ElementType, Products};
use crate::simd::lanes::Lanes;
use crate::simd::packed::Packed;

/// The descriptor of Q5_0.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::Q5_0,
    codec: Codecs::of::<Q5_0, 32>(),
    products: Some(Products::quants::<Q5_0>()),
    cache: None,
    cuda: Some(include_str!("q5_0.cuh")),
};

#[repr(C)]
pub(super) struct Q5_0 {
    d: Half,
    qh: [u8; 4],
    qs: [u8; 16],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for Q5_0 {}

impl Block<32> for Q5_0 {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        nibbles::decode_with_fifth::<V>(&self.qs, &self.qh, out, |q| {
            (q - V::splat(16.0)) * V::splat(d)
        });
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 32]], weights: Option<&[[f32; 32]]>, out: &mut [Self]) {
        for (out, (d, quants)) in out.iter_mut().zip(q4_0::quantize::<16, V>(x, weights)) {
            *out = Q5_0 {
                d,
                qh: nibbles::pack_fifth_bits::<V>(&quants),
                qs: nibbles::pack(&quants),
            };
        }
    }
}

impl Unpack for Q5_0 {
    type Form = Form<1, false, 5>;
    const LEAD: usize = 2;
    const TILES: usize = 1;
    const OFFSET: i32 = 16;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        _: usize,
    ) -> [HalfTile<W>; 1] {
        let fifth = rows.word(simd, 2);
        let nibbles = unpack::nibbles::<W, HALF>(simd, rows, 6);
        [unpack::with_fifth_bits::<W, HALF>(simd, nibbles, fifth)]
    }
}
