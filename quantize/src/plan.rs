//! From a plan to the plan of the quantized file.

use std::sync::Arc;

use kernels::quant::quant_type;
use schemas::arch::keys;
use schemas::gguf::{DType, Metadata, Plan, Tensor};

use crate::error::Error;
use crate::ftype::FType;
use crate::imatrix::{Imatrix, Importance};
use crate::mix::{IMPORTANCE_TYPES, Mix, is_embedding, needs_imatrix};
use crate::rule::{KeyOverride, TypeRule};
use crate::source::{Checked, Recoded};

/// Version of the block layouts, the value of `general.quantization_version`.
const QUANTIZATION_VERSION: u32 = 2;

/// How to quantize.
#[derive(Clone, Debug)]
pub struct QuantizeConfig {
    /// The type of the result.
    pub ftype: FType,
    /// Whether tensors that are quantized already may change their type, at a loss.
    pub allow_requantize: bool,
    /// How much each column of each weight matters. One without entries is as good as none.
    pub imatrix: Option<Imatrix>,
    /// Whether all weights get the default type of [`ftype`](Self::ftype), without a mix.
    pub pure: bool,
    /// Whether `output.weight` stays as it is.
    pub leave_output: bool,
    /// The type of `output.weight`, and of an embedding that serves as output.
    pub output_type: Option<DType>,
    /// The type of token embeddings, whatever their rows.
    pub embedding_type: Option<DType>,
    /// Types by name; the first rule that matches decides. Not for files of F32, F16 or BF16.
    pub tensor_types: Vec<TypeRule>,
    /// The type of the weights of MTP layers that no rule matches. `eh_proj`, which every draft
    /// goes through, gets no fewer bits than Q8_0 has.
    pub mtp_type: Option<DType>,
    /// Values of keys in the result; types are decided by them, too.
    pub overrides: Vec<KeyOverride>,
}

impl QuantizeConfig {
    /// To that type, by the rules of its mix alone.
    pub fn new(ftype: FType) -> QuantizeConfig {
        QuantizeConfig {
            ftype,
            allow_requantize: false,
            imatrix: None,
            pure: false,
            leave_output: false,
            output_type: None,
            embedding_type: None,
            tensor_types: Vec::new(),
            mtp_type: None,
            overrides: Vec::new(),
        }
    }

    /// The importance matrix, unless it says nothing.
    pub(crate) fn imatrix(&self) -> Option<&Imatrix> {
        self.imatrix.as_ref().filter(|imatrix| !imatrix.is_empty())
    }
}

/// What becomes of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The name.
    pub tensor: String,
    /// The type in the input.
    pub from: DType,
    /// The type in the output.
    pub to: DType,
    /// The type that the mix gives such a tensor, where its rows are no whole blocks of that.
    pub unfit: Option<DType>,
    /// Whether the result would be useless without an importance matrix.
    pub needs_imatrix: bool,
    /// Whether there is an importance matrix, but none for this tensor, which could use it.
    pub lacks_importance: bool,
}

/// A quantized file to be.
#[derive(Clone)]
pub struct Quantized {
    /// The file. Weights are recoded when it is written.
    pub plan: Plan,
    /// One for each of its tensors, in order.
    pub decisions: Vec<Decision>,
}

/// Decides on types without making anything, in the order of the output.
///
/// # Errors
/// A key that the mix depends on is missing or mistyped, or a name tells no layer.
pub fn decide(input: &Plan, config: &QuantizeConfig) -> Result<Vec<Decision>, Error> {
    let tensors = ordered(input);
    let metadata = metadata(&input.metadata, config);
    let mut mix = Mix::new(config, &metadata, &tensors)?;
    if config.mtp_type.is_some() && !tensors.iter().any(|tensor| mix.is_mtp(tensor)) {
        return Err(Error::NoMtp);
    }
    tensors
        .into_iter()
        .map(|tensor| {
            let choice = mix.choose(tensor)?;
            let (from, to) = (tensor.dtype, choice.dtype);
            let importance = importance(tensor, config);
            Ok(Decision {
                tensor: tensor.name.clone(),
                from,
                to,
                unfit: choice.unfit,
                needs_imatrix: from != to && needs_imatrix(config.ftype, tensor, to),
                lacks_importance: from != to
                    && IMPORTANCE_TYPES.contains(&to)
                    && config.imatrix().is_some()
                    && importance.is_none(),
            })
        })
        .collect()
}

/// Plans the quantized file.
///
/// Writing it fails where a tensor holds a NaN or an infinity, and where its values are too large
/// for the scales of its new type.
///
/// # Errors
/// As [`decide`]; a tensor would have to be decoded and cannot or may not be; the importance
/// matrix is of another model, or lacks a tensor that requires it.
pub fn plan(input: &Plan, config: &QuantizeConfig) -> Result<Quantized, Error> {
    let decisions = decide(input, config)?;
    check_imatrix(input, &decisions, config)?;
    let tensors = ordered(input)
        .into_iter()
        .zip(&decisions)
        .map(|(tensor, decision)| recode(tensor, decision, config))
        .collect::<Result<_, _>>()?;
    let plan = Plan {
        version: 3,
        metadata: metadata(&input.metadata, config),
        tensors,
    };
    Ok(Quantized { plan, decisions })
}

/// The tensor's part of the importance matrix, if there is one and it fits.
fn importance(tensor: &Tensor, config: &QuantizeConfig) -> Option<Importance> {
    let values = config.imatrix()?.entry(&tensor.name)?;
    Importance::new(values, tensor)
}

/// Refuses an importance matrix that would fail later, and the want of one.
fn check_imatrix(
    input: &Plan,
    decisions: &[Decision],
    config: &QuantizeConfig,
) -> Result<(), Error> {
    if let Some((entry, index, value)) = config.imatrix().and_then(Imatrix::find_invalid) {
        return Err(Error::ImatrixValue {
            entry: entry.to_owned(),
            index,
            found: value.to_string(),
        });
    }
    let mut without = Vec::new();
    for (tensor, decision) in ordered(input).into_iter().zip(decisions) {
        let importance = importance(tensor, config);
        if decision.needs_imatrix && importance.is_none() {
            without.push(decision);
        }
        let entry = config.imatrix().and_then(|all| all.entry(&tensor.name));
        // Embeddings are looked up, not multiplied: what an entry says of them means nothing.
        if let Some(entry) = entry
            && importance.is_none()
            && decision.from != decision.to
            && !is_embedding(&tensor.name)
        {
            return Err(Error::ImatrixSize {
                tensor: tensor.name.clone(),
                expected: Importance::n_values(tensor),
                found: entry.len(),
            });
        }
    }
    match without.first() {
        None => Ok(()),
        Some(&&Decision { to, .. }) => Err(Error::NeedsImatrix {
            tensors: without.iter().map(|d| d.tensor.clone()).collect(),
            to,
            ftype: config.ftype,
        }),
    }
}

/// The order of the output: tensors outside the layers, then layer by layer, by name in each.
fn ordered(input: &Plan) -> Vec<&Tensor> {
    let mut tensors: Vec<_> = input.tensors.iter().collect();
    tensors.sort_by_key(|tensor| (tensor.layer(), tensor.name.as_str()));
    tensors
}

/// The input's keys; those that describe the quantization move to the end.
fn metadata(input: &Metadata, config: &QuantizeConfig) -> Metadata {
    let mut metadata = input.clone();
    metadata.set_last(keys::QUANTIZATION_VERSION, QUANTIZATION_VERSION);
    let copied = || input.get(keys::FILE_TYPE).cloned();
    if let Some(id) = config.ftype.id().map(Into::into).or_else(copied) {
        metadata.set_last(keys::FILE_TYPE, id);
    }
    for KeyOverride { key, value } in &config.overrides {
        metadata.set_last(key, value.clone());
    }
    if let Some(imatrix) = config.imatrix() {
        imatrix.describe(&mut metadata);
    }
    metadata
}

fn recode(tensor: &Tensor, decision: &Decision, config: &QuantizeConfig) -> Result<Tensor, Error> {
    let name = || tensor.name.clone();
    let (from, to) = (decision.from, decision.to);
    // Trailing axes of 1 are not written by the peer's quantizer.
    let mut out = Tensor {
        shape: tensor.logical_shape().to_vec(),
        ..tensor.clone()
    };
    if from == to {
        if let Some(codec) = quant_type(from) {
            let inner = tensor.clone();
            out.source = Arc::new(Checked { inner, codec });
        }
        return Ok(out);
    }
    let is_quantized = from.layout().is_some_and(|layout| layout.block_len > 1);
    if is_quantized && !config.allow_requantize {
        let tensor = name();
        return Err(Error::Requantize { tensor, from, to });
    }
    let (Some(decoder), Some(encoder)) = (quant_type(from), quant_type(to)) else {
        let tensor = name();
        return Err(Error::NoDecoder { tensor, from, to });
    };
    let source = Recoded {
        inner: tensor.clone(),
        from: decoder,
        to: encoder,
        importance: importance(tensor, config),
        row_bytes: to.row_bytes(tensor.ne0()).unwrap_or(1).max(1),
    };
    Tensor::new(name(), out.shape, to, Arc::new(source)).map_err(|source| Error::Size {
        tensor: name(),
        source,
    })
}
