//! What must hold before a head is cut or joined. Reads keys, names and shapes, never data.

use bstr::BString;
use schemas::arch::{Hparams, MtpSpec, NEXTN_PREFIX, Need, keys};
use schemas::gguf::{Plan, Tensor};

use crate::error::{Error, Role};

/// A file, and the numbers that size it.
pub(crate) struct Model<'a> {
    pub(crate) role: Role,
    pub(crate) plan: &'a Plan,
    pub(crate) hparams: Hparams,
}

impl<'a> Model<'a> {
    pub(crate) fn new(role: Role, plan: &'a Plan) -> Result<Model<'a>, Error> {
        let hparams = Hparams::from_metadata(&plan.metadata)
            .map_err(|source| Error::Hparams { role, source })?;
        Ok(Model {
            role,
            plan,
            hparams,
        })
    }

    /// A key of the architecture, in full.
    pub(crate) fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.hparams.arch.name)
    }

    /// Whether a tensor lies in an MTP layer.
    pub(crate) fn in_head(&self, tensor: &Tensor) -> bool {
        tensor
            .layer()
            .is_some_and(|layer| layer >= self.hparams.n_layer)
    }

    fn mtp_spec(&self) -> Result<&'static MtpSpec, Error> {
        let arch = self.hparams.arch;
        arch.mtp.as_ref().ok_or(Error::ArchWithoutHead {
            role: self.role,
            arch: arch.name,
        })
    }

    /// Refuses a file whose tensors and keys disagree on where MTP layers are.
    fn check_stray(&self) -> Result<(), Error> {
        let Hparams { n_layer, .. } = self.hparams;
        let n_block = self.hparams.n_block();
        let is_stray = |tensor: &&Tensor| {
            tensor.layer().is_some_and(|layer| {
                layer >= n_block || (layer < n_layer && row(tensor).starts_with(NEXTN_PREFIX))
            })
        };
        match self.plan.tensors.iter().find(is_stray) {
            None => Ok(()),
            Some(tensor) => Err(Error::TensorWithoutKey {
                role: self.role,
                tensor: tensor.name.clone(),
                n_block,
                n_mtp: self.hparams.n_mtp(),
            }),
        }
    }

    /// Refuses a file without a whole MTP head of the architecture's layout.
    pub(crate) fn check_head(&self) -> Result<(), Error> {
        let Model { role, plan, .. } = *self;
        self.mtp_spec()?;
        self.check_stray()?;
        let key = self.key(keys::NEXTN_PREDICT_LAYERS);
        let Hparams { n_layer, .. } = self.hparams;
        let n_mtp = self.hparams.n_mtp();
        if n_mtp == 0 {
            let is_zero = plan.metadata.contains(&key);
            return Err(Error::NoHead { role, key, is_zero });
        }
        if !plan.tensors.iter().any(|tensor| self.in_head(tensor)) {
            return Err(Error::KeyWithoutTensors {
                role,
                key,
                n_mtp,
                layer: n_layer,
            });
        }
        let head = n_layer..self.hparams.n_block();
        for expected in head.flat_map(|layer| self.hparams.arch.layer(&self.hparams, layer)) {
            let Some(tensor) = plan.tensor(&expected.name) else {
                if expected.spec.need == Need::Optional {
                    continue;
                }
                let tensor = expected.name;
                return Err(Error::MissingTensor { role, tensor });
            };
            let shape = expected.spec.shape(&self.hparams);
            if tensor.logical_shape() != without_trailing_ones(&shape) {
                return Err(Error::Shape {
                    role,
                    tensor: expected.name,
                    found: tensor.logical_shape().to_vec(),
                    expected: shape,
                });
            }
        }
        Ok(())
    }

    /// Refuses a file that has an MTP head, or a part of one.
    pub(crate) fn check_headless(&self) -> Result<(), Error> {
        self.mtp_spec()?;
        match self.hparams.n_mtp() {
            0 => self.check_stray(),
            n_mtp => {
                // A head that is declared but absent is another mistake, and named as such.
                self.check_head()?;
                Err(Error::HasHead {
                    role: self.role,
                    key: self.key(keys::NEXTN_PREDICT_LAYERS),
                    n_mtp,
                })
            }
        }
    }
}

/// A tensor's name without `blk.N.`.
fn row(tensor: &Tensor) -> &str {
    tensor.name.splitn(3, '.').nth(2).unwrap_or_default()
}

fn without_trailing_ones(shape: &[u64]) -> &[u64] {
    let n = shape.iter().rposition(|&ne| ne != 1).unwrap_or(0) + 1;
    &shape[..n.min(shape.len())]
}

/// Refuses a donor whose head was made for another model than the target: another architecture,
/// other widths, other tokens. The lengths of the trunks may differ.
pub(crate) fn check(target: &Model<'_>, donor: &Model<'_>) -> Result<(), Error> {
    let (t, d) = (&target.hparams, &donor.hparams);
    same(keys::ARCHITECTURE, t.arch.name, d.arch.name)?;
    let numbers = [
        (keys::EMBEDDING_LENGTH, t.n_embd, d.n_embd),
        (keys::FEED_FORWARD_LENGTH, t.n_ff, d.n_ff),
        (keys::HEAD_COUNT, t.n_head, d.n_head),
        (keys::HEAD_COUNT_KV, t.n_head_kv, d.n_head_kv),
        (keys::KEY_LENGTH, t.head_dim, d.head_dim),
        (keys::ROPE_DIMENSION_COUNT, t.n_rot, d.n_rot),
    ];
    for (suffix, target_value, donor_value) in numbers {
        same(&target.key(suffix), target_value, donor_value)?;
    }
    let reals = [
        (keys::ROPE_FREQ_BASE, t.rope_freq_base, d.rope_freq_base),
        (keys::RMS_EPSILON, t.rms_eps, d.rms_eps),
    ];
    for (suffix, target_value, donor_value) in reals {
        same(&target.key(suffix), target_value, donor_value)?;
    }
    same(
        &target.key(keys::ROPE_SCALING_TYPE),
        &t.rope_scaling,
        &d.rope_scaling,
    )?;
    same_tokens(target, donor)
}

fn same<T: PartialEq + ToString>(key: &str, target: T, donor: T) -> Result<(), Error> {
    if target == donor {
        return Ok(());
    }
    Err(Error::Mismatch {
        key: key.to_owned(),
        target: target.to_string(),
        donor: donor.to_string(),
    })
}

/// Compares the vocabularies by size, and token by token where both files list them.
fn same_tokens(target: &Model<'_>, donor: &Model<'_>) -> Result<(), Error> {
    let size = |model: &Model<'_>| format!("{} tokens", model.hparams.n_vocab);
    same(keys::TOKENS, size(target), size(donor))?;
    let (Some(target), Some(donor)) = (tokens(target)?, tokens(donor)?) else {
        return Ok(());
    };
    match target.iter().zip(donor).position(|(t, d)| t != d) {
        None => Ok(()),
        Some(id) => Err(Error::Token {
            id,
            target: target[id].clone(),
            donor: donor[id].clone(),
        }),
    }
}

fn tokens<'a>(model: &Model<'a>) -> Result<Option<&'a [BString]>, Error> {
    let read = model.plan.metadata.strings(keys::TOKENS);
    read.map_err(|e| Error::Hparams {
        role: model.role,
        source: e.into(),
    })
}
