//! Blocks of every quantized type as tiles: small unsigned codes, and an `f32` scale for them.
//!
//! Within a block an element is `scale * (code - OFFSET) - min`; the byte layouts are those of the
//! type's codec in [`crate::quant`]. Sixteen rows are unpacked together, each in its own lane: a
//! weight is used as it lies in the file, and what unpacking costs is shared by all activations.

#![allow(
    non_camel_case_types,
    reason = "types of weights have the names that files give them"
)]

use super::simd::LANES;
use super::words::{ROWS, WordBytes, Words, array};
use crate::quant::{iq4_nl, mxfp4};

/// Consecutive columns of [`ROWS`] rows, as many as share an activation scale.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Tile {
    /// Four columns of every row, eight times.
    pub(super) codes: [WordBytes; LANES / 4],
    /// Of the first and the second half of the columns, or of all.
    pub(super) scales: [[f32; ROWS]; 2],
    /// Likewise, with the sign they are added with.
    pub(super) minus_mins: [[f32; ROWS]; 2],
}

impl Tile {
    pub(super) const EMPTY: Tile = Tile {
        codes: [[0; 4 * ROWS]; LANES / 4],
        scales: [[0.0; ROWS]; 2],
        minus_mins: [[0.0; ROWS]; 2],
    };
}

/// What the tiles of a type use: 1 or 2 scales for each row, minima, the eighth bit of codes.
pub(super) struct Form<const SCALES: usize, const HAS_MINS: bool, const IS_WIDE: bool>;

/// How one type, in blocks of `BYTES` bytes, becomes tiles.
pub(super) trait Coded<const BYTES: usize> {
    /// What products have to look at.
    type Form;
    /// Tiles of a block.
    const TILES: usize;
    /// What a code is too large by.
    const OFFSET: i32;

    /// Unpacks one block of each row to `TILES` tiles.
    fn unpack<W: Words>(simd: W, rows: [&[u8; BYTES]; ROWS], tiles: &mut [Tile]);
}

/// Sixteen bytes of each row, from `at` on, as words.
#[inline(always)]
pub(super) fn words<W: Words, const BYTES: usize>(
    simd: W,
    rows: [&[u8; BYTES]; ROWS],
    at: usize,
) -> [W::Words; 4] {
    simd.interleave(array(|row| {
        rows[row][at..]
            .first_chunk()
            .expect("sixteen bytes of a block")
    }))
}

/// Thirty-two bytes of each row, from `at` on, as words.
#[inline(always)]
fn eight_words<W: Words, const BYTES: usize>(
    simd: W,
    rows: [&[u8; BYTES]; ROWS],
    at: usize,
) -> [W::Words; 8] {
    let (a, b) = (words(simd, rows, at), words(simd, rows, at + 16));
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}

/// The half-precision number at `at` of each row.
#[inline(always)]
pub(super) fn halves<W: Words, const BYTES: usize>(
    simd: W,
    rows: [&[u8; BYTES]; ROWS],
    at: usize,
) -> W::Rows {
    let mut bytes = [[0; 4]; ROWS];
    for (bytes, row) in bytes.iter_mut().zip(rows) {
        bytes[..2].copy_from_slice(&row[at..at + 2]);
    }
    let bytes = bytes.as_flattened().first_chunk();
    simd.halves_to_rows(simd.load_words(bytes.expect("a word for each row")))
}

/// Byte `N / 8` of each word, as a number.
#[inline(always)]
fn byte<W: Words, const N: u32>(simd: W, words: W::Words) -> W::Rows {
    simd.to_rows(simd.and(simd.shift_right::<N>(words), simd.splat_word(0xff)))
}

/// The four bytes of each word, as numbers.
#[inline(always)]
pub(super) fn bytes<W: Words>(simd: W, words: W::Words) -> [W::Rows; 4] {
    [
        byte::<W, 0>(simd, words),
        byte::<W, 8>(simd, words),
        byte::<W, 16>(simd, words),
        byte::<W, 24>(simd, words),
    ]
}

/// Adds a constant, exactly where the sum is exact.
#[inline(always)]
pub(super) fn add<W: Words>(simd: W, rows: W::Rows, value: f32) -> W::Rows {
    simd.mul_add_rows(rows, simd.splat_rows(1.0), simd.splat_rows(value))
}

/// `-value`.
#[inline(always)]
fn negate<W: Words>(simd: W, rows: W::Rows) -> W::Rows {
    simd.mul_rows(rows, simd.splat_rows(-1.0))
}

/// The codes in sixteen bytes of nibbles: the low ones are the first half of a tile's columns.
#[inline(always)]
fn nibbles<W: Words, const BYTES: usize>(
    simd: W,
    rows: [&[u8; BYTES]; ROWS],
    at: usize,
) -> [W::Words; 8] {
    let [a, b, c, d] = words(simd, rows, at);
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

/// The bits of `fifth`, one for each column, as the fifth bits of codes. `G` is four times the
/// group of columns.
#[inline(always)]
fn fifth_bits<W: Words, const G: u32>(simd: W, fifth: W::Words) -> W::Words {
    let bits = simd.and(simd.shift_right::<G>(fifth), simd.splat_word(15));
    // A copy seven bits further for each byte puts bit `i` at the bottom of byte `i`.
    let pair = simd.or(bits, simd.shift_left::<7>(bits));
    let all = simd.or(pair, simd.shift_left::<14>(pair));
    simd.shift_left::<4>(simd.bits::<0>(all, 1))
}

/// The fifth bits of all groups of a tile.
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

/// The word at `at` of each row.
#[inline(always)]
fn word_at<W: Words, const BYTES: usize>(
    simd: W,
    rows: [&[u8; BYTES]; ROWS],
    at: usize,
) -> W::Words {
    let mut bytes = [[0; 4]; ROWS];
    for (bytes, row) in bytes.iter_mut().zip(rows) {
        bytes.copy_from_slice(&row[at..at + 4]);
    }
    let bytes = bytes.as_flattened().first_chunk();
    simd.load_words(bytes.expect("a word for each row"))
}

/// `VALUES[code] + OFFSET` as unsigned bytes.
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

impl Coded<34> for Q8_0 {
    type Form = Form<1, false, true>;
    const TILES: usize = 1;
    const OFFSET: i32 = 128;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: [&[u8; 34]; ROWS], tiles: &mut [Tile]) {
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        simd.store_rows(halves(simd, rows, 0), &mut tile.scales[0]);
        let sign = simd.splat_word(0x8080_8080);
        for (words, codes) in eight_words(simd, rows, 2).into_iter().zip(&mut tile.codes) {
            simd.store_words(simd.xor(words, sign), codes);
        }
    }
}

pub(super) struct Q4_0;

impl Coded<18> for Q4_0 {
    type Form = Form<1, false, false>;
    const TILES: usize = 1;
    const OFFSET: i32 = 8;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: [&[u8; 18]; ROWS], tiles: &mut [Tile]) {
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        simd.store_rows(halves(simd, rows, 0), &mut tile.scales[0]);
        for (i, codes) in nibbles(simd, rows, 2).into_iter().enumerate() {
            simd.store_words(codes, &mut tile.codes[i]);
        }
    }
}

pub(super) struct Q4_1;

impl Coded<20> for Q4_1 {
    type Form = Form<1, true, false>;
    const TILES: usize = 1;
    const OFFSET: i32 = 0;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: [&[u8; 20]; ROWS], tiles: &mut [Tile]) {
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        simd.store_rows(halves(simd, rows, 0), &mut tile.scales[0]);
        simd.store_rows(halves(simd, rows, 2), &mut tile.minus_mins[0]);
        for (i, codes) in nibbles(simd, rows, 4).into_iter().enumerate() {
            simd.store_words(codes, &mut tile.codes[i]);
        }
    }
}

pub(super) struct Q5_0;

impl Coded<22> for Q5_0 {
    type Form = Form<1, false, false>;
    const TILES: usize = 1;
    const OFFSET: i32 = 16;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: [&[u8; 22]; ROWS], tiles: &mut [Tile]) {
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        simd.store_rows(halves(simd, rows, 0), &mut tile.scales[0]);
        let fifth = all_fifth_bits(simd, word_at(simd, rows, 2));
        for (i, codes) in nibbles(simd, rows, 6).into_iter().enumerate() {
            simd.store_words(simd.or(codes, fifth[i]), &mut tile.codes[i]);
        }
    }
}

pub(super) struct Q5_1;

impl Coded<24> for Q5_1 {
    type Form = Form<1, true, false>;
    const TILES: usize = 1;
    const OFFSET: i32 = 0;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: [&[u8; 24]; ROWS], tiles: &mut [Tile]) {
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        simd.store_rows(halves(simd, rows, 0), &mut tile.scales[0]);
        simd.store_rows(halves(simd, rows, 2), &mut tile.minus_mins[0]);
        let fifth = all_fifth_bits(simd, word_at(simd, rows, 4));
        for (i, codes) in nibbles(simd, rows, 8).into_iter().enumerate() {
            simd.store_words(simd.or(codes, fifth[i]), &mut tile.codes[i]);
        }
    }
}

pub(super) struct IQ4_NL;

impl Coded<18> for IQ4_NL {
    type Form = Form<1, false, true>;
    const TILES: usize = 1;
    const OFFSET: i32 = 128;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: [&[u8; 18]; ROWS], tiles: &mut [Tile]) {
        const VALUES: [u8; 16] = shifted(iq4_nl::VALUES, IQ4_NL::OFFSET);
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        simd.store_rows(halves(simd, rows, 0), &mut tile.scales[0]);
        for (i, codes) in nibbles(simd, rows, 2).into_iter().enumerate() {
            simd.store_words(simd.look_up(&VALUES, codes), &mut tile.codes[i]);
        }
    }
}

pub(super) struct MXFP4;

impl Coded<17> for MXFP4 {
    type Form = Form<1, false, false>;
    const TILES: usize = 1;
    const OFFSET: i32 = 12;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: [&[u8; 17]; ROWS], tiles: &mut [Tile]) {
        const VALUES: [u8; 16] = shifted(mxfp4::VALUES, MXFP4::OFFSET);
        let [tile] = tiles.first_chunk_mut().expect("one tile");
        for (scale, row) in tile.scales[0].iter_mut().zip(rows) {
            *scale = mxfp4::half_scale(row[0]);
        }
        for (i, codes) in nibbles(simd, rows, 1).into_iter().enumerate() {
            simd.store_words(simd.look_up(&VALUES, codes), &mut tile.codes[i]);
        }
    }
}

/// Scales and minima of Q4_K and Q5_K, from the first sixteen bytes of a superblock.
#[inline(always)]
fn affine_scales<W: Words, const BYTES: usize>(
    simd: W,
    rows: [&[u8; BYTES]; ROWS],
    tiles: &mut [Tile],
) {
    let [factors, scales, mins, rest] = words(simd, rows, 0);
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

impl Coded<144> for Q4_K {
    type Form = Form<1, true, false>;
    const TILES: usize = 8;
    const OFFSET: i32 = 0;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: [&[u8; 144]; ROWS], tiles: &mut [Tile]) {
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

impl Coded<176> for Q5_K {
    type Form = Form<1, true, false>;
    const TILES: usize = 8;
    const OFFSET: i32 = 0;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: [&[u8; 176]; ROWS], tiles: &mut [Tile]) {
        affine_scales(simd, rows, tiles);
        // Bit `j` of each byte belongs to tile `j`; those used up are shifted out.
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

impl Coded<210> for Q6_K {
    type Form = Form<2, false, false>;
    const TILES: usize = 8;
    const OFFSET: i32 = 32;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: [&[u8; 210]; ROWS], tiles: &mut [Tile]) {
        let d = halves(simd, rows, 208);
        // Signed bytes, made unsigned by 128 more.
        let sign = simd.splat_word(0x8080_8080);
        let scales = words(simd, rows, 192);
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

/// The four pairs of bits of each byte, lowest first.
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

impl Coded<84> for Q2_K {
    type Form = Form<2, true, false>;
    const TILES: usize = 8;
    const OFFSET: i32 = 0;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: [&[u8; 84]; ROWS], tiles: &mut [Tile]) {
        let d = halves(simd, rows, 80);
        let minus_dmin = negate(simd, halves(simd, rows, 82));
        let scales = words(simd, rows, 0);
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

impl Coded<110> for Q3_K {
    type Form = Form<2, false, false>;
    const TILES: usize = 8;
    const OFFSET: i32 = 4;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: [&[u8; 110]; ROWS], tiles: &mut [Tile]) {
        let d = halves(simd, rows, 108);
        let a = word_at(simd, rows, 96);
        let b = word_at(simd, rows, 100);
        let high = word_at(simd, rows, 104);
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
        // Bit `j` of each byte belongs to tile `j`; those used up are shifted out.
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

impl Coded<136> for IQ4_XS {
    type Form = Form<1, false, true>;
    const TILES: usize = 8;
    const OFFSET: i32 = IQ4_NL::OFFSET;

    #[inline(always)]
    fn unpack<W: Words>(simd: W, rows: [&[u8; 136]; ROWS], tiles: &mut [Tile]) {
        const VALUES: [u8; 16] = shifted(iq4_nl::VALUES, IQ4_XS::OFFSET);
        let [factors, mut low, ..] = words(simd, rows, 0);
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
