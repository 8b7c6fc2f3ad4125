//! KV cache of one layer, keys or values, in the cache's element type.
//!
//! All rows of a head are contiguous, so that attention reads memory in order. Heads are padded with zeros
//! to a multiple of 32 elements. Every type converts to `f32` without rounding, so the type affects
//! attention only through the rounding in [`Cache::store_rows`].

use std::ops::Range;

use super::arena::Arena;
use super::buffer::Buffer;
use super::coded::{add, bytes};
use super::decode;
use super::panel::{Blocks, InRows};
use super::simd::{LANES, Simd};
use super::words::{ROWS, Words, array};
use crate::backend::{CacheShape, CacheType};
use crate::quant::{QuantType, quant_type};

/// 32 elements of each of 32 rows, row-major or transposed.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Square(pub(super) [[f32; LANES]; LANES]);

impl Square {
    pub(super) const ZERO: Square = Square([[0.0; LANES]; LANES]);
}

/// The keys or values of all cells of a layer.
pub struct Cache {
    shape: CacheShape,
    codec: &'static dyn QuantType,
    /// `(n_head, n_rows)`, each entry the bytes of one head.
    memory: Buffer,
}

impl Cache {
    /// A cache with all bits set, which is NaN in every type.
    pub(super) fn new(shape: &CacheShape) -> Cache {
        let bytes = shape.n_rows * shape.n_head * shape.head_bytes();
        let codec = quant_type(shape.element.dtype());
        Cache {
            shape: *shape,
            codec: codec.expect("types of caches have codecs"),
            memory: Buffer::new(bytes.div_ceil(size_of::<f32>())),
        }
    }

    /// Byte range of one head of a row.
    fn place(&self, head: usize, row: usize) -> Range<usize> {
        let CacheShape { n_rows, n_head, .. } = self.shape;
        assert!(row < n_rows && head < n_head, "a row and head of the cache");
        let len = self.shape.head_bytes();
        let start = (head * n_rows + row) * len;
        start..start + len
    }

    /// [`Backend::store_rows`](crate::backend::Backend::store_rows).
    pub(super) fn store_rows(&mut self, src: &[f32], rows: &[usize]) {
        let CacheShape {
            n_head, head_dim, ..
        } = self.shape;
        let arena = Arena::new();
        let padded = arena.filled(0.0, head_dim.next_multiple_of(LANES));
        let heads = src.chunks_exact(head_dim);
        let places = rows
            .iter()
            .flat_map(|&row| (0..n_head).map(move |head| (row, head)));
        for ((row, head), src) in places.zip(heads) {
            padded[..head_dim].copy_from_slice(src);
            let place = self.place(head, row);
            let bytes = &mut self.memory.as_bytes_mut()[place];
            self.codec.quantize(padded, None, bytes);
            if self.shape.element == CacheType::Q8_0 {
                spoil(padded, bytes);
            }
        }
    }

    /// [`Backend::copy_cached`](crate::backend::Backend::copy_cached).
    pub(super) fn copy_rows(&mut self, from: usize, to: usize, n: usize) {
        let CacheShape { n_rows, n_head, .. } = self.shape;
        assert!(from.max(to) + n <= n_rows, "rows of the cache");
        for head in 0..n_head {
            let (first, to) = (self.place(head, from), self.place(head, to).start);
            let rows = first.start..first.start + n * first.len();
            self.memory.as_bytes_mut().copy_within(rows, to);
        }
    }

    /// Decodes one chunk of a head for up to 32 rows, transposed: element `i` of row `j` is at `[i][j]`.
    /// Columns without a row are undefined.
    #[inline(always)]
    pub(super) fn transpose<S: Simd>(
        &self,
        simd: S,
        head: usize,
        rows: Range<usize>,
        chunk: usize,
        out: &mut Square,
    ) {
        match self.shape.element {
            CacheType::F32 => self.transpose_as::<S, F32, 128>(simd, head, rows, chunk, out),
            CacheType::F16 => self.transpose_as::<S, F16, 64>(simd, head, rows, chunk, out),
            CacheType::BF16 => self.transpose_as::<S, BF16, 64>(simd, head, rows, chunk, out),
            CacheType::Q8_0 => self.transpose_as::<S, Q8_0, 34>(simd, head, rows, chunk, out),
        }
    }

    /// Decodes one chunk of a head for up to 32 rows: element `i` of row `rows.start + j` is at `[first +
    /// j][i]`.
    #[inline(always)]
    pub(super) fn decode<S: Simd>(
        &self,
        simd: S,
        head: usize,
        rows: Range<usize>,
        chunk: usize,
        out: &mut [[f32; LANES]],
    ) {
        match self.shape.element {
            CacheType::F32 => self.decode_as::<S, F32, 128>(simd, head, rows, chunk, out),
            CacheType::F16 => self.decode_as::<S, F16, 64>(simd, head, rows, chunk, out),
            CacheType::BF16 => self.decode_as::<S, BF16, 64>(simd, head, rows, chunk, out),
            CacheType::Q8_0 => self.decode_as::<S, Q8_0, 34>(simd, head, rows, chunk, out),
        }
    }

    /// Returns the bytes of a head in some rows, chunk by chunk: `(rows, chunks)`.
    #[inline(always)]
    fn chunks<const BYTES: usize>(&self, head: usize, rows: &Range<usize>) -> &[[u8; BYTES]] {
        let first = self.place(head, rows.start);
        let last = self.place(head, rows.end - 1);
        self.memory.as_bytes()[first.start..last.end].as_chunks().0
    }

    #[inline(always)]
    fn transpose_as<S: Simd, E: Element<BYTES>, const BYTES: usize>(
        &self,
        simd: S,
        head: usize,
        rows: Range<usize>,
        chunk: usize,
        out: &mut Square,
    ) {
        let chunks = self.chunks::<BYTES>(head, &rows);
        let n_chunk = chunks.len() / rows.len();
        for half in 0..rows.len().div_ceil(ROWS) {
            // Missing rows repeat the last one.
            let row = |i: usize| (half * ROWS + i).min(rows.len() - 1);
            let pieces = array(|i| &chunks[row(i) * n_chunk + chunk]);
            E::transpose(simd, pieces, half, out);
        }
    }

    #[inline(always)]
    fn decode_as<S: Simd, E: Element<BYTES>, const BYTES: usize>(
        &self,
        simd: S,
        head: usize,
        rows: Range<usize>,
        chunk: usize,
        out: &mut [[f32; LANES]],
    ) {
        let chunks = self.chunks::<BYTES>(head, &rows);
        let n_chunk = chunks.len() / rows.len();
        for (chunks, out) in chunks.chunks_exact(n_chunk).zip(out) {
            E::decode(simd, &chunks[chunk], out);
        }
    }
}

/// Sets the scale of blocks with NaN or infinite elements to NaN: quants cannot represent them.
fn spoil(x: &[f32], blocks: &mut [u8]) {
    const NAN: [u8; 2] = [0xff; 2];
    for (x, block) in x.chunks(32).zip(blocks.as_chunks_mut::<34>().0) {
        if !x.iter().all(|x| x.is_finite()) {
            block[..2].copy_from_slice(&NAN);
        }
    }
}

/// Conversion of a chunk of one type, `BYTES` bytes, to `f32`.
trait Element<const BYTES: usize> {
    /// Decodes chunks of sixteen rows to the first or second half of the columns.
    fn transpose<S: Simd>(simd: S, rows: [&[u8; BYTES]; ROWS], half: usize, out: &mut Square);
    /// Decodes the chunk of one row.
    fn decode<S: Simd>(simd: S, row: &[u8; BYTES], out: &mut [f32; LANES]);
}

/// Stores one element of sixteen rows, transposed.
#[inline(always)]
fn put<W: Words>(simd: W, rows: W::Rows, element: usize, half: usize, out: &mut Square) {
    simd.store_rows(rows, &mut out.0[element].as_chunks_mut().0[half]);
}

struct F32;

impl Element<128> for F32 {
    #[inline(always)]
    fn transpose<S: Simd>(simd: S, rows: [&[u8; 128]; ROWS], half: usize, out: &mut Square) {
        for piece in 0..8 {
            for (i, words) in InRows(rows).words(simd, 16 * piece).into_iter().enumerate() {
                put(simd, simd.bits_to_rows(words), 4 * piece + i, half, out);
            }
        }
    }

    #[inline(always)]
    fn decode<S: Simd>(_: S, row: &[u8; 128], out: &mut [f32; LANES]) {
        for (out, &bytes) in out.iter_mut().zip(row.as_chunks().0) {
            *out = f32::from_le_bytes(bytes);
        }
    }
}

struct F16;

impl Element<64> for F16 {
    #[inline(always)]
    fn transpose<S: Simd>(simd: S, rows: [&[u8; 64]; ROWS], half: usize, out: &mut Square) {
        for piece in 0..4 {
            for (i, words) in InRows(rows).words(simd, 16 * piece).into_iter().enumerate() {
                let element = 8 * piece + 2 * i;
                put(simd, simd.halves_to_rows(words), element, half, out);
                let high = simd.shift_right::<16>(words);
                put(simd, simd.halves_to_rows(high), element + 1, half, out);
            }
        }
    }

    #[inline(always)]
    fn decode<S: Simd>(simd: S, row: &[u8; 64], out: &mut [f32; LANES]) {
        let halves = row.as_chunks().0.first_chunk();
        decode::f16(simd, halves.expect("two bytes a lane"), out);
    }
}

struct BF16;

impl Element<64> for BF16 {
    #[inline(always)]
    fn transpose<S: Simd>(simd: S, rows: [&[u8; 64]; ROWS], half: usize, out: &mut Square) {
        for piece in 0..4 {
            for (i, words) in InRows(rows).words(simd, 16 * piece).into_iter().enumerate() {
                let element = 8 * piece + 2 * i;
                let low = simd.shift_left::<16>(words);
                put(simd, simd.bits_to_rows(low), element, half, out);
                let high = simd.and(words, simd.splat_word(0xffff_0000));
                put(simd, simd.bits_to_rows(high), element + 1, half, out);
            }
        }
    }

    #[inline(always)]
    fn decode<S: Simd>(simd: S, row: &[u8; 64], out: &mut [f32; LANES]) {
        let halves = row.as_chunks().0.first_chunk();
        decode::bf16(simd, halves.expect("two bytes a lane"), out);
    }
}

#[allow(
    non_camel_case_types,
    reason = "types have the names that files give them"
)]
struct Q8_0;

/// The product of an 8-bit quant and a scale with an 11-bit significand fits the 24 bits of an `f32`:
/// nothing is rounded.
impl Element<34> for Q8_0 {
    #[inline(always)]
    fn transpose<S: Simd>(simd: S, rows: [&[u8; 34]; ROWS], half: usize, out: &mut Square) {
        let scales = InRows(rows).halves(simd, 0);
        // Adds 128 to make signed bytes unsigned.
        let sign = simd.splat_word(0x8080_8080);
        for piece in 0..2 {
            for (i, words) in InRows(rows)
                .words(simd, 2 + 16 * piece)
                .into_iter()
                .enumerate()
            {
                let codes = bytes(simd, simd.xor(words, sign));
                for (j, codes) in codes.into_iter().enumerate() {
                    let element = 16 * piece + 4 * i + j;
                    let value = simd.mul_rows(scales, add(simd, codes, -128.0));
                    put(simd, value, element, half, out);
                }
            }
        }
    }

    #[inline(always)]
    fn decode<S: Simd>(simd: S, [low, high, codes @ ..]: &[u8; 34], out: &mut [f32; LANES]) {
        let scale = half::f16::from_le_bytes([*low, *high]).to_f32_const();
        let scale = simd.splat(scale);
        for i in 0..S::REGISTERS {
            simd.store(simd.mul(scale, simd.load_i8(codes, i)), out, i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::Portable;

    /// Decodes a row with one head, both transposed and not.
    fn read(cache: &Cache, row: usize) -> [Vec<f32>; 2] {
        let mut square = Square::ZERO;
        cache.transpose(Portable, 0, row..row + 1, 0, &mut square);
        let as_key = square.0.iter().map(|element| element[0]).collect();
        cache.decode(Portable, 0, row..row + 1, 0, &mut square.0[..1]);
        [as_key, square.0[0].to_vec()]
    }

    #[test]
    fn what_is_no_number_shows() {
        for (name, element) in CacheType::NAMES {
            let mut cache = Cache::new(&CacheShape {
                n_rows: 3,
                n_head: 1,
                head_dim: 32,
                element,
            });
            let mut rows: Vec<f32> = (0..64).map(|i| i as f32 - 20.0).collect();
            rows[40] = f32::NAN;
            rows[41] = f32::INFINITY;
            cache.store_rows(&rows, &[2, 0]);
            for [written, dead, spoilt] in
                [0, 1].map(|i| [2, 1, 0].map(|row| read(&cache, row)[i].clone()))
            {
                assert!(written.iter().all(|x| x.is_finite()), "{name}");
                assert!(dead.iter().all(|x| x.is_nan()), "{name}");
                assert!(!spoilt[8].is_finite() && !spoilt[9].is_finite(), "{name}");
            }
        }
    }
}
