//! IQ2_S: superblocks of 256, groups of eight on a grid of 1024 points with any signs, a four-bit scale per 16
//! elements.

use std::sync::LazyLock;

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::fit_grid::{Base, GridSearch, PlainWeights, Refit, Superblock, fit_grid};
use super::common::grid::{self, Grid};
use super::common::grid_points;
use super::common::unpack::{Blocks, Form, HalfTile, TileScales, Unpack};
use super::{ElementType, Products};
use crate::simd::lanes::Lanes;
use crate::simd::packed::Packed;

/// The descriptor of IQ2_S.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::IQ2_S,
    codec: Codecs::of::<IQ2_S, 256>(),
    products: Some(Products::quants::<IQ2_S>()),
    cache: None,
    cuda: Some(include_str!("iq2_s.cuh")),
};

#[repr(C)]
pub(super) struct IQ2_S {
    d: Half,
    /// Low bytes of the indices of points.
    qs: [u8; 32],
    signs: [u8; 32],
    /// Two more bits of the indices.
    qh: [u8; 8],
    /// Two scales per byte, the first in the low nibble.
    scales: [u8; 8],
}

/// The magnitudes of quants.
const MAGNITUDES: [u8; 3] = [8, 25, 43];

/// The elements of a block relative to its scales, by quant and sign.
const VALUES: [f32; 16] = grid::signed_numbers(MAGNITUDES, 2);

/// [`VALUES`] with [`OFFSET`](Unpack::OFFSET).
const QUANTS: [u8; 16] = grid::signed(MAGNITUDES, 2, IQ2_S::OFFSET);

static POINTS: [u32; grid_points::IQ2_S.len()] = grid::words(&grid_points::IQ2_S);

static GRID: LazyLock<Grid<8>> = LazyLock::new(|| Grid::new(&grid_points::IQ2_S, 1));

const SEARCH: GridSearch = GridSearch {
    sigma2: 2.0,
    plain: PlainWeights::SquaresPlusQuarter,
    even_signs: false,
    zero_below: 1e-8,
    base: Base::Largest,
    n_steps: 9,
    step: 0.1,
    refit: Refit::OffGrid,
};

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for IQ2_S {}

impl Block<256> for IQ2_S {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        let mut indices = [0; 256];
        for (i, out) in indices.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = (self.qh[i / 4] >> (2 * (i % 4))) & 3;
            let index = usize::from(self.qs[i]) | (usize::from(high) << 8);
            grid::put_eight(grid_points::IQ2_S[index], self.signs[i], out);
        }
        let d = self.d.to_f32();
        grid::decode::<V, 16>(&VALUES, &indices, out, |b| {
            let quant = grid::nibble(&self.scales, b);
            d * (0.5 + f32::from(quant)) * 0.25
        });
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        fit_grid::<_, V, 16, 8>(&GRID, x, weights, &SEARCH, out, IQ2_S::pack);
    }
}

impl IQ2_S {
    fn pack(fit: &Superblock) -> IQ2_S {
        let mut block = IQ2_S {
            d: Half::from_f32(fit.max_scale / 31.0 * 0.9875),
            qs: fit.indices.as_chunks().0[0].map(|index| index as u8),
            signs: fit.signs,
            qh: [0; 8],
            scales: fit.scale_nibbles(),
        };
        for (i, index) in fit.indices[..32].iter().enumerate() {
            block.qh[i / 4] |= ((index >> 8) as u8) << (2 * (i % 4));
        }
        block
    }
}

impl Unpack for IQ2_S {
    type Form = Form<2, false, 7>;
    const LEAD: usize = 2;
    const TILES: usize = 8;
    const OFFSET: i32 = 43;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, tiles: &mut [TileScales]) {
        let d = simd.mul_floats(rows.halves(simd, 0), simd.splat_floats(0.25));
        grid::nibble_scales(simd, d, [rows.word(simd, 74), rows.word(simd, 78)], tiles);
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 1] {
        let low = simd.shift_right_by(rows.word(simd, 2 + 4 * group), 16 * HALF as u32);
        let signs = simd.shift_right_by(rows.word(simd, 34 + 4 * group), 16 * HALF as u32);
        let high = rows.word(simd, 66 + group / 4 * 4);
        let high = simd.shift_right_by(high, (8 * (group % 4) + 4 * HALF) as u32);
        let index = [
            grid::above_byte::<W, 3>(simd, low, high),
            grid::above_byte::<W, 3>(
                simd,
                simd.shift_right::<8>(low),
                simd.shift_right::<2>(high),
            ),
        ];
        let next = simd.shift_right::<8>(signs);
        let [a, b] = grid::look_up_eight(simd, &POINTS, index[0], signs, &QUANTS);
        let [c, d] = grid::look_up_eight(simd, &POINTS, index[1], next, &QUANTS);
        [[a, b, c, d]]
    }
}
