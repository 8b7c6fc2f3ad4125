//! Compression of positions, and the choice of compressed positions.

use bytemuck::NoUninit;

use super::CompressionOp;
use crate::backend::{
    CompressionInput, CompressionShape, IndexerInput, IndexerShape, KeyRows, SourceRow,
};
use crate::cuda::device::{Address, Grid, Kernel, Unit};
use crate::cuda::memory::Buffer;
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::{Cuda, count, kernel};
use crate::ops::choose::cuda::Chosen;

/// The kernels of compressions.
pub(crate) const SOURCE: Source = Source {
    name: "compression",
    text: include_str!("compression.cu"),
    compiled_for: CompiledFor::Single,
};

/// The kernels that read caches.
pub(crate) const INDEXER_SOURCE: Source = Source {
    name: "indexer",
    text: include_str!("indexer.cu"),
    compiled_for: CompiledFor::Caches,
};

impl CompressionOp for Cuda {
    fn compress(
        &self,
        shape: &CompressionShape,
        input: CompressionInput<'_, Self>,
        sources: &[SourceRow],
        out: &mut Buffer,
    ) {
        if sources.is_empty() {
            return;
        }
        let (width, n_group) = (shape.width(), sources.len() / shape.n_source());
        let reach = |of: fn(&SourceRow) -> Option<usize>| {
            sources.iter().filter_map(of).max().map_or(0, |row| row + 1)
        };
        let n_row = reach(|source| match *source {
            SourceRow::Batch(row) => Some(row),
            _ => None,
        });
        let n_slot = reach(|source| match *source {
            SourceRow::Kept(slot) => Some(slot),
            _ => None,
        });
        let table: Vec<u32> = sources
            .iter()
            .map(|source| match *source {
                SourceRow::Missing => u32::MAX,
                SourceRow::Batch(row) => count(row),
                SourceRow::Kept(slot) => count(slot) | IS_KEPT,
            })
            .collect();
        let ape = input.ape.numbers(self);
        let mut shared = self.shared();
        let args = Compress {
            kv: input.kv.first(n_row * width),
            gate: input.gate.first(n_row * width),
            kept: input.kept.first(2 * n_slot * width),
            ape,
            sources: self.table(&mut shared, &table),
            out: out.first_mut(n_group * shape.dim),
            len: (n_group * shape.dim) as u64,
            ratio: count(shape.ratio),
            dim: count(shape.dim),
            width: count(width),
            n_source: count(shape.n_source()),
        };
        let grid = Grid::elements(n_group * shape.dim, 256);
        // SAFETY: the arguments are the struct of the kernel; the buffers hold the rows and slots of the sources.
        unsafe { self.launch(kernel("compression", "compress"), grid, &args) };
    }

    fn keep_rows(
        &self,
        kv: &Buffer,
        gate: &Buffer,
        width: usize,
        pairs: &[(usize, usize)],
        kept: &mut Buffer,
    ) {
        if pairs.is_empty() {
            return;
        }
        let n_row = pairs.iter().map(|pair| pair.0 + 1).max().unwrap_or(0);
        let n_slot = pairs.iter().map(|pair| pair.1 + 1).max().unwrap_or(0);
        let table: Vec<u32> = pairs
            .iter()
            .flat_map(|&(row, slot)| [row, slot].map(count))
            .collect();
        let mut shared = self.shared();
        let args = KeepRows {
            kv: kv.first(n_row * width),
            gate: gate.first(n_row * width),
            kept: kept.first_mut(2 * n_slot * width),
            pairs: self.table(&mut shared, &table),
            len: (pairs.len() * width) as u64,
            width: width as u64,
        };
        let grid = Grid::elements(pairs.len() * width, 256);
        // SAFETY: the arguments are the struct of the kernel; the buffers hold the rows and slots of the pairs.
        unsafe { self.launch(kernel("compression", "keep_rows"), grid, &args) };
    }

    fn choose_rows(
        &self,
        shape: &IndexerShape,
        input: IndexerInput<'_, Self>,
        visible: &[KeyRows],
        chosen: &mut Chosen,
    ) {
        let IndexerShape {
            n_head,
            head_dim,
            n_chosen,
        } = *shape;
        let end = visible.iter().map(|rows| rows.end).max().unwrap_or(0);
        let cache = input.k.shape;
        assert!(cache.n_head == 1 && cache.head_dim == head_dim && end <= cache.n_rows);
        if n_chosen == 0 || end == 0 {
            return;
        }
        let most = visible.iter().map(KeyRows::len).max().unwrap_or(0);
        let capacity = if most > n_chosen { most } else { 0 };
        let rows_at_once = (MAX_SCORES / capacity.max(1)).clamp(1, 1 << 15);
        let mut shared = self.shared();
        let n_bytes = visible.len().min(rows_at_once) * capacity * size_of::<f32>();
        let scores = self.scratch(&mut shared, n_bytes.max(size_of::<f32>()));
        for (i, rows) in visible.chunks(rows_at_once).enumerate() {
            let (first, n) = (i * rows_at_once, rows.len());
            let table: Vec<u32> = rows
                .iter()
                .flat_map(|rows| [rows.start, rows.end].map(count))
                .collect();
            let args = Indexer {
                q: input.q.at(first * n_head * head_dim, n * n_head * head_dim),
                weights: input.weights.at(first * n_head, n * n_head),
                k: input.k.memory.address(),
                visible: self.table(&mut shared, &table),
                scores,
                chosen: chosen.indices(first * n_chosen, n * n_chosen),
                k_rows: count(cache.n_rows),
                n_head: count(n_head),
                head_dim: count(head_dim),
                n_chosen: count(n_chosen),
                capacity: count(capacity),
                unused: 0,
            };
            let unit = Unit::of_cache("indexer", cache.element);
            let launch = |name, blocks| {
                let grid = Grid::new(blocks, THREADS as u32);
                // SAFETY: the arguments are the struct of the kernels; the cache, whose type the unit is for, holds
                // the visible rows, the scratch their scores, and there is room for the choices of all queries.
                unsafe { self.launch(Kernel { unit, name }, grid, &args) };
            };
            if capacity > 0 {
                launch(
                    "score_rows",
                    [count(capacity.div_ceil(THREADS)), count(n), 1],
                );
            }
            launch("choose_rows", [count(n), 1, 1]);
        }
    }
}

/// Threads per block of the choice.
const THREADS: usize = 256;

/// Maximum number of scores. If a batch needs more, its rows are processed in several passes.
const MAX_SCORES: usize = 1 << 24;

/// Bit of a source that is a slot of the kept rows.
const IS_KEPT: u32 = 1 << 31;

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Compress {
    kv: Address,
    gate: Address,
    kept: Address,
    ape: Address,
    sources: Address,
    out: Address,
    len: u64,
    ratio: u32,
    dim: u32,
    width: u32,
    n_source: u32,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct KeepRows {
    kv: Address,
    gate: Address,
    kept: Address,
    pairs: Address,
    len: u64,
    width: u64,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Indexer {
    q: Address,
    weights: Address,
    k: Address,
    visible: Address,
    scores: Address,
    chosen: Address,
    k_rows: u32,
    n_head: u32,
    head_dim: u32,
    n_chosen: u32,
    capacity: u32,
    unused: u32,
}
