//! F16: half precision.

use schemas::gguf::DType;

use super::common::block::{Block, Bytes, Codecs, bytes_of};
use super::common::cache::{CacheAccess, CacheElement, SixteenChunks};
use super::{ElementType, InvalidKind, Products};
use crate::float::{f16_to_f32, f32_to_f16};
use crate::ops::matmul::cpu_floats::FloatElement;
use crate::simd::Simd;
use crate::simd::lanes::Lanes;
use crate::simd::packed::TakeColumn;

/// The descriptor of F16.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::F16,
    codec: Codecs::of::<F16, 1>(),
    products: Some(Products::floats::<F16, 64>()),
    cache: Some(CacheAccess::of::<F16, 64>("f16")),
    cuda: Some(include_str!("f16.cuh")),
};

#[repr(transparent)]
pub(super) struct F16([u8; 2]);

impl F16 {
    #[inline(always)]
    fn to_f32(&self) -> f32 {
        f16_to_f32(u16::from_le_bytes(self.0))
    }
}

// SAFETY: transparent over bytes.
unsafe impl Bytes for F16 {}

impl Block<1> for F16 {
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
                simd.store(simd.load_f16(chunk, i), out, i);
            }
        }
        for (&bytes, out) in rest.iter().zip(out_rest) {
            *out = F16(bytes).to_f32();
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 1]], _: Option<&[[f32; 1]]>, out: &mut [Self]) {
        for ([x], out) in x.iter().zip(out) {
            out.0 = f32_to_f16(*x).to_le_bytes();
        }
    }

    #[inline(always)]
    fn invalid(&self) -> Option<InvalidKind> {
        InvalidKind::of(u32::from(u16::from_le_bytes(self.0)), 10, 5)
    }
}

impl CacheElement<64> for F16 {
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
        simd.f16_columns::<HALF>(rows.pieces(simd, 32 * HALF), to);
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, chunk: &[u8; 64]) -> S::Lanes {
        simd.lanes(|i| F16::load_register(simd, chunk, i))
    }
}

impl FloatElement<64> for F16 {
    #[inline(always)]
    fn load_register<S: Simd>(simd: S, chunk: &[u8; 64], register: usize) -> S::Vector {
        let elements = chunk.as_chunks().0.first_chunk().expect("a chunk");
        simd.load_f16(elements, register)
    }
}
