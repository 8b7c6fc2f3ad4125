//! Unpacks the blocks of every quantized type to tiles: unsigned quants with `f32` scales.
//!
//! Within a block an element is `scale * (quant - OFFSET) - min`; the byte layouts are those of the type's
//! codec in [`crate::quant`]. Sixteen rows are unpacked together, one per lane. The weight itself stays in
//! the file's encoding, and all activations of a batch share the cost of unpacking.

#![allow(
    non_camel_case_types,
    reason = "types of weights have the names that files give them"
)]

use schemas::gguf::DType;

use super::panel::Blocks;
use super::simd::LANES;
use super::words::{ROWS, WordBytes, Words};
use crate::quant::{iq4_nl, mxfp4};

/// A tile: 32 consecutive columns of [`ROWS`] rows, as many as share an activation scale.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Tile {
    /// The quants of four columns of every row, eight times.
    pub(super) codes: [WordBytes; LANES / 4],
    /// Scales of the first and the second half of the columns, or one for all columns.
    pub(super) scales: [[f32; ROWS]; 2],
    /// Negated minima, laid out like `scales`.
    pub(super) minus_mins: [[f32; ROWS]; 2],
}

impl Tile {
    pub(super) const EMPTY: Tile = Tile {
        codes: [[0; 4 * ROWS]; LANES / 4],
        scales: [[0.0; ROWS]; 2],
        minus_mins: [[0.0; ROWS]; 2],
    };
}

/// Properties of a type's tiles that its products depend on.
pub(super) trait Products {
    /// Scales per row: 1, or 2 for the halves of the columns.
    const SCALES: usize;
    /// True if `OFFSET` has to be subtracted from quants.
    const HAS_OFFSET: bool;
    /// True if blocks have minima.
    const HAS_MINS: bool;
    /// True if quants need the eighth bit.
    const IS_WIDE: bool;
}

/// A combination of properties. Types that share it share the compiled products. Types with minima have no
/// offset.
pub(super) struct Form<const SCALES: usize, const HAS_MINS: bool, const IS_WIDE: bool>;

impl<const SCALES: usize, const HAS_MINS: bool, const IS_WIDE: bool> Products
    for Form<SCALES, HAS_MINS, IS_WIDE>
{
    const SCALES: usize = SCALES;
    const HAS_OFFSET: bool = !HAS_MINS;
    const HAS_MINS: bool = HAS_MINS;
    const IS_WIDE: bool = IS_WIDE;
}

/// Unpacking of one type: blocks of `BYTES` bytes. The first `LEAD` of them come before the part that is
/// unpacked as words.
pub(super) trait Coded<const BYTES: usize, const LEAD: usize> {
    /// Properties of the tiles.
    type Form: Products;
    /// Tiles per block.
    const TILES: usize;
    /// Value to subtract from quants.
    const OFFSET: i32;

    /// Unpacks one block of each row to `TILES` tiles.
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]);
}

/// A computation that is generic over the quantized type.
pub(super) trait ForType {
    type Result;
    fn run<T: Coded<BYTES, LEAD>, const BYTES: usize, const LEAD: usize>(self) -> Self::Result;
}

/// Runs it with the type for `dtype`.
#[inline(always)]
pub(super) fn for_type<F: ForType>(dtype: DType, f: F) -> F::Result {
    match dtype {
        DType::Q8_0 => f.run::<Q8_0, 34, 2>(),
        DType::Q4_0 => f.run::<Q4_0, 18, 2>(),
        DType::Q4_1 => f.run::<Q4_1, 20, 0>(),
        DType::Q5_0 => f.run::<Q5_0, 22, 2>(),
        DType::Q5_1 => f.run::<Q5_1, 24, 0>(),
        DType::Q2_K => f.run::<Q2_K, 84, 0>(),
        DType::Q3_K => f.run::<Q3_K, 110, 0>(),
        DType::Q4_K => f.run::<Q4_K, 144, 0>(),
        DType::Q5_K => f.run::<Q5_K, 176, 0>(),
        DType::Q6_K => f.run::<Q6_K, 210, 0>(),
        DType::IQ4_NL => f.run::<IQ4_NL, 18, 2>(),
        DType::IQ4_XS => f.run::<IQ4_XS, 136, 0>(),
        DType::MXFP4 => f.run::<MXFP4, 17, 1>(),
        other => unreachable!("{other} has no codes"),
    }
}

/// Loads 32 bytes of each row, starting at `at`, as words.
#[inline(always)]
fn eight_words<W: Words>(simd: W, rows: impl Blocks, at: usize) -> [W::Words; 8] {
    let (a, b) = (rows.words(simd, at), rows.words(simd, at + 16));
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}

/// Converts byte `N / 8` of each word to `f32`.
#[inline(always)]
fn byte<W: Words, const N: u32>(simd: W, words: W::Words) -> W::Rows {
    simd.to_rows(simd.and(simd.shift_right::<N>(words), simd.splat_word(0xff)))
}

/// Converts the four bytes of each word to `f32`.
#[inline(always)]
pub(super) fn bytes<W: Words>(simd: W, words: W::Words) -> [W::Rows; 4] {
    [
        byte::<W, 0>(simd, words),
        byte::<W, 8>(simd, words),
        byte::<W, 16>(simd, words),
        byte::<W, 24>(simd, words),
    ]
}

/// Adds a constant, rounded once.
#[inline(always)]
pub(super) fn add<W: Words>(simd: W, rows: W::Rows, value: f32) -> W::Rows {
    simd.mul_add_rows(rows, simd.splat_rows(1.0), simd.splat_rows(value))
}

/// `-value`.
#[inline(always)]
fn negate<W: Words>(simd: W, rows: W::Rows) -> W::Rows {
    simd.mul_rows(rows, simd.splat_rows(-1.0))
}

/// Unpacks sixteen bytes of nibbles: the low nibbles are the first half of a tile's columns.
#[inline(always)]
fn nibbles<W: Words>(simd: W, rows: impl Blocks, at: usize) -> [W::Words; 8] {
    let [a, b, c, d] = rows.words(simd, at);
    [
        simd.bits::<0>(a, 15),
        simd.bits::<0>(b, 15),
        simd.bits::<0>(c, 15),
        simd.bits::<0>(d, 15),
        simd.bits::<4>(a, 15),
        simd.bits::<4>(b, 15),
        simd.bits::<4>(c, 15),
        simd.bits::<4>(d, 15),
    ]
}

/// Moves the bits of `fifth`, one per column, to the fifth bit of each quant. `G` is four times the index
/// of the column group.
#[inline(always)]
fn fifth_bits<W: Words, const G: u32>(simd: W, fifth: W::Words) -> W::Words {
    let bits = simd.and(simd.shift_right::<G>(fifth), simd.splat_word(15));
    // Copies shifted by seven bits per byte put bit `i` at the bottom of byte `i`.
    let pair = simd.or(bits, simd.shift_left::<7>(bits));
    let all = simd.or(pair, simd.shift_left::<14>(pair));
    simd.shift_left::<4>(simd.bits::<0>(all, 1))
}

/// Unpacks the fifth bits of all column groups of a tile.
#[inline(always)]
fn all_fifth_bits<W: Words>(simd: W, fifth: W::Words) -> [W::Words; 8] {
    [
        fifth_bits::<W, 0>(simd, fifth),
        fifth_bits::<W, 4>(simd, fifth),
        fifth_bits::<W, 8>(simd, fifth),
        fifth_bits::<W, 12>(simd, fifth),
        fifth_bits::<W, 16>(simd, fifth),
        fifth_bits::<W, 20>(simd, fifth),
        fifth_bits::<W, 24>(simd, fifth),
        fifth_bits::<W, 28>(simd, fifth),
    ]
}

/// Returns `values[i] + offset` as unsigned bytes.
const fn shifted(values: [i8; 16], offset: i32) -> [u8; 16] {
    let mut shifted = [0; 16];
    let mut i = 0;
    while i < 16 {
        shifted[i] = (values[i] as i32 + offset) as u8;
        i += 1;
    }
    shifted
}

pub(super) struct Q8_0;

impl Coded<34, 2> for Q8_0 {
    type Form = Form<1, false, true>;
    const TILES: usize = 1;
    const OFFSET: i32 = 128;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        simd.store_rows(rows.halves(simd, 0), &mut tile.scales[0]);
        let sign = simd.splat_word(0x8080_8080);
        for (words, codes) in eight_words(simd, rows, 2).into_iter().zip(&mut tile.codes) {
            simd.store_words(simd.xor(words, sign), codes);
        }
    }
}

pub(super) struct Q4_0;

impl Coded<18, 2> for Q4_0 {
    type Form = Form<1, false, false>;
    const TILES: usize = 1;
    const OFFSET: i32 = 8;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        simd.store_rows(rows.halves(simd, 0), &mut tile.scales[0]);
        for (i, codes) in nibbles(simd, rows, 2).into_iter().enumerate() {
            simd.store_words(codes, &mut tile.codes[i]);
        }
    }
}

pub(super) struct Q4_1;

impl Coded<20, 0> for Q4_1 {
    type Form = Form<1, true, false>;
    const TILES: usize = 1;
    const OFFSET: i32 = 0;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        simd.store_rows(rows.halves(simd, 0), &mut tile.scales[0]);
        simd.store_rows(rows.halves(simd, 2), &mut tile.minus_mins[0]);
        for (i, codes) in nibbles(simd, rows, 4).into_iter().enumerate() {
            simd.store_words(codes, &mut tile.codes[i]);
        }
    }
}

pub(super) struct Q5_0;

impl Coded<22, 2> for Q5_0 {
    type Form = Form<1, false, false>;
    const TILES: usize = 1;
    const OFFSET: i32 = 16;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        simd.store_rows(rows.halves(simd, 0), &mut tile.scales[0]);
        let fifth = all_fifth_bits(simd, rows.word(simd, 2));
        for (i, codes) in nibbles(simd, rows, 6).into_iter().enumerate() {
            simd.store_words(simd.or(codes, fifth[i]), &mut tile.codes[i]);
        }
    }
}

pub(super) struct Q5_1;

impl Coded<24, 0> for Q5_1 {
    type Form = Form<1, true, false>;
    const TILES: usize = 1;
    const OFFSET: i32 = 0;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        simd.store_rows(rows.halves(simd, 0), &mut tile.scales[0]);
        simd.store_rows(rows.halves(simd, 2), &mut tile.minus_mins[0]);
        let fifth = all_fifth_bits(simd, rows.word(simd, 4));
        for (i, codes) in nibbles(simd, rows, 8).into_iter().enumerate() {
            simd.store_words(simd.or(codes, fifth[i]), &mut tile.codes[i]);
        }
    }
}

pub(super) struct IQ4_NL;

impl Coded<18, 2> for IQ4_NL {
    type Form = Form<1, false, true>;
    const TILES: usize = 1;
    const OFFSET: i32 = 128;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
        const VALUES: [u8; 16] = shifted(iq4_nl::VALUES, IQ4_NL::OFFSET);
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        simd.store_rows(rows.halves(simd, 0), &mut tile.scales[0]);
        for (i, codes) in nibbles(simd, rows, 2).into_iter().enumerate() {
            simd.store_words(simd.look_up(&VALUES, codes), &mut tile.codes[i]);
        }
    }
}

pub(super) struct MXFP4;

impl Coded<17, 1> for MXFP4 {
    type Form = Form<1, false, false>;
    const TILES: usize = 1;
    const OFFSET: i32 = 12;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
        const VALUES: [u8; 16] = shifted(mxfp4::VALUES, MXFP4::OFFSET);
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        tile.scales[0] = rows.bytes(0).map(mxfp4::half_scale);
        for (i, codes) in nibbles(simd, rows, 1).into_iter().enumerate() {
            simd.store_words(simd.look_up(&VALUES, codes), &mut tile.codes[i]);
        }
    }
}

/// Unpacks scales and minima of Q4_K and Q5_K from the first sixteen bytes of a superblock.
#[inline(always)]
fn affine_scales<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
    let [factors, scales, mins, rest] = rows.words(simd, 0);
    let d = simd.halves_to_rows(factors);
    let minus_dmin = negate(simd, simd.halves_to_rows(simd.shift_right::<16>(factors)));
    let high = |words| simd.and(simd.shift_right::<2>(words), simd.splat_word(0x3030_3030));
    let scales = [
        simd.bits::<0>(scales, 63),
        simd.or(simd.bits::<0>(rest, 15), high(scales)),
    ];
    let mins = [
        simd.bits::<0>(mins, 63),
        simd.or(simd.bits::<4>(rest, 15), high(mins)),
    ];
    for (i, tiles) in tiles.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (scales, mins) = (bytes(simd, scales[i]), bytes(simd, mins[i]));
        for ((tile, scale), min) in tiles.iter_mut().zip(scales).zip(mins) {
            simd.store_rows(simd.mul_rows(d, scale), &mut tile.scales[0]);
            simd.store_rows(simd.mul_rows(minus_dmin, min), &mut tile.minus_mins[0]);
        }
    }
}

pub(super) struct Q4_K;

impl Coded<144, 0> for Q4_K {
    type Form = Form<1, true, false>;
    const TILES: usize = 8;
    const OFFSET: i32 = 0;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
        affine_scales(simd, rows, tiles);
        for (pair, [even, odd]) in tiles.as_chunks_mut().0.iter_mut().enumerate() {
            let words = eight_words(simd, rows, 16 + 32 * pair);
            for (i, words) in words.into_iter().enumerate() {
                simd.store_words(simd.bits::<0>(words, 15), &mut even.codes[i]);
                simd.store_words(simd.bits::<4>(words, 15), &mut odd.codes[i]);
            }
        }
    }
}

pub(super) struct Q5_K;

impl Coded<176, 0> for Q5_K {
    type Form = Form<1, true, false>;
    const TILES: usize = 8;
    const OFFSET: i32 = 0;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
        affine_scales(simd, rows, tiles);
        // Bit `j` of each byte belongs to tile `j`; used bits are shifted out.
        let mut high = eight_words(simd, rows, 16);
        for (pair, [even, odd]) in tiles.as_chunks_mut().0.iter_mut().enumerate() {
            let low = eight_words(simd, rows, 48 + 32 * pair);
            for (i, (low, high)) in low.into_iter().zip(&mut high).enumerate() {
                let fifth = simd.shift_left::<4>(simd.bits::<0>(*high, 1));
                let codes = simd.or(simd.bits::<0>(low, 15), fifth);
                simd.store_words(codes, &mut even.codes[i]);
                let fifth = simd.shift_left::<4>(simd.bits::<1>(*high, 1));
                let codes = simd.or(simd.bits::<4>(low, 15), fifth);
                simd.store_words(codes, &mut odd.codes[i]);
                *high = simd.shift_right::<2>(*high);
            }
        }
    }
}

pub(super) struct Q6_K;

impl Coded<210, 0> for Q6_K {
    type Form = Form<2, false, false>;
    const TILES: usize = 8;
    const OFFSET: i32 = 32;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
        let d = rows.halves(simd, 208);
        // Adds 128 to make signed bytes unsigned.
        let sign = simd.splat_word(0x8080_8080);
        let scales = rows.words(simd, 192);
        for (tiles, scales) in tiles.as_chunks_mut::<2>().0.iter_mut().zip(scales) {
            for (i, scale) in bytes(simd, simd.xor(scales, sign)).into_iter().enumerate() {
                let scale = simd.mul_rows(d, add(simd, scale, -128.0));
                simd.store_rows(scale, &mut tiles[i / 2].scales[i % 2]);
            }
        }
        for (part, tiles) in tiles.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let a = eight_words(simd, rows, 64 * part);
            let b = eight_words(simd, rows, 64 * part + 32);
            let high = eight_words(simd, rows, 128 + 32 * part);
            for i in 0..8 {
                let high = pairs_of_bits(simd, high[i]);
                let low = [
                    simd.bits::<0>(a[i], 15),
                    simd.bits::<0>(b[i], 15),
                    simd.bits::<4>(a[i], 15),
                    simd.bits::<4>(b[i], 15),
                ];
                for ((tile, low), high) in tiles.iter_mut().zip(low).zip(high) {
                    let codes = simd.or(low, simd.shift_left::<4>(high));
                    simd.store_words(codes, &mut tile.codes[i]);
                }
            }
        }
    }
}

/// Splits each byte into its four pairs of bits, lowest first.
#[inline(always)]
fn pairs_of_bits<W: Words>(simd: W, words: W::Words) -> [W::Words; 4] {
    [
        simd.bits::<0>(words, 3),
        simd.bits::<2>(words, 3),
        simd.bits::<4>(words, 3),
        simd.bits::<6>(words, 3),
    ]
}

pub(super) struct Q2_K;

impl Coded<84, 0> for Q2_K {
    type Form = Form<2, true, false>;
    const TILES: usize = 8;
    const OFFSET: i32 = 0;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
        let d = rows.halves(simd, 80);
        let minus_dmin = negate(simd, rows.halves(simd, 82));
        let scales = rows.words(simd, 0);
        for (tiles, words) in tiles.as_chunks_mut::<2>().0.iter_mut().zip(scales) {
            let scales = bytes(simd, simd.bits::<0>(words, 15));
            let mins = bytes(simd, simd.bits::<4>(words, 15));
            for (i, (scale, min)) in scales.into_iter().zip(mins).enumerate() {
                let tile = &mut tiles[i / 2];
                simd.store_rows(simd.mul_rows(d, scale), &mut tile.scales[i % 2]);
                simd.store_rows(simd.mul_rows(minus_dmin, min), &mut tile.minus_mins[i % 2]);
            }
        }
        for (part, tiles) in tiles.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let words = eight_words(simd, rows, 16 + 32 * part);
            for (i, words) in words.into_iter().enumerate() {
                for (tile, codes) in tiles.iter_mut().zip(pairs_of_bits(simd, words)) {
                    simd.store_words(codes, &mut tile.codes[i]);
                }
            }
        }
    }
}

pub(super) struct Q3_K;

impl Coded<110, 0> for Q3_K {
    type Form = Form<2, false, false>;
    const TILES: usize = 8;
    const OFFSET: i32 = 4;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
        let d = rows.halves(simd, 108);
        let a = rows.word(simd, 96);
        let b = rows.word(simd, 100);
        let high = rows.word(simd, 104);
        let high = pairs_of_bits(simd, high);
        let low = [
            simd.bits::<0>(a, 15),
            simd.bits::<0>(b, 15),
            simd.bits::<4>(a, 15),
            simd.bits::<4>(b, 15),
        ];
        for (part, tiles) in tiles.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let scales = simd.or(low[part], simd.shift_left::<4>(high[part]));
            for (i, scale) in bytes(simd, scales).into_iter().enumerate() {
                let scale = simd.mul_rows(d, add(simd, scale, -32.0));
                simd.store_rows(scale, &mut tiles[i / 2].scales[i % 2]);
            }
        }
        // Bit `j` of each byte belongs to tile `j`; used bits are shifted out.
        let mut masks = eight_words(simd, rows, 0);
        for (part, tiles) in tiles.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let low = eight_words(simd, rows, 32 + 32 * part);
            for (i, (low, mask)) in low.into_iter().zip(&mut masks).enumerate() {
                for (tile, low) in tiles.iter_mut().zip(pairs_of_bits(simd, low)) {
                    let high = simd.shift_left::<2>(simd.bits::<0>(*mask, 1));
                    *mask = simd.shift_right::<1>(*mask);
                    simd.store_words(simd.or(low, high), &mut tile.codes[i]);
                }
            }
        }
    }
}

pub(super) struct IQ4_XS;

impl Coded<136, 0> for IQ4_XS {
    type Form = Form<1, false, true>;
    const TILES: usize = 8;
    const OFFSET: i32 = IQ4_NL::OFFSET;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: impl Blocks, tiles: &mut [Tile]) {
        const VALUES: [u8; 16] = shifted(iq4_nl::VALUES, IQ4_XS::OFFSET);
        let [factors, mut low, ..] = rows.words(simd, 0);
        let d = simd.halves_to_rows(factors);
        let mut high = simd.shift_right::<16>(factors);
        for (i, tile) in tiles.iter_mut().enumerate() {
            let scale = simd.or(
                simd.and(low, simd.splat_word(15)),
                simd.shift_left::<4>(simd.and(high, simd.splat_word(3))),
            );
            (low, high) = (simd.shift_right::<4>(low), simd.shift_right::<2>(high));
            let scale = add(simd, simd.to_rows(scale), -32.0);
            simd.store_rows(simd.mul_rows(d, scale), &mut tile.scales[0]);
            for (i, codes) in nibbles(simd, rows, 8 + 16 * i).into_iter().enumerate() {
                simd.store_words(simd.look_up(&VALUES, codes), &mut tile.codes[i]);
            }
        }
    }
}
