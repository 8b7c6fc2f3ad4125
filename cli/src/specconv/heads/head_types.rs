//! Converts some tensors of a plan to other types and keeps everything else, including the order of
//! tensors and keys, which quantize changes.

use std::collections::HashMap;

use quantize::{FType, QuantizeConfig};
use schemas::gguf::{DType, Plan, Tensor};

use super::{HeadArgs, HeadEmbeddings, HeadType};

/// Checks whether a tensor is an embedding or an output, of a head or of a sidecar.
fn is_embedding(tensor: &Tensor) -> bool {
    use schemas::arch::nextn::{EMBED_TOKENS, SHARED_HEAD_HEAD};
    let of_model = ["token_embd.weight", "output.weight"].contains(&tensor.name.as_str());
    let of_head = [EMBED_TOKENS, SHARED_HEAD_HEAD];
    of_model || of_head.iter().any(|name| tensor.name.ends_with(name))
}

/// Converts the weights of a head to the requested types. `plan` is a model with an inline head, or a
/// sidecar: of the tensors around the head, only embeddings that belong to the head change.
pub(super) fn convert_head_types(
    plan: &Plan,
    args: &HeadArgs,
    embeddings: Option<HeadEmbeddings>,
) -> anyhow::Result<Plan> {
    let head = graft::head_layers(plan)?;
    let is_sidecar = !plan
        .tensors
        .iter()
        .any(|t| t.layer().is_some_and(|layer| layer < head.start));
    let requested = |tensor: &Tensor| -> Option<DType> {
        let in_head = tensor.layer().is_some_and(|layer| head.contains(&layer));
        if is_embedding(tensor)
            && (in_head || is_sidecar)
            && let Some(HeadEmbeddings::Own(Some(dtype))) = embeddings
        {
            return Some(dtype);
        }
        match args.mtp_type {
            HeadType::To(dtype) if in_head => Some(dtype),
            _ => None,
        }
    };
    let mut groups: HashMap<DType, Vec<Tensor>> = HashMap::new();
    for tensor in &plan.tensors {
        if let Some(dtype) = requested(tensor) {
            groups.entry(dtype).or_default().push(tensor.clone());
        }
    }
    let mut converted = plan.clone();
    for (dtype, tensors) in groups {
        let in_head = |t: &Tensor| t.layer().is_some();
        let config = QuantizeConfig {
            allow_requantize: args.allow_requantize,
            mtp_type: tensors.iter().any(in_head).then_some(dtype),
            embedding_type: Some(dtype),
            output_type: Some(dtype),
            // Has no effect: every weight of the group is named above.
            ..QuantizeConfig::new(FType::Q8_0)
        };
        let group = Plan {
            tensors,
            ..plan.clone()
        };
        for tensor in quantize::plan(&group, &config)?.plan.tensors {
            let mut tensors = converted.tensors.iter_mut();
            let before = tensors.find(|before| before.name == tensor.name);
            let before = before.expect("the tensors of a group are tensors of the plan");
            if before.dtype != tensor.dtype {
                *before = tensor;
            }
        }
    }
    Ok(converted)
}
