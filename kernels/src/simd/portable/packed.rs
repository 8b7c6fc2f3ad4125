//! Portable Rust: sixteen rows in arrays. Most operations are calls: inlined, they were a third of the compiled kernels.
//! Without FMA, a fused multiply-add is a call anyway.

use super::Portable;
use crate::float::f16_to_f32;
use crate::simd::packed::{Packed, ROWS, WordBytes};

impl Packed for Portable {
    type Words = [u32; ROWS];
    type Floats = [f32; ROWS];
    type Part = Portable;
    const SUMS: usize = 2;
    // Unrolled for arrays, products in registers would take much code and save nothing.
    const FUSED: usize = 0;

    #[inline(always)]
    fn part(self, _: usize) -> Portable {
        self
    }

    #[inline(never)]
    fn interleave(self, pieces: [&[u8; 16]; ROWS]) -> [Self::Words; 4] {
        let word = |piece: &[u8; 16], i: usize| u32::from_le_bytes(piece.as_chunks().0[i]);
        std::array::from_fn(|i| pieces.map(|piece| word(piece, i)))
    }

    #[inline(never)]
    fn load_words(self, bytes: &WordBytes) -> Self::Words {
        std::array::from_fn(|row| u32::from_le_bytes(bytes.as_chunks().0[row]))
    }

    #[inline(never)]
    fn store_words(self, words: Self::Words, bytes: &mut WordBytes) {
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
    }

    #[inline(always)]
    fn splat_word(self, value: u32) -> Self::Words {
        [value; ROWS]
    }

    #[inline(never)]
    fn and(self, a: Self::Words, b: Self::Words) -> Self::Words {
        std::array::from_fn(|row| a[row] & b[row])
    }

    #[inline(never)]
    fn or(self, a: Self::Words, b: Self::Words) -> Self::Words {
        std::array::from_fn(|row| a[row] | b[row])
    }

    #[inline(never)]
    fn xor(self, a: Self::Words, b: Self::Words) -> Self::Words {
        std::array::from_fn(|row| a[row] ^ b[row])
    }

    #[inline(never)]
    fn shift_right_by(self, words: Self::Words, n: u32) -> Self::Words {
        words.map(|word| word >> n)
    }

    #[inline(never)]
    fn shift_left<const N: u32>(self, words: Self::Words) -> Self::Words {
        words.map(|word| word << N)
    }

    #[inline(never)]
    fn look_up(self, table: &[u8; 16], words: Self::Words) -> Self::Words {
        words.map(|word| {
            u32::from_le_bytes(word.to_le_bytes().map(|byte| table[usize::from(byte & 15)]))
        })
    }

    #[inline(never)]
    fn add(self, a: Self::Words, b: Self::Words) -> Self::Words {
        std::array::from_fn(|row| a[row].wrapping_add(b[row]))
    }

    #[inline(always)]
    fn add_products<const BITS: u32>(
        self,
        mut sums: Self::Words,
        quants: [Self::Words; 4],
        x: [u32; 4],
    ) -> Self::Words {
        for (quants, x) in quants.into_iter().zip(x) {
            let x = x.to_le_bytes().map(|x| i32::from(x as i8));
            for (sum, quants) in sums.iter_mut().zip(quants) {
                let products = quants.to_le_bytes().into_iter().zip(x);
                let products: i32 = products.map(|(quant, x)| i32::from(quant) * x).sum();
                *sum = sum.wrapping_add(products as u32);
            }
        }
        sums
    }

    #[inline(never)]
    fn to_floats(self, words: Self::Words) -> Self::Floats {
        words.map(|word| word as i32 as f32)
    }

    #[inline(never)]
    fn halves_to_floats(self, words: Self::Words) -> Self::Floats {
        words.map(|word| f16_to_f32(word as u16))
    }

    #[inline(always)]
    fn bits_to_floats(self, words: Self::Words) -> Self::Floats {
        words.map(f32::from_bits)
    }

    #[inline(never)]
    fn load_halves(self, halves: &[[u8; 2]; ROWS]) -> Self::Floats {
        halves.map(|half| f16_to_f32(u16::from_le_bytes(half)))
    }

    #[inline(always)]
    fn load_floats(self, values: &[f32; ROWS]) -> Self::Floats {
        *values
    }

    #[inline(always)]
    fn store_floats(self, rows: Self::Floats, values: &mut [f32; ROWS]) {
        *values = rows;
    }

    #[inline(always)]
    fn splat_floats(self, value: f32) -> Self::Floats {
        [value; ROWS]
    }

    #[inline(never)]
    fn mul_floats(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|row| a[row] * b[row])
    }

    #[inline(never)]
    fn mul_add_floats(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        std::array::from_fn(|row| a[row].mul_add(b[row], c[row]))
    }
}
