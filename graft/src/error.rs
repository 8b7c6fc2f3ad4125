//! Why files cannot be split or joined.

use std::fmt;

use bstr::BString;
use schemas::arch::HparamsError;

/// Which of the files an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The file to be split.
    Input,
    /// The file that gets the head.
    Target,
    /// The file that the head comes from.
    Donor,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Input => "input",
            Role::Target => "target",
            Role::Donor => "donor",
        })
    }
}

/// Why files cannot be split or joined.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The keys size no model.
    #[error("{role}: {source}")]
    Hparams {
        /// The file.
        role: Role,
        /// What is wrong with its keys.
        source: HparamsError,
    },
    /// No model of the architecture has an MTP head.
    #[error("{role}: architecture {arch} has no MTP head")]
    ArchWithoutHead {
        /// The file.
        role: Role,
        /// Its architecture.
        arch: &'static str,
    },
    /// The file has no head.
    #[error("{role}: no MTP head, key {key} is {}", if *.is_zero { "0" } else { "missing" })]
    NoHead {
        /// The file.
        role: Role,
        /// The key that would declare one.
        key: String,
        /// Whether the key is there, with 0 for its value.
        is_zero: bool,
    },
    /// The target has a head already.
    #[error("{role}: already has an MTP head, key {key} is {n_mtp}")]
    HasHead {
        /// The file.
        role: Role,
        /// The key that declares it.
        key: String,
        /// Its value.
        n_mtp: u32,
    },
    /// A head is declared, and nothing of it is there.
    #[error("{role}: key {key} is {n_mtp}, but no tensor of blk.{layer} is there")]
    KeyWithoutTensors {
        /// The file.
        role: Role,
        /// The key that declares the head.
        key: String,
        /// Its value.
        n_mtp: u32,
        /// The first layer that the key makes an MTP layer.
        layer: u32,
    },
    /// Part of a head lies where no head is declared.
    #[error(
        "{role}: tensor {tensor} belongs to an MTP head, but of {n_block} layers the last {n_mtp} are MTP layers by the keys"
    )]
    TensorWithoutKey {
        /// The file.
        role: Role,
        /// The name.
        tensor: String,
        /// `block_count`.
        n_block: u32,
        /// `nextn_predict_layers`, 0 where it is missing.
        n_mtp: u32,
    },
    /// The head lacks a tensor that it cannot work without.
    #[error("{role}: tensor {tensor} of the MTP head is missing")]
    MissingTensor {
        /// The file.
        role: Role,
        /// The name.
        tensor: String,
    },
    /// A tensor of the head is not of the size that the keys give it.
    #[error("{role}: tensor {tensor}: shape {found:?}, expected {expected:?}")]
    Shape {
        /// The file.
        role: Role,
        /// The name.
        tensor: String,
        /// Its axes, without trailing ones of 1.
        found: Vec<u64>,
        /// The axes by the keys.
        expected: Vec<u64>,
    },
    /// Nothing would be left.
    #[error("{role}: no trunk, tensors of blk.0 to blk.{} are missing", .n_layer - 1)]
    NoTrunk {
        /// The file.
        role: Role,
        /// Trunk layers by the keys.
        n_layer: u32,
    },
    /// The head was made for another model.
    #[error("key {key}: target has {target}, donor has {donor}")]
    Mismatch {
        /// The key.
        key: String,
        /// The target's value.
        target: String,
        /// The donor's value.
        donor: String,
    },
    /// The vocabularies have the same size, but not the same tokens.
    #[error("token {id}: target has {target:?}, donor has {donor:?}")]
    Token {
        /// The first id that differs.
        id: usize,
        /// The target's text.
        target: BString,
        /// The donor's text.
        donor: BString,
    },
    /// An entry is needed for each new layer, and nobody knows it.
    #[error(
        "key {key}: one entry for each of the target's {n_layer} layers, but the donor has none for its MTP layers"
    )]
    PerLayer {
        /// The key.
        key: String,
        /// The target's layers.
        n_layer: u32,
    },
}
