//! Products of float weights.
//!
//! Each output element is one [`Simd::dot`], however rows and stretches of columns are split.

use std::array::from_fn;
use std::marker::PhantomData;
use std::ops::Range;

use super::cpu_prefetch::RowPrefetches;
use crate::cpu::arena::Arena;
use crate::cpu::columns::ColumnsMut;
use crate::cpu::float_activation::{Chunk, FloatActivations, Order, PART_ROWS, Sizes, TILE_ROWS};
use crate::cpu::parts;
use crate::cpu::prefetch::Prefetching;
use crate::cpu::weight::Weight;
use crate::simd::dispatch::Implementation;
use crate::simd::packed::{Prefetches, array};
use crate::simd::{Kernel, Simd};

/// Weight rows whose sums are stored together.
const ROWS: usize = 8;

/// Tiles of [`PART_ROWS`].
const TILES: usize = PART_ROWS / TILE_ROWS;

/// Registers of 32 lanes on any instruction set, at most.
const MAX_REGISTERS: usize = 8;

/// A type of floats, 32 of which take `BYTES`.
pub(crate) trait FloatElement<const BYTES: usize> {
    /// Decodes one register of a chunk.
    fn load_register<S: Simd>(simd: S, chunk: &[u8; BYTES], register: usize) -> S::Vector;
}

/// The functions of a type of floats that products need.
pub(crate) struct FloatKernels {
    /// Multiplies activations by some rows of a weight.
    pub(crate) multiply: fn(Implementation, FloatProduct<'_>),
}

impl FloatKernels {
    /// The functions of elements `B`, 32 of which take `BYTES`.
    pub(crate) const fn of<B: FloatElement<BYTES>, const BYTES: usize>() -> FloatKernels {
        FloatKernels {
            multiply: |on, product| {
                on.run_operation(OfElements::<B, BYTES>(product, PhantomData));
            },
        }
    }
}

/// The product of a range of weight rows with all activations.
pub(crate) struct FloatProduct<'a> {
    pub(crate) w: &'a Weight,
    pub(crate) x: FloatActivations<'a>,
    /// First weight row.
    pub(crate) first: usize,
    /// One column per weight row, `(n, rows)`.
    pub(crate) out: ColumnsMut<'a>,
    /// The weight rows that the thread multiplies one after another.
    pub(crate) rows: Range<usize>,
    pub(crate) prefetching: Prefetching,
}

/// [`FloatProduct`] for weights of `B`.
struct OfElements<'a, B, const BYTES: usize>(FloatProduct<'a>, PhantomData<B>);

impl<B: FloatElement<BYTES>, const BYTES: usize> Kernel for OfElements<'_, B, BYTES> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let product = self.0;
        macro_rules! by_rows {
            ($($n:literal),*) => {
                match product.out.n_rows() {
                    $($n if const { matches!(Order::of::<S>($n), Order::Rows) } => {
                        product.in_registers::<S, B, BYTES, $n, 1>(simd)
                    }
                    $n if const { matches!(Order::of::<S>($n), Order::RowsInTwoTurns) } => {
                        product.in_registers::<S, B, BYTES, $n, 2>(simd)
                    })*
                    n if const { Order::has_tiles::<S>() } && Order::of::<S>(n) == Order::Tiles => {
                        product.in_tiles::<S, B, BYTES>(simd)
                    }
                    _ => product.in_parts::<S, B, BYTES>(simd),
                }
            };
        }
        by_rows!(1, 2, 3, 4, 5, 6);
    }
}

/// Evaluates an expression with a constant: the number of activation rows of a tile.
macro_rules! of_columns {
    ($simd:ty, $n:expr, $columns:ident => $body:expr) => {
        of_columns!($simd, $n, $columns => $body, 1, 2, 3, 4, 5, 6)
    };
    ($simd:ty, $n:expr, $columns:ident => $body:expr, $($number:literal),*) => {
        match $n {
            $($number if const { $number <= <$simd>::COLUMNS } => {
                const $columns: usize = $number;
                $body
            })*
            n => unreachable!("{n} rows in a tile"),
        }
    };
}

impl FloatProduct<'_> {
    /// Converts weights in registers, row by row, for `C` activation rows: memory is read in ascending order. If not all
    /// sums fit the registers, each row is read in two turns, the second from the L1 cache.
    #[inline(always)]
    fn in_registers<
        S: Simd,
        B: FloatElement<BYTES>,
        const BYTES: usize,
        const C: usize,
        const TURNS: usize,
    >(
        mut self,
        simd: S,
    ) {
        let x: [&[Chunk]; C] = array(|c| self.x.row(c));
        let mut sums = [[simd.lanes(|_| simd.splat(0.0)); ROWS]; C];
        let w = self.w;
        for rows in parts(self.out.n_cols(), ROWS) {
            let bytes = w.rows(self.first + rows.start..self.first + rows.end);
            for (row, bytes) in bytes.enumerate() {
                let prefetches = self.prefetches(rows.start + row, 1);
                let (chunks, rest) = bytes.as_chunks();
                let mut last = [0; BYTES];
                last[..rest.len()].copy_from_slice(rest);
                let w = (chunks, (!rest.is_empty()).then_some(&last));
                add_row::<S, B, BYTES, C, TURNS, 0>(simd, w, x, row, prefetches, &mut sums);
                if TURNS == 2 {
                    add_row::<S, B, BYTES, C, TURNS, 1>(simd, w, x, row, None, &mut sums);
                }
            }
            for (column, sums) in sums.iter().enumerate() {
                self.store(simd, column, rows.clone(), *sums);
            }
        }
    }

    /// Converts weights in registers, [`TILE_ROWS`] rows at a time, for each tile of activations, which are arranged by
    /// registers of chunks: the sums of a tile stay in registers.
    #[inline(always)]
    fn in_tiles<S: Simd, B: FloatElement<BYTES>, const BYTES: usize>(mut self, simd: S) {
        let x = self.x;
        let Sizes { n_chunk, tile, .. } = x.sizes().expect("as many rows are arranged");
        let n = self.out.n_rows();
        let arena = Arena::new();
        let sums = arena.filled([simd.lanes(|_| simd.splat(0.0)); ROWS], n);
        for rows in parts(self.out.n_cols(), ROWS) {
            for some in parts(rows.len(), TILE_ROWS) {
                let first = rows.start + some.start;
                // Rows that are missing are copies of the last.
                let row = |r: usize| self.w.row(self.first + first + r.min(some.len() - 1));
                let w: [(&[[u8; BYTES]], &[u8]); TILE_ROWS] = array(|r| row(r).as_chunks());
                let mut prefetches = self.prefetches(first, TILE_ROWS);
                for register in 0..S::REGISTERS {
                    let x = x.registers(simd, 0..n, 0..n_chunk, register);
                    for tile in parts(n, tile) {
                        let x = &x[tile.start * n_chunk..tile.end * n_chunk];
                        let sums = &mut sums[tile.clone()];
                        of_columns!(S, tile.len(), C => {
                            let products =
                                multiply_rows::<S, B, BYTES, C>(simd, &w, x, register, prefetches);
                            for (column, sums) in sums.iter_mut().enumerate() {
                                for (row, products) in products.iter().enumerate() {
                                    sums[some.start + row][register] = products[column];
                                }
                            }
                        });
                        prefetches = None;
                    }
                }
            }
            for (column, sums) in sums.iter().enumerate() {
                self.store(simd, column, rows.clone(), *sums);
            }
        }
    }

    /// Multiplies parts of some weight rows by tiles of activations. Both are arranged by registers of chunks, so that the
    /// sums of a tile stay in registers and one register of all weights of a part in the L1 cache.
    #[inline(always)]
    fn in_parts<S: Simd, B: FloatElement<BYTES>, const BYTES: usize>(mut self, simd: S) {
        let x = self.x;
        let sizes = x.sizes().expect("as many rows are arranged");
        let n = self.out.n_rows();
        let arena = Arena::new();
        let zero = simd.splat(0.0);
        let w = arena.filled([zero; TILE_ROWS], TILES * S::REGISTERS * pitch(sizes.part));
        let sums = arena.filled(zero, n.min(sizes.block) * PART_ROWS * S::REGISTERS);
        for block in parts(n, sizes.block) {
            let n_sum = block.len() * PART_ROWS;
            for rows in parts(self.out.n_cols(), PART_ROWS) {
                for chunks in parts(sizes.n_chunk, sizes.part) {
                    let len = chunks.len();
                    self.decode::<S, B, BYTES>(simd, rows.clone(), chunks.clone(), w);
                    for (register, sums) in
                        sums.chunks_exact_mut(n_sum).enumerate().take(S::REGISTERS)
                    {
                        let x = x.registers(simd, block.clone(), chunks.clone(), register);
                        let plane = Plane {
                            w,
                            len,
                            register,
                            is_first: chunks.start == 0,
                        };
                        for tile in parts(block.len(), sizes.tile) {
                            let sums = &mut sums[tile.start * PART_ROWS..tile.end * PART_ROWS];
                            plane.add(simd, &x[tile.start * len..tile.end * len], sums);
                        }
                    }
                }
                for tile in parts(block.len(), sizes.tile) {
                    let sums = &sums[tile.start * PART_ROWS..];
                    let first = block.start + tile.start;
                    of_columns!(S, tile.len(), C => {
                        self.store_tile::<S, C>(simd, first, rows.clone(), sums, n_sum);
                    });
                }
            }
        }
    }

    /// Returns what is prefetched while `n` rows from row `row` of this product on are multiplied.
    #[inline(always)]
    fn prefetches(&self, row: usize, n: usize) -> Option<RowPrefetches> {
        let first = self.first + row;
        let bytes = self.w.row(first);
        RowPrefetches::of_rows(self.prefetching, bytes, (first, n), &self.rows)
    }

    /// Writes the products of some weight rows with a tile of activation rows.
    #[inline(always)]
    fn store_tile<S: Simd, const C: usize>(
        &mut self,
        simd: S,
        first: usize,
        rows: Range<usize>,
        sums: &[S::Vector],
        n_sum: usize,
    ) {
        let planes: [&[[S::Vector; C]; PART_ROWS]; MAX_REGISTERS] = array(|register| {
            let sums = sums[register.min(S::REGISTERS - 1) * n_sum..].as_chunks().0;
            sums.first_chunk().expect("sums of a tile")
        });
        for column in first..first + C {
            for (half, stored) in parts(rows.len(), ROWS).enumerate().take(PART_ROWS / ROWS) {
                let stored = rows.start + stored.start..rows.start + stored.end;
                let lanes = array(|row| {
                    simd.lanes(|register| planes[register][half * ROWS + row][column - first])
                });
                self.store(simd, column, stored, lanes);
            }
        }
    }

    /// Decodes some chunks of up to [`PART_ROWS`] weight rows to planes, one for each register of [`TILE_ROWS`] rows.
    #[inline(always)]
    fn decode<S: Simd, B: FloatElement<BYTES>, const BYTES: usize>(
        &self,
        simd: S,
        rows: Range<usize>,
        chunks: Range<usize>,
        out: &mut [[S::Vector; TILE_ROWS]],
    ) {
        let first = self.first + rows.start;
        let row = |r: usize| self.w.row(r).as_chunks::<BYTES>();
        // Rows that are missing are copies of the last.
        let rows: [(&[[u8; BYTES]], &[u8]); PART_ROWS] =
            array(|r| row(first + r.min(rows.len() - 1)));
        let next: [(&[[u8; BYTES]], &[u8]); PART_ROWS] =
            array(|r| row((first + PART_ROWS + r).min(self.w.n_rows - 1)));
        let n_whole = chunks.end.min(rows[0].0.len()) - chunks.start;
        let mut planes = out.chunks_exact_mut(pitch(chunks.len()));
        let [rows, next] = [&rows, &next].map(|rows| rows.as_chunks::<TILE_ROWS>().0);
        for (rows, next) in rows.iter().zip(next) {
            let whole: [&[[u8; BYTES]]; TILE_ROWS] =
                array(|r| &rows[r].0[chunks.start..][..n_whole]);
            let mut planes: [&mut [[S::Vector; TILE_ROWS]]; MAX_REGISTERS] =
                from_fn(|register| match register < S::REGISTERS {
                    true => &mut planes.next().expect("a plane of each register")[..chunks.len()],
                    false => &mut [],
                });
            let planes = &mut planes[..S::REGISTERS];
            for k in 0..n_whole {
                // Rows are too short and too far apart for the hardware prefetcher.
                for next in next {
                    simd.prefetch(&next.0[chunks.start + k]);
                }
                for (register, plane) in planes.iter_mut().enumerate() {
                    plane[k] = array(|r| B::load_register(simd, &whole[r][k], register));
                }
            }
            if n_whole < chunks.len() {
                let mut last = [[0; BYTES]; TILE_ROWS];
                for (last, (_, rest)) in last.iter_mut().zip(rows) {
                    last[..rest.len()].copy_from_slice(rest);
                }
                for (register, plane) in planes.iter_mut().enumerate() {
                    plane[n_whole] = array(|r| B::load_register(simd, &last[r], register));
                }
            }
        }
    }

    /// Writes the products of some weight rows with an activation row.
    #[inline(always)]
    fn store<S: Simd>(
        &mut self,
        simd: S,
        column: usize,
        rows: Range<usize>,
        lanes: [S::Lanes; ROWS],
    ) {
        let sums = simd.sums(lanes);
        let out = self.out.row(column, rows);
        match out.first_chunk_mut() {
            Some(out) => *out = sums,
            None => out.copy_from_slice(&sums[..out.len()]),
        }
    }
}

/// Computes some registers of the sums of a weight row, whole chunks and the last if it is not whole, and `C` activation
/// rows.
#[inline(always)]
fn add_row<
    S: Simd,
    B: FloatElement<BYTES>,
    const BYTES: usize,
    const C: usize,
    const TURNS: usize,
    const TURN: usize,
>(
    simd: S,
    (chunks, last): (&[[u8; BYTES]], Option<&[u8; BYTES]>),
    x: [&[Chunk]; C],
    row: usize,
    prefetches: Option<RowPrefetches>,
    sums: &mut [[S::Lanes; ROWS]; C],
) {
    let registers = registers_of::<S, TURNS, TURN>();
    let mut acc = [simd.lanes(|_| simd.splat(0.0)); C];
    let mut lines = Prefetches::NONE;
    for (k, w) in chunks.iter().enumerate() {
        if let Some(prefetches) = prefetches {
            prefetches.prefetch::<S, BYTES>(simd, k, &mut lines);
        }
        let w = simd.lanes(|register| B::load_register(simd, w, register));
        add_chunk::<S, C, TURNS, TURN>(simd, w, array(|c| &x[c][k]), &mut acc);
    }
    if let Some(w) = last {
        let w = simd.lanes(|register| B::load_register(simd, w, register));
        add_chunk::<S, C, TURNS, TURN>(simd, w, array(|c| &x[c][chunks.len()]), &mut acc);
    }
    for (acc, sums) in acc.iter().zip(sums) {
        for register in registers.clone() {
            sums[row][register] = acc[register];
        }
    }
}

/// Multiplies one register of each chunk of some weight rows by `C` activation rows, `(n_chunk, C)`.
#[inline(always)]
fn multiply_rows<S: Simd, B: FloatElement<BYTES>, const BYTES: usize, const C: usize>(
    simd: S,
    w: &[(&[[u8; BYTES]], &[u8]); TILE_ROWS],
    x: &[S::Vector],
    register: usize,
    prefetches: Option<RowPrefetches>,
) -> [[S::Vector; C]; TILE_ROWS] {
    let (x, _) = x.as_chunks::<C>();
    let n_whole = w[0].0.len();
    let whole: [&[[u8; BYTES]]; TILE_ROWS] = array(|row| &w[row].0[..n_whole]);
    let mut sums = [[simd.splat(0.0); C]; TILE_ROWS];
    let mut lines = Prefetches::NONE;
    for (k, x) in x[..n_whole].iter().enumerate() {
        for row in 0..TILE_ROWS {
            if let Some(prefetches) = prefetches {
                prefetches.prefetch::<S, BYTES>(simd, TILE_ROWS * k + row, &mut lines);
            }
            let w = B::load_register(simd, &whole[row][k], register);
            for column in 0..C {
                sums[row][column] = simd.mul_add(w, x[column], sums[row][column]);
            }
        }
    }
    if let Some(x) = x.get(n_whole) {
        for row in 0..TILE_ROWS {
            let mut last = [0; BYTES];
            last[..w[row].1.len()].copy_from_slice(w[row].1);
            let w = B::load_register(simd, &last, register);
            for column in 0..C {
                sums[row][column] = simd.mul_add(w, x[column], sums[row][column]);
            }
        }
    }
    sums
}

/// Adds the products of some registers of a chunk of a weight row and of the chunks of `C` activation rows.
#[inline(always)]
fn add_chunk<S: Simd, const C: usize, const TURNS: usize, const TURN: usize>(
    simd: S,
    w: S::Lanes,
    x: [&Chunk; C],
    acc: &mut [S::Lanes; C],
) {
    for (x, acc) in x.iter().zip(acc) {
        for register in registers_of::<S, TURNS, TURN>() {
            acc[register] = simd.mul_add(w[register], simd.load(x, register), acc[register]);
        }
    }
}

/// The registers of one of some turns.
#[inline(always)]
const fn registers_of<S: Simd, const TURNS: usize, const TURN: usize>() -> Range<usize> {
    let len = S::REGISTERS / TURNS;
    TURN * len..(TURN + 1) * len
}

/// Returns the distance of planes of `len` chunks: longer, so that they do not begin at the same place of a cache.
const fn pitch(len: usize) -> usize {
    len + 1
}

/// One register of each of some chunks of [`PART_ROWS`] weight rows.
struct Plane<'a, S: Simd> {
    /// Planes of all registers of [`TILE_ROWS`] rows, then of the next rows.
    w: &'a [[S::Vector; TILE_ROWS]],
    /// Chunks of each row.
    len: usize,
    register: usize,
    /// True for the first chunks of rows, with which sums begin.
    is_first: bool,
}

impl<S: Simd> Plane<'_, S> {
    /// Adds the products with a tile of activations to one register of each sum, `(PART_ROWS, n)` for `n` activation rows.
    #[inline(always)]
    fn add(&self, simd: S, x: &[S::Vector], sums: &mut [S::Vector]) {
        of_columns!(S, x.len() / self.len, C => self.add_columns::<C>(simd, x, sums));
    }

    /// [`Plane::add`] for `C` activation rows.
    #[inline(always)]
    fn add_columns<const C: usize>(&self, simd: S, x: &[S::Vector], sums: &mut [S::Vector]) {
        let x = x.as_chunks::<C>().0;
        let sums = sums.as_chunks_mut::<C>().0.as_chunks_mut::<TILE_ROWS>().0;
        for (tile, sums) in sums.iter_mut().enumerate() {
            let plane = tile * S::REGISTERS + self.register;
            let w = &self.w[plane * pitch(self.len)..][..self.len];
            let mut acc = [[simd.splat(0.0); C]; TILE_ROWS];
            if !self.is_first {
                acc = *sums;
            }
            for (w, x) in w.iter().zip(x) {
                for (w, acc) in w.iter().zip(&mut acc) {
                    for (x, acc) in x.iter().zip(acc) {
                        *acc = simd.mul_add(*w, *x, *acc);
                    }
                }
            }
            *sums = acc;
        }
    }
}
