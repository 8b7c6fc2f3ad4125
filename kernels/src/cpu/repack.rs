//! Repacking: sixteen rows of quantized blocks, in file order or interleaved.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

use super::arena::Arena;
use super::huge_pages::Lines;
use super::weight::Weight;
use super::{Cpu, parts};
use crate::simd::packed::{Packed, ROWS, WordBytes, array};
use crate::simd::{Kernel, Simd};
use crate::types::common::block::blocks_mut;
use crate::types::common::unpack::{Blocks, InRows, Unpack};

/// Division of a block into words and loose bytes, which come before or after them.
#[derive(Clone, Copy)]
pub(crate) struct Geometry {
    /// Bytes of a block.
    bytes: usize,
    /// Bytes before the first word.
    lead: usize,
    /// Line of each word among those of its block, in the order of the words in the block.
    lines: &'static [u8; MAX_WORDS],
    /// `None` if panels store blocks as files do.
    forms: Option<Forms>,
}

/// Conversions of blocks between the forms of files and of panels.
#[derive(Clone, Copy)]
struct Forms {
    to_panel: fn(&mut [u8]),
    to_file: fn(&mut [u8]),
}

impl Forms {
    const fn of<T: Unpack>() -> Option<Forms> {
        if !T::IS_ARRANGED {
            return None;
        }
        Some(Forms {
            to_panel: |bytes| blocks_mut::<T>(bytes).iter_mut().for_each(T::arrange),
            to_file: |bytes| blocks_mut::<T>(bytes).iter_mut().for_each(T::restore),
        })
    }
}

/// Maximum number of words in a block.
const MAX_WORDS: usize = 64;

/// Maximum number of bytes in a block.
const MAX_BYTES: usize = 4 * MAX_WORDS;

/// Returns the line of each word.
const fn lines_of_words<T: Unpack>() -> [u8; MAX_WORDS] {
    let mut lines = [0; MAX_WORDS];
    let mut line = 0;
    let mut part = 0;
    while part < T::READ_ORDER.len() {
        let (offset, len) = T::READ_ORDER[part];
        let mut word = (offset - T::LEAD) / 4;
        while word < (offset - T::LEAD + len) / 4 {
            lines[word] = line;
            (word, line) = (word + 1, line + 1);
        }
        part += 1;
    }
    while (line as usize) < MAX_WORDS {
        // Without an order, lines are those of the words.
        lines[line as usize] = line;
        line += 1;
    }
    lines
}

impl Geometry {
    pub(crate) const fn of<T: Unpack>() -> Geometry {
        let geometry = Geometry {
            bytes: size_of::<T>(),
            lead: T::LEAD,
            lines: const { &lines_of_words::<T>() },
            forms: Forms::of::<T>(),
        };
        assert!(geometry.n_words() <= MAX_WORDS, "a line for each word");
        assert!(geometry.bytes <= MAX_BYTES, "room for a block");
        assert!(
            geometry.lead == 0 || geometry.tail() == 0,
            "loose bytes on one side"
        );
        assert!(
            geometry.n_loose() <= 2,
            "a line holds the loose bytes of whole blocks"
        );
        geometry
    }

    #[inline(always)]
    const fn n_words(self) -> usize {
        (self.bytes - self.lead) / 4
    }

    /// Returns the line of a word among those of its block.
    #[inline(always)]
    const fn line_of_word(self, word: usize) -> usize {
        self.lines[word] as usize
    }

    /// Bytes after the last word.
    #[inline(always)]
    const fn tail(self) -> usize {
        (self.bytes - self.lead) % 4
    }

    /// Bytes that are in no word.
    #[inline(always)]
    const fn n_loose(self) -> usize {
        self.lead + self.tail()
    }

    /// Offset of the loose bytes.
    #[inline(always)]
    const fn loose_at(self) -> usize {
        if self.lead > 0 {
            0
        } else {
            self.bytes - self.tail()
        }
    }

    /// Blocks whose loose bytes share a cache line, which precedes their words.
    #[inline(always)]
    const fn blocks_per_line(self) -> usize {
        match self.n_loose() {
            0 => 1,
            n => size_of::<Line>() / (n * ROWS),
        }
    }

    /// Cache lines of loose bytes before the words of `blocks_per_line` blocks: 0 or 1.
    #[inline(always)]
    const fn loose_lines(self) -> usize {
        (self.n_loose() > 0) as usize
    }

    /// Returns the maximum number of cache lines of a block.
    pub(crate) const fn max_lines(self) -> usize {
        self.loose_lines() + self.n_words()
    }

    /// Cache lines before block `i` of a panel. For `i` inside a group of blocks that share a line of loose
    /// bytes, that line is counted.
    #[inline(always)]
    const fn line(self, i: usize) -> usize {
        i.div_ceil(self.blocks_per_line()) * self.loose_lines() + i * self.n_words()
    }

    /// Returns the place of block `i` in a panel: the line and the offset in it of its loose bytes, and the
    /// line of its first word.
    #[inline(always)]
    const fn place(self, i: usize) -> (usize, usize, usize) {
        let in_line = i % self.blocks_per_line();
        let line = self.line(i - in_line);
        let words = line + self.loose_lines() + in_line * self.n_words();
        (line, in_line * self.n_loose() * ROWS, words)
    }
}

/// Interleaved blocks: the word of all rows that is read first, then that which is read second, and so on.
pub(crate) struct Interleaved<'a, T> {
    /// Bytes that are in no word, row by row.
    loose: &'a [u8],
    words: &'a [Line],
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

impl<T: Unpack> Interleaved<'_, T> {
    /// Returns the same block with a known number of words, so that loads need no checks of bounds. The compiler moves
    /// products past checks, but not the loads of their activations, which then occupy registers.
    #[inline(always)]
    pub(crate) fn of_known_length(self) -> Self {
        Interleaved {
            words: &self.words[..const { Geometry::of::<T>() }.n_words()],
            ..self
        }
    }

    /// Returns the address of the line `n` after that of the first word, which may be of a later panel.
    #[inline(always)]
    pub(crate) fn address(self, n: usize) -> *const Line {
        self.words.as_ptr().wrapping_add(n)
    }

    /// Returns the line of the word at `at`.
    #[inline(always)]
    fn line(at: usize) -> usize {
        debug_assert!((at - T::LEAD).is_multiple_of(4), "an offset of a word");
        let word = (at - T::LEAD) / 4;
        match const { T::READ_ORDER.is_empty() } {
            // No lookup in a loop over groups.
            true => word,
            false => const { Geometry::of::<T>() }.line_of_word(word),
        }
    }
}

impl<T: Unpack> Blocks for Interleaved<'_, T> {
    #[inline(always)]
    fn words<W: Packed>(self, simd: W, at: usize) -> [W::Words; 4] {
        // One lookup: orders do not separate the words of sixteen bytes.
        let first = Self::line(at);
        // Changes nothing, but is known to be in bounds.
        let first = first.min(const { Geometry::of::<T>() }.n_words() - 4);
        // One bounds check for all four words.
        let words = &self.words[..first + 4];
        array(|i| {
            debug_assert_eq!(Self::line(at + 4 * i), first + i);
            simd.load_words(&words[first + i].0)
        })
    }

    #[inline(always)]
    fn word<W: Packed>(self, simd: W, at: usize) -> W::Words {
        simd.load_words(&self.words[Self::line(at)].0)
    }

    #[inline(always)]
    fn halves<W: Packed>(self, simd: W, at: usize) -> W::Floats {
        let geometry = const { Geometry::of::<T>() };
        if geometry.n_loose() > 0 && at == geometry.loose_at() {
            let halves = self.loose.as_chunks().0.first_chunk();
            return simd.load_halves(halves.expect("one half-precision number of each row"));
        }
        match (at - T::LEAD) % 4 {
            0 => simd.halves_to_floats(self.word(simd, at)),
            _ => simd.halves_to_floats(simd.shift_right::<16>(self.word(simd, at - 2))),
        }
    }

    #[inline(always)]
    fn bytes(self, at: usize) -> [u8; ROWS] {
        array(|row| self.loose[row * T::LEAD + at])
    }
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) WordBytes);

impl Line {
    pub(crate) const ZERO: Line = Line([0; 4 * ROWS]);
}

/// Bytes repacked before their source is released: work for all threads, but little compared to a model.
const SLAB: usize = 4 << 20;

/// A repacked weight: panels of sixteen interleaved rows. As large as in the file, but read without
/// transposition and as one ascending stream, which the prefetchers of all CPUs follow.
///
/// A panel is a sequence of blocks, each with its words. If bytes are left over, a cache line in front of
/// every few blocks stores theirs. In the last panel the last row is repeated. Blocks of some types are stored
/// in the form of [`Unpack::arrange`].
pub(crate) struct Panels {
    /// All written.
    lines: Lines,
    geometry: Geometry,
    /// Blocks per row.
    n_block: usize,
}

impl Panels {
    /// Repacks a weight, some panels at a time. The source of each slab is released at once, so that no
    /// large part of the weight is in memory twice.
    pub(crate) fn new(cpu: &Cpu, w: &Weight, geometry: Geometry) -> Panels {
        let n_block = w.row(0).len() / geometry.bytes;
        let panel_len = geometry.line(n_block);
        let n_panel = w.n_rows.div_ceil(ROWS);
        let mut lines = cpu.huge_pages.take(n_panel * panel_len);
        for slab in parts(n_panel, (SLAB / size_of::<Line>()).div_ceil(panel_len)) {
            let n_line = slab.len() * panel_len;
            let room = &mut lines.uninit()[slab.start * panel_len..][..n_line];
            let tasks = room.chunks_exact_mut(panel_len).enumerate();
            let work = 16 * n_line * size_of::<Line>();
            cpu.run(work, tasks, |(panel, room)| Pack {
                w,
                geometry,
                first: (slab.start + panel) * ROWS,
                lines: zeroed(room),
            });
            w.release_pages(slab.start * ROWS..w.n_rows.min(slab.end * ROWS));
        }
        // Each task has written its part.
        Panels {
            lines,
            geometry,
            n_block,
        }
    }

    fn lines(&self) -> &[Line] {
        // SAFETY: `new` has written all of them.
        unsafe { self.lines.get() }
    }

    /// Cache lines per panel.
    const fn panel_len(&self) -> usize {
        self.geometry.line(self.n_block)
    }

    /// Addresses of the panels from row `first` on.
    pub(crate) fn addresses(&self, first: usize) -> Range<usize> {
        let lines = self.lines().as_ptr_range();
        let start = lines.start.addr() + first / ROWS * self.panel_len() * size_of::<Line>();
        start..lines.end.addr()
    }

    /// Returns the bytes of one row in file order.
    pub(crate) fn row<'a>(&self, arena: &'a Arena, row: usize) -> &'a [u8] {
        let geometry = self.geometry;
        let row_in_panel = row % ROWS;
        let first = row - row_in_panel;
        let panel = self.panel(first, first);
        let row = arena.filled(0, self.n_block * geometry.bytes);
        for (i, block) in row.chunks_exact_mut(geometry.bytes).enumerate() {
            let (loose, words) = panel.parts(geometry, i);
            let (leading, rest) = block.split_at_mut(geometry.lead);
            let (fours, trailing) = rest.as_chunks_mut::<4>();
            let loose = &loose[row_in_panel * geometry.n_loose()..][..geometry.n_loose()];
            let (lead, tail) = loose.split_at(geometry.lead);
            leading.copy_from_slice(lead);
            trailing.copy_from_slice(tail);
            for (i, word) in fours.iter_mut().enumerate() {
                *word = words[geometry.line_of_word(i)].0.as_chunks().0[row_in_panel];
            }
        }
        if let Some(forms) = geometry.forms {
            (forms.to_file)(row);
        }
        row
    }

    /// Returns the panel that starts at row `first`. `next` is the first row of the panel that is read
    /// after it. Both are multiples of sixteen.
    pub(crate) fn panel(&self, first: usize, next: usize) -> Panel<'_> {
        let len = self.panel_len();
        let next = next / ROWS * len;
        Panel {
            lines: &self.lines()[first / ROWS * len..][..len],
            next: self.lines().get(next..next + len).unwrap_or_default(),
        }
    }
}

/// One panel.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    lines: &'a [Line],
    /// The panel that is read next.
    next: &'a [Line],
}

impl<'a> Panel<'a> {
    /// Address of the first line.
    pub(crate) fn start(self) -> *const Line {
        self.lines.as_ptr()
    }

    /// Cache lines.
    pub(crate) fn len(self) -> usize {
        self.lines.len()
    }

    /// Returns the loose bytes of one block of each row, and the words from its first to the last of the panel. With a
    /// known length there would be no bounds checks, and the compiler would collect the prefetches of loads.
    #[inline(always)]
    fn parts(self, geometry: Geometry, i: usize) -> (&'a [u8], &'a [Line]) {
        let (line, at, words) = geometry.place(i);
        let loose = &self.lines[line..line + geometry.loose_lines()];
        (
            &bytes(loose)[at..at + geometry.n_loose() * ROWS],
            &self.lines[words..],
        )
    }

    /// Returns one block of each row.
    #[inline(always)]
    pub(crate) fn block<T: Unpack>(self, i: usize) -> Interleaved<'a, T> {
        let (loose, words) = self.parts(const { Geometry::of::<T>() }, i);
        Interleaved {
            loose,
            words,
            of: PhantomData,
        }
    }

    /// Returns the lines to prefetch while the given blocks are multiplied: about as many as they have, after
    /// them.
    #[inline(always)]
    pub(crate) fn ahead<T: Unpack>(self, blocks: Range<usize>) -> &'a [u8] {
        let geometry = const { Geometry::of::<T>() };
        let end = geometry.line(blocks.end);
        let rest = match &self.lines[end.min(self.lines.len())..] {
            [] => self.next,
            rest => rest,
        };
        bytes(&rest[..rest.len().min(end - geometry.line(blocks.start))])
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

/// Writes zeros.
fn zeroed(room: &mut [MaybeUninit<Line>]) -> &mut [Line] {
    for line in &mut *room {
        line.write(Line::ZERO);
    }
    // SAFETY: the lines have just been written, and the exclusive borrow passes on.
    unsafe { slice::from_raw_parts_mut(room.as_mut_ptr().cast(), room.len()) }
}

/// The panels of a weight for one task: those of a repacked weight, or `P` copies of rows in file order.
pub(crate) enum PanelReader<'a, const P: usize> {
    Repacked(&'a Panels),
    FileOrder {
        w: &'a Weight,
        geometry: Geometry,
        copies: [&'a mut [Line]; P],
    },
}

impl<'a, const P: usize> PanelReader<'a, P> {
    pub(crate) fn new(w: &'a Weight, geometry: Geometry, arena: &'a Arena) -> PanelReader<'a, P> {
        match w.panels() {
            Some(panels) => PanelReader::Repacked(panels),
            None => {
                let panel_len = geometry.line(w.row(0).len() / geometry.bytes);
                PanelReader::FileOrder {
                    w,
                    geometry,
                    copies: std::array::from_fn(|_| arena.filled(Line::ZERO, panel_len)),
                }
            }
        }
    }

    /// Returns the panels that start at the given rows, multiples of sixteen. The panels `ahead` rows after them are
    /// read next.
    pub(crate) fn panels<S: Simd>(
        &mut self,
        simd: S,
        first: [usize; P],
        ahead: usize,
    ) -> [Panel<'_>; P] {
        match self {
            PanelReader::Repacked(panels) => first.map(|first| panels.panel(first, first + ahead)),
            PanelReader::FileOrder {
                w,
                geometry,
                copies,
            } => {
                for (lines, first) in copies.iter_mut().zip(first) {
                    simd.run(Pack {
                        w,
                        geometry: *geometry,
                        first,
                        lines,
                    });
                }
                copies.each_ref().map(|lines| Panel { lines, next: &[] })
            }
        }
    }
}

/// Repacks sixteen rows into one panel; missing rows repeat the last one.
struct Pack<'a> {
    w: &'a Weight,
    geometry: Geometry,
    first: usize,
    lines: &'a mut [Line],
}

impl Kernel for Pack<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let geometry = self.geometry;
        let last = self.w.n_rows - 1;
        let rows: [_; ROWS] = array(|row| self.w.row((self.first + row).min(last)));
        let next: [_; ROWS] = array(|row| self.w.row((self.first + ROWS + row).min(last)));
        let mut copies = [0; ROWS * MAX_BYTES];
        let copies = &mut copies[..ROWS * geometry.bytes];
        for i in 0..rows[0].len() / geometry.bytes {
            let block = i * geometry.bytes..(i + 1) * geometry.bytes;
            // Rows are too short for the hardware prefetcher to predict the next ones.
            next.iter()
                .for_each(|row| simd.prefetch(&row[block.clone()]));
            let (line, at, words) = geometry.place(i);
            if let Some(forms) = geometry.forms {
                for (copy, row) in copies.chunks_exact_mut(geometry.bytes).zip(&rows) {
                    copy.copy_from_slice(&row[block.clone()]);
                }
                (forms.to_panel)(copies);
            }
            let blocks: InRows<[u8]> = InRows(array(|row| match geometry.forms {
                Some(_) => &copies[row * geometry.bytes..][..geometry.bytes],
                None => &rows[row][block.clone()],
            }));
            let n_word = geometry.n_words();
            let word_lines = &mut self.lines[words..words + n_word];
            for first in (0..n_word / 4 * 4).step_by(4) {
                let words = blocks.words(simd, geometry.lead + 4 * first);
                for (i, words) in words.into_iter().enumerate() {
                    let line = &mut word_lines[geometry.line_of_word(first + i)];
                    simd.store_words(words, &mut line.0);
                }
            }
            for i in n_word / 4 * 4..n_word {
                let word = blocks.word(simd, geometry.lead + 4 * i);
                simd.store_words(word, &mut word_lines[geometry.line_of_word(i)].0);
            }
            let n_loose = geometry.n_loose();
            let loose = bytes_mut(&mut self.lines[line..line + geometry.loose_lines()]);
            for (row, block) in blocks.0.iter().enumerate() {
                loose[at + row * n_loose..][..n_loose]
                    .copy_from_slice(&block[geometry.loose_at()..][..n_loose]);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    use schemas::gguf::DType;

    use super::*;
    use crate::ops::matmul::cpu_quants::QuantKernels;
    use crate::simd::portable::Portable;
    use crate::types::common::unpack::{Group, HalfTile, MAX_TILES, TileScales};
    use crate::types::{Products, TYPES};

    /// Records the lines of words that are read.
    #[derive(Clone, Copy)]
    struct Recorder<'a> {
        geometry: Geometry,
        lines: &'a RefCell<Vec<usize>>,
    }

    impl Blocks for Recorder<'_> {
        fn words<W: Packed>(self, simd: W, at: usize) -> [W::Words; 4] {
            array(|i| self.word(simd, at + 4 * i))
        }

        fn word<W: Packed>(self, simd: W, at: usize) -> W::Words {
            let line = self.geometry.line_of_word((at - self.geometry.lead) / 4);
            let mut lines = self.lines.borrow_mut();
            if !lines.contains(&line) {
                lines.push(line);
            }
            simd.splat_word(0)
        }

        fn halves<W: Packed>(self, simd: W, at: usize) -> W::Floats {
            if self.geometry.n_loose() == 0 || at != self.geometry.loose_at() {
                self.word(simd, at - (at - self.geometry.lead) % 4);
            }
            simd.splat_floats(0.0)
        }

        fn bytes(self, _: usize) -> [u8; ROWS] {
            [0; ROWS]
        }
    }

    /// Unpacks a block and returns its lines in the order in which they are read first.
    pub(crate) fn lines_as_read<T: Unpack>() -> Vec<usize> {
        let lines = RefCell::new(Vec::new());
        let block = Recorder {
            geometry: Geometry::of::<T>(),
            lines: &lines,
        };
        let simd = Portable;
        T::scales(simd, block, &mut [TileScales::ZERO; MAX_TILES][..T::TILES]);
        let n_tile = <T::Group<Portable> as Group<HalfTile<Portable>>>::TILES;
        for group in 0..T::TILES / n_tile {
            T::quants::<_, 0>(simd, block, group);
            T::quants::<_, 1>(simd, block, group);
        }
        lines.into_inner()
    }

    /// Types whose lookups of grid points take longer than reading.
    const IN_ANY_ORDER: [DType; 4] = [DType::IQ1_M, DType::IQ2_XXS, DType::IQ2_S, DType::IQ3_S];

    #[test]
    fn panels_are_read_in_ascending_order() {
        let types = TYPES.iter().filter(|t| !IN_ANY_ORDER.contains(&t.dtype));
        for element_type in types {
            if let Some(Products::Quants(QuantKernels { lines_as_read, .. })) =
                &element_type.products
            {
                let lines = lines_as_read();
                assert!(lines.is_sorted(), "{}: {lines:?}", element_type.dtype);
            }
        }
    }
}
