//! Where the bytes of sixteen rows lie: one after the other as in a file, or side by side.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

use super::arena::Arena;
use super::simd::{Kernel, Simd};
use super::weight::Weight;
use super::words::{ROWS, WordBytes, Words, array};
use super::{Cpu, parts};

/// Bytes of a block in front of its first word, so that what is unpacked as words are words.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    /// Bytes of a block.
    bytes: usize,
    /// Bytes in front of the first word.
    lead: usize,
}

impl Geometry {
    pub(super) const fn new(bytes: usize, lead: usize) -> Geometry {
        Geometry { bytes, lead }
    }

    const fn n_words(self) -> usize {
        (self.bytes - self.lead) / 4
    }

    /// Bytes behind the last word.
    const fn tail(self) -> usize {
        (self.bytes - self.lead) % 4
    }

    /// Where the bytes behind the words begin.
    const fn tail_at(self) -> usize {
        self.bytes - self.tail()
    }

    /// Lines in front of the words of sixteen rows.
    const fn lead_len(self, n_block: usize) -> usize {
        (n_block * self.lead * ROWS).div_ceil(size_of::<Line>())
    }

    /// Lines behind the words of sixteen rows.
    const fn tail_len(self, n_block: usize) -> usize {
        (n_block * self.tail() * ROWS).div_ceil(size_of::<Line>())
    }
}

/// One block of each of sixteen rows.
pub(super) trait Blocks: Copy {
    /// Sixteen bytes of each row, from `at` on, as words.
    fn words<W: Words>(self, simd: W, at: usize) -> [W::Words; 4];
    /// The word at `at` of each row.
    fn word<W: Words>(self, simd: W, at: usize) -> W::Words;
    /// The half-precision number at `at` of each row.
    fn halves<W: Words>(self, simd: W, at: usize) -> W::Rows;
    /// The byte at `at`, in front of the first word, of each row.
    fn bytes(self, at: usize) -> [u8; ROWS];
}

/// Blocks in rows of their own.
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

/// Blocks side by side: each word of all rows, then the next.
#[derive(Clone, Copy)]
pub(super) struct SideBySide<'a, const BYTES: usize, const LEAD: usize> {
    /// What is in front of the words, row by row.
    lead: &'a [u8],
    words: &'a [Line],
    /// What is behind them, row by row.
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

/// Bytes laid out before their origin is let go: enough for all threads, little beside a model.
const SLAB: usize = 4 << 20;

/// A weight whose rows lie side by side, sixteen by sixteen: as large as in the file, but read in one
/// stream and without being transposed.
///
/// A panel is sixteen rows: what is in front of the words of all blocks, then all words, then what is
/// behind them. Rows beyond the last are the last one again.
pub(super) struct Panels {
    lines: Vec<Line>,
    geometry: Geometry,
    /// Blocks of a row.
    n_block: usize,
}

impl Panels {
    /// Rearranges a weight, some panels at a time: what has been laid out is let go at once, so that
    /// no large part of it lies in memory twice.
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
            // SAFETY: each task has written its room.
            unsafe { panels.lines.set_len(slab.end * panel_len) };
            w.let_go(slab.start * ROWS..w.n_rows.min(slab.end * ROWS));
        }
        panels
    }

    /// Lines of a panel.
    const fn panel_len(&self) -> usize {
        let n_words = self.n_block * self.geometry.n_words();
        self.geometry.lead_len(self.n_block) + n_words + self.geometry.tail_len(self.n_block)
    }

    /// The bytes of one row, as in the file.
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

    /// Sixteen rows from `first` on, which is a multiple of sixteen, as is where those begin that are read
    /// behind them.
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

/// Sixteen rows side by side.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    lead: &'a [Line],
    words: &'a [Line],
    tail: &'a [Line],
    /// The words that are read behind these.
    next: &'a [Line],
}

impl<'a> Panel<'a> {
    /// One block of each row.
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

    /// The words behind some blocks, at most as many as theirs: what is needed next.
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
    // SAFETY: lines are bytes without anything between them.
    unsafe { slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

#[inline(always)]
fn bytes_mut(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: as above, and the exclusive borrow passes on.
    unsafe { slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

/// The blocks of sixteen rows from `first` on; beyond the last row of the weight that stands in.
#[inline(always)]
pub(super) fn sixteen_rows<const BYTES: usize>(w: &Weight, first: usize) -> [&[[u8; BYTES]]; ROWS] {
    let last = w.n_rows - 1;
    array(|row| w.row((first + row).min(last)).as_chunks().0)
}

/// Lays sixteen rows side by side.
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
            // Rows are short: the processor does not guess the next ones.
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
