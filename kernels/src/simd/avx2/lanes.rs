//! AVX2: eight lanes.

use std::arch::x86_64::*;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Sub};

use crate::float::MAGIC;
use crate::simd::lanes::{Lanes, gather_columns};
use crate::simd::lanes_macros::{call, compiled_for, lanes_of, operators};
use crate::simd::steps::Steps;

/// The operations of [`F32x8`].
mod vector {
    use super::*;

    compiled_for! { "avx2":
        pub(super) fn splat(x: f32) -> __m256 { _mm256_set1_ps(x) }
        pub(super) fn load(x: &[f32]) -> __m256 {
            assert!(x.len() >= 8);
            // SAFETY: the array has eight elements.
            unsafe { _mm256_loadu_ps(x.as_ptr()) }
        }
        pub(super) fn store(x: __m256, out: &mut [f32]) {
            assert!(out.len() >= 8);
            // SAFETY: the array has eight elements.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), x) }
        }
        pub(super) fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        pub(super) fn sub(a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        pub(super) fn mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        pub(super) fn div(a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        pub(super) fn abs(x: __m256) -> __m256 { _mm256_andnot_ps(_mm256_set1_ps(-0.0), x) }
        pub(super) fn sqrt(x: __m256) -> __m256 { _mm256_sqrt_ps(x) }
        pub(super) fn max(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        pub(super) fn min(a: __m256, b: __m256) -> __m256 { _mm256_min_ps(a, b) }
        pub(super) fn gt(a: __m256, b: __m256) -> __m256 { _mm256_cmp_ps::<_CMP_GT_OQ>(a, b) }
        pub(super) fn eq(a: __m256, b: __m256) -> __m256 { _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b) }
        pub(super) fn ne(a: __m256, b: __m256) -> __m256 { _mm256_cmp_ps::<_CMP_NEQ_UQ>(a, b) }
        pub(super) fn both(a: __m256, b: __m256) -> __m256 { _mm256_and_ps(a, b) }
        pub(super) fn either(a: __m256, b: __m256) -> __m256 { _mm256_or_ps(a, b) }
        pub(super) fn select(mask: __m256, yes: __m256, no: __m256) -> __m256 {
            _mm256_blendv_ps(no, yes, mask)
        }
        pub(super) fn largest(x: __m256) -> f32 {
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }
        pub(super) fn away_from_zero(x: __m256, by: f32) -> __m256 {
            let sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0));
            _mm256_add_ps(x, _mm256_or_ps(sign, _mm256_set1_ps(by)))
        }
        pub(super) fn bits(mask: __m256) -> u64 { _mm256_movemask_ps(mask) as u64 }
        pub(super) fn round_to_quant(x: __m256, min: i32, max: i32) -> __m256 {
            let bits = _mm256_castps_si256(_mm256_add_ps(x, _mm256_set1_ps(MAGIC)));
            let bits = _mm256_and_si256(bits, _mm256_set1_epi32(0x007f_ffff));
            let quant = _mm256_sub_epi32(bits, _mm256_set1_epi32(0x0040_0000));
            let quant = _mm256_max_epi32(quant, _mm256_set1_epi32(min));
            _mm256_cvtepi32_ps(_mm256_min_epi32(quant, _mm256_set1_epi32(max)))
        }
        pub(super) fn from_quants(quants: &[u8]) -> __m256 {
            assert!(quants.len() >= 8);
            // SAFETY: there are eight bytes to read or write.
            let bytes = unsafe { _mm_loadl_epi64(quants.as_ptr().cast()) };
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
        }
        pub(super) fn truncate_to_bytes(x: __m256, out: &mut [u8]) {
            assert!(out.len() >= 8);
            // A number that does not fit an i32 becomes i32::MIN, as in `truncate`.
            let numbers = _mm256_cvttps_epi32(x);
            let low_bytes = _mm256_shuffle_epi8(numbers, _mm256_set1_epi32(0x0c08_0400));
            let (low, high) = (_mm256_castsi256_si128(low_bytes),
                _mm256_extracti128_si256::<1>(low_bytes));
            // SAFETY: there are eight bytes to read or write.
            unsafe { _mm_storel_epi64(out.as_mut_ptr().cast(), _mm_unpacklo_epi32(low, high)) }
        }
        fn table(entries: &[f32; 8], indices: __m256i) -> __m256 {
            _mm256_permutevar8x32_ps(load(entries), indices)
        }
        /// Returns -1 as an integer where `x` is not below `middle`.
        fn reached(x: __m256, middle: __m256) -> __m256i {
            _mm256_castps_si256(_mm256_cmp_ps::<_CMP_NLT_UQ>(x, middle))
        }
        fn child(node: __m256i, reached: __m256i) -> __m256i {
            _mm256_sub_epi32(_mm256_add_epi32(node, node), reached)
        }
        /// Searches the tree of midpoints.
        pub(super) fn nearest(x: __m256, steps: &Steps) -> __m256 {
            let root = _mm256_set1_ps(steps.tree[1]);
            let node = _mm256_sub_epi32(_mm256_set1_epi32(2), reached(x, root));
            let node = child(node, reached(x, table(&steps.tree, node)));
            let leaf = child(node, reached(x, table(&steps.tree, node)));
            let is_odd = _mm256_castsi256_ps(reached(x, table(&steps.leaves, leaf)));
            let [even, odd] = &steps.even_odd;
            select(is_odd, table(odd, leaf), table(even, leaf))
        }
        pub(super) fn look_up(entries: &[f32; 16], quants: &[u8]) -> __m256 {
            assert!(quants.len() >= 8);
            // SAFETY: there are eight bytes to read or write.
            let quants = _mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(quants.as_ptr().cast()) });
            let low = _mm256_permutevar8x32_ps(load(entries), quants);
            let high = _mm256_permutevar8x32_ps(load(&entries[8..]), quants);
            // Moves bit 3 of the quant to the sign bit.
            let is_high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(quants));
            _mm256_blendv_ps(low, high, is_high)
        }
    }

    /// Size of the square tiles that are transposed at once.
    const TILE: usize = 8;

    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn columns(x: &[f32], stride: usize, out: &mut [super::F32x8]) {
        let (tiles, rest) = out.as_chunks_mut::<TILE>();
        let n_tiles = tiles.len();
        for (t, tile) in tiles.iter_mut().enumerate() {
            let mut rows = [_mm256_setzero_ps(); TILE];
            for (k, row) in rows.iter_mut().enumerate() {
                *row = load(&x[k * stride + TILE * t..]);
            }
            // Interleaves pairs of rows, then fours, within 128-bit halves; then combines the halves.
            for pair in rows.as_chunks_mut::<2>().0 {
                let [a, b] = *pair;
                *pair = [_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)];
            }
            for four in rows.as_chunks_mut::<4>().0 {
                let [a, b, c, d] = *four;
                *four = [
                    _mm256_shuffle_ps::<0x44>(a, c),
                    _mm256_shuffle_ps::<0xee>(a, c),
                    _mm256_shuffle_ps::<0x44>(b, d),
                    _mm256_shuffle_ps::<0xee>(b, d),
                ];
            }
            for c in 0..4 {
                let (top, bottom) = (rows[c], rows[c + 4]);
                tile[c].0 = _mm256_permute2f128_ps::<0x20>(top, bottom);
                tile[c + 4].0 = _mm256_permute2f128_ps::<0x31>(top, bottom);
            }
        }
        gather_columns(x, stride, TILE * n_tiles, rest);
    }
}

lanes_of! { F32x8(__m256) of 8, Mask8(__m256) from vector }
