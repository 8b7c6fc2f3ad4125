//! Allocation of buffers other than caches: by a backend, or by a counter that only sums sizes.
//! Both run the same constructors, so a plan reports exactly what a run allocates.

use std::cell::Cell;

use kernels::backend::{Backend, CacheShape};

/// An allocator of buffers: every [`Backend`], and [`Counted`].
pub trait Memory {
    /// A buffer of `f32` elements.
    type Floats;
    /// The experts chosen for each row.
    type Routes;
    /// A buffer of chosen tokens.
    type Tokens;
    /// Rows of keys and values.
    type Cache;

    /// Allocates a persistent buffer, whose elements are kept between passes.
    fn persistent(&self, len: usize) -> Self::Floats;

    /// Allocates a scratch buffer of a pass; most passes use only a part of it.
    fn scratch(&self, len: usize) -> Self::Floats;

    /// Allocates routes of `n` rows to `n_used` experts each.
    fn expert_routes(&self, n: usize, n_used: usize) -> Self::Routes;

    /// Allocates a cache that a pass fills and reads.
    fn scratch_cache(&self, shape: &CacheShape) -> Self::Cache;

    /// Allocates `n` chosen tokens with their logits.
    fn chosen_tokens(&self, n: usize) -> Self::Tokens;
}

impl<B: Backend> Memory for B {
    type Floats = B::Buffer;
    type Routes = B::Routes;
    type Tokens = B::Chosen;
    type Cache = B::Cache;

    fn persistent(&self, len: usize) -> B::Buffer {
        self.buffer(len)
    }

    fn scratch(&self, len: usize) -> B::Buffer {
        Backend::scratch(self, len)
    }

    fn expert_routes(&self, n: usize, n_used: usize) -> B::Routes {
        self.routes(n, n_used)
    }

    fn scratch_cache(&self, shape: &CacheShape) -> B::Cache {
        self.cache(shape)
    }

    fn chosen_tokens(&self, n: usize) -> B::Chosen {
        self.chosen(n)
    }
}

/// A counter of the bytes that would be allocated.
#[derive(Debug, Default)]
pub struct Counted {
    bytes: Cell<u64>,
}

impl Counted {
    /// Returns the bytes that `take` would allocate.
    pub fn of<T>(take: impl FnOnce(&Counted) -> T) -> u64 {
        let counted = Counted::default();
        take(&counted);
        counted.bytes.get()
    }

    fn count(&self, n: usize, element_bytes: usize) {
        let bytes = (n as u64).saturating_mul(element_bytes as u64);
        self.bytes.set(self.bytes.get().saturating_add(bytes));
    }
}

impl Memory for Counted {
    type Floats = ();
    type Routes = ();
    type Tokens = ();
    type Cache = ();

    fn persistent(&self, len: usize) {
        self.count(len, size_of::<f32>());
    }

    fn scratch(&self, len: usize) {
        self.count(len, size_of::<f32>());
    }

    /// Counts an expert index and its weight per choice.
    fn expert_routes(&self, n: usize, n_used: usize) {
        self.count(
            n.saturating_mul(n_used),
            size_of::<u32>() + size_of::<f32>(),
        );
    }

    fn scratch_cache(&self, shape: &CacheShape) {
        self.count(shape.bytes().try_into().unwrap_or(usize::MAX), 1);
    }

    fn chosen_tokens(&self, n: usize) {
        self.count(n, size_of::<u32>() + size_of::<f32>());
    }
}
