//! BF16: the upper half of single precision.

use schemas::gguf::DType;

use super::common::block::{Block, Bytes, Codecs, bytes_of};
use super::common::cache::{CacheAccess, CacheElement, SixteenChunks};
use super::{ElementType, InvalidKind, Products};
use crate::float::f32_to_bf16;
use crate::ops::matmul::cpu_floats::FloatElement;
use crate::simd::Simd;
use crate::simd::lanes::Lanes;
use crate::simd::packed::TakeColumn;

/// The descriptor of BF16.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::BF16,
    codec: Codecs::of::<BF16, 1>(),
    products: Some(Products::floats::<BF16, 64>()),
    cache: Some(CacheAccess::of::<BF16, 64>("bf16")),
    cuda: Some(include_str!("bf16.cuh")),
};

#[repr(transparent)]
pub(super) struct BF16([u8; 2]);

impl BF16 {
    #[inline(always)]
    fn to_f32(&self) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(self.0)) << 16)
    }
}

// SAFETY: transparent over bytes.
unsafe impl Bytes for BF16 {}

impl Block<1> for BF16 {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 1]) {
        out[0] = self.to_f32();
    }

    #[inline(always)]
    fn dequantize_blocks<S: Simd>(simd: S, blocks: &[Self], out: &mut [[f32; 1]]) {
        let (chunks, rest) = bytes_of(blocks).as_chunks().0.as_chunks();
        let (out, out_rest) = out.as_flattened_mut().as_chunks_mut();
        for (chunk, out) in chunks.iter().zip(out) {
            for i in 0..S::REGISTERS {
                simd.store(simd.load_bf16(chunk, i), out, i);
            }
        }
        for (&bytes, out) in rest.iter().zip(out_rest) {
            *out = BF16(bytes).to_f32();
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 1]], _: Option<&[[f32; 1]]>, out: &mut [Self]) {
        for ([x], out) in x.iter().zip(out) {
            out.0 = f32_to_bf16(*x).to_le_bytes();
        }
    }

    #[inline(always)]
    fn invalid(&self) -> Option<InvalidKind> {
        InvalidKind::of(u32::from(u16::from_le_bytes(self.0)), 7, 8)
    }
}

impl CacheElement<64> for BF16 {
    type Scales<S: Simd> = ();

    #[inline(always)]
    fn scales<S: Simd>(_: S, _: SixteenChunks<'_, 64>) {}

    #[inline(always)]
    fn columns<S: Simd, const HALF: usize>(
        simd: S,
        rows: SixteenChunks<'_, 64>,
        (): (),
        to: &mut impl TakeColumn<S>,
    ) {
        for piece in 2 * HALF..2 * HALF + 2 {
            for (i, words) in rows.words(simd, 16 * piece).into_iter().enumerate() {
                let element = 8 * piece + 2 * i;
                let low = simd.shift_left::<16>(words);
                to.take(simd, element, simd.bits_to_floats(low));
                let high = simd.and(words, simd.splat_word(0xffff_0000));
                to.take(simd, element + 1, simd.bits_to_floats(high));
            }
        }
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, chunk: &[u8; 64]) -> S::Lanes {
        simd.lanes(|i| BF16::load_register(simd, chunk, i))
    }
}

impl FloatElement<64> for BF16 {
    #[inline(always)]
    fn load_register<S: Simd>(simd: S, chunk: &[u8; 64], register: usize) -> S::Vector {
        let elements = chunk.as_chunks().0.first_chunk().expect("a chunk");
        simd.load_bf16(elements, register)
    }
}
