//! KV caches: keys or values of past tokens in the element type of the cache.

pub(crate) mod cpu;
pub(crate) mod cuda;

use std::fmt::{self, Display};
use std::ops::Range;

use schemas::gguf::DType;

use crate::backend::Storage;
use crate::types::common::cache::CacheAccess;
use crate::types::{ElementType, TYPES};

/// KV caches: keys or values of past tokens in the element type of the cache.
pub trait CacheOp: Storage {
    /// Returns a cache in which every element, or its block scale, is NaN, so that a read of an unwritten
    /// cell shows.
    fn cache(&self, shape: &CacheShape) -> Self::Cache;

    /// Stores row `i` of `src`, `n_head * head_dim` elements, in row `rows[i]` of a cache, rounded as
    /// quantizing to its type does. NaN and infinity stay non-finite.
    fn store_rows(&self, src: &Self::Buffer, rows: &[usize], cache: &mut Self::Cache);

    /// Copies `n` rows of a cache from row `from` to row `to` without conversion; the ranges do not
    /// overlap.
    fn copy_cached(&self, cache: &mut Self::Cache, from: usize, to: usize, n: usize);

    /// Copies rows of two caches of the same type and head size, with one head, to a third, without conversion. `chosen`
    /// has indices of rows, `n_chosen` for each entry of `parts`, counted from its first row of the second cache;
    /// without it, the first rows are copied.
    fn gather_cached(
        &self,
        sources: [&Self::Cache; 2],
        chosen: Option<(&Self::Chosen, usize)>,
        parts: &[GatheredRows],
        to: &mut Self::Cache,
    );
}

/// Rows that a query attends to, which [`CacheOp::gather_cached`] makes consecutive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatheredRows {
    /// Index of the query in the batch.
    pub query: usize,
    /// Rows of the first cache.
    pub first: Range<usize>,
    /// Rows of the second cache: all of them, or the number of chosen ones after its start.
    pub second: Range<usize>,
    /// Row of the result that receives the first of them.
    pub to: usize,
}

impl GatheredRows {
    /// Returns the rows of the result.
    pub fn gathered(&self) -> Range<usize> {
        self.to..self.to + self.first.len() + self.second.len()
    }
}

/// Element type of a KV cache: one whose descriptor has functions for caches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CacheType(DType);

impl CacheType {
    /// Single precision.
    pub const F32: CacheType = CacheType(DType::F32);
    /// Half precision.
    pub const F16: CacheType = CacheType(DType::F16);
    /// bfloat16: the upper half of single precision.
    pub const BF16: CacheType = CacheType(DType::BF16);
    /// 8-bit quants in blocks of 32 with a half-precision scale.
    pub const Q8_0: CacheType = CacheType(DType::Q8_0);

    /// Returns all types.
    pub fn all() -> impl Iterator<Item = CacheType> {
        let types = TYPES.iter().filter(|t| t.cache.is_some());
        types.map(|t| CacheType(t.dtype))
    }

    /// Returns all types with the names that users give.
    pub fn names() -> Vec<(&'static str, CacheType)> {
        CacheType::all().map(|t| (t.name(), t)).collect()
    }

    /// Returns the name that users give.
    pub fn name(self) -> &'static str {
        self.descriptor().1.name
    }

    /// Returns the corresponding element type of files.
    pub fn dtype(self) -> DType {
        self.0
    }

    /// Elements per block. Head sizes must be a multiple of it.
    pub fn block_len(self) -> usize {
        let layout = self.0.layout();
        layout.expect("types of caches have layouts").block_len as usize
    }

    /// Returns the type's descriptor and its functions for caches.
    pub(crate) fn descriptor(self) -> (&'static ElementType, &'static CacheAccess) {
        let found = TYPES.iter().find(|t| t.dtype == self.0);
        let found = found.and_then(|t| Some((t, t.cache.as_ref()?)));
        found.expect("a cache type has functions for caches")
    }
}

impl Default for CacheType {
    fn default() -> CacheType {
        CacheType::F16
    }
}

impl Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// Shape of a KV cache: rows of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Rows, one per cell.
    pub n_rows: usize,
    /// Heads per row.
    pub n_head: usize,
    /// Elements per head, a multiple of the type's block length.
    pub head_dim: usize,
    /// Element type.
    pub element: CacheType,
}

impl CacheShape {
    /// Heads are padded in memory to a multiple of this many elements.
    pub const PADDED_TO: usize = 32;

    /// Bytes of one head of a row.
    pub fn head_bytes(&self) -> usize {
        let len = self.head_dim.next_multiple_of(CacheShape::PADDED_TO);
        let bytes = self.element.dtype().row_bytes(len as u64);
        bytes.expect("whole blocks") as usize
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> u128 {
        self.n_rows as u128 * self.n_head as u128 * self.head_bytes() as u128
    }
}
