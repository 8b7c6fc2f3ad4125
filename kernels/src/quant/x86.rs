//! AVX2 and AVX-512.

use std::arch::x86_64::*;
use std::ops::{Add, BitAnd, Div, Mul, Sub};

use super::block::Block;
use super::instruction_set::{InstructionSet, dequantize};
use super::lanes::{Lanes, MAX_LANES};

/// Functions compiled for, and callable only under, the named target features.
macro_rules! compiled_for {
    ($features:literal: $($function:item)*) => {
        $(#[target_feature(enable = $features)] #[inline] $function)*
    };
}

/// 1.5 * 2^23, as in `nearest_int`.
const SHIFT: f32 = 12_582_912.0;

/// Eight lanes.
mod avx2 {
    use super::*;

    compiled_for! { "avx2":
        pub(super) fn splat(x: f32) -> __m256 { _mm256_set1_ps(x) }
        pub(super) fn load(x: &[f32; MAX_LANES]) -> __m256 {
            // SAFETY: MAX_LANES is 16, of which this reads eight.
            unsafe { _mm256_loadu_ps(x.as_ptr()) }
        }
        pub(super) fn store(x: __m256, out: &mut [f32; MAX_LANES]) {
            // SAFETY: MAX_LANES is 16, of which this writes eight.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), x) }
        }
        pub(super) fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        pub(super) fn sub(a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        pub(super) fn mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        pub(super) fn div(a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        pub(super) fn abs(x: __m256) -> __m256 { _mm256_andnot_ps(_mm256_set1_ps(-0.0), x) }
        pub(super) fn gt(a: __m256, b: __m256) -> __m256 { _mm256_cmp_ps::<_CMP_GT_OQ>(a, b) }
        pub(super) fn eq(a: __m256, b: __m256) -> __m256 { _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b) }
        pub(super) fn both(a: __m256, b: __m256) -> __m256 { _mm256_and_ps(a, b) }
        pub(super) fn select(mask: __m256, yes: __m256, no: __m256) -> __m256 {
            _mm256_blendv_ps(no, yes, mask)
        }
        pub(super) fn round_to_code(x: __m256, min: i32, max: i32) -> __m256 {
            let bits = _mm256_castps_si256(_mm256_add_ps(x, _mm256_set1_ps(SHIFT)));
            let bits = _mm256_and_si256(bits, _mm256_set1_epi32(0x007f_ffff));
            let code = _mm256_sub_epi32(bits, _mm256_set1_epi32(0x0040_0000));
            let code = _mm256_max_epi32(code, _mm256_set1_epi32(min));
            _mm256_cvtepi32_ps(_mm256_min_epi32(code, _mm256_set1_epi32(max)))
        }
    }
}

/// Sixteen lanes.
mod avx512 {
    use super::*;

    compiled_for! { "avx512f":
        pub(super) fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        pub(super) fn load(x: &[f32; MAX_LANES]) -> __m512 {
            // SAFETY: MAX_LANES is 16.
            unsafe { _mm512_loadu_ps(x.as_ptr()) }
        }
        pub(super) fn store(x: __m512, out: &mut [f32; MAX_LANES]) {
            // SAFETY: MAX_LANES is 16.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
        }
        pub(super) fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        pub(super) fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        pub(super) fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        pub(super) fn div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        pub(super) fn abs(x: __m512) -> __m512 { _mm512_abs_ps(x) }
        pub(super) fn gt(a: __m512, b: __m512) -> __mmask16 {
            _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b)
        }
        pub(super) fn eq(a: __m512, b: __m512) -> __mmask16 {
            _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b)
        }
        pub(super) fn both(a: __mmask16, b: __mmask16) -> __mmask16 { a & b }
        pub(super) fn select(mask: __mmask16, yes: __m512, no: __m512) -> __m512 {
            _mm512_mask_blend_ps(mask, no, yes)
        }
        pub(super) fn round_to_code(x: __m512, min: i32, max: i32) -> __m512 {
            let bits = _mm512_castps_si512(_mm512_add_ps(x, _mm512_set1_ps(SHIFT)));
            let bits = _mm512_and_si512(bits, _mm512_set1_epi32(0x007f_ffff));
            let code = _mm512_sub_epi32(bits, _mm512_set1_epi32(0x0040_0000));
            let code = _mm512_max_epi32(code, _mm512_set1_epi32(min));
            _mm512_cvtepi32_ps(_mm512_min_epi32(code, _mm512_set1_epi32(max)))
        }
    }
}

/// An operation on lanes as a call of the function of that name above.
macro_rules! call {
    ($module:ident::$function:ident($($argument:expr),*)) => {
        // SAFETY: lanes exist only in code that an instruction set runs once `is_available` has
        // seen the features.
        unsafe { $module::$function($($argument),*) }
    };
}

macro_rules! operators {
    ($type:ident, $module:ident: $($trait:ident $method:ident $function:ident),+) => {
        $(impl $trait for $type {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                $type(call!($module::$function(self.0, other.0)))
            }
        })+
    };
}

macro_rules! instruction_set {
    (
        $(#[$doc:meta])* $set:ident = $name:literal, $features:literal,
        detected by $($feature:tt)&&+;
        $lanes:ident($vector:ty) of $n:literal, $mask:ident($raw_mask:ty) from $module:ident
    ) => {
        $(#[$doc])*
        pub(super) struct $set;

        impl InstructionSet for $set {
            const NAME: &'static str = $name;

            type Lanes = $lanes;

            fn is_available() -> bool {
                $(is_x86_feature_detected!($feature))&&+
            }

            fn dequantize<B: Block<LEN>, const LEN: usize>(
                blocks: &[B],
                out: &mut [[f32; LEN]],
            ) {
                #[target_feature(enable = $features)]
                fn inner<B: Block<LEN>, const LEN: usize>(
                    blocks: &[B],
                    out: &mut [[f32; LEN]],
                ) {
                    dequantize(blocks, out);
                }
                // SAFETY: the caller has seen `is_available`, which asks for these features.
                unsafe { inner(blocks, out) }
            }

            fn quantize_row<B: Block<LEN>, const LEN: usize>(
                x: &[[f32; LEN]],
                weights: Option<&[[f32; LEN]]>,
                out: &mut [B],
            ) {
                #[target_feature(enable = $features)]
                fn inner<B: Block<LEN>, const LEN: usize>(
                    x: &[[f32; LEN]],
                    weights: Option<&[[f32; LEN]]>,
                    out: &mut [B],
                ) {
                    B::quantize_row::<$lanes>(x, weights, out);
                }
                // SAFETY: the caller has seen `is_available`, which asks for these features.
                unsafe { inner(x, weights, out) }
            }
        }

        #[derive(Clone, Copy)]
        pub(super) struct $lanes($vector);

        #[derive(Clone, Copy)]
        pub(super) struct $mask($raw_mask);

        operators!($lanes, $module: Add add add, Sub sub sub, Mul mul mul, Div div div);
        operators!($mask, $module: BitAnd bitand both);

        impl Lanes for $lanes {
            const N: usize = $n;

            type Mask = $mask;

            #[inline(always)]
            fn splat(x: f32) -> Self {
                $lanes(call!($module::splat(x)))
            }

            #[inline(always)]
            fn load(x: &[f32; MAX_LANES]) -> Self {
                $lanes(call!($module::load(x)))
            }

            #[inline(always)]
            fn store(self) -> [f32; MAX_LANES] {
                let mut out = [0.0; MAX_LANES];
                call!($module::store(self.0, &mut out));
                out
            }

            #[inline(always)]
            fn abs(self) -> Self {
                $lanes(call!($module::abs(self.0)))
            }

            #[inline(always)]
            fn gt(self, other: Self) -> $mask {
                $mask(call!($module::gt(self.0, other.0)))
            }

            #[inline(always)]
            fn eq(self, other: Self) -> $mask {
                $mask(call!($module::eq(self.0, other.0)))
            }

            #[inline(always)]
            fn select(mask: $mask, yes: Self, no: Self) -> Self {
                $lanes(call!($module::select(mask.0, yes.0, no.0)))
            }

            #[inline(always)]
            fn round_to_code(self, min: i32, max: i32) -> Self {
                $lanes(call!($module::round_to_code(self.0, min, max)))
            }
        }
    };
}

instruction_set! {
    /// Eight blocks at once.
    Avx2 = "avx2", "avx2", detected by "avx2";
    F32x8(__m256) of 8, Mask8(__m256) from avx2
}

instruction_set! {
    /// Sixteen blocks at once.
    Avx512 = "avx512", "avx512f,avx512bw,avx512dq,avx512vl",
    detected by "avx512f" && "avx512bw" && "avx512dq" && "avx512vl";
    F32x16(__m512) of 16, Mask16(__mmask16) from avx512
}
