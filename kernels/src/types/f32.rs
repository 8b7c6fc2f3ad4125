//! F32: single precision.

use schemas::gguf::DType;

use super::common::block::{Block, Bytes, Codecs};
use super::common::cache::{CacheAccess, CacheElement, Square, put};
use super::common::unpack::InRows;
use super::{ElementType, InvalidKind, Products};
use crate::simd::Simd;
use crate::simd::lanes::Lanes;
use crate::simd::packed::ROWS;

/// The descriptor of F32.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::F32,
    codec: Codecs::of::<F32, 1>(),
    products: Some(Products::Floats),
    cache: Some(CacheAccess::of::<F32, 1, 128>("f32")),
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
    #[inline(always)]
    fn transpose<S: Simd>(simd: S, rows: [&[u8; 128]; ROWS], half: usize, out: &mut Square) {
        for piece in 0..8 {
            for (i, words) in InRows(rows).words(simd, 16 * piece).into_iter().enumerate() {
                put(simd, simd.bits_to_floats(words), 4 * piece + i, half, out);
            }
        }
    }
}
