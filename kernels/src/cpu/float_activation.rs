//! Float activations, the right-hand side of products with float weights.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

use bumpalo::collections::Vec;

use super::arena::Arena;
use super::{Cpu, parts};
use crate::simd::{AlignedElements, Kernel, LANES, LINE, Simd};

/// 32 consecutive elements of a row.
pub(crate) type Chunk = [f32; LANES];

/// Registers of sums that products keep. The other four of sixteen hold weights.
const SUMS: usize = 12;

/// Weight rows that a tile of activations is multiplied by at a time.
pub(crate) const TILE_ROWS: usize = 4;

/// Weight rows that are decoded together and multiplied by a block.
pub(crate) const PART_ROWS: usize = 16;

/// Chunks of a part, for each register of a chunk: one register of [`PART_ROWS`] weight rows fills half of an L1 cache of
/// 32 KB.
const PART: usize = 8;

/// Bytes of the rows of a block and of their sums.
const BLOCK_BYTES: usize = 1 << 20;

/// Fewest rows of a block: each block decodes the weights again.
const MIN_BLOCK: usize = 48;

/// Fewest activation rows of a full tile for which weights are converted again for every tile.
const WIDE_TILE: usize = 6;

/// Most activation rows for which weights are converted again for every tile.
const MAX_TILED: usize = 32;

/// The order of products with a float weight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Row by row of the weight. The activations are not arranged.
    Rows,
    /// The same, but the registers hold half of the sums at a time, so that each row is read twice.
    RowsInTwoTurns,
    /// [`TILE_ROWS`] weight rows at a time, converted in registers for every tile of activations.
    Tiles,
    /// [`PART_ROWS`] weight rows at a time, decoded to memory part by part.
    Parts,
}

impl Order {
    /// Returns whether converting a weight for every tile takes less time than decoding it to memory once.
    pub(crate) const fn has_tiles<S: Simd>() -> bool {
        S::COLUMNS >= WIDE_TILE
    }

    /// Returns the order for `n` activation rows.
    pub(crate) const fn of<S: Simd>(n: usize) -> Order {
        match (n * S::REGISTERS).div_ceil(SUMS) {
            ..=1 => Order::Rows,
            2 if !Order::has_tiles::<S>() => Order::RowsInTwoTurns,
            _ if Order::has_tiles::<S>() && n <= MAX_TILED => Order::Tiles,
            _ => Order::Parts,
        }
    }
}

/// Sizes of the arrangement of rows.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// Chunks per row.
    pub(crate) n_chunk: usize,
    /// Chunks of each row in a part.
    pub(crate) part: usize,
    /// Rows per block.
    pub(crate) block: usize,
    /// Rows per tile.
    pub(crate) tile: usize,
    /// Registers per chunk.
    registers: usize,
}

impl Sizes {
    /// Returns the sizes for `n` rows, if they are arranged.
    fn of<S: Simd>(n: usize, n_chunk: usize) -> Option<Sizes> {
        let (part, block) = match Order::of::<S>(n) {
            Order::Rows | Order::RowsInTwoTurns => return None,
            Order::Tiles => (n_chunk, n),
            Order::Parts => {
                let block = BLOCK_BYTES / size_of::<Chunk>() / (n_chunk + PART_ROWS);
                (PART * S::REGISTERS, block.max(MIN_BLOCK))
            }
        };
        // Tiles are of about equal size.
        let tile = n.div_ceil(n.div_ceil(S::COLUMNS));
        Some(Sizes {
            n_chunk,
            part: n_chunk.min(part),
            block: block.next_multiple_of(tile),
            tile,
            registers: S::REGISTERS,
        })
    }
}

/// Float activation rows.
#[derive(Clone, Copy)]
pub(crate) struct FloatActivations<'a> {
    /// `(n, n_chunk)`
    rows: &'a [Chunk],
    n_chunk: usize,
    /// The rows again, arranged for products, unless there are few: blocks of rows, each divided into parts of columns. In
    /// a part the order is: registers, tiles of rows, chunks, rows of a tile.
    arranged: &'a [f32],
    sizes: Option<Sizes>,
}

impl<'a> FloatActivations<'a> {
    /// Arranges rows of `n_cols` elements, `(n, n_cols)`.
    pub(crate) fn new(
        cpu: &Cpu,
        arena: &'a Arena,
        x: &'a [f32],
        n_cols: usize,
    ) -> FloatActivations<'a> {
        let rows = whole_chunks(arena, x, n_cols);
        FloatActivations::of_chunks(cpu, arena, rows, n_cols.div_ceil(LANES))
    }

    /// Copies the given rows, in that order.
    pub(crate) fn gather<'b>(
        &self,
        cpu: &Cpu,
        arena: &'b Arena,
        rows: &[usize],
    ) -> FloatActivations<'b> {
        let gathered = arena.filled([0.0; LANES], rows.len() * self.n_chunk);
        for (gathered, &row) in gathered.chunks_exact_mut(self.n_chunk).zip(rows) {
            gathered.copy_from_slice(self.row(row));
        }
        FloatActivations::of_chunks(cpu, arena, gathered, self.n_chunk)
    }

    fn of_chunks(
        cpu: &Cpu,
        arena: &'a Arena,
        rows: &'a [Chunk],
        n_chunk: usize,
    ) -> FloatActivations<'a> {
        let sizes = sizes(cpu, rows.len() / n_chunk, n_chunk);
        FloatActivations {
            rows,
            n_chunk,
            arranged: sizes.map_or(&[], |sizes| arrange(cpu, arena, rows, sizes)),
            sizes,
        }
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len() / self.n_chunk
    }

    /// A row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [Chunk] {
        &self.rows[row * self.n_chunk..][..self.n_chunk]
    }

    /// Sizes of the arrangement, if the rows are arranged.
    pub(crate) fn sizes(&self) -> Option<Sizes> {
        self.sizes
    }

    /// One register of some chunks of a block, tile by tile.
    #[inline(always)]
    pub(crate) fn registers<S: Simd>(
        &self,
        simd: S,
        block: Range<usize>,
        chunks: Range<usize>,
        register: usize,
    ) -> &'a [S::Vector] {
        let start = block.start * self.n_chunk + block.len() * chunks.start;
        let len = block.len() * chunks.len();
        let part = &self.arranged[start * LANES..][..len * LANES];
        simd.registers(&part[register * part.len() / S::REGISTERS..][..part.len() / S::REGISTERS])
    }
}

/// Returns the sizes for rows on this CPU.
fn sizes(cpu: &Cpu, n: usize, n_chunk: usize) -> Option<Sizes> {
    struct Find<'a> {
        n: usize,
        n_chunk: usize,
        sizes: &'a mut Option<Sizes>,
    }
    impl Kernel for Find<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, _: S) {
            *self.sizes = Sizes::of::<S>(self.n, self.n_chunk);
        }
    }
    let mut sizes = None;
    cpu.implementation.run_operation(Find {
        n,
        n_chunk,
        sizes: &mut sizes,
    });
    sizes
}

/// Approximate cost of arranging an element, in multiply-adds.
const ARRANGE_WORK: usize = 4;

/// Returns the arranged rows.
fn arrange<'a>(cpu: &Cpu, arena: &'a Arena, rows: &[Chunk], sizes: Sizes) -> &'a [f32] {
    let lines = arena.room::<AlignedElements>(rows.len() * (size_of::<Chunk>() / LINE));
    let (start, len) = (lines.as_mut_ptr(), rows.len() * LANES);
    // SAFETY: these elements.
    let mut rest = unsafe { slice::from_raw_parts_mut(start.cast::<MaybeUninit<f32>>(), len) };
    let tasks_arena = Arena::new();
    let mut tasks = Vec::new_in(&tasks_arena);
    for rows in rows.chunks(sizes.block * sizes.n_chunk) {
        for chunks in parts(sizes.n_chunk, sizes.part) {
            let n = rows.len() / sizes.n_chunk * chunks.len() * LANES / sizes.registers;
            for register in 0..sizes.registers {
                tasks.push(Arrange {
                    rows,
                    sizes,
                    chunks: chunks.clone(),
                    register,
                    out: rest.split_off_mut(..n).expect("elements of all rows"),
                });
            }
        }
    }
    cpu.run(ARRANGE_WORK * len, tasks, |task| task);
    // SAFETY: the tasks have written all of them.
    unsafe { slice::from_raw_parts(start.cast(), len) }
}

/// Arranges a register of some chunks of a block.
struct Arrange<'a> {
    rows: &'a [Chunk],
    sizes: Sizes,
    chunks: Range<usize>,
    register: usize,
    /// All are written.
    out: &'a mut [MaybeUninit<f32>],
}

impl Kernel for Arrange<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n_chunk = self.sizes.n_chunk;
        let out = simd.registers_mut(self.out);
        let n = self.rows.len() / n_chunk;
        for tile in parts(n, self.sizes.tile) {
            let out = &mut out[tile.start * self.chunks.len()..tile.end * self.chunks.len()];
            for (column, row) in tile.clone().enumerate() {
                let row = &self.rows[row * n_chunk..][self.chunks.clone()];
                let places = out[column..].iter_mut().step_by(tile.len());
                for (chunk, place) in row.iter().zip(places) {
                    place.write(simd.load(chunk, self.register));
                }
            }
        }
    }
}

/// Returns the rows, padded with zeros to whole chunks.
fn whole_chunks<'a>(arena: &'a Arena, x: &'a [f32], n_cols: usize) -> &'a [Chunk] {
    if n_cols.is_multiple_of(LANES) {
        return x.as_chunks().0;
    }
    let n_chunk = n_cols.div_ceil(LANES);
    let chunks = arena.filled([0.0; LANES], x.len() / n_cols * n_chunk);
    for (chunks, row) in chunks.chunks_exact_mut(n_chunk).zip(x.chunks_exact(n_cols)) {
        chunks.as_flattened_mut()[..n_cols].copy_from_slice(row);
    }
    chunks
}
