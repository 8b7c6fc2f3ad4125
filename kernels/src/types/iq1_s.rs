//! IQ1_S: superblocks of 256, groups of eight on a grid of 2048 points with the values -1, 0 and 1, a three-bit
//! scale and a shift of all values by 1/8 per 32 elements.

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::fit_grid::{PlainWeights, scale_quant, weights as importance_weights};
use super::common::fit_ternary::{self, GRID, POINTS, QUANTS, Ternary, fit_one_shift};
use super::common::grid;
use super::common::grid_points;
use super::common::unpack::{self, Blocks, Form, HalfTile, TileScales, Unpack};
use super::{ElementType, Products};
use crate::simd::lanes::Lanes;
use crate::simd::packed::Packed;

/// The descriptor of IQ1_S.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::IQ1_S,
    codec: Codecs::of::<IQ1_S, 256>(),
    products: Some(Products::quants::<IQ1_S>()),
    cache: None,
    cuda: Some(include_str!("iq1_s.cuh")),
};

#[repr(C)]
pub(super) struct IQ1_S {
    d: Half,
    /// Low bytes of the indices of points.
    qs: [u8; 32],
    /// For each 32 elements three more bits of four indices, the scale, and a bit for a shift down.
    qh: [[u8; 2]; 8],
}

/// Magnitudes below are zero.
const ZERO_BELOW: f32 = 1e-12;

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for IQ1_S {}

impl Block<256> for IQ1_S {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        let mut indices = [0; 256];
        for (i, out) in indices.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = u16::from_le_bytes(self.qh[i / 4]);
            let index = u16::from(self.qs[i]) | ((high >> (3 * (i % 4)) & 7) << 8);
            let shift = if high >> 15 == 1 { u8::MAX } else { 0 };
            grid::put_eight(grid_points::IQ1[usize::from(index)], shift, out);
        }
        let d = self.d.to_f32();
        grid::decode::<V, 32>(&fit_ternary::NUMBERS, &indices, out, |b| {
            d * f32::from(2 * (self.qh[b][1] >> 4 & 7) + 1)
        });
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        let w = importance_weights::<V>(x, weights, PlainWeights::Ones, 2.0);
        let (x, w) = (
            x.as_flattened().as_chunks().0,
            w.as_flattened().as_chunks().0,
        );
        let fits = fit_one_shift::<V>(&GRID, x, w, ZERO_BELOW);
        for (out, fits) in out.iter_mut().zip(fits.as_chunks().0) {
            *out = IQ1_S::pack(fits);
        }
    }
}

impl IQ1_S {
    fn pack(fits: &[Ternary; 8]) -> IQ1_S {
        let max_scale = fit_ternary::max_scale(fits);
        let d = max_scale / 15.0;
        let mut block = IQ1_S {
            d: Half::from_f32(d * 1.125),
            qs: [0; 32],
            qh: [[0; 2]; 8],
        };
        for (b, fit) in fits.iter().enumerate() {
            let mut high = 0;
            for (k, index) in fit.indices.iter().enumerate() {
                block.qs[4 * b + k] = *index as u8;
                high |= (index >> 8) << (3 * k);
            }
            if max_scale != 0.0 {
                high |= u16::from(scale_quant(fit.scale, d, 7)) << 12;
                high |= u16::from(fit.is_down[0]) << 15;
            }
            block.qh[b] = high.to_le_bytes();
        }
        block
    }
}

impl Unpack for IQ1_S {
    type Form = Form<1, false, 5>;
    const LEAD: usize = 2;
    const READ_ORDER: &'static [(usize, usize)] = &[(34, 16), (2, 32)];
    const TILES: usize = 8;
    const OFFSET: i32 = fit_ternary::OFFSET;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, tiles: &mut [TileScales]) {
        let d = simd.mul_floats(rows.halves(simd, 0), simd.splat_floats(0.25));
        for (b, tile) in tiles.iter_mut().enumerate() {
            let high = rows.word(simd, 34 + b / 2 * 4);
            let quant = simd.shift_right_by(high, 16 * (b % 2) as u32 + 12);
            let quant = simd.to_floats(simd.and(quant, simd.splat_word(7)));
            let scale = simd.mul_floats(d, unpack::add(simd, quant, 0.5));
            simd.store_floats(scale, &mut tile.scales[0]);
        }
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 1] {
        let low = simd.shift_right_by(rows.word(simd, 2 + 4 * group), 16 * HALF as u32);
        let high = rows.word(simd, 34 + group / 2 * 4);
        let high = simd.shift_right_by(high, 16 * (group % 2) as u32);
        let shift = grid::repeat_bit::<W, 15>(simd, high);
        let high = simd.shift_right_by(high, 6 * HALF as u32);
        let index = [
            grid::above_byte::<W, 7>(simd, low, high),
            grid::above_byte::<W, 7>(
                simd,
                simd.shift_right::<8>(low),
                simd.shift_right::<3>(high),
            ),
        ];
        let [a, b] = grid::look_up_eight(simd, &POINTS, index[0], shift, &QUANTS);
        let [c, d] = grid::look_up_eight(simd, &POINTS, index[1], shift, &QUANTS);
        [[a, b, c, d]]
    }
}
