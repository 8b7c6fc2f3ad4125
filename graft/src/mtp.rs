//! Cuts the MTP head off a model, and grafts one onto a model.
//!
//! Halves are what the reference converter makes of a checkpoint: the body as with `--no-mtp`, the
//! head's file as with `--mtp`, with every key of the whole and its own copy of the embedding, so
//! that either loads by itself. Grafting a head back onto its body gives the very same file.

use schemas::arch::{Scope, keys};
use schemas::gguf::{Array, Metadata, Plan, Tensor, Value};

use crate::compat::{self, Model};
use crate::error::{Error, Role};

/// Key of the places that the head's tensors had among all tensors, as u32 counted from 0. Written
/// to the head's file where they were not simply the last ones.
pub const TENSOR_POSITIONS: &str = "specconv.mtp.tensor_positions";

/// A model in two files.
#[derive(Clone)]
pub struct Split {
    /// The trunk, a model of its own.
    pub body: Plan,
    /// The MTP layers, with copies of the tensors around the trunk.
    pub mtp: Plan,
}

/// Cuts the MTP head off `input`.
///
/// # Errors
/// The input is no model of a known architecture, has no whole head, or has nothing else.
pub fn split_mtp(input: &Plan) -> Result<Split, Error> {
    let model = Model::new(Role::Input, input)?;
    model.check_head()?;
    let n_layer = model.hparams.n_layer;
    let in_trunk = |tensor: &Tensor| tensor.layer().is_some_and(|layer| layer < n_layer);
    if !input.tensors.iter().any(in_trunk) {
        let role = Role::Input;
        return Err(Error::NoTrunk { role, n_layer });
    }
    let around = |tensor: &Tensor| {
        let specs = model.hparams.arch.tensors;
        let mut names = specs.iter().filter(|spec| spec.scope == Scope::Model);
        names.any(|spec| spec.gguf == tensor.name)
    };
    let tensors = |keep: &dyn Fn(&Tensor) -> bool| -> Vec<Tensor> {
        let kept = input.tensors.iter().filter(|tensor| keep(tensor));
        kept.cloned().collect()
    };
    Ok(Split {
        body: Plan {
            version: input.version,
            metadata: body_metadata(&model),
            tensors: tensors(&|tensor| !model.in_head(tensor)),
        },
        mtp: Plan {
            version: input.version,
            metadata: mtp_metadata(&model),
            tensors: tensors(&|tensor| around(tensor) || model.in_head(tensor)),
        },
    })
}

fn body_metadata(model: &Model<'_>) -> Metadata {
    let n_layer = model.hparams.n_layer;
    let mut metadata = model.plan.metadata.clone();
    metadata.remove(&model.key(keys::NEXTN_PREDICT_LAYERS));
    set_integer(&mut metadata, &model.key(keys::BLOCK_COUNT), n_layer);
    for key in per_layer_keys(model) {
        if let Some(Value::Array(array)) = metadata.get_mut(&key) {
            array.truncate(n_layer as usize);
        }
    }
    metadata
}

fn mtp_metadata(model: &Model<'_>) -> Metadata {
    let mut metadata = model.plan.metadata.clone();
    let all = &model.plan.tensors;
    let is_head = |&i: &usize| model.in_head(&all[i]);
    let positions: Vec<u32> = (0..all.len()).filter(is_head).map(|i| i as u32).collect();
    let first_if_last = all.len() - positions.len();
    // A key left over from another split would be taken for this one's, so it is overwritten.
    if positions[0] as usize != first_if_last || metadata.contains(TENSOR_POSITIONS) {
        metadata.set(TENSOR_POSITIONS, positions);
    }
    metadata
}

/// Grafts the MTP head of `donor` onto `target`.
///
/// The donor may be a head's file or a whole model, its tensors of any element types; its layers
/// are renumbered to follow the target's. Everything of the target stays as it is, but for the
/// number of its layers.
///
/// # Errors
/// Either is no model of a known architecture; the target has a head already; the donor's is not
/// whole, or was made for another model.
pub fn graft_mtp(target: &Plan, donor: &Plan) -> Result<Plan, Error> {
    let target = Model::new(Role::Target, target)?;
    let donor = Model::new(Role::Donor, donor)?;
    compat::check(&target, &donor)?;
    target.check_headless()?;
    donor.check_head()?;
    Ok(Plan {
        version: target.plan.version,
        metadata: grafted_metadata(&target, &donor)?,
        tensors: grafted_tensors(&target, &donor),
    })
}

fn grafted_metadata(target: &Model<'_>, donor: &Model<'_>) -> Result<Metadata, Error> {
    let mut metadata = target.plan.metadata.clone();
    let n_block = target.hparams.n_layer + donor.hparams.n_mtp();
    set_integer(&mut metadata, &target.key(keys::BLOCK_COUNT), n_block);
    for key in per_layer_keys(target) {
        if let Some(Value::Array(array)) = metadata.get_mut(&key) {
            extend(array, &key, target, donor)?;
        }
    }
    let nextn = target.key(keys::NEXTN_PREDICT_LAYERS);
    let declared = donor.plan.metadata.get(&nextn).cloned();
    let declared = declared.expect("a head was found, so the key is there");
    if metadata.contains(&nextn) {
        metadata.set(nextn, declared);
        return Ok(metadata);
    }
    match key_before(&nextn, target, donor) {
        Some(anchor) => metadata.set_after(anchor, &nextn, declared),
        None => metadata.set_first(&nextn, declared),
    }
    Ok(metadata)
}

/// The key of the target behind which a key of the donor belongs; `None` if it goes first.
///
/// That is between the same neighbours, as long as they are neighbours in the target: a quantizer
/// moves keys to the end, and the architecture's keys should stay together.
fn key_before<'a>(key: &str, target: &Model<'_>, donor: &Model<'a>) -> Option<&'a str> {
    let target_keys = &target.plan.metadata;
    let keys: Vec<&str> = donor.plan.metadata.iter().map(|(key, _)| key).collect();
    let at = keys.iter().position(|&other| other == key)?;
    let shared = |key: &&str| target_keys.contains(key);
    let mut before = keys[..at].iter().copied().rev().filter(shared).peekable();
    let previous = before.peek().copied();
    let next = keys[at + 1..].iter().copied().find(shared);
    let found = match next {
        Some(next) => target_keys.key_before(next),
        None => target_keys.iter().last().map(|(key, _)| key),
    };
    if found == previous {
        return previous;
    }
    let prefix = target.key("");
    before.find(|key| key.starts_with(&prefix)).or(previous)
}

/// Gives a per-layer array of the target the donor's entries for the MTP layers.
fn extend(
    array: &mut Array,
    key: &str,
    target: &Model<'_>,
    donor: &Model<'_>,
) -> Result<(), Error> {
    let is_recurrent = key == target.key(keys::RECURRENT_LAYERS);
    let found = donor.plan.metadata.get(key).and_then(Value::as_array);
    let n_block = donor.hparams.n_block();
    let known = found.filter(|found| found.len() == n_block as usize);
    for layer in donor.hparams.n_layer..n_block {
        let entry = match known {
            Some(known) => known.get(layer as usize),
            // Softmax attention is part of the head's layout.
            None if is_recurrent => Some(Value::Bool(false)),
            // The donor has as many with other layers: the length is chance.
            None if found == Some(&*array) => return Ok(()),
            None => None,
        };
        if !entry.is_some_and(|entry| array.push(entry)) {
            return Err(Error::PerLayer {
                key: key.to_owned(),
                n_layer: target.hparams.n_layer,
            });
        }
    }
    Ok(())
}

fn grafted_tensors(target: &Model<'_>, donor: &Model<'_>) -> Vec<Tensor> {
    let positions = donor.plan.metadata.u32s(TENSOR_POSITIONS);
    let positions = positions.ok().flatten().unwrap_or_default();
    let head = donor.plan.tensors.iter().filter(|t| donor.in_head(t));
    let mut head = head
        .map(|tensor| renumbered(tensor, donor.hparams.n_layer, target.hparams.n_layer))
        .zip(positions.into_iter().chain(std::iter::repeat(u32::MAX)))
        .peekable();
    let mut tensors = Vec::with_capacity(target.plan.tensors.len());
    for tensor in &target.plan.tensors {
        while let Some((tensor, _)) = head.next_if(|&(_, at)| at as usize <= tensors.len()) {
            tensors.push(tensor);
        }
        tensors.push(tensor.clone());
    }
    tensors.extend(head.map(|(tensor, _)| tensor));
    tensors
}

/// The same tensor, in the layer that follows a trunk of another length.
fn renumbered(tensor: &Tensor, from: u32, to: u32) -> Tensor {
    let mut tensor = tensor.clone();
    if let (Some(layer), true) = (tensor.layer(), from != to) {
        let row = tensor.name.splitn(3, '.').nth(2).unwrap_or_default();
        tensor.name = format!("blk.{}.{row}", layer - from + to);
    }
    tensor
}

/// Keys of the model whose arrays have one entry for each block.
fn per_layer_keys(model: &Model<'_>) -> Vec<String> {
    let Model { plan, hparams, .. } = model;
    keys::per_layer(&plan.metadata, hparams.arch.name, hparams.n_block())
}

/// Sets an integer in the type that the file stores it in, if it fits.
fn set_integer(metadata: &mut Metadata, key: &str, n: u32) {
    let stored = match metadata.get(key) {
        Some(Value::U8(_)) => n.try_into().ok().map(Value::U8),
        Some(Value::I8(_)) => n.try_into().ok().map(Value::I8),
        Some(Value::U16(_)) => n.try_into().ok().map(Value::U16),
        Some(Value::I16(_)) => n.try_into().ok().map(Value::I16),
        Some(Value::I32(_)) => n.try_into().ok().map(Value::I32),
        Some(Value::U64(_)) => Some(Value::U64(n.into())),
        Some(Value::I64(_)) => Some(Value::I64(n.into())),
        _ => None,
    };
    metadata.set(key, stored.unwrap_or(Value::U32(n)));
}
