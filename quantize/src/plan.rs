//! From a plan to the plan of the quantized file.

use std::sync::Arc;

use kernels::quant::quant_type;
use schemas::arch::keys;
use schemas::gguf::{DType, Metadata, Plan, Tensor, size_bytes};

use crate::error::Error;
use crate::ftype::{self, FType};
use crate::imatrix::{Imatrix, Importance};
use crate::measure::Measure;
use crate::mix::{IMPORTANCE_TYPES, Mix, Reason, is_embedding, needs_imatrix};
use crate::prune::{self, Item};
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
    /// Layers to leave out. Those behind them move up; the mix still counts all of them.
    pub prune_layers: Vec<u32>,
    /// Whether the tensors of each of the input's files stay together, in the order of their data.
    /// The mix counts in the order of the output, so it may give other types.
    pub keep_split: bool,
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
            prune_layers: Vec::new(),
            keep_split: false,
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
    /// The name in the output.
    pub tensor: String,
    /// Elements along each axis, the contiguous one first.
    pub shape: Vec<u64>,
    /// The type in the input.
    pub from: DType,
    /// Bytes of data in the input.
    pub from_bytes: u64,
    /// The type in the output.
    pub to: DType,
    /// Bytes of data in the output.
    pub to_bytes: u64,
    /// What decided on the type.
    pub by: Reason,
    /// The type that was meant for the tensor, where its rows are no whole blocks of that.
    pub unfit: Option<DType>,
    /// Whether it belongs to an MTP layer.
    pub is_mtp: bool,
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
    /// What recoding cost, for each tensor in order; `None` where it is copied.
    pub measures: Vec<Option<Arc<Measure>>>,
    /// Tensors in each of the files that the plan is to be cut into: all in one, unless the
    /// input's parts are kept.
    pub part_lens: Vec<usize>,
    /// Keys that were made to fit the layers that pruning left.
    pub shortened_keys: Vec<String>,
}

/// Decides on types without making anything, in the order of the output.
///
/// # Errors
/// A key that the mix depends on is missing or mistyped, a name tells no layer, a layer to prune
/// is not there, or rows are no whole blocks of a type that was asked for.
pub fn decide(input: &Plan, config: &QuantizeConfig) -> Result<Vec<Decision>, Error> {
    decide_items(input, config).map(|(_, decisions)| decisions)
}

fn decide_items(
    input: &Plan,
    config: &QuantizeConfig,
) -> Result<(Vec<Item>, Vec<Decision>), Error> {
    let items = prune::items(input, config)?;
    let metadata = metadata(input, config)?;
    let mut mix = Mix::new(config, &metadata, &items)?;
    if config.mtp_type.is_some() && !items.iter().any(|item| mix.is_mtp(item)) {
        return Err(Error::NoMtp);
    }
    let decisions = items.iter().map(|item| decision(item, &mut mix, config));
    let decisions = decisions.collect::<Result<_, _>>()?;
    Ok((items, decisions))
}

fn decision(item: &Item, mix: &mut Mix<'_>, config: &QuantizeConfig) -> Result<Decision, Error> {
    let tensor = &item.tensor;
    let choice = mix.choose(item)?;
    let (from, to) = (tensor.dtype, choice.dtype);
    let to_bytes = match from == to {
        true => tensor.size_bytes,
        false => size_bytes(to, &tensor.shape).map_err(|source| Error::Size {
            tensor: tensor.name.clone(),
            source,
        })?,
    };
    Ok(Decision {
        tensor: tensor.name.clone(),
        shape: tensor.logical_shape().to_vec(),
        from,
        from_bytes: tensor.size_bytes,
        to,
        to_bytes,
        by: choice.by,
        unfit: choice.unfit,
        is_mtp: mix.is_mtp(item),
        needs_imatrix: from != to && needs_imatrix(config.ftype, tensor, to),
        lacks_importance: from != to
            && IMPORTANCE_TYPES.contains(&to)
            && config.imatrix().is_some()
            && importance(item, config).is_none(),
    })
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
    let (items, decisions) = decide_items(input, config)?;
    if let Some(imatrix) = config.imatrix() {
        check_imatrix(imatrix, &items, &decisions, config)?;
    }
    check_needs(&items, &decisions, config)?;
    let recoded = items.iter().zip(&decisions);
    let recoded = recoded.map(|(item, decision)| recode(item, decision, config));
    let (tensors, measures) = recoded.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    let mut metadata = metadata(input, config)?;
    let shortened_keys = prune::shorten(&mut metadata, &config.prune_layers)?;
    let plan = Plan {
        version: 3,
        metadata,
        tensors,
    };
    Ok(Quantized {
        plan,
        decisions,
        measures,
        part_lens: prune::part_lens(&items),
        shortened_keys,
    })
}

/// The tensor's part of the importance matrix, if there is one and it fits.
fn importance(item: &Item, config: &QuantizeConfig) -> Option<Importance> {
    let values = config.imatrix()?.entry(&item.input_name)?;
    Importance::new(values, &item.tensor)
}

/// Refuses an importance matrix that would fail later, or that is of another model.
fn check_imatrix(
    imatrix: &Imatrix,
    items: &[Item],
    decisions: &[Decision],
    config: &QuantizeConfig,
) -> Result<(), Error> {
    if let Some((entry, index, value)) = imatrix.find_invalid() {
        return Err(Error::ImatrixValue {
            entry: entry.to_owned(),
            index,
            found: value.to_string(),
        });
    }
    let fits = |item: &&Item| importance(item, config).is_some();
    for (item, decision) in items.iter().zip(decisions) {
        // Embeddings are looked up, not multiplied: what an entry says of them means nothing.
        if let Some(entry) = imatrix.entry(&item.input_name)
            && !fits(&item)
            && decision.from != decision.to
            && !is_embedding(&item.tensor.name)
        {
            return Err(Error::ImatrixSize {
                tensor: item.input_name.clone(),
                expected: Importance::n_values(&item.tensor),
                found: entry.len(),
                n_fit: items.iter().filter(fits).count(),
                n_entries: imatrix.len(),
            });
        }
    }
    // A head alone has no entries in what was measured on the trunk.
    let of_trunk = |d: &&Decision| !d.is_mtp && !is_embedding(&d.tensor);
    let lacks = decisions.iter().filter(of_trunk);
    let lacking = lacks.clone().find(|d| d.lacks_importance);
    let is_known = |item: &Item| imatrix.entry(&item.input_name).is_some();
    match (lacking, imatrix.first()) {
        (Some(lacking), Some(entry)) if !items.iter().any(is_known) => Err(Error::ImatrixNames {
            n_entries: imatrix.len(),
            entry: entry.to_owned(),
            tensor: lacking.tensor.clone(),
        }),
        _ => Ok(()),
    }
}

/// Refuses to make what would be useless without an importance matrix.
fn check_needs(
    items: &[Item],
    decisions: &[Decision],
    config: &QuantizeConfig,
) -> Result<(), Error> {
    let without: Vec<&Decision> = items
        .iter()
        .zip(decisions)
        .filter(|(item, decision)| decision.needs_imatrix && importance(item, config).is_none())
        .map(|(_, decision)| decision)
        .collect();
    match without.first() {
        None => Ok(()),
        Some(first) => Err(Error::NeedsImatrix {
            tensors: without.iter().map(|d| d.tensor.clone()).collect(),
            to: first.to,
            ftype: config.ftype,
        }),
    }
}

/// The input's keys; those that describe the quantization move to the end.
fn metadata(input: &Plan, config: &QuantizeConfig) -> Result<Metadata, Error> {
    let mut metadata = input.metadata.clone();
    metadata.set_last(keys::QUANTIZATION_VERSION, QUANTIZATION_VERSION);
    let file_type = match (config.ftype.id(), input.metadata.get(keys::FILE_TYPE)) {
        (Some(id), _) => id.into(),
        (None, Some(copied)) => copied.clone(),
        (None, None) => {
            let mut tensors: Vec<_> = input.tensors.iter().collect();
            tensors.sort_by_key(|tensor| prune::order(tensor));
            ftype::guess(tensors.into_iter().map(|tensor| tensor.dtype)).into()
        }
    };
    metadata.set_last(keys::FILE_TYPE, file_type);
    for KeyOverride { key, value } in &config.overrides {
        metadata.set_last(key, value.clone());
    }
    if let Some(imatrix) = config.imatrix() {
        imatrix.describe(&mut metadata);
    }
    Ok(metadata)
}

fn recode(
    item: &Item,
    decision: &Decision,
    config: &QuantizeConfig,
) -> Result<(Tensor, Option<Arc<Measure>>), Error> {
    let inner = &item.tensor;
    let name = || inner.name.clone();
    let &Decision { from, to, .. } = decision;
    // Trailing axes of 1 are not written by the peer's quantizer.
    let mut out = Tensor {
        shape: decision.shape.clone(),
        ..inner.clone()
    };
    if from == to {
        if let Some(codec) = quant_type(from) {
            let inner = inner.clone();
            out.source = Arc::new(Checked { inner, codec });
        }
        return Ok((out, None));
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
    let measure = Arc::new(Measure::new(inner.ne0(), inner.n_rows()));
    let source = Recoded {
        inner: inner.clone(),
        from: decoder,
        to: encoder,
        importance: importance(item, config),
        row_bytes: to.row_bytes(inner.ne0()).unwrap_or(1).max(1),
        measure: Arc::clone(&measure),
    };
    let tensor = Tensor::new(name(), out.shape, to, Arc::new(source));
    let tensor = tensor.map_err(|source| Error::Size {
        tensor: name(),
        source,
    })?;
    Ok((tensor, Some(measure)))
}
