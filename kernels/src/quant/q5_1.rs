//! Q5_1: 32 five-bit quants, a scale and a minimum.

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::float::Half;
use super::lanes::Lanes;
use super::{nibbles, q4_1};

#[repr(C)]
pub(super) struct Q5_1 {
    d: Half,
    m: Half,
    qh: [u8; 4],
    qs: [u8; 16],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<32> for Q5_1 {
    const DTYPE: DType = DType::Q5_1;

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
                qh: nibbles::pack_fifth_bits::<V>(&block.codes),
                qs: nibbles::pack(&block.codes),
            };
        }
    }

    #[inline(always)]
    fn invalid(&self) -> Option<InvalidKind> {
        self.d.invalid().or(self.m.invalid())
    }
}
