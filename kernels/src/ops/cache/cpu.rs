//! KV cache of one layer, keys or values, in the cache's element type.
//!
//! All rows of a head are contiguous, so that attention reads memory in order. Heads are padded with zeros
//! to a multiple of 32 elements. Every type converts to `f32` without rounding, so the type affects
//! attention only through the rounding in [`Cache::store_rows`].

use std::ops::Range;

use super::CacheOp;
use crate::backend::{CacheShape, GatheredRows, Largest};
use crate::cpu::Cpu;
use crate::cpu::arena::Arena;
use crate::cpu::buffer::Buffer;
use crate::cpu::huge_pages::Bytes;
use crate::cpu::read_ahead::Follower;
use crate::simd::dispatch::Implementation;
use crate::simd::packed::ROWS;
use crate::simd::{LANES, Simd};
use crate::types::ElementType;
use crate::types::common::cache::{CacheAccess, FewHeads, RowChunks, Square, WeightedValues};

impl CacheOp for Cpu {
    fn cache(&self, shape: &CacheShape) -> Cache {
        Cache::new(self, shape)
    }

    fn store_rows(&self, src: &Buffer, rows: &[usize], cache: &mut Cache) {
        cache.store_rows(src, rows);
    }

    fn copy_cached(&self, cache: &mut Cache, from: usize, to: usize, n: usize) {
        cache.copy_rows(from, to, n);
    }

    fn gather_cached(
        &self,
        sources: [&Cache; 2],
        chosen: Option<(&Vec<Largest>, usize)>,
        parts: &[GatheredRows],
        to: &mut Cache,
    ) {
        let [first, second] = sources;
        for part in parts {
            let at = part.to + part.first.len();
            to.copy_from(first, part.first.clone(), part.to);
            let Some((chosen, n_chosen)) = chosen else {
                to.copy_from(second, part.second.clone(), at);
                continue;
            };
            let chosen = &chosen[part.query * n_chosen..][..part.second.len()];
            for (i, chosen) in chosen.iter().enumerate() {
                let row = part.second.start + chosen.index as usize;
                to.copy_from(second, row..row + 1, at + i);
            }
        }
    }
}

/// The keys or values of all cells of a layer.
pub struct Cache {
    shape: CacheShape,
    head_bytes: usize,
    element_type: &'static ElementType,
    access: &'static CacheAccess,
    implementation: Implementation,
    /// `(n_head, n_rows)`, each entry the bytes of one head.
    memory: Bytes,
    /// The addresses that are read after this cache.
    pub(crate) follower: Follower,
}

impl Cache {
    /// A cache with all bits set, which is NaN in every type.
    pub(crate) fn new(cpu: &Cpu, shape: &CacheShape) -> Cache {
        // Reads of sixteen rows may go past the last one.
        let n_rows = shape.n_rows * shape.n_head + ROWS - 1;
        let (element_type, access) = shape.element.descriptor();
        Cache {
            shape: *shape,
            head_bytes: shape.head_bytes(),
            element_type,
            access,
            implementation: cpu.implementation,
            follower: Follower::default(),
            memory: cpu.cache_pages.take_ones(n_rows * shape.head_bytes()),
        }
    }

    /// Bytes of one head in some rows, which may be none.
    #[inline(always)]
    pub(crate) fn bytes(&self, head: usize, rows: Range<usize>) -> &[u8] {
        if rows.is_empty() {
            return &[];
        }
        let places = self.place(head, rows.start).start..self.place(head, rows.end - 1).end;
        &self.memory[places]
    }

    /// Byte range of one head of a row.
    #[inline(always)]
    fn place(&self, head: usize, row: usize) -> Range<usize> {
        let CacheShape { n_rows, n_head, .. } = self.shape;
        assert!(row < n_rows && head < n_head, "a row and head of the cache");
        let len = self.head_bytes;
        let start = (head * n_rows + row) * len;
        start..start + len
    }

    /// [`Backend::store_rows`](crate::backend::Backend::store_rows).
    pub(crate) fn store_rows(&mut self, src: &[f32], rows: &[usize]) {
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
            let bytes = &mut self.memory[place];
            (self.element_type.codec.quantize)(self.implementation, padded, None, bytes);
            (self.access.mark_invalid)(padded, bytes);
        }
    }

    /// [`Backend::copy_cached`](crate::backend::Backend::copy_cached).
    pub(crate) fn copy_rows(&mut self, from: usize, to: usize, n: usize) {
        let CacheShape { n_rows, n_head, .. } = self.shape;
        assert!(from.max(to) + n <= n_rows, "rows of the cache");
        for head in 0..n_head {
            let (first, to) = (self.place(head, from), self.place(head, to).start);
            let rows = first.start..first.start + n * first.len();
            self.memory.copy_within(rows, to);
        }
    }

    /// Copies rows of another cache with the same type and heads, which is one, to the rows from `to` on.
    fn copy_from(&mut self, from: &Cache, rows: Range<usize>, to: usize) {
        if rows.is_empty() {
            return;
        }
        let first = self.place(0, to).start;
        let bytes = from.bytes(0, rows);
        self.memory[first..first + bytes.len()].copy_from_slice(bytes);
    }

    /// Decodes one chunk of a head for up to 32 rows, transposed: element `i` of row `j` is at `[i][j]`.
    /// Columns without a row are undefined.
    #[inline(always)]
    pub(crate) fn transpose<S: Simd>(
        &self,
        simd: S,
        head: usize,
        rows: Range<usize>,
        chunk: usize,
        out: &mut Square,
    ) {
        (self.access.transpose)(simd.implementation(), self.chunks(head, rows, chunk), out);
    }

    /// Decodes one chunk of a head for up to 32 rows: element `i` of row `rows.start + j` is at `[j][i]`.
    #[inline(always)]
    pub(crate) fn decode<S: Simd>(
        &self,
        simd: S,
        head: usize,
        rows: Range<usize>,
        chunk: usize,
        out: &mut [[f32; LANES]],
    ) {
        (self.access.decode)(simd.implementation(), self.chunks(head, rows, chunk), out);
    }

    /// Computes the dot products of few query heads and keys, which are rows of this cache.
    #[inline(always)]
    pub(crate) fn score<S: Simd>(&self, simd: S, heads: FewHeads<'_>, scores: &mut [[f32; LANES]]) {
        (self.access.score)(simd.implementation(), heads, scores);
    }

    /// Adds weighted values, which are rows of this cache, to the sums of few query heads.
    #[inline(always)]
    pub(crate) fn add_values<S: Simd>(
        &self,
        simd: S,
        values: WeightedValues<'_>,
        sums: &mut [[f32; LANES]],
    ) {
        (self.access.add_values)(simd.implementation(), values, sums);
    }

    /// Returns one chunk of a head in some rows, at least one.
    #[inline(always)]
    pub(crate) fn chunks(&self, head: usize, rows: Range<usize>, chunk: usize) -> RowChunks<'_> {
        let start = self.place(head, rows.start).start;
        let n_read = rows.len().next_multiple_of(ROWS);
        RowChunks {
            n_rows: rows.len(),
            bytes: &self.memory[start..][..n_read * self.head_bytes],
            n_chunk: self.shape.head_dim.div_ceil(LANES),
            chunk,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use schemas::gguf::DType;

    use super::*;
    use crate::backend::{
        AttentionInput, AttentionOp, AttentionShape, Backend, CacheType, MatmulOp, WeightData,
    };
    use crate::cpu::CpuConfig;
    use crate::cpu::read_ahead::Start;
    use crate::simd::portable::Portable;

    /// Decodes a row with one head, both transposed and not.
    fn read(cache: &Cache, row: usize) -> [Vec<f32>; 2] {
        let mut square = Square::ZERO;
        cache.transpose(Portable, 0, row..row + 1, 0, &mut square);
        let as_key = square.0.iter().map(|element| element[0]).collect();
        cache.decode(Portable, 0, row..row + 1, 0, &mut square.0[..1]);
        [as_key, square.0[0].to_vec()]
    }

    #[test]
    fn numbers_that_are_not_finite_stay_so() {
        let cpu = Cpu::new(CpuConfig::default()).expect("threads");
        for element in CacheType::all() {
            let mut cache = Cache::new(
                &cpu,
                &CacheShape {
                    n_rows: 3,
                    n_head: 1,
                    head_dim: 32,
                    element,
                },
            );
            let mut rows: Vec<f32> = (0..64).map(|i| i as f32 - 20.0).collect();
            rows[40] = f32::NAN;
            rows[41] = f32::INFINITY;
            cache.store_rows(&rows, &[2, 0]);
            for [written, dead, invalid] in
                [0, 1].map(|i| [2, 1, 0].map(|row| read(&cache, row)[i].clone()))
            {
                assert!(written.iter().all(|x| x.is_finite()), "{element}");
                assert!(dead.iter().all(|x| x.is_nan()), "{element}");
                assert!(
                    !invalid[8].is_finite() && !invalid[9].is_finite(),
                    "{element}"
                );
            }
        }
    }

    #[test]
    fn caches_are_read_ahead() {
        const DIM: usize = 32;
        const N_KEY: usize = 5;
        let config = CpuConfig {
            threads: 2,
            ..CpuConfig::default()
        };
        let cpu = Cpu::new(config).expect("threads");
        let weight = WeightData {
            dtype: DType::F32,
            n_rows: DIM,
            n_cols: DIM,
            bytes: Arc::new(vec![0; 4 * DIM * DIM]),
        };
        let weight = cpu.load(weight).expect("a type with products");
        let element = CacheType::all().next().expect("a type");
        let [k, v] = [(); 2].map(|()| {
            cpu.cache(&CacheShape {
                n_rows: N_KEY,
                n_head: 2,
                head_dim: DIM,
                element,
            })
        });
        let shape = AttentionShape {
            n_head: 2,
            n_head_kv: 2,
            head_dim: DIM,
            scale: 1.0,
            window: None,
        };
        let (x, mut out) = (cpu.buffer(2 * DIM), cpu.buffer(2 * DIM));
        let input = AttentionInput {
            q: &x,
            k: &k,
            v: &v,
            sinks: None,
        };
        cpu.matmul(&weight, &x, 1, &mut out);
        cpu.attention(&shape, input, &vec![0..N_KEY; 1], &mut out);
        let starts = [0, 1].map(|head| {
            Start::from_iter([&k, &v].map(|cache| {
                let bytes = cache.bytes(head, 0..N_KEY).as_ptr_range();
                bytes.start.addr()..bytes.end.addr()
            }))
        });
        assert_eq!(*weight.follower.starts(), starts, "a head for each thread");
        cpu.matmul(&weight, &x, 1, &mut out);
        assert_eq!(k.follower.starts().len(), 2, "the weight, by thread");
    }
}
