//! Random models with quantized weights.

use std::sync::Arc;

use kernels::types::codec;
use schemas::gguf::{DType, Owned, Plan, Tensor};

/// Quantizes every matrix, as real files do; biases of experts stay `f32`.
pub(crate) fn coded(mut plan: Plan) -> Plan {
    let types = [DType::Q8_0, DType::Q4_0, DType::Q5_1, DType::MXFP4];
    for (i, tensor) in plan.tensors.iter_mut().enumerate() {
        let is_matrix = tensor.shape.len() > 1 && tensor.shape[0].is_multiple_of(32);
        if !is_matrix || tensor.name.ends_with(".bias") || tensor.dtype != DType::F32 {
            continue;
        }
        let dtype = match tensor.shape.len() {
            // Expert tensors that are multiplied by the same rows have one type.
            3 => DType::Q8_0,
            _ => types[i % types.len()],
        };
        let n_rows: u64 = tensor.shape[1..].iter().product();
        let bytes = tensor.source.bytes().unwrap().as_chunks().0;
        let values: Vec<f32> = bytes.iter().map(|&x| f32::from_le_bytes(x)).collect();
        let row_bytes = dtype.row_bytes(tensor.shape[0]).unwrap();
        let mut bytes = vec![0; (row_bytes * n_rows) as usize];
        codec(dtype).unwrap().quantize(&values, None, &mut bytes);
        let source = Arc::new(Owned { bytes, row_bytes });
        *tensor = Tensor::new(&tensor.name, tensor.shape.clone(), dtype, source).unwrap();
    }
    plan
}
