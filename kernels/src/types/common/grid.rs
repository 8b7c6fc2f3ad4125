//! Grids: the points that the IQ1, IQ2 and IQ3 types round groups of quants to, and the search for the
//! best point.

use crate::simd::lanes::Lanes;
use crate::simd::packed::Packed;
use crate::types::common::unpack::{self, Blocks, TileScales, spread_bits, spread_pairs};

/// Quants of a group in four bytes: one quant per byte, or two, the first in the lowest two bits.
pub(crate) type GroupBytes = [u8; 4];

/// Sixteen neighbours: byte `j` of each.
pub(crate) type NeighbourRow = [[u8; 16]; 4];

/// The neighbours of a group.
#[derive(Clone, Copy)]
pub(crate) struct Neighbours<'a> {
    pub(crate) rows: &'a [NeighbourRow],
    pub(crate) len: usize,
    /// The identity of the first; those of the others follow.
    pub(crate) first: usize,
}

/// Returns a neighbour.
#[inline(always)]
pub(crate) fn bytes_at(rows: &[NeighbourRow], place: usize) -> GroupBytes {
    let ([a, b, c, d], i) = (&rows[place / 16], place % 16);
    [a[i], b[i], c[i], d[i]]
}

/// The byte of absent neighbours. Its level is infinite.
const ABSENT: u8 = 15;

/// A grid with the neighbours of every group of quants.
///
/// A group of `G` quants is either eight quants below 3, or four below 8.
pub(crate) struct Grid<const G: usize> {
    /// The entry of each group, by its number: the quants as digits, the first the lowest.
    entries: Vec<Entry>,
    neighbours: Vec<NeighbourRow>,
}

/// A group of quants.
#[derive(Clone, Copy, Default)]
struct Entry {
    bytes: GroupBytes,
    /// The index of the point, or of the first row of neighbours if the group is not a point.
    first: u32,
    /// Number of neighbours; 0 for a point.
    n: u32,
}

/// A point, and whether a group was rounded to it that is not a point.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub(crate) bytes: GroupBytes,
    pub(crate) is_off_grid: bool,
}

/// The place of a group of quants: a point, or between points.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// The group is a point.
    On(GroupBytes),
    /// The group is not a point, but these are.
    Between(Neighbours<'a>),
}

impl<const G: usize> Grid<G> {
    /// Number of values of a quant.
    pub(crate) const RADIX: usize = if G == 8 { 3 } else { 8 };

    /// Quants per byte of [`GroupBytes`].
    pub(crate) const PER_BYTE: usize = G / 4;

    /// Prepares a grid. The neighbours of a group are the points of the `n_distances` smallest distances,
    /// the nearest first, points of equal distance by index.
    pub(crate) fn new(points: &[u16], n_distances: usize) -> Grid<G> {
        let points: Vec<GroupBytes> = points
            .iter()
            .map(|&point| Self::point_bytes(point))
            .collect();
        let mut grid = Grid {
            entries: vec![Entry::default(); Self::RADIX.pow(G as u32)],
            neighbours: Vec::new(),
        };
        for (number, entry) in grid.entries.iter_mut().enumerate() {
            entry.bytes = Self::bytes_of_number(number);
        }
        for (index, &bytes) in points.iter().enumerate() {
            grid.entries[Self::number(bytes)].first = index as u32;
        }
        let squares = Self::squares();
        let mut distances = vec![0; points.len()];
        for number in 0..grid.entries.len() {
            let bytes = grid.entries[number].bytes;
            let mut counts = [0; 256];
            for (distance, point) in distances.iter_mut().zip(&points) {
                let square = |j: usize| squares[usize::from(bytes[j])][usize::from(point[j])];
                *distance = square(0) + square(1) + square(2) + square(3);
                counts[usize::from(*distance)] += 1;
            }
            if counts[0] > 0 {
                continue;
            }
            let nearest = (0..256).filter(|&d| counts[d] > 0).take(n_distances);
            let nearest = nearest.flat_map(|d| {
                let all = distances.iter().zip(&points);
                all.filter(move |(distance, _)| usize::from(**distance) == d)
            });
            let nearest: Vec<GroupBytes> = nearest.map(|(_, &point)| point).collect();
            assert!(nearest.len() <= MAX_NEIGHBOURS, "too many neighbours");
            grid.entries[number].first = grid.neighbours.len() as u32;
            grid.entries[number].n = nearest.len() as u32;
            for points in nearest.chunks(16) {
                let point = |i: usize| points.get(i).copied().unwrap_or([ABSENT; 4]);
                let column = |j: usize| std::array::from_fn(|i| point(i)[j]);
                grid.neighbours.push(std::array::from_fn(column));
            }
        }
        grid
    }

    /// Returns the squared distance of the quants in two bytes.
    fn squares() -> [[u8; 16]; 16] {
        let quants = |byte: usize| match Self::PER_BYTE {
            1 => [byte, 0],
            _ => [byte & 3, byte >> 2],
        };
        let square = |a: usize, b: usize| a.abs_diff(b).pow(2);
        std::array::from_fn(|a| {
            std::array::from_fn(|b| {
                let (a, b) = (quants(a), quants(b));
                (square(a[0], b[0]) + square(a[1], b[1])) as u8
            })
        })
    }

    fn point_bytes(point: u16) -> GroupBytes {
        match Self::PER_BYTE {
            1 => std::array::from_fn(|j| (point >> (3 * j) & 7) as u8),
            _ => std::array::from_fn(|j| (point >> (4 * j) & 15) as u8),
        }
    }

    fn bytes_of_number(number: usize) -> GroupBytes {
        let quant = |i: usize| (number / Self::RADIX.pow(i as u32) % Self::RADIX) as u8;
        match Self::PER_BYTE {
            1 => std::array::from_fn(quant),
            _ => std::array::from_fn(|j| quant(2 * j) | (quant(2 * j + 1) << 2)),
        }
    }

    /// Returns the number of a group.
    #[inline(always)]
    fn number(bytes: GroupBytes) -> usize {
        let [a, b, c, d] = bytes.map(|byte| match Self::PER_BYTE {
            1 => usize::from(byte),
            _ => usize::from(byte & 3) + 3 * usize::from(byte >> 2),
        });
        let radix = Self::RADIX.pow(Self::PER_BYTE as u32);
        a + radix * (b + radix * (c + radix * d))
    }

    /// Returns the index of a point.
    #[inline(always)]
    pub(crate) fn index(&self, bytes: GroupBytes) -> u16 {
        let entry = &self.entries[Self::number(bytes)];
        debug_assert_eq!(entry.n, 0, "a point of the grid");
        entry.first as u16
    }

    /// Returns the place of the group with a number.
    #[inline(always)]
    pub(crate) fn place(&self, number: usize) -> Place<'_> {
        let entry = &self.entries[number];
        if entry.n == 0 {
            return Place::On(entry.bytes);
        }
        let (first, len) = (entry.first as usize, entry.n as usize);
        Place::Between(Neighbours {
            rows: &self.neighbours[first..][..len.div_ceil(16)],
            len,
            first: self.entries.len() + 16 * first,
        })
    }

    /// Returns a group by its identity: the number of a point, or what [`Neighbours::first`] counts.
    #[inline(always)]
    pub(crate) fn group(&self, id: usize) -> Group {
        match id.checked_sub(self.entries.len()) {
            None => Group {
                bytes: self.entries[id].bytes,
                is_off_grid: false,
            },
            Some(place) => Group {
                bytes: bytes_at(&self.neighbours, place),
                is_off_grid: true,
            },
        }
    }
}

/// The values of quants, by the byte that contains them: of its first and of its second quant.
pub(crate) type Levels = [[f32; 16]; 2];

/// Arranges the values of the quants 0, 1, 2, ... of groups of eight.
pub(crate) const fn levels_of_pairs(values: [f32; 3]) -> Levels {
    let mut levels = [[0.0; 16]; 2];
    let mut i = 0;
    while i < 16 {
        // Quants are below 3; the other bytes do not occur.
        levels[0][i] = values[(i & 3) % 3];
        levels[1][i] = values[(i >> 2) % 3];
        i += 1;
    }
    with_absent(levels)
}

/// Sets the level of absent neighbours.
const fn with_absent(mut levels: Levels) -> Levels {
    levels[0][ABSENT as usize] = f32::INFINITY;
    levels[1][ABSENT as usize] = f32::INFINITY;
    levels
}

/// The values 1, 3, 5, ... of the quants of a group: the multiples of the scale in searches.
pub(crate) const fn odd_levels<const G: usize>() -> Levels {
    if G == 8 {
        return levels_of_pairs([1.0, 3.0, 5.0]);
    }
    let mut levels = [[0.0; 16]; 2];
    let mut i = 0;
    while i < 16 {
        levels[0][i] = (2 * (i & 7) + 1) as f32;
        i += 1;
    }
    with_absent(levels)
}

/// The numbers that a group of quants approximates.
pub(crate) struct Target<'a, const G: usize> {
    pub(crate) x: &'a [f32; G],
    /// Weights of squared errors.
    pub(crate) weights: &'a [f32; G],
    pub(crate) levels: &'a Levels,
    /// The largest magnitude of a level.
    pub(crate) reach: f32,
}

/// Terms of the error, by the byte that contains the quant. They are added in order, so the first two of
/// groups of eight, which share a byte, are already added.
type Terms = [[f32; 16]; 7];

impl<const G: usize> Target<'_, G> {
    /// Returns the weighted squared error of each quant, for each byte that contains it.
    #[inline(always)]
    fn terms<V: Lanes>(&self, scale: f32) -> Terms {
        let mut terms = [[0.0; 16]; 7];
        let skipped = G / 8;
        for at in (0..16).step_by(V::N) {
            for i in (0..G).rev() {
                let level = V::load(&self.levels[i % (G / 4)][at..]);
                let difference = V::splat(scale) * level - V::splat(self.x[i]);
                let term = V::splat(self.weights[i]) * difference * difference;
                if i < skipped {
                    (term + V::load(&terms[0][at..])).store(&mut terms[0][at..]);
                } else {
                    term.store(&mut terms[i - skipped][at..]);
                }
            }
        }
        terms
    }
}

/// The most neighbours of a group.
const MAX_NEIGHBOURS: usize = 1024;

/// The places of neighbours, as numbers.
pub(crate) static PLACES: [f32; MAX_NEIGHBOURS] = {
    let mut places = [0.0; MAX_NEIGHBOURS];
    let mut i = 0;
    while i < MAX_NEIGHBOURS {
        places[i] = i as f32;
        i += 1;
    }
    places
};

/// Returns the first neighbour of least error by ggml's sums.
#[inline(always)]
pub(crate) fn nearest<V: Lanes, const G: usize>(
    neighbours: Neighbours<'_>,
    target: &Target<'_, G>,
    scale: f32,
) -> GroupBytes {
    let terms = target.terms::<V>(scale);
    // The first place of the least error of each lane; the first neighbour if every error is infinite.
    let (mut least, mut place) = (V::splat(f32::MAX), V::splat(0.0));
    let mut here = V::load(&PLACES);
    for bytes in neighbours.rows {
        for at in (0..16).step_by(V::N) {
            let mut error = V::look_up(&terms[0], &bytes[0][at..]);
            for i in G / 4..G {
                let term = V::look_up(&terms[i - G / 8], &bytes[i / (G / 4)][at..]);
                error = error + term;
            }
            let is_less = least.gt(error);
            least = V::select(is_less, error, least);
            place = V::select(is_less, here, place);
            here = here + V::splat(V::N as f32);
        }
    }
    let minus = V::splat(-1.0);
    let is_least = (minus * least).eq(V::splat((minus * least).largest()));
    let place = -V::select(is_least, minus * place, V::splat(-f32::MAX)).largest();
    bytes_at(neighbours.rows, place as usize % neighbours.len)
}

/// Returns a sign code of seven bits as eight bits: the number of ones is even.
#[inline(always)]
pub(crate) fn with_parity(code: u8) -> u8 {
    (code & 127) | ((code & 127).count_ones() as u8 & 1) << 7
}

/// [`with_parity`] of the lowest seven bits of each word.
#[inline(always)]
pub(crate) fn packed_parity<W: Packed, const FROM: u32>(simd: W, words: W::Words) -> W::Words {
    let code = simd.and(simd.shift_right::<FROM>(words), simd.splat_word(127));
    let parity = simd.xor(code, simd.shift_right::<4>(code));
    let parity = simd.xor(parity, simd.shift_right::<2>(parity));
    let parity = simd.xor(parity, simd.shift_right::<1>(parity));
    let parity = simd.and(parity, simd.splat_word(1));
    simd.or(code, simd.shift_left::<7>(parity))
}

/// Returns `offset` plus and minus each value of a quant, by the quant and, above its `bits`, the sign.
pub(crate) const fn signed<const N: usize>(values: [u8; N], bits: u32, offset: i32) -> [u8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < N {
        table[i] = (offset + values[i] as i32) as u8;
        table[i | 1 << bits] = (offset - values[i] as i32) as u8;
        i += 1;
    }
    table
}

/// Returns the entries of [`signed`] as numbers, without the offset.
pub(crate) const fn signed_numbers<const N: usize>(values: [u8; N], bits: u32) -> [f32; 16] {
    let mut table = [0.0; 16];
    let mut i = 0;
    while i < N {
        table[i] = values[i] as f32;
        table[i | 1 << bits] = -(values[i] as f32);
        i += 1;
    }
    table
}

/// Returns the points as words.
pub(crate) const fn words<const N: usize>(points: &[u16; N]) -> [u32; N] {
    let mut words = [0; N];
    let mut i = 0;
    while i < N {
        words[i] = points[i] as u32;
        i += 1;
    }
    words
}

/// Returns the points of four quants with one quant per byte.
pub(crate) const fn spread_points<const N: usize>(points: &[u16; N]) -> [u32; N] {
    let mut words = [0; N];
    let mut i = 0;
    while i < N {
        let point = points[i] as u32;
        words[i] =
            (point & 7) | (point & 0o70) << 5 | (point & 0o700) << 10 | (point & 0o7000) << 15;
        i += 1;
    }
    words
}

/// Returns the quants of eight columns: entries of a table by the quants of a point and, above them, the
/// lowest eight bits of `signs`.
#[inline(always)]
pub(crate) fn look_up_eight<W: Packed>(
    simd: W,
    points: &[u32],
    index: W::Words,
    signs: W::Words,
    table: &[u8; 16],
) -> [W::Words; 2] {
    let point = simd.gather(points, index);
    let first = simd.or(
        spread_pairs::<W, 0>(simd, point),
        spread_bits::<W, 0, 2>(simd, signs),
    );
    let second = simd.or(
        spread_pairs::<W, 8>(simd, point),
        spread_bits::<W, 4, 2>(simd, signs),
    );
    [simd.look_up(table, first), simd.look_up(table, second)]
}

/// Returns the quants of four columns, with four bits of `signs` from bit `FROM` on; points are spread.
#[inline(always)]
pub(crate) fn look_up_four<W: Packed, const FROM: u32>(
    simd: W,
    points: &[u32],
    index: W::Words,
    signs: W::Words,
    table: &[u8; 16],
) -> W::Words {
    let point = simd.gather(points, index);
    let signs = spread_bits::<W, FROM, 3>(simd, signs);
    simd.look_up(table, simd.or(point, signs))
}

/// Puts the bits of `high` in a mask above the lowest byte of `low`.
#[inline(always)]
pub(crate) fn above_byte<W: Packed, const MASK: u32>(
    simd: W,
    low: W::Words,
    high: W::Words,
) -> W::Words {
    let low = simd.and(low, simd.splat_word(0xff));
    let high = simd.and(high, simd.splat_word(MASK));
    simd.or(low, simd.shift_left::<8>(high))
}

/// Returns bit `FROM` of each word eight times.
#[inline(always)]
pub(crate) fn repeat_bit<W: Packed, const FROM: u32>(simd: W, words: W::Words) -> W::Words {
    let bit = simd.and(simd.shift_right::<FROM>(words), simd.splat_word(1));
    let bits = simd.or(bit, simd.shift_left::<1>(bit));
    let bits = simd.or(bits, simd.shift_left::<2>(bits));
    simd.or(bits, simd.shift_left::<4>(bits))
}

/// Stores `d * (quant + 0.5)` for the halves of eight tiles; each byte has their four-bit quants.
#[inline(always)]
pub(crate) fn nibble_scales<W: Packed>(
    simd: W,
    d: W::Floats,
    quants: [W::Words; 2],
    tiles: &mut [TileScales],
) {
    for (tiles, quants) in tiles.as_chunks_mut::<4>().0.iter_mut().zip(quants) {
        let low = unpack::bytes(simd, simd.bits::<0>(quants, 15));
        let high = unpack::bytes(simd, simd.bits::<4>(quants, 15));
        for (tile, (low, high)) in tiles.iter_mut().zip(low.into_iter().zip(high)) {
            let first = simd.mul_floats(d, unpack::add(simd, low, 0.5));
            let second = simd.mul_floats(d, unpack::add(simd, high, 0.5));
            simd.store_floats(first, &mut tile.scales[0]);
            simd.store_floats(second, &mut tile.scales[1]);
        }
    }
}

/// Stores `d * (quant + 0.5)` for eight tiles; the quants are the highest nibbles of the words at `at`,
/// `at + step`, ...
#[inline(always)]
pub(crate) fn code_scales<W: Packed>(
    simd: W,
    d: W::Floats,
    rows: impl Blocks,
    (at, step): (usize, usize),
    tiles: &mut [TileScales],
) {
    for (b, tile) in tiles.iter_mut().enumerate() {
        let quant = simd.to_floats(simd.shift_right::<28>(rows.word(simd, at + step * b)));
        let scale = simd.mul_floats(d, unpack::add(simd, quant, 0.5));
        simd.store_floats(scale, &mut tile.scales[0]);
    }
}

/// Returns nibble `i`; a byte has the first of two in its low nibble.
#[inline(always)]
pub(crate) fn nibble(bytes: &[u8], i: usize) -> u8 {
    (bytes[i / 2] >> (4 * (i % 2))) & 15
}

/// Writes the table indices of eight elements: the quants of a point, above them one bit of `signs` each.
#[inline(always)]
pub(crate) fn put_eight(point: u16, signs: u8, out: &mut [u8]) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = (point >> (2 * i) & 3) as u8 | (signs >> i & 1) << 2;
    }
}

/// Writes the table indices of four elements, like [`put_eight`].
#[inline(always)]
pub(crate) fn put_four(point: u16, signs: u8, out: &mut [u8]) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = (point >> (3 * i) & 7) as u8 | (signs >> i & 1) << 3;
    }
}

/// Decodes elements from the indices of their values and the scale of each `N`.
#[inline(always)]
pub(crate) fn decode<V: Lanes, const N: usize>(
    table: &[f32; 16],
    indices: &[u8; 256],
    out: &mut [f32; 256],
    scale: impl Fn(usize) -> f32,
) {
    let out = out.as_chunks_mut::<N>().0.iter_mut();
    for (b, (indices, out)) in indices.as_chunks::<N>().0.iter().zip(out).enumerate() {
        let scale = V::splat(scale(b));
        for (indices, out) in indices.chunks_exact(V::N).zip(out.chunks_exact_mut(V::N)) {
            (scale * V::look_up(table, indices)).store(out);
        }
    }
}
