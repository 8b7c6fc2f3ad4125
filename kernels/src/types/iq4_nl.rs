//! IQ4_NL: 32 four-bit indices into a table of sixteen uneven values, and a scale. IQ4_XS uses the same
//! search.

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::fit_symmetric::extremes;
use super::common::nibbles;
use super::common::one_pass::{self, entries};
use super::common::unpack::{self, Blocks, Form, HalfTile, Unpack};
use super::common::weights::{NEARLY_ZERO, Weights};
use super::{ElementType, Products};
use crate::float::reciprocal;
use crate::simd::lanes::{Lanes, MAX_LANES, Pair, energies, transpose};
use crate::simd::packed::{Packed, each};
use crate::simd::steps::{Steps, numbers};

/// The descriptor of IQ4_NL.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::IQ4_NL,
    codec: Codecs::of::<IQ4_NL, 32>(),
    products: Some(Products::quants::<IQ4_NL>()),
    cache: None,
    cuda: Some(include_str!("iq4_nl.cuh")),
};

#[repr(C)]
pub(super) struct IQ4_NL {
    d: Half,
    qs: [u8; 16],
}

/// The values of the sixteen quants.
pub(crate) const VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// [`VALUES`] as `f32`.
pub(super) const NUMBERS: [f32; 16] = numbers(&VALUES);

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for IQ4_NL {}

impl Block<32> for IQ4_NL {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        entries::<V>(&NUMBERS, &nibbles::unpack(&self.qs), out, |value| {
            V::splat(d) * value
        });
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 32]], weights: Option<&[[f32; 32]]>, out: &mut [Self]) {
        let sigma2: Vec<f32>;
        let weights = match weights {
            None => Weights::Squares,
            Some(columns) => {
                let energies = energies::<V>(x.as_flattened(), 32);
                sigma2 = energies.iter().map(|e| e * (2.0 / 32.0)).collect();
                Weights::Importance {
                    columns,
                    sigma2: &sigma2,
                    per: 1,
                }
            }
        };
        let scales = fit::<V>(x, weights);
        for ((x, scale), out) in x.iter().zip(scales).zip(out) {
            *out = IQ4_NL {
                d: Half::from_f32(scale),
                qs: nibbles::pack(&quants::<V>(x, reciprocal(scale))),
            };
        }
    }
}

impl Unpack for IQ4_NL {
    type Form = Form<1, false, 8>;
    const LEAD: usize = 2;
    const TILES: usize = 1;
    const OFFSET: i32 = 128;
    type Group<W: Packed> = [HalfTile<W>; 1];

    #[inline(always)]
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        _: usize,
    ) -> [HalfTile<W>; 1] {
        const TABLE: [u8; 16] = unpack::shifted(VALUES, IQ4_NL::OFFSET);
        let nibbles = unpack::nibbles::<W, HALF>(simd, rows, 2);
        [each!(4, i => simd.look_up(&TABLE, nibbles[i]))]
    }
}

/// Midpoints between neighbouring values; below a midpoint the lower value is nearer.
const MIDDLES: [f32; 15] = {
    let mut middles = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        middles[i] = (NUMBERS[i] + NUMBERS[i + 1]) / 2.0;
        i += 1;
    }
    middles
};

/// Rounds to the nearest value.
static TO_VALUE: Steps = Steps::new(NUMBERS, MIDDLES);

/// Rounds to the quant of the nearest value.
static TO_QUANT: Steps = {
    let mut quants = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        quants[i] = i as f32;
        i += 1;
    }
    Steps::new(quants, MIDDLES)
};

/// Returns the quants of the values nearest to `inverse * x`; the last quant for NaN.
#[inline(always)]
pub(super) fn quants<V: Lanes>(x: &[f32; 32], inverse: f32) -> [u8; 32] {
    let (inverse, reach) = (V::splat(inverse), V::splat(Steps::REACH));
    let negative_reach = V::splat(-Steps::REACH);
    one_pass::quants::<V, 32>(x, |x| {
        (inverse * x)
            .min(reach)
            .max(negative_reach)
            .nearest(&TO_QUANT)
    })
}

/// Returns the scale of least squared error for each block; 0 for a block of zeros.
#[inline(always)]
pub(super) fn fit<V: Lanes>(x: &[[f32; 32]], weights: Weights<'_, 32>) -> Vec<f32> {
    let mut scales = Vec::with_capacity(x.len());
    for (i, blocks) in x.chunks(Pair::<V>::N).enumerate() {
        let x = transpose::<Pair<V>, 32>(blocks);
        let w = weights.of(&x, i * Pair::<V>::N, blocks.len());
        let mut lanes = [0.0; MAX_LANES];
        fit_lanes(&x, &w).store(&mut lanes);
        scales.extend_from_slice(&lanes[..blocks.len()]);
    }
    scales
}

#[inline(always)]
fn fit_lanes<V: Lanes>(x: &[V; 32], w: &[V; 32]) -> V {
    let zero = V::splat(0.0);
    let (extreme, magnitude) = extremes(x);
    let is_zero = V::splat(NEARLY_ZERO).gt(magnitude);
    if V::all(is_zero) {
        return zero;
    }
    let lowest = V::splat(NUMBERS[0]);
    let (sum_qx, sum_q2) = sums(x, w, V::splat(1.0) / (V::splat(-1.0) * extreme / lowest));
    let mut scale = V::select(sum_q2.gt(zero), sum_qx / sum_q2, zero);
    let mut best = scale * sum_qx;
    for step in -7..=7i8 {
        let (sum_qx, sum_q2) = sums(x, w, V::splat(f32::from(step) + NUMBERS[0]) / extreme);
        let better = sum_q2.gt(zero) & (sum_qx * sum_qx).gt(best * sum_q2);
        scale = V::select(better, sum_qx / sum_q2, scale);
        best = V::select(better, scale * sum_qx, best);
    }
    V::select(is_zero, zero, scale)
}

/// Sums `w q x` and `w q q` over the values `q` nearest to `inverse * x`. Magnitudes are within
/// [`Steps::REACH`] in a block that is not zero.
#[inline(always)]
fn sums<V: Lanes>(x: &[V; 32], w: &[V; 32], inverse: V) -> (V, V) {
    let (mut sum_qx, mut sum_q2) = (V::splat(0.0), V::splat(0.0));
    for i in 0..32 {
        let q = (inverse * x[i]).nearest(&TO_VALUE);
        let wq = w[i] * q;
        sum_qx = sum_qx + wq * x[i];
        sum_q2 = sum_q2 + wq * q;
    }
    (sum_qx, sum_q2)
}
