//! Products of quants: pairs of them in 16 bits, or the instructions of AVX-VNNI.

use std::arch::asm;
use std::arch::x86_64::*;

use super::Avx2;
use crate::simd::cpu_features;
use crate::simd::dispatch::Implementation;
use crate::simd::packed::{Packed, Sums, TileEncoding, TileQuants, WordBytes, each, unrolled};
use crate::simd::{Kernel, KernelInto, entry_points};

/// Instructions that multiply quants. A value of an implementing type proves that they are available.
pub(crate) trait QuantDots: Copy + Send + Sync {
    /// [`Packed::WIDE_OFFSET`]
    const WIDE_OFFSET: i32;
    /// [`Packed::TILES`]
    const TILES: TileEncoding;
    /// [`Packed::FUSED_ROWS`]
    const FUSED_ROWS: usize;
    /// True if the products of a tile need the registers of other sums: see [`Packed::in_memory`].
    const FILLS_REGISTERS: bool;

    /// Runs a kernel, compiled for these instructions and AVX2.
    fn run<K: Kernel>(self, kernel: K);

    /// Runs a kernel that writes to `out`, compiled likewise.
    fn run_into<K: KernelInto<O>, O: ?Sized>(self, kernel: K, out: &mut O);

    /// The entry of the list of instruction sets.
    fn implementation(self) -> Implementation;

    /// [`Packed::add_words`] of one register: wide and narrow sums.
    fn add_words<const BITS: u32>(
        self,
        sums: (__m256i, __m256i),
        quants: [__m256i; 2],
        x: [u32; 2],
        before: usize,
    ) -> (__m256i, __m256i);

    /// [`Packed::total`] of one register.
    fn total(self, wide: __m256i, narrow: __m256i) -> __m256i;

    /// [`Packed::products`] of one tile.
    fn products<const BITS: u32, const N: usize, const C: usize>(
        simd: Avx2<Self>,
        tile: &TileQuants,
        part: usize,
        x: [&[u32; N]; C],
    ) -> [[__m256i; 2]; C];
}

/// Returns the number of words whose products fit sums of signed 16 bits; each word adds two products to a sum. It is 1
/// for quants of 8 bits, which are signed.
const fn words_in_16_bits(bits: u32) -> usize {
    let largest = 2 * ((1 << bits) - 1) * 127;
    match i16::MAX as usize / largest {
        0 => 1,
        n => n,
    }
}

/// Sums of two products in 16 bits.
#[derive(Clone, Copy)]
pub(crate) struct Widened(());

/// The instructions of AVX-VNNI: sums of four products in 32 bits.
#[cfg(isa = "avxvnni")]
#[derive(Clone, Copy)]
pub(crate) struct Dotted(());

impl Avx2<Widened> {
    pub(crate) fn new() -> Option<Self> {
        cpu_features::has_avx2().then_some(Avx2(Widened(())))
    }
}

#[cfg(isa = "avxvnni")]
impl Avx2<Dotted> {
    pub(crate) fn new() -> Option<Self> {
        cpu_features::has_avxvnni().then_some(Avx2(Dotted(())))
    }

    /// The same without AVX-VNNI.
    pub(crate) fn widened(self) -> Avx2<Widened> {
        Avx2(Widened(()))
    }
}

impl Widened {
    /// Returns sums of two products each, which fit signed 16 bits. Quants of 8 bits are signed.
    #[inline(always)]
    fn pairs<const BITS: u32>(self, quants: __m256i, x: u32) -> __m256i {
        // SAFETY: self proves that the instructions are available.
        unsafe {
            let x = _mm256_set1_epi32(x as i32);
            match BITS {
                8 => _mm256_maddubs_epi16(_mm256_abs_epi8(quants), _mm256_sign_epi8(x, quants)),
                _ => _mm256_maddubs_epi16(quants, x),
            }
        }
    }
}

impl QuantDots for Widened {
    const WIDE_OFFSET: i32 = 128;
    const TILES: TileEncoding = TileEncoding::WideSigned;
    const FUSED_ROWS: usize = 8;
    const FILLS_REGISTERS: bool = true;

    entry_points!(Avx2<Widened>, "avx2,fma,f16c");

    #[inline(always)]
    fn implementation(self) -> Implementation {
        Implementation::Avx2(Avx2(self))
    }

    #[inline(always)]
    fn add_words<const BITS: u32>(
        self,
        (mut wide, mut narrow): (__m256i, __m256i),
        quants: [__m256i; 2],
        x: [u32; 2],
        before: usize,
    ) -> (__m256i, __m256i) {
        let n_narrow = const { words_in_16_bits(BITS) };
        // SAFETY: self proves that the instructions are available.
        unsafe {
            let pairs = each!(2, word => {
                let quants = match BITS {
                    8 => _mm256_xor_si256(quants[word], _mm256_set1_epi8(i8::MIN)),
                    _ => quants[word],
                };
                self.pairs::<BITS>(quants, x[word])
            });
            if n_narrow == 1 {
                wide = self.total(self.total(wide, pairs[0]), pairs[1]);
                keep_order(&mut wide);
                return (wide, narrow);
            }
            narrow = _mm256_add_epi16(_mm256_add_epi16(narrow, pairs[0]), pairs[1]);
            if (before + 2).is_multiple_of(n_narrow) {
                wide = self.total(wide, narrow);
                keep_order(&mut wide);
                (wide, _mm256_setzero_si256())
            } else {
                keep_order(&mut narrow);
                (wide, narrow)
            }
        }
    }

    #[inline(always)]
    fn total(self, wide: __m256i, narrow: __m256i) -> __m256i {
        // SAFETY: self proves that the instructions are available.
        unsafe { _mm256_add_epi32(wide, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1))) }
    }

    #[inline(always)]
    fn products<const BITS: u32, const N: usize, const C: usize>(
        simd: Avx2<Self>,
        tile: &TileQuants,
        part: usize,
        x: [&[u32; N]; C],
    ) -> [[__m256i; 2]; C] {
        let words: &[WordBytes; N] = tile.words(part);
        if const { words_in_16_bits(BITS) == 1 } {
            let mut sums = [simd.splat_word(0); C];
            // Word by word: the quants of two words and their magnitudes would not fit the registers with the sums.
            unrolled!(word of 8 < N => {
                let quants = simd.load_words(&words[word]);
                for c in 0..C {
                    sums[c] = each!(2, i => {
                        let pairs = simd.0.pairs::<BITS>(quants[i], x[c][word]);
                        let mut sum = simd.0.total(sums[c][i], pairs);
                        // SAFETY: self proves that the instructions are available.
                        unsafe { keep_order(&mut sum) };
                        sum
                    });
                }
            });
            return sums;
        }
        let mut sums = [Sums::new(simd, simd.splat_word(0)); C];
        unrolled!(pair of 4 < N / 2 => {
            let quants = each!(2, word => simd.load_words(&words[2 * pair + word]));
            for c in 0..C {
                let x = each!(2, word => x[c][2 * pair + word]);
                sums[c] = simd.add_words::<BITS>(sums[c], quants, x, 2 * pair);
            }
        });
        let mut totals = [simd.splat_word(0); C];
        for c in 0..C {
            totals[c] = simd.total(sums[c]);
        }
        totals
    }
}

/// Makes the compiler compute a sum here, after those of earlier calls.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn keep_order(sum: &mut __m256i) {
    // SAFETY: there is no instruction.
    unsafe {
        // Not `pure`: statements that may have side effects keep their order.
        asm!(
            "/* {0} */",
            inout(ymm_reg) * sum,
            options(nomem, nostack, preserves_flags)
        );
    }
}

#[cfg(isa = "avxvnni")]
impl QuantDots for Dotted {
    const WIDE_OFFSET: i32 = 0;
    const TILES: TileEncoding = TileEncoding::Signed;
    const FUSED_ROWS: usize = 4;
    const FILLS_REGISTERS: bool = false;

    entry_points!(Avx2<Dotted>, "avx2,fma,f16c,avxvnni");

    #[inline(always)]
    fn implementation(self) -> Implementation {
        Implementation::AvxVnni(Avx2(self))
    }

    #[inline(always)]
    fn add_words<const BITS: u32>(
        self,
        (wide, narrow): (__m256i, __m256i),
        quants: [__m256i; 2],
        x: [u32; 2],
        _: usize,
    ) -> (__m256i, __m256i) {
        // SAFETY: self proves that the instructions are available.
        unsafe {
            let wide = _mm256_dpbusd_avx_epi32(wide, quants[0], _mm256_set1_epi32(x[0] as i32));
            let mut wide = _mm256_dpbusd_avx_epi32(wide, quants[1], _mm256_set1_epi32(x[1] as i32));
            keep_order(&mut wide);
            (wide, narrow)
        }
    }

    #[inline(always)]
    fn total(self, wide: __m256i, _: __m256i) -> __m256i {
        wide
    }

    #[inline(always)]
    fn products<const BITS: u32, const N: usize, const C: usize>(
        simd: Avx2<Dotted>,
        tile: &TileQuants,
        part: usize,
        x: [&[u32; N]; C],
    ) -> [[__m256i; 2]; C] {
        let mut sums = [simd.load_words(&tile.starts[part]); C];
        for i in 0..N {
            let quants = simd.load_words(&tile.words::<N>(part)[i]);
            for c in 0..C {
                // SAFETY: the value of `simd` proves that the instructions are available.
                unsafe {
                    let x = _mm256_set1_epi32(x[c][i] as i32);
                    sums[c] = each!(2, register => _mm256_dpbusd_avx_epi32(sums[c][register], x, quants[register]));
                }
            }
        }
        sums
    }
}
