//! Some tensors of a plan in other types, everything else as it is: quantize's recoding, without
//! its order of tensors and keys.

use std::collections::HashMap;

use quantize::{FType, QuantizeConfig};
use schemas::gguf::{DType, Plan, Tensor};

use super::{HeadArgs, HeadEmbeddings, HeadType};

/// Whether a tensor is an embedding or an output, a head's own or a sidecar's.
fn is_embedding(tensor: &Tensor) -> bool {
    use schemas::arch::nextn::{EMBED_TOKENS, SHARED_HEAD_HEAD};
    let around = ["token_embd.weight", "output.weight"].contains(&tensor.name.as_str());
    let own = [EMBED_TOKENS, SHARED_HEAD_HEAD];
    around || own.iter().any(|row| tensor.name.ends_with(row))
}

/// Gives the weights of a head the types that were asked for. `plan` is a model with the head
/// inline, or a sidecar: of the tensors around its head only the embeddings change, where they
/// are the head's own.
pub(super) fn recode_head(
    plan: &Plan,
    args: &HeadArgs,
    embeddings: Option<HeadEmbeddings>,
) -> anyhow::Result<Plan> {
    let head = graft::head_layers(plan)?;
    let is_sidecar = !plan
        .tensors
        .iter()
        .any(|t| t.layer().is_some_and(|layer| layer < head.start));
    let wanted = |tensor: &Tensor| -> Option<DType> {
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
        if let Some(dtype) = wanted(tensor) {
            groups.entry(dtype).or_default().push(tensor.clone());
        }
    }
    let mut recoded = plan.clone();
    for (dtype, tensors) in groups {
        let in_head = |t: &Tensor| t.layer().is_some();
        let config = QuantizeConfig {
            allow_requantize: args.allow_requantize,
            mtp_type: tensors.iter().any(in_head).then_some(dtype),
            embedding_type: Some(dtype),
            output_type: Some(dtype),
            // Decides on nothing: every weight of the group is named above.
            ..QuantizeConfig::new(FType::Q8_0)
        };
        let group = Plan {
            tensors,
            ..plan.clone()
        };
        for tensor in quantize::plan(&group, &config)?.plan.tensors {
            let mut places = recoded.tensors.iter_mut();
            let place = places.find(|place| place.name == tensor.name);
            let place = place.expect("a tensor of the group is one of the plan");
            if place.dtype != tensor.dtype {
                *place = tensor;
            }
        }
    }
    Ok(recoded)
}
