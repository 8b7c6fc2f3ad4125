//! FP8 weights with their scales: the weight is element times scale in single precision, as transformers
//! and llama.cpp's converter compute it.

use std::collections::HashMap;

use safetensors::Dtype;
use schemas::gguf::{Extent, SourceError};

use super::StoredTensor;
use crate::decode::Decoder;
use crate::error::{Error, Names};
use crate::note::Note;
use crate::quantization::{Fp8, Quantization};

/// Scales of activations. Readers of GGUF quantize activations in their own way.
const ACTIVATIONS: [&str; 4] = ["input_scale", "activation_scale", "k_scale", "v_scale"];

/// The scales of a tensor, one per block.
#[derive(Clone)]
pub(crate) struct Scales {
    stored: Box<StoredTensor>,
    decoder: Decoder,
    /// The tensor's shape.
    shape: Vec<u64>,
    /// Block size along each axis.
    block: Vec<u64>,
}

/// Attaches the scales to every FP8 tensor and removes them from the list.
///
/// # Errors
/// Scales are missing, have a wrong shape, or are not declared in the config.
pub(crate) fn attach(
    mut tensors: Vec<StoredTensor>,
    quantization: Quantization,
    notes: &mut Vec<Note>,
) -> Result<Vec<StoredTensor>, Error> {
    let names: HashMap<String, usize> = tensors
        .iter()
        .enumerate()
        .map(|(i, tensor)| (tensor.name.clone(), i))
        .collect();
    let is_code = |tensor: &StoredTensor| matches!(tensor.dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2);
    let Quantization::Fp8(fp8) = quantization else {
        for tensor in tensors.iter().filter(|tensor| is_code(tensor)) {
            let scale = ["_scale", "_scale_inv"].map(|suffix| format!("{}{suffix}", tensor.name));
            if let Some(scale) = scale.into_iter().find(|scale| names.contains_key(scale)) {
                return Err(Error::UnannouncedScales {
                    path: tensor.path(),
                    tensor: tensor.name.clone(),
                    scale,
                });
            }
        }
        return Ok(tensors);
    };
    let mut is_scale = vec![false; tensors.len()];
    let mut scaled = Vec::new();
    for (i, tensor) in tensors.iter().enumerate().filter(|(_, t)| is_code(t)) {
        let name = format!("{}{}", tensor.name, fp8.suffix);
        let &at = names.get(&name).ok_or_else(|| Error::MissingScales {
            path: tensor.path(),
            tensor: tensor.name.clone(),
            dtype: tensor.dtype,
            scale: name,
        })?;
        is_scale[at] = true;
        scaled.push((i, Scales::new(tensor, &tensors[at], fp8)?));
    }
    if !scaled.is_empty() {
        notes.push(Note::Scaled {
            n_tensors: scaled.len(),
        });
    }
    for (i, scales) in scaled {
        tensors[i].scales = Some(scales);
    }
    let mut activations = Names(Vec::new());
    let mut is_scale = is_scale.into_iter();
    tensors.retain(|tensor| {
        let last = tensor.name.rsplit('.').next().unwrap_or_default();
        let of_activations = ACTIVATIONS.iter().any(|name| last.ends_with(name));
        if of_activations {
            activations.0.push(tensor.name.clone());
        }
        !is_scale.next().unwrap_or_default() && !of_activations
    });
    if !activations.0.is_empty() {
        notes.push(Note::ActivationScales { names: activations });
    }
    Ok(tensors)
}

impl Scales {
    fn new(tensor: &StoredTensor, stored: &StoredTensor, fp8: Fp8) -> Result<Scales, Error> {
        let decoder = Decoder::of(stored.dtype).ok_or_else(|| Error::ElementType {
            path: stored.path(),
            tensor: stored.name.clone(),
            found: stored.dtype,
        })?;
        let n_axes = tensor.shape.len();
        // Missing axes of the scales are the last ones, with one scale for all elements.
        let mut counts = stored.shape.clone();
        counts.resize(counts.len().max(n_axes), 1);
        let block = (0..n_axes).map(|axis| {
            let n = tensor.shape[axis];
            let announced = fp8
                .block
                .and_then(|block| Some(block[(axis + 2).checked_sub(n_axes)?]));
            match (announced, counts[axis]) {
                (Some(block), count) => (count == n.div_ceil(block)).then_some(block),
                (None, 1) => Some(n.max(1)),
                (None, count) => (count == n).then_some(1),
            }
        });
        let block: Option<Vec<u64>> = block.collect();
        let block = block.filter(|_| counts.len() == n_axes && n_axes > 0);
        Ok(Scales {
            block: block.ok_or_else(|| Error::ScalesShape {
                path: stored.path(),
                tensor: stored.name.clone(),
                found: stored.shape.clone(),
                scaled: tensor.shape.clone(),
                blocks: fp8.block.map(|[rows, columns]| vec![rows, columns]),
            })?,
            stored: Box::new(stored.clone()),
            decoder,
            shape: tensor.shape.clone(),
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
        let places = (first..first + n_rows).map(|row| self.row(row));
        let (start, end) = places.fold((u64::MAX, 0), |(start, end), row| {
            (start.min(row), end.max(row + 1))
        });
        let n = end.saturating_sub(start) * self.columns();
        let element_bytes = self.decoder.element_bytes() as u64;
        let mut bytes = vec![0; (n * element_bytes) as usize];
        let offset = start * self.columns() * element_bytes;
        self.stored.data.read_at(offset, &mut bytes)?;
        let mut values = vec![0.0; n as usize];
        self.decoder.decode(&bytes, &mut values);
        Ok(RowScales {
            scales: self,
            start,
            values,
        })
    }

    /// Returns the byte range of the scales.
    pub(crate) fn extent(&self) -> Extent {
        self.stored.data.extent()
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
