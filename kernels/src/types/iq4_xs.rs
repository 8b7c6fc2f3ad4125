//! IQ4_XS: superblocks of 256, quants as in IQ4_NL, a signed six-bit scale per 32 elements.

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::nibbles;
use super::common::one_pass::entries;
use super::common::unpack::{self, Blocks, Form, HalfTile, TileScales, Unpack};
use super::common::weights::Weights;
use super::iq4_nl::{self, IQ4_NL, NUMBERS, VALUES};
use super::{ElementType, Products};
use crate::float::{extreme, nearest_int, reciprocal};
use crate::simd::lanes::{Lanes, energies};
use crate::simd::packed::{Packed, each};

/// The descriptor of IQ4_XS.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::IQ4_XS,
    codec: Codecs::of::<IQ4_XS, 256>(),
    products: Some(Products::quants::<IQ4_XS>()),
    cache: None,
    cuda: Some(include_str!("iq4_xs.cuh")),
};

#[repr(C)]
pub(super) struct IQ4_XS {
    d: Half,
    scales_high: [u8; 2],
    scales_low: [u8; 4],
    qs: [[u8; 16]; 8],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for IQ4_XS {}

impl Block<256> for IQ4_XS {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        let high = u16::from_le_bytes(self.scales_high);
        for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = (self.scales_low[b / 2] >> (4 * (b % 2))) & 15;
            let quant = low | (((high >> (2 * b)) & 3) << 4) as u8;
            let scale = self.d.to_f32() * f32::from(quant as i8 - 32);
            entries::<V>(&NUMBERS, &nibbles::unpack(&self.qs[b]), out, |value| {
                V::splat(scale) * value
            });
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        let sub_blocks = x.as_flattened().as_chunks().0;
        let sigma2: Vec<f32>;
        let weights = match weights {
            None => Weights::Squares,
            Some(importance) => {
                let energies = energies::<V>(x.as_flattened(), 256);
                sigma2 = energies.iter().map(|e| e * (2.0 / 256.0)).collect();
                Weights::Importance {
                    columns: importance.as_flattened().as_chunks().0,
                    sigma2: &sigma2,
                    per: 8,
                }
            }
        };
        let scales = iq4_nl::fit::<V>(sub_blocks, weights);
        let superblocks = sub_blocks.as_chunks().0.iter().zip(scales.as_chunks().0);
        for ((x, scales), out) in superblocks.zip(out) {
            *out = round::<V>(x, scales);
        }
    }
}

impl Unpack for IQ4_XS {
    type Form = Form<1, false, 8>;
    const TILES: usize = 8;
    const OFFSET: i32 = IQ4_NL::OFFSET;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, scales: &mut [TileScales]) {
        let d = simd.halves_to_floats(rows.word(simd, 0));
        let mut high = simd.shift_right::<16>(rows.word(simd, 0));
        let mut low = rows.word(simd, 4);
        for tile in scales {
            let scale = simd.or(
                simd.and(low, simd.splat_word(15)),
                simd.shift_left::<4>(simd.and(high, simd.splat_word(3))),
            );
            (low, high) = (simd.shift_right::<4>(low), simd.shift_right::<2>(high));
            let scale = unpack::add(simd, simd.to_floats(scale), -32.0);
            simd.store_floats(simd.mul_floats(d, scale), &mut tile.scales[0]);
        }
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 1] {
        const TABLE: [u8; 16] = unpack::shifted(VALUES, IQ4_XS::OFFSET);
        let nibbles = unpack::nibbles::<W, HALF>(simd, rows, 8 + 16 * group);
        [each!(4, i => simd.look_up(&TABLE, nibbles[i]))]
    }
}

/// Rounds the scales, then the elements with the rounded scales.
#[inline(always)]
fn round<V: Lanes>(x: &[[f32; 32]; 8], scales: &[f32; 8]) -> IQ4_XS {
    let d = -extreme(scales) / 32.0;
    let inverse = reciprocal(d);
    let mut high = 0;
    let mut scales_low = [0; 4];
    let mut qs = [[0; 16]; 8];
    for (b, qs) in qs.iter_mut().enumerate() {
        let multiple = nearest_int(inverse * scales[b]).clamp(-32, 31);
        let quant = (multiple + 32) as u8;
        scales_low[b / 2] |= (quant & 15) << (4 * (b % 2));
        high |= u16::from(quant >> 4) << (2 * b);
        *qs = nibbles::pack(&iq4_nl::quants::<V>(&x[b], reciprocal(d * multiple as f32)));
    }
    IQ4_XS {
        d: Half::from_f32(d),
        scales_high: high.to_le_bytes(),
        scales_low,
        qs,
    }
}
