//! Activations as signed codes: what quantized weights are multiplied with.

use super::simd::LANES;

/// Consecutive elements of an activation row. An element is `scale * code`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Quantized {
    /// -127 to 127, four to a word.
    pub(super) codes: [[i8; 4]; LANES / 4],
    /// The largest magnitude over 127; NaN where an element is no finite number, so that the
    /// products show it.
    pub(super) scale: f32,
    /// What the first and the second half of the codes add up to.
    pub(super) sums: [i32; 2],
}

impl Quantized {
    /// Zeros.
    pub(super) const ZERO: Quantized = Quantized {
        codes: [[0; 4]; LANES / 4],
        scale: 0.0,
        sums: [0; 2],
    };

    /// Rounds to the nearest code, ties to even.
    #[inline(always)]
    pub(super) fn new(x: &[f32; LANES]) -> Quantized {
        // Without their sign the bits of numbers are in the order of the numbers, NaN on top.
        let largest = x.iter().map(|x| x.abs().to_bits()).fold(0, u32::max);
        let largest = f32::from_bits(largest);
        let scale = if largest.is_finite() {
            largest / 127.0
        } else {
            f32::NAN
        };
        let inverse = 127.0 / largest;
        // Zeros, and numbers too small to have an inverse.
        let inverse = if inverse.is_finite() { inverse } else { 0.0 };
        // Adding it leaves a number no bits for fractions; the low byte is the rounded integer.
        const ROUND: f32 = 12_582_912.0;
        let mut codes = [0; LANES];
        for (code, x) in codes.iter_mut().zip(x) {
            *code = (x * inverse + ROUND).to_bits() as i8;
        }
        let sum = |codes: &[i8]| codes.iter().map(|&code| i32::from(code)).sum();
        Quantized {
            sums: [sum(&codes[..LANES / 2]), sum(&codes[LANES / 2..])],
            codes: *codes.as_chunks().0.first_chunk().expect("eight words"),
            scale,
        }
    }
}
