//! Q2_K: superblocks of 256, two-bit quants, four-bit scale and minimum per 16 elements.

use std::mem::offset_of;

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::fit_affine::{Affine, AffineSearch, Clamp, ErrorNorm, fit_affine};
use super::common::fit_positive::fit_positive;
use super::common::one_pass::numbers;
use super::common::superblock::requantize;
use super::common::unpack::{self, Blocks, Form, HalfTile, TileScales, Unpack};
use super::common::weights::Weights;
use super::{ElementType, Products};
use crate::float::{largest, nearest_int};
use crate::simd::lanes::{Lanes, energies};
use crate::simd::packed::Packed;

/// The descriptor of Q2_K.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::Q2_K,
    codec: Codecs::of::<Q2_K, 256>(),
    products: Some(Products::quants::<Q2_K>()),
    cache: None,
    cuda: Some(include_str!("q2_k.cuh")),
};

#[repr(C)]
pub(super) struct Q2_K {
    /// Scales in the low nibbles, minima in the high nibbles.
    scales: [u8; 16],
    /// 32 bytes per half of the superblock; bits `2k` hold its `k`-th 32 elements.
    qs: [[u8; 32]; 2],
    d: Half,
    dmin: Half,
}

const PLAIN: AffineSearch = AffineSearch {
    max_quant: 3,
    first_shift: -0.5,
    shift_step: 0.1,
    n_steps: 15,
    error: ErrorNorm::Absolute,
    clamp: Clamp::Rounded,
};

impl Q2_K {
    /// Returns scale and minimum of sub-block `j`: its elements are `scale * quant - min`.
    #[inline(always)]
    fn sub_block(&self, j: usize) -> (f32, f32) {
        let (scale, min) = (self.scales[j] & 15, self.scales[j] >> 4);
        (
            self.d.to_f32() * f32::from(scale),
            self.dmin.to_f32() * f32::from(min),
        )
    }

    /// Quantizes the elements with the rounded scales.
    #[inline(always)]
    fn set_quants<V: Lanes>(
        &mut self,
        x: &[[f32; 16]; 16],
        fits: &[Affine; 16],
        search: &AffineSearch,
    ) {
        for (j, x) in x.iter().enumerate() {
            let quants = requantize::<V, 16>(x, self.sub_block(j), 3)
                .unwrap_or_else(|| fits[j].quants(x, search));
            let bytes = &mut self.qs[j / 8].as_chunks_mut::<16>().0[j % 2];
            for (byte, quant) in bytes.iter_mut().zip(quants) {
                *byte |= quant << (2 * (j % 8 / 2));
            }
        }
    }
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for Q2_K {}

impl Block<256> for Q2_K {
    const HALVES: &'static [usize] = &[offset_of!(Q2_K, d), offset_of!(Q2_K, dmin)];

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        for (j, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (scale, min) = self.sub_block(j);
            let bytes = &self.qs[j / 8].as_chunks::<16>().0[j % 2];
            let shift = 2 * (j % 8 / 2);
            let mut quants = *bytes;
            for quant in &mut quants {
                *quant = (*quant >> shift) & 3;
            }
            numbers::<V, 16>(&quants, out, |q| V::splat(scale) * q - V::splat(min));
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        let sub_blocks = x.as_flattened().as_chunks().0;
        let sigma2: Vec<f32>;
        let (search, w) = match weights {
            None => (PLAIN, Weights::Magnitudes),
            Some(importance) => {
                let energies = energies::<V>(x.as_flattened(), 256);
                sigma2 = energies.iter().map(|e| e / 256.0).collect();
                let w = Weights::Importance {
                    columns: importance.as_flattened().as_chunks().0,
                    sigma2: &sigma2,
                    per: 16,
                };
                (AffineSearch::weighted(3), w)
            }
        };
        let fits = fit_affine::<V, 16>(sub_blocks, w, &search);
        let fits = fits.as_chunks::<16>().0;
        let scales: Vec<_> = fits.iter().map(|f| f.map(|fit| fit.scale)).collect();
        let mins: Vec<_> = fits.iter().map(|f| f.map(|fit| fit.min)).collect();
        let (scales, mins): (Vec<_>, Vec<_>) = match weights {
            None => (
                scales.iter().map(round_to_four_bits).collect(),
                mins.iter().map(round_to_four_bits).collect(),
            ),
            Some(_) => {
                let weights: Vec<_> = fits.iter().map(|f| f.map(|fit| fit.weight)).collect();
                (
                    fit_positive::<V, 16>(&scales, &weights, 15),
                    fit_positive::<V, 16>(&mins, &weights, 15),
                )
            }
        };
        for (i, (x, out)) in sub_blocks.as_chunks().0.iter().zip(out).enumerate() {
            let ((d, scales), (dmin, mins)) = (&scales[i], &mins[i]);
            *out = Q2_K {
                scales: std::array::from_fn(|j| scales[j] | (mins[j] << 4)),
                qs: [[0; 32]; 2],
                d: Half::from_f32(*d),
                dmin: Half::from_f32(*dmin),
            };
            out.set_quants::<V>(x, &fits[i], &search);
        }
    }
}

impl Unpack for Q2_K {
    type Form = Form<2, true, 5>;
    const READ_ORDER: &'static [(usize, usize)] = &[(80, 4), (0, 80)];
    const TILES: usize = 8;
    const OFFSET: i32 = 0;
    type Group<W: Packed> = [HalfTile<W>; 4];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, scales: &mut [TileScales]) {
        let d = rows.halves(simd, 80);
        let minus_dmin = unpack::negate(simd, rows.halves(simd, 82));
        let words = rows.words(simd, 0);
        for (tiles, words) in scales.as_chunks_mut::<2>().0.iter_mut().zip(words) {
            let scales = unpack::bytes(simd, simd.bits::<0>(words, 15));
            let mins = unpack::bytes(simd, simd.bits::<4>(words, 15));
            for (i, (scale, min)) in scales.into_iter().zip(mins).enumerate() {
                let tile = &mut tiles[i / 2];
                simd.store_floats(simd.mul_floats(d, scale), &mut tile.scales[i % 2]);
                simd.store_floats(
                    simd.mul_floats(minus_dmin, min),
                    &mut tile.minus_mins[i % 2],
                );
            }
        }
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> [HalfTile<W>; 4] {
        unpack::pairs_in_bytes(simd, rows.words(simd, 16 + 32 * group + 16 * HALF))
    }
}

/// Quantizes scales (or minima) to four bits, relative to the largest.
fn round_to_four_bits(values: &[f32; 16]) -> (f32, [u8; 16]) {
    let max = largest(values);
    if max > 0.0 {
        let inverse = 15.0 / max;
        (max / 15.0, values.map(|v| nearest_int(inverse * v) as u8))
    } else {
        (0.0, [0; 16])
    }
}
