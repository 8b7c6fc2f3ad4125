//! AVX2: sixteen rows in two 256-bit registers, each a part.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ptr;

use super::Avx2;
use super::dots::QuantDots;
use crate::simd::packed::{
    Packed, ROWS, Sums, TakeColumn, TileEncoding, TileQuants, WordBytes, each,
};

/// Lanes of a register.
const WIDTH: usize = 8;

/// Loads sixteen bytes of each of two rows.
#[inline(always)]
fn two_rows<D>(_: Avx2<D>, a: &[u8; 16], b: &[u8; 16]) -> __m256i {
    // SAFETY: the value of the type proves that the instructions are available; each load reads one
    // array.
    unsafe {
        let row = _mm256_castsi128_si256(_mm_loadu_si128(a.as_ptr().cast()));
        _mm256_inserti128_si256::<1>(row, _mm_loadu_si128(b.as_ptr().cast()))
    }
}

/// Transposes four words of each of eight rows.
#[inline(always)]
fn transpose<D: Copy>(simd: Avx2<D>, rows: &[&[u8; 16]; WIDTH]) -> [__m256i; 4] {
    // Rows `i` and `i + 4` share a register, because unpacking works within 128-bit lanes.
    let a = two_rows(simd, rows[0], rows[4]);
    let b = two_rows(simd, rows[1], rows[5]);
    let c = two_rows(simd, rows[2], rows[6]);
    let d = two_rows(simd, rows[3], rows[7]);
    // SAFETY: the value of the type proves that the instructions are available.
    unsafe {
        let low = [_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d)];
        let high = [_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d)];
        [
            _mm256_unpacklo_epi64(low[0], low[1]),
            _mm256_unpackhi_epi64(low[0], low[1]),
            _mm256_unpacklo_epi64(high[0], high[1]),
            _mm256_unpackhi_epi64(high[0], high[1]),
        ]
    }
}

/// Transposes eight rows of eight numbers of 16 bits, in each 128-bit lane.
///
/// # Safety
/// AVX2 must be available.
#[inline(always)]
unsafe fn columns_of_halves(rows: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: the instructions are available.
    unsafe {
        // Pairs of rows, then four of them, then eight: in each, two more numbers of half as many registers.
        let pairs = each!(4, i => {
            let (a, b) = (rows[2 * i], rows[2 * i + 1]);
            [_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)]
        });
        let fours = each!(2, i => {
            let ([a, b], [c, d]) = (pairs[2 * i], pairs[2 * i + 1]);
            [
                _mm256_unpacklo_epi32(a, c),
                _mm256_unpackhi_epi32(a, c),
                _mm256_unpacklo_epi32(b, d),
                _mm256_unpackhi_epi32(b, d),
            ]
        });
        let [a, b] = fours;
        let [p, q, r, s] = each!(4, i => [
            _mm256_unpacklo_epi64(a[i], b[i]),
            _mm256_unpackhi_epi64(a[i], b[i]),
        ]);
        [p[0], p[1], q[0], q[1], r[0], r[1], s[0], s[1]]
    }
}

/// Eight of sixteen rows: those of one register.
#[derive(Clone, Copy)]
pub(crate) struct EightRows<D> {
    /// Proof that the instructions are available.
    simd: Avx2<D>,
    /// 0, or 1 for the last eight.
    index: usize,
}

impl<D> EightRows<D> {
    /// Returns the elements of these rows.
    #[inline(always)]
    fn of<'a, T>(&self, all: &'a [T; ROWS]) -> &'a [T; WIDTH] {
        &all.as_chunks().0[self.index]
    }
}

// "The instructions are available": self proves it.
impl<D: QuantDots> Packed for EightRows<D> {
    type Words = __m256i;
    type Floats = __m256;
    type Part = Self;
    const SUMS: usize = Avx2::<D>::SUMS;
    const WIDE_OFFSET: i32 = Avx2::<D>::WIDE_OFFSET;
    const TILES: TileEncoding = D::TILES;

    #[inline(always)]
    fn part(self, _: usize) -> Self {
        self
    }

    #[inline(always)]
    fn prefetch_early(self, line: *const u8) {
        // A line has the words of all rows.
        if self.index == 0 {
            self.simd.prefetch_early(line);
        }
    }

    #[inline(always)]
    fn interleave(self, pieces: [&[u8; 16]; ROWS]) -> [__m256i; 4] {
        transpose(self.simd, self.of(&pieces))
    }

    #[inline(always)]
    fn load_words(self, bytes: &WordBytes) -> __m256i {
        let bytes: &[u8; 4 * WIDTH] = &bytes.as_chunks().0[self.index];
        // SAFETY: the instructions are available; the array is one register.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_words(self, words: __m256i, bytes: &mut WordBytes) {
        let bytes: &mut [u8; 4 * WIDTH] = &mut bytes.as_chunks_mut().0[self.index];
        // SAFETY: the instructions are available; the array is one register.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), words) }
    }

    #[inline(always)]
    fn splat_word(self, value: u32) -> __m256i {
        // SAFETY: the instructions are available.
        unsafe { _mm256_set1_epi32(value as i32) }
    }

    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the instructions are available.
        unsafe { _mm256_and_si256(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the instructions are available.
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the instructions are available.
        unsafe { _mm256_xor_si256(a, b) }
    }

    #[inline(always)]
    fn shift_right_by(self, words: __m256i, n: u32) -> __m256i {
        // SAFETY: the instructions are available.
        unsafe { _mm256_srl_epi32(words, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    fn shift_left<const N: u32>(self, words: __m256i) -> __m256i {
        // SAFETY: the instructions are available.
        unsafe { _mm256_sll_epi32(words, _mm_cvtsi32_si128(N as i32)) }
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], words: __m256i) -> __m256i {
        // SAFETY: the instructions are available; the load reads one array.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, words)
        }
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the instructions are available.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    fn gather(self, table: &[u32], indices: __m256i) -> __m256i {
        assert!(table.len().is_power_of_two());
        // SAFETY: the instructions are available; the mask keeps indices below the length.
        unsafe {
            let mask = _mm256_set1_epi32(table.len() as i32 - 1);
            let table = table.as_ptr().cast();
            _mm256_i32gather_epi32::<4>(table, _mm256_and_si256(indices, mask))
        }
    }

    #[inline(always)]
    fn add_products<const BITS: u32>(
        self,
        sums: __m256i,
        quants: [__m256i; 4],
        x: [u32; 4],
    ) -> __m256i {
        let dots = self.simd.0;
        let sums = (sums, self.splat_word(0));
        let sums = dots.add_words::<BITS>(sums, [quants[0], quants[1]], [x[0], x[1]], 0);
        let (wide, narrow) = dots.add_words::<BITS>(sums, [quants[2], quants[3]], [x[2], x[3]], 2);
        dots.total(wide, narrow)
    }

    #[inline(always)]
    fn highest<const BYTE: u32>(self, words: __m256i) -> __m256i {
        // SAFETY: the instructions are available.
        unsafe {
            // Indices of bytes from 128 on give 0.
            let order = self.splat_word((BYTE << 24) | 0x0080_8080);
            let lanes =
                _mm256_setr_epi32(0, 4 << 24, 8 << 24, 12 << 24, 0, 4 << 24, 8 << 24, 12 << 24);
            _mm256_shuffle_epi8(words, _mm256_or_si256(order, lanes))
        }
    }

    #[inline(always)]
    fn to_floats(self, words: __m256i) -> __m256 {
        // SAFETY: the instructions are available.
        unsafe { _mm256_cvtepi32_ps(words) }
    }

    #[inline(always)]
    fn halves_to_floats(self, words: __m256i) -> __m256 {
        // SAFETY: the instructions are available.
        unsafe {
            let low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
            let packed = _mm256_packus_epi32(low, low);
            let packed = _mm256_permute4x64_epi64::<0b1000>(packed);
            _mm256_cvtph_ps(_mm256_castsi256_si128(packed))
        }
    }

    #[inline(always)]
    fn bits_to_floats(self, words: __m256i) -> __m256 {
        // SAFETY: the instructions are available.
        unsafe { _mm256_castsi256_ps(words) }
    }

    #[inline(always)]
    fn load_halves(self, halves: &[[u8; 2]; ROWS]) -> __m256 {
        // SAFETY: the instructions are available; the load reads one array.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(self.of(halves).as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_floats(self, values: &[f32; ROWS]) -> __m256 {
        // SAFETY: the instructions are available; the array is one register.
        unsafe { _mm256_loadu_ps(self.of(values).as_ptr()) }
    }

    #[inline(always)]
    fn splat_floats(self, value: f32) -> __m256 {
        // SAFETY: the instructions are available.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn mul_floats(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the instructions are available.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add_floats(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the instructions are available.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn store_floats(self, rows: __m256, values: &mut [f32; ROWS]) {
        let values: &mut [f32; WIDTH] = &mut values.as_chunks_mut().0[self.index];
        // SAFETY: the instructions are available; the array is one register.
        unsafe { _mm256_storeu_ps(values.as_mut_ptr(), rows) }
    }
}

impl<D: QuantDots> Packed for Avx2<D> {
    type Words = [__m256i; 2];
    type Floats = [__m256; 2];
    type Part = EightRows<D>;
    const PARTS: usize = 2;
    const SUMS: usize = 4;
    const FUSED: usize = 4;
    const FUSED_ROWS: usize = D::FUSED_ROWS;
    const WIDE_OFFSET: i32 = D::WIDE_OFFSET;
    const WORD_BY_WORD: bool = true;
    const TILES: TileEncoding = D::TILES;

    #[inline(always)]
    fn part(self, index: usize) -> EightRows<D> {
        EightRows { simd: self, index }
    }

    #[inline(always)]
    fn prefetch_early(self, line: *const u8) {
        // SAFETY: prefetching any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
    }

    #[inline(always)]
    fn interleave(self, pieces: [&[u8; 16]; ROWS]) -> [[__m256i; 2]; 4] {
        let [a, b] = each!(2, i => self.part(i).interleave(pieces));
        each!(4, word => [a[word], b[word]])
    }

    #[inline(always)]
    fn add_products<const BITS: u32>(
        self,
        sums: [__m256i; 2],
        quants: [[__m256i; 2]; 4],
        x: [u32; 4],
    ) -> [__m256i; 2] {
        each!(2, i => {
            let quants = each!(4, word => quants[word][i]);
            self.part(i).add_products::<BITS>(sums[i], quants, x)
        })
    }

    #[inline(always)]
    fn add_words<const BITS: u32>(
        self,
        sums: Sums<Self>,
        quants: [[__m256i; 2]; 2],
        x: [u32; 2],
        before: usize,
    ) -> Sums<Self> {
        let [a, b] = each!(2, i => {
            let sums = (sums.wide[i], sums.narrow[i]);
            let quants = each!(2, word => quants[word][i]);
            self.0.add_words::<BITS>(sums, quants, x, before)
        });
        Sums {
            wide: [a.0, b.0],
            narrow: [a.1, b.1],
        }
    }

    #[inline(always)]
    fn total(self, sums: Sums<Self>) -> [__m256i; 2] {
        each!(2, i => self.0.total(sums.wide[i], sums.narrow[i]))
    }

    #[inline(always)]
    fn products<const BITS: u32, const N: usize, const P: usize, const C: usize>(
        self,
        tiles: [&TileQuants; P],
        part: usize,
        x: [&[u32; N]; C],
    ) -> [[[__m256i; 2]; C]; P] {
        let mut sums = [[self.splat_word(0); C]; P];
        for p in 0..P {
            sums[p] = D::products::<BITS, N, C>(self, tiles[p], part, x);
        }
        sums
    }

    #[inline(always)]
    fn in_memory<T>(self, values: &mut T) -> &mut T {
        if !D::FILLS_REGISTERS {
            return values;
        }
        let mut same = ptr::from_mut(values);
        // SAFETY: there is no instruction, so the pointer stays the same. To the compiler it may be any other.
        unsafe {
            asm!("/* {0} */", inout(reg) same, options(nostack, preserves_flags));
            &mut *same
        }
    }

    /// Conversions of halves of words would take three shuffles each.
    #[inline(always)]
    fn f16_columns<const HALF: usize>(
        self,
        numbers: [&[u8; 32]; ROWS],
        to: &mut impl TakeColumn<Self>,
    ) {
        for half in 0..2 {
            // Eight numbers of rows `i` and `i + 8`.
            let piece = |row: usize| &numbers[row].as_chunks().0[half];
            let rows = each!(8, i => two_rows(self, piece(i), piece(i + 8)));
            // SAFETY: the instructions are available.
            let columns = unsafe { columns_of_halves(rows) };
            for (i, column) in columns.into_iter().enumerate() {
                // SAFETY: the instructions are available.
                let rows = unsafe {
                    [
                        _mm256_cvtph_ps(_mm256_castsi256_si128(column)),
                        _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(column)),
                    ]
                };
                to.take(self, 16 * HALF + 8 * half + i, rows);
            }
        }
    }

    #[inline(always)]
    fn opaque(self, mut n: usize) -> usize {
        // SAFETY: there is no instruction.
        unsafe { asm!("/* {0} */", inout(reg) n, options(nomem, nostack, preserves_flags)) };
        n
    }

    #[inline(always)]
    fn highest<const BYTE: u32>(self, words: [__m256i; 2]) -> [__m256i; 2] {
        each!(2, i => self.part(i).highest::<BYTE>(words[i]))
    }

    #[inline(always)]
    fn store_words(self, words: [__m256i; 2], bytes: &mut WordBytes) {
        self.part(0).store_words(words[0], bytes);
        self.part(1).store_words(words[1], bytes);
    }

    #[inline(always)]
    fn store_floats(self, rows: [__m256; 2], values: &mut [f32; ROWS]) {
        self.part(0).store_floats(rows[0], values);
        self.part(1).store_floats(rows[1], values);
    }

    #[inline(always)]
    fn and(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        each!(2, i => self.part(i).and(a[i], b[i]))
    }

    #[inline(always)]
    fn or(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        each!(2, i => self.part(i).or(a[i], b[i]))
    }

    #[inline(always)]
    fn xor(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        each!(2, i => self.part(i).xor(a[i], b[i]))
    }

    #[inline(always)]
    fn shift_right_by(self, words: [__m256i; 2], n: u32) -> [__m256i; 2] {
        each!(2, i => self.part(i).shift_right_by(words[i], n))
    }

    #[inline(always)]
    fn shift_left<const N: u32>(self, words: [__m256i; 2]) -> [__m256i; 2] {
        each!(2, i => self.part(i).shift_left::<N>(words[i]))
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], words: [__m256i; 2]) -> [__m256i; 2] {
        each!(2, i => self.part(i).look_up(table, words[i]))
    }

    #[inline(always)]
    fn add(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        each!(2, i => self.part(i).add(a[i], b[i]))
    }

    #[inline(always)]
    fn gather(self, table: &[u32], indices: [__m256i; 2]) -> [__m256i; 2] {
        each!(2, i => self.part(i).gather(table, indices[i]))
    }

    #[inline(always)]
    fn to_floats(self, words: [__m256i; 2]) -> [__m256; 2] {
        each!(2, i => self.part(i).to_floats(words[i]))
    }

    #[inline(always)]
    fn halves_to_floats(self, words: [__m256i; 2]) -> [__m256; 2] {
        each!(2, i => self.part(i).halves_to_floats(words[i]))
    }

    #[inline(always)]
    fn bits_to_floats(self, words: [__m256i; 2]) -> [__m256; 2] {
        each!(2, i => self.part(i).bits_to_floats(words[i]))
    }

    #[inline(always)]
    fn load_words(self, bytes: &WordBytes) -> [__m256i; 2] {
        each!(2, i => self.part(i).load_words(bytes))
    }

    #[inline(always)]
    fn load_halves(self, halves: &[[u8; 2]; ROWS]) -> [__m256; 2] {
        each!(2, i => self.part(i).load_halves(halves))
    }

    #[inline(always)]
    fn load_floats(self, values: &[f32; ROWS]) -> [__m256; 2] {
        each!(2, i => self.part(i).load_floats(values))
    }

    #[inline(always)]
    fn mul_floats(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        each!(2, i => self.part(i).mul_floats(a[i], b[i]))
    }

    #[inline(always)]
    fn mul_add_floats(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        each!(2, i => self.part(i).mul_add_floats(a[i], b[i], c[i]))
    }

    #[inline(always)]
    fn splat_word(self, value: u32) -> [__m256i; 2] {
        each!(2, i => self.part(i).splat_word(value))
    }

    #[inline(always)]
    fn splat_floats(self, value: f32) -> [__m256; 2] {
        each!(2, i => self.part(i).splat_floats(value))
    }
}
