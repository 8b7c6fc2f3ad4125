//! Hyper-connections: several residual streams that are mixed before and after each part of a layer.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::backend::Storage;

/// Hyper-connections: several residual streams that are mixed before and after each part of a layer.
///
/// A row of weights starts with one factor per stream for the input of a part. Those of a connection continue with
/// one factor per stream for the output of the part, then `(source, destination)` factors between streams.
pub trait HyperConnectionOp: Storage {
    /// Computes `n` rows of weights from the products of the normalised streams: `v = mix * scale + base`, then
    /// `sigmoid(v) + eps` for inputs, `2 sigmoid(v)` for outputs, and a matrix between streams that alternating
    /// normalisations of columns and rows make doubly stochastic. mixes, base and out have `shape.n_weight` elements
    /// per row; scale has one element for each of the three kinds.
    fn stream_weights(
        &self,
        shape: &StreamShape,
        mixes: &Self::Buffer,
        scale: &Self::Weight,
        base: &Self::Weight,
        n: usize,
        out: &mut Self::Buffer,
    );

    /// Sums the streams of each row, x `(n, n_stream, dim)`, with the input factors of the weights: out `(n, dim)`.
    fn gather_streams(
        &self,
        shape: &StreamShape,
        x: &Self::Buffer,
        weights: &Self::Buffer,
        n: usize,
        out: &mut Self::Buffer,
    );

    /// Replaces each stream by the output of a part, `(n, dim)`, times its output factor, plus the sum of all
    /// streams times the factors to it; x `(n, n_stream, dim)`.
    fn scatter_streams(
        &self,
        shape: &StreamShape,
        x: &mut Self::Buffer,
        output: &Self::Buffer,
        weights: &Self::Buffer,
        n: usize,
    );
}

/// Shape of hyper-connections.
#[derive(Clone, Copy, Debug)]
pub struct StreamShape {
    /// Residual streams.
    pub n_stream: usize,
    /// Elements of a stream.
    pub dim: usize,
    /// Factors per row: `n_stream`, or those of a connection.
    pub n_weight: usize,
    /// Added to factors and sums.
    pub eps: f32,
    /// Normalisations of the columns of the matrix between streams.
    pub n_iteration: usize,
}

impl StreamShape {
    /// Returns the number of factors of a connection of `n` streams.
    pub fn connection(n: usize) -> usize {
        (2 + n) * n
    }

    /// True if rows have the factors of a connection, and not only those for inputs.
    pub fn is_connection(&self) -> bool {
        self.n_weight > self.n_stream
    }
}
