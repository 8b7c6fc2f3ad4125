//! TQ2_0: superblocks of 256, two-bit quants for the values -1, 0 and 1, and a scale.

use std::mem::offset_of;

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::one_pass::{numbers, ternary};
use super::common::unpack::{self, Blocks, Form, HalfTile, TileScales, Unpack};
use super::{ElementType, Products};
use crate::simd::lanes::Lanes;
use crate::simd::packed::Packed;

/// The descriptor of TQ2_0.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::TQ2_0,
    codec: Codecs::of::<TQ2_0, 256>(),
    products: Some(Products::quants::<TQ2_0>()),
    cache: None,
    cuda: Some(include_str!("tq2_0.cuh")),
};

#[repr(C)]
pub(super) struct TQ2_0 {
    /// 32 bytes per half of the superblock; bits `2k` hold its `k`-th 32 elements.
    qs: [[u8; 32]; 2],
    d: Half,
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for TQ2_0 {}

impl Block<256> for TQ2_0 {
    const HALVES: &'static [usize] = &[offset_of!(TQ2_0, d)];

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        let d = self.d.to_f32();
        for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let mut quants = self.qs[i / 4];
            for quant in &mut quants {
                *quant = (*quant >> (2 * (i % 4))) & 3;
            }
            numbers::<V, 32>(&quants, out, |q| (q - V::splat(1.0)) * V::splat(d));
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], _: Option<&[[f32; 256]]>, out: &mut [Self]) {
        for (x, out) in x.iter().zip(out) {
            let (d, quants) = ternary::<V, 256>(x);
            out.d = Half::from_f32(d);
            let halves = quants.as_chunks::<32>().0.as_chunks::<4>().0;
            for (qs, [a, b, c, d]) in out.qs.iter_mut().zip(halves) {
                for (i, byte) in qs.iter_mut().enumerate() {
                    *byte = a[i] | (b[i] << 2) | (c[i] << 4) | (d[i] << 6);
                }
            }
        }
    }
}

impl Unpack for TQ2_0 {
    type Form = Form<1, false, 4>;
    const TILES: usize = 8;
    const OFFSET: i32 = 1;
    type Group<W: Packed> = [HalfTile<W>; 4];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, scales: &mut [TileScales]) {
        unpack::common_scale(simd, rows, 64, scales);
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 4] {
        unpack::pairs_in_bytes(simd, rows.words(simd, 32 * group + 16 * HALF))
    }
}
