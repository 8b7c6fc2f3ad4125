//! Position of the MTP heads in a file: compares the keys with the tensors. Uses keys and names
//! only, so it does not depend on the architecture table.

use std::collections::BTreeSet;
use std::fmt;

use super::heads;
use super::keys;
use super::nextn::{EH_PROJ, NEXTN_PREFIX, PER_LAYER_KEYS};
use crate::gguf::{Array, Metadata, Plan, Tensor};

/// A fault in the position of a head, or in the keys about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A sidecar's head is in block 0; readers expect it after the trunk.
    HeadAtZero {
        /// The correct block; `None` if no key states it.
        expected: Option<u32>,
    },
    /// `block_count` does not include the head.
    BlockCount {
        /// The key.
        key: String,
        /// Its value.
        found: u32,
        /// Number of trunk and MTP layers.
        expected: u32,
    },
    /// A head is declared, but the file has none of its tensors.
    KeyWithoutTensors {
        /// The key that declares the head.
        key: String,
        /// Its value.
        n_mtp: u32,
        /// The declared block of the head.
        block: u32,
    },
    /// The file has a head, but the key that declares it is missing or states another number.
    TensorWithoutKey {
        /// The key.
        key: String,
        /// Its value; 0 if it is missing.
        found: u32,
        /// Number of heads in the file.
        expected: u32,
        /// Name of a tensor that only heads have.
        tensor: String,
    },
    /// A per-layer array does not have one entry per block.
    PerLayer {
        /// The key.
        key: String,
        /// Its length.
        found: usize,
        /// Number of blocks.
        expected: u32,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::HeadAtZero { expected: Some(n) } => write!(
                f,
                "the MTP head is in blk.0, expected blk.{n}, after the trunk"
            ),
            Fault::HeadAtZero { expected: None } => write!(
                f,
                "the MTP head is in blk.0, expected after the trunk; no key states the number of trunk layers"
            ),
            Fault::BlockCount {
                key,
                found,
                expected,
            } => write!(
                f,
                "key {key} is {found}, expected {expected}: it must count the MTP head's block"
            ),
            Fault::KeyWithoutTensors { key, n_mtp, block } => {
                write!(f, "key {key} is {n_mtp}, but blk.{block} has no tensors")
            }
            Fault::TensorWithoutKey {
                key,
                found: 0,
                tensor,
                ..
            } => write!(
                f,
                "tensor {tensor} belongs to an MTP head, but key {key} declares none"
            ),
            Fault::TensorWithoutKey {
                key,
                found,
                expected,
                ..
            } => write!(
                f,
                "key {key} is {found}, expected {expected}, the number of MTP heads in the file"
            ),
            Fault::PerLayer {
                key,
                found,
                expected,
            } => write!(
                f,
                "key {key}: {found} entries, expected {expected}, one for each block"
            ),
        }
    }
}

/// Position of the layers according to the tensors, not the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Number of trunk layers; `None` if it is unknown.
    pub n_layer: Option<u32>,
    /// Number of MTP heads after them.
    pub n_mtp: u32,
    /// Block of the first head.
    pub first: u32,
}

/// Counts from the keys; missing ones are 0.
struct Declared {
    n_block: u32,
    n_mtp: u32,
}

impl Declared {
    fn n_layer(&self) -> u32 {
        self.n_block.saturating_sub(self.n_mtp)
    }
}

/// Returns all faults in the layout of a file's head. Empty for architectures without heads, and
/// for files without readable keys.
pub fn diagnose(plan: &Plan) -> Vec<Fault> {
    let Some((arch, declared)) = read(plan) else {
        return Vec::new();
    };
    let key = |suffix: &str| format!("{arch}.{suffix}");
    let truth = found(plan, &declared);
    let mut faults = Vec::new();
    if truth.n_mtp == 0 && declared.n_mtp > 0 && !has_block(plan, declared.n_layer()) {
        faults.push(Fault::KeyWithoutTensors {
            key: key(keys::NEXTN_PREDICT_LAYERS),
            n_mtp: declared.n_mtp,
            block: declared.n_layer(),
        });
        return faults;
    }
    if truth.n_mtp > 0 {
        let tensor = head_tensor(plan).unwrap_or_default();
        if declared.n_mtp != truth.n_mtp {
            faults.push(Fault::TensorWithoutKey {
                key: key(keys::NEXTN_PREDICT_LAYERS),
                found: declared.n_mtp,
                expected: truth.n_mtp,
                tensor,
            });
        }
        if truth.n_layer != Some(truth.first) {
            faults.push(Fault::HeadAtZero {
                expected: truth.n_layer,
            });
        }
        if let Some(n_layer) = truth.n_layer
            && declared.n_block != n_layer + truth.n_mtp
        {
            faults.push(Fault::BlockCount {
                key: key(keys::BLOCK_COUNT),
                found: declared.n_block,
                expected: n_layer + truth.n_mtp,
            });
        }
    }
    let n_block = match truth {
        Layers { n_mtp: 0, .. } => declared.n_block,
        Layers {
            n_layer: Some(n_layer),
            n_mtp,
            ..
        } => n_layer + n_mtp,
        _ => return faults,
    };
    let n_layer = n_block - truth.n_mtp;
    for (key, array, n_entries) in per_layer_arrays(&plan.metadata, arch, n_layer) {
        if array.len() != n_block as usize && Some(array.len()) != n_entries {
            faults.push(Fault::PerLayer {
                key,
                found: array.len(),
                expected: n_block,
            });
        }
    }
    faults
}

/// Returns the position of a file's layers; `None` for architectures without heads, and for files
/// without readable keys.
pub fn layers(plan: &Plan) -> Option<Layers> {
    let (_, declared) = read(plan)?;
    Some(found(plan, &declared))
}

/// Returns the architecture and the declared counts of a file that can have a head.
fn read(plan: &Plan) -> Option<(&str, Declared)> {
    let arch = plan.metadata.str(keys::ARCHITECTURE).ok()??;
    heads::find(arch)?;
    let count = |suffix: &str| plan.metadata.u32(&format!("{arch}.{suffix}")).ok();
    let declared = Declared {
        n_block: count(keys::BLOCK_COUNT)??,
        n_mtp: count(keys::NEXTN_PREDICT_LAYERS)?.unwrap_or(0),
    };
    Some((arch, declared))
}

fn found(plan: &Plan, declared: &Declared) -> Layers {
    let heads = head_blocks(plan);
    let n_mtp = heads.len() as u32;
    let Some(&first) = heads.first() else {
        return Layers {
            n_layer: Some(declared.n_layer()),
            n_mtp: 0,
            first: declared.n_layer(),
        };
    };
    let layers = plan.tensors.iter().filter_map(Tensor::layer);
    let has_trunk = layers.into_iter().any(|layer| !heads.contains(&layer));
    let n_layer = match (has_trunk || first > 0, declared) {
        // Readers look for layers by the names of tensors.
        (true, _) => Some(first),
        // For a sidecar that counts from 0, only the keys can state the trunk's length.
        (false, Declared { n_mtp: 0, n_block }) if *n_block > 1 => Some(*n_block),
        (false, declared) => Some(declared.n_layer()).filter(|&n| n > 0),
    };
    Layers {
        n_layer,
        n_mtp,
        first,
    }
}

fn has_block(plan: &Plan, block: u32) -> bool {
    let mut layers = plan.tensors.iter().filter_map(Tensor::layer);
    layers.any(|layer| layer >= block)
}

/// Returns the name of a tensor that only heads have: `eh_proj` if there is one.
fn head_tensor(plan: &Plan) -> Option<String> {
    let names = || plan.tensors.iter().map(|tensor| &tensor.name);
    let own = |name: &&String| name_in_block(name).starts_with(NEXTN_PREFIX);
    let projection = names().find(|name| name_in_block(name) == EH_PROJ);
    projection.or_else(|| names().find(own)).cloned()
}

/// Returns the arrays that must have one entry per block, and the other length that an array may have: that of
/// the trunk, if heads have no entry.
fn per_layer_arrays<'a>(
    metadata: &'a Metadata,
    arch: &str,
    n_layer: u32,
) -> Vec<(String, &'a Array, Option<usize>)> {
    let of_trunk = heads::find(arch).map_or(&[][..], |head| head.trunk_arrays);
    let arrays = PER_LAYER_KEYS.iter().filter_map(|(suffix, _)| {
        let key = format!("{arch}.{suffix}");
        let array = metadata.get(&key)?.as_array()?;
        let other = of_trunk.contains(suffix).then_some(n_layer as usize);
        Some((key, array, other))
    });
    arrays.collect()
}

/// Returns a tensor's name without `blk.N.`; empty for tensors outside of blocks.
pub fn name_in_block(name: &str) -> &str {
    match name.starts_with("blk.") {
        true => name.splitn(3, '.').nth(2).unwrap_or_default(),
        false => "",
    }
}

/// Returns the blocks with tensors that only heads have.
pub fn head_blocks(plan: &Plan) -> BTreeSet<u32> {
    let heads = plan.tensors.iter();
    let heads = heads.filter(|tensor| name_in_block(&tensor.name).starts_with(NEXTN_PREFIX));
    heads.filter_map(Tensor::layer).collect()
}
