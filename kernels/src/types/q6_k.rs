//! Q6_K: superblocks of 256, six-bit quants with an offset, a signed scale per 16 elements.

use std::mem::offset_of;

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::fit_symmetric::{Symmetric, fit_symmetric};
use super::common::one_pass;
use super::common::unpack::{self, Blocks, Form, HalfTile, TileScales, Unpack, in_each_byte};
use super::common::weights::{NEARLY_ZERO, Weights};
use super::{ElementType, Products};
use crate::float::{extreme, nearest_int};
use crate::simd::lanes::Lanes;
use crate::simd::packed::{Packed, each};

/// The descriptor of Q6_K.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::Q6_K,
    codec: Codecs::of::<Q6_K, 256>(),
    products: Some(Products::quants::<Q6_K>()),
    cache: None,
    cuda: Some(include_str!("q6_k.cuh")),
};

#[repr(C)]
pub(super) struct Q6_K {
    /// Low nibbles, 64 bytes per half of the superblock: see [`place`].
    pub(crate) ql: [u8; 128],
    /// High pairs of bits, 32 bytes per half.
    pub(crate) qh: [u8; 64],
    pub(crate) scales: [i8; 16],
    pub(crate) d: Half,
}

/// Position of the bits of an element.
struct BitPosition {
    /// Byte of `ql`, and the shift of the nibble in it.
    low: (usize, usize),
    /// Byte of `qh`, and the shift of the pair in it.
    high: (usize, usize),
}

/// Returns the position of element `l` of 32, in quarter `q` of half `h`.
#[inline(always)]
fn place(h: usize, q: usize, l: usize) -> BitPosition {
    BitPosition {
        low: (64 * h + 32 * (q % 2) + l, 4 * (q / 2)),
        high: (32 * h + l, 2 * q),
    }
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for Q6_K {}

impl Block<256> for Q6_K {
    const HALVES: &'static [usize] = &[offset_of!(Q6_K, d)];

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        let d = self.d.to_f32();
        for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (h, q) = (i / 4, i % 4);
            for (l, out) in out.iter_mut().enumerate() {
                let BitPosition { low, high } = place(h, q, l);
                let quant =
                    ((self.ql[low.0] >> low.1) & 15) | (((self.qh[high.0] >> high.1) & 3) << 4);
                let scale = d * f32::from(self.scales[2 * i + l / 16]);
                *out = scale * f32::from(quant as i8 - 32);
            }
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        let sub_blocks = x.as_flattened().as_chunks().0;
        let weights = match weights {
            Some(importance) => Weights::Given(importance.as_flattened().as_chunks().0),
            None => Weights::Squares,
        };
        let fits = fit_symmetric::<V, 16>(sub_blocks, weights, 32);
        let fits = fits.as_chunks().0;
        for ((x, fits), out) in sub_blocks.as_chunks().0.iter().zip(fits).zip(out) {
            *out = round::<V>(x, fits);
        }
    }
}

impl Q6_K {
    /// Replaces the three bytes that hold the quants of a column of four tiles, of eight columns at a time.
    #[inline(always)]
    fn map_columns(&mut self, f: impl Fn([u64; 3]) -> [u64; 3]) {
        let low = self.ql.as_chunks_mut::<64>().0;
        for (low, high) in low.iter_mut().zip(self.qh.as_chunks_mut::<32>().0) {
            let (even, odd) = low.split_at_mut(32);
            let [even, odd, high] = [even, odd, high].map(|bytes| bytes.as_chunks_mut::<8>().0);
            for ((even, odd), high) in even.iter_mut().zip(odd).zip(high) {
                let columns = f([*even, *odd, *high].map(u64::from_le_bytes));
                [*even, *odd, *high] = columns.map(u64::to_le_bytes);
            }
        }
    }
}

impl Unpack for Q6_K {
    type Form = Form<2, false, 6>;
    const READ_ORDER: &'static [(usize, usize)] = &[
        (192, 16),
        (0, 16),
        (32, 16),
        (128, 16),
        (16, 16),
        (48, 16),
        (144, 16),
        (64, 16),
        (96, 16),
        (160, 16),
        (80, 16),
        (112, 16),
        (176, 16),
    ];
    const IS_ARRANGED: bool = true;
    const TILES: usize = 8;
    const OFFSET: i32 = 32;
    type Group<W: Packed> = [HalfTile<W>; 4];

    /// The quants of the first three tiles are the low bits of a byte each; the pairs of bits of the fourth are above
    /// them, the highest pair first.
    fn arrange(&mut self) {
        let of = in_each_byte;
        self.map_columns(|[even, odd, high]| {
            [
                (even & of(0x0f)) | ((high << 4) & of(0x30)) | (high & of(0xc0)),
                (odd & of(0xcf)) | ((high << 2) & of(0x30)),
                ((even >> 4) & of(0x0f)) | (high & of(0x30)) | ((odd << 2) & of(0xc0)),
            ]
        });
    }

    fn restore(&mut self) {
        let of = in_each_byte;
        self.map_columns(|[first, second, third]| {
            let high = (first >> 4) & of(0x03) | ((second >> 2) & of(0x0c));
            [
                (first & of(0x0f)) | ((third << 4) & of(0xf0)),
                (second & of(0xcf)) | ((third >> 2) & of(0x30)),
                high | (third & of(0x30)) | (first & of(0xc0)),
            ]
        });
    }

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, scales: &mut [TileScales]) {
        let d = unpack::of_signed_bytes(simd, rows.halves(simd, 208));
        let words = rows.words(simd, 192);
        for (tiles, words) in scales.as_chunks_mut::<2>().0.iter_mut().zip(words) {
            for (i, scale) in unpack::signed_bytes(simd, words).into_iter().enumerate() {
                let scale = simd.mul_floats(d, scale);
                simd.store_floats(scale, &mut tiles[i / 2].scales[i % 2]);
            }
        }
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 4] {
        let first = rows.words(simd, 64 * group + 16 * HALF);
        let second = rows.words(simd, 64 * group + 32 + 16 * HALF);
        let third = rows.words(simd, 128 + 32 * group + 16 * HALF);
        [
            each!(4, i => simd.bits::<0>(first[i], 63)),
            each!(4, i => simd.bits::<0>(second[i], 63)),
            each!(4, i => simd.bits::<0>(third[i], 63)),
            each!(4, i => {
                let high = simd.bits::<2>(first[i], 0x30);
                let middle = simd.bits::<4>(second[i], 0x0c);
                simd.or(simd.or(high, middle), simd.bits::<6>(third[i], 0x03))
            }),
        ]
    }
}

/// Rounds the scales, then the elements with the rounded scales.
#[inline(always)]
fn round<V: Lanes>(x: &[[f32; 16]; 16], fits: &[Symmetric; 16]) -> Q6_K {
    let mut block = Q6_K {
        ql: [0; 128],
        qh: [0; 64],
        scales: [0; 16],
        d: Half::ZERO,
    };
    let scales = fits.map(|fit| fit.scale);
    let max_scale = extreme(&scales);
    if max_scale.abs() < NEARLY_ZERO {
        return block;
    }
    let inverse = -128.0 / max_scale;
    block.d = Half::from_f32(1.0 / inverse);
    block.scales = scales.map(|scale| nearest_int(inverse * scale).min(127) as i8);

    let d = block.d.to_f32();
    let mut quants = [[0; 32]; 8];
    let halves = quants.as_flattened_mut().as_chunks_mut::<16>().0;
    for (j, (x, quants)) in x.iter().zip(halves).enumerate() {
        let scale = d * f32::from(block.scales[j]);
        *quants = if scale == 0.0 {
            fits[j].quants(x, 32)
        } else {
            let quant = |x: V| (x / V::splat(scale)).round_to_quant(-32, 31) + V::splat(32.0);
            one_pass::quants::<V, 16>(x, quant)
        };
    }
    let bytes = block.ql.as_chunks_mut::<64>().0.iter_mut();
    let bytes = bytes.zip(block.qh.as_chunks_mut::<32>().0);
    for ((ql, qh), quants) in bytes.zip(quants.as_chunks::<4>().0) {
        for l in 0..32 {
            ql[l] = (quants[0][l] & 15) | (quants[2][l] << 4);
            ql[32 + l] = (quants[1][l] & 15) | (quants[3][l] << 4);
            let high = |q: usize| (quants[q][l] >> 4) << (2 * q);
            qh[l] = high(0) | high(1) | high(2) | high(3);
        }
    }
    block
}
