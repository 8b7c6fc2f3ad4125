//! Repacking: sixteen rows of quantized blocks, in file order or interleaved.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

use super::arena::Arena;
use super::weight::Weight;
use super::{Cpu, parts};
use crate::simd::packed::{Packed, ROWS, WordBytes, array};
use crate::simd::{Kernel, Simd};
use crate::types::common::block::{Bytes, blocks};
use crate::types::common::unpack::{Blocks, InRows, Unpack};

/// Division of a block into leading bytes, words and trailing bytes.
#[derive(Clone, Copy)]
pub(crate) struct Geometry {
    /// Bytes of a block.
    bytes: usize,
    /// Bytes before the first word.
    lead: usize,
}

impl Geometry {
    const fn of<T: Unpack>() -> Geometry {
        Geometry {
            bytes: size_of::<T>(),
            lead: T::LEAD,
        }
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

/// Interleaved blocks: the first word of all rows, then the second word of all rows, and so on.
pub(crate) struct Interleaved<'a, T> {
    /// Leading bytes, row by row.
    lead: &'a [u8],
    words: &'a [Line],
    /// Trailing bytes, row by row.
    tail: &'a [u8],
    of: PhantomData<T>,
}

// Derived, these would require them of `T`.
impl<T> Clone for Interleaved<'_, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Interleaved<'_, T> {}

impl<T: Unpack> Blocks for Interleaved<'_, T> {
    #[inline(always)]
    fn words<W: Packed>(self, simd: W, at: usize) -> [W::Words; 4] {
        array(|i| self.word(simd, at + 4 * i))
    }

    #[inline(always)]
    fn word<W: Packed>(self, simd: W, at: usize) -> W::Words {
        debug_assert!((at - T::LEAD).is_multiple_of(4), "an offset of a word");
        simd.load_words(&self.words[(at - T::LEAD) / 4].0)
    }

    #[inline(always)]
    fn halves<W: Packed>(self, simd: W, at: usize) -> W::Floats {
        let whole = "the half of each row";
        let geometry = const { Geometry::of::<T>() };
        if at < T::LEAD {
            assert!(
                T::LEAD == 2,
                "the leading bytes are one half-precision number"
            );
            return simd.load_halves(self.lead.as_chunks().0.first_chunk().expect(whole));
        }
        if at >= geometry.tail_at() {
            assert!(
                geometry.tail() == 2,
                "the trailing bytes are one half-precision number"
            );
            return simd.load_halves(self.tail.as_chunks().0.first_chunk().expect(whole));
        }
        match (at - T::LEAD) % 4 {
            0 => simd.halves_to_floats(self.word(simd, at)),
            _ => simd.halves_to_floats(simd.shift_right::<16>(self.word(simd, at - 2))),
        }
    }

    #[inline(always)]
    fn bytes(self, at: usize) -> [u8; ROWS] {
        array(|row| self.lead[row * T::LEAD + at])
    }
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line(WordBytes);

/// Bytes repacked before their source is released: work for all threads, but little compared to a model.
const SLAB: usize = 4 << 20;

/// A repacked weight: panels of sixteen interleaved rows. As large as in the file, but read as one stream
/// and without transposition.
///
/// A panel stores the leading bytes of all blocks, then all words, then the trailing bytes. In the last
/// panel the last row is repeated.
pub(crate) struct Panels {
    lines: Vec<Line>,
    geometry: Geometry,
    /// Blocks per row.
    n_block: usize,
}

impl Panels {
    /// Repacks a weight, some panels at a time. The source of each slab is released at once, so that no
    /// large part of the weight is in memory twice.
    pub(crate) fn new<T: Unpack>(cpu: &Cpu, w: &Weight) -> Panels {
        let geometry = Geometry::of::<T>();
        let n_block = w.row(0).len() / size_of::<T>();
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
            cpu.run(work, tasks, |(panel, room)| Pack::<T> {
                w,
                first: (slab.start + panel) * ROWS,
                room,
                of: PhantomData,
            });
            // SAFETY: each task has written its part.
            unsafe { panels.lines.set_len(slab.end * panel_len) };
            w.release_pages(slab.start * ROWS..w.n_rows.min(slab.end * ROWS));
        }
        panels
    }

    /// Cache lines per panel.
    const fn panel_len(&self) -> usize {
        let n_words = self.n_block * self.geometry.n_words();
        self.geometry.lead_len(self.n_block) + n_words + self.geometry.tail_len(self.n_block)
    }

    /// Returns the bytes of one row in file order.
    pub(crate) fn row<'a>(&self, arena: &'a Arena, row: usize) -> &'a [u8] {
        let Geometry { bytes: len, lead } = self.geometry;
        let n_words = self.geometry.n_words();
        let tail_at = self.geometry.tail_at();
        let row_in_panel = row % ROWS;
        let first = row - row_in_panel;
        let panel = self.panel(first, first);
        let row = arena.filled(0, self.n_block * len);
        for (i, block) in row.chunks_exact_mut(len).enumerate() {
            let place = |len: usize| (i * ROWS + row_in_panel) * len..;
            let (leading, rest) = block.split_at_mut(lead);
            let (words, trailing) = rest.split_at_mut(tail_at - lead);
            leading.copy_from_slice(&bytes(panel.lead)[place(lead)][..lead]);
            let len = trailing.len();
            trailing.copy_from_slice(&bytes(panel.tail)[place(len)][..len]);
            let lines = &panel.words[i * n_words..][..n_words];
            for (word, line) in words.as_chunks_mut::<4>().0.iter_mut().zip(lines) {
                *word = line.0.as_chunks().0[row_in_panel];
            }
        }
        row
    }

    /// Returns the panel that starts at row `first`. `next` is the first row of the panel that is read
    /// after it. Both are multiples of sixteen.
    pub(crate) fn panel(&self, first: usize, next: usize) -> Panel<'_> {
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
pub(crate) struct Panel<'a> {
    lead: &'a [Line],
    words: &'a [Line],
    tail: &'a [Line],
    /// Words of the panel that is read next.
    next: &'a [Line],
}

impl<'a> Panel<'a> {
    /// Returns one block of each row.
    #[inline(always)]
    pub(crate) fn block<T: Unpack>(self, i: usize) -> Interleaved<'a, T> {
        let geometry = Geometry::of::<T>();
        let (lead, tail) = (geometry.lead * ROWS, geometry.tail() * ROWS);
        Interleaved {
            lead: &bytes(self.lead)[i * lead..][..lead],
            words: &self.words[i * geometry.n_words()..][..geometry.n_words()],
            tail: &bytes(self.tail)[i * tail..][..tail],
            of: PhantomData,
        }
    }

    /// Returns the words to prefetch: as many as the given blocks have, after them.
    #[inline(always)]
    pub(crate) fn ahead<T: Unpack>(self, blocks: Range<usize>) -> &'a [u8] {
        let n_words = Geometry::of::<T>().n_words();
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
pub(crate) fn sixteen_rows<T: Bytes>(w: &Weight, first: usize) -> [&[T]; ROWS] {
    let last = w.n_rows - 1;
    array(|row| blocks(w.row((first + row).min(last))))
}

/// Repacks sixteen rows into one panel.
struct Pack<'a, T> {
    w: &'a Weight,
    first: usize,
    room: &'a mut [MaybeUninit<Line>],
    of: PhantomData<T>,
}

impl<T: Unpack> Kernel for Pack<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let geometry = Geometry::of::<T>();
        let rows = sixteen_rows::<T>(self.w, self.first);
        let next = sixteen_rows::<T>(self.w, self.first + ROWS);
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
            next.iter().for_each(|row| simd.prefetch(row[i].as_bytes()));
            let blocks = InRows(array(|row| &rows[row][i]));
            let (fours, rest) = words.as_chunks_mut::<4>();
            let n_four = fours.len();
            for (k, lines) in fours.iter_mut().enumerate() {
                let words = blocks.words(simd, T::LEAD + 16 * k);
                for (words, line) in words.into_iter().zip(lines) {
                    simd.store_words(words, &mut line.0);
                }
            }
            for (k, line) in rest.iter_mut().enumerate() {
                let word = blocks.word(simd, T::LEAD + 16 * n_four + 4 * k);
                simd.store_words(word, &mut line.0);
            }
            for (row, block) in blocks.0.iter().enumerate() {
                let place = |len: usize| (i * ROWS + row) * len..(i * ROWS + row + 1) * len;
                let block = block.as_bytes();
                lead[place(T::LEAD)].copy_from_slice(&block[..T::LEAD]);
                tail[place(geometry.tail())].copy_from_slice(&block[geometry.tail_at()..]);
            }
        }
    }
}
