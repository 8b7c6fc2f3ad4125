//! SIMD operations on sixteen interleaved rows: the arithmetic of products with quants.
//!
//! A word has four bytes of one row, a lane belongs to one row, and lanes never interact. Products of
//! quants are integer sums, exact in any order, and the few `f32` operations are rounded as in IEEE 754:
//! all instruction sets give the same bits.

use std::ptr;

use super::{LANES, LINE};

/// Rows that are multiplied together.
pub(crate) const ROWS: usize = 16;

/// Maximum of [`Packed::FUSED`].
pub(crate) const MAX_FUSED: usize = 8;

/// Maximum number of passes over a panel, each with up to [`MAX_FUSED`] activation rows. With more, unpacking to tiles is
/// faster.
pub(crate) const MAX_PASSES: usize = 2;

/// A word for each row, as bytes.
pub(crate) type WordBytes = [u8; 4 * ROWS];

/// Form of the quants in the tiles of an instruction set.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(
    dead_code,
    reason = "without the feature every-cpu, some instruction sets are not compiled"
)]
pub(crate) enum TileEncoding {
    /// As they are unpacked. Products reduce those of 8 bits by [`Packed::WIDE_OFFSET`].
    Unsigned,
    /// Signed, without their offset, if they have 8 bits; those of fewer bits are as they are unpacked.
    WideSigned,
    /// Signed, without their offset. Activations are raised: unsigned, larger by 128. For instructions that multiply
    /// unsigned by signed bytes.
    Signed,
}

impl TileEncoding {
    /// Returns whether quants of so many bits are signed.
    pub(crate) const fn is_signed(self, bits: u32) -> bool {
        match self {
            TileEncoding::Unsigned => false,
            TileEncoding::WideSigned => bits == 8,
            TileEncoding::Signed => true,
        }
    }
}

/// The quants of a tile, 32 columns of [`ROWS`] rows, encoded for an instruction set.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct TileQuants {
    /// The quants of four columns of every row, eight times.
    pub(crate) words: [WordBytes; LANES / 4],
    /// Starting values of the sums of products of [`TileEncoding::Signed`], because activations are raised: -128 times
    /// the sum of the quants of each row, one for each half of the columns or one for all.
    pub(crate) starts: [WordBytes; 2],
}

impl TileQuants {
    pub(crate) const ZERO: TileQuants = TileQuants {
        words: [[0; 4 * ROWS]; LANES / 4],
        starts: [[0; 4 * ROWS]; 2],
    };

    /// The words of part `part`. References to each word would make the compiler compute addresses in vectors.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self, part: usize) -> &[WordBytes; N] {
        &self.words.as_chunks().0[part]
    }
}

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

/// An array of 2, 4, 8 or 16 elements, each the value of an expression for its index. Unlike a closure given to
/// [`array`], the expression is always compiled for the caller's instruction set: a call that is not inlined
/// passes vectors through memory.
macro_rules! each {
    (2, $i:ident => $element:expr) => {
        each!([0 1], $i => $element)
    };
    (4, $i:ident => $element:expr) => {
        each!([0 1 2 3], $i => $element)
    };
    (8, $i:ident => $element:expr) => {
        each!([0 1 2 3 4 5 6 7], $i => $element)
    };
    (16, $i:ident => $element:expr) => {
        each!([0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15], $i => $element)
    };
    ([$($index:literal)*], $i:ident => $element:expr) => {
        [$(each!($i = $index, $element)),*]
    };
    ($i:ident = $index:literal, $element:expr) => {{
        let $i = $index;
        $element
    }};
}
pub(crate) use each;

/// An array of a constant number of elements, 1 or 2, each the value of an expression for its index, as above.
macro_rules! each_of {
    ($i:ident < $n:expr => $element:expr) => {{
        const { assert!($n == 1 || $n == 2) };
        let mut elements = {
            let $i = 0;
            [$element; $n]
        };
        if const { $n == 2 } {
            let $i = 1;
            elements[$i] = $element;
        }
        elements
    }};
}
pub(crate) use each_of;

/// Evaluates an expression for each index below a constant of at most 2, 4 or 8. Not a loop, so that what depends on the
/// index is constant.
macro_rules! unrolled {
    ($i:ident of 2 => $body:expr) => {
        unrolled!($i of [0 1] < 2 => $body)
    };
    ($i:ident of 2 < $n:expr => $body:expr) => {
        unrolled!($i of [0 1] < $n => $body)
    };
    ($i:ident of 4 < $n:expr => $body:expr) => {
        unrolled!($i of [0 1 2 3] < $n => $body)
    };
    ($i:ident of 8 < $n:expr => $body:expr) => {
        unrolled!($i of [0 1 2 3 4 5 6 7] < $n => $body)
    };
    ($i:ident of [$($index:literal)*] < $n:expr => $body:expr) => {{
        const { assert!($n <= [$($index),*].len()) };
        $(if const { $index < $n } {
            let $i = $index;
            $body
        })*
    }};
}
pub(crate) use unrolled;

/// Replaces each index by its entry of a table, one by one. A function of its own: inlined into every unpacking of a
/// type with a grid, its loop takes the compiler many minutes.
#[inline(never)]
fn gather_each(table: &[u32], indices: &mut WordBytes) {
    for word in indices.as_chunks_mut::<4>().0 {
        let index = u32::from_le_bytes(*word) as usize;
        *word = table[index & (table.len() - 1)].to_le_bytes();
    }
}

/// Takes the elements of [`ROWS`] rows. Not a closure, which the compiler might not inline.
pub(crate) trait TakeColumn<W: Packed> {
    /// Takes element `element` of each row.
    fn take(&mut self, simd: W, element: usize, rows: W::Floats);
}

/// Cache lines to prefetch one by one: those of some streams, the first line of each, then the second of each, and so on.
#[derive(Clone, Copy)]
pub(crate) struct Prefetches {
    /// The next line.
    line: *const u8,
    /// Number of the stream of that line, a constant.
    stream: usize,
    /// Number of streams, a constant.
    n_stream: usize,
    /// Bytes from a line of a stream to that of the next.
    stride: usize,
    /// Bytes from a line of the last stream to the next line of the first; wraps around.
    back: usize,
}

impl Prefetches {
    /// For products that prefetch nothing.
    pub(crate) const NONE: Prefetches = Prefetches::consecutive(ptr::null());

    /// Lines one after another.
    #[inline(always)]
    pub(crate) const fn consecutive(line: *const u8) -> Prefetches {
        Prefetches {
            line,
            stream: 0,
            n_stream: 1,
            stride: LINE,
            back: LINE,
        }
    }

    /// Lines of `n_stream` streams, a constant, that are `stride` bytes apart. `line` is the first of the first stream.
    #[inline(always)]
    pub(crate) fn of_streams(line: *const u8, n_stream: usize, stride: usize) -> Prefetches {
        Prefetches {
            line,
            stream: 0,
            n_stream,
            stride,
            back: LINE.wrapping_sub((n_stream - 1) * stride),
        }
    }

    /// Maximum number of lines at a time.
    pub(crate) const MAX_COUNT: usize = 3;

    /// Prefetches the next `n` lines, at most [`Prefetches::MAX_COUNT`].
    #[inline(always)]
    pub(crate) fn prefetch<W: Packed>(&mut self, simd: W, n: usize) {
        // Not a loop, which might not be unrolled.
        if n > 0 {
            simd.prefetch_early(self.next());
        }
        if n > 1 {
            simd.prefetch_early(self.next());
        }
        if n > 2 {
            simd.prefetch_early(self.next());
        }
    }

    /// Returns the next line.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> *const u8 {
        let line = self.line;
        // Not multiplied: products of strides would take registers.
        let (stream, bytes) = match self.stream + 1 == self.n_stream {
            true => (0, self.back),
            false => (self.stream + 1, self.stride),
        };
        self.stream = stream;
        self.line = line.wrapping_add(bytes);
        line
    }
}

/// Sums of products to which [`Packed::add_words`] adds.
#[derive(Clone, Copy)]
pub(crate) struct Sums<W: Packed> {
    /// Sums in 32 bits.
    pub(crate) wide: W::Words,
    /// Pairs of sums in 16 bits that are not in `wide` yet.
    #[cfg_attr(
        not(isa = "avx2"),
        expect(dead_code, reason = "only AVX2 adds in 16 bits")
    )]
    pub(crate) narrow: W::Words,
}

impl<W: Packed> Sums<W> {
    /// Sums that begin with `start`.
    #[inline(always)]
    pub(crate) fn new(simd: W, start: W::Words) -> Sums<W> {
        Sums {
            wide: start,
            narrow: simd.splat_word(0),
        }
    }
}

/// Lane-wise operations on one word and one `f32` for each of [`ROWS`] rows.
pub(crate) trait Packed: Copy {
    /// A 32-bit integer, or four bytes, per row.
    type Words: Copy;
    /// An `f32` per row.
    type Floats: Copy;
    /// The same operations on some of the rows: those of one register, if all rows take several. Half as many
    /// values then fit the register file. The other rows of arrays are neither read nor written.
    type Part: Packed;
    /// Number of parts, 1 or 2.
    const PARTS: usize = 1;
    /// Sums of products with tiles that fit the register file, 1 to 8.
    const SUMS: usize;
    /// Panels of [`ROWS`] rows that are multiplied together, 1 or 2. Two share the loads of activations.
    const PANELS: usize = 1;

    /// Activation rows for which the registers suffice to unpack weights in them; at most [`MAX_FUSED`]. 0 if
    /// products always unpack to tiles.
    const FUSED: usize = 1;
    /// Value that [`Packed::add_products`] subtracts from quants of 8 bits.
    const WIDE_OFFSET: i32 = 0;
    /// Activation rows up to which products unpack weights in registers, in one or more passes; fewer for some types.
    const FUSED_ROWS: usize = match Self::FUSED {
        0 | 1 => Self::FUSED,
        n => MAX_PASSES * n,
    };
    /// True if products with weights in registers go word by word over all activation rows, because there are too few
    /// registers for the quants of many words.
    const WORD_BY_WORD: bool = false;
    /// Form of the quants of tiles, which [`Packed::products`] reads.
    const TILES: TileEncoding = TileEncoding::Unsigned;

    /// The operations on part `i` of the rows.
    fn part(self, i: usize) -> Self::Part;

    /// Prefetches the cache line at any address, which is needed later than those in flight to the L1 cache:
    /// into the L2 cache, where the instruction set has such an instruction. Only affects timing.
    #[inline(always)]
    fn prefetch_early(self, _line: *const u8) {}

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
    /// Logical shift right by `n` bits, less than 32.
    fn shift_right_by(self, words: Self::Words, n: u32) -> Self::Words;
    /// Logical shift left.
    fn shift_left<const N: u32>(self, words: Self::Words) -> Self::Words;
    /// `table[b]` for each byte `b`, which is below 16.
    fn look_up(self, table: &[u8; 16], words: Self::Words) -> Self::Words;
    /// `a + b`, wrapping.
    fn add(self, a: Self::Words, b: Self::Words) -> Self::Words;
    /// `table[i]` for each index `i`, modulo the length of the table, which is a power of two.
    #[inline(always)]
    fn gather(self, table: &[u32], indices: Self::Words) -> Self::Words {
        let mut bytes = [0; 4 * ROWS];
        self.store_words(indices, &mut bytes);
        gather_each(table, &mut bytes);
        self.load_words(&bytes)
    }
    /// Adds sixteen byte products to each integer. The bytes of `quants` are unsigned, of `BITS` bits: 4, 5, 6,
    /// 7 or 8. Those of 8 bits are reduced by [`Packed::WIDE_OFFSET`] first. The bytes of `x` are signed, -127
    /// to 127.
    fn add_products<const BITS: u32>(
        self,
        sums: Self::Words,
        quants: [Self::Words; 4],
        x: [u32; 4],
    ) -> Self::Words;

    /// Adds the products of each of `P` panels, 1 or 2, like [`Packed::add_products`], and prefetches `counts` lines after
    /// the words.
    #[inline(always)]
    fn add_products_and_prefetch<const BITS: u32, const P: usize>(
        self,
        mut sums: [Self::Words; P],
        quants: [[Self::Words; 4]; P],
        x: [u32; 4],
        counts: [usize; 4],
        prefetches: &mut Prefetches,
    ) -> [Self::Words; P] {
        for p in 0..P {
            sums[p] = self.add_products::<BITS>(sums[p], quants[p], x);
        }
        each!(4, word => prefetches.prefetch(self, counts[word]));
        sums
    }

    /// Returns the slices. An instruction set whose products share loads of activations makes the compiler load from them
    /// after `words` are computed; it would load the activations of all rows first, and store them again.
    #[inline(always)]
    fn in_order<'a, T, const P: usize>(
        self,
        _words: &mut [Self::Words; P],
        slices: [&'a [T]; 2],
    ) -> [&'a [T]; 2] {
        slices
    }

    /// Adds the products of two words, like [`Packed::add_products`], and keeps the order of these calls. The sums have the
    /// products of `before` words.
    #[inline(always)]
    fn add_words<const BITS: u32>(
        self,
        sums: Sums<Self>,
        quants: [Self::Words; 2],
        x: [u32; 2],
        _before: usize,
    ) -> Sums<Self> {
        let zero = self.splat_word(0);
        let quants = [quants[0], quants[1], zero, zero];
        let wide = self.add_products::<BITS>(sums.wide, quants, [x[0], x[1], 0, 0]);
        Sums { wide, ..sums }
    }

    /// Returns the sums of products in 32 bits.
    #[inline(always)]
    fn total(self, sums: Sums<Self>) -> Self::Words {
        sums.wide
    }

    /// Returns the sums of products of `N` words, 4 or 8, of each of `P` tiles with those of each of `C` activation
    /// rows: the words of part `part`. Like [`Packed::add_products`], but quants are those of [`Packed::TILES`].
    #[inline(always)]
    fn products<const BITS: u32, const N: usize, const P: usize, const C: usize>(
        self,
        tiles: [&TileQuants; P],
        part: usize,
        x: [&[u32; N]; C],
    ) -> [[Self::Words; C]; P] {
        // Not a closure, which might not be inlined.
        let mut sums = [[self.splat_word(0); C]; P];
        for (sums, tile) in sums.iter_mut().zip(tiles) {
            *sums = products::<Self, BITS, N, C>(self, tile.words(part), x);
        }
        sums
    }

    /// Returns the values. An instruction set with too few registers for them makes the compiler load and store them where
    /// they are used; it would keep some in registers from one step of a loop to the next, and wait for others.
    #[inline(always)]
    fn in_memory<T>(self, values: &mut T) -> &mut T {
        values
    }

    /// Returns the number. The compiler does not know that it is the same, and so does not keep what it computed with it.
    #[inline(always)]
    fn opaque(self, n: usize) -> usize {
        n
    }

    /// Moves byte `BYTE` of each word to its highest byte; the others become 0.
    #[inline(always)]
    fn highest<const BYTE: u32>(self, words: Self::Words) -> Self::Words {
        let words = match BYTE {
            0 => self.shift_left::<24>(words),
            1 => self.shift_left::<16>(words),
            2 => self.shift_left::<8>(words),
            _ => words,
        };
        self.and(words, self.splat_word(0xff00_0000))
    }

    /// Converts signed integers to `f32`.
    fn to_floats(self, words: Self::Words) -> Self::Floats;
    /// Converts the low halves of words from f16 to `f32`.
    fn halves_to_floats(self, words: Self::Words) -> Self::Floats;
    /// Decodes sixteen f16 numbers of each row, in ascending order: elements from `16 * HALF` on.
    #[inline(always)]
    fn f16_columns<const HALF: usize>(
        self,
        numbers: [&[u8; 32]; ROWS],
        to: &mut impl TakeColumn<Self>,
    ) {
        for half in 0..2 {
            let words = self.interleave(array(|row| &numbers[row].as_chunks().0[half]));
            for (i, words) in words.into_iter().enumerate() {
                let element = 16 * HALF + 8 * half + 2 * i;
                to.take(self, element, self.halves_to_floats(words));
                let high = self.shift_right::<16>(words);
                to.take(self, element + 1, self.halves_to_floats(high));
            }
        }
    }
    /// Reinterprets words as `f32`.
    fn bits_to_floats(self, words: Self::Words) -> Self::Floats;
    /// Loads f16 numbers as `f32`.
    fn load_halves(self, halves: &[[u8; 2]; ROWS]) -> Self::Floats;
    /// Loads one `f32` per row.
    fn load_floats(self, values: &[f32; ROWS]) -> Self::Floats;
    /// Stores one `f32` per row.
    fn store_floats(self, rows: Self::Floats, values: &mut [f32; ROWS]);
    /// `value` in every row.
    fn splat_floats(self, value: f32) -> Self::Floats;
    /// `a * b`.
    fn mul_floats(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn mul_add_floats(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// Logical shift right by `N` bits, less than 32.
    #[inline(always)]
    fn shift_right<const N: u32>(self, words: Self::Words) -> Self::Words {
        self.shift_right_by(words, N)
    }

    /// Returns `(byte >> N) & mask` for each byte.
    #[inline(always)]
    fn bits<const N: u32>(self, words: Self::Words, mask: u8) -> Self::Words {
        let mask = self.splat_word(u32::from_le_bytes([mask; 4]));
        self.and(self.shift_right::<N>(words), mask)
    }
}

/// [`Packed::products`] of one tile, four words at a time.
#[inline(always)]
pub(crate) fn products<W: Packed, const BITS: u32, const N: usize, const C: usize>(
    simd: W,
    words: &[WordBytes; N],
    x: [&[u32; N]; C],
) -> [W::Words; C] {
    let mut sums = [simd.splat_word(0); C];
    for i in (0..N).step_by(4) {
        let quants = each!(4, word => simd.load_words(&words[i + word]));
        for c in 0..C {
            let x = each!(4, word => x[c][i + word]);
            sums[c] = simd.add_products::<BITS>(sums[c], quants, x);
        }
    }
    sums
}
