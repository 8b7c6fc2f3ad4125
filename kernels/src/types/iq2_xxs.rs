//! IQ2_XXS: superblocks of 256, groups of eight on a grid of 256 points with an even number of minus signs,
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
use crate::simd::packed::Packed;

/// The descriptor of IQ2_XXS.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::IQ2_XXS,
    codec: Codecs::of::<IQ2_XXS, 256>(),
    products: Some(Products::quants::<IQ2_XXS>()),
    cache: None,
    cuda: Some(include_str!("iq2_xxs.cuh")),
};

#[repr(C)]
pub(super) struct IQ2_XXS {
    d: Half,
    /// For each 32 elements the indices of four points, then four sign codes of seven bits and the scale.
    sub_blocks: [[[u8; 4]; 2]; 8],
}

/// The magnitudes of quants.
const MAGNITUDES: [u8; 3] = [8, 25, 43];

/// The elements of a block relative to its scales, by quant and sign.
const VALUES: [f32; 16] = grid::signed_numbers(MAGNITUDES, 2);

/// [`VALUES`] with [`OFFSET`](Unpack::OFFSET).
const QUANTS: [u8; 16] = grid::signed(MAGNITUDES, 2, IQ2_XXS::OFFSET);

static POINTS: [u32; grid_points::IQ2_XXS.len()] = grid::words(&grid_points::IQ2_XXS);

static GRID: LazyLock<Grid<8>> = LazyLock::new(|| Grid::new(&grid_points::IQ2_XXS, 2));

const SEARCH: GridSearch = GridSearch {
    sigma2: 1.0,
    plain: PlainWeights::Ones,
    even_signs: true,
    zero_below: 1e-15,
    base: Base::Fitted,
    n_steps: 6,
    step: 0.1,
    refit: Refit::All,
};

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for IQ2_XXS {}

impl Block<256> for IQ2_XXS {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        let mut indices = [0; 256];
        for (sub_block, out) in self.sub_blocks.iter().zip(indices.as_chunks_mut::<32>().0) {
            let signs = u32::from_le_bytes(sub_block[1]);
            for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let point = grid_points::IQ2_XXS[usize::from(sub_block[0][k])];
                grid::put_eight(point, grid::with_parity((signs >> (7 * k)) as u8), out);
            }
        }
        let d = self.d.to_f32();
        grid::decode::<V, 32>(&VALUES, &indices, out, |b| {
            let quant = self.sub_blocks[b][1][3] >> 4;
            d * (0.5 + f32::from(quant)) * 0.25
        });
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        fit_grid::<_, V, 32, 8>(&GRID, x, weights, &SEARCH, out, IQ2_XXS::pack);
    }
}

impl IQ2_XXS {
    fn pack(fit: &Superblock) -> IQ2_XXS {
        let mut block = IQ2_XXS {
            d: Half::from_f32(fit.max_scale / 31.0),
            sub_blocks: [[[0; 4]; 2]; 8],
        };
        if fit.max_scale == 0.0 {
            return block;
        }
        for (b, sub_block) in block.sub_blocks.iter_mut().enumerate() {
            let indices = fit.indices.as_chunks::<4>().0[b];
            *sub_block = [indices.map(|index| index as u8), fit.codes(b)];
        }
        block
    }
}

impl Unpack for IQ2_XXS {
    type Form = Form<1, false, 7>;
    const LEAD: usize = 2;
    const TILES: usize = 8;
    const OFFSET: i32 = 43;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, tiles: &mut [TileScales]) {
        let d = simd.mul_floats(rows.halves(simd, 0), simd.splat_floats(0.25));
        grid::code_scales(simd, d, rows, (6, 8), tiles);
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 1] {
        let indices = rows.word(simd, 2 + 8 * group);
        let codes = rows.word(simd, 6 + 8 * group);
        let (indices, codes) = match HALF {
            0 => (indices, codes),
            _ => (
                simd.shift_right::<16>(indices),
                simd.shift_right::<14>(codes),
            ),
        };
        let next = simd.shift_right::<8>(indices);
        let signs = [
            grid::packed_parity::<W, 0>(simd, codes),
            grid::packed_parity::<W, 7>(simd, codes),
        ];
        let [a, b] = grid::look_up_eight(simd, &POINTS, indices, signs[0], &QUANTS);
        let [c, d] = grid::look_up_eight(simd, &POINTS, next, signs[1], &QUANTS);
        [[a, b, c, d]]
    }
}
