//! Q8_0: 32 signed bytes and a scale.

use schemas::gguf::DType;

use super::common::block::Half;
use super::common::block::{Block, Bytes, Codecs};
use super::common::cache::{CacheAccess, CacheElement, SixteenChunks};
use super::common::one_pass::{BATCH, before_truncation, halves, max_abs, quants};
use super::common::unpack::{self, Blocks, Form, HalfTile, InRows, Unpack};
use super::{ElementType, Products};
use crate::float::{map, reciprocal};
use crate::simd::Simd;
use crate::simd::lanes::Lanes;
use crate::simd::packed::{Packed, TakeColumn, each};

/// The descriptor of Q8_0.
pub(super) const TYPE: ElementType = ElementType {
    dtype: DType::Q8_0,
    codec: Codecs::of::<Q8_0, 32>(),
    products: Some(Products::quants::<Q8_0>()),
    cache: Some(CacheAccess::of::<Q8_0, 34>("q8_0")),
    cuda: Some(include_str!("q8_0.cuh")),
};

#[repr(C)]
pub(super) struct Q8_0 {
    pub(crate) d: Half,
    pub(crate) qs: [i8; 32],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Bytes for Q8_0 {}

impl Block<32> for Q8_0 {
    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        for (out, &q) in out.iter_mut().zip(&self.qs) {
            *out = d * f32::from(q);
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 32]], _: Option<&[[f32; 32]]>, out: &mut [Self]) {
        for (x, out) in x.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            let mut maxima = [0.0; BATCH];
            for (slot, x) in maxima.iter_mut().zip(x) {
                *slot = max_abs::<V>(x);
            }
            let d = map(&maxima, |max| max / 127.0);
            let (inverses, halves) = (map(&d, reciprocal), halves(&d));
            for (k, (x, out)) in x.iter().zip(out).enumerate() {
                let inverse = V::splat(inverses[k]);
                let quants = quants::<V, 32>(x, |x| before_truncation(x * inverse));
                out.d = halves[k];
                for (out, quant) in out.qs.iter_mut().zip(quants) {
                    *out = quant as i8;
                }
            }
        }
    }
}

impl Unpack for Q8_0 {
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
        // Adds 128 to make signed bytes unsigned.
        let sign = simd.splat_word(0x8080_8080);
        let words = rows.words(simd, 2 + 16 * HALF);
        [each!(4, i => simd.xor(words[i], sign))]
    }
}

/// The product of an 8-bit quant and a scale with an 11-bit significand fits the 24 bits of an `f32`:
/// nothing is rounded.
impl CacheElement<34> for Q8_0 {
    /// For products with [`unpack::signed_bytes`].
    type Scales<S: Simd> = S::Floats;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, rows: SixteenChunks<'_, 34>) -> S::Floats {
        let scales = InRows(rows.pieces::<S, 2>(simd, 0)).halves(simd, 0);
        unpack::of_signed_bytes(simd, scales)
    }

    #[inline(always)]
    fn columns<S: Simd, const HALF: usize>(
        simd: S,
        rows: SixteenChunks<'_, 34>,
        scales: S::Floats,
        to: &mut impl TakeColumn<S>,
    ) {
        for (i, words) in rows.words(simd, 2 + 16 * HALF).into_iter().enumerate() {
            let element = 16 * HALF + 4 * i;
            for (j, quants) in unpack::signed_bytes(simd, words).into_iter().enumerate() {
                to.take(simd, element + j, simd.mul_floats(scales, quants));
            }
        }
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, chunk: &[u8; 34]) -> S::Lanes {
        let (scale, quants) = chunk.split_first_chunk().expect("a scale and quants");
        let quants = quants.first_chunk().expect("quants");
        let scale = simd.splat_f16(*scale);
        simd.lanes(|i| simd.mul(scale, simd.load_i8(quants, i)))
    }

    fn mark_invalid(x: &[f32], chunk: &mut [u8; 34]) {
        const NAN: [u8; 2] = [0xff; 2];
        if !x.iter().all(|x| x.is_finite()) {
            chunk[..2].copy_from_slice(&NAN);
        }
    }
}
