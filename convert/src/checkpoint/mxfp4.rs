//! MXFP4 weights of checkpoints, stored in two tensors: pairs of four-bit floats, and the exponents of
//! blocks of 32. GGUF files store the same data block by block.

use std::collections::HashMap;
use std::ops::Range;

use safetensors::Dtype;
use schemas::gguf::{Extent, FilePosition, FileRange, ReadError, Source, SourceError};

use super::stored::StoredTensor;
use crate::error::Error;

/// Elements per block.
const BLOCK: usize = Blocks::ELEMENTS as usize;
/// Bytes of the quants of a block.
const QUANT_BYTES: usize = BLOCK / 2;
/// Bytes of a block in GGUF: the exponent, then the quants.
const FILE_BLOCK: usize = 1 + QUANT_BYTES;

/// A way to store four-bit floats in two tensors.
pub(super) struct Layout {
    /// Suffixes of the names of quants and of exponents.
    suffixes: [&'static str; 2],
    /// Types of quants, and of exponents.
    types: [&'static [Dtype]; 2],
    /// True if the bytes of a block are an axis of their own; false if they are columns.
    has_block_axis: bool,
}

/// The layout of gpt-oss.
pub(super) const BLOCKS: Layout = Layout {
    suffixes: ["_blocks", "_scales"],
    types: [&[Dtype::U8], &[Dtype::U8]],
    has_block_axis: true,
};

/// The layout of DeepSeek V4.
pub(super) const PAIRS: Layout = Layout {
    suffixes: [".weight", ".scale"],
    types: [&[Dtype::I8, Dtype::U8], &[Dtype::F8_E8M0, Dtype::U8]],
    has_block_axis: false,
};

impl Layout {
    /// Returns the shape of the elements, given those of quants and exponents; `None` if these do not match.
    fn elements(&self, quants: &[u64], exponents: &[u64]) -> Option<Vec<u64>> {
        let mut expected = exponents.to_vec();
        let n_block = expected.last_mut()?;
        let mut shape = exponents.to_vec();
        *shape.last_mut()? = n_block.checked_mul(BLOCK as u64)?;
        match self.has_block_axis {
            true => expected.push(QUANT_BYTES as u64),
            false => *n_block = n_block.checked_mul(QUANT_BYTES as u64)?,
        }
        (expected == quants).then_some(shape)
    }
}

/// Attaches the exponents to every tensor of quants, removes them from the list, and sets the shape to that
/// of the elements.
///
/// # Errors
/// Exponents are missing, or their shape does not match.
pub(super) fn attach(
    mut tensors: Vec<StoredTensor>,
    layout: &Layout,
) -> Result<Vec<StoredTensor>, Error> {
    let names: HashMap<String, usize> = tensors
        .iter()
        .enumerate()
        .map(|(i, tensor)| (tensor.name.clone(), i))
        .collect();
    let mut is_scales = vec![false; tensors.len()];
    for i in 0..tensors.len() {
        let tensor = &tensors[i];
        let stem = tensor.name.strip_suffix(layout.suffixes[0]);
        let Some(stem) = stem.filter(|_| layout.types[0].contains(&tensor.dtype)) else {
            continue;
        };
        let name = format!("{stem}{}", layout.suffixes[1]);
        let &at = names.get(&name).ok_or_else(|| Error::MissingScales {
            path: tensor.path(),
            tensor: tensor.name.clone(),
            dtype: tensor.dtype,
            scale: name,
        })?;
        let scales = &tensors[at];
        let is_exponent = layout.types[1].contains(&scales.dtype);
        let shape = layout.elements(&tensor.shape, &scales.shape);
        let Some(shape) = shape.filter(|_| is_exponent) else {
            return Err(Error::ScalesShape {
                path: scales.path(),
                tensor: scales.name.clone(),
                found: scales.shape.clone(),
                scaled: tensor.shape.clone(),
                blocks: Some(vec![QUANT_BYTES as u64]),
            });
        };
        is_scales[at] = true;
        let exponents = scales.data.clone();
        tensors[i].shape = shape;
        tensors[i].exponents = Some(exponents);
    }
    let mut is_scales = is_scales.into_iter();
    tensors.retain(|_| !is_scales.next().unwrap_or_default());
    Ok(tensors)
}

/// Blocks in the row order of a file.
pub(crate) struct Blocks<F> {
    pub(crate) quants: FileRange,
    pub(crate) exponents: FileRange,
    /// Blocks per row.
    pub(crate) n_block: usize,
    /// Maps a row of the file to a row of the checkpoint; monotonic.
    pub(crate) stored_row: F,
}

/// Bytes of quants that are read at a time.
const READ_BYTES: usize = 1 << 20;

impl Blocks<()> {
    /// Elements per block.
    pub(crate) const ELEMENTS: u64 = 32;
}

impl<F: Fn(u64) -> u64 + Send + Sync> Source for Blocks<F> {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let row_bytes = self.n_block * QUANT_BYTES;
        let n_max = (READ_BYTES / row_bytes.max(1)).max(1) as u64;
        let mut out = out.chunks_exact_mut(self.n_block * FILE_BLOCK);
        let (mut quants, mut exponents) = (Vec::new(), Vec::new());
        let mut start = rows.start;
        while start < rows.end {
            let end = rows.end.min(start + n_max);
            // Also reads rows between the requested ones.
            let first = (self.stored_row)(start);
            let n_stored = ((self.stored_row)(end - 1) + 1 - first) as usize;
            quants.resize(n_stored * row_bytes, 0);
            exponents.resize(n_stored * self.n_block, 0);
            self.quants.read_at(first * row_bytes as u64, &mut quants)?;
            self.exponents
                .read_at(first * self.n_block as u64, &mut exponents)?;
            for (row, out) in (start..end).zip(out.by_ref()) {
                let at = ((self.stored_row)(row) - first) as usize * self.n_block;
                let (blocks, _) = quants[at * QUANT_BYTES..].as_chunks::<QUANT_BYTES>();
                let blocks = exponents[at..].iter().zip(blocks);
                for (out, (&exponent, quants)) in out.chunks_exact_mut(FILE_BLOCK).zip(blocks) {
                    out[0] = exponent;
                    out[1..].copy_from_slice(&repack(quants));
                }
            }
            start = end;
        }
        Ok(())
    }

    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        let offset = (self.stored_row)(row) * (self.n_block * QUANT_BYTES) as u64;
        Some(self.quants.position(offset))
    }

    fn extents(&self) -> Vec<Extent> {
        vec![self.quants.extent(), self.exponents.extent()]
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        self.quants.check_unchanged()?;
        self.exponents.check_unchanged()
    }
}

/// Repacks quants: neighbours in a byte, the first in the low nibble, to elements half a block apart.
fn repack(quants: &[u8; QUANT_BYTES]) -> [u8; QUANT_BYTES] {
    let quant = |i: usize| quants[i / 2] >> (i % 2 * 4) & 15;
    std::array::from_fn(|i| quant(i) | quant(i + QUANT_BYTES) << 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_keep_their_elements() {
        // Element i has the quant i for i < 16, else 31 - i.
        let element = |i: usize| if i < 16 { i as u8 } else { 31 - i as u8 };
        let quants = std::array::from_fn(|byte| element(2 * byte) | element(2 * byte + 1) << 4);
        let repacked = repack(&quants);
        for (i, byte) in repacked.into_iter().enumerate() {
            assert_eq!((byte & 15, byte >> 4), (element(i), element(i + 16)), "{i}");
        }
    }
}
