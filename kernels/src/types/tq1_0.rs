//! TQ1_0: superblocks of 256, the values -1, 0 and 1 as ternary digits, five per byte, and a scale.
//!
//! A byte stores its digits as a fraction of 256, rounded up: multiplying it by 3 moves the first digit
//! above the byte.

use std::mem::offset_of;

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::one_pass::{numbers, ternary};
use super::common::unpack::{self, Blocks, Form, HalfTile, TileScales, Unpack};
use super::{ElementType, Products};
use crate::simd::lanes::Lanes;
use crate::simd::packed::{Packed, each};

/// The descriptor of TQ1_0.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::TQ1_0,
    codec: Codecs::of::<TQ1_0, 256>(),
    products: Some(Products::quants::<TQ1_0>()),
    cache: None,
    cuda: Some(include_str!("tq1_0.cuh")),
};

#[repr(C)]
pub(super) struct TQ1_0 {
    /// Digit `n` of byte `m` is element `32 n + m`.
    first: [u8; 32],
    /// Digit `n` of byte `m` is element `160 + 16 n + m`.
    second: [u8; 16],
    /// Digit `n`, below 4, of byte `m` is element `240 + 4 n + m`.
    rest: [u8; 4],
    d: Half,
}

/// Packs digits: digit `n` of byte `m` is `quants[N * n + m]`, or 0 at the end.
#[inline(always)]
fn pack<const N: usize>(quants: &[u8]) -> [u8; N] {
    let mut numbers = [0u32; N];
    for n in 0..5 {
        let digits = quants.get(n * N..(n + 1) * N).unwrap_or(&[0; N]);
        for (number, &digit) in numbers.iter_mut().zip(digits) {
            *number = 3 * *number + u32::from(digit);
        }
    }
    let mut bytes = [0; N];
    for (byte, number) in bytes.iter_mut().zip(numbers) {
        *byte = (256 * number).div_ceil(243) as u8;
    }
    bytes
}

/// The inverse of [`pack`], for as many digits as `quants` has.
#[inline(always)]
fn unpack_digits<const N: usize>(bytes: &[u8; N], quants: &mut [u8]) {
    let mut bytes = *bytes;
    for quants in quants.as_chunks_mut::<N>().0 {
        for (quant, byte) in quants.iter_mut().zip(&mut bytes) {
            let product = 3 * u16::from(*byte);
            (*quant, *byte) = ((product >> 8) as u8, product as u8);
        }
    }
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for TQ1_0 {}

impl Block<256> for TQ1_0 {
    const HALVES: &'static [usize] = &[offset_of!(TQ1_0, d)];

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        let mut quants = [0; 256];
        unpack_digits(&self.first, &mut quants[..160]);
        unpack_digits(&self.second, &mut quants[160..240]);
        unpack_digits(&self.rest, &mut quants[240..]);
        let d = V::splat(self.d.to_f32());
        numbers::<V, 256>(&quants, out, |q| (q - V::splat(1.0)) * d);
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], _: Option<&[[f32; 256]]>, out: &mut [Self]) {
        for (x, out) in x.iter().zip(out) {
            let (d, quants) = ternary::<V, 256>(x);
            *out = TQ1_0 {
                first: pack(&quants[..160]),
                second: pack(&quants[160..240]),
                rest: pack(&quants[240..]),
                d: Half::from_f32(d),
            };
        }
    }
}

/// The bytes of a word in fields of sixteen bits: the even and the odd ones.
type Fields<W> = [<W as Packed>::Words; 2];

#[inline(always)]
fn fields<W: Packed>(simd: W, words: W::Words) -> Fields<W> {
    let mask = simd.splat_word(0x00ff_00ff);
    [
        simd.and(words, mask),
        simd.and(simd.shift_right::<8>(words), mask),
    ]
}

/// Returns the first digits of fields as the bytes of a word.
#[inline(always)]
fn digits<W: Packed>(simd: W, fields: Fields<W>) -> W::Words {
    let [even, odd] = each!(2, i => times_three(simd, fields[i]));
    simd.or(
        simd.and(simd.shift_right::<8>(even), simd.splat_word(0x0003_0003)),
        simd.and(odd, simd.splat_word(0x0300_0300)),
    )
}

/// Removes the first digit of each field.
#[inline(always)]
fn without_digit<W: Packed>(simd: W, fields: Fields<W>) -> Fields<W> {
    let mask = simd.splat_word(0x00ff_00ff);
    each!(2, i => simd.and(times_three(simd, fields[i]), mask))
}

#[inline(always)]
fn times_three<W: Packed>(simd: W, fields: W::Words) -> W::Words {
    simd.add(fields, simd.shift_left::<1>(fields))
}

/// Returns digit `N`, counted from 0, of the bytes of each word.
#[inline(always)]
fn digit<W: Packed, const N: usize>(simd: W, words: W::Words) -> W::Words {
    let mut fields = fields(simd, words);
    for _ in 0..N {
        fields = without_digit(simd, fields);
    }
    digits(simd, fields)
}

/// Returns digit `N` of the bytes of four words.
#[inline(always)]
fn half<W: Packed, const N: usize>(simd: W, words: [W::Words; 4]) -> HalfTile<W> {
    each!(4, i => digit::<W, N>(simd, words[i]))
}

impl Unpack for TQ1_0 {
    type Form = Form<1, false, 4>;
    const TILES: usize = 8;
    const OFFSET: i32 = 1;
    type Group<W: Packed> = [HalfTile<W>; 4];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, scales: &mut [TileScales]) {
        unpack::common_scale(simd, rows, 52, scales);
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 4] {
        let first = rows.words(simd, 16 * HALF);
        if group == 0 {
            return [
                half::<W, 0>(simd, first),
                half::<W, 1>(simd, first),
                half::<W, 2>(simd, first),
                half::<W, 3>(simd, first),
            ];
        }
        let last = half::<W, 4>(simd, first);
        // The halves of the next tiles alternate between the digits of sixteen bytes.
        let second = rows.words(simd, 32);
        if HALF == 0 {
            return [
                last,
                half::<W, 0>(simd, second),
                half::<W, 2>(simd, second),
                half::<W, 4>(simd, second),
            ];
        }
        let rest = rows.word(simd, 48);
        [
            last,
            half::<W, 1>(simd, second),
            half::<W, 3>(simd, second),
            [
                digit::<W, 0>(simd, rest),
                digit::<W, 1>(simd, rest),
                digit::<W, 2>(simd, rest),
                digit::<W, 3>(simd, rest),
            ],
        ]
    }
}
