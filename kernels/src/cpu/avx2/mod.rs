//! Lanes as four 256-bit vectors.

use std::arch::x86_64::*;

use crate::cpu::simd::{Kernel, LANES, Simd};

/// AVX2 and FMA are there.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn new() -> Option<Avx2> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Avx2(()))
    }

    /// Runs a kernel, compiled for these instructions.
    pub(crate) fn run<K: Kernel>(self, kernel: K) {
        // SAFETY: self proves that the instructions are there.
        unsafe { run(self, kernel) }
    }
}

#[target_feature(enable = "avx2,fma")]
fn run<K: Kernel>(simd: Avx2, kernel: K) {
    kernel.run(simd);
}

impl Simd for Avx2 {
    type Lanes = [__m256; 4];

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Lanes {
        // SAFETY: self proves that the instructions are there.
        unsafe { [_mm256_set1_ps(value); 4] }
    }

    #[inline(always)]
    fn load(self, chunk: &[f32; LANES]) -> Self::Lanes {
        // SAFETY: self proves that the instructions are there; each load reads 8 of 32 elements.
        std::array::from_fn(|i| unsafe { _mm256_loadu_ps(chunk.as_ptr().add(8 * i)) })
    }

    #[inline(always)]
    fn store(self, lanes: Self::Lanes, chunk: &mut [f32; LANES]) {
        for (i, part) in lanes.into_iter().enumerate() {
            // SAFETY: self proves that the instructions are there; each store writes 8 of 32.
            unsafe { _mm256_storeu_ps(chunk.as_mut_ptr().add(8 * i), part) }
        }
    }

    #[inline(always)]
    fn mul(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        // SAFETY: self proves that the instructions are there.
        std::array::from_fn(|i| unsafe { _mm256_mul_ps(a[i], b[i]) })
    }

    #[inline(always)]
    fn mul_add(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes {
        // SAFETY: self proves that the instructions are there.
        std::array::from_fn(|i| unsafe { _mm256_fmadd_ps(a[i], b[i], c[i]) })
    }

    #[inline(always)]
    fn sum(self, [a, b, c, d]: Self::Lanes) -> f32 {
        // SAFETY: self proves that the instructions are there.
        unsafe {
            let by_8 = _mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d));
            let by_4 = _mm_add_ps(_mm256_castps256_ps128(by_8), _mm256_extractf128_ps(by_8, 1));
            let by_2 = _mm_add_ps(by_4, _mm_movehl_ps(by_4, by_4));
            _mm_cvtss_f32(_mm_add_ss(by_2, _mm_movehdup_ps(by_2)))
        }
    }
}
