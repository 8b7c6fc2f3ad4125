//! Unpacks blocks for products: from the bytes of sixteen rows to unsigned quants with `f32` scales.
//!
//! Within a block an element is `scale * (quant - OFFSET) - min`. Sixteen rows are unpacked together, one
//! per lane. The weight itself is as large as in the file, and all activations of a batch share the cost of
//! unpacking.

use super::block::Bytes;
use crate::simd::packed::{Packed, ROWS, TileQuants, array, each};

/// A tile: 32 consecutive columns of [`ROWS`] rows, as many as share an activation scale.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Tile {
    pub(crate) quants: TileQuants,
    pub(crate) scales: TileScales,
}

impl Tile {
    pub(crate) const ZERO: Tile = Tile {
        quants: TileQuants::ZERO,
        scales: TileScales::ZERO,
    };
}

/// The scales of a tile.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct TileScales {
    /// TileScales of the first and the second half of the columns, or one for all columns.
    pub(crate) scales: [[f32; ROWS]; 2],
    /// Negated minima, laid out like `scales`.
    pub(crate) minus_mins: [[f32; ROWS]; 2],
}

impl TileScales {
    pub(crate) const ZERO: TileScales = TileScales {
        scales: [[0.0; ROWS]; 2],
        minus_mins: [[0.0; ROWS]; 2],
    };
}

/// The quants of one half of a tile's columns.
pub(crate) type HalfTile<W> = [<W as Packed>::Words; 4];

/// Properties of a type's tiles that its products depend on.
pub(crate) trait TileForm {
    /// TileScales per row: 1, or 2 for the halves of the columns.
    const SCALES: usize;
    /// True if `OFFSET` has to be subtracted from quants.
    const HAS_OFFSET: bool;
    /// True if blocks have minima.
    const HAS_MINS: bool;
    /// Maximum number of bits of a quant: 4, 5, 6, 7 or 8. Quants of 8 bits have an offset of 128.
    const BITS: u32;
}

/// A combination of properties. Types that share it share the compiled products. Types with minima have no
/// offset.
pub(crate) struct Form<const SCALES: usize, const HAS_MINS: bool, const BITS: u32>;

impl<const SCALES: usize, const HAS_MINS: bool, const BITS: u32> TileForm
    for Form<SCALES, HAS_MINS, BITS>
{
    const SCALES: usize = SCALES;
    const HAS_OFFSET: bool = !HAS_MINS;
    const HAS_MINS: bool = HAS_MINS;
    const BITS: u32 = BITS;
}

/// Halves of the tiles of a group: an array of up to [`MAX_GROUP`].
pub(crate) trait Group<H>: AsRef<[H]> + Copy {
    /// Tiles per group.
    const TILES: usize;
}

impl<H: Copy, const N: usize> Group<H> for [H; N] {
    const TILES: usize = N;
}

/// Maximum number of tiles per group.
pub(crate) const MAX_GROUP: usize = 4;

/// Maximum number of tiles per block.
pub(crate) const MAX_TILES: usize = 8;

/// A block that can be unpacked to tiles.
pub(crate) trait Unpack: Bytes {
    /// Properties of the tiles.
    type Form: TileForm;
    /// Bytes before the part of the block that is read as words.
    const LEAD: usize = 0;
    /// Offset and length of the parts of the block in the order in which unpacking reads them, if it is not
    /// that of the block. Panels store their words in this order, so that memory is read in ascending order.
    const READ_ORDER: &'static [(usize, usize)] = &[];
    /// True if panels store blocks in the form of [`Unpack::arrange`] instead of that of files.
    const IS_ARRANGED: bool = false;
    /// Tiles per block.
    const TILES: usize;
    /// Value to subtract from quants.
    const OFFSET: i32;
    /// One half of each tile of a group: consecutive tiles whose quants share bytes. A block is a whole
    /// number of groups.
    type Group<W: Packed>: Group<HalfTile<W>>;

    /// Moves the bits of quants to where unpacking takes fewer instructions. The other methods read the result.
    fn arrange(&mut self) {}

    /// Reverses [`Unpack::arrange`].
    fn restore(&mut self) {}

    /// Unpacks the scales of one block of each row, for `TILES` tiles. A block without an implementation
    /// begins with one scale for all of them.
    #[inline(always)]
    fn scales<W: Packed>(simd: W, rows: impl Blocks, scales: &mut [TileScales]) {
        common_scale(simd, rows, 0, scales);
    }

    /// Unpacks the quants of half `HALF` (0 or 1) of the columns of every tile of group `group`.
    fn quants<W: Packed, const HALF: usize>(
        simd: W,
        rows: impl Blocks,
        group: usize,
    ) -> Self::Group<W>;
}

/// One block of each of sixteen rows, in any layout.
pub(crate) trait Blocks: Copy {
    /// Returns sixteen bytes of each row, starting at `at`, as words.
    fn words<W: Packed>(self, simd: W, at: usize) -> [W::Words; 4];
    /// Returns the word at `at` of each row.
    fn word<W: Packed>(self, simd: W, at: usize) -> W::Words;
    /// Returns the half-precision number at `at` of each row.
    fn halves<W: Packed>(self, simd: W, at: usize) -> W::Floats;
    /// Returns the byte at `at` of each row, one of the leading bytes.
    fn bytes(self, at: usize) -> [u8; ROWS];
}

/// Bytes of sixteen rows in file order.
pub(crate) struct InRows<'a, T: ?Sized>(pub(crate) [&'a T; ROWS]);

impl<T: AsRef<[u8]> + ?Sized> InRows<'_, T> {
    /// Returns sixteen bytes of each row, starting at `at`, as words.
    #[inline(always)]
    pub(crate) fn words<W: Packed>(&self, simd: W, at: usize) -> [W::Words; 4] {
        simd.interleave(array(|row| {
            let bytes = self.0[row].as_ref()[at..].first_chunk();
            bytes.expect("sixteen bytes")
        }))
    }

    /// Returns the word at `at` of each row.
    #[inline(always)]
    pub(crate) fn word<W: Packed>(&self, simd: W, at: usize) -> W::Words {
        let mut bytes = [[0; 4]; ROWS];
        for (bytes, row) in bytes.iter_mut().zip(self.0) {
            bytes.copy_from_slice(&row.as_ref()[at..at + 4]);
        }
        let bytes = bytes.as_flattened().first_chunk();
        simd.load_words(bytes.expect("a word for each row"))
    }

    /// Returns the half-precision number at `at` of each row.
    #[inline(always)]
    pub(crate) fn halves<W: Packed>(&self, simd: W, at: usize) -> W::Floats {
        let mut halves = [[0; 2]; ROWS];
        for (half, row) in halves.iter_mut().zip(self.0) {
            half.copy_from_slice(&row.as_ref()[at..at + 2]);
        }
        simd.load_halves(&halves)
    }
}

/// Puts `high` above the lowest `N` bits of each byte, which are those of `low`.
#[inline(always)]
pub(crate) fn above<W: Packed, const N: u32>(simd: W, low: W::Words, high: W::Words) -> W::Words {
    simd.or(low, simd.shift_left::<N>(high))
}

/// Converts byte `N / 8` of each word to `f32`.
#[inline(always)]
pub(crate) fn byte<W: Packed, const N: u32>(simd: W, words: W::Words) -> W::Floats {
    simd.to_floats(simd.and(simd.shift_right::<N>(words), simd.splat_word(0xff)))
}

/// Converts the four bytes of each word to `f32`.
#[inline(always)]
pub(crate) fn bytes<W: Packed>(simd: W, words: W::Words) -> [W::Floats; 4] {
    [
        byte::<W, 0>(simd, words),
        byte::<W, 8>(simd, words),
        byte::<W, 16>(simd, words),
        byte::<W, 24>(simd, words),
    ]
}

/// Converts the four signed bytes of each word to `f32`, multiplied by 2^24: they are moved to the highest byte.
#[inline(always)]
pub(crate) fn signed_bytes<W: Packed>(simd: W, words: W::Words) -> [W::Floats; 4] {
    [
        simd.to_floats(simd.highest::<0>(words)),
        simd.to_floats(simd.highest::<1>(words)),
        simd.to_floats(simd.highest::<2>(words)),
        simd.to_floats(simd.highest::<3>(words)),
    ]
}

/// Returns half-precision scales divided by 2^24, for [`signed_bytes`]. Exact, like their products.
#[inline(always)]
pub(crate) fn of_signed_bytes<W: Packed>(simd: W, scales: W::Floats) -> W::Floats {
    simd.mul_floats(scales, simd.splat_floats(2f32.powi(-24)))
}

/// Adds a constant, rounded once.
#[inline(always)]
pub(crate) fn add<W: Packed>(simd: W, rows: W::Floats, value: f32) -> W::Floats {
    simd.mul_add_floats(rows, simd.splat_floats(1.0), simd.splat_floats(value))
}

/// `-value`.
#[inline(always)]
pub(crate) fn negate<W: Packed>(simd: W, rows: W::Floats) -> W::Floats {
    simd.mul_floats(rows, simd.splat_floats(-1.0))
}

/// Unpacks the low or the high nibbles of sixteen bytes: the low ones are the first half of a tile's columns.
#[inline(always)]
pub(crate) fn nibbles<W: Packed, const HALF: usize>(
    simd: W,
    rows: impl Blocks,
    at: usize,
) -> HalfTile<W> {
    let words = rows.words(simd, at);
    each!(4, i => match HALF {
        0 => simd.bits::<0>(words[i], 15),
        _ => simd.bits::<4>(words[i], 15),
    })
}

/// Moves four bits of each word, from bit `FROM` on, to bit `TO` of its four bytes.
#[inline(always)]
pub(crate) fn spread_bits<W: Packed, const FROM: u32, const TO: u32>(
    simd: W,
    words: W::Words,
) -> W::Words {
    let bits = simd.and(simd.shift_right::<FROM>(words), simd.splat_word(15));
    // Copies shifted by seven bits per byte put bit `i` at the bottom of byte `i`.
    let pair = simd.or(bits, simd.shift_left::<7>(bits));
    let all = simd.or(pair, simd.shift_left::<14>(pair));
    simd.shift_left::<TO>(simd.bits::<0>(all, 1))
}

/// Moves four pairs of bits of each word, from bit `FROM` on, to the bottom of its four bytes.
#[inline(always)]
pub(crate) fn spread_pairs<W: Packed, const FROM: u32>(simd: W, words: W::Words) -> W::Words {
    let pairs = simd.and(simd.shift_right::<FROM>(words), simd.splat_word(0xff));
    let pairs = simd.or(pairs, simd.shift_left::<12>(pairs));
    let pairs = simd.and(pairs, simd.splat_word(0x000f_000f));
    let pairs = simd.or(pairs, simd.shift_left::<6>(pairs));
    simd.bits::<0>(pairs, 3)
}

/// Sets the fifth bits of nibbles from `fifth`, one bit per column of the tile.
#[inline(always)]
pub(crate) fn with_fifth_bits<W: Packed, const HALF: usize>(
    simd: W,
    nibbles: HalfTile<W>,
    fifth: W::Words,
) -> HalfTile<W> {
    let fifth = match HALF {
        0 => fifth,
        _ => simd.shift_right::<16>(fifth),
    };
    let fifth = [
        spread_bits::<W, 0, 4>(simd, fifth),
        spread_bits::<W, 4, 4>(simd, fifth),
        spread_bits::<W, 8, 4>(simd, fifth),
        spread_bits::<W, 12, 4>(simd, fifth),
    ];
    each!(4, i => simd.or(nibbles[i], fifth[i]))
}

/// Returns eight copies of the byte.
pub(crate) const fn in_each_byte(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Returns `values[i] + offset` as unsigned bytes.
pub(crate) const fn shifted(values: [i8; 16], offset: i32) -> [u8; 16] {
    let mut shifted = [0; 16];
    let mut i = 0;
    while i < 16 {
        shifted[i] = (values[i] as i32 + offset) as u8;
        i += 1;
    }
    shifted
}

/// Stores the half-precision scale at `at` for all tiles.
#[inline(always)]
pub(crate) fn common_scale<W: Packed>(
    simd: W,
    rows: impl Blocks,
    at: usize,
    tiles: &mut [TileScales],
) {
    let scale = rows.halves(simd, at);
    for tile in tiles {
        simd.store_floats(scale, &mut tile.scales[0]);
    }
}

/// Splits each byte into its four pairs of bits, lowest first: one half of a group of four tiles.
#[inline(always)]
pub(crate) fn pairs_in_bytes<W: Packed>(simd: W, words: HalfTile<W>) -> [HalfTile<W>; 4] {
    let pairs = each!(4, word => pairs_of_bits(simd, words[word]));
    each!(4, tile => each!(4, word => pairs[word][tile]))
}

/// Splits each byte of a word into its four pairs of bits, lowest first.
#[inline(always)]
pub(crate) fn pairs_of_bits<W: Packed>(simd: W, words: W::Words) -> [W::Words; 4] {
    [
        simd.bits::<0>(words, 3),
        simd.bits::<2>(words, 3),
        simd.bits::<4>(words, 3),
        simd.bits::<6>(words, 3),
    ]
}
