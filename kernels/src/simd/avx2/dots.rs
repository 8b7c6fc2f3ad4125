//! Products of quants: pairs of them in 16 bits, or the instructions of AVX-VNNI.

use std::arch::asm;
use std::arch::x86_64::*;

use super::Avx2;
use crate::simd::cpu_features;
use crate::simd::dispatch::Implementation;
use crate::simd::packed::{Packed, TileEncoding, TileQuants, WordBytes, each};
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
        simd: Avx2<Self>,
        tile: &TileQuants,
        part: usize,
        x: [&[u32; N]; C],
    ) -> [[__m256i; 2]; C];
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
            let [a, b, c, d] = each!(4, i => {
                let quants = match BITS {
                    8 => _mm256_xor_si256(quants[i], _mm256_set1_epi8(i8::MIN)),
                    _ => quants[i],
                };
                self.pairs::<BITS>(quants, x[i])
            });
            let ones = _mm256_set1_epi16(1);
            // As many products as fit 16 bits are added before they are widened.
            match BITS {
                4 | 5 => {
                    let all = _mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_add_epi16(c, d));
                    _mm256_add_epi32(sums, _mm256_madd_epi16(all, ones))
                }
                6 => {
                    let first = _mm256_madd_epi16(_mm256_add_epi16(a, b), ones);
                    let second = _mm256_madd_epi16(_mm256_add_epi16(c, d), ones);
                    _mm256_add_epi32(sums, _mm256_add_epi32(first, second))
                }
                _ => {
                    let mut sums = sums;
                    for products in [a, b, c, d] {
                        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(products, ones));
                        in_register(&mut sums);
                    }
                    sums
                }
            }
        }
    }

    #[inline(always)]
    fn products<const BITS: u32, const N: usize, const C: usize>(
        simd: Avx2<Self>,
        tile: &TileQuants,
        part: usize,
        x: [&[u32; N]; C],
    ) -> [[__m256i; 2]; C] {
        let words = tile.words(part);
        match BITS {
            4 => narrow_products::<8, N, C>(simd, words, x),
            5 => narrow_products::<4, N, C>(simd, words, x),
            6 => wide_products::<BITS, 2, N, C>(simd, words, x),
            _ => wide_products::<BITS, 1, N, C>(simd, words, x),
        }
    }
}

/// Sums of products of quants of up to 5 bits: those of `W` words, 4 or 8, fit 16 bits.
#[inline(always)]
fn narrow_products<const W: usize, const N: usize, const C: usize>(
    simd: Avx2<Widened>,
    words: &[WordBytes; N],
    x: [&[u32; N]; C],
) -> [[__m256i; 2]; C] {
    let mut sums = [simd.splat_word(0); C];
    for first in (0..N).step_by(W) {
        let mut narrow = [simd.splat_word(0); C];
        for i in first..N.min(first + W) {
            let quants = simd.load_words(&words[i]);
            for c in 0..C {
                for register in 0..2 {
                    let pairs = simd.0.pairs::<5>(quants[register], x[c][i]);
                    // SAFETY: the value of `simd` proves that the instructions are available.
                    unsafe {
                        narrow[c][register] = _mm256_add_epi16(narrow[c][register], pairs);
                        in_register(&mut narrow[c][register]);
                    }
                }
            }
        }
        for c in 0..C {
            for register in 0..2 {
                // SAFETY: as above.
                unsafe {
                    let narrow = _mm256_madd_epi16(narrow[c][register], _mm256_set1_epi16(1));
                    sums[c][register] = _mm256_add_epi32(sums[c][register], narrow);
                }
            }
        }
    }
    sums
}

/// Sums of products of quants of 6 bits or more, those of 8 bits signed: those of `W` words, 1 or 2, fit 16 bits.
#[inline(always)]
fn wide_products<const BITS: u32, const W: usize, const N: usize, const C: usize>(
    simd: Avx2<Widened>,
    words: &[WordBytes; N],
    x: [&[u32; N]; C],
) -> [[__m256i; 2]; C] {
    let mut sums = [simd.splat_word(0); C];
    for first in (0..N).step_by(W) {
        let mut quants = [simd.splat_word(0); W];
        for (i, quants) in quants.iter_mut().enumerate() {
            *quants = simd.load_words(&words[first + i]);
        }
        for c in 0..C {
            for register in 0..2 {
                let x = &x[c][first..first + W];
                let mut pairs = simd.0.pairs::<BITS>(quants[0][register], x[0]);
                // SAFETY: the value of `simd` proves that the instructions are available.
                unsafe {
                    if W == 2 {
                        let others = simd.0.pairs::<BITS>(quants[1][register], x[1]);
                        pairs = _mm256_add_epi16(pairs, others);
                    }
                    let products = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                    sums[c][register] = _mm256_add_epi32(sums[c][register], products);
                    in_register(&mut sums[c][register]);
                }
            }
        }
    }
    sums
}

/// Makes the compiler compute a sum here. It would add in another order, so that more sums are needed at the same time
/// than there are registers.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn in_register(sum: &mut __m256i) {
    // SAFETY: there is no instruction.
    unsafe {
        asm!(
            "/* {0} */",
            inout(ymm_reg) * sum,
            options(pure, nomem, nostack, preserves_flags)
        );
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
