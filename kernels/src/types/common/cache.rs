//! Use of a type in KV caches: chunks of 32 elements of a head are decoded to `f32` without rounding.

use std::marker::PhantomData;

use super::block::{Block, blocks};
use crate::simd::dispatch::Implementation;
use crate::simd::packed::{Packed, ROWS, array};
use crate::simd::{KernelInto, LANES, Simd};

/// 32 elements of each of 32 rows, row-major or transposed.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Square(pub(crate) [[f32; LANES]; LANES]);

impl Square {
    pub(crate) const ZERO: Square = Square([[0.0; LANES]; LANES]);
}

/// A type that caches can have; a chunk of 32 elements has `BYTES` bytes.
pub(crate) trait CacheElement<const BYTES: usize> {
    /// Decodes chunks of sixteen rows to the first or second half of the columns.
    fn transpose<S: Simd>(simd: S, rows: [&[u8; BYTES]; ROWS], half: usize, out: &mut Square);

    /// Makes a chunk decode to NaN if `x`, its elements before quantization, has NaN or infinity. Types
    /// that represent these need nothing.
    fn mark_invalid(x: &[f32], chunk: &mut [u8; BYTES]) {
        let _ = (x, chunk);
    }
}

/// The cache functions of a type.
pub(crate) struct CacheAccess {
    /// The name that users give.
    pub(crate) name: &'static str,
    /// Decodes a chunk of up to 32 rows, transposed: element `i` of row `j` is at `[i][j]`. Columns
    /// without a row are undefined.
    pub(crate) transpose: fn(Implementation, RowChunks<'_>, &mut Square),
    /// Decodes a chunk of each row.
    pub(crate) decode: fn(Implementation, RowChunks<'_>, &mut [[f32; LANES]]),
    /// Makes chunks that contain NaN or infinite elements decode to NaN.
    pub(crate) mark_invalid: fn(x: &[f32], chunks: &mut [u8]),
}

impl CacheAccess {
    /// The cache functions of blocks `B`.
    pub(crate) const fn of<B, const LEN: usize, const BYTES: usize>(
        name: &'static str,
    ) -> CacheAccess
    where
        B: Block<LEN> + CacheElement<BYTES>,
    {
        CacheAccess {
            name,
            transpose: |on, rows, out| on.run_into(Transpose::<B, BYTES>(rows, PhantomData), out),
            decode: |on, rows, out| on.run_into(Decode::<B, LEN, BYTES>(rows, PhantomData), out),
            mark_invalid: |x, chunks| {
                let chunks = chunks.as_chunks_mut().0;
                for (x, chunk) in x.chunks(LANES).zip(chunks) {
                    B::mark_invalid(x, chunk);
                }
            },
        }
    }
}

/// The same chunk of consecutive rows of a head.
#[derive(Clone, Copy)]
pub(crate) struct RowChunks<'a> {
    /// The bytes of the rows, all chunks of them.
    pub(crate) bytes: &'a [u8],
    /// Number of rows.
    pub(crate) n_rows: usize,
    /// Chunks per row.
    pub(crate) n_chunk: usize,
    /// Index of the chunk.
    pub(crate) chunk: usize,
}

impl<'a> RowChunks<'a> {
    /// Returns the chunk of a row.
    #[inline(always)]
    fn row<const BYTES: usize>(self, row: usize) -> &'a [u8; BYTES] {
        let chunks: &[[u8; BYTES]] = self.bytes.as_chunks().0;
        &chunks[row * self.n_chunk + self.chunk]
    }
}

struct Transpose<'a, B, const BYTES: usize>(RowChunks<'a>, PhantomData<B>);

impl<B: CacheElement<BYTES>, const BYTES: usize> KernelInto<Square> for Transpose<'_, B, BYTES> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, out: &mut Square) {
        let Transpose(rows, _) = self;
        let last = rows.n_rows - 1;
        for half in 0..rows.n_rows.div_ceil(ROWS) {
            // Missing rows repeat the last one.
            let chunks = array(|i| rows.row::<BYTES>((half * ROWS + i).min(last)));
            B::transpose(simd, chunks, half, out);
        }
    }
}

struct Decode<'a, B, const LEN: usize, const BYTES: usize>(RowChunks<'a>, PhantomData<B>);

impl<B, const LEN: usize, const BYTES: usize> KernelInto<[[f32; LANES]]>
    for Decode<'_, B, LEN, BYTES>
where
    B: Block<LEN>,
{
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, out: &mut [[f32; LANES]]) {
        let Decode(rows, _) = self;
        for (row, out) in out.iter_mut().enumerate().take(rows.n_rows) {
            let blocks = blocks::<B>(rows.row::<BYTES>(row));
            B::dequantize_blocks(simd, blocks, out.as_chunks_mut().0);
        }
    }
}

/// Stores one element of sixteen rows, transposed.
#[inline(always)]
pub(crate) fn put<W: Packed>(
    simd: W,
    rows: W::Floats,
    element: usize,
    half: usize,
    out: &mut Square,
) {
    simd.store_floats(rows, &mut out.0[element].as_chunks_mut().0[half]);
}
