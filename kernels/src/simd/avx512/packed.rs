//! AVX-512: sixteen rows in one 512-bit register.

use std::arch::asm;
use std::arch::x86_64::*;
use std::slice;

use super::Avx512;
use crate::simd::packed::{
    Packed, Prefetches, ROWS, TakeColumn, TileEncoding, TileQuants, WordBytes, array,
};

/// Loads sixteen bytes of each of four rows.
#[inline(always)]
fn four_rows(_: Avx512, [a, b, c, d]: [&[u8; 16]; 4]) -> __m512i {
    // SAFETY: the value of the type proves that the instructions are available; each load reads one
    // array.
    unsafe {
        let rows = _mm512_castsi128_si512(_mm_loadu_si128(a.as_ptr().cast()));
        let rows = _mm512_inserti32x4::<1>(rows, _mm_loadu_si128(b.as_ptr().cast()));
        let rows = _mm512_inserti32x4::<2>(rows, _mm_loadu_si128(c.as_ptr().cast()));
        _mm512_inserti32x4::<3>(rows, _mm_loadu_si128(d.as_ptr().cast()))
    }
}

/// Keeps the compiler from moving prefetches across this point, by which `words` are computed. Affects timing alone.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn keep_order(words: &mut __m512i) {
    // SAFETY: there is no instruction.
    unsafe {
        // Not `pure`: the compiler keeps the order of statements that may have side effects, such as prefetches.
        asm!(
            "/* {0} */",
            inout(zmm_reg) * words,
            options(nomem, nostack, preserves_flags)
        );
    }
}

/// Keeps the compiler from moving loads from two addresses to before the point at which `words` are computed. Affects timing
/// alone.
#[expect(
    clippy::pointers_in_nomem_asm_block,
    reason = "nothing is read or written there"
)]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn keep_order_of_loads<T>(
    words: &mut __m512i,
    mut a: *const T,
    mut b: *const T,
) -> (*const T, *const T) {
    // SAFETY: there is no instruction, so the addresses stay the same. To the compiler they may be any others.
    unsafe {
        asm!(
            "/* {0} {1} {2} */",
            inout(zmm_reg) * words,
            inout(reg) a,
            inout(reg) b,
            options(nomem, nostack, preserves_flags)
        );
    }
    (a, b)
}

// "The instructions are available": self proves it.
impl Packed for Avx512 {
    type Words = __m512i;
    type Floats = __m512;
    type Part = Avx512;
    const SUMS: usize = 8;
    const PANELS: usize = 2;
    const FUSED: usize = 8;
    const TILES: TileEncoding = TileEncoding::Signed;

    #[inline(always)]
    fn part(self, _: usize) -> Avx512 {
        self
    }

    #[inline(always)]
    fn prefetch_early(self, line: *const u8) {
        // SAFETY: prefetching any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
    }

    #[inline(always)]
    fn interleave(self, pieces: [&[u8; 16]; ROWS]) -> [__m512i; 4] {
        // Rows `i`, `i + 4`, `i + 8` and `i + 12` share a register, because unpacking works within 128-bit
        // lanes.
        let a = four_rows(self, [pieces[0], pieces[4], pieces[8], pieces[12]]);
        let b = four_rows(self, [pieces[1], pieces[5], pieces[9], pieces[13]]);
        let c = four_rows(self, [pieces[2], pieces[6], pieces[10], pieces[14]]);
        let d = four_rows(self, [pieces[3], pieces[7], pieces[11], pieces[15]]);
        // SAFETY: the instructions are available.
        unsafe {
            let low = [_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d)];
            let high = [_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d)];
            [
                _mm512_unpacklo_epi64(low[0], low[1]),
                _mm512_unpackhi_epi64(low[0], low[1]),
                _mm512_unpacklo_epi64(high[0], high[1]),
                _mm512_unpackhi_epi64(high[0], high[1]),
            ]
        }
    }

    #[inline(always)]
    fn load_words(self, bytes: &WordBytes) -> __m512i {
        // SAFETY: the instructions are available; the array is one register.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_words(self, words: __m512i, bytes: &mut WordBytes) {
        // SAFETY: the instructions are available; the array is one register.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), words) }
    }

    #[inline(always)]
    fn splat_word(self, value: u32) -> __m512i {
        // SAFETY: the instructions are available.
        unsafe { _mm512_set1_epi32(value as i32) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the instructions are available.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the instructions are available.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the instructions are available.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn shift_right_by(self, words: __m512i, n: u32) -> __m512i {
        // SAFETY: the instructions are available.
        unsafe { _mm512_srl_epi32(words, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    fn shift_left<const N: u32>(self, words: __m512i) -> __m512i {
        // SAFETY: the instructions are available.
        unsafe { _mm512_slli_epi32::<N>(words) }
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], words: __m512i) -> __m512i {
        // SAFETY: the instructions are available; the load reads one array.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, words)
        }
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the instructions are available.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn gather(self, table: &[u32], indices: __m512i) -> __m512i {
        assert!(table.len().is_power_of_two());
        // SAFETY: the instructions are available; the mask keeps indices below the length.
        unsafe {
            let mask = _mm512_set1_epi32(table.len() as i32 - 1);
            let indices = _mm512_and_si512(indices, mask);
            _mm512_i32gather_epi32::<4>(indices, table.as_ptr().cast())
        }
    }

    #[inline(always)]
    fn add_products<const BITS: u32>(
        self,
        sums: __m512i,
        quants: [__m512i; 4],
        x: [u32; 4],
    ) -> __m512i {
        let mut none = Prefetches::NONE;
        let [sums] =
            self.add_products_and_prefetch::<BITS, 1>([sums], [quants], x, [0; 4], &mut none);
        sums
    }

    #[inline(always)]
    fn add_products_and_prefetch<const BITS: u32, const P: usize>(
        self,
        mut sums: [__m512i; P],
        quants: [[__m512i; 4]; P],
        x: [u32; 4],
        counts: [usize; 4],
        prefetches: &mut Prefetches,
    ) -> [__m512i; P] {
        for word in 0..4 {
            let x = self.splat_word(x[word]);
            for p in 0..P {
                // SAFETY: the instructions are available.
                sums[p] = unsafe { _mm512_dpbusd_epi32(sums[p], quants[p][word], x) };
            }
            if counts[word] > 0 {
                prefetches.prefetch(self, counts[word]);
                // SAFETY: the instructions are available.
                unsafe { keep_order(&mut sums[0]) };
            }
        }
        sums
    }

    #[inline(always)]
    fn in_order<'a, T, const P: usize>(
        self,
        words: &mut [__m512i; P],
        [mut a, mut b]: [&'a [T]; 2],
    ) -> [&'a [T]; 2] {
        for words in words {
            // SAFETY: the instructions are available, and the addresses are those of the slices.
            unsafe {
                let (start, second) = keep_order_of_loads(words, a.as_ptr(), b.as_ptr());
                a = slice::from_raw_parts(start, a.len());
                b = slice::from_raw_parts(second, b.len());
            }
        }
        [a, b]
    }

    #[inline(always)]
    fn products<const BITS: u32, const N: usize, const P: usize, const C: usize>(
        self,
        tiles: [&TileQuants; P],
        part: usize,
        x: [&[u32; N]; C],
    ) -> [[__m512i; C]; P] {
        let mut sums = [[self.splat_word(0); C]; P];
        for (sums, tile) in sums.iter_mut().zip(tiles) {
            *sums = [self.load_words(&tile.starts[part]); C];
        }
        for i in 0..N {
            for c in 0..C {
                let x = self.splat_word(x[c][i]);
                for p in 0..P {
                    let quants = self.load_words(&tiles[p].words::<N>(part)[i]);
                    // SAFETY: the instructions are available.
                    sums[p][c] = unsafe { _mm512_dpbusd_epi32(sums[p][c], x, quants) };
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn to_floats(self, words: __m512i) -> __m512 {
        // SAFETY: the instructions are available.
        unsafe { _mm512_cvtepi32_ps(words) }
    }

    #[inline(always)]
    fn halves_to_floats(self, words: __m512i) -> __m512 {
        // SAFETY: the instructions are available.
        unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)) }
    }

    /// Conversions of halves of words would take three shuffles each.
    #[inline(always)]
    fn f16_columns<const HALF: usize>(
        self,
        numbers: [&[u8; 32]; ROWS],
        to: &mut impl TakeColumn<Self>,
    ) {
        // Numbers 0 to 7 of rows `i` and `i + 8`, then numbers 8 to 15.
        let rows: [__m512i; 8] = array(|i| {
            let [a, b] = [i, i + 8].map(|row| numbers[row].as_chunks().0);
            four_rows(self, [&a[0], &b[0], &a[1], &b[1]])
        });
        // SAFETY: the instructions are available.
        let columns = unsafe {
            // Pairs of rows, then four of them, then eight: in each, two more numbers of half as many registers.
            let pairs: [[__m512i; 2]; 4] = array(|i| {
                let (a, b) = (rows[2 * i], rows[2 * i + 1]);
                [_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)]
            });
            let fours: [[__m512i; 4]; 2] = array(|i| {
                let ([a, b], [c, d]) = (pairs[2 * i], pairs[2 * i + 1]);
                [
                    _mm512_unpacklo_epi32(a, c),
                    _mm512_unpackhi_epi32(a, c),
                    _mm512_unpacklo_epi32(b, d),
                    _mm512_unpackhi_epi32(b, d),
                ]
            });
            let [a, b] = fours;
            let eights: [[__m512i; 2]; 4] = array(|i| {
                [
                    _mm512_unpacklo_epi64(a[i], b[i]),
                    _mm512_unpackhi_epi64(a[i], b[i]),
                ]
            });
            eights
        };
        for (i, &column) in columns.as_flattened().iter().enumerate() {
            // SAFETY: the instructions are available.
            let rows = unsafe { _mm512_cvtph_ps(_mm512_castsi512_si256(column)) };
            to.take(self, 16 * HALF + i, rows);
        }
        for (i, &column) in columns.as_flattened().iter().enumerate() {
            // SAFETY: the instructions are available.
            let rows = unsafe { _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(column)) };
            to.take(self, 16 * HALF + 8 + i, rows);
        }
    }

    #[inline(always)]
    fn bits_to_floats(self, words: __m512i) -> __m512 {
        // SAFETY: the instructions are available.
        unsafe { _mm512_castsi512_ps(words) }
    }

    #[inline(always)]
    fn load_halves(self, halves: &[[u8; 2]; ROWS]) -> __m512 {
        // SAFETY: the instructions are available; the load reads one array.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_floats(self, values: &[f32; ROWS]) -> __m512 {
        // SAFETY: the instructions are available; the array is one register.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    fn store_floats(self, rows: __m512, values: &mut [f32; ROWS]) {
        // SAFETY: the instructions are available; the array is one register.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), rows) }
    }

    #[inline(always)]
    fn splat_floats(self, value: f32) -> __m512 {
        // SAFETY: the instructions are available.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn mul_floats(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the instructions are available.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add_floats(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the instructions are available.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
}
