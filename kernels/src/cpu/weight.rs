//! Weights as the kernels read them.

use std::borrow::Cow;

use schemas::gguf::DType;

use crate::backend::{WeightBytes, WeightData};
use crate::quant::{QuantType, quant_type};

/// A weight in the bytes of its file, and how to read them.
pub struct Weight {
    /// Output features; 1 for a vector.
    pub(super) n_rows: usize,
    /// Input features.
    pub(super) n_cols: usize,
    row_bytes: usize,
    bytes: WeightBytes,
    codec: &'static dyn QuantType,
}

impl Weight {
    /// `None` where no codec reads the element type.
    pub(super) fn new(data: WeightData) -> Option<Weight> {
        let codec = quant_type(data.dtype)?;
        let row_bytes = data.dtype.row_bytes(data.n_cols as u64)? as usize;
        assert_eq!(
            (*data.bytes).as_ref().len(),
            data.n_rows * row_bytes,
            "bytes of a weight"
        );
        Some(Weight {
            n_rows: data.n_rows,
            n_cols: data.n_cols,
            row_bytes,
            bytes: data.bytes,
            codec,
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// Decodes one row.
    pub(super) fn decode_row(&self, row: usize, out: &mut [f32]) {
        let bytes = &self.bytes()[row * self.row_bytes..][..self.row_bytes];
        self.codec.dequantize(bytes, out);
    }

    /// Consecutive rows, as many as `scratch` holds: where they lie, or decoded there.
    pub(super) fn rows<'a>(&'a self, first: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        if let Some(elements) = self.as_f32() {
            return &elements[first * self.n_cols..][..scratch.len()];
        }
        for (i, out) in scratch.chunks_exact_mut(self.n_cols).enumerate() {
            self.decode_row(first + i, out);
        }
        scratch
    }

    /// The rows as they lie in the file, where they are `f32` and aligned.
    pub(super) fn as_f32(&self) -> Option<&[f32]> {
        if self.codec.dtype() != DType::F32 || cfg!(target_endian = "big") {
            return None;
        }
        // SAFETY: every bit pattern is an f32.
        let (before, elements, after) = unsafe { self.bytes().align_to::<f32>() };
        (before.is_empty() && after.is_empty()).then_some(elements)
    }

    /// All rows.
    pub(super) fn to_f32(&self) -> Cow<'_, [f32]> {
        if let Some(elements) = self.as_f32() {
            return Cow::Borrowed(elements);
        }
        let mut elements = vec![0.0; self.n_rows * self.n_cols];
        for (row, out) in elements.chunks_exact_mut(self.n_cols).enumerate() {
            self.decode_row(row, out);
        }
        Cow::Owned(elements)
    }
}
