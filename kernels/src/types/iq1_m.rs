//! IQ1_M: superblocks of 256, groups of eight on the grid of IQ1_S, a three-bit scale per 16 elements and a shift
//! of all values by 1/8 per group.

use schemas::gguf::DType;

use super::InvalidKind;
use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::fit_grid::{PlainWeights, scale_quant, weights as importance_weights};
use super::common::fit_ternary::{self, GRID, POINTS, QUANTS, Ternary, fit_two_shifts};
use super::common::grid;
use super::common::grid_points;
use super::common::unpack::{self, Blocks, Form, HalfTile, TileScales, Unpack};
use super::{ElementType, Products};
use crate::float::f32_to_f16;
use crate::simd::lanes::Lanes;
use crate::simd::packed::Packed;

/// The descriptor of IQ1_M.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::IQ1_M,
    codec: Codecs::of::<IQ1_M, 256>(),
    products: Some(Products::quants::<IQ1_M>()),
    cache: None,
    cuda: Some(include_str!("iq1_m.cuh")),
};

#[repr(C)]
pub(super) struct IQ1_M {
    /// Low bytes of the indices of points.
    qs: [u8; 32],
    /// For each group, in nibbles, three more bits of the index and a bit for a shift down.
    qh: [u8; 16],
    /// Four scales each; the highest nibbles are the scale of the superblock.
    scales: [[u8; 2]; 4],
}

/// Magnitudes below are zero.
const ZERO_BELOW: f32 = 1e-7;

impl IQ1_M {
    #[inline(always)]
    fn d(&self) -> Half {
        let nibble = |i: usize| u16::from(self.scales[i][1] >> 4) << (4 * i);
        Half::from_bits(nibble(0) | nibble(1) | nibble(2) | nibble(3))
    }

    /// Returns the quant of the scale of sixteen elements.
    #[inline(always)]
    fn scale_quant(&self, b: usize) -> u8 {
        (u16::from_le_bytes(self.scales[b / 4]) >> (3 * (b % 4)) & 7) as u8
    }
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for IQ1_M {}

impl Block<256> for IQ1_M {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        let mut indices = [0; 256];
        for (i, out) in indices.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = self.qh[i / 2] >> (4 * (i % 2));
            let index = usize::from(self.qs[i]) | usize::from(high & 7) << 8;
            let shift = if high >> 3 & 1 == 1 { u8::MAX } else { 0 };
            grid::put_eight(grid_points::IQ1[index], shift, out);
        }
        let d = self.d().to_f32();
        grid::decode::<V, 16>(&fit_ternary::NUMBERS, &indices, out, |b| {
            d * f32::from(2 * self.scale_quant(b) + 1)
        });
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        let w = importance_weights::<V>(x, weights, PlainWeights::Squares, 2.0);
        let parts = (
            x.as_flattened().as_chunks().0,
            w.as_flattened().as_chunks().0,
        );
        let fits = fit_two_shifts::<V>(&GRID, parts.0, parts.1, ZERO_BELOW);
        let blocks = x.iter().zip(&w).zip(fits.as_chunks().0);
        for (out, ((x, w), fits)) in out.iter_mut().zip(blocks) {
            *out = IQ1_M::pack(x, w, fits);
        }
    }

    #[inline(always)]
    fn invalid(&self) -> Option<InvalidKind> {
        self.d().invalid()
    }
}

impl IQ1_M {
    fn pack(x: &[f32; 256], w: &[f32; 256], fits: &[Ternary; 16]) -> IQ1_M {
        let mut block = IQ1_M {
            qs: [0; 32],
            qh: [0; 16],
            scales: [[0; 2]; 4],
        };
        for (b, fit) in fits.iter().enumerate() {
            for (k, index) in fit.indices[..2].iter().enumerate() {
                block.qs[2 * b + k] = *index as u8;
                block.qh[b] |= ((index >> 8) as u8) << (4 * k);
            }
        }
        let max_scale = fit_ternary::max_scale(fits);
        if max_scale == 0.0 {
            return block;
        }
        let mut d = max_scale / 15.0;
        let mut bits = [0u16; 4];
        let (mut sum_xq, mut sum_q2) = (0.0, 0.0);
        for (b, fit) in fits.iter().enumerate() {
            let quant = scale_quant(fit.scale, d, 7);
            bits[b / 4] |= u16::from(quant) << (3 * (b % 4));
            for k in 0..2 {
                block.qh[b] |= u8::from(fit.is_down[k]) << (4 * k + 3);
                let values = &fit_ternary::VALUES[usize::from(fit.is_down[k])];
                let point = grid_points::IQ1[usize::from(fit.indices[k])];
                for i in 0..8 {
                    let at = 16 * b + 8 * k + i;
                    let value = values[usize::from(point >> (2 * i) & 3)];
                    let q = value * f32::from(2 * quant + 1);
                    sum_xq += w[at] * q * x[at];
                    sum_q2 += w[at] * q * q;
                }
            }
        }
        if sum_q2 > 0.0 {
            d = sum_xq / sum_q2;
        }
        let d = f32_to_f16(d * 1.1125);
        for (i, (scales, bits)) in block.scales.iter_mut().zip(bits).enumerate() {
            *scales = (bits | (d >> (4 * i) & 15) << 12).to_le_bytes();
        }
        block
    }
}

impl Unpack for IQ1_M {
    type Form = Form<2, false, 5>;
    const TILES: usize = 8;
    const OFFSET: i32 = fit_ternary::OFFSET;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, tiles: &mut [TileScales]) {
        let words = [rows.word(simd, 48), rows.word(simd, 52)];
        let part =
            |word, shift, mask| simd.and(simd.shift_right_by(word, shift), simd.splat_word(mask));
        let low = simd.or(part(words[0], 12, 0xf), part(words[0], 24, 0xf0));
        let high = simd.or(part(words[1], 4, 0xf00), part(words[1], 16, 0xf000));
        let d = simd.halves_to_floats(simd.or(low, high));
        let d = simd.mul_floats(d, simd.splat_floats(0.25));
        for (t, tile) in tiles.iter_mut().enumerate() {
            // Four scales in each sixteen bits.
            let first = (16 * (t / 2 % 2) + 6 * (t % 2)) as u32;
            for (half, scale) in tile.scales.iter_mut().enumerate() {
                let quant = part(words[t / 4], first + 3 * half as u32, 7);
                let quant = unpack::add(simd, simd.to_floats(quant), 0.5);
                simd.store_floats(simd.mul_floats(d, quant), scale);
            }
        }
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 1] {
        let low = simd.shift_right_by(rows.word(simd, 4 * group), 16 * HALF as u32);
        let high = rows.word(simd, 32 + group / 2 * 4);
        let high = simd.shift_right_by(high, (16 * (group % 2) + 8 * HALF) as u32);
        let next = (simd.shift_right::<8>(low), simd.shift_right::<4>(high));
        let index = [
            grid::above_byte::<W, 7>(simd, low, high),
            grid::above_byte::<W, 7>(simd, next.0, next.1),
        ];
        let shifts = [
            grid::repeat_bit::<W, 3>(simd, high),
            grid::repeat_bit::<W, 7>(simd, high),
        ];
        let [a, b] = grid::look_up_eight(simd, &POINTS, index[0], shifts[0], &QUANTS);
        let [c, d] = grid::look_up_eight(simd, &POINTS, index[1], shifts[1], &QUANTS);
        [[a, b, c, d]]
    }
}
