//! AVX2: 32 lanes in four 256-bit registers. Newer CPUs without AVX-512 have products of four bytes (AVX-VNNI).

pub(super) mod dots;
mod lanes;
mod packed;

use std::arch::x86_64::*;

use crate::simd::dispatch::Implementation;
use crate::simd::matrix::NoMatrixUnit;
use crate::simd::packed::array;
use crate::simd::{Kernel, KernelInto, LANES, LINE, ROUND, Simd};
use dots::QuantDots;

/// Proof that AVX2, FMA, F16C and the instructions of `D` are available.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<D>(D);

impl<D: QuantDots> From<D> for Avx2<D> {
    fn from(dots: D) -> Self {
        Avx2(dots)
    }
}

/// Lanes of a register.
const WIDTH: usize = 8;

/// Pointer to the elements of a register.
#[inline(always)]
fn part<T, P>(chunk: &[T; LANES], register: usize) -> *const P {
    chunk.as_chunks::<WIDTH>().0[register].as_ptr().cast()
}

// In the SAFETY comments: `self` proves that the instructions are available; `part` checks that a register
// of elements can be read or written.
impl<D: QuantDots> Simd for Avx2<D> {
    type Codec = lanes::F32x8;
    type Matrix = NoMatrixUnit;
    type Vector = __m256;
    type Lanes = [__m256; LANES / WIDTH];
    const REGISTERS: usize = LANES / WIDTH;
    const COLUMNS: usize = 3;

    fn run<K: Kernel>(self, kernel: K) {
        self.0.run(kernel);
    }

    fn run_into<K: KernelInto<O>, O: ?Sized>(self, kernel: K, out: &mut O) {
        self.0.run_into(kernel, out);
    }

    #[inline(always)]
    fn implementation(self) -> Implementation {
        self.0.implementation()
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        // SAFETY: the instructions are available.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, chunk: &[f32; LANES], register: usize) -> Self::Vector {
        // SAFETY: the instructions are available; a register of elements.
        unsafe { _mm256_loadu_ps(part(chunk, register)) }
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, chunk: &mut [f32; LANES], register: usize) {
        let part = &mut chunk.as_chunks_mut::<WIDTH>().0[register];
        // SAFETY: the instructions are available; a register of elements.
        unsafe { _mm256_storeu_ps(part.as_mut_ptr(), vector) }
    }

    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: the instructions are available.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: the instructions are available.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        // SAFETY: the instructions are available.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn load_f32(self, chunk: &[[u8; 4]; LANES], register: usize) -> Self::Vector {
        // SAFETY: the instructions are available; a register of elements.
        unsafe { _mm256_loadu_ps(part(chunk, register)) }
    }

    #[inline(always)]
    fn load_f16(self, chunk: &[[u8; 2]; LANES], register: usize) -> Self::Vector {
        // SAFETY: the instructions are available; a register of elements.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(part(chunk, register))) }
    }

    #[inline(always)]
    fn load_bf16(self, chunk: &[[u8; 2]; LANES], register: usize) -> Self::Vector {
        // SAFETY: the instructions are available; a register of elements.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(part(chunk, register)));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn load_i8(self, chunk: &[u8; LANES], register: usize) -> Self::Vector {
        // SAFETY: the instructions are available; a register of elements.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(part(chunk, register)))) }
    }

    #[inline(always)]
    fn splat_f16(self, number: [u8; 2]) -> Self::Vector {
        // SAFETY: the instructions are available.
        unsafe { _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(number))) }
    }

    #[inline(always)]
    fn round(self, x: &[f32; LANES], factor: f32) -> ([u32; LANES / 4], [i32; 2]) {
        let mut words = [0; LANES / 4];
        // SAFETY: the instructions are available; a register of elements, and of bytes.
        unsafe {
            let quants: [__m256i; 4] = array(|i| {
                let product = _mm256_mul_ps(self.load(x, i), _mm256_set1_ps(factor));
                let rounded = _mm256_castps_si256(_mm256_add_ps(product, _mm256_set1_ps(ROUND)));
                _mm256_sub_epi32(rounded, _mm256_set1_epi32(ROUND.to_bits() as i32))
            });
            let [a, b, c, d] = quants;
            let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            // Packing works on each 128-bit half separately; this restores the order.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            _mm256_storeu_si256(words.as_mut_ptr().cast(), bytes);
            let first = _mm256_add_epi32(a, b);
            let second = _mm256_add_epi32(c, d);
            let by_4 = _mm256_hadd_epi32(first, second);
            let by_2 = _mm_add_epi32(
                _mm256_castsi256_si128(by_4),
                _mm256_extracti128_si256::<1>(by_4),
            );
            let sums = _mm_hadd_epi32(by_2, by_2);
            (
                words,
                [_mm_cvtsi128_si32(sums), _mm_extract_epi32::<1>(sums)],
            )
        }
    }

    #[inline(always)]
    fn prefetch(self, bytes: &[u8]) {
        for line in bytes.chunks(LINE) {
            // SAFETY: prefetching any address is allowed.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
        }
    }

    #[inline(always)]
    fn lanes(self, mut register: impl FnMut(usize) -> Self::Vector) -> Self::Lanes {
        [register(0), register(1), register(2), register(3)]
    }

    #[inline(always)]
    fn sum(self, [a, b, c, d]: Self::Lanes) -> f32 {
        // SAFETY: the instructions are available.
        unsafe {
            let by_8 = _mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d));
            let by_4 = _mm_add_ps(_mm256_castps256_ps128(by_8), _mm256_extractf128_ps(by_8, 1));
            let by_2 = _mm_add_ps(by_4, _mm_movehl_ps(by_4, by_4));
            _mm_cvtss_f32(_mm_add_ss(by_2, _mm_movehdup_ps(by_2)))
        }
    }

    #[inline(always)]
    fn sums(self, rows: [Self::Lanes; 8]) -> [f32; 8] {
        reduce::<D, Sum>(self, rows)
    }

    #[inline(always)]
    fn largest(self, rows: [Self::Lanes; 8]) -> [f32; 8] {
        reduce::<D, Largest>(self, rows)
    }
}

/// An operation on lanes that reduces them.
trait Reduce {
    /// Combines lower and upper lanes.
    fn combine<D>(_: Avx2<D>, low: __m256, high: __m256) -> __m256;
}

/// [`Simd::sums`]
struct Sum;

impl Reduce for Sum {
    #[inline(always)]
    fn combine<D>(_: Avx2<D>, low: __m256, high: __m256) -> __m256 {
        // SAFETY: the instructions are available.
        unsafe { _mm256_add_ps(low, high) }
    }
}

/// [`Simd::largest`]
struct Largest;

impl Reduce for Largest {
    #[inline(always)]
    fn combine<D>(_: Avx2<D>, low: __m256, high: __m256) -> __m256 {
        // SAFETY: the instructions are available. Of equal numbers and with NaN the result is the second one.
        unsafe { _mm256_max_ps(high, low) }
    }
}

/// Combines halves of pairs of registers until one register holds one result per lane.
#[inline(always)]
fn reduce<D: QuantDots, R: Reduce>(simd: Avx2<D>, rows: [[__m256; 4]; 8]) -> [f32; 8] {
    // SAFETY: the instructions are available.
    unsafe {
        let by_8: [__m256; 8] = array(|i| {
            let [a, b, c, d] = rows[i];
            let (low, high) = (R::combine(simd, a, c), R::combine(simd, b, d));
            R::combine(simd, low, high)
        });
        let by_4: [__m256; 4] = array(|i| {
            let (a, b) = (by_8[2 * i], by_8[2 * i + 1]);
            let high = _mm256_permute2f128_ps::<0x31>(a, b);
            R::combine(simd, _mm256_permute2f128_ps::<0x20>(a, b), high)
        });
        let by_2: [__m256; 2] = array(|i| {
            let (a, b) = (by_4[2 * i], by_4[2 * i + 1]);
            let high = _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
            R::combine(simd, _mm256_shuffle_ps::<0b01_00_01_00>(a, b), high)
        });
        let [a, b] = by_2;
        let odd = _mm256_shuffle_ps::<0b11_01_11_01>(a, b);
        let by_1 = R::combine(simd, _mm256_shuffle_ps::<0b10_00_10_00>(a, b), odd);
        // The low half has rows 0, 2, 4 and 6, the high half the others.
        let (even, odd) = (
            _mm256_castps256_ps128(by_1),
            _mm256_extractf128_ps::<1>(by_1),
        );
        let mut out = [0.0; 8];
        _mm_storeu_ps(out.as_mut_ptr(), _mm_unpacklo_ps(even, odd));
        _mm_storeu_ps(out[4..].as_mut_ptr(), _mm_unpackhi_ps(even, odd));
        out
    }
}
