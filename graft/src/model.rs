//! A file with its architecture, and its numbers of trunk and MTP layers. Reads keys, names and
//! shapes, never data.

use schemas::arch::heads::{self, HeadSpec};
use schemas::arch::keys;
use schemas::arch::mtp_layout::{diagnose, head_blocks, name_in_block};
use schemas::arch::nextn::{EH_PROJ, HeadShape, HeadTensor};
use schemas::gguf::{Metadata, Plan, Tensor, logical_shape};

use crate::error::{Error, Role};

/// Maximum number of blocks; llama.cpp has the same limit.
const MAX_BLOCKS: u32 = 512;

/// A file and its layers.
pub(crate) struct Model<'a> {
    pub(crate) role: Role,
    pub(crate) plan: &'a Plan,
    pub(crate) head: HeadSpec,
    /// Number of trunk layers; for a donor without keys, the number of the head's first block.
    pub(crate) n_layer: u32,
    pub(crate) n_mtp: u32,
}

impl<'a> Model<'a> {
    /// Reads a file with complete keys.
    pub(crate) fn new(role: Role, plan: &'a Plan) -> Result<Model<'a>, Error> {
        let key_error = |source| Error::Key { role, source };
        let arch = plan
            .metadata
            .need_str(keys::ARCHITECTURE)
            .map_err(key_error)?;
        let head = heads::find(arch).ok_or_else(|| Error::ArchWithoutHead {
            role,
            arch: arch.to_owned(),
        })?;
        if let Some(fault) = diagnose(plan).into_iter().next() {
            return Err(Error::Layout { role, fault });
        }
        let (n_block, n_mtp) = counts(&plan.metadata, head.arch).map_err(|e| e.into_error(role))?;
        Ok(Model {
            role,
            plan,
            head,
            n_layer: n_block - n_mtp,
            n_mtp,
        })
    }

    /// Reads the donor for a target: a normal file, or one that has the tensors of a head but no
    /// keys and is assumed to be of the target's architecture.
    pub(crate) fn donor(plan: &'a Plan, target: &Model<'_>) -> Result<Model<'a>, Error> {
        let role = Role::Donor;
        let arch = plan.metadata.str(keys::ARCHITECTURE);
        let arch = arch.map_err(|source| Error::Key { role, source })?;
        if let Some(found) = arch
            && found != target.head.arch
        {
            return Err(Error::Architecture {
                target: target.head.arch.to_owned(),
                donor: found.to_owned(),
            });
        }
        if !is_bare(plan) {
            return Model::new(role, plan);
        }
        let heads = head_blocks(plan);
        let (Some(&first), Some(&last)) = (heads.first(), heads.last()) else {
            let tensor = format!("blk.N.{EH_PROJ}");
            return Err(Error::MissingTensor { role, tensor });
        };
        Ok(Model {
            role,
            plan,
            head: target.head,
            n_layer: first,
            n_mtp: last - first + 1,
        })
    }

    /// Returns the full name of an architecture key.
    pub(crate) fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.head.arch)
    }

    /// Returns the number of all blocks.
    pub(crate) fn n_block(&self) -> u32 {
        self.n_layer + self.n_mtp
    }

    /// Checks whether a tensor belongs to an MTP layer.
    pub(crate) fn in_head(&self, tensor: &Tensor) -> bool {
        tensor.layer().is_some_and(|layer| layer >= self.n_layer)
    }

    /// Returns a tensor of a block.
    pub(crate) fn block_tensor(&self, block: u32, name: &str) -> Option<&'a Tensor> {
        self.plan.tensor(&format!("blk.{block}.{name}"))
    }

    /// Returns the last trunk layer that has all required tensors of a head's layer; it defines
    /// their shapes.
    pub(crate) fn trunk_like_head(&self) -> Option<u32> {
        let mut tensors = self.head.tensors();
        tensors.retain(|tensor| tensor.shape == HeadShape::Trunk);
        (0..self.n_layer)
            .rev()
            .find(|&block| !tensors.iter().any(|tensor| self.lacks(block, tensor)))
    }

    /// Checks whether a block lacks a required tensor.
    fn lacks(&self, block: u32, tensor: &HeadTensor) -> bool {
        tensor.is_missing(|name| self.block_tensor(block, name).is_some())
    }

    /// Returns the embedding width, from the key or else from the token embedding.
    pub(crate) fn n_embd(&self) -> Option<u64> {
        let key = self.key(keys::EMBEDDING_LENGTH);
        let declared = self.plan.metadata.u32(&key).ok().flatten();
        let embedding = || Some(self.plan.tensor("token_embd.weight")?.ne0());
        declared.map(u64::from).or_else(embedding)
    }

    /// Returns the number of streams of hyper-connections, from the key.
    fn n_streams(&self) -> Option<u64> {
        let key = self.key(keys::HYPER_CONNECTION_COUNT);
        self.plan.metadata.u32(&key).ok().flatten().map(u64::from)
    }

    /// Returns the number of tokens, from the token embedding or else from the token list.
    pub(crate) fn n_vocab(&self) -> Option<u64> {
        let embedding = self.plan.tensor("token_embd.weight");
        let embedding = embedding.and_then(|t| t.logical_shape().get(1).copied());
        let tokens = || self.plan.metadata.strings(keys::TOKENS).ok().flatten();
        embedding.or_else(|| tokens().map(|tokens| tokens.len() as u64))
    }

    /// Fails if the file has no complete MTP head in its architecture's layout.
    pub(crate) fn check_head(&self) -> Result<(), Error> {
        let Model { role, plan, .. } = *self;
        let key = self.key(keys::NEXTN_PREDICT_LAYERS);
        if self.n_mtp == 0 {
            let is_zero = plan.metadata.contains(&key);
            return Err(Error::NoHead { role, key, is_zero });
        }
        for block in self.n_layer..self.n_block() {
            let expected = self.head.tensors();
            if let Some(missing) = expected.iter().find(|tensor| self.lacks(block, tensor)) {
                let tensor = format!("blk.{block}.{}", missing.name);
                return Err(Error::MissingTensor { role, tensor });
            }
            self.check_shapes(block, self)?;
        }
        Ok(())
    }

    /// Fails if a tensor of the head in a block does not have the shape that `sizes` requires.
    /// Tensors that the table does not list have the shape of the trunk's.
    pub(crate) fn check_shapes(&self, block: u32, sizes: &Model<'_>) -> Result<(), Error> {
        let known = self.head.tensors();
        for expected in &known {
            if let Some(tensor) = self.block_tensor(block, expected.name) {
                self.check_shape(tensor, expected.shape, sizes)?;
            }
        }
        let is_known = |name: &str| known.iter().any(|tensor| tensor.name == name);
        let tensors = self.plan.tensors.iter();
        for tensor in tensors.filter(|tensor| tensor.layer() == Some(block)) {
            if !is_known(name_in_block(&tensor.name)) {
                self.check_shape(tensor, HeadShape::Trunk, sizes)?;
            }
        }
        Ok(())
    }

    /// Fails if a tensor of a head does not have the shape that `sizes` requires, as far as that
    /// file determines it.
    fn check_shape(
        &self,
        tensor: &Tensor,
        shape: HeadShape,
        sizes: &Model<'_>,
    ) -> Result<(), Error> {
        // A trimmed head has its own number of tokens.
        let is_trimmed = shape == HeadShape::Vocab && self.is_trimmed();
        let is_same = |expected: &Vec<u64>| {
            let n = if is_trimmed { 1 } else { expected.len() };
            tensor.logical_shape().get(..n) == expected.get(..n)
                && (is_trimmed || tensor.logical_shape().len() == expected.len())
        };
        let mut expected = sizes.shapes_of(tensor, shape);
        if expected.is_empty() || expected.iter().any(is_same) {
            return Ok(());
        }
        let expected = expected.swap_remove(0);
        Err(Error::Shape {
            role: self.role,
            tensor: tensor.name.clone(),
            found: tensor.logical_shape().to_vec(),
            expected,
        })
    }

    /// Returns the shapes that a tensor of a head may have; empty if this file does not determine them.
    fn shapes_of(&self, tensor: &Tensor, shape: HeadShape) -> Vec<Vec<u64>> {
        let (n_embd, n_vocab) = (self.n_embd(), self.n_vocab());
        let expected = match shape {
            HeadShape::Width => n_embd.map(|n| vec![n]),
            HeadShape::Joined => n_embd.map(|n| vec![2 * n, n]),
            HeadShape::Vocab => n_embd.zip(n_vocab).map(|(n, n_vocab)| vec![n, n_vocab]),
            HeadShape::Streams => {
                let streams = n_embd.zip(self.n_streams());
                return streams
                    .map_or_else(Vec::new, |(n, count)| vec![vec![n, count], vec![n * count]]);
            }
            HeadShape::Model(name) => {
                let like = self.plan.tensor(name);
                like.map(|like| like.logical_shape().to_vec())
            }
            // Layers of the trunk may differ; the head's is like one of them.
            HeadShape::Trunk => {
                let name = name_in_block(&tensor.name);
                let layers = (0..self.n_layer).rev();
                let like = layers.filter_map(|block| self.block_tensor(block, name));
                return like.map(|like| like.logical_shape().to_vec()).collect();
            }
        };
        let expected = expected.map(|expected| logical_shape(&expected).to_vec());
        expected.into_iter().collect()
    }

    /// Checks whether the head's output has only some of the target's tokens.
    pub(crate) fn is_trimmed(&self) -> bool {
        let layout = self.plan.metadata.str(keys::MTP_LAYOUT);
        layout.ok().flatten() == Some(keys::TRIMMED_VOCAB)
    }

    /// Fails if the file has an MTP head.
    pub(crate) fn check_headless(&self) -> Result<(), Error> {
        if self.n_mtp == 0 {
            return Ok(());
        }
        // An incomplete head is reported as such.
        self.check_head()?;
        Err(Error::HasHead {
            role: self.role,
            key: self.key(keys::NEXTN_PREDICT_LAYERS),
            n_mtp: self.n_mtp,
        })
    }
}

/// Checks whether a file has tensors only, and no keys about the model.
fn is_bare(plan: &Plan) -> bool {
    let suffix = format!(".{}", keys::BLOCK_COUNT);
    !plan.metadata.iter().any(|(key, _)| key.ends_with(&suffix))
}

/// Error of the layer counts.
pub(crate) enum CountError {
    Key(schemas::gguf::KeyError),
    Range {
        key: String,
        found: u32,
        expected: String,
    },
}

impl CountError {
    pub(crate) fn into_error(self, role: Role) -> Error {
        match self {
            CountError::Key(source) => Error::Key { role, source },
            CountError::Range {
                key,
                found,
                expected,
            } => Error::Range {
                role,
                key,
                found,
                expected,
            },
        }
    }
}

/// Returns the number of blocks, and how many of them are MTP layers, from the keys.
pub(crate) fn counts(metadata: &Metadata, arch: &str) -> Result<(u32, u32), CountError> {
    let key = format!("{arch}.{}", keys::BLOCK_COUNT);
    let n_block = metadata.need_u32(&key).map_err(CountError::Key)?;
    if !(1..=MAX_BLOCKS).contains(&n_block) {
        return Err(CountError::Range {
            key,
            found: n_block,
            expected: format!("1 to {MAX_BLOCKS}"),
        });
    }
    let key = format!("{arch}.{}", keys::NEXTN_PREDICT_LAYERS);
    let n_mtp = metadata.u32(&key).map_err(CountError::Key)?.unwrap_or(0);
    if n_mtp >= n_block {
        return Err(CountError::Range {
            key,
            found: n_mtp,
            expected: format!("fewer than the {n_block} blocks"),
        });
    }
    Ok((n_block, n_mtp))
}
