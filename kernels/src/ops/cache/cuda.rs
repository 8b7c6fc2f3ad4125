//! KV cache of one layer, keys or values, in the cache's element type.

use bytemuck::NoUninit;

use super::CacheOp;
use crate::backend::{CacheShape, GatheredRows};
use crate::cuda::device::{Address, Grid, Kernel, Memory, Unit};
use crate::cuda::memory::Buffer;
use crate::cuda::queue::Touched;
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::{Cuda, count};
use crate::ops::choose::cuda::Chosen;

/// The kernels.
pub(crate) const SOURCE: Source = Source {
    name: "cache",
    text: include_str!("cache.cu"),
    compiled_for: CompiledFor::Caches,
};

impl CacheOp for Cuda {
    fn cache(&self, shape: &CacheShape) -> Cache {
        Cache::new(self, shape)
    }

    fn store_rows(&self, src: &Buffer, rows: &[usize], cache: &mut Cache) {
        let CacheShape {
            n_rows,
            n_head,
            head_dim,
            element,
        } = cache.shape;
        assert!(rows.iter().all(|&row| row < n_rows), "rows of the cache");
        let table: Vec<u32> = rows.iter().map(|&row| count(row)).collect();
        let mut shared = self.shared();
        let args = StoreRows {
            src: src.first(rows.len() * n_head * head_dim),
            rows: self.table(&mut shared, &table),
            cache: cache.memory.address(),
            n_stored: count(rows.len()),
            n_rows: count(n_rows),
            n_head: count(n_head),
            head_dim: count(head_dim),
        };
        let touched = Touched {
            reads: [args.src, Address::NONE],
            writes: [args.cache, Address::NONE],
        };
        let unit = Unit::of_cache("cache", element);
        let name = "store_rows";
        let grid = Grid::elements(32 * rows.len() * n_head, 128);
        // SAFETY: the arguments are the struct of the kernel; the rows lie within the cache, whose type the
        // unit is for.
        unsafe { self.launch_joined(Kernel { unit, name }, grid, &args, touched) };
    }

    fn copy_cached(&self, cache: &mut Cache, from: usize, to: usize, n: usize) {
        let CacheShape { n_rows, n_head, .. } = cache.shape;
        assert!(from.max(to) + n <= n_rows, "rows of the cache");
        let len = cache.shape.head_bytes();
        for head in 0..n_head {
            let place = |row| cache.memory.address().offset((head * n_rows + row) * len);
            // SAFETY: both ranges lie within the cache and do not overlap.
            unsafe { self.copy(place(from), place(to), n * len) };
        }
    }

    fn gather_cached(
        &self,
        sources: [&Cache; 2],
        chosen: Option<(&Chosen, usize)>,
        parts: &[GatheredRows],
        to: &mut Cache,
    ) {
        let [first, second] = sources;
        let n_chosen = chosen.map_or(0, |(_, n)| n);
        for cache in [first, second] {
            let heads = (
                cache.shape.n_head,
                cache.shape.head_dim,
                cache.shape.element,
            );
            assert!(heads == (1, to.shape.head_dim, to.shape.element));
        }
        let most = |rows: fn(&GatheredRows) -> usize| parts.iter().map(rows).max().unwrap_or(0);
        assert!(
            most(|part| part.first.end) <= first.shape.n_rows
                && most(|part| part.second.end) <= second.shape.n_rows
                && most(|part| part.gathered().end) <= to.shape.n_rows
        );
        let n_most = most(|part| part.gathered().len());
        if n_most == 0 {
            return;
        }
        let n_query = most(|part| part.query + 1);
        let table: Vec<u32> = parts
            .iter()
            .flat_map(|part| {
                let GatheredRows {
                    query,
                    first,
                    second,
                    to,
                } = part;
                [
                    *query,
                    first.start,
                    first.len(),
                    second.start,
                    second.len(),
                    *to,
                ]
                .map(count)
            })
            .collect();
        let mut shared = self.shared();
        let args = GatherCached {
            first: first.memory.address(),
            second: second.memory.address(),
            chosen: chosen.map_or(Address::NONE, |(chosen, n)| chosen.indices(0, n_query * n)),
            parts: self.table(&mut shared, &table),
            to: to.memory.address(),
            n_chosen: count(n_chosen),
            head_bytes: count(to.shape.head_bytes()),
        };
        let unit = Unit::of_cache("cache", to.shape.element);
        let name = "gather_cached";
        let grid = Grid::new([count(n_most.div_ceil(4)), count(parts.len()), 1], 128);
        // SAFETY: the arguments are the struct of the kernel; the rows lie within the caches.
        unsafe { self.launch(Kernel { unit, name }, grid, &args) };
    }
}

/// The keys or values of all cells of a layer: `(n_head, n_rows)`, each entry the bytes of one head.
pub struct Cache {
    pub(crate) shape: CacheShape,
    pub(crate) memory: Memory,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct StoreRows {
    src: Address,
    rows: Address,
    cache: Address,
    n_stored: u32,
    n_rows: u32,
    n_head: u32,
    head_dim: u32,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct GatherCached {
    first: Address,
    second: Address,
    chosen: Address,
    parts: Address,
    to: Address,
    n_chosen: u32,
    head_bytes: u32,
}

impl Cache {
    /// A cache with all bits set, which is NaN in every type.
    pub(crate) fn new(cuda: &Cuda, shape: &CacheShape) -> Cache {
        let bytes = shape.n_rows * shape.n_head * shape.head_bytes();
        let memory = cuda.filled(u32::MAX, bytes.div_ceil(size_of::<u32>()));
        let shape = *shape;
        Cache { shape, memory }
    }
}
