//! Compression of positions, and the choice of compressed positions that queries attend to.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::backend::{KeyRows, Storage};

/// Compression of positions, and the choice of compressed positions that queries attend to.
pub trait CompressionOp: Storage {
    /// Reduces groups of rows to one row each: for every column the average of `kv`, weighted by the softmax of
    /// `gate + ape` over the rows of the group. kv and gate are rows of the batch, `(n, width)`; kept rows have both,
    /// `(slots, 2 * width)`, ape `(ratio, width)`; out `(sources.len() / shape.n_source(), dim)`.
    fn compress(
        &self,
        shape: &CompressionShape,
        input: CompressionInput<'_, Self>,
        sources: &[SourceRow],
        out: &mut Self::Buffer,
    );

    /// Copies rows of the batch, `(n, width)`, to slots of kept rows, `(slots, 2 * width)`. Each pair has a row and its
    /// slot.
    fn keep_rows(
        &self,
        kv: &Self::Buffer,
        gate: &Self::Buffer,
        width: usize,
        pairs: &[(usize, usize)],
        kept: &mut Self::Buffer,
    );

    /// Chooses for each query the `n_chosen` visible cache rows with the largest scores, or all if there are not
    /// more, and stores their distances from the first visible row in ascending order; those of query `i` from index
    /// `i * n_chosen` on. A score is `sum(max(q . k, 0) * w)` over the heads. Of equal scores, the first row is chosen.
    /// q `(n, n_head * head_dim)`, w `(n, n_head)`; the cache has one head.
    fn choose_rows(
        &self,
        shape: &IndexerShape,
        input: IndexerInput<'_, Self>,
        visible: &[KeyRows],
        chosen: &mut Self::Chosen,
    );
}

/// Shape of a compression.
#[derive(Clone, Copy, Debug)]
pub struct CompressionShape {
    /// Positions of a group.
    pub ratio: usize,
    /// Elements of a compressed row.
    pub dim: usize,
    /// True if a compressed row also has the first half of the columns of the group before; rows are then twice as
    /// wide.
    pub overlaps: bool,
}

impl CompressionShape {
    /// Returns the elements of a row.
    pub fn width(&self) -> usize {
        self.dim * (1 + usize::from(self.overlaps))
    }

    /// Returns the number of rows that are reduced to one.
    pub fn n_source(&self) -> usize {
        self.ratio * (1 + usize::from(self.overlaps))
    }
}

/// A row of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRow {
    /// The position is before the start of the sequence; its weight is zero.
    Missing,
    /// A row of the batch.
    Batch(usize),
    /// A slot of the kept rows.
    Kept(usize),
}

/// Operands of [`CompressionOp::compress`].
pub struct CompressionInput<'a, B: Storage> {
    /// Values of the batch.
    pub kv: &'a B::Buffer,
    /// Scores of the batch.
    pub gate: &'a B::Buffer,
    /// Values and scores of earlier positions.
    pub kept: &'a B::Buffer,
    /// Added to scores by place in the group.
    pub ape: &'a B::Weight,
}

/// Shape of a choice of rows.
#[derive(Clone, Copy, Debug)]
pub struct IndexerShape {
    /// Query heads.
    pub n_head: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Maximum number of rows per query.
    pub n_chosen: usize,
}

/// Operands of [`CompressionOp::choose_rows`].
pub struct IndexerInput<'a, B: Storage> {
    /// Queries.
    pub q: &'a B::Buffer,
    /// Weights of the heads.
    pub weights: &'a B::Buffer,
    /// The key cache.
    pub k: &'a B::Cache,
}
