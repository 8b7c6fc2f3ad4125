//! Products of quants: pairs of them in 16 bits, or the instructions of AVX-VNNI.

use std::arch::x86_64::*;

use super::Avx2;
use super::packed::EightRows;
use crate::simd::cpu_features;
use crate::simd::dispatch::Implementation;
use crate::simd::packed::{Packed, TileEncoding, TileQuants, WordBytes, each, products};
use crate::simd::{Kernel, KernelInto, entry_points};

/// Instructions that multiply quants. A value of an implementing type proves that they are available.
pub(crate) trait QuantDots: Copy + Send + Sync {
    /// [`Packed::WIDE_OFFSET`]
    const WIDE_OFFSET: i32;
    /// [`Packed::TILES`]
    const TILES: TileEncoding;

    /// Runs a kernel, compiled for these instructions and AVX2.
    fn run<K: Kernel>(self, kernel: K);

    /// Runs a kernel that writes to `out`, compiled likewise.
    fn run_into<K: KernelInto<O>, O: ?Sized>(self, kernel: K, out: &mut O);

    /// The entry of the list of instruction sets.
    fn implementation(self) -> Implementation;

    /// [`Packed::add_products`]
    fn add_products<const BITS: u32>(
        self,
        sums: __m256i,
        quants: [__m256i; 4],
        x: [u32; 4],
    ) -> __m256i;

    /// [`Packed::products`] of one tile.
    fn products<const BITS: u32, const N: usize, const C: usize>(
        rows: EightRows<Self>,
        tile: &TileQuants,
        part: usize,
        x: [&[u32; N]; C],
    ) -> [__m256i; C];
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

impl QuantDots for Widened {
    const WIDE_OFFSET: i32 = 128;
    const TILES: TileEncoding = TileEncoding::Unsigned;

    entry_points!(Avx2<Widened>, "avx2,fma,f16c");

    #[inline(always)]
    fn implementation(self) -> Implementation {
        Implementation::Avx2(Avx2(self))
    }

    #[inline(always)]
    fn add_products<const BITS: u32>(
        self,
        sums: __m256i,
        quants: [__m256i; 4],
        x: [u32; 4],
    ) -> __m256i {
        // SAFETY: self proves that the instructions are available.
        unsafe {
            // Sums of two products each, which fit signed 16 bits.
            let [a, b, c, d] = each!(4, i => {
                let x = _mm256_set1_epi32(x[i] as i32);
                match BITS {
                    8 => {
                        let quants = _mm256_xor_si256(quants[i], _mm256_set1_epi8(i8::MIN));
                        _mm256_maddubs_epi16(_mm256_abs_epi8(quants), _mm256_sign_epi8(x, quants))
                    }
                    _ => _mm256_maddubs_epi16(quants[i], x),
                }
            });
            let ones = _mm256_set1_epi16(1);
            // As many products as fit 16 bits are added before they are widened.
            match BITS {
                5 => {
                    let all = _mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_add_epi16(c, d));
                    _mm256_add_epi32(sums, _mm256_madd_epi16(all, ones))
                }
                6 => {
                    let first = _mm256_madd_epi16(_mm256_add_epi16(a, b), ones);
                    let second = _mm256_madd_epi16(_mm256_add_epi16(c, d), ones);
                    _mm256_add_epi32(sums, _mm256_add_epi32(first, second))
                }
                _ => {
                    let sums = _mm256_add_epi32(sums, _mm256_madd_epi16(a, ones));
                    let sums = _mm256_add_epi32(sums, _mm256_madd_epi16(b, ones));
                    let sums = _mm256_add_epi32(sums, _mm256_madd_epi16(c, ones));
                    _mm256_add_epi32(sums, _mm256_madd_epi16(d, ones))
                }
            }
        }
    }

    #[inline(always)]
    fn products<const BITS: u32, const N: usize, const C: usize>(
        rows: EightRows<Self>,
        tile: &TileQuants,
        part: usize,
        x: [&[u32; N]; C],
    ) -> [__m256i; C] {
        match BITS {
            8 => wide_products(rows, tile.words(part), x),
            _ => products::<_, BITS, N, C>(rows, tile.words(part), x),
        }
    }
}

/// Sums of products of quants of 8 bits, of at most eight words. Word by word, so that the sums of all activation rows
/// stay in registers; and for both halves of the bits, because a sum of 16 bits then has room for eight words.
#[inline(always)]
fn wide_products<const N: usize, const C: usize>(
    rows: EightRows<Widened>,
    words: &[WordBytes; N],
    x: [&[u32; N]; C],
) -> [__m256i; C] {
    // SAFETY: the value of `rows` proves that the instructions are available.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        let mut low_sums = [_mm256_setzero_si256(); C];
        let mut high_sums = [_mm256_setzero_si256(); C];
        for i in 0..N {
            let quants = rows.load_words(&words[i]);
            let low = _mm256_and_si256(quants, mask);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(quants), mask);
            for c in 0..C {
                let x = _mm256_set1_epi32(x[c][i] as i32);
                low_sums[c] = _mm256_add_epi16(low_sums[c], _mm256_maddubs_epi16(low, x));
                high_sums[c] = _mm256_add_epi16(high_sums[c], _mm256_maddubs_epi16(high, x));
            }
        }
        let mut sums = [_mm256_setzero_si256(); C];
        for c in 0..C {
            let low = _mm256_madd_epi16(low_sums[c], _mm256_set1_epi16(1));
            let high = _mm256_madd_epi16(high_sums[c], _mm256_set1_epi16(16));
            sums[c] = _mm256_add_epi32(low, high);
        }
        sums
    }
}

#[cfg(isa = "avxvnni")]
impl QuantDots for Dotted {
    const WIDE_OFFSET: i32 = 0;
    const TILES: TileEncoding = TileEncoding::Signed;

    entry_points!(Avx2<Dotted>, "avx2,fma,f16c,avxvnni");

    #[inline(always)]
    fn implementation(self) -> Implementation {
        Implementation::AvxVnni(Avx2(self))
    }

    #[inline(always)]
    fn add_products<const BITS: u32>(
        self,
        mut sums: __m256i,
        quants: [__m256i; 4],
        x: [u32; 4],
    ) -> __m256i {
        for (quants, x) in quants.into_iter().zip(x) {
            // SAFETY: self proves that the instructions are available.
            sums = unsafe { _mm256_dpbusd_avx_epi32(sums, quants, _mm256_set1_epi32(x as i32)) };
        }
        sums
    }

    #[inline(always)]
    fn products<const BITS: u32, const N: usize, const C: usize>(
        rows: EightRows<Dotted>,
        tile: &TileQuants,
        part: usize,
        x: [&[u32; N]; C],
    ) -> [__m256i; C] {
        let mut sums = [rows.load_words(&tile.starts[part]); C];
        for i in 0..N {
            let quants = rows.load_words(&tile.words::<N>(part)[i]);
            for c in 0..C {
                let x = rows.splat_word(x[c][i]);
                // SAFETY: the value of `rows` proves that the instructions are available.
                sums[c] = unsafe { _mm256_dpbusd_avx_epi32(sums[c], x, quants) };
            }
        }
        sums
    }
}
