//! Why files cannot be split or joined.

use std::fmt;

use schemas::arch::layout::Fault;
use schemas::arch::nextn;
use schemas::gguf::{KeyError, SourceError};

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
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key is missing or mistyped.
    #[error("{role}: {source}")]
    Key {
        /// The file.
        role: Role,
        /// What is wrong with the key.
        source: KeyError,
    },
    /// A number is outside what a model can have.
    #[error("{role}: key {key}: {found}, expected {expected}")]
    Range {
        /// The file.
        role: Role,
        /// The key.
        key: String,
        /// The number.
        found: u32,
        /// What it can be.
        expected: String,
    },
    /// No model of the architecture has an MTP head that we know.
    #[error(
        "{role}: architecture {arch} has no MTP head (known with one: {})",
        nextn::names()
    )]
    ArchWithoutHead {
        /// The file.
        role: Role,
        /// Its architecture.
        arch: String,
    },
    /// The files are of two architectures.
    #[error("key general.architecture: target has {target}, donor has {donor}")]
    Architecture {
        /// The target's.
        target: String,
        /// The donor's.
        donor: String,
    },
    /// The head lies elsewhere than the keys say.
    #[error("{role}: {fault} (specconv repair-mtp mends this)")]
    Layout {
        /// The file.
        role: Role,
        /// What is wrong.
        fault: Fault,
    },
    /// Nothing tells where a head of its own file belongs.
    #[error("{role}: no key tells how long the trunk is (say it with --trunk-layers N)")]
    TrunkLength {
        /// The file.
        role: Role,
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
    #[error(
        "{role}: already has an MTP head, key {key} is {n_mtp} (replace-mtp puts another in its place)"
    )]
    HasHead {
        /// The file.
        role: Role,
        /// The key that declares it.
        key: String,
        /// Its value.
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
    /// A tensor of the head is not of the size that the model gives it.
    #[error("{role}: tensor {tensor}: shape {found:?}, expected {expected:?}")]
    Shape {
        /// The file.
        role: Role,
        /// The name.
        tensor: String,
        /// Its axes, without trailing ones of 1.
        found: Vec<u64>,
        /// The axes by the keys and the trunk's own layers.
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
    /// A head with a reduced output cannot use the target's.
    #[error(
        "donor: a head with a trimmed vocabulary has an output of its own and cannot share the target's"
    )]
    TrimmedShares,
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
    /// A tensor's data cannot be read.
    #[error("{role}: tensor {tensor}: {source}")]
    Data {
        /// The file.
        role: Role,
        /// The name.
        tensor: String,
        /// Why.
        source: SourceError,
    },
}
