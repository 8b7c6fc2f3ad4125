//! Functions of one number, the same bits on every processor.

/// `exp(x)` within two units in the last place; 0 below -87.33, where the result would be
/// subnormal, and infinite above 88.72.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, then the Taylor polynomial of degree 7 in `r`: its
/// first missing term is below 5e-9. No branch and no table, so that a loop of it is vectorised.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // ln 2 in two parts, the first with so few bits that `n` times it is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to an integer, which then sits in the low bits.
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
    // 2^n, in two factors because 2^128 is not a number.
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

/// `ln(1 + exp(x))`; `x` above 20, where the difference is below half a unit in the last place.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { exp(x).ln_1p() }
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
}
