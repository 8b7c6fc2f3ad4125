//! Q5_0: 32 five-bit quants with an offset, and a scale.

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::float::Half;
use super::lanes::Lanes;
use super::{nibbles, q4_0};

#[repr(C)]
pub(super) struct Q5_0 {
    d: Half,
    qh: [u8; 4],
    qs: [u8; 16],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<32> for Q5_0 {
    const DTYPE: DType = DType::Q5_0;

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        nibbles::decode_with_fifth::<V>(&self.qs, &self.qh, out, |q| {
            (q - V::splat(16.0)) * V::splat(d)
        });
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 32]], weights: Option<&[[f32; 32]]>, out: &mut [Self]) {
        for (out, (d, codes)) in out.iter_mut().zip(q4_0::quantize::<16, V>(x, weights)) {
            *out = Q5_0 {
                d,
                qh: nibbles::pack_fifth_bits::<V>(&codes),
                qs: nibbles::pack(&codes),
            };
        }
    }

    #[inline(always)]
    fn invalid(&self) -> Option<InvalidKind> {
        self.d.invalid()
    }
}
