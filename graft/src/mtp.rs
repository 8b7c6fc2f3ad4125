//! Splits the MTP head off a model, and grafts one onto a model.
//!
//! The two files are equal to those that llama.cpp's converter writes: the body with `--no-mtp`,
//! the head with `--mtp`, which keeps every key and its own copy of the embedding, so that it can
//! be loaded alone. Grafting a head back onto its body restores the original file.

use std::ops::Range;

use schemas::arch::mtp_layout::name_in_block;
use schemas::arch::nextn::{EMBED_TOKENS, PER_LAYER_KEYS, PerLayer, SHARED_HEAD_HEAD};
use schemas::arch::{keys, reduced_vocab};
use schemas::gguf::{Array, Metadata, Plan, Tensor, Value};
use schemas::size::update_label;

use crate::error::{Error, Role};
use crate::model::Model;

/// Key of the head's tensor positions among all tensors, as u32 counted from 0. Written to the
/// head's file if its tensors were not the last ones.
pub const TENSOR_POSITIONS: &str = "specconv.mtp.tensor_positions";
/// Key of the objections that a forced graft overrode, as strings.
pub const FORCED: &str = "specconv.mtp.forced";

/// Keys that move with the head, apart from the one that declares it.
const HEAD_KEYS: [&str; 2] = [keys::MTP_LAYOUT, keys::DRAFT_VOCAB_SIZE];

/// A model in two files.
#[derive(Clone)]
pub struct Split {
    /// The trunk, a complete model.
    pub body: Plan,
    /// The MTP layers, with copies of the tensors outside of blocks.
    pub mtp: Plan,
}

/// Source of the embedding and the output matrix of a grafted head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Embeddings {
    /// The donor head's own, if present; else the target's.
    #[default]
    Keep,
    /// The target's; the donor head's own are dropped.
    Share,
    /// The donor head's own; if absent, copies of the donor trunk's.
    Own,
}

/// Options of a graft.
#[derive(Clone, Debug, Default)]
pub struct GraftConfig {
    /// Source of the head's embedding and output matrix.
    pub embeddings: Embeddings,
    /// Objections that are overridden; recorded in [`FORCED`].
    pub forced: Vec<String>,
}

/// Splits the MTP head off `input`.
///
/// # Errors
/// The architecture has no MTP heads, or the file has no complete head, or no trunk.
pub fn split_mtp(input: &Plan) -> Result<Split, Error> {
    let model = Model::new(Role::Input, input)?;
    model.check_head()?;
    let n_layer = model.n_layer;
    let in_trunk = |tensor: &Tensor| tensor.layer().is_some_and(|layer| layer < n_layer);
    if !input.tensors.iter().any(in_trunk) {
        let role = Role::Input;
        return Err(Error::NoTrunk { role, n_layer });
    }
    let tensors = |keep: &dyn Fn(&Tensor) -> bool| -> Vec<Tensor> {
        let kept = input.tensors.iter().filter(|tensor| keep(tensor));
        kept.cloned().collect()
    };
    let half = |mut metadata: Metadata, tensors: Vec<Tensor>| {
        update_label(&mut metadata, &input.tensors, &tensors);
        Plan {
            version: input.version,
            metadata,
            tensors,
        }
    };
    Ok(Split {
        body: half(
            body_metadata(&model),
            tensors(&|tensor| !model.in_head(tensor)),
        ),
        mtp: half(
            mtp_metadata(&model),
            tensors(&|tensor| tensor.layer().is_none() || model.in_head(tensor)),
        ),
    })
}

fn body_metadata(model: &Model<'_>) -> Metadata {
    let mut metadata = model.plan.metadata.clone();
    metadata.remove(&model.key(keys::NEXTN_PREDICT_LAYERS));
    for key in HEAD_KEYS.into_iter().chain([FORCED]) {
        metadata.remove(key);
    }
    set_integer(&mut metadata, &model.key(keys::BLOCK_COUNT), model.n_layer);
    for key in per_layer_keys(model) {
        if let Some(Value::Array(array)) = metadata.get_mut(&key) {
            array.truncate(model.n_layer as usize);
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
    // A key left by an earlier split would be wrong, so it is overwritten.
    if positions[0] as usize != first_if_last || metadata.contains(TENSOR_POSITIONS) {
        metadata.set(TENSOR_POSITIONS, positions);
    }
    metadata
}

/// Grafts the MTP head of `donor` onto `target`.
///
/// The donor may be a sidecar, a whole model, or only the head's tensors, of any element types; its
/// layers are renumbered to follow the target's. The target is unchanged but for its number of
/// layers and its size label. Only shapes are checked here; [`pair`](crate::pair) checks whether the two belong
/// together.
///
/// # Errors
/// The architecture has no MTP heads; the target already has a head; the donor's is incomplete, or
/// its shapes do not match the target's layers.
pub fn graft_mtp(target: &Plan, donor: &Plan, config: &GraftConfig) -> Result<Plan, Error> {
    let target = Model::new(Role::Target, target)?;
    let donor = &reduced_vocab::adopt(donor.clone());
    let donor = Model::donor(donor, &target)?;
    target.check_headless()?;
    donor.check_head()?;
    check_fit(&target, &donor)?;
    if let Some(max) = target.head.max_heads.filter(|&max| donor.n_mtp > max) {
        return Err(Error::TooManyHeads {
            arch: target.head.arch,
            found: donor.n_mtp,
            max,
        });
    }
    let mut metadata = grafted_metadata(&target, &donor)?;
    if !config.forced.is_empty() {
        metadata.set(FORCED, config.forced.clone());
    }
    let mut head = donor_head(&donor, config.embeddings)?;
    for tensor in &mut head {
        *tensor = renumbered(tensor, donor.n_layer, target.n_layer);
    }
    let tensors = interleaved(&target, &donor, head);
    update_label(&mut metadata, &target.plan.tensors, &tensors);
    Ok(Plan {
        version: target.plan.version,
        metadata,
        tensors,
    })
}

/// Returns the blocks of a file's MTP layers, inline or in a sidecar.
///
/// # Errors
/// The file has no complete head, or not in the blocks that its keys declare.
pub fn head_layers(plan: &Plan) -> Result<Range<u32>, Error> {
    let model = Model::new(Role::Input, plan)?;
    model.check_head()?;
    Ok(model.n_layer..model.n_block())
}

/// Replaces the head of `input` by that of `donor`.
///
/// # Errors
/// See [`split_mtp`] for the input, and [`graft_mtp`] for the donor and the input's body.
pub fn replace_mtp(input: &Plan, donor: &Plan, config: &GraftConfig) -> Result<Plan, Error> {
    let Split { body, mtp } = split_mtp(input)?;
    let mut donor = donor.clone();
    match mtp.metadata.get(TENSOR_POSITIONS) {
        Some(positions) => donor.metadata.set(TENSOR_POSITIONS, positions.clone()),
        None => drop(donor.metadata.remove(TENSOR_POSITIONS)),
    }
    graft_mtp(&body, &donor, config)
}

/// Fails if a tensor of the head does not match the shapes of the target's layers.
fn check_fit(target: &Model<'_>, donor: &Model<'_>) -> Result<(), Error> {
    (donor.n_layer..donor.n_block()).try_for_each(|block| donor.check_shapes(block, target))
}

/// Returns the head's tensors in the donor's order, with the donor's block numbers.
fn donor_head(donor: &Model<'_>, embeddings: Embeddings) -> Result<Vec<Tensor>, Error> {
    let is_own =
        |tensor: &Tensor| [EMBED_TOKENS, SHARED_HEAD_HEAD].contains(&name_in_block(&tensor.name));
    let head = donor.plan.tensors.iter().filter(|t| donor.in_head(t));
    if embeddings == Embeddings::Share {
        if donor.is_trimmed() {
            return Err(Error::TrimmedShares);
        }
        return Ok(head.filter(|tensor| !is_own(tensor)).cloned().collect());
    }
    let mut head: Vec<Tensor> = head.cloned().collect();
    if embeddings == Embeddings::Keep {
        return Ok(head);
    }
    let wanted = [
        (EMBED_TOKENS, &["token_embd.weight"][..]),
        (SHARED_HEAD_HEAD, &["output.weight", "token_embd.weight"]),
    ];
    for block in donor.n_layer..donor.n_block() {
        for (name, sources) in wanted {
            if donor.block_tensor(block, name).is_some() {
                continue;
            }
            let mut sources = sources.iter();
            let source = sources.find_map(|name| donor.plan.tensor(name));
            let name = format!("blk.{block}.{name}");
            let source = source.ok_or_else(|| Error::MissingTensor {
                role: Role::Donor,
                tensor: name.clone(),
            })?;
            head.push(Tensor {
                name,
                ..source.clone()
            });
        }
    }
    Ok(head)
}

fn grafted_metadata(target: &Model<'_>, donor: &Model<'_>) -> Result<Metadata, Error> {
    let mut metadata = target.plan.metadata.clone();
    let n_block = target.n_layer + donor.n_mtp;
    set_integer(&mut metadata, &target.key(keys::BLOCK_COUNT), n_block);
    for key in per_layer_keys(target) {
        if let Some(Value::Array(array)) = metadata.get_mut(&key) {
            extend(array, &key, target, donor)?;
        }
    }
    let nextn = target.key(keys::NEXTN_PREDICT_LAYERS);
    let declared = donor.plan.metadata.get(&nextn).cloned();
    let declared = declared.unwrap_or(Value::U32(donor.n_mtp));
    insert(&mut metadata, &nextn, declared, target, donor);
    for key in HEAD_KEYS {
        match donor.plan.metadata.get(key) {
            Some(value) => insert(&mut metadata, key, value.clone(), target, donor),
            None => drop(metadata.remove(key)),
        }
    }
    Ok(metadata)
}

/// Sets a key of the head: in place if the target has it, else at the donor's position.
fn insert(metadata: &mut Metadata, key: &str, value: Value, target: &Model<'_>, donor: &Model<'_>) {
    if metadata.contains(key) {
        return metadata.set(key, value);
    }
    if !donor.plan.metadata.contains(key) {
        return metadata.set_after(&target.key(keys::BLOCK_COUNT), key, value);
    }
    match key_before(key, metadata, &target.key(""), donor) {
        Some(anchor) => metadata.set_after(&anchor, key, value),
        None => metadata.set_first(key, value),
    }
}

/// Returns the key after which a key of the donor is inserted; `None` for the first position.
///
/// The key keeps its neighbours if they are adjacent in the target too. If not, because a quantizer
/// moved keys to the end, it follows the architecture's other keys.
fn key_before(key: &str, here: &Metadata, prefix: &str, donor: &Model<'_>) -> Option<String> {
    let keys: Vec<&str> = donor.plan.metadata.iter().map(|(key, _)| key).collect();
    let at = keys.iter().position(|&other| other == key)?;
    let shared = |key: &&str| here.contains(key);
    let mut before = keys[..at].iter().copied().rev().filter(shared).peekable();
    let previous = before.peek().copied();
    let next = keys[at + 1..].iter().copied().find(shared);
    let found = match next {
        Some(next) => here.key_before(next),
        None => here.iter().last().map(|(key, _)| key),
    };
    if found == previous {
        return previous.map(str::to_owned);
    }
    let own = before.find(|key| key.starts_with(prefix));
    own.or(previous).map(str::to_owned)
}

/// Appends the donor's entries for its MTP layers to a per-layer array of the target.
fn extend(
    array: &mut Array,
    key: &str,
    target: &Model<'_>,
    donor: &Model<'_>,
) -> Result<(), Error> {
    let kind = PER_LAYER_KEYS.iter();
    let kind = kind
        .into_iter()
        .find(|(suffix, _)| key == target.key(suffix));
    // Where blocks differ, the head's may be of either kind.
    let is_false = kind.is_some_and(|&(_, kind)| kind == PerLayer::False) && !target.head.uneven;
    let found = donor.plan.metadata.get(key).and_then(Value::as_array);
    let scalar = donor
        .plan
        .metadata
        .get(key)
        .filter(|v| v.as_u64().is_some());
    let n_block = donor.n_block();
    let known = found.filter(|found| found.len() == n_block as usize);
    let mut of_trunk = target.head.trunk_arrays.iter();
    if known.is_none() && of_trunk.any(|suffix| key == target.key(suffix)) {
        return Ok(());
    }
    for layer in donor.n_layer..n_block {
        let entry = match known {
            Some(known) => known.get(layer as usize),
            // A head's layer has full softmax attention.
            None if is_false => Some(Value::Bool(false)),
            // The donor has one number for all layers.
            None if scalar.is_some() => scalar.cloned(),
            // The donor has the same array with another number of layers, so this is not a
            // per-layer array.
            None if found == Some(&*array) => return Ok(()),
            None => None,
        };
        if !entry.is_some_and(|entry| array.push(entry)) {
            return Err(Error::PerLayer {
                key: key.to_owned(),
                n_layer: target.n_layer,
            });
        }
    }
    Ok(())
}

/// Inserts the head's tensors into the target's, at their recorded positions or else at the end.
fn interleaved(target: &Model<'_>, donor: &Model<'_>, head: Vec<Tensor>) -> Vec<Tensor> {
    let positions = donor.plan.metadata.u32s(TENSOR_POSITIONS);
    let positions = positions.ok().flatten().unwrap_or_default();
    let mut head = head
        .into_iter()
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

/// Moves a tensor from a trunk of `from` layers to one of `to` layers.
pub(crate) fn renumbered(tensor: &Tensor, from: u32, to: u32) -> Tensor {
    let mut tensor = tensor.clone();
    if let (Some(layer), true) = (tensor.layer(), from != to) {
        tensor.name = format!("blk.{}.{}", layer - from + to, name_in_block(&tensor.name));
    }
    tensor
}

/// Returns the keys whose arrays have one entry per block.
fn per_layer_keys(model: &Model<'_>) -> Vec<String> {
    keys::per_layer(&model.plan.metadata, model.head.arch, model.n_block())
}

/// Sets an integer; keeps the type that the file stores, if the number fits.
pub(crate) fn set_integer(metadata: &mut Metadata, key: &str, n: u32) {
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
