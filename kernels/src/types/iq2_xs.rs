//! IQ2_XS: superblocks of 256, groups of eight on a grid of 512 points with an even number of minus signs,
//! a four-bit scale per 16 elements.

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

/// The descriptor of IQ2_XS.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::IQ2_XS,
    codec: Codecs::of::<IQ2_XS, 256>(),
    products: Some(Products::quants::<IQ2_XS>()),
    cache: None,
    cuda: Some(include_str!("iq2_xs.cuh")),
};

#[repr(C)]
pub(super) struct IQ2_XS {
    d: Half,
    /// For each group the index of the point, nine bits, and the sign code, seven bits.
    qs: [[u8; 2]; 32],
    /// Two scales per byte, the first in the low nibble.
    scales: [u8; 8],
}

/// The magnitudes of quants.
const MAGNITUDES: [u8; 3] = [8, 25, 43];

/// The elements of a block relative to its scales, by quant and sign.
const VALUES: [f32; 16] = grid::signed_numbers(MAGNITUDES, 2);

/// [`VALUES`] with [`OFFSET`](Unpack::OFFSET).
const QUANTS: [u8; 16] = grid::signed(MAGNITUDES, 2, IQ2_XS::OFFSET);

static POINTS: [u32; grid_points::IQ2_XS.len()] = grid::words(&grid_points::IQ2_XS);

static GRID: LazyLock<Grid<8>> = LazyLock::new(|| Grid::new(&grid_points::IQ2_XS, 2));

const SEARCH: GridSearch = GridSearch {
    sigma2: 1.0,
    plain: PlainWeights::Ones,
    even_signs: true,
    zero_below: 1e-15,
    base: Base::Largest,
    n_steps: 9,
    step: 0.1,
    refit: Refit::OffGrid,
};

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for IQ2_XS {}

impl Block<256> for IQ2_XS {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        let mut indices = [0; 256];
        for (group, out) in self.qs.iter().zip(indices.as_chunks_mut::<8>().0) {
            let group = u16::from_le_bytes(*group);
            let point = grid_points::IQ2_XS[usize::from(group & 511)];
            grid::put_eight(point, grid::with_parity((group >> 9) as u8), out);
        }
        let d = self.d.to_f32();
        grid::decode::<V, 16>(&VALUES, &indices, out, |b| {
            let quant = grid::nibble(&self.scales, b);
            d * (0.5 + f32::from(quant)) * 0.25
        });
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        fit_grid::<_, V, 16, 8>(&GRID, x, weights, &SEARCH, out, IQ2_XS::pack);
    }
}

impl IQ2_XS {
    fn pack(fit: &Superblock) -> IQ2_XS {
        let mut block = IQ2_XS {
            d: Half::from_f32(fit.max_scale / 31.0),
            qs: [[0; 2]; 32],
            scales: fit.scale_nibbles(),
        };
        if fit.max_scale == 0.0 {
            return block;
        }
        for (i, group) in block.qs.iter_mut().enumerate() {
            let signs = u16::from(fit.signs[i] & 127);
            *group = (fit.indices[i] | (signs << 9)).to_le_bytes();
        }
        block
    }
}

impl Unpack for IQ2_XS {
    type Form = Form<2, false, 7>;
    const LEAD: usize = 2;
    const READ_ORDER: &'static [(usize, usize)] = &[(66, 8), (2, 64)];
    const TILES: usize = 8;
    const OFFSET: i32 = 43;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, tiles: &mut [TileScales]) {
        let d = simd.mul_floats(rows.halves(simd, 0), simd.splat_floats(0.25));
        grid::nibble_scales(simd, d, [rows.word(simd, 66), rows.word(simd, 70)], tiles);
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 1] {
        let groups = rows.word(simd, 2 + 8 * group + 4 * HALF);
        let next = simd.shift_right::<16>(groups);
        let signs = [
            grid::packed_parity::<W, 9>(simd, groups),
            grid::packed_parity::<W, 25>(simd, groups),
        ];
        let [a, b] = grid::look_up_eight(simd, &POINTS, groups, signs[0], &QUANTS);
        let [c, d] = grid::look_up_eight(simd, &POINTS, next, signs[1], &QUANTS);
        [[a, b, c, d]]
    }
}
