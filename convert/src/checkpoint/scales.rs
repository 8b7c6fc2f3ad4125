//! Scales of FP8 weights: the weight is element times scale in single precision, as transformers and
//! llama.cpp's converter compute it.

use schemas::gguf::{Extent, FileRange, ReadError, Source, SourceError};

use crate::decode::Decoder;

/// The scales of a tensor, one per block.
#[derive(Clone)]
pub(crate) struct Scales {
    data: FileRange,
    decoder: Decoder,
    /// The tensor's shape.
    shape: Vec<u64>,
    /// Block size along each axis.
    block: Vec<u64>,
}

impl Scales {
    /// Checks that the scales of this shape fit a tensor; returns `None` if they do not. `announced` is the
    /// block size of the config: rows and columns.
    pub(super) fn new(
        data: FileRange,
        decoder: Decoder,
        counts: &[u64],
        shape: &[u64],
        announced: Option<[u64; 2]>,
    ) -> Option<Scales> {
        let n_axes = shape.len();
        // Missing axes of the scales are the last ones, with one scale for all elements.
        let mut counts = counts.to_vec();
        counts.resize(counts.len().max(n_axes), 1);
        let block = (0..n_axes).map(|axis| {
            let n = shape[axis];
            let announced =
                announced.and_then(|block| Some(block[(axis + 2).checked_sub(n_axes)?]));
            match (announced, counts[axis]) {
                (Some(block), count) => (count == n.div_ceil(block)).then_some(block),
                (None, 1) => Some(n.max(1)),
                (None, count) => (count == n).then_some(1),
            }
        });
        let block: Option<Vec<u64>> = block.collect();
        let block = block.filter(|_| counts.len() == n_axes && n_axes > 0);
        Some(Scales {
            block: block?,
            data,
            decoder,
            shape: shape.to_vec(),
        })
    }

    /// Returns the number of scales per row.
    fn columns(&self) -> u64 {
        let last = self.shape.len() - 1;
        self.shape[last].div_ceil(self.block[last])
    }

    /// Returns the row of scales for a row of the tensor.
    fn row(&self, row: u64) -> u64 {
        let (mut row, mut at, mut stride) = (row, 0, 1);
        for axis in (0..self.shape.len() - 1).rev() {
            let (n, block) = (self.shape[axis].max(1), self.block[axis]);
            at += row % n / block * stride;
            row /= n;
            stride *= n.div_ceil(block);
        }
        at
    }

    /// Reads the scales of contiguous rows.
    pub(crate) fn read(&self, first: u64, n_rows: u64) -> Result<RowScales<'_>, SourceError> {
        let rows = (first..first + n_rows).map(|row| self.row(row));
        let (start, end) = rows.fold((u64::MAX, 0), |(start, end), row| {
            (start.min(row), end.max(row + 1))
        });
        let n = end.saturating_sub(start) * self.columns();
        let element_bytes = self.decoder.element_bytes() as u64;
        let mut bytes = vec![0; (n * element_bytes) as usize];
        let offset = start * self.columns() * element_bytes;
        self.data.read_at(offset, &mut bytes)?;
        let mut values = vec![0.0; n as usize];
        self.decoder.decode(&bytes, &mut values);
        Ok(RowScales {
            scales: self,
            start,
            values,
        })
    }

    /// Checks that the file of the scales has not changed.
    pub(crate) fn check_unchanged(&self) -> Result<(), ReadError> {
        self.data.check_unchanged()
    }

    /// Returns the byte range of the scales.
    pub(crate) fn extent(&self) -> Extent {
        self.data.extent()
    }
}

/// The scales of some rows.
pub(crate) struct RowScales<'a> {
    scales: &'a Scales,
    /// First row of scales that was read.
    start: u64,
    values: Vec<f32>,
}

impl RowScales<'_> {
    /// Multiplies a row by its scales.
    pub(crate) fn apply(&self, row: u64, x: &mut [f32]) {
        let n = self.scales.columns() as usize;
        let at = (self.scales.row(row) - self.start) as usize * n;
        let width = *self.scales.block.last().expect("a tensor has an axis") as usize;
        for (x, &scale) in x.chunks_mut(width).zip(&self.values[at..at + n]) {
            x.iter_mut().for_each(|x| *x *= scale);
        }
    }
}
