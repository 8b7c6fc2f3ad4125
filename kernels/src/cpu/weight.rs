//! Weights of the CPU backend.

use std::borrow::Cow;
use std::ops::Range;
use std::slice::ChunksExact;
use std::sync::{Arc, OnceLock};

use schemas::gguf::DType;

use super::Cpu;
use super::arena::Arena;
use super::read_ahead::Follower;
use super::repack::Panels;
use crate::backend::{WeightBytes, WeightData};
use crate::simd::dispatch::Implementation;
use crate::types::{ElementType, Products, element_type};

/// Minimum size of a weight that stays in the mapped file. Smaller ones are copied: a system that maps
/// files in large pages would keep the surrounding pages in memory for them.
const MIN_MAPPED: usize = 1 << 16;

/// A weight in file encoding, with its codec.
pub struct Weight {
    /// Output features; 1 for a vector.
    pub(crate) n_rows: usize,
    /// Input features.
    pub(crate) n_cols: usize,
    element_type: &'static ElementType,
    /// The element type's products.
    pub(crate) products: &'static Products,
    implementation: Implementation,
    row_bytes: usize,
    bytes: WeightBytes,
    /// All elements in `f32`, transposed, computed on first use.
    transposed: OnceLock<Vec<f32>>,
    /// Repacked quants, created by the first product if the layout asks for them.
    panels: OnceLock<Panels>,
    pub(crate) follower: Follower,
}

impl Weight {
    /// `None` if the element type has no codec or no products.
    pub(crate) fn new(cpu: &Cpu, data: WeightData) -> Option<Weight> {
        Weight::of_type(cpu, element_type(data.dtype)?, data)
    }

    fn of_type(cpu: &Cpu, element_type: &'static ElementType, data: WeightData) -> Option<Weight> {
        let WeightData {
            dtype,
            n_rows,
            n_cols,
            bytes,
        } = data;
        let products = element_type.products.as_ref()?;
        let row_bytes = dtype.row_bytes(n_cols as u64)? as usize;
        let n_bytes = n_rows * row_bytes;
        assert_eq!((*bytes).as_ref().len(), n_bytes, "bytes of a weight");
        let bytes = if n_bytes < MIN_MAPPED {
            let copy = (*bytes).as_ref().to_vec();
            bytes.release_pages(0..n_bytes);
            Arc::new(copy)
        } else {
            bytes
        };
        Some(Weight {
            n_rows,
            n_cols,
            element_type,
            products,
            implementation: cpu.implementation,
            row_bytes,
            bytes,
            transposed: OnceLock::new(),
            panels: OnceLock::new(),
            follower: Follower::default(),
        })
    }

    /// The whole weight.
    pub(crate) fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// Releases the bytes of some rows, which are not expected to be read again.
    pub(crate) fn release_pages(&self, rows: Range<usize>) {
        let bytes = rows.start * self.row_bytes..rows.end * self.row_bytes;
        self.bytes.release_pages(bytes);
    }

    /// Returns the repacked rows, which `repack` creates on first use.
    pub(crate) fn panels_or_init(&self, repack: impl FnOnce() -> Panels) -> &Panels {
        self.panels.get_or_init(repack)
    }

    /// Returns the repacked rows, if any.
    #[inline(always)]
    pub(crate) fn panels(&self) -> Option<&Panels> {
        self.panels.get()
    }

    /// The bytes of one row.
    pub(crate) fn row(&self, row: usize) -> &[u8] {
        &self.bytes()[row * self.row_bytes..][..self.row_bytes]
    }

    /// Addresses of the bytes from row `first` on.
    pub(crate) fn addresses(&self, first: usize) -> Range<usize> {
        let bytes = self.bytes().as_ptr_range();
        bytes.start.addr() + first * self.row_bytes..bytes.end.addr()
    }

    /// The bytes of consecutive rows, row by row.
    #[inline(always)]
    pub(crate) fn rows(&self, rows: Range<usize>) -> ChunksExact<'_, u8> {
        self.bytes()[rows.start * self.row_bytes..rows.end * self.row_bytes]
            .chunks_exact(self.row_bytes)
    }

    /// Decodes one row.
    pub(crate) fn decode_row(&self, row: usize, out: &mut [f32]) {
        match self.panels() {
            // The pages of the file have been released.
            Some(panels) => self.dequantize(panels.row(&Arena::new(), row), out),
            None => self.dequantize(self.row(row), out),
        }
    }

    /// Decodes whole blocks.
    fn dequantize(&self, bytes: &[u8], out: &mut [f32]) {
        (self.element_type.codec.dequantize)(self.implementation, bytes, out);
    }

    /// Returns the elements of the file without a copy, if they are `f32` and aligned.
    pub(crate) fn as_f32(&self) -> Option<&[f32]> {
        if self.element_type.dtype != DType::F32 || cfg!(target_endian = "big") {
            return None;
        }
        // SAFETY: every bit pattern is an f32.
        let (before, elements, after) = unsafe { self.bytes().align_to::<f32>() };
        (before.is_empty() && after.is_empty()).then_some(elements)
    }

    /// All elements in `f32`, transposed.
    pub(crate) fn transposed(&self) -> &[f32] {
        self.transposed.get_or_init(|| {
            let rows = self.to_f32();
            let column = |column| rows.iter().skip(column).step_by(self.n_cols).copied();
            (0..self.n_cols).flat_map(column).collect()
        })
    }

    /// All elements in `f32`, decoded to an arena if necessary.
    pub(crate) fn decoded<'a>(&'a self, arena: &'a Arena) -> &'a [f32] {
        self.as_f32().unwrap_or_else(|| {
            let elements = arena.filled(0.0, self.n_rows * self.n_cols);
            self.dequantize(self.bytes(), elements);
            elements
        })
    }

    /// All elements in `f32`.
    pub(crate) fn to_f32(&self) -> Cow<'_, [f32]> {
        self.as_f32().map_or_else(
            || {
                let mut elements = vec![0.0; self.n_rows * self.n_cols];
                self.dequantize(self.bytes(), &mut elements);
                Cow::Owned(elements)
            },
            Cow::Borrowed,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cpu::CpuConfig;
    use crate::types::{TYPES, WITHOUT_PRODUCTS};

    /// A weight of the first rows and columns of some bytes.
    fn data(element_type: &ElementType, n_rows: usize, n_blocks: usize) -> WeightData {
        let dtype = element_type.dtype;
        let block = dtype.layout().expect("a type with a codec");
        let n_cols = n_blocks * block.block_len as usize;
        let row_bytes = dtype.row_bytes(n_cols as u64).expect("whole blocks") as usize;
        // All bits vary.
        let byte = |i: usize| (i.wrapping_mul(0x9e37_79b1) >> 16) as u8;
        let bytes: Vec<u8> = (0..n_rows * row_bytes).map(byte).collect();
        WeightData {
            dtype,
            n_rows,
            n_cols,
            bytes: Arc::new(bytes),
        }
    }

    /// Tied embeddings are then in memory once, repacked for the output head.
    #[test]
    fn repacked_rows_have_the_bytes_of_the_file() {
        let cpu = Cpu::new(CpuConfig::default()).expect("threads");
        for element_type in TYPES {
            let weight =
                Weight::new(&cpu, data(element_type, 37, 3)).expect("a type with products");
            if let Products::Quants(kernels) = weight.products {
                let panels = weight.panels_or_init(|| Panels::new(&cpu, &weight, kernels.geometry));
                for row in 0..weight.n_rows {
                    let (arena, dtype) = (Arena::new(), element_type.dtype);
                    assert_eq!(
                        panels.row(&arena, row),
                        weight.row(row),
                        "{dtype}, row {row}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_type_without_products_is_refused() {
        static TYPE: ElementType = WITHOUT_PRODUCTS;
        let cpu = Cpu::new(CpuConfig::default()).expect("threads");
        assert!(Weight::of_type(&cpu, &TYPE, data(&TYPE, 2, 1)).is_none());
    }
}
