//! IQ3_XXS: superblocks of 256, groups of four on a grid of 256 points, an even number of minus signs per eight,
//! a four-bit scale per 32 elements.

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
use crate::simd::packed::{Packed, each};

/// The descriptor of IQ3_XXS.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::IQ3_XXS,
    codec: Codecs::of::<IQ3_XXS, 256>(),
    products: Some(Products::quants::<IQ3_XXS>()),
    cache: None,
    cuda: Some(include_str!("iq3_xxs.cuh")),
};

#[repr(C)]
pub(super) struct IQ3_XXS {
    d: Half,
    /// The indices of points.
    qs: [u8; 64],
    /// For each 32 elements four sign codes of seven bits and the scale.
    codes: [[u8; 4]; 8],
}

/// The magnitudes of quants.
const MAGNITUDES: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];

/// The elements of a block relative to its scales, by quant and sign.
const VALUES: [f32; 16] = grid::signed_numbers(MAGNITUDES, 3);

/// [`VALUES`] with [`OFFSET`](Unpack::OFFSET).
const QUANTS: [u8; 16] = grid::signed(MAGNITUDES, 3, IQ3_XXS::OFFSET);

static POINTS: [u32; grid_points::IQ3_XXS.len()] = grid::spread_points(&grid_points::IQ3_XXS);

static GRID: LazyLock<Grid<4>> = LazyLock::new(|| Grid::new(&grid_points::IQ3_XXS, 2));

const SEARCH: GridSearch = GridSearch {
    sigma2: 2.0,
    plain: PlainWeights::Squares,
    even_signs: true,
    zero_below: 1e-8,
    base: Base::Largest,
    n_steps: 15,
    step: 0.2,
    refit: Refit::OffGrid,
};

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for IQ3_XXS {}

impl Block<256> for IQ3_XXS {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        let mut indices = [0; 256];
        for (i, out) in indices.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let codes = u32::from_le_bytes(self.codes[i / 4]);
            let signs = grid::with_parity((codes >> (7 * (i % 4))) as u8);
            let [a, b] = [self.qs[2 * i], self.qs[2 * i + 1]].map(usize::from);
            grid::put_four(grid_points::IQ3_XXS[a], signs, &mut out[..4]);
            grid::put_four(grid_points::IQ3_XXS[b], signs >> 4, &mut out[4..]);
        }
        let d = self.d.to_f32();
        grid::decode::<V, 32>(&VALUES, &indices, out, |b| {
            d * (0.5 + f32::from(self.codes[b][3] >> 4)) * 0.5
        });
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        fit_grid::<_, V, 32, 4>(&GRID, x, weights, &SEARCH, out, IQ3_XXS::pack);
    }
}

impl IQ3_XXS {
    fn pack(fit: &Superblock) -> IQ3_XXS {
        let mut block = IQ3_XXS {
            d: Half::from_f32(fit.max_scale / 31.0 * 1.0125),
            qs: [0; 64],
            codes: [[0; 4]; 8],
        };
        if fit.max_scale == 0.0 {
            return block;
        }
        block.qs = fit.indices.map(|index| index as u8);
        for (b, codes) in block.codes.iter_mut().enumerate() {
            *codes = fit.codes(b);
        }
        block
    }
}

impl Unpack for IQ3_XXS {
    type Form = Form<1, false, 7>;
    const LEAD: usize = 2;
    const READ_ORDER: &'static [(usize, usize)] = &[(66, 32), (2, 64)];
    const TILES: usize = 8;
    const OFFSET: i32 = 62;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, tiles: &mut [TileScales]) {
        let d = simd.mul_floats(rows.halves(simd, 0), simd.splat_floats(0.5));
        grid::code_scales(simd, d, rows, (66, 4), tiles);
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 1] {
        let index = rows.word(simd, 2 + 8 * group + 4 * HALF);
        let codes = rows.word(simd, 66 + 4 * group);
        let codes = match HALF {
            0 => codes,
            _ => simd.shift_right::<14>(codes),
        };
        let a = grid::packed_parity::<W, 0>(simd, codes);
        let b = grid::packed_parity::<W, 7>(simd, codes);
        let indices: HalfTile<W> = each!(4, i => simd.shift_right_by(index, 8 * i as u32));
        [[
            grid::look_up_four::<W, 0>(simd, &POINTS, indices[0], a, &QUANTS),
            grid::look_up_four::<W, 4>(simd, &POINTS, indices[1], a, &QUANTS),
            grid::look_up_four::<W, 0>(simd, &POINTS, indices[2], b, &QUANTS),
            grid::look_up_four::<W, 4>(simd, &POINTS, indices[3], b, &QUANTS),
        ]]
    }
}
