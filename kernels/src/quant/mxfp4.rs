//! MXFP4: 32 four-bit floats and a power of two (OCP Microscaling Formats 1.0).

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::float::{map, max_abs, truncate};
use super::lanes::Lanes;
use super::nibbles;

#[repr(C)]
pub(super) struct MXFP4 {
    /// Exponent, biased by 127; 255 is NaN.
    e: u8,
    qs: [u8; 16],
}

/// The E2M1 values of the sixteen codes, doubled.
pub(crate) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

// SAFETY: repr(C) of bytes.
unsafe impl Block<32> for MXFP4 {
    const DTYPE: DType = DType::MXFP4;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let scale = half_scale(self.e);
        nibbles::decode(&self.qs, out, |code| {
            f32::from(VALUES[usize::from(code)]) * scale
        });
    }

    #[inline(always)]
    fn quantize_row<V: Lanes>(x: &[[f32; 32]], _: Option<&[[f32; 32]]>, out: &mut [Self]) {
        for (x, out) in x.iter().zip(out) {
            let max = max_abs(x);
            // log2 in double precision, then rounded, is the correctly rounded log2f; reading
            // the exponent bits is not, because log2f rounds up to the next integer just below.
            let e = if max > 0.0 {
                truncate((f64::from(max).log2() as f32).floor() - 2.0 + 127.0) as u8
            } else {
                0
            };
            let scale = half_scale(e);
            *out = MXFP4 {
                e,
                qs: nibbles::pack(&nearest(x, scale)),
            };
        }
    }

    fn invalid(&self) -> Option<InvalidKind> {
        (self.e == u8::MAX).then_some(InvalidKind::Nan)
    }
}

/// `2^(e - 128)`: half the block's scale, since the values are doubled.
#[inline(always)]
pub(crate) fn half_scale(e: u8) -> f32 {
    let e = u32::from(e);
    // The two smallest are subnormal.
    f32::from_bits(if e < 2 {
        0x0020_0000 << e
    } else {
        (e - 1) << 23
    })
}

/// For each element the first code of least distance.
#[inline(always)]
fn nearest(x: &[f32; 32], scale: f32) -> [u8; 32] {
    let mut codes = [0; 32];
    let mut best = map(x, |x| (f32::from(VALUES[0]) * scale - x).abs());
    for code in 1..16 {
        let value = f32::from(VALUES[code as usize]) * scale;
        for ((best, code_of_best), x) in best.iter_mut().zip(&mut codes).zip(x) {
            let distance = (value - x).abs();
            let nearer = distance < *best;
            *best = if nearer { distance } else { *best };
            *code_of_best = if nearer { code } else { *code_of_best };
        }
    }
    codes.map(|code: u32| code as u8)
}
