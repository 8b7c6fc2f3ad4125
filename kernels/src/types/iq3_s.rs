//! IQ3_S: superblocks of 256, groups of four on a grid of 512 points with any signs, a four-bit scale per 32
//! elements.

use std::sync::LazyLock;

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::fit_grid::{Base, GridSearch, PlainWeights, Refit, Superblock, fit_grid};
use super::common::grid::{self, Grid};
use super::common::grid_points;
use super::common::unpack::{self, Blocks, Form, HalfTile, TileScales, Unpack};
use super::{ElementType, Products};
use crate::simd::lanes::Lanes;
use crate::simd::packed::{Packed, each};

/// The descriptor of IQ3_S.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::IQ3_S,
    codec: Codecs::of::<IQ3_S, 256>(),
    products: Some(Products::quants::<IQ3_S>()),
    cache: None,
    cuda: Some(include_str!("iq3_s.cuh")),
};

#[repr(C)]
pub(super) struct IQ3_S {
    d: Half,
    /// Low bytes of the indices of points.
    qs: [u8; 64],
    /// The ninth bits of the indices.
    qh: [u8; 8],
    signs: [u8; 32],
    /// Two scales per byte, the first in the low nibble.
    scales: [u8; 4],
}

/// The magnitudes of quants.
const MAGNITUDES: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

/// The elements of a block relative to its scales, by quant and sign.
const VALUES: [f32; 16] = grid::signed_numbers(MAGNITUDES, 3);

/// [`VALUES`] with [`OFFSET`](Unpack::OFFSET).
const QUANTS: [u8; 16] = grid::signed(MAGNITUDES, 3, IQ3_S::OFFSET);

static POINTS: [u32; grid_points::IQ3_S.len()] = grid::spread_points(&grid_points::IQ3_S);

static GRID: LazyLock<Grid<4>> = LazyLock::new(|| Grid::new(&grid_points::IQ3_S, 3));

const SEARCH: GridSearch = GridSearch {
    sigma2: 2.0,
    plain: PlainWeights::Squares,
    even_signs: false,
    zero_below: SMALLEST,
    base: Base::Largest,
    n_steps: 9,
    step: 0.2,
    refit: Refit::AllIfOffGrid,
};

/// The least positive number: only zero is below.
const SMALLEST: f32 = f32::from_bits(1);

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for IQ3_S {}

impl Block<256> for IQ3_S {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        let mut indices = [0; 256];
        for (i, out) in indices.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let index = |k: usize| {
                let high = (self.qh[i / 4] >> (2 * (i % 4) + k)) & 1;
                usize::from(self.qs[2 * i + k]) | (usize::from(high) << 8)
            };
            grid::put_four(grid_points::IQ3_S[index(0)], self.signs[i], &mut out[..4]);
            grid::put_four(
                grid_points::IQ3_S[index(1)],
                self.signs[i] >> 4,
                &mut out[4..],
            );
        }
        let d = self.d.to_f32();
        grid::decode::<V, 32>(&VALUES, &indices, out, |b| {
            let quant = grid::nibble(&self.scales, b);
            d * f32::from(1 + 2 * quant)
        });
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        fit_grid::<_, V, 32, 4>(&GRID, x, weights, &SEARCH, out, IQ3_S::pack);
    }
}

impl IQ3_S {
    fn pack(fit: &Superblock) -> IQ3_S {
        let mut block = IQ3_S {
            d: Half::from_f32(fit.max_scale / 31.0 * 1.033),
            qs: [0; 64],
            qh: [0; 8],
            signs: [0; 32],
            scales: fit.scale_nibbles(),
        };
        // ggml does not advance past sub-blocks of zeros, so the low bytes and signs of those that follow
        // come too early: such superblocks decode to other numbers.
        let mut written = 0;
        for b in 0..8 {
            for (k, index) in fit.indices[8 * b..8 * b + 8].iter().enumerate() {
                block.qh[b] |= ((index >> 8) as u8) << k;
            }
            if fit.is_zero[b] {
                continue;
            }
            let low = &mut block.qs[8 * written..][..8];
            for (low, index) in low.iter_mut().zip(&fit.indices[8 * b..]) {
                *low = *index as u8;
            }
            block.signs[4 * written..][..4].copy_from_slice(&fit.signs[4 * b..][..4]);
            written += 1;
        }
        block
    }
}

impl Unpack for IQ3_S {
    type Form = Form<1, false, 5>;
    const LEAD: usize = 2;
    const TILES: usize = 8;
    const OFFSET: i32 = 15;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, tiles: &mut [TileScales]) {
        let two_d = simd.mul_floats(rows.halves(simd, 0), simd.splat_floats(2.0));
        let mut quants = rows.word(simd, 106);
        for tile in tiles {
            let quant = simd.to_floats(simd.and(quants, simd.splat_word(15)));
            quants = simd.shift_right::<4>(quants);
            let scale = simd.mul_floats(two_d, unpack::add(simd, quant, 0.5));
            simd.store_floats(scale, &mut tile.scales[0]);
        }
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 1] {
        let low = rows.word(simd, 2 + 8 * group + 4 * HALF);
        let high = rows.word(simd, 66 + group / 4 * 4);
        let high = simd.shift_right_by(high, (8 * (group % 4) + 4 * HALF) as u32);
        let signs = simd.shift_right_by(rows.word(simd, 74 + 4 * group), 16 * HALF as u32);
        let indices: HalfTile<W> = each!(4, i => grid::above_byte::<W, 1>(
            simd,
            simd.shift_right_by(low, 8 * i as u32),
            simd.shift_right_by(high, i as u32),
        ));
        [[
            grid::look_up_four::<W, 0>(simd, &POINTS, indices[0], signs, &QUANTS),
            grid::look_up_four::<W, 4>(simd, &POINTS, indices[1], signs, &QUANTS),
            grid::look_up_four::<W, 8>(simd, &POINTS, indices[2], signs, &QUANTS),
            grid::look_up_four::<W, 12>(simd, &POINTS, indices[3], signs, &QUANTS),
        ]]
    }
}
