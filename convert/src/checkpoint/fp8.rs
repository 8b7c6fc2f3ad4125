//! Attaches the scales of FP8 weights to their tensors.

use std::collections::HashMap;

use safetensors::Dtype;

use super::scales::Scales;
use super::stored::StoredTensor;
use crate::decode::Decoder;
use crate::error::{Error, Names};
use crate::note::Note;
use crate::quantization::{Fp8, Quantization};

/// Scales of activations. Readers of GGUF quantize activations in their own way.
const ACTIVATIONS: [&str; 4] = ["input_scale", "activation_scale", "k_scale", "v_scale"];

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
    let is_fp8 = |tensor: &StoredTensor| matches!(tensor.dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2);
    let (Quantization::Fp8(fp8) | Quantization::Mixed(fp8)) = quantization else {
        for tensor in tensors.iter().filter(|tensor| is_fp8(tensor)) {
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
    for (i, tensor) in tensors.iter().enumerate().filter(|(_, t)| is_fp8(t)) {
        let name = fp8.scales_of(&tensor.name);
        let &at = names.get(&name).ok_or_else(|| Error::MissingScales {
            path: tensor.path(),
            tensor: tensor.name.clone(),
            dtype: tensor.dtype,
            scale: name,
        })?;
        is_scale[at] = true;
        scaled.push((i, scales_of(tensor, &tensors[at], fp8)?));
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

/// Returns the scales of a tensor, stored as `scales`.
fn scales_of(tensor: &StoredTensor, scales: &StoredTensor, fp8: Fp8) -> Result<Scales, Error> {
    let decoder = Decoder::of_scales(scales.dtype).ok_or_else(|| Error::ElementType {
        path: scales.path(),
        tensor: scales.name.clone(),
        found: scales.dtype,
    })?;
    let data = scales.data.clone();
    let found = Scales::new(data, decoder, &scales.shape, &tensor.shape, fp8.block);
    found.ok_or_else(|| Error::ScalesShape {
        path: scales.path(),
        tensor: scales.name.clone(),
        found: scales.shape.clone(),
        scaled: tensor.shape.clone(),
        blocks: fp8.block.map(|[rows, columns]| vec![rows, columns]),
    })
}
