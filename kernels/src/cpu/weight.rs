//! Weights of the CPU backend.

use std::borrow::Cow;
use std::ops::Range;
use std::slice::ChunksExact;
use std::sync::{Arc, OnceLock};

use schemas::gguf::DType;

use super::arena::Arena;
use super::coded::{Coded, ForType, for_type};
use super::panel::Panels;
use super::simd::{LANES, Simd};
use super::{Cpu, decode};
use crate::backend::{WeightBytes, WeightData};
use crate::quant::{QuantType, quant_type};

/// Minimum size of a weight that stays in the mapped file. Smaller ones are copied: a system that maps
/// files in large pages would keep the surrounding pages in memory for them.
const MIN_MAPPED: usize = 1 << 16;

/// A weight in file encoding, with its codec.
pub struct Weight {
    /// Output features; 1 for a vector.
    pub(super) n_rows: usize,
    /// Input features.
    pub(super) n_cols: usize,
    dtype: DType,
    row_bytes: usize,
    bytes: WeightBytes,
    codec: &'static dyn QuantType,
    /// All elements in `f32`, transposed, computed on first use.
    transposed: OnceLock<Vec<f32>>,
    /// Repacked quants, created by the first product if the layout asks for them.
    panels: OnceLock<Panels>,
}

impl Weight {
    /// `None` if no codec reads the element type.
    pub(super) fn new(data: WeightData) -> Option<Weight> {
        let WeightData {
            dtype,
            n_rows,
            n_cols,
            bytes,
        } = data;
        let codec = quant_type(dtype)?;
        let row_bytes = dtype.row_bytes(n_cols as u64)? as usize;
        let n_bytes = n_rows * row_bytes;
        assert_eq!((*bytes).as_ref().len(), n_bytes, "bytes of a weight");
        let bytes = match n_bytes < MIN_MAPPED {
            true => {
                let copy = (*bytes).as_ref().to_vec();
                bytes.let_go(0..n_bytes);
                Arc::new(copy)
            }
            false => bytes,
        };
        Some(Weight {
            n_rows,
            n_cols,
            dtype,
            row_bytes,
            bytes,
            codec,
            transposed: OnceLock::new(),
            panels: OnceLock::new(),
        })
    }

    /// The whole weight.
    pub(super) fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// Releases the bytes of some rows, which are not expected to be read again.
    pub(super) fn let_go(&self, rows: Range<usize>) {
        let bytes = rows.start * self.row_bytes..rows.end * self.row_bytes;
        self.bytes.let_go(bytes);
    }

    /// Returns the byte range of some columns within a row; both ends must be at block boundaries.
    #[inline(always)]
    pub(super) fn columns(&self, columns: Range<usize>) -> Range<usize> {
        let bytes = |n| n * self.row_bytes / self.n_cols;
        bytes(columns.start)..bytes(columns.end)
    }

    /// The element type.
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// True if the type is quantized, one of [`super::coded`].
    pub(super) fn is_coded(&self) -> bool {
        !matches!(self.dtype, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Repacks the rows for products, if not yet done.
    pub(super) fn lay_side_by_side(&self, cpu: &Cpu) {
        self.panels
            .get_or_init(|| for_type(self.dtype, Arrange { cpu, w: self }));
    }

    /// Returns the repacked rows, if any.
    #[inline(always)]
    pub(super) fn panels(&self) -> Option<&Panels> {
        self.panels.get()
    }

    /// The bytes of one row.
    pub(super) fn row(&self, row: usize) -> &[u8] {
        &self.bytes()[row * self.row_bytes..][..self.row_bytes]
    }

    /// The bytes of consecutive rows, row by row.
    #[inline(always)]
    pub(super) fn rows(&self, rows: Range<usize>) -> ChunksExact<'_, u8> {
        self.bytes()[rows.start * self.row_bytes..rows.end * self.row_bytes]
            .chunks_exact(self.row_bytes)
    }

    /// Decodes one row.
    pub(super) fn decode_row(&self, row: usize, out: &mut [f32]) {
        match self.panels() {
            // The pages of the file have been released.
            Some(panels) => self.codec.dequantize(panels.row(&Arena::new(), row), out),
            None => self.codec.dequantize(self.row(row), out),
        }
    }

    /// Decodes `len` elements to the start of `out`, and zeros the rest of the last chunk.
    #[inline(always)]
    pub(super) fn decode<S: Simd>(
        &self,
        simd: S,
        bytes: &[u8],
        len: usize,
        out: &mut [[f32; LANES]],
    ) {
        match self.dtype {
            DType::F16 if len.is_multiple_of(LANES) => {
                for (halves, out) in bytes.as_chunks().0.as_chunks().0.iter().zip(out) {
                    decode::f16(simd, halves, out);
                }
            }
            DType::BF16 if len.is_multiple_of(LANES) => {
                for (halves, out) in bytes.as_chunks().0.as_chunks().0.iter().zip(out) {
                    decode::bf16(simd, halves, out);
                }
            }
            // F32 is copied; a tail that is not a whole chunk is rare.
            _ => {
                let out = out.as_flattened_mut();
                self.codec.dequantize(bytes, &mut out[..len]);
                out[len..len.next_multiple_of(LANES)].fill(0.0);
            }
        }
    }

    /// Returns the elements of the file without a copy, if they are `f32` and aligned.
    pub(super) fn as_f32(&self) -> Option<&[f32]> {
        if self.dtype != DType::F32 || cfg!(target_endian = "big") {
            return None;
        }
        // SAFETY: every bit pattern is an f32.
        let (before, elements, after) = unsafe { self.bytes().align_to::<f32>() };
        (before.is_empty() && after.is_empty()).then_some(elements)
    }

    /// All elements in `f32`, transposed.
    pub(super) fn transposed(&self) -> &[f32] {
        self.transposed.get_or_init(|| {
            let rows = self.to_f32();
            let column = |column| rows.iter().skip(column).step_by(self.n_cols).copied();
            (0..self.n_cols).flat_map(column).collect()
        })
    }

    /// All elements in `f32`.
    pub(super) fn to_f32(&self) -> Cow<'_, [f32]> {
        self.as_f32().map_or_else(
            || {
                let mut elements = vec![0.0; self.n_rows * self.n_cols];
                self.codec.dequantize(self.bytes(), &mut elements);
                Cow::Owned(elements)
            },
            Cow::Borrowed,
        )
    }
}

/// Repacking before dispatch on the weight's type.
struct Arrange<'a> {
    cpu: &'a Cpu,
    w: &'a Weight,
}

impl ForType for Arrange<'_> {
    type Result = Panels;

    fn run<T: Coded<BYTES, LEAD>, const BYTES: usize, const LEAD: usize>(self) -> Panels {
        Panels::new::<BYTES, LEAD>(self.cpu, self.w)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cpu::CpuConfig;
    use crate::cpu::dispatch::implementations;
    use crate::cpu::simd::Kernel;
    use crate::quant::quant_types;

    struct Decode<'a> {
        weight: &'a Weight,
        out: &'a mut [[f32; LANES]],
    }

    impl Kernel for Decode<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            let row = self.weight.rows(0..1).next().expect("one row");
            self.weight.decode(simd, row, self.weight.n_cols, self.out);
        }
    }

    /// Tied embeddings are then in memory once, repacked for the output head.
    #[test]
    fn rows_side_by_side_are_those_of_the_file() {
        let cpu = Cpu::new(CpuConfig::default()).expect("threads");
        for codec in quant_types() {
            let dtype = codec.dtype();
            let block = dtype.layout().expect("a type with a codec");
            let (n_rows, n_cols) = (37, 3 * block.block_len as usize);
            let row_bytes = dtype.row_bytes(n_cols as u64).expect("whole blocks") as usize;
            let bytes: Vec<u8> = (0..n_rows * row_bytes).map(|i| (i * i) as u8).collect();
            let data = WeightData {
                dtype,
                n_rows,
                n_cols,
                bytes: Arc::new(bytes),
            };
            let weight = Weight::new(data).expect("a type with a codec");
            if weight.is_coded() {
                weight.lay_side_by_side(&cpu);
                let panels = weight.panels().expect("they have just been laid");
                for row in 0..n_rows {
                    assert_eq!(
                        panels.row(&Arena::new(), row),
                        weight.row(row),
                        "{dtype}, row {row}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_implementation_decodes_what_the_codec_decodes() {
        for codec in quant_types() {
            let dtype = codec.dtype();
            let block = dtype.layout().expect("a type with a codec");
            for n_cols in
                [1, 31, 32, 512].map(|n: usize| n.next_multiple_of(block.block_len as usize))
            {
                let n_bytes = dtype.row_bytes(n_cols as u64).expect("whole blocks") as usize;
                let mut state = 7u32;
                let mut byte = || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                };
                let bytes: Vec<u8> = (0..n_bytes).map(|_| byte()).collect();
                let mut expected = vec![0.0; n_cols];
                codec.dequantize(&bytes, &mut expected);
                let data = WeightData {
                    dtype,
                    n_rows: 1,
                    n_cols,
                    bytes: Arc::new(bytes),
                };
                let weight = Weight::new(data).expect("a type with a codec");
                for implementation in implementations() {
                    let mut out = vec![[f32::NAN; LANES]; n_cols.div_ceil(LANES)];
                    implementation.run(Decode {
                        weight: &weight,
                        out: &mut out,
                    });
                    let (got, padding) = out.as_flattened().split_at(n_cols);
                    let same = |(a, b): (&f32, &f32)| {
                        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
                    };
                    let isa = implementation.isa();
                    assert!(
                        got.iter().zip(&expected).all(same),
                        "{dtype} x {n_cols}, {isa}"
                    );
                    assert!(
                        padding.iter().all(|&x| x == 0.0),
                        "{dtype} x {n_cols}, {isa}"
                    );
                }
            }
        }
    }
}
