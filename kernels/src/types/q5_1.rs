//! Q5_1: 32 five-bit quants, a scale and a minimum.

use std::mem::offset_of;

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::nibbles;
use super::common::unpack::{self, Blocks, Form, HalfTile, TileScales, Unpack};
use super::q4_1;
use super::{ElementType, Products};
use crate::simd::lanes::Lanes;
use crate::simd::packed::Packed;

/// The descriptor of Q5_1.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::Q5_1,
    codec: Codecs::of::<Q5_1, 32>(),
    products: Some(Products::quants::<Q5_1>()),
    cache: None,
    cuda: Some(include_str!("q5_1.cuh")),
};

#[repr(C)]
pub(super) struct Q5_1 {
    d: Half,
    m: Half,
    qh: [u8; 4],
    qs: [u8; 16],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for Q5_1 {}

impl Block<32> for Q5_1 {
    const HALVES: &'static [usize] = &[offset_of!(Q5_1, d), offset_of!(Q5_1, m)];

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        nibbles::decode_with_fifth::<V>(&self.qs, &self.qh, out, |q| q * V::splat(d) + V::splat(m));
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 32]], weights: Option<&[[f32; 32]]>, out: &mut [Self]) {
        for (out, block) in out.iter_mut().zip(q4_1::quantize::<31, V>(x, weights)) {
            *out = Q5_1 {
                d: block.d,
                m: block.m,
                qh: nibbles::pack_fifth_bits::<V>(&block.quants),
                qs: nibbles::pack(&block.quants),
            };
        }
    }
}

impl Unpack for Q5_1 {
    type Form = Form<1, true, 5>;
    const TILES: usize = 1;
    const OFFSET: i32 = 0;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, scales: &mut [TileScales]) {
        simd.store_floats(rows.halves(simd, 0), &mut scales[0].scales[0]);
        simd.store_floats(rows.halves(simd, 2), &mut scales[0].minus_mins[0]);
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        _: usize,
    ) -> [HalfTile<W>; 1] {
        let fifth = rows.word(simd, 4);
        let nibbles = unpack::nibbles::<W, HALF>(simd, rows, 8);
        [unpack::with_fifth_bits::<W, HALF>(simd, nibbles, fifth)]
    }
}
