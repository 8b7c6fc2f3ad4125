//! IQ4_NL: 32 codes into a table of sixteen uneven steps, and a scale. The search also serves
//! IQ4_XS.

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::float::{Half, energy, extreme, reciprocal};
use super::lanes::Lanes;
use super::nibbles;
use super::search::{NEARLY_ZERO, importance_weights};

#[repr(C)]
pub(super) struct IQ4_NL {
    d: Half,
    qs: [u8; 16],
}

/// The values of the sixteen codes.
pub(crate) const VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<32> for IQ4_NL {
    const DTYPE: DType = DType::IQ4_NL;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        nibbles::decode(&self.qs, out, |code| d * value(code));
    }

    #[inline(always)]
    fn quantize_row<V: Lanes>(x: &[[f32; 32]], weights: Option<&[[f32; 32]]>, out: &mut [Self]) {
        let w = match weights {
            None => x.iter().map(|x| x.map(|x| x * x)).collect(),
            Some(importance) => {
                let sigma2: Vec<f32> = x.iter().map(|x| energy(x) * (2.0 / 32.0)).collect();
                importance_weights(x, importance, &sigma2, 1)
            }
        };
        for ((x, w), out) in x.iter().zip(&w).zip(out) {
            let scale = fit(x, w);
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

/// Below this the lower of two neighbouring values is nearer.
#[inline(always)]
fn middle(step: &[i8]) -> f32 {
    (f32::from(step[0]) + f32::from(step[1])) / 2.0
}

/// The codes of the values nearest to `inverse * x`; the last for NaN.
#[inline(always)]
pub(super) fn codes(x: &[f32; 32], inverse: f32) -> [u8; 32] {
    let mut codes = [15; 32];
    for step in VALUES.windows(2) {
        for (code, x) in codes.iter_mut().zip(x) {
            *code -= u8::from(inverse * x < middle(step));
        }
    }
    codes
}

/// The values nearest to `inverse * x`; the last for NaN.
#[inline(always)]
fn nearest_values(x: &[f32; 32], inverse: f32) -> [f32; 32] {
    let mut values = [value(15); 32];
    for step in VALUES.windows(2).rev() {
        for (value, x) in values.iter_mut().zip(x) {
            *value = if inverse * x < middle(step) {
                f32::from(step[0])
            } else {
                *value
            };
        }
    }
    values
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
        let q = nearest_values(x, inverse);
        for i in 0..32 {
            sum_qx += w[i] * q[i] * x[i];
            sum_q2 += w[i] * q[i] * q[i];
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
