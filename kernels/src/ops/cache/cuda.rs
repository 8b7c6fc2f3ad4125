//! KV cache of one layer, keys or values, in the cache's element type.

use bytemuck::NoUninit;

use super::CacheOp;
use crate::backend::CacheShape;
use crate::cuda::device::{Address, Grid, Kernel, Memory, Unit};
use crate::cuda::memory::Buffer;
use crate::cuda::queue::Touched;
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::{Cuda, count};

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

impl Cache {
    /// A cache with all bits set, which is NaN in every type.
    pub(crate) fn new(cuda: &Cuda, shape: &CacheShape) -> Cache {
        let bytes = shape.n_rows * shape.n_head * shape.head_bytes();
        let memory = cuda.filled(u32::MAX, bytes.div_ceil(size_of::<u32>()));
        let shape = *shape;
        Cache { shape, memory }
    }
}
