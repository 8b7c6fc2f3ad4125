//! MXFP4: 32 four-bit floats and a power-of-two scale (OCP Microscaling Formats 1.0).

use schemas::gguf::DType;

use super::InvalidKind;
use super::common::block::{Block, Bytes, Codecs};
use super::common::nibbles;
use super::common::one_pass::{entries, max_abs, quants};
use super::common::unpack::{self, Blocks, Form, HalfTile, TileScales, Unpack};
use super::{ElementType, Products};
use crate::float::truncate;
use crate::simd::lanes::Lanes;
use crate::simd::packed::{Packed, each};
use crate::simd::steps::numbers;

/// The descriptor of MXFP4.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::MXFP4,
    codec: Codecs::of::<MXFP4, 32>(),
    products: Some(Products::quants::<MXFP4>()),
    cache: None,
    cuda: Some(include_str!("mxfp4.cuh")),
};

#[repr(C)]
pub(super) struct MXFP4 {
    /// Exponent, biased by 127; 255 is NaN.
    e: u8,
    qs: [u8; 16],
}

/// The E2M1 values of the sixteen quants, doubled.
pub(crate) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// [`VALUES`] as `f32`.
pub(super) const NUMBERS: [f32; 16] = numbers(&VALUES);

// SAFETY: repr(C) of bytes.
unsafe impl Bytes for MXFP4 {}

impl Block<32> for MXFP4 {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 32]) {
        let scale = half_scale(self.e);
        entries::<V>(&NUMBERS, &nibbles::unpack(&self.qs), out, |value| {
            value * V::splat(scale)
        });
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 32]], _: Option<&[[f32; 32]]>, out: &mut [Self]) {
        for (x, out) in x.iter().zip(out) {
            let e = exponent(max_abs::<V>(x));
            *out = MXFP4 {
                e,
                qs: nibbles::pack(&nearest::<V, 32>(x, half_scale(e))),
            };
        }
    }

    #[inline(always)]
    fn invalid(&self) -> Option<InvalidKind> {
        (self.e == u8::MAX).then_some(InvalidKind::Nan)
    }
}

impl Unpack for MXFP4 {
    type Form = Form<1, false, 5>;
    const LEAD: usize = 1;
    const TILES: usize = 1;
    const OFFSET: i32 = 12;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn scales<W: Packed>(_: W, rows: impl Blocks, scales: &mut [TileScales]) {
        scales[0].scales[0] = rows.bytes(0).map(half_scale);
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        _: usize,
    ) -> [HalfTile<W>; 1] {
        const TABLE: [u8; 16] = unpack::shifted(VALUES, MXFP4::OFFSET);
        let nibbles = unpack::nibbles::<W, HALF>(simd, rows, 1);
        [each!(4, i => simd.look_up(&TABLE, nibbles[i]))]
    }
}

/// `2^(e - 128)`: half the block's scale, since the values are doubled.
#[inline(always)]
pub(crate) fn half_scale(e: u8) -> f32 {
    let e = u32::from(e);
    // The two smallest scales are subnormal.
    f32::from_bits(if e < 2 {
        0x0020_0000 << e
    } else {
        (e - 1) << 23
    })
}

/// Returns the exponent of a block with largest magnitude `max`.
#[inline(always)]
fn exponent(max: f32) -> u8 {
    let (exponent, fraction) = (max.to_bits() >> 23, max.to_bits() & 0x007f_ffff);
    // Just below a power of two, log2f rounds up to the next integer; elsewhere its floor is the exponent.
    if exponent > 0 && fraction < 0x007f_ff00 {
        exponent.wrapping_sub(2) as u8
    } else {
        exponent_by_logarithm(max)
    }
}

/// Computes [`exponent`] for any number with a logarithm. log2 in double precision, then rounded, equals
/// the correctly rounded log2f.
fn exponent_by_logarithm(max: f32) -> u8 {
    if max > 0.0 {
        truncate((f64::from(max).log2() as f32).floor() - 2.0 + 127.0) as u8
    } else {
        0
    }
}

/// Returns the first quant of least distance for each element: first the magnitude, then the sign. Zero has
/// no sign.
#[inline(always)]
pub(super) fn nearest<V: Lanes, const N: usize>(x: &[f32; N], scale: f32) -> [u8; N] {
    // Midpoints between neighbouring values; up to a midpoint the lower value is nearest.
    let mut middles = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];
    for middle in &mut middles {
        *middle *= scale;
    }
    let (zero, one) = (V::splat(0.0), V::splat(1.0));
    quants::<V, N>(x, |x| {
        let magnitude = x.abs();
        let mut quant = zero;
        for middle in middles {
            quant = quant + V::select(magnitude.gt(V::splat(middle)), one, zero);
        }
        let is_negative = zero.gt(x) & quant.gt(zero);
        V::select(is_negative, quant + V::splat(8.0), quant)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_those_of_the_logarithm() {
        let fractions = (0..0x0080_0000)
            .step_by(4099)
            .chain(0x007f_fc00..0x0080_0000);
        for fraction in fractions {
            for exponent in 0..255 {
                let max = f32::from_bits((exponent << 23) | fraction);
                assert_eq!(super::exponent(max), exponent_by_logarithm(max), "{max:e}");
            }
        }
    }
}
