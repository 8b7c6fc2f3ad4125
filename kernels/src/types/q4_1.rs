//! Q4_1: 32 four-bit quants, a scale and a minimum. Q5_1 also uses [`quantize`].

use std::mem::offset_of;

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::fit_affine::{AffineSearch, fit_affine};
use super::common::nibbles;
use super::common::one_pass::{BATCH, halves, quants, range};
use super::common::unpack::{self, Blocks, Form, HalfTile, TileScales, Unpack};
use super::common::weights::Weights;
use super::{ElementType, Products};
use crate::float::{map, reciprocal};
use crate::simd::lanes::{Lanes, energies};
use crate::simd::packed::Packed;

/// The descriptor of Q4_1.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::Q4_1,
    codec: Codecs::of::<Q4_1, 32>(),
    products: Some(Products::quants::<Q4_1>()),
    cache: None,
    cuda: Some(include_str!("q4_1.cuh")),
};

#[repr(C)]
pub(super) struct Q4_1 {
    d: Half,
    m: Half,
    qs: [u8; 16],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for Q4_1 {}

impl Block<32> for Q4_1 {
    const HALVES: &'static [usize] = &[offset_of!(Q4_1, d), offset_of!(Q4_1, m)];

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        nibbles::decode::<V>(&self.qs, out, |q| q * V::splat(d) + V::splat(m));
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 32]], weights: Option<&[[f32; 32]]>, out: &mut [Self]) {
        for (out, block) in out.iter_mut().zip(quantize::<15, V>(x, weights)) {
            *out = Q4_1 {
                d: block.d,
                m: block.m,
                qs: nibbles::pack(&block.quants),
            };
        }
    }
}

impl Unpack for Q4_1 {
    type Form = Form<1, true, 4>;
    const TILES: usize = 1;
    const OFFSET: i32 = 0;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, scales: &mut [TileScales]) {
        simd.store_floats(rows.halves(simd, 0), &mut scales[0].scales[0]);
        simd.store_floats(rows.halves(simd, 2), &mut scales[0].minus_mins[0]);
    }

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        _: usize,
    ) -> [HalfTile<W>; 1] {
        [unpack::nibbles::<W, HALF>(simd, rows, 4)]
    }
}

/// A block before its quants are packed.
pub(super) struct Unpacked {
    pub(super) d: Half,
    pub(super) m: Half,
    pub(super) quants: [u8; 32],
}

/// Returns quants `0..=MAX`, scale and minimum of each block.
#[inline(always)]
pub(super) fn quantize<const MAX: u8, V: Lanes>(
    x: &[[f32; 32]],
    weights: Option<&[[f32; 32]]>,
) -> Vec<Unpacked> {
    let mut blocks = Vec::with_capacity(x.len());
    if let Some(columns) = weights {
        let n_cols = 32 * columns.len();
        let energies = energies::<V>(x.as_flattened(), n_cols);
        let sigma2: Vec<f32> = energies.iter().map(|e| e / n_cols as f32).collect();
        let weights = Weights::Importance {
            columns,
            sigma2: &sigma2,
            per: columns.len(),
        };
        let search = AffineSearch::weighted(MAX);
        let fits = fit_affine::<V, 32>(x, weights, &search);
        for (x, fit) in x.iter().zip(fits) {
            blocks.push(Unpacked {
                d: Half::from_f32(fit.scale),
                m: Half::from_f32(-fit.min),
                quants: fit.quants(x, &search),
            });
        }
        return blocks;
    }
    for x in x.chunks(BATCH) {
        let (mut lows, mut spans) = ([0.0; BATCH], [0.0; BATCH]);
        for (k, x) in x.iter().enumerate() {
            let (lo, hi) = range::<V>(x);
            (lows[k], spans[k]) = (lo, hi - lo);
        }
        let d = map(&spans, |span| span / f32::from(MAX));
        let inverses = map(&d, reciprocal);
        let (d, m) = (halves(&d), halves(&lows));
        for (k, x) in x.iter().enumerate() {
            let (lo, inverse) = (V::splat(lows[k]), V::splat(inverses[k]));
            let mut quants = quants::<V, 32>(x, |x| (x - lo) * inverse + V::splat(0.5));
            for quant in &mut quants {
                *quant = (*quant as i8).min(MAX as i8) as u8;
            }
            let (d, m) = (d[k], m[k]);
            blocks.push(Unpacked { d, m, quants });
        }
    }
    blocks
}
