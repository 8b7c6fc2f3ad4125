//! Q4_0: 32 four-bit quants with an offset, and a scale. Q5_0 also uses [`quantize`].

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::fit_symmetric::fit_symmetric;
use super::common::nibbles;
use super::common::one_pass::{BATCH, extreme, halves, quants};
use super::common::unpack::{self, Blocks, Form, HalfTile, Unpack};
use super::common::weights::Weights;
use super::{ElementType, Products};
use crate::float::{map, reciprocal};
use crate::simd::lanes::{Lanes, energies};
use crate::simd::packed::Packed;

/// The descriptor of Q4_0.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::Q4_0,
    codec: Codecs::of::<Q4_0, 32>(),
    products: Some(Products::quants::<Q4_0>()),
    cache: None,
    cuda: Some(include_str!("q4_0.cuh")),
};

#[repr(C)]
pub(super) struct Q4_0 {
    d: Half,
    qs: [u8; 16],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for Q4_0 {}

impl Block<32> for Q4_0 {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        nibbles::decode::<V>(&self.qs, out, |q| (q - V::splat(8.0)) * V::splat(d));
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 32]], weights: Option<&[[f32; 32]]>, out: &mut [Self]) {
        for (out, (d, quants)) in out.iter_mut().zip(quantize::<8, V>(x, weights)) {
            let qs = nibbles::pack(&quants);
            *out = Q4_0 { d, qs };
        }
    }
}

impl Unpack for Q4_0 {
    type Form = Form<1, false, 4>;
    const LEAD: usize = 2;
    const TILES: usize = 1;
    const OFFSET: i32 = 8;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        _: usize,
    ) -> [HalfTile<W>; 1] {
        [unpack::nibbles::<W, HALF>(simd, rows, 2)]
    }
}

/// Returns the scale and the quants `0..2 * MIDDLE` of each block.
#[inline(always)]
pub(super) fn quantize<const MIDDLE: i8, V: Lanes>(
    x: &[[f32; 32]],
    weights: Option<&[[f32; 32]]>,
) -> Vec<(Half, [u8; 32])> {
    let mut blocks = Vec::with_capacity(x.len());
    if let Some(columns) = weights {
        let (n_cols, middle) = (32 * columns.len(), i32::from(MIDDLE));
        let energies = energies::<V>(x.as_flattened(), n_cols);
        let sigma2: Vec<f32> = energies.iter().map(|e| e / n_cols as f32).collect();
        let weights = Weights::Importance {
            columns,
            sigma2: &sigma2,
            per: columns.len(),
        };
        let fits = fit_symmetric::<V, 32>(x, weights, middle);
        for (x, fit) in x.iter().zip(fits) {
            blocks.push((Half::from_f32(fit.scale), fit.quants(x, middle)));
        }
        return blocks;
    }
    for x in x.chunks(BATCH) {
        // The largest magnitude gets the quant 0, the only one that reaches that far.
        let mut extremes = [0.0; BATCH];
        for (slot, x) in extremes.iter_mut().zip(x) {
            *slot = extreme::<V>(x);
        }
        let d = map(&extremes, |v| v / -f32::from(MIDDLE));
        let (inverses, halves) = (map(&d, reciprocal), halves(&d));
        for (k, x) in x.iter().enumerate() {
            let inverse = V::splat(inverses[k]);
            let middle = V::splat(f32::from(MIDDLE) + 0.5);
            let mut quants = quants::<V, 32>(x, |x| x * inverse + middle);
            for quant in &mut quants {
                *quant = (*quant as i8).min(2 * MIDDLE - 1) as u8;
            }
            blocks.push((halves[k], quants));
        }
    }
    blocks
}
