//! F32: single precision.

use schemas::gguf::DType;

use super::common::block::{Block, Bytes, Codecs};
use super::common::cache::{CacheAccess, CacheElement, SixteenChunks};
use super::{ElementType, InvalidKind, Products};
use crate::ops::matmul::cpu_floats::FloatElement;
use crate::simd::Simd;
use crate::simd::lanes::Lanes;
use crate::simd::packed::TakeColumn;

/// The descriptor of F32.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::F32,
    codec: Codecs::of::<F32, 1>(),
    products: Some(Products::floats::<F32, 128>()),
    cache: Some(CacheAccess::of::<F32, 128>("f32")),
    cuda: Some(include_str!("f32.cuh")),
};

#[repr(transparent)]
pub(super) struct F32([u8; 4]);

// SAFETY: transparent over bytes.
unsafe impl Bytes for F32 {}

impl Block<1> for F32 {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 1]) {
        out[0] = f32::from_le_bytes(self.0);
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 1]], _: Option<&[[f32; 1]]>, out: &mut [Self]) {
        for ([x], out) in x.iter().zip(out) {
            out.0 = x.to_le_bytes();
        }
    }

    #[inline(always)]
    fn invalid(&self) -> Option<InvalidKind> {
        InvalidKind::of(u32::from_le_bytes(self.0), 23, 8)
    }
}

impl CacheElement<128> for F32 {
    type Scales<S: Simd> = ();

    #[inline(always)]
    fn scales<S: Simd>(_: S, _: SixteenChunks<'_, 128>) {}

    #[inline(always)]
    fn columns<S: Simd, const HALF: usize>(
        simd: S,
        rows: SixteenChunks<'_, 128>,
        (): (),
        to: &mut impl TakeColumn<S>,
    ) {
        for piece in 4 * HALF..4 * HALF + 4 {
            for (i, words) in rows.words(simd, 16 * piece).into_iter().enumerate() {
                to.take(simd, 4 * piece + i, simd.bits_to_floats(words));
            }
        }
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, chunk: &[u8; 128]) -> S::Lanes {
        simd.lanes(|i| F32::load_register(simd, chunk, i))
    }
}

impl FloatElement<128> for F32 {
    #[inline(always)]
    fn load_register<S: Simd>(simd: S, chunk: &[u8; 128], register: usize) -> S::Vector {
        let elements = chunk.as_chunks().0.first_chunk().expect("a chunk");
        simd.load_f32(elements, register)
    }
}
