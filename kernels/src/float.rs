//! Single-precision operations with defined behaviour in every case, and 16-bit floats.

/// Converts to half precision: rounds to nearest, ties to even; infinite from 65520 on; NaN keeps its sign only.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) & 0x8000;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    // Below 2^-14 the result counts units of 2^-24, which is the last place of 0.5.
    let subnormal = (f32::from_bits(magnitude) + 0.5)
        .to_bits()
        .wrapping_sub(0x3f00_0000);
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude
        .wrapping_sub((127 - 15) << 23)
        .wrapping_add(0xfff + odd)
        >> 13;
    let finite = if magnitude < 0x3880_0000 {
        subnormal
    } else {
        normal
    };
    let rounded = if magnitude < 0x477f_f000 {
        finite
    } else {
        0x7c00
    };
    let bits = if magnitude > 0x7f80_0000 {
        0x7e00
    } else {
        rounded
    };
    (sign | bits) as u16
}

/// Converts from half precision, exactly. NaN keeps sign and payload and becomes quiet.
#[inline(always)]
pub fn f16_to_f32(h: u16) -> f32 {
    let sign = (u32::from(h) & 0x8000) << 16;
    let magnitude = u32::from(h) & 0x7fff;
    // Subnormal numbers count units of 2^-24, which is the last place of 0.5.
    let subnormal = (f32::from_bits(0x3f00_0000 | magnitude) - 0.5).to_bits();
    let normal = (magnitude << 13) + ((127 - 15) << 23);
    let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
    let special = 0x7f80_0000 | quiet | (magnitude << 13);
    let finite = if magnitude < 0x0400 {
        subnormal
    } else {
        normal
    };
    f32::from_bits(sign | if magnitude < 0x7c00 { finite } else { special })
}

/// Rounds to nearest, ties to even, subnormals kept; NaN keeps its high half and becomes quiet.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        (bits >> 16) as u16 | 0x40
    } else {
        ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
    }
}

/// 1.5 * 2^23: in a sum with this number the last place is 1.
pub(crate) const MAGIC: f32 = 12_582_912.0;

/// Rounds to the nearest integer, ties to even, for magnitudes below 2^22. Beyond that, returns the low
/// mantissa bits of a sum, as ggml's searches do: -2^22 for infinity, 0 for NaN.
#[inline(always)]
pub(crate) fn nearest_int(x: f32) -> i32 {
    ((x + MAGIC).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// Truncates as x86 does: a number that does not fit an `i32` becomes `i32::MIN`. Callers keep the low
/// eight bits, which are then 0; Rust's saturating cast would give 255.
#[inline(always)]
pub(crate) fn truncate(x: f32) -> i32 {
    let lowest = i32::MIN as f32;
    let x = if x.abs() < -lowest { x } else { lowest };
    // SAFETY: neither NaN nor outside an `i32`. (The saturating cast has no vector form.)
    unsafe { x.to_int_unchecked() }
}

/// Applies `f` to each element. Unlike `array::map`, it is always compiled for the caller's instruction
/// set.
#[inline(always)]
pub(crate) fn map<const N: usize, T: Copy + Default>(x: &[f32; N], f: impl Fn(f32) -> T) -> [T; N] {
    let mut out = [T::default(); N];
    for (out, &x) in out.iter_mut().zip(x) {
        *out = f(x);
    }
    out
}

/// `1 / x`, or 0 for 0.
#[inline(always)]
pub(crate) fn reciprocal(x: f32) -> f32 {
    if x != 0.0 { 1.0 / x } else { 0.0 }
}

/// Returns the first element of the largest magnitude with its sign; 0 if all are zero.
#[inline(always)]
pub(crate) fn extreme(x: &[f32]) -> f32 {
    let larger = |most: f32, &v: &f32| if v.abs() > most.abs() { v } else { most };
    x.iter().fold(0.0, larger)
}

/// Returns the largest number, or 0 if none is above.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |max, &v| if v > max { v } else { max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_agrees_with_the_half_crate() {
        for bits in 0..=u16::MAX {
            let ours = f16_to_f32(bits);
            let theirs = half::f16::from_bits(bits).to_f32_const();
            assert_eq!(ours.is_nan(), theirs.is_nan(), "{bits:04x}");
            if !ours.is_nan() {
                assert_eq!(ours.to_bits(), theirs.to_bits(), "{bits:04x}");
                assert_eq!(f32_to_f16(ours), bits);
            }
        }
        for bits in (0..=u32::MAX).step_by(997) {
            let x = f32::from_bits(bits);
            if !x.is_nan() {
                assert_eq!(
                    f32_to_f16(x),
                    half::f16::from_f32_const(x).to_bits(),
                    "{bits:08x}"
                );
            }
        }
        assert_eq!(f32_to_f16(65519.996), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(2f32.powi(-25)), 0, "a tie goes to even");
        assert_eq!(f32_to_f16(f32::from_bits(0x3300_0001)), 1);
        assert_eq!(f32_to_f16(f32::from_bits(0xff80_0001)), 0xfe00);
        assert_eq!(f16_to_f32(0xfc01).to_bits(), 0xffc0_2000);
    }

    #[test]
    fn bf16_rounds_to_even() {
        let cases = [
            (0x3f80_8000, 0x3f80),
            (0x3f81_8000, 0x3f82),
            (0x3f80_8001, 0x3f81),
            (0x0000_8001, 0x0001),
            (0x7f7f_ffff, 0x7f80),
            (0x7f80_0001, 0x7fc0),
        ];
        for (bits, expected) in cases {
            assert_eq!(f32_to_bf16(f32::from_bits(bits)), expected, "{bits:08x}");
        }
    }

    #[test]
    fn integers_at_the_edges() {
        let cases = [
            (0.5, 0),
            (1.5, 2),
            (-2.5, -2),
            (-0.500_001, -1),
            (4_194_303.0, 4_194_303),
        ];
        for (x, expected) in cases {
            assert_eq!(nearest_int(x), expected, "{x}");
        }
        assert_eq!(nearest_int(f32::INFINITY), -4_194_304);
        assert_eq!(nearest_int(f32::NAN), 0);
        assert_eq!(truncate(-1.99), -1);
        assert_eq!(truncate(2_147_483_648.0), i32::MIN);
        assert_eq!(truncate(f32::NAN), i32::MIN);
    }
}
