//! Products of float weights.
//!
//! Each output element is one [`Simd::dot`], however rows and stretches of columns are split.

use std::marker::PhantomData;
use std::ops::Range;

use super::cpu::Chunk;
use crate::cpu::arena::Arena;
use crate::cpu::columns::ColumnsMut;
use crate::cpu::parts;
use crate::cpu::weight::Weight;
use crate::simd::dispatch::Implementation;
use crate::simd::packed::array;
use crate::simd::{Kernel, LANES, Simd};
use crate::types::common::cache::CacheElement;

/// Weight rows whose sums are stored together.
const ROWS: usize = 8;

/// Columns that are decoded together: whole blocks of every type.
const STRETCH: usize = 512;

/// Bytes of activations that stay in the L2 cache while weight rows pass by.
const BLOCK_BYTES: usize = 1 << 20;

/// Aligned to a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Aligned<T>(T);

/// The functions of a type of floats that products need.
pub(crate) struct FloatKernels {
    /// Multiplies activations by some rows of a weight.
    pub(crate) multiply: fn(Implementation, FloatProduct<'_>),
}

impl FloatKernels {
    /// The functions of elements `B`, 32 of which take `BYTES`.
    pub(crate) const fn of<B: CacheElement<BYTES>, const BYTES: usize>() -> FloatKernels {
        FloatKernels {
            multiply: |on, product| on.run(OfElements::<B, BYTES>(product, PhantomData)),
        }
    }
}

/// The product of a range of weight rows with all activations.
pub(crate) struct FloatProduct<'a> {
    pub(crate) w: &'a Weight,
    /// `(n, n_cols)`
    pub(crate) x: &'a [Chunk],
    /// First weight row.
    pub(crate) first: usize,
    /// One column per weight row, `(n, rows)`.
    pub(crate) out: ColumnsMut<'a>,
}

/// Registers of sums: the other four of sixteen hold a weight and its factors.
const SUMS: usize = 12;

/// [`FloatProduct`] for weights of `B`.
struct OfElements<'a, B, const BYTES: usize>(FloatProduct<'a>, PhantomData<B>);

impl<B: CacheElement<BYTES>, const BYTES: usize> Kernel for OfElements<'_, B, BYTES> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let product = self.0;
        match product.out.n_rows() {
            1 => product.in_registers::<S, B, BYTES, 1>(simd),
            2 if const { 2 * S::REGISTERS <= SUMS } => product.in_registers::<S, B, BYTES, 2>(simd),
            3 if const { 3 * S::REGISTERS <= SUMS } => product.in_registers::<S, B, BYTES, 3>(simd),
            4 if const { 4 * S::REGISTERS <= SUMS } => product.in_registers::<S, B, BYTES, 4>(simd),
            5 if const { 5 * S::REGISTERS <= SUMS } => product.in_registers::<S, B, BYTES, 5>(simd),
            6 if const { 6 * S::REGISTERS <= SUMS } => product.in_registers::<S, B, BYTES, 6>(simd),
            _ => product.in_stretches(simd),
        }
    }
}

impl FloatProduct<'_> {
    /// Converts weights in registers, row by row, for `C` activation rows: memory is read in ascending order.
    #[inline(always)]
    fn in_registers<S: Simd, B: CacheElement<BYTES>, const BYTES: usize, const C: usize>(
        mut self,
        simd: S,
    ) {
        let n_chunk = self.w.n_cols.div_ceil(LANES);
        let x: [&[Chunk]; C] = array(|c| &self.x[c * n_chunk..][..n_chunk]);
        let mut sums = [Aligned([[0.0; LANES]; ROWS]); C];
        let w = self.w;
        for rows in parts(self.out.n_cols(), ROWS) {
            let bytes = w.rows(self.first + rows.start..self.first + rows.end);
            for (row, bytes) in bytes.enumerate() {
                let mut acc = [simd.lanes(|_| simd.splat(0.0)); C];
                let (chunks, rest) = bytes.as_chunks();
                for (k, chunk) in chunks.iter().enumerate() {
                    add_chunk(simd, B::load(simd, chunk), array(|c| &x[c][k]), &mut acc);
                }
                if !rest.is_empty() {
                    let mut last = [[0.0; LANES]];
                    w.decode(rest, w.n_cols % LANES, &mut last);
                    let w = simd.lanes(|i| simd.load(&last[0], i));
                    add_chunk(simd, w, array(|c| &x[c][chunks.len()]), &mut acc);
                }
                for (acc, sums) in acc.iter().zip(&mut sums) {
                    for register in 0..S::REGISTERS {
                        simd.store(acc[register], &mut sums.0[row], register);
                    }
                }
            }
            self.store(simd, 0, rows, &sums);
        }
    }

    /// Decodes weights of several rows, a stretch of columns at a time, and multiplies tiles of activations by
    /// them while they are in the L1 cache.
    #[inline(always)]
    fn in_stretches<S: Simd>(mut self, simd: S) {
        let n_chunk = self.w.n_cols.div_ceil(LANES);
        let block_len = (BLOCK_BYTES / size_of::<Chunk>()).div_ceil(n_chunk);
        let n = self.out.n_rows();
        let mut w = Aligned([[[0.0; LANES]; STRETCH / LANES]; ROWS]);
        // If there are several stretches, partial sums are kept between them.
        let n_waiting = if n_chunk * LANES > STRETCH {
            n.min(block_len)
        } else {
            0
        };
        let arena = Arena::new();
        let waiting = arena.filled(Aligned([[0.0; LANES]; ROWS]), n_waiting);
        let mut scratch = [Aligned([[0.0; LANES]; ROWS]); MAX_TILE];
        for block in parts(n, block_len) {
            let x = &self.x[block.start * n_chunk..block.end * n_chunk];
            // Tiles of about equal size that fit the registers.
            let tile = block.len().div_ceil(block.len().div_ceil(S::COLUMNS));
            for rows in parts(self.out.n_cols(), ROWS) {
                for columns in parts(self.w.n_cols, STRETCH) {
                    self.decode(simd, rows.clone(), columns.clone(), &mut w.0);
                    let chunks = columns.start / LANES..columns.end.div_ceil(LANES);
                    for tile in parts(block.len(), tile) {
                        let sums = match n_waiting {
                            0 => &mut scratch[..tile.len()],
                            _ => &mut waiting[tile.clone()],
                        };
                        let x = |column| &x[(tile.start + column) * n_chunk..][chunks.clone()];
                        match columns.start {
                            0 => add_products::<S, true>(simd, &w.0, x, sums),
                            _ => add_products::<S, false>(simd, &w.0, x, sums),
                        }
                        if columns.end == self.w.n_cols {
                            self.store(simd, block.start + tile.start, rows.clone(), sums);
                        }
                    }
                }
            }
        }
    }

    /// Decodes some columns of some rows of the weight.
    #[inline(always)]
    fn decode<S: Simd>(
        &self,
        simd: S,
        rows: Range<usize>,
        columns: Range<usize>,
        out: &mut [[Chunk; STRETCH / LANES]; ROWS],
    ) {
        let bytes = self.w.columns(columns.clone());
        let rows = self.first + rows.start..self.first + rows.end;
        let mut next = self.w.rows(rows.end..self.w.n_rows.min(rows.end + ROWS));
        for (row, out) in self.w.rows(rows).zip(out) {
            // Rows are too short and too far apart for the hardware prefetcher. Prefetching all at once
            // would delay the current loads.
            if let Some(next) = next.next() {
                simd.prefetch(&next[bytes.clone()]);
            }
            self.w.decode(&row[bytes.clone()], columns.len(), out);
        }
    }

    /// Writes the products of some rows of the weight with consecutive activation rows from `first`.
    #[inline(always)]
    fn store<S: Simd>(
        &mut self,
        simd: S,
        first: usize,
        rows: Range<usize>,
        sums: &[Aligned<[Chunk; ROWS]>],
    ) {
        for (row, sums) in sums.iter().enumerate() {
            let sums = simd.sums(array(|i| simd.load_partial(&sums.0[i])));
            let out = self.out.row(first + row, rows.clone());
            match out.first_chunk_mut() {
                Some(out) => *out = sums,
                None => out.copy_from_slice(&sums[..out.len()]),
            }
        }
    }
}

/// Adds the products of a chunk of a weight row and the chunks of `C` activation rows.
#[inline(always)]
fn add_chunk<S: Simd, const C: usize>(
    simd: S,
    w: S::Lanes,
    x: [&Chunk; C],
    acc: &mut [S::Lanes; C],
) {
    for (x, acc) in x.iter().zip(acc) {
        for register in 0..S::REGISTERS {
            acc[register] = simd.mul_add(w[register], simd.load(x, register), acc[register]);
        }
    }
}

/// Maximum number of activation rows per tile on any instruction set.
const MAX_TILE: usize = 6;

/// Adds the products of a stretch and a tile of activations to the lanes of every sum, `(n, ROWS)`; the
/// first stretch initialises them.
#[inline(always)]
fn add_products<'a, S: Simd, const IS_FIRST: bool>(
    simd: S,
    w: &[[Chunk; STRETCH / LANES]; ROWS],
    x: impl Fn(usize) -> &'a [Chunk],
    sums: &mut [Aligned<[Chunk; ROWS]>],
) {
    match sums.len() {
        1 => add_tile::<S, IS_FIRST, ROWS, 1>(simd, w, x, sums),
        2 => add_tile::<S, IS_FIRST, 4, 2>(simd, w, x, sums),
        3 => add_tile::<S, IS_FIRST, 4, 3>(simd, w, x, sums),
        4 => add_tile::<S, IS_FIRST, 4, 4>(simd, w, x, sums),
        5 => add_tile::<S, IS_FIRST, 4, 5>(simd, w, x, sums),
        MAX_TILE => add_tile::<S, IS_FIRST, 4, MAX_TILE>(simd, w, x, sums),
        n => unreachable!("{n} columns in a tile"),
    }
}

/// [`add_products`] for `C` activation rows and `R` weight rows at a time: `R * C` sums in registers.
#[inline(always)]
fn add_tile<'a, S: Simd, const IS_FIRST: bool, const R: usize, const C: usize>(
    simd: S,
    w: &[[Chunk; STRETCH / LANES]; ROWS],
    x: impl Fn(usize) -> &'a [Chunk],
    sums: &mut [Aligned<[Chunk; ROWS]>],
) {
    let x: [&[Chunk]; C] = array(x);
    let len = x[0].len();
    for (i, w) in w.as_chunks::<R>().0.iter().enumerate() {
        let x: [&[Chunk]; C] = array(|c| &x[c][..len]);
        for register in 0..S::REGISTERS {
            let mut acc = [[simd.splat(0.0); C]; R];
            if !IS_FIRST {
                for (r, acc) in acc.iter_mut().enumerate() {
                    for (acc, sums) in acc.iter_mut().zip(&*sums) {
                        *acc = simd.load(&sums.0[i * R + r], register);
                    }
                }
            }
            for k in 0..len.min(STRETCH / LANES) {
                let x: [S::Vector; C] = array(|c| simd.load(&x[c][k], register));
                for r in 0..R {
                    let w = simd.load(&w[r][k], register);
                    for c in 0..C {
                        acc[r][c] = simd.mul_add(w, x[c], acc[r][c]);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (&acc, sums) in acc.iter().zip(&mut *sums) {
                    simd.store(acc, &mut sums.0[i * R + r], register);
                }
            }
        }
    }
}
