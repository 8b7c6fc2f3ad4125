//! AVX-512: sixteen lanes.

use std::arch::x86_64::*;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Sub};

use crate::float::MAGIC;
use crate::simd::lanes::{Lanes, gather_columns};
use crate::simd::lanes_macros::{call, compiled_for, lanes_of, operators};
use crate::simd::steps::Steps;

/// The operations of [`F32x16`].
mod vector {
    use super::*;

    compiled_for! { "avx512f":
        pub(super) fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        pub(super) fn load(x: &[f32]) -> __m512 {
            assert!(x.len() >= 16);
            // SAFETY: the array has sixteen elements.
            unsafe { _mm512_loadu_ps(x.as_ptr()) }
        }
        pub(super) fn store(x: __m512, out: &mut [f32]) {
            assert!(out.len() >= 16);
            // SAFETY: the array has sixteen elements.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
        }
        pub(super) fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        pub(super) fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        pub(super) fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        pub(super) fn div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        pub(super) fn abs(x: __m512) -> __m512 { _mm512_abs_ps(x) }
        pub(super) fn sqrt(x: __m512) -> __m512 { _mm512_sqrt_ps(x) }
        pub(super) fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        pub(super) fn min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        pub(super) fn gt(a: __m512, b: __m512) -> __mmask16 {
            _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b)
        }
        pub(super) fn eq(a: __m512, b: __m512) -> __mmask16 {
            _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b)
        }
        pub(super) fn ne(a: __m512, b: __m512) -> __mmask16 {
            _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(a, b)
        }
        pub(super) fn both(a: __mmask16, b: __mmask16) -> __mmask16 { a & b }
        pub(super) fn either(a: __mmask16, b: __mmask16) -> __mmask16 { a | b }
        pub(super) fn select(mask: __mmask16, yes: __m512, no: __m512) -> __m512 {
            _mm512_mask_blend_ps(mask, no, yes)
        }
        pub(super) fn largest(x: __m512) -> f32 { _mm512_reduce_max_ps(x) }
        pub(super) fn away_from_zero(x: __m512, by: f32) -> __m512 {
            let sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MIN));
            let by = _mm512_or_si512(sign, _mm512_castps_si512(_mm512_set1_ps(by)));
            _mm512_add_ps(x, _mm512_castsi512_ps(by))
        }
        pub(super) fn bits(mask: __mmask16) -> u64 { u64::from(mask) }
        pub(super) fn round_to_quant(x: __m512, min: i32, max: i32) -> __m512 {
            let bits = _mm512_castps_si512(_mm512_add_ps(x, _mm512_set1_ps(MAGIC)));
            let bits = _mm512_and_si512(bits, _mm512_set1_epi32(0x007f_ffff));
            let quant = _mm512_sub_epi32(bits, _mm512_set1_epi32(0x0040_0000));
            let quant = _mm512_max_epi32(quant, _mm512_set1_epi32(min));
            _mm512_cvtepi32_ps(_mm512_min_epi32(quant, _mm512_set1_epi32(max)))
        }
        fn widen(quants: &[u8]) -> __m512i {
            assert!(quants.len() >= 16);
            // SAFETY: there are sixteen bytes to read or write.
            _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(quants.as_ptr().cast()) })
        }
        pub(super) fn from_quants(quants: &[u8]) -> __m512 { _mm512_cvtepi32_ps(widen(quants)) }
        pub(super) fn truncate_to_bytes(x: __m512, out: &mut [u8]) {
            assert!(out.len() >= 16);
            // A number that does not fit an i32 becomes i32::MIN, as in `truncate`.
            let bytes = _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(x));
            // SAFETY: there are sixteen bytes to read or write.
            unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), bytes) }
        }
        fn table(entries: &[f32; 32], indices: __m512i) -> __m512 {
            _mm512_permutex2var_ps(load(entries), indices, load(&entries[16..]))
        }
        /// Looks up the cell, whose index is in the low bits of the rounded number.
        pub(super) fn nearest(x: __m512, steps: &Steps) -> __m512 {
            let rounded = _mm512_add_ps(
                _mm512_mul_ps(x, _mm512_set1_ps(1.0 / Steps::CELL)), _mm512_set1_ps(MAGIC));
            let cell = _mm512_castps_si512(rounded);
            let middle = table(&steps.cell_middles, cell);
            let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, middle);
            let [low, high] = &steps.cell_values;
            select(below, table(low, cell), table(high, cell))
        }
        pub(super) fn look_up(entries: &[f32; 16], quants: &[u8]) -> __m512 {
            _mm512_permutexvar_ps(widen(quants), load(entries))
        }
    }

    /// Size of the square tiles that are transposed at once.
    const TILE: usize = 16;

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn columns(x: &[f32], stride: usize, out: &mut [super::F32x16]) {
        let (tiles, rest) = out.as_chunks_mut::<TILE>();
        let n_tiles = tiles.len();
        for (t, tile) in tiles.iter_mut().enumerate() {
            let mut rows = [_mm512_setzero_ps(); TILE];
            for (k, row) in rows.iter_mut().enumerate() {
                *row = load(&x[k * stride + TILE * t..]);
            }
            // Interleaves pairs of rows, then fours, within 128-bit quarters; then combines the quarters.
            for pair in rows.as_chunks_mut::<2>().0 {
                let [a, b] = *pair;
                *pair = [_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)];
            }
            for four in rows.as_chunks_mut::<4>().0 {
                let [a, b, c, d] = *four;
                *four = [
                    _mm512_shuffle_ps::<0x44>(a, c),
                    _mm512_shuffle_ps::<0xee>(a, c),
                    _mm512_shuffle_ps::<0x44>(b, d),
                    _mm512_shuffle_ps::<0xee>(b, d),
                ];
            }
            for c in 0..4 {
                let [a, b, c2, d] = [rows[c], rows[c + 4], rows[c + 8], rows[c + 12]];
                let low = _mm512_shuffle_f32x4::<0x44>(a, b);
                let high = _mm512_shuffle_f32x4::<0xee>(a, b);
                let low2 = _mm512_shuffle_f32x4::<0x44>(c2, d);
                let high2 = _mm512_shuffle_f32x4::<0xee>(c2, d);
                tile[c].0 = _mm512_shuffle_f32x4::<0x88>(low, low2);
                tile[c + 4].0 = _mm512_shuffle_f32x4::<0xdd>(low, low2);
                tile[c + 8].0 = _mm512_shuffle_f32x4::<0x88>(high, high2);
                tile[c + 12].0 = _mm512_shuffle_f32x4::<0xdd>(high, high2);
            }
        }
        gather_columns(x, stride, TILE * n_tiles, rest);
    }
}

lanes_of! { F32x16(__m512) of 16, Mask16(__mmask16) from vector }
