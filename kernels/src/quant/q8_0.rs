//! Q8_0: 32 signed bytes and a scale.

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::float::{Half, map, max_abs, reciprocal, truncate};
use super::lanes::Lanes;

#[repr(C)]
pub(crate) struct Q8_0 {
    pub(crate) d: Half,
    pub(crate) qs: [i8; 32],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<32> for Q8_0 {
    const DTYPE: DType = DType::Q8_0;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        for (out, &q) in out.iter_mut().zip(&self.qs) {
            *out = d * f32::from(q);
        }
    }

    #[inline(always)]
    fn quantize_row<V: Lanes>(x: &[[f32; 32]], _: Option<&[[f32; 32]]>, out: &mut [Self]) {
        for (x, out) in x.iter().zip(out) {
            let d = max_abs(x) / 127.0;
            let inverse = reciprocal(d);
            out.d = Half::from_f32(d);
            // `round` takes ties away from zero, as C's roundf does.
            out.qs = map(x, |x| truncate((x * inverse).round()) as i8);
        }
    }

    fn invalid(&self) -> Option<InvalidKind> {
        InvalidKind::of(self.d.to_f32())
    }
}
