//! Q3_K: superblocks of 256, three-bit quants with an offset, a signed six-bit scale per 16 elements.

use std::mem::offset_of;

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::fit_symmetric::{descend, fit_symmetric};
use super::common::one_pass::quants;
use super::common::unpack::{self, Blocks, Form, HalfTile, TileScales, Unpack};
use super::common::weights::Weights;
use super::{ElementType, Products};
use crate::float::{extreme, nearest_int};
use crate::simd::lanes::{Lanes, energies};
use crate::simd::packed::{Packed, each};

/// The descriptor of Q3_K.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::Q3_K,
    codec: Codecs::of::<Q3_K, 256>(),
    products: Some(Products::quants::<Q3_K>()),
    cache: None,
    cuda: Some(include_str!("q3_k.cuh")),
};

#[repr(C)]
pub(super) struct Q3_K {
    /// Bit `e / 32` of byte `e % 32` is the third bit of element `e`.
    hmask: [u8; 32],
    /// 32 bytes per half of the superblock; bits `2k` hold its `k`-th 32 elements.
    qs: [[u8; 32]; 2],
    packed_scales: [u8; 12],
    d: Half,
}

impl Q3_K {
    /// Returns the scale of sub-block `j`.
    #[inline(always)]
    fn scale(&self, j: usize) -> f32 {
        let low = (self.packed_scales[j % 8] >> (4 * (j / 8))) & 15;
        let high = (self.packed_scales[8 + j % 4] >> (2 * (j / 4))) & 3;
        self.d.to_f32() * f32::from((low | (high << 4)) as i8 - 32)
    }

    /// Packs six-bit scales, stored with an offset of 32; the quants are set later.
    fn with_scales(d: f32, scales: &[u8; 16]) -> Q3_K {
        let mut packed_scales = [0; 12];
        for (j, quant) in scales.iter().enumerate() {
            packed_scales[j % 8] |= (quant & 15) << (4 * (j / 8));
            packed_scales[8 + j % 4] |= (quant >> 4) << (2 * (j / 4));
        }
        Q3_K {
            hmask: [0; 32],
            qs: [[0; 32]; 2],
            packed_scales,
            d: Half::from_f32(d),
        }
    }

    /// Quantizes sub-block `j` with its rounded scale; `None` if that has become 0.
    #[inline(always)]
    fn round<V: Lanes>(&self, j: usize, x: &[f32; 16]) -> Option<[u8; 16]> {
        let scale = self.scale(j);
        if scale == 0.0 {
            return None;
        }
        let quant = |x: V| (x / V::splat(scale)).round_to_quant(-4, 3) + V::splat(4.0);
        Some(quants::<V, 16>(x, quant))
    }

    #[inline(always)]
    fn set_quants(&mut self, j: usize, quants: &[u8; 16]) {
        let low = &mut self.qs[j / 8].as_chunks_mut::<16>().0[j % 2];
        let high = &mut self.hmask.as_chunks_mut::<16>().0[j % 2];
        for (l, quant) in quants.iter().enumerate() {
            low[l] |= (quant & 3) << (2 * (j % 8 / 2));
            high[l] |= (quant >> 2) << (j / 2);
        }
    }
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for Q3_K {}

impl Block<256> for Q3_K {
    const HALVES: &'static [usize] = &[offset_of!(Q3_K, d)];

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        for (j, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = self.scale(j);
            let low = &self.qs[j / 8].as_chunks::<16>().0[j % 2];
            let high = &self.hmask.as_chunks::<16>().0[j % 2];
            for l in 0..16 {
                let low = (low[l] >> (2 * (j % 8 / 2))) & 3;
                let high = (high[l] >> (j / 2)) & 1;
                out[l] = scale * f32::from((low | (high << 2)) as i8 - 4);
            }
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        match weights {
            None => quantize_plain::<V>(x, out),
            Some(importance) => quantize_weighted::<V>(x, importance, out),
        }
    }
}

impl Unpack for Q3_K {
    type Form = Form<2, false, 5>;
    const READ_ORDER: &'static [(usize, usize)] =
        &[(96, 12), (32, 16), (0, 16), (48, 16), (16, 16), (64, 32)];
    const TILES: usize = 8;
    const OFFSET: i32 = 4;
    type Group<W: Packed> = [HalfTile<W>; 4];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, scales: &mut [TileScales]) {
        let d = rows.halves(simd, 108);
        let a = rows.word(simd, 96);
        let b = rows.word(simd, 100);
        let high = rows.word(simd, 104);
        let high = unpack::pairs_of_bits(simd, high);
        let low = [
            simd.bits::<0>(a, 15),
            simd.bits::<0>(b, 15),
            simd.bits::<4>(a, 15),
            simd.bits::<4>(b, 15),
        ];
        for (part, tiles) in scales.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let scales = simd.or(low[part], simd.shift_left::<4>(high[part]));
            for (i, scale) in unpack::bytes(simd, scales).into_iter().enumerate() {
                let scale = simd.mul_floats(d, unpack::add(simd, scale, -32.0));
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
        let low = unpack::pairs_in_bytes(simd, rows.words(simd, 32 + 32 * group + 16 * HALF));
        // Bit `j` of each byte belongs to tile `j`.
        let high = rows.words(simd, 16 * HALF);
        let high: HalfTile<W> = each!(4, i => simd.shift_right_by(high[i], 4 * group as u32));
        [
            each!(4, i => unpack::above::<W, 2>(simd, low[0][i], simd.bits::<0>(high[i], 1))),
            each!(4, i => unpack::above::<W, 2>(simd, low[1][i], simd.bits::<1>(high[i], 1))),
            each!(4, i => unpack::above::<W, 2>(simd, low[2][i], simd.bits::<2>(high[i], 1))),
            each!(4, i => unpack::above::<W, 2>(simd, low[3][i], simd.bits::<3>(high[i], 1))),
        ]
    }
}

#[inline(always)]
fn quantize_plain<V: Lanes>(x: &[[f32; 256]], out: &mut [Q3_K]) {
    let sub_blocks = x.as_flattened().as_chunks().0;
    let fits = descend::<V, 16>(sub_blocks, 4);
    let superblocks = sub_blocks.as_chunks::<16>().0.iter().zip(out);
    for ((x, out), fits) in superblocks.zip(fits.as_chunks::<16>().0) {
        let (d, scales) = round_scales(&std::array::from_fn(|j| fits[j].0));
        *out = Q3_K::with_scales(d, &scales);
        for (j, x) in x.iter().enumerate() {
            out.set_quants(j, &out.round::<V>(j, x).unwrap_or(fits[j].1));
        }
    }
}

#[inline(always)]
fn quantize_weighted<V: Lanes>(x: &[[f32; 256]], importance: &[[f32; 256]], out: &mut [Q3_K]) {
    let sub_blocks = x.as_flattened().as_chunks().0;
    let energies = energies::<V>(x.as_flattened(), 256);
    let sigma2: Vec<f32> = energies.iter().map(|e| 2.0 * e / 256.0).collect();
    let weights = Weights::Importance {
        columns: importance.as_flattened().as_chunks().0,
        sigma2: &sigma2,
        per: 16,
    };
    let fits = fit_symmetric::<V, 16>(sub_blocks, weights, 4);
    let scales: Vec<f32> = fits.iter().map(|fit| fit.scale).collect();
    let weights: Vec<f32> = fits.iter().map(|fit| fit.weight).collect();
    let (scales, weights) = (scales.as_chunks().0, weights.as_chunks().0);
    let outer = fit_symmetric::<V, 16>(scales, Weights::Given(weights), 32);
    for (i, out) in out.iter_mut().enumerate() {
        *out = Q3_K::with_scales(outer[i].scale, &outer[i].quants(&scales[i], 32));
        for j in 0..16 {
            let x = &sub_blocks[16 * i + j];
            let quants = out
                .round::<V>(j, x)
                .unwrap_or_else(|| fits[16 * i + j].quants(x, 4));
            out.set_quants(j, &quants);
        }
    }
}

/// Quantizes scales relative to the largest magnitude over -32, with an offset of 32.
fn round_scales(scales: &[f32; 16]) -> (f32, [u8; 16]) {
    let max = extreme(scales);
    if max == 0.0 {
        return (0.0, [0; 16]);
    }
    let inverse = -32.0 / max;
    let quant = |scale: f32| (nearest_int(inverse * scale) as i8).clamp(-32, 31) + 32;
    (1.0 / inverse, scales.map(|scale| quant(scale) as u8))
}
