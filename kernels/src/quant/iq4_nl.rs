//! IQ4_NL: 32 codes into a table of sixteen uneven steps, and a scale. The search also serves
//! IQ4_XS.

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::float::{Half, energy, error_weights, extreme, reciprocal};
use super::nibbles;
use super::search::NEARLY_ZERO;

#[repr(C)]
pub(super) struct IQ4_NL {
    d: Half,
    qs: [u8; 16],
}

/// The values of the sixteen codes.
const VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<32> for IQ4_NL {
    const DTYPE: DType = DType::IQ4_NL;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        *out = nibbles::unpack(&self.qs).map(|code| d * value(code));
    }

    #[inline(always)]
    fn quantize_row(x: &[[f32; 32]], weights: Option<&[[f32; 32]]>, out: &mut [Self]) {
        for (i, (x, out)) in x.iter().zip(out).enumerate() {
            let w = match weights {
                None => x.map(|x| x * x),
                Some(weights) => error_weights(x, &weights[i], energy(x) * (2.0 / 32.0)),
            };
            let scale = fit(x, &w);
            let qs = nibbles::pack(&codes(x, reciprocal(scale)));
            *out = IQ4_NL {
                d: Half::from_f32(scale),
                qs,
            };
        }
    }

    fn invalid(&self) -> Option<InvalidKind> {
        InvalidKind::of(self.d.to_f32())
    }
}

/// The value of a code, below 16.
#[inline(always)]
pub(super) fn value(code: u8) -> f32 {
    f32::from(VALUES[usize::from(code & 15)])
}

/// The codes of the values nearest to `inverse * x`.
#[inline(always)]
pub(super) fn codes(x: &[f32; 32], inverse: f32) -> [u8; 32] {
    x.map(|x| nearest(inverse * x))
}

/// The code of the value nearest to `y`, the higher one in the middle between two.
#[inline(always)]
fn nearest(y: f32) -> u8 {
    if y <= value(0) {
        return 0;
    }
    if y >= value(15) {
        return 15;
    }
    let (mut below, mut above) = (0, 15);
    while above - below > 1 {
        let middle = (below + above) / 2;
        if y < value(middle) {
            above = middle;
        } else {
            below = middle;
        }
    }
    if y - value(below) < value(above) - y {
        below
    } else {
        above
    }
}

/// Scale of least squared error under the weights `w`; 0 for a block of zeros.
#[inline(always)]
pub(super) fn fit(x: &[f32; 32], w: &[f32; 32]) -> f32 {
    let extreme = extreme(x);
    if extreme.abs() < NEARLY_ZERO {
        return 0.0;
    }
    let sums = |inverse: f32| {
        let (mut sum_qx, mut sum_q2) = (0.0, 0.0);
        for i in 0..32 {
            let q = value(nearest(inverse * x[i]));
            sum_qx += w[i] * q * x[i];
            sum_q2 += w[i] * q * q;
        }
        (sum_qx, sum_q2)
    };
    let (sum_qx, sum_q2) = sums(1.0 / (-extreme / value(0)));
    let mut scale = if sum_q2 > 0.0 { sum_qx / sum_q2 } else { 0.0 };
    let mut best = scale * sum_qx;
    for step in -7..=7i8 {
        let (sum_qx, sum_q2) = sums((f32::from(step) + value(0)) / extreme);
        if sum_q2 > 0.0 && sum_qx * sum_qx > best * sum_q2 {
            scale = sum_qx / sum_q2;
            best = scale * sum_qx;
        }
    }
    scale
}
