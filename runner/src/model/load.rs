//! From a plan to a [`Model`]: which weights enter the stack, which layers it has.

use std::ops::Range;

use kernels::backend::Backend;
use schemas::arch::EH_PROJ;
use schemas::gguf::Plan;

use crate::error::ModelError;

use super::weights::Weights;
use super::{Input, Layer, Model, llama, qwen3, qwen35};

type LoadLayer<B> = fn(&mut Weights<'_, B>) -> Result<Box<dyn Layer<B>>, ModelError>;

/// The forward pass of each architecture.
fn layer_loader<B: Backend>(arch: &str) -> Option<LoadLayer<B>> {
    match arch {
        "llama" => Some(llama::load),
        "qwen3" => Some(qwen3::load),
        "qwen35" => Some(qwen35::load),
        _ => None,
    }
}

/// Loads the trunk of a model: a target, or a draft model.
///
/// # Errors
/// A tensor is missing, unknown, misshapen, or of a type without a kernel.
pub fn load_target<B: Backend>(backend: &B, plan: &Plan) -> Result<Model<B>, ModelError> {
    let mut weights = Weights::new(backend, plan)?;
    if weights.hparams.n_mtp() > 0 && !weights.contains("blk.0.attn_norm.weight") {
        return Err(ModelError::HeadOnly);
    }
    let input = Input::Tokens {
        embd: weights.need("token_embd.weight")?,
    };
    let norm = weights.need("output_norm.weight")?;
    let head = output_head(&mut weights)?;
    let blocks = 0..weights.hparams.n_layer;
    finish(weights, input, blocks, norm, head)
}

/// Loads the MTP head of a file: inline behind a trunk, or alone in a sidecar.
///
/// # Errors
/// The file has no head, or one of its tensors is missing or unusable.
pub fn load_mtp_head<B: Backend>(backend: &B, plan: &Plan) -> Result<Model<B>, ModelError> {
    let weights = Weights::new(backend, plan)?;
    let block = weights.hparams.n_layer;
    let reason = match weights.hparams.n_mtp() {
        0 => "key nextn_predict_layers is absent or 0".to_owned(),
        1 if weights.contains(&format!("blk.{block}.{EH_PROJ}")) => {
            return mtp_head(weights, block);
        }
        1 => format!("the keys declare one, but tensor blk.{block}.{EH_PROJ} is missing"),
        n => format!("{n} heads in a row are not supported, only one"),
    };
    Err(ModelError::NoMtpHead { reason })
}

/// The projection to the vocabulary; the embedding is also this where the file has none.
fn output_head<B: Backend>(weights: &mut Weights<'_, B>) -> Result<B::Weight, ModelError> {
    match weights.get("output.weight")? {
        Some(head) => Ok(head),
        None => weights.need("token_embd.weight"),
    }
}

/// The head behind the trunk; a tensor of its own that it lacks is the trunk's.
fn mtp_head<B: Backend>(mut weights: Weights<'_, B>, block: u32) -> Result<Model<B>, ModelError> {
    weights.block = Some(block);
    let eh_proj = weights.need(EH_PROJ)?;
    let enorm = weights.need("nextn.enorm.weight")?;
    let hnorm = weights.need("nextn.hnorm.weight")?;
    let own_embd = weights.get("nextn.embed_tokens.weight")?;
    let own_norm = weights.get("nextn.shared_head_norm.weight")?;
    let own_head = weights.get("nextn.shared_head_head.weight")?;
    weights.block = None;
    let embd = match own_embd {
        Some(own) => own,
        None => weights.need("token_embd.weight")?,
    };
    let norm = match own_norm {
        Some(own) => own,
        None => weights.need("output_norm.weight")?,
    };
    let head = match own_head {
        Some(own) => own,
        None => output_head(&mut weights)?,
    };
    let input = Input::Mtp {
        embd,
        enorm,
        hnorm,
        eh_proj,
    };
    finish(weights, input, block..block + 1, norm, head)
}

/// Loads the given blocks and closes the stack.
fn finish<B: Backend>(
    mut weights: Weights<'_, B>,
    input: Input<B>,
    blocks: Range<u32>,
    norm: B::Weight,
    head: B::Weight,
) -> Result<Model<B>, ModelError> {
    let load = layer_loader::<B>(weights.hparams.arch.name)
        .expect("every architecture of the table has a forward pass");
    let mut layers = Vec::new();
    let mut kinds = Vec::new();
    for block in blocks {
        weights.block = Some(block);
        kinds.push(weights.kind());
        layers.push(load(&mut weights)?);
    }
    let (hparams, pass_bytes) = (weights.hparams, weights.pass_bytes);
    Ok(Model {
        hparams,
        kinds,
        pass_bytes,
        input,
        layers,
        norm,
        head,
    })
}
