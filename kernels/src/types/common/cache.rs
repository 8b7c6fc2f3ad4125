//! Use of a type in KV caches: chunks of 32 elements of a head are decoded to `f32` without rounding.

use std::marker::PhantomData;
use std::ops::Range;

use crate::simd::dispatch::Implementation;
use crate::simd::packed::{Packed, ROWS, TakeColumn, array, each};
use crate::simd::{KernelInto, LANES, LINE, Simd};

/// 32 elements of each of 32 rows, row-major or transposed.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Square(pub(crate) [[f32; LANES]; LANES]);

impl Square {
    pub(crate) const ZERO: Square = Square([[0.0; LANES]; LANES]);
}

/// Maximum number of query heads that are multiplied with keys in registers, without a [`Square`].
pub(crate) const MAX_FUSED_HEADS: usize = 4;

/// A type that caches can have; a chunk of 32 elements has `BYTES` bytes.
pub(crate) trait CacheElement<const BYTES: usize> {
    /// The scales of chunks of sixteen rows, if the type has scales.
    type Scales<S: Simd>: Copy;

    /// Decodes the scales of chunks of sixteen rows.
    fn scales<S: Simd>(simd: S, rows: SixteenChunks<'_, BYTES>) -> Self::Scales<S>;

    /// Decodes the first (`HALF` 0) or last sixteen elements of chunks of sixteen rows, in ascending order.
    fn columns<S: Simd, const HALF: usize>(
        simd: S,
        rows: SixteenChunks<'_, BYTES>,
        scales: Self::Scales<S>,
        to: &mut impl TakeColumn<S>,
    );

    /// Decodes a chunk of one row.
    fn load<S: Simd>(simd: S, chunk: &[u8; BYTES]) -> S::Lanes;

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
    /// Computes the dot products of up to [`MAX_FUSED_HEADS`] query heads and up to 32 keys.
    pub(crate) score: fn(Implementation, FewHeads<'_>, scores: &mut [[f32; LANES]]),
    /// Adds weighted values to the sums of up to [`MAX_FUSED_HEADS`] query heads, `(heads, chunks)`.
    pub(crate) add_values: fn(Implementation, WeightedValues<'_>, sums: &mut [[f32; LANES]]),
    /// Makes chunks that contain NaN or infinite elements decode to NaN.
    pub(crate) mark_invalid: fn(x: &[f32], chunks: &mut [u8]),
}

impl CacheAccess {
    /// The cache functions of type `B`.
    pub(crate) const fn of<B, const BYTES: usize>(name: &'static str) -> CacheAccess
    where
        B: CacheElement<BYTES>,
    {
        CacheAccess {
            name,
            transpose: |on, rows, out| {
                on.run_operation_into(Transpose::<B, BYTES>(rows, PhantomData), out)
            },
            decode: |on, rows, out| {
                on.run_operation_into(Decode::<B, BYTES>(rows, PhantomData), out)
            },
            score: |on, heads, out| {
                on.run_operation_into(Score::<B, BYTES>(heads, PhantomData), out)
            },
            add_values: |on, values, out| {
                on.run_operation_into(AddValues::<B, BYTES>(values, PhantomData), out);
            },
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
    /// The bytes of the rows, all chunks of them, and of the rows up to the next multiple of [`ROWS`].
    pub(crate) bytes: &'a [u8],
    /// Number of rows.
    pub(crate) n_rows: usize,
    /// Chunks per row.
    pub(crate) n_chunk: usize,
    /// Index of the chunk.
    pub(crate) chunk: usize,
}

impl<'a> RowChunks<'a> {
    /// Returns the chunk of each row.
    #[inline(always)]
    fn rows<const BYTES: usize>(self) -> impl Iterator<Item = &'a [u8; BYTES]> {
        let rows = self.bytes[self.chunk * BYTES..].chunks(self.n_chunk * BYTES);
        let chunk = |row: &'a [u8]| row.first_chunk().expect("a whole chunk");
        rows.take(self.n_rows).map(chunk)
    }

    /// Returns the chunk of sixteen rows from row `first` on, which is a multiple of sixteen below their number.
    #[inline(always)]
    fn sixteen<const BYTES: usize>(self, first: usize) -> SixteenChunks<'a, BYTES> {
        let chunks: &[[u8; BYTES]] = self.bytes.as_chunks().0;
        let chunks = &chunks[first * self.n_chunk + self.chunk..][..(ROWS - 1) * self.n_chunk + 1];
        SixteenChunks {
            bytes: chunks.as_flattened(),
            stride: self.n_chunk * BYTES,
        }
    }
}

/// The same chunk of sixteen consecutive rows of a head.
#[derive(Clone, Copy)]
pub(crate) struct SixteenChunks<'a, const BYTES: usize> {
    /// The bytes from the chunk of the first row to that of the last one.
    bytes: &'a [u8],
    /// Bytes from the chunk of a row to that of the next.
    stride: usize,
}

impl<'a, const BYTES: usize> SixteenChunks<'a, BYTES> {
    /// Returns `N` bytes of each chunk, from `at` on.
    #[inline(always)]
    pub(crate) fn pieces<W: Packed, const N: usize>(
        self,
        simd: W,
        at: usize,
    ) -> [&'a [u8; N]; ROWS] {
        assert!(at + N <= BYTES);
        // Addresses are computed where they are used: there are too few registers to keep them.
        let stride = simd.opaque(self.stride);
        // SAFETY: there are `BYTES` bytes after the start of each row.
        each!(16, row => unsafe { &*self.bytes.as_ptr().add(row * stride + at).cast() })
    }

    /// Returns sixteen bytes of each chunk, from `at` on, as words.
    #[inline(always)]
    pub(crate) fn words<W: Packed>(self, simd: W, at: usize) -> [W::Words; 4] {
        simd.interleave(self.pieces(simd, at))
    }
}

/// Few query heads, and the keys of a block.
#[derive(Clone, Copy)]
pub(crate) struct FewHeads<'a> {
    pub(crate) keys: RowChunks<'a>,
    /// `(heads, chunks of a head)`
    pub(crate) q: &'a [[f32; LANES]],
    /// Bytes to prefetch.
    pub(crate) ahead: &'a [u8],
}

/// Values of a block, and the weights of few query heads that attend to the same of them.
#[derive(Clone, Copy)]
pub(crate) struct WeightedValues<'a> {
    /// The values that the heads attend to.
    pub(crate) values: RowChunks<'a>,
    /// The row of the block that the first of these values is.
    pub(crate) first: usize,
    /// Weights of the rows of the block per head.
    pub(crate) weights: &'a [[f32; LANES]],
    /// Factors on earlier sums, per head.
    pub(crate) corrections: &'a [f32],
    /// Bytes to prefetch.
    pub(crate) ahead: &'a [u8],
}

/// Memory that is needed next. Its lines are prefetched one by one between computations: many at once would wait for
/// each other.
pub(crate) struct Ahead {
    next: *const u8,
    end: *const u8,
}

impl Ahead {
    #[inline(always)]
    pub(crate) fn new(bytes: &[u8]) -> Ahead {
        let Range { start, end } = bytes.as_ptr_range();
        Ahead { next: start, end }
    }

    /// Prefetches `n` more lines; after the last one, the lines that follow it.
    #[inline(always)]
    pub(crate) fn prefetch(&mut self, simd: impl Simd, n: usize) {
        for _ in 0..n {
            simd.prefetch_early(self.next);
            self.next = self.next.wrapping_add(LINE);
        }
    }

    /// Prefetches the lines that are left.
    #[inline(always)]
    pub(crate) fn finish(mut self, simd: impl Simd) {
        while self.next < self.end {
            self.prefetch(simd, 1);
        }
    }
}

/// Stores columns in a half of a square.
struct Store<'a> {
    half: usize,
    out: &'a mut Square,
}

impl<W: Packed> TakeColumn<W> for Store<'_> {
    #[inline(always)]
    fn take(&mut self, simd: W, element: usize, rows: W::Floats) {
        let row = &mut self.out.0[element];
        simd.store_floats(rows, &mut row.as_chunks_mut().0[self.half]);
    }
}

struct Transpose<'a, B, const BYTES: usize>(RowChunks<'a>, PhantomData<B>);

impl<B: CacheElement<BYTES>, const BYTES: usize> KernelInto<Square> for Transpose<'_, B, BYTES> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, out: &mut Square) {
        let Transpose(rows, _) = self;
        for half in 0..rows.n_rows.div_ceil(ROWS) {
            let chunks = rows.sixteen(half * ROWS);
            let scales = B::scales(simd, chunks);
            let mut columns = Store { half, out };
            B::columns::<S, 0>(simd, chunks, scales, &mut columns);
            B::columns::<S, 1>(simd, chunks, scales, &mut columns);
        }
    }
}

struct Decode<'a, B, const BYTES: usize>(RowChunks<'a>, PhantomData<B>);

impl<B, const BYTES: usize> KernelInto<[[f32; LANES]]> for Decode<'_, B, BYTES>
where
    B: CacheElement<BYTES>,
{
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, out: &mut [[f32; LANES]]) {
        let Decode(rows, _) = self;
        for (row, out) in rows.rows().zip(out) {
            simd.store_partial(B::load(simd, row), out);
        }
    }
}

struct Score<'a, B, const BYTES: usize>(FewHeads<'a>, PhantomData<B>);

impl<B, const BYTES: usize> KernelInto<[[f32; LANES]]> for Score<'_, B, BYTES>
where
    B: CacheElement<BYTES>,
{
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, scores: &mut [[f32; LANES]]) {
        match scores.len() {
            1 => self.add::<S, 1>(simd, scores),
            2 => self.add::<S, 2>(simd, scores),
            3 => self.add::<S, 3>(simd, scores),
            MAX_FUSED_HEADS => self.add::<S, MAX_FUSED_HEADS>(simd, scores),
            n => unreachable!("{n} heads"),
        }
    }
}

impl<B: CacheElement<BYTES>, const BYTES: usize> Score<'_, B, BYTES> {
    /// Computes the scores of `C` heads. Each is a sum of chains, one for each chunk of the head.
    #[inline(always)]
    fn add<S: Simd, const C: usize>(self, simd: S, scores: &mut [[f32; LANES]]) {
        let FewHeads { keys, q, ahead } = self.0;
        let mut ahead = Ahead::new(ahead);
        // As many as half a chunk of sixteen rows has.
        let n_line = (ROWS * BYTES / 2).div_ceil(LINE);
        let zero = simd.splat_floats(0.0);
        let mut sums = [[zero; C]; 2];
        for chunk in 0..keys.n_chunk {
            let keys = RowChunks { chunk, ..keys };
            let q = array(|c| &q[c * keys.n_chunk + chunk]);
            let [mut first, mut second] = [(); 2].map(|()| Chains::<S, C> { q, sums: [zero; C] });
            // Of both halves of the rows in turn, so that no addition waits for the one before.
            let rows = keys.sixteen::<BYTES>(0);
            let scales = B::scales(simd, rows);
            let later = match keys.n_rows > ROWS {
                true => {
                    let rows = keys.sixteen::<BYTES>(ROWS);
                    Some((rows, B::scales(simd, rows)))
                }
                false => None,
            };
            ahead.prefetch(simd, n_line);
            B::columns::<S, 0>(simd, rows, scales, &mut first);
            if let Some((rows, scales)) = later {
                ahead.prefetch(simd, n_line);
                B::columns::<S, 0>(simd, rows, scales, &mut second);
            }
            ahead.prefetch(simd, n_line);
            B::columns::<S, 1>(simd, rows, scales, &mut first);
            if let Some((rows, scales)) = later {
                ahead.prefetch(simd, n_line);
                B::columns::<S, 1>(simd, rows, scales, &mut second);
            }
            for (sums, chains) in sums.iter_mut().zip([first.sums, second.sums]) {
                for (sum, chain) in sums.iter_mut().zip(chains) {
                    // A sum: a product with 1 is exact.
                    *sum = simd.mul_add_floats(simd.splat_floats(1.0), chain, *sum);
                }
            }
        }
        for (half, sums) in sums.into_iter().enumerate() {
            for (scores, sum) in scores.iter_mut().zip(sums) {
                simd.store_floats(sum, &mut scores.as_chunks_mut().0[half]);
            }
        }
        ahead.finish(simd);
    }
}

/// Products of one chunk of `C` query heads with sixteen keys.
struct Chains<'a, W: Packed, const C: usize> {
    q: [&'a [f32; LANES]; C],
    sums: [W::Floats; C],
}

impl<W: Packed, const C: usize> TakeColumn<W> for Chains<'_, W, C> {
    #[inline(always)]
    fn take(&mut self, simd: W, element: usize, rows: W::Floats) {
        for (sum, q) in self.sums.iter_mut().zip(self.q) {
            *sum = simd.mul_add_floats(simd.splat_floats(q[element]), rows, *sum);
        }
    }
}

struct AddValues<'a, B, const BYTES: usize>(WeightedValues<'a>, PhantomData<B>);

impl<B, const BYTES: usize> KernelInto<[[f32; LANES]]> for AddValues<'_, B, BYTES>
where
    B: CacheElement<BYTES>,
{
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, sums: &mut [[f32; LANES]]) {
        match self.0.weights.len() {
            1 => self.add::<S, 1>(simd, sums),
            2 => self.add::<S, 2>(simd, sums),
            3 => self.add::<S, 3>(simd, sums),
            MAX_FUSED_HEADS => self.add::<S, MAX_FUSED_HEADS>(simd, sums),
            n => unreachable!("{n} heads"),
        }
    }
}

impl<B: CacheElement<BYTES>, const BYTES: usize> AddValues<'_, B, BYTES> {
    /// Adds the values of `C` heads: chains over the rows, which are added to the rescaled sums.
    #[inline(always)]
    fn add<S: Simd, const C: usize>(self, simd: S, sums: &mut [[f32; LANES]]) {
        let WeightedValues {
            values,
            corrections,
            ..
        } = self.0;
        let rows = self.0.first..self.0.first + values.n_rows;
        let weights: [&[f32]; C] = array(|c| &self.0.weights[c][rows.clone()]);
        let mut ahead = Ahead::new(self.0.ahead);
        for chunk in 0..values.n_chunk {
            let mut chains = [simd.lanes(|_| simd.splat(0.0)); C];
            let rows = RowChunks { chunk, ..values }.rows();
            for (i, row) in rows.enumerate() {
                ahead.prefetch(simd, BYTES.div_ceil(LINE));
                let row = B::load(simd, row);
                for (chain, weights) in chains.iter_mut().zip(weights) {
                    *chain = simd.scale_add(simd.splat(weights[i]), row, *chain);
                }
            }
            for (c, chain) in chains.into_iter().enumerate() {
                let sum = &mut sums[c * values.n_chunk + chunk];
                let correction = simd.splat(corrections[c]);
                let rescaled = simd.scale_add(correction, simd.load_partial(sum), chain);
                simd.store_partial(rescaled, sum);
            }
        }
        ahead.finish(simd);
    }
}
