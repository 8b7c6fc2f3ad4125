//! Lanes as two 512-bit vectors.

use std::arch::x86_64::*;

use crate::cpu::simd::{Kernel, LANES, Simd};

/// AVX-512 F, BW and VL are there, and what [`super::avx2`] uses.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(crate) fn new() -> Option<Avx512> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma"))
        .then_some(Avx512(()))
    }

    /// Runs a kernel, compiled for these instructions.
    pub(crate) fn run<K: Kernel>(self, kernel: K) {
        // SAFETY: self proves that the instructions are there.
        unsafe { run(self, kernel) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
fn run<K: Kernel>(simd: Avx512, kernel: K) {
    kernel.run(simd);
}

impl Simd for Avx512 {
    type Lanes = [__m512; 2];

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Lanes {
        // SAFETY: self proves that the instructions are there.
        unsafe { [_mm512_set1_ps(value); 2] }
    }

    #[inline(always)]
    fn load(self, chunk: &[f32; LANES]) -> Self::Lanes {
        // SAFETY: self proves that the instructions are there; each load reads 16 of 32 elements.
        std::array::from_fn(|i| unsafe { _mm512_loadu_ps(chunk.as_ptr().add(16 * i)) })
    }

    #[inline(always)]
    fn store(self, lanes: Self::Lanes, chunk: &mut [f32; LANES]) {
        for (i, part) in lanes.into_iter().enumerate() {
            // SAFETY: self proves that the instructions are there; each store writes 16 of 32.
            unsafe { _mm512_storeu_ps(chunk.as_mut_ptr().add(16 * i), part) }
        }
    }

    #[inline(always)]
    fn mul(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        // SAFETY: self proves that the instructions are there.
        std::array::from_fn(|i| unsafe { _mm512_mul_ps(a[i], b[i]) })
    }

    #[inline(always)]
    fn mul_add(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes {
        // SAFETY: self proves that the instructions are there.
        std::array::from_fn(|i| unsafe { _mm512_fmadd_ps(a[i], b[i], c[i]) })
    }

    #[inline(always)]
    fn sum(self, [a, b]: Self::Lanes) -> f32 {
        // SAFETY: self proves that the instructions are there.
        unsafe {
            let by_16 = _mm512_castps_pd(_mm512_add_ps(a, b));
            let by_8 = _mm256_add_ps(
                _mm256_castpd_ps(_mm512_castpd512_pd256(by_16)),
                _mm256_castpd_ps(_mm512_extractf64x4_pd(by_16, 1)),
            );
            let by_4 = _mm_add_ps(_mm256_castps256_ps128(by_8), _mm256_extractf128_ps(by_8, 1));
            let by_2 = _mm_add_ps(by_4, _mm_movehl_ps(by_4, by_4));
            _mm_cvtss_f32(_mm_add_ss(by_2, _mm_movehdup_ps(by_2)))
        }
    }
}
