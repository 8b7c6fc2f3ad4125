//! Elementary functions with the same bits on every CPU.

/// `exp(x)` within two units in the last place; 0 below -87.33, where the result would be subnormal, and
/// infinite above 88.72.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, then the Taylor polynomial of degree 7 in `r`, whose first
/// omitted term is below 5e-9. No branches and no table, so that loops are vectorised.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // ln 2 in two parts. The first has so few bits that `n` times it is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;

    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut p = 1.0 / 5040.0;
    for coefficient in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        p = f32::mul_add(p, r, coefficient);
    }
    // 2^n as two factors, because 2^128 overflows.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    let power = |n: i32| f32::from_bits(((n.wrapping_add(127)) as u32) << 23);
    let y = p * power(half) * power(n - half);
    let y = if x < -87.336_54 { 0.0 } else { y };
    let y = if x > 88.722_83 { f32::INFINITY } else { y };
    if x.is_nan() { x } else { y }
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x / (1 + exp(-x))`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `(exp(x) - exp(-x)) / (exp(x) + exp(-x))`, off by less than 2e-7.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    2.0 * sigmoid(2.0 * x) - 1.0
}

/// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    // Twice that square root: `(1 + tanh(a)) / 2` is the sigmoid of `2 a`.
    const FACTOR: f32 = 1.595_769;
    x * sigmoid(FACTOR * (x + 0.044_715 * x * x * x))
}

/// `ln(1 + exp(x))`; returns `x` above 20, where the difference is below half a unit in the last place.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { ln_1p(exp(x)) }
}

/// `ln(1 + x)` for `x >= 0`, in double precision. System math libraries differ in the last bit.
#[inline(always)]
fn ln_1p(x: f32) -> f32 {
    // 1 + x = 2^n m with m from 1/sqrt 2 on. For small x, n is 0 and no bit of x is lost.
    let x = f64::from(x);
    let bits = (1.0 + x).to_bits() as i64;
    let n = bits.wrapping_sub(std::f64::consts::FRAC_1_SQRT_2.to_bits() as i64) >> 52;
    let m = f64::from_bits(bits.wrapping_sub(n << 52) as u64);
    let f = if n == 0 { x } else { m - 1.0 };
    // ln m = 2 artanh((m - 1) / (m + 1)), by its series.
    let s = f / (2.0 + f);
    let z = s * s;
    let mut p = 1.0 / 13.0;
    for divisor in [11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        p = p * z + 1.0 / divisor;
    }
    (2.0 * s * p + n as f64 * std::f64::consts::LN_2) as f32
}

/// Sine and cosine of an angle in radians, off by half a unit in the last place up to 2^23 quarter turns.
/// Computed in double precision, because system math libraries differ in the last bit.
#[inline(always)]
pub(crate) fn sin_cos(angle: f32) -> (f32, f32) {
    // Adding 1.5 * 2^52 rounds to an integer, the number of quarter turns, in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // A quarter turn in three parts. The first two are so short that n times them is exact.
    const QUARTER: [f64; 3] = [
        1.570_796_325_802_803,
        9.920_935_791_635_221e-10,
        5.170_182_981_794_105e-19,
    ];
    let angle = f64::from(angle);
    let shifted = angle * std::f64::consts::FRAC_2_PI + ROUND;
    let n = shifted - ROUND;
    let r = QUARTER.iter().fold(angle, |r, part| r - n * part);
    let z = r * r;
    let mut sin = -1.0 / 39_916_800.0;
    for coefficient in [1.0 / 362_880.0, -1.0 / 5_040.0, 1.0 / 120.0, -1.0 / 6.0] {
        sin = sin * z + coefficient;
    }
    let sin = r + r * z * sin;
    let mut cos = 1.0 / 479_001_600.0;
    for coefficient in [
        -1.0 / 3_628_800.0,
        1.0 / 40_320.0,
        -1.0 / 720.0,
        1.0 / 24.0,
        -0.5,
        1.0,
    ] {
        cos = cos * z + coefficient;
    }
    let (sin, cos) = match shifted.to_bits() & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    };
    (sin as f32, cos as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0f64;
        for i in -87_000..88_700 {
            let x = i as f32 * 1e-3 + 3e-4;
            let exact = f64::from(x).exp();
            let unit = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
            worst = worst.max((f64::from(exp(x)) - exact).abs() / unit);
        }
        assert!(worst < 2.0, "{worst} units");
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(-87.4), 0.0);
        assert!(exp(88.7).is_finite());
        assert_eq!(exp(88.8), f32::INFINITY);
        assert_eq!(exp(f32::MAX), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(silu(f32::NEG_INFINITY.max(-200.0)), -0.0);
        assert_eq!(sigmoid(-200.0), 0.0);
        assert_eq!(sigmoid(200.0), 1.0);
    }

    #[test]
    fn softplus_follows_its_formula() {
        for i in -400..400 {
            let x = i as f32 * 0.1;
            let exact = f64::from(x).exp().ln_1p();
            assert!(
                (f64::from(softplus(x)) - exact).abs() <= 3e-7 * exact.max(1e-30),
                "{x}"
            );
        }
    }

    #[test]
    fn sine_and_cosine_are_those_of_double_precision() {
        let angles = (-4_000..4_000).map(|i| i as f32 * 0.01);
        let far = (0..4_000).map(|i| i as f32 * 259.7);
        for angle in angles.chain(far) {
            let (sin, cos) = f64::from(angle).sin_cos();
            assert_eq!(sin_cos(angle), (sin as f32, cos as f32), "{angle}");
        }
        assert!(sin_cos(f32::INFINITY).0.is_nan());
    }
}
