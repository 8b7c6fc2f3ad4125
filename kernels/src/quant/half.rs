//! F32, F16 and BF16: blocks of one element.

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::float::{f16_to_f32, f32_to_bf16, f32_to_f16};
use super::lanes::Lanes;

#[repr(transparent)]
pub(super) struct F32([u8; 4]);

// SAFETY: transparent over bytes.
unsafe impl Block<1> for F32 {
    const DTYPE: DType = DType::F32;

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

#[repr(transparent)]
pub(super) struct F16([u8; 2]);

// SAFETY: transparent over bytes.
unsafe impl Block<1> for F16 {
    const DTYPE: DType = DType::F16;

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 1]) {
        out[0] = f16_to_f32(u16::from_le_bytes(self.0));
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

#[repr(transparent)]
pub(super) struct BF16([u8; 2]);

impl BF16 {
    #[inline(always)]
    fn to_f32(&self) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(self.0)) << 16)
    }
}

// SAFETY: transparent over bytes.
unsafe impl Block<1> for BF16 {
    const DTYPE: DType = DType::BF16;

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 1]) {
        out[0] = self.to_f32();
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
