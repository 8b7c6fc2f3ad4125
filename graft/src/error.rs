//! Errors of splitting and grafting.

use std::fmt;

use schemas::arch::heads;
use schemas::arch::mtp_layout::Fault;
use schemas::gguf::{KeyError, SourceError};

/// The file that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The file to split.
    Input,
    /// The file that receives the head.
    Target,
    /// The file that provides the head.
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

/// Error of splitting or grafting.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key is missing or mistyped.
    #[error("{role}: {source}")]
    Key {
        /// The file.
        role: Role,
        /// The key and its fault.
        source: KeyError,
    },
    /// A number is out of range.
    #[error("{role}: key {key}: {found}, expected {expected}")]
    Range {
        /// The file.
        role: Role,
        /// The key.
        key: String,
        /// The number.
        found: u32,
        /// The allowed range.
        expected: String,
    },
    /// The architecture has no known MTP head.
    #[error(
        "{role}: architecture {arch} has no MTP head ({})",
        match heads::left_out(.arch) {
            Some(reason) => reason.to_owned(),
            None => format!("known with one: {}", heads::names()),
        }
    )]
    ArchWithoutHead {
        /// The file.
        role: Role,
        /// Its architecture.
        arch: String,
    },
    /// The files have different architectures.
    #[error("key general.architecture: target has {target}, donor has {donor}")]
    Architecture {
        /// Architecture of the target.
        target: String,
        /// Architecture of the donor.
        donor: String,
    },
    /// The head is not in the blocks that the keys declare.
    #[error("{role}: {fault}; run specconv repair-mtp to fix it")]
    Layout {
        /// The file.
        role: Role,
        /// The fault.
        fault: Fault,
    },
    /// No key states the trunk's length, so the block of a sidecar's head is unknown.
    #[error("{role}: no key states the number of trunk layers; set it with --trunk-layers N")]
    TrunkLength {
        /// The file.
        role: Role,
    },
    /// The file has no head.
    #[error("{role}: no MTP head, key {key} is {}", if *.is_zero { "0" } else { "missing" })]
    NoHead {
        /// The file.
        role: Role,
        /// The key that would declare the head.
        key: String,
        /// True if the key is present with the value 0.
        is_zero: bool,
    },
    /// The target already has a head.
    #[error("{role}: already has an MTP head, key {key} is {n_mtp}; run replace-mtp to replace it")]
    HasHead {
        /// The file.
        role: Role,
        /// The key that declares the head.
        key: String,
        /// Its value.
        n_mtp: u32,
    },
    /// A required tensor of the head is missing.
    #[error("{role}: tensor {tensor} of the MTP head is missing")]
    MissingTensor {
        /// The file.
        role: Role,
        /// Name of the tensor.
        tensor: String,
    },
    /// A tensor of the head has the wrong shape.
    #[error("{role}: tensor {tensor}: shape {found:?}, expected {expected:?}")]
    Shape {
        /// The file.
        role: Role,
        /// Name of the tensor.
        tensor: String,
        /// Its shape, without trailing dimensions of 1.
        found: Vec<u64>,
        /// The shape that follows from the keys and the trunk's layers.
        expected: Vec<u64>,
    },
    /// The file has no trunk, so there would be no body.
    #[error("{role}: no trunk, tensors of blk.0 to blk.{} are missing", .n_layer - 1)]
    NoTrunk {
        /// The file.
        role: Role,
        /// Number of trunk layers, from the keys.
        n_layer: u32,
    },
    /// The donor has more heads than readers accept.
    #[error("donor: {found} MTP heads, readers of architecture {arch} accept {max}")]
    TooManyHeads {
        /// The architecture.
        arch: &'static str,
        /// Number of heads in the donor.
        found: u32,
        /// The largest number that readers accept.
        max: u32,
    },
    /// A head with a trimmed output cannot share the target's.
    #[error(
        "donor: a head with a trimmed vocabulary has its own output head and cannot use the target's"
    )]
    TrimmedShares,
    /// A per-layer array needs entries for the new layers, and the donor has none.
    #[error(
        "key {key}: one entry for each of the target's {n_layer} layers, but the donor has none for its MTP layers"
    )]
    PerLayer {
        /// The key.
        key: String,
        /// Number of the target's layers.
        n_layer: u32,
    },
    /// Data of a tensor cannot be read.
    #[error("{role}: tensor {tensor}: {source}")]
    Data {
        /// The file.
        role: Role,
        /// Name of the tensor.
        tensor: String,
        /// The cause.
        source: SourceError,
    },
}
