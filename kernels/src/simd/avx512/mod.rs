//! AVX-512: 32 lanes in two 512-bit registers.

mod amx;
mod lanes;
mod packed;

use std::arch::x86_64::*;

use self::amx::{Amx, AmxUnit};
use crate::simd::cpu_features;
use crate::simd::dispatch::Implementation;
use crate::simd::packed::array;
use crate::simd::{LANES, LINE, ROUND, Simd, entry_points};

/// Proof that AVX-512 F, BW, DQ, VL and VNNI and AVX2 with FMA and F16C are available.
#[derive(Clone, Copy)]
pub(crate) struct Avx512 {
    amx: Option<Amx>,
}

impl Avx512 {
    pub(crate) fn new() -> Option<Avx512> {
        cpu_features::has_avx512().then_some(Avx512 { amx: None })
    }

    /// With AMX for products of many activation rows.
    pub(crate) fn with_amx() -> Option<Avx512> {
        let amx = Some(Amx::new()?);
        cpu_features::has_avx512().then_some(Avx512 { amx })
    }
}

/// Lanes of a register.
const WIDTH: usize = 16;

/// Pointer to the elements of a register.
#[inline(always)]
fn part<T, P>(chunk: &[T; LANES], register: usize) -> *const P {
    chunk.as_chunks::<WIDTH>().0[register].as_ptr().cast()
}

// In the SAFETY comments: `self` proves that the instructions are available; `part` checks that a register
// of elements can be read or written.
impl Simd for Avx512 {
    type Codec = lanes::F32x16;
    type Matrix = AmxUnit;
    type Vector = __m512;
    type Lanes = [__m512; LANES / WIDTH];
    const REGISTERS: usize = LANES / WIDTH;
    const COLUMNS: usize = 6;

    entry_points!(
        Avx512,
        "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
    );

    #[inline(always)]
    fn implementation(self) -> Implementation {
        Implementation::Avx512(self)
    }

    #[inline(always)]
    fn has_matrix_unit(self) -> bool {
        self.amx.is_some()
    }

    #[inline(always)]
    fn matrix_unit(self) -> Option<AmxUnit> {
        self.amx.map(Amx::configure)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        // SAFETY: the instructions are available.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, chunk: &[f32; LANES], register: usize) -> Self::Vector {
        // SAFETY: the instructions are available; a register of elements.
        unsafe { _mm512_loadu_ps(part(chunk, register)) }
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, chunk: &mut [f32; LANES], register: usize) {
        let part = &mut chunk.as_chunks_mut::<WIDTH>().0[register];
        // SAFETY: the instructions are available; a register of elements.
        unsafe { _mm512_storeu_ps(part.as_mut_ptr(), vector) }
    }

    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: the instructions are available.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: the instructions are available.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        // SAFETY: the instructions are available.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn load_f32(self, chunk: &[[u8; 4]; LANES], register: usize) -> Self::Vector {
        // SAFETY: the instructions are available; a register of elements.
        unsafe { _mm512_loadu_ps(part(chunk, register)) }
    }

    #[inline(always)]
    fn load_f16(self, chunk: &[[u8; 2]; LANES], register: usize) -> Self::Vector {
        // SAFETY: the instructions are available; a register of elements.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(part(chunk, register))) }
    }

    #[inline(always)]
    fn load_bf16(self, chunk: &[[u8; 2]; LANES], register: usize) -> Self::Vector {
        // SAFETY: the instructions are available; a register of elements.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(part(chunk, register)));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn load_i8(self, chunk: &[u8; LANES], register: usize) -> Self::Vector {
        // SAFETY: the instructions are available; a register of elements.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(part(chunk, register)))) }
    }

    #[inline(always)]
    fn splat_f16(self, number: [u8; 2]) -> Self::Vector {
        // SAFETY: the instructions are available.
        unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(i16::from_le_bytes(number))) }
    }

    #[inline(always)]
    fn round(self, x: &[f32; LANES], factor: f32) -> ([u32; LANES / 4], [i32; 2]) {
        let mut quants = [0; LANES / 4];
        let (halves, _) = quants.as_chunks_mut::<{ WIDTH / 4 }>();
        // SAFETY: the instructions are available; a register of elements, and as many bytes.
        let sums = array(|i| unsafe {
            let product = _mm512_mul_ps(self.load(x, i), _mm512_set1_ps(factor));
            let rounded = _mm512_castps_si512(_mm512_add_ps(product, _mm512_set1_ps(ROUND)));
            let quants = _mm512_sub_epi32(rounded, _mm512_set1_epi32(ROUND.to_bits() as i32));
            _mm_storeu_si128(halves[i].as_mut_ptr().cast(), _mm512_cvtepi32_epi8(quants));
            _mm512_reduce_add_epi32(quants)
        });
        (quants, sums)
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
        [register(0), register(1)]
    }

    #[inline(always)]
    fn sum(self, [a, b]: Self::Lanes) -> f32 {
        // SAFETY: the instructions are available.
        unsafe {
            let by_16 = _mm512_add_ps(a, b);
            let low = _mm512_castps512_ps256(by_16);
            let by_8 = _mm256_add_ps(low, _mm512_extractf32x8_ps(by_16, 1));
            let by_4 = _mm_add_ps(_mm256_castps256_ps128(by_8), _mm256_extractf128_ps(by_8, 1));
            let by_2 = _mm_add_ps(by_4, _mm_movehl_ps(by_4, by_4));
            _mm_cvtss_f32(_mm_add_ss(by_2, _mm_movehdup_ps(by_2)))
        }
    }

    #[inline(always)]
    fn sums(self, rows: [Self::Lanes; 8]) -> [f32; 8] {
        reduce::<Sum>(self, rows)
    }

    #[inline(always)]
    fn largest(self, rows: [Self::Lanes; 8]) -> [f32; 8] {
        reduce::<Largest>(self, rows)
    }
}

/// An operation on lanes that reduces them.
trait Reduce {
    /// Combines lower and upper lanes.
    fn combine(_: Avx512, low: __m512, high: __m512) -> __m512;
}

/// [`Simd::sums`]
struct Sum;

impl Reduce for Sum {
    #[inline(always)]
    fn combine(_: Avx512, low: __m512, high: __m512) -> __m512 {
        // SAFETY: the instructions are available.
        unsafe { _mm512_add_ps(low, high) }
    }
}

/// [`Simd::largest`]
struct Largest;

impl Reduce for Largest {
    #[inline(always)]
    fn combine(_: Avx512, low: __m512, high: __m512) -> __m512 {
        // SAFETY: the instructions are available. Of equal numbers and with NaN the result is the second one.
        unsafe { _mm512_max_ps(high, low) }
    }
}

/// Combines halves of pairs of registers until one register holds one result in every other lane.
#[inline(always)]
fn reduce<R: Reduce>(simd: Avx512, rows: [[__m512; 2]; 8]) -> [f32; 8] {
    // SAFETY: the instructions are available.
    unsafe {
        let by_16: [__m512; 8] = array(|i| R::combine(simd, rows[i][0], rows[i][1]));
        let by_8: [__m512; 4] = array(|i| {
            let (a, b) = (by_16[2 * i], by_16[2 * i + 1]);
            let high = _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b);
            R::combine(simd, _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), high)
        });
        let by_4: [__m512; 2] = array(|i| {
            let (a, b) = (by_8[2 * i], by_8[2 * i + 1]);
            let high = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
            R::combine(simd, _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b), high)
        });
        let [a, b] = by_4;
        let high = _mm512_shuffle_ps::<0b11_10_11_10>(a, b);
        let by_2 = R::combine(simd, _mm512_shuffle_ps::<0b01_00_01_00>(a, b), high);
        let by_1 = R::combine(simd, by_2, _mm512_movehdup_ps(by_2));
        // The first four lanes have rows 0 and 4, the next rows 1 and 5, and so on.
        let order = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 14, 10, 6, 2, 12, 8, 4, 0);
        let all = _mm512_castps512_ps256(_mm512_permutexvar_ps(order, by_1));
        let mut out = [0.0; 8];
        _mm256_storeu_ps(out.as_mut_ptr(), all);
        out
    }
}
