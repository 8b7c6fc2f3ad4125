//! Q5_K: superblocks of 256, five-bit quants, scale and minimum per 32 elements.

use std::mem::offset_of;

use schemas::gguf::DType;

use super::common::block::{Block, Bytes, Codecs};
use super::common::fit_affine::{AffineSearch, Clamp, ErrorNorm};
use super::common::one_pass::numbers;
use super::common::superblock::{self, Scales, Searches};
use super::common::unpack::{Blocks, Form, HalfTile, TileScales, Unpack, in_each_byte};
use super::{ElementType, Products};
use crate::simd::lanes::Lanes;
use crate::simd::packed::{Packed, each};

/// The descriptor of Q5_K.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::Q5_K,
    codec: Codecs::of::<Q5_K, 256>(),
    products: Some(Products::quants::<Q5_K>()),
    cache: None,
    cuda: Some(include_str!("q5_k.cuh")),
};

#[repr(C)]
pub(super) struct Q5_K {
    pub(crate) scales: Scales,
    /// Bit `j` of byte `l` is the fifth bit of element `l` of sub-block `j`.
    pub(crate) qh: [u8; 32],
    /// 32 bytes per pair of sub-blocks: the first in the low nibbles, the second in the high nibbles.
    pub(crate) qs: [[u8; 32]; 4],
}

const SEARCHES: Searches = Searches {
    plain: AffineSearch {
        max_quant: 31,
        first_shift: -0.5,
        shift_step: 0.1,
        n_steps: 15,
        error: ErrorNorm::Squared,
        clamp: Clamp::Rounded,
    },
    weighted: AffineSearch::weighted(31),
};

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for Q5_K {}

impl Block<256> for Q5_K {
    const HALVES: &'static [usize] = &[offset_of!(Q5_K, scales.d), offset_of!(Q5_K, scales.dmin)];

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = self.scales.sub_block(j);
            let mut quants = [0; 32];
            for (l, quant) in quants.iter_mut().enumerate() {
                let low = (self.qs[j / 2][l] >> (4 * (j % 2))) & 15;
                *quant = low | (((self.qh[l] >> j) & 1) << 4);
            }
            numbers::<V, 32>(&quants, out, |q| V::splat(scale) * q - V::splat(min));
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        superblock::quantize_rows::<V>(x, weights, &SEARCHES, |i, scales, quants| {
            let (mut qs, mut qh) = ([[0; 32]; 4], [0; 32]);
            for (qs, [low, high]) in qs.iter_mut().zip(quants.as_chunks().0) {
                for ((byte, low), high) in qs.iter_mut().zip(low).zip(high) {
                    *byte = (low & 15) | (high << 4);
                }
            }
            for (j, quants) in quants.iter().enumerate() {
                for (byte, quant) in qh.iter_mut().zip(quants) {
                    *byte |= (quant >> 4) << j;
                }
            }
            out[i] = Q5_K { scales, qh, qs };
        });
    }
}

impl Q5_K {
    /// Replaces the byte and the pair of bits of `qh` that hold the quants of a column of two tiles, of eight columns at a
    /// time.
    #[inline(always)]
    fn map_columns(&mut self, f: impl Fn(u64, u64) -> (u64, u64)) {
        let pair = in_each_byte(3);
        for (group, low) in self.qs.iter_mut().enumerate() {
            let shift = 2 * group;
            let high = self.qh.as_chunks_mut::<8>().0;
            for (low, high) in low.as_chunks_mut::<8>().0.iter_mut().zip(high) {
                let all = u64::from_le_bytes(*high);
                let (new_low, new_high) = f(u64::from_le_bytes(*low), (all >> shift) & pair);
                *low = new_low.to_le_bytes();
                *high = ((all & !(pair << shift)) | (new_high << shift)).to_le_bytes();
            }
        }
    }
}

impl Unpack for Q5_K {
    type Form = Form<1, true, 5>;
    const READ_ORDER: &'static [(usize, usize)] =
        &[(0, 16), (48, 16), (16, 16), (64, 16), (32, 16), (80, 96)];
    const IS_ARRANGED: bool = true;
    const TILES: usize = 8;
    const OFFSET: i32 = 0;
    type Group<W: Packed> = [HalfTile<W>; 2];

    /// The quants of even tiles are the low bits of a byte; above them are the high bits of the odd tile, whose low pair
    /// replaces the fifth bits of both.
    fn arrange(&mut self) {
        let of = in_each_byte;
        self.map_columns(|low, fifth| {
            let odd = ((low >> 4) & of(0x0f)) | ((fifth << 3) & of(0x10));
            let even = (low & of(0x0f)) | ((fifth << 4) & of(0x10));
            (even | ((odd << 3) & of(0xe0)), odd & of(3))
        });
    }

    fn restore(&mut self) {
        let of = in_each_byte;
        self.map_columns(|low, pair| {
            let odd = ((low >> 3) & of(0x1c)) | pair;
            let fifth = ((low >> 4) & of(1)) | ((odd >> 3) & of(2));
            ((low & of(0x0f)) | ((odd << 4) & of(0xf0)), fifth)
        });
    }

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, scales: &mut [TileScales]) {
        superblock::unpack_scales(simd, rows, scales);
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 2] {
        let low = rows.words(simd, 48 + 32 * group + 16 * HALF);
        // A pair of bits for each group.
        let pairs = rows.words(simd, 16 + 16 * HALF);
        let pairs: HalfTile<W> = each!(4, i => simd.shift_right_by(pairs[i], 2 * group as u32));
        [
            each!(4, i => simd.bits::<0>(low[i], 31)),
            each!(4, i => simd.or(simd.bits::<3>(low[i], 0x1c), simd.bits::<0>(pairs[i], 3))),
        ]
    }
}
