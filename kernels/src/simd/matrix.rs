//! Matrix units: products of a tile with sixteen activation rows by one instruction.

use super::LANES;
use super::packed::{ROWS, WordBytes};

/// A matrix unit, configured for this thread while the value lives.
///
/// It has two accumulators, so that one product is computed while the one before it is stored.
pub(crate) trait MatrixUnit {
    /// Multiplies the words of a tile of [`TileEncoding::Signed`](super::packed::TileEncoding::Signed) by sixteen rows
    /// of raised activations, in accumulator `ACCUMULATOR`: 0 or 1. `quants` returns a field of a row.
    fn multiply<const ACCUMULATOR: usize, T>(
        &self,
        words: &[WordBytes; LANES / 4],
        x: &[T; ROWS],
        quants: impl Fn(&T) -> &[u32; LANES / 4],
    );
    /// Stores the sums of an accumulator, one word per weight row for each activation row.
    fn store<const ACCUMULATOR: usize>(&self, sums: &mut [WordBytes; ROWS]);
}

/// The matrix unit of instruction sets that have none.
pub(crate) enum NoMatrixUnit {}

impl MatrixUnit for NoMatrixUnit {
    fn multiply<const ACCUMULATOR: usize, T>(
        &self,
        _: &[WordBytes; LANES / 4],
        _: &[T; ROWS],
        _: impl Fn(&T) -> &[u32; LANES / 4],
    ) {
        match *self {}
    }

    fn store<const ACCUMULATOR: usize>(&self, _: &mut [WordBytes; ROWS]) {
        match *self {}
    }
}
