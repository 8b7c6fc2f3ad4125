//! NVFP4: 64 four-bit floats, and an eight-bit float without sign as scale of each sixteen.

use schemas::gguf::DType;

use super::InvalidKind;
use super::common::block::{Block, Bytes, Codecs};
use super::common::one_pass::max_abs;
use super::common::unpack::{self, Blocks, Form, HalfTile, TileScales, Unpack};
use super::mxfp4::{NUMBERS, VALUES, nearest};
use super::{ElementType, Products};
use crate::simd::lanes::Lanes;
use crate::simd::packed::{Packed, each};

/// The descriptor of NVFP4.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::NVFP4,
    codec: Codecs::of::<NVFP4, 64>(),
    products: Some(Products::quants::<NVFP4>()),
    cache: None,
    cuda: Some(include_str!("nvfp4.cuh")),
};

#[repr(C)]
pub(super) struct NVFP4 {
    /// UE4M3 scales of sixteen elements each.
    scales: [u8; 4],
    /// The first eight elements of each sixteen in the low nibbles, the others in the high nibbles.
    qs: [[u8; 8]; 4],
}

/// Half the value of each UE4M3 number, since the values of quants are doubled; as bits.
const HALF_SCALES: [u32; 256] = {
    let mut bits = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (exponent, fraction) = ((i >> 3) & 15, i & 7);
        let value = match (exponent, fraction) {
            (0, fraction) => fraction as f32 / 1024.0,
            (exponent, fraction) => (8 + fraction) as f32 * (1u32 << exponent) as f32 / 2048.0,
        };
        bits[i] = if i == 0x7f { 0 } else { value.to_bits() };
        i += 1;
    }
    bits
};

#[inline(always)]
fn half_scale(scale: u8) -> f32 {
    f32::from_bits(HALF_SCALES[usize::from(scale)])
}

/// Rounds to the nearest UE4M3 number, ties up; to the largest from 248 on, as ggml does.
#[inline(always)]
fn to_scale(x: f32) -> u8 {
    if x < f32::from_bits((127 - 6) << 23) {
        return ((x * 512.0 + 0.5) as u8).min(7);
    }
    // Three fraction bits and the next one, which carries into the exponent.
    let bits = (x.to_bits() >> 19) + 1;
    match (bits >> 1) - ((127 - 7) << 3) {
        scale @ 0..0x78 => scale as u8,
        _ => 0x7e,
    }
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for NVFP4 {}

impl Block<64> for NVFP4 {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 64]) {
        for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = half_scale(self.scales[i]);
            for (j, &byte) in self.qs[i].iter().enumerate() {
                out[j] = scale * NUMBERS[usize::from(byte & 15)];
                out[j + 8] = scale * NUMBERS[usize::from(byte >> 4)];
            }
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 64]], _: Option<&[[f32; 64]]>, out: &mut [Self]) {
        for (x, out) in x.iter().zip(out) {
            for (i, x) in x.as_chunks::<16>().0.iter().enumerate() {
                let max = max_abs::<V>(x);
                let scale = to_scale(max / 6.0);
                let quants = quants::<V>(x, max, half_scale(scale));
                out.scales[i] = scale;
                let (low, high) = quants.split_at(8);
                for (byte, (low, high)) in out.qs[i].iter_mut().zip(low.iter().zip(high)) {
                    *byte = low | (high << 4);
                }
            }
        }
    }

    #[inline(always)]
    fn invalid(&self) -> Option<InvalidKind> {
        None
    }
}

/// Returns the first quant of least distance for each element.
#[inline(always)]
fn quants<V: Lanes>(x: &[f32; 16], max: f32, scale: f32) -> [u8; 16] {
    // Far beyond the largest value, rounding makes distances equal.
    if max <= 64.0 * scale {
        return nearest::<V, 16>(x, scale);
    }
    x.map(|x| {
        let distance = |i: usize| (NUMBERS[i] * scale - x).abs();
        let closer = |best, i| {
            if distance(i) < distance(best) {
                i
            } else {
                best
            }
        };
        (1..16).fold(0, closer) as u8
    })
}

impl Unpack for NVFP4 {
    type Form = Form<2, false, 5>;
    const TILES: usize = 2;
    const OFFSET: i32 = 12;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, tiles: &mut [TileScales]) {
        let scales = rows.word(simd, 0);
        let byte = simd.splat_word(0xff);
        let scales = each!(4, i => simd.and(simd.shift_right_by(scales, 8 * i as u32), byte));
        for (i, scale) in scales.into_iter().enumerate() {
            let scale = simd.bits_to_floats(simd.gather(&HALF_SCALES, scale));
            simd.store_floats(scale, &mut tiles[i / 2].scales[i % 2]);
        }
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 1] {
        const TABLE: [u8; 16] = unpack::shifted(VALUES, NVFP4::OFFSET);
        let at = 4 + 16 * group + 8 * HALF;
        let (first, second) = (rows.word(simd, at), rows.word(simd, at + 4));
        let quants = [
            simd.bits::<0>(first, 15),
            simd.bits::<0>(second, 15),
            simd.bits::<4>(first, 15),
            simd.bits::<4>(second, 15),
        ];
        [each!(4, i => simd.look_up(&TABLE, quants[i]))]
    }
}
