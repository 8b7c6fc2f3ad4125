//! Repacking: sixteen rows of quantized blocks, in file order or interleaved.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

use super::arena::Arena;
use super::simd::{Kernel, Simd};
use super::weight::Weight;
use super::words::{ROWS, WordBytes, Words, array};
use super::{Cpu, parts};

/// Division of a block into leading bytes, words and trailing bytes.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    /// Bytes of a block.
    bytes: usize,
    /// Bytes before the first word.
    lead: usize,
}

impl Geometry {
    pub(super) const fn new(bytes: usize, lead: usize) -> Geometry {
        Geometry { bytes, lead }
    }

    const fn n_words(self) -> usize {
        (self.bytes - self.lead) / 4
    }

    /// Bytes after the last word.
    const fn tail(self) -> usize {
        (self.bytes - self.lead) % 4
    }

    /// Offset of the bytes after the words.
    const fn tail_at(self) -> usize {
        self.bytes - self.tail()
    }

    /// Cache lines for the leading bytes of sixteen rows.
    const fn lead_len(self, n_block: usize) -> usize {
        (n_block * self.lead * ROWS).div_ceil(size_of::<Line>())
    }

    /// Cache lines for the trailing bytes of sixteen rows.
    const fn tail_len(self, n_block: usize) -> usize {
        (n_block * self.tail() * ROWS).div_ceil(size_of::<Line>())
    }
}

/// One block of each of sixteen rows, in any layout.
pub(super) trait Blocks: Copy {
    /// Returns sixteen bytes of each row, starting at `at`, as words.
    fn words<W: Words>(self, simd: W, at: usize) -> [W::Words; 4];
    /// Returns the word at `at` of each row.
    fn word<W: Words>(self, simd: W, at: usize) -> W::Words;
    /// Returns the half-precision number at `at` of each row.
    fn halves<W: Words>(self, simd: W, at: usize) -> W::Rows;
    /// Returns the byte at `at` of each row, one of the leading bytes.
    fn bytes(self, at: usize) -> [u8; ROWS];
}

/// Blocks in file order.
#[derive(Clone, Copy)]
pub(super) struct InRows<'a, const BYTES: usize>(pub(super) [&'a [u8; BYTES]; ROWS]);

impl<const BYTES: usize> Blocks for InRows<'_, BYTES> {
    #[inline(always)]
    fn words<W: Words>(self, simd: W, at: usize) -> [W::Words; 4] {
        simd.interleave(array(|row| {
            let bytes = self.0[row][at..].first_chunk();
            bytes.expect("sixteen bytes of a block")
        }))
    }

    #[inline(always)]
    fn word<W: Words>(self, simd: W, at: usize) -> W::Words {
        let mut bytes = [[0; 4]; ROWS];
        for (bytes, row) in bytes.iter_mut().zip(self.0) {
            bytes.copy_from_slice(&row[at..at + 4]);
        }
        let bytes = bytes.as_flattened().first_chunk();
        simd.load_words(bytes.expect("a word for each row"))
    }

    #[inline(always)]
    fn halves<W: Words>(self, simd: W, at: usize) -> W::Rows {
        let mut halves = [[0; 2]; ROWS];
        for (half, row) in halves.iter_mut().zip(self.0) {
            half.copy_from_slice(&row[at..at + 2]);
        }
        simd.load_halves(&halves)
    }

    #[inline(always)]
    fn bytes(self, at: usize) -> [u8; ROWS] {
        array(|row| self.0[row][at])
    }
}

/// Interleaved blocks: the first word of all rows, then the second word of all rows, and so on.
#[derive(Clone, Copy)]
pub(super) struct SideBySide<'a, const BYTES: usize, const LEAD: usize> {
    /// Leading bytes, row by row.
    lead: &'a [u8],
    words: &'a [Line],
    /// Trailing bytes, row by row.
    tail: &'a [u8],
}

impl<const BYTES: usize, const LEAD: usize> SideBySide<'_, BYTES, LEAD> {
    const GEOMETRY: Geometry = Geometry::new(BYTES, LEAD);
}

impl<const BYTES: usize, const LEAD: usize> Blocks for SideBySide<'_, BYTES, LEAD> {
    #[inline(always)]
    fn words<W: Words>(self, simd: W, at: usize) -> [W::Words; 4] {
        array(|i| self.word(simd, at + 4 * i))
    }

    #[inline(always)]
    fn word<W: Words>(self, simd: W, at: usize) -> W::Words {
        debug_assert!((at - LEAD).is_multiple_of(4), "words are words");
        simd.load_words(&self.words[(at - LEAD) / 4].0)
    }

    #[inline(always)]
    fn halves<W: Words>(self, simd: W, at: usize) -> W::Rows {
        let whole = "the half of each row";
        if at < LEAD {
            assert!(LEAD == 2, "a half is all there is in front of words");
            return simd.load_halves(self.lead.as_chunks().0.first_chunk().expect(whole));
        }
        if at >= Self::GEOMETRY.tail_at() {
            assert!(Self::GEOMETRY.tail() == 2, "a half is all there is behind");
            return simd.load_halves(self.tail.as_chunks().0.first_chunk().expect(whole));
        }
        match (at - LEAD) % 4 {
            0 => simd.halves_to_rows(self.word(simd, at)),
            _ => simd.halves_to_rows(simd.shift_right::<16>(self.word(simd, at - 2))),
        }
    }

    #[inline(always)]
    fn bytes(self, at: usize) -> [u8; ROWS] {
        array(|row| self.lead[row * LEAD + at])
    }
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(WordBytes);

/// Bytes repacked before their source is released: work for all threads, but little compared to a model.
const SLAB: usize = 4 << 20;

/// A repacked weight: panels of sixteen interleaved rows. As large as in the file, but read as one stream
/// and without transposition.
///
/// A panel stores the leading bytes of all blocks, then all words, then the trailing bytes. In the last
/// panel the last row is repeated.
pub(super) struct Panels {
    lines: Vec<Line>,
    geometry: Geometry,
    /// Blocks per row.
    n_block: usize,
}

impl Panels {
    /// Repacks a weight, some panels at a time. The source of each slab is released at once, so that no
    /// large part of the weight is in memory twice.
    pub(super) fn new<const BYTES: usize, const LEAD: usize>(cpu: &Cpu, w: &Weight) -> Panels {
        let geometry = Geometry::new(BYTES, LEAD);
        let n_block = w.row(0).len() / BYTES;
        let mut panels = Panels {
            lines: Vec::new(),
            geometry,
            n_block,
        };
        let panel_len = panels.panel_len();
        let n_panel = w.n_rows.div_ceil(ROWS);
        panels.lines.reserve_exact(n_panel * panel_len);
        for slab in parts(n_panel, (SLAB / size_of::<Line>()).div_ceil(panel_len)) {
            let n_line = slab.len() * panel_len;
            let room = &mut panels.lines.spare_capacity_mut()[..n_line];
            let tasks = room.chunks_exact_mut(panel_len).enumerate();
            let work = 16 * n_line * size_of::<Line>();
            cpu.run(work, tasks, |(panel, room)| Pack::<BYTES, LEAD> {
                w,
                first: (slab.start + panel) * ROWS,
                room,
            });
            // SAFETY: each task has written its part.
            unsafe { panels.lines.set_len(slab.end * panel_len) };
            w.let_go(slab.start * ROWS..w.n_rows.min(slab.end * ROWS));
        }
        panels
    }

    /// Cache lines per panel.
    const fn panel_len(&self) -> usize {
        let n_words = self.n_block * self.geometry.n_words();
        self.geometry.lead_len(self.n_block) + n_words + self.geometry.tail_len(self.n_block)
    }

    /// Returns the bytes of one row in file order.
    pub(super) fn row<'a>(&self, arena: &'a Arena, row: usize) -> &'a [u8] {
        let Geometry { bytes: len, lead } = self.geometry;
        let n_words = self.geometry.n_words();
        let tail_at = self.geometry.tail_at();
        let row_in_panel = row % ROWS;
        let first = row - row_in_panel;
        let panel = self.panel(first, first);
        let row = arena.filled(0, self.n_block * len);
        for (i, block) in row.chunks_exact_mut(len).enumerate() {
            let place = |len: usize| (i * ROWS + row_in_panel) * len..;
            let (front, rest) = block.split_at_mut(lead);
            let (words, behind) = rest.split_at_mut(tail_at - lead);
            front.copy_from_slice(&bytes(panel.lead)[place(lead)][..front.len()]);
            behind.copy_from_slice(&bytes(panel.tail)[place(behind.len())][..behind.len()]);
            let lines = &panel.words[i * n_words..][..n_words];
            for (word, line) in words.as_chunks_mut::<4>().0.iter_mut().zip(lines) {
                *word = line.0.as_chunks().0[row_in_panel];
            }
        }
        row
    }

    /// Returns the panel that starts at row `first`. `next` is the first row of the panel that is read
    /// after it. Both are multiples of sixteen.
    pub(super) fn panel(&self, first: usize, next: usize) -> Panel<'_> {
        let len = self.panel_len();
        let lead_len = self.geometry.lead_len(self.n_block);
        let n_words = self.n_block * self.geometry.n_words();
        let (lead, rest) = self.lines[first / ROWS * len..][..len].split_at(lead_len);
        let (words, tail) = rest.split_at(n_words);
        let next = next / ROWS * len + lead_len;
        Panel {
            lead,
            words,
            tail,
            next: self.lines.get(next..next + n_words).unwrap_or_default(),
        }
    }
}

/// One panel.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    lead: &'a [Line],
    words: &'a [Line],
    tail: &'a [Line],
    /// Words of the panel that is read next.
    next: &'a [Line],
}

impl<'a> Panel<'a> {
    /// Returns one block of each row.
    #[inline(always)]
    pub(super) fn block<const BYTES: usize, const LEAD: usize>(
        self,
        i: usize,
    ) -> SideBySide<'a, BYTES, LEAD> {
        let geometry = Geometry::new(BYTES, LEAD);
        let (lead, tail) = (geometry.lead * ROWS, geometry.tail() * ROWS);
        SideBySide {
            lead: &bytes(self.lead)[i * lead..][..lead],
            words: &self.words[i * geometry.n_words()..][..geometry.n_words()],
            tail: &bytes(self.tail)[i * tail..][..tail],
        }
    }

    /// Returns the words to prefetch: as many as the given blocks have, after them.
    #[inline(always)]
    pub(super) fn ahead<const BYTES: usize, const LEAD: usize>(
        self,
        blocks: Range<usize>,
    ) -> &'a [u8] {
        let n_words = Geometry::new(BYTES, LEAD).n_words();
        let rest = match &self.words[blocks.end * n_words..] {
            [] => self.next,
            rest => rest,
        };
        bytes(&rest[..rest.len().min(blocks.len() * n_words)])
    }
}

#[inline(always)]
fn bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: lines are bytes without padding.
    unsafe { slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

#[inline(always)]
fn bytes_mut(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: as above, and the exclusive borrow passes on.
    unsafe { slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

/// Returns the blocks of sixteen rows, starting at `first`; missing rows repeat the last one.
#[inline(always)]
pub(super) fn sixteen_rows<const BYTES: usize>(w: &Weight, first: usize) -> [&[[u8; BYTES]]; ROWS] {
    let last = w.n_rows - 1;
    array(|row| w.row((first + row).min(last)).as_chunks().0)
}

/// Repacks sixteen rows into one panel.
struct Pack<'a, const BYTES: usize, const LEAD: usize> {
    w: &'a Weight,
    first: usize,
    room: &'a mut [MaybeUninit<Line>],
}

impl<const BYTES: usize, const LEAD: usize> Kernel for Pack<'_, BYTES, LEAD> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let geometry = Geometry::new(BYTES, LEAD);
        let rows = sixteen_rows::<BYTES>(self.w, self.first);
        let next = sixteen_rows::<BYTES>(self.w, self.first + ROWS);
        let n_block = rows[0].len();
        for line in &mut *self.room {
            line.write(Line([0; 64]));
        }
        // SAFETY: the lines have just been written, and the exclusive borrow passes on.
        let lines =
            unsafe { slice::from_raw_parts_mut(self.room.as_mut_ptr().cast(), self.room.len()) };
        let (lead, rest) = lines.split_at_mut(geometry.lead_len(n_block));
        let (words, tail) = rest.split_at_mut(n_block * geometry.n_words());
        let (lead, tail) = (bytes_mut(lead), bytes_mut(tail));
        for (i, words) in words.chunks_exact_mut(geometry.n_words()).enumerate() {
            // Rows are too short for the hardware prefetcher to predict the next ones.
            next.iter().for_each(|row| simd.prefetch(&row[i]));
            let blocks = InRows::<BYTES>(array(|row| &rows[row][i]));
            let (fours, rest) = words.as_chunks_mut::<4>();
            let n_four = fours.len();
            for (k, lines) in fours.iter_mut().enumerate() {
                let words = blocks.words(simd, LEAD + 16 * k);
                for (words, line) in words.into_iter().zip(lines) {
                    simd.store_words(words, &mut line.0);
                }
            }
            for (k, line) in rest.iter_mut().enumerate() {
                let word = blocks.word(simd, LEAD + 16 * n_four + 4 * k);
                simd.store_words(word, &mut line.0);
            }
            for (row, block) in blocks.0.iter().enumerate() {
                let place = |len: usize| (i * ROWS + row) * len..(i * ROWS + row + 1) * len;
                lead[place(LEAD)].copy_from_slice(&block[..LEAD]);
                tail[place(geometry.tail())].copy_from_slice(&block[geometry.tail_at()..]);
            }
        }
    }
}
