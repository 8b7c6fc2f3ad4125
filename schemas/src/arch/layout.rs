//! Where the MTP heads of a file are: what the keys declare against the tensors that are there.
//! Goes by keys and names alone, whatever the architecture's table knows.

use std::collections::BTreeSet;
use std::fmt;

use super::keys;
use super::nextn::{self, EH_PROJ, NEXTN_PREFIX, PER_LAYER_KEYS};
use crate::gguf::{Array, Metadata, Plan, Tensor};

/// What is wrong with where a head is, or with what the keys say of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A sidecar's head counts from 0, where readers look behind the trunk.
    HeadAtZero {
        /// The block where it belongs; `None` where no key tells.
        expected: Option<u32>,
    },
    /// `block_count` leaves the head out.
    BlockCount {
        /// The key.
        key: String,
        /// Its value.
        found: u32,
        /// Trunk and MTP layers.
        expected: u32,
    },
    /// A head is declared, and nothing of it is there.
    KeyWithoutTensors {
        /// The key that declares it.
        key: String,
        /// Its value.
        n_mtp: u32,
        /// The block where it would be.
        block: u32,
    },
    /// A head is there, and the key that declares it is not, or says another number.
    TensorWithoutKey {
        /// The key.
        key: String,
        /// Its value, 0 where it is missing.
        found: u32,
        /// Heads that are there.
        expected: u32,
        /// A tensor that only a head has.
        tensor: String,
    },
    /// An array does not have an entry for each block.
    PerLayer {
        /// The key.
        key: String,
        /// Its length.
        found: usize,
        /// Blocks.
        expected: u32,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::HeadAtZero { expected: Some(n) } => write!(
                f,
                "the MTP head is in blk.0, expected blk.{n}, behind the trunk"
            ),
            Fault::HeadAtZero { expected: None } => write!(
                f,
                "the MTP head is in blk.0, expected behind the trunk, whose length no key tells"
            ),
            Fault::BlockCount {
                key,
                found,
                expected,
            } => write!(
                f,
                "key {key} is {found}, expected {expected}: it must count the MTP head's block"
            ),
            Fault::KeyWithoutTensors { key, n_mtp, block } => write!(
                f,
                "key {key} is {n_mtp}, but no tensor of blk.{block} is there"
            ),
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
                "key {key} is {found}, but the tensors hold {expected} MTP head(s)"
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

/// Where layers really are, whatever the keys say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Trunk layers; `None` where nothing tells.
    pub n_layer: Option<u32>,
    /// Heads behind them.
    pub n_mtp: u32,
    /// The block in which the first head lies.
    pub first: u32,
}

/// What the keys say, missing ones counted as 0.
struct Declared {
    n_block: u32,
    n_mtp: u32,
}

impl Declared {
    fn n_layer(&self) -> u32 {
        self.n_block.saturating_sub(self.n_mtp)
    }
}

/// Everything that is wrong with the layout of a file's head. Empty for a file of an architecture
/// without heads, and for one whose keys are beyond reading.
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
    for (key, array) in per_layer_arrays(&plan.metadata, arch) {
        if array.len() != n_block as usize {
            faults.push(Fault::PerLayer {
                key,
                found: array.len(),
                expected: n_block,
            });
        }
    }
    faults
}

/// Where the layers of a file that can have a head are; `None` for another, and for one whose keys
/// are beyond reading.
pub fn layers(plan: &Plan) -> Option<Layers> {
    let (_, declared) = read(plan)?;
    Some(found(plan, &declared))
}

/// The architecture and the counts, of a file that can have a head.
fn read(plan: &Plan) -> Option<(&str, Declared)> {
    let arch = plan.metadata.str(keys::ARCHITECTURE).ok()??;
    nextn::head_layout(arch)?;
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
        // Where the tensors are is what readers of them will find.
        (true, _) => Some(first),
        // A sidecar that counts from 0 tells the trunk's length by its keys at best.
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

/// A tensor that only a head has, the projection if there is one.
fn head_tensor(plan: &Plan) -> Option<String> {
    let names = || plan.tensors.iter().map(|tensor| &tensor.name);
    let own = |name: &&String| row_name(name).starts_with(NEXTN_PREFIX);
    let projection = names().find(|name| row_name(name) == EH_PROJ);
    projection.or_else(|| names().find(own)).cloned()
}

/// Arrays that must have an entry for each block.
fn per_layer_arrays<'a>(metadata: &'a Metadata, arch: &str) -> Vec<(String, &'a Array)> {
    let keys = PER_LAYER_KEYS.iter();
    let keys = keys.map(|(suffix, _)| format!("{arch}.{suffix}"));
    keys.filter_map(|key| Some((key.clone(), metadata.get(&key)?.as_array()?)))
        .collect()
}

/// A tensor's name without `blk.N.`; empty outside the blocks.
pub fn row_name(name: &str) -> &str {
    match name.starts_with("blk.") {
        true => name.splitn(3, '.').nth(2).unwrap_or_default(),
        false => "",
    }
}

/// Blocks with rows that only a head has.
pub fn head_blocks(plan: &Plan) -> BTreeSet<u32> {
    let heads = plan.tensors.iter();
    let heads = heads.filter(|tensor| row_name(&tensor.name).starts_with(NEXTN_PREFIX));
    heads.filter_map(Tensor::layer).collect()
}
