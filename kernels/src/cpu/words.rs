//! SIMD operations on sixteen interleaved rows: the arithmetic of products with quants.
//!
//! A word has four bytes of one row, a lane belongs to one row, and lanes never interact. Products of
//! quants are integer sums, exact in any order, and the few `f32` operations are rounded as in IEEE 754:
//! all instruction sets give the same bits.

use super::simd::Portable;

/// Rows that are multiplied together.
pub(crate) const ROWS: usize = 16;

/// A word for each row, as bytes.
pub(crate) type WordBytes = [u8; 4 * ROWS];

/// Applies `f` to each index. Unlike `array::from_fn`, it is always inlined into the caller and so compiled
/// for the caller's instruction set, like `f` if it is small.
#[inline(always)]
pub(crate) fn array<T: Copy, const N: usize>(mut f: impl FnMut(usize) -> T) -> [T; N] {
    let mut array = [f(0); N];
    for (i, element) in array.iter_mut().enumerate().skip(1) {
        *element = f(i);
    }
    array
}

/// Lane-wise operations on one word and one `f32` for each of [`ROWS`] rows.
pub(crate) trait Words: Copy {
    /// A 32-bit integer, or four bytes, per row.
    type Words: Copy;
    /// An `f32` per row.
    type Rows: Copy;
    /// Sums of [`ROWS`] rows that fit the register file, 1 to 8.
    const SUMS: usize;
    /// Panels of [`ROWS`] rows that are multiplied together, 1 or 2. Two share the loads of activations.
    const PANELS: usize = 1;

    /// Loads sixteen bytes of each row as four words: word `i` has bytes `4i..4i + 4`.
    fn interleave(self, pieces: [&[u8; 16]; ROWS]) -> [Self::Words; 4];
    /// Loads one word per row.
    fn load_words(self, bytes: &WordBytes) -> Self::Words;
    /// Stores one word per row.
    fn store_words(self, words: Self::Words, bytes: &mut WordBytes);
    /// `value` in every word.
    fn splat_word(self, value: u32) -> Self::Words;
    /// `a & b`.
    fn and(self, a: Self::Words, b: Self::Words) -> Self::Words;
    /// `a | b`.
    fn or(self, a: Self::Words, b: Self::Words) -> Self::Words;
    /// `a ^ b`.
    fn xor(self, a: Self::Words, b: Self::Words) -> Self::Words;
    /// Logical shift right.
    fn shift_right<const N: u32>(self, words: Self::Words) -> Self::Words;
    /// Logical shift left.
    fn shift_left<const N: u32>(self, words: Self::Words) -> Self::Words;
    /// `table[b]` for each byte `b`, which is below 16.
    fn look_up(self, table: &[u8; 16], words: Self::Words) -> Self::Words;
    /// Adds four byte products to each integer; the bytes of `x` are signed. Quants are below 128 unless
    /// `WIDE`.
    fn add_products<const WIDE: bool>(
        self,
        sums: Self::Words,
        codes: Self::Words,
        x: u32,
    ) -> Self::Words;

    /// Converts signed integers to `f32`.
    fn to_rows(self, words: Self::Words) -> Self::Rows;
    /// Converts the low halves of words from f16 to `f32`.
    fn halves_to_rows(self, words: Self::Words) -> Self::Rows;
    /// Reinterprets words as `f32`.
    fn bits_to_rows(self, words: Self::Words) -> Self::Rows;
    /// Loads f16 numbers as `f32`.
    fn load_halves(self, halves: &[[u8; 2]; ROWS]) -> Self::Rows;
    /// Loads one `f32` per row.
    fn load_rows(self, values: &[f32; ROWS]) -> Self::Rows;
    /// Stores one `f32` per row.
    fn store_rows(self, rows: Self::Rows, values: &mut [f32; ROWS]);
    /// `value` in every row.
    fn splat_rows(self, value: f32) -> Self::Rows;
    /// `a * b`.
    fn mul_rows(self, a: Self::Rows, b: Self::Rows) -> Self::Rows;
    /// `a * b + c`, rounded once.
    fn mul_add_rows(self, a: Self::Rows, b: Self::Rows, c: Self::Rows) -> Self::Rows;

    /// Returns `(byte >> N) & mask` for each byte.
    #[inline(always)]
    fn bits<const N: u32>(self, words: Self::Words, mask: u8) -> Self::Words {
        let mask = self.splat_word(u32::from_le_bytes([mask; 4]));
        self.and(self.shift_right::<N>(words), mask)
    }
}

impl Words for Portable {
    type Words = [u32; ROWS];
    type Rows = [f32; ROWS];
    const SUMS: usize = 2;

    #[inline(always)]
    fn interleave(self, pieces: [&[u8; 16]; ROWS]) -> [Self::Words; 4] {
        let word = |piece: &[u8; 16], i: usize| u32::from_le_bytes(piece.as_chunks().0[i]);
        std::array::from_fn(|i| pieces.map(|piece| word(piece, i)))
    }

    #[inline(always)]
    fn load_words(self, bytes: &WordBytes) -> Self::Words {
        std::array::from_fn(|row| u32::from_le_bytes(bytes.as_chunks().0[row]))
    }

    #[inline(always)]
    fn store_words(self, words: Self::Words, bytes: &mut WordBytes) {
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
    }

    #[inline(always)]
    fn splat_word(self, value: u32) -> Self::Words {
        [value; ROWS]
    }

    #[inline(always)]
    fn and(self, a: Self::Words, b: Self::Words) -> Self::Words {
        std::array::from_fn(|row| a[row] & b[row])
    }

    #[inline(always)]
    fn or(self, a: Self::Words, b: Self::Words) -> Self::Words {
        std::array::from_fn(|row| a[row] | b[row])
    }

    #[inline(always)]
    fn xor(self, a: Self::Words, b: Self::Words) -> Self::Words {
        std::array::from_fn(|row| a[row] ^ b[row])
    }

    #[inline(always)]
    fn shift_right<const N: u32>(self, words: Self::Words) -> Self::Words {
        words.map(|word| word >> N)
    }

    #[inline(always)]
    fn shift_left<const N: u32>(self, words: Self::Words) -> Self::Words {
        words.map(|word| word << N)
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], words: Self::Words) -> Self::Words {
        words.map(|word| {
            u32::from_le_bytes(word.to_le_bytes().map(|byte| table[usize::from(byte & 15)]))
        })
    }

    #[inline(always)]
    fn add_products<const WIDE: bool>(
        self,
        sums: Self::Words,
        codes: Self::Words,
        x: u32,
    ) -> Self::Words {
        let products = |codes: u32| -> i32 {
            let (codes, x) = (codes.to_le_bytes(), x.to_le_bytes());
            (0..4)
                .map(|i| i32::from(codes[i]) * i32::from(x[i] as i8))
                .sum()
        };
        std::array::from_fn(|row| sums[row].wrapping_add(products(codes[row]) as u32))
    }

    #[inline(always)]
    fn to_rows(self, words: Self::Words) -> Self::Rows {
        words.map(|word| word as i32 as f32)
    }

    #[inline(always)]
    fn halves_to_rows(self, words: Self::Words) -> Self::Rows {
        words.map(|word| half::f16::from_bits(word as u16).to_f32())
    }

    #[inline(always)]
    fn bits_to_rows(self, words: Self::Words) -> Self::Rows {
        words.map(f32::from_bits)
    }

    #[inline(always)]
    fn load_halves(self, halves: &[[u8; 2]; ROWS]) -> Self::Rows {
        halves.map(|half| half::f16::from_le_bytes(half).to_f32())
    }

    #[inline(always)]
    fn load_rows(self, values: &[f32; ROWS]) -> Self::Rows {
        *values
    }

    #[inline(always)]
    fn store_rows(self, rows: Self::Rows, values: &mut [f32; ROWS]) {
        *values = rows;
    }

    #[inline(always)]
    fn splat_rows(self, value: f32) -> Self::Rows {
        [value; ROWS]
    }

    #[inline(always)]
    fn mul_rows(self, a: Self::Rows, b: Self::Rows) -> Self::Rows {
        std::array::from_fn(|row| a[row] * b[row])
    }

    #[inline(always)]
    fn mul_add_rows(self, a: Self::Rows, b: Self::Rows, c: Self::Rows) -> Self::Rows {
        std::array::from_fn(|row| a[row].mul_add(b[row], c[row]))
    }
}
