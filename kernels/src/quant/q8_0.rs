//! Q8_0: 32 signed bytes and a scale.

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::float::{Half, map, reciprocal};
use super::lanes::Lanes;
use super::one_pass::{BATCH, codes, halves, max_abs};

#[repr(C)]
pub(crate) struct Q8_0 {
    pub(crate) d: Half,
    pub(crate) qs: [i8; 32],
}

/// The largest number below 0.5: adding it carries a fraction of a half or more to the next integer.
const NEARLY_HALF: f32 = 0.5 - f32::EPSILON / 4.0;

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<32> for Q8_0 {
    const DTYPE: DType = DType::Q8_0;

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        for (out, &q) in out.iter_mut().zip(&self.qs) {
            *out = d * f32::from(q);
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 32]], _: Option<&[[f32; 32]]>, out: &mut [Self]) {
        for (x, out) in x.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            let mut maxima = [0.0; BATCH];
            for (slot, x) in maxima.iter_mut().zip(x) {
                *slot = max_abs::<V>(x);
            }
            let d = map(&maxima, |max| max / 127.0);
            let (inverses, halves) = (map(&d, reciprocal), halves(&d));
            for (k, (x, out)) in x.iter().zip(out).enumerate() {
                let inverse = V::splat(inverses[k]);
                // Rounds ties away from zero, like C's roundf.
                let codes = codes::<V, 32>(x, |x| (x * inverse).away_from_zero(NEARLY_HALF));
                out.d = halves[k];
                for (out, code) in out.qs.iter_mut().zip(codes) {
                    *out = code as i8;
                }
            }
        }
    }

    #[inline(always)]
    fn invalid(&self) -> Option<InvalidKind> {
        self.d.invalid()
    }
}
