//! Plan of a quantized file, from the plan of its input.

use std::sync::Arc;

use kernels::types::codec;
use schemas::arch::keys;
use schemas::gguf::{DType, Metadata, Plan, Tensor, size_bytes};

use crate::config::QuantizeConfig;
use crate::error::Error;
use crate::ftype;
use crate::imatrix::{Imatrix, Importance};
use crate::measure::Measure;
use crate::mix::{IMPORTANCE_TYPES, Mix, Reason, is_embedding, needs_imatrix};
use crate::prune::{self, Item};
use crate::rule::KeyOverride;
use crate::source::{Checked, Recoded};

/// Version of the block layouts, the value of `general.quantization_version`.
const QUANTIZATION_VERSION: u32 = 2;

/// The decision about one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Name in the output.
    pub tensor: String,
    /// Elements per dimension, the contiguous one first.
    pub shape: Vec<u64>,
    /// Type in the input.
    pub from: DType,
    /// Bytes in the input.
    pub from_bytes: u64,
    /// Type in the output.
    pub to: DType,
    /// Bytes in the output.
    pub to_bytes: u64,
    /// Reason for the type.
    pub by: Reason,
    /// Preferred type, if the row length is not a multiple of its block length.
    pub unfit: Option<DType>,
    /// True if the tensor belongs to an MTP layer.
    pub is_mtp: bool,
    /// True if the result would be useless without an importance matrix.
    pub needs_imatrix: bool,
    /// True if there is an importance matrix, but without an entry for this tensor, which could use
    /// one.
    pub lacks_importance: bool,
}

/// A planned quantized file.
#[derive(Clone)]
pub struct Quantized {
    /// Plan of the file. Weights are quantized when it is written.
    pub plan: Plan,
    /// Decisions, one per tensor.
    pub decisions: Vec<Decision>,
    /// Errors and times, one per tensor; `None` for tensors that are copied.
    pub measures: Vec<Option<Arc<Measure>>>,
    /// Number of tensors in each output file: one file, unless the input's shards are kept.
    pub shard_lens: Vec<usize>,
    /// Keys that pruning changed to match the remaining layers.
    pub shortened_keys: Vec<String>,
}

/// Decides on types in output order, without reading data.
///
/// # Errors
/// A key that the mix depends on is missing or mistyped, a name has no layer, a layer to prune does
/// not exist, or the row length does not fit a configured type.
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
/// Writing the file fails if a tensor has a NaN or an infinity, or if its values are too large for
/// the scales of its new type.
///
/// # Errors
/// See [`decide`]. Fails also if a tensor cannot be decoded or must not be requantized, or if the
/// importance matrix is of another model or lacks a required entry.
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
        shard_lens: prune::shard_lens(&items),
        shortened_keys,
    })
}

/// Returns the tensor's importance values, if there are any and they fit.
fn importance(item: &Item, config: &QuantizeConfig) -> Option<Importance> {
    let values = config.imatrix()?.entry(&item.input_name)?;
    Importance::new(values, &item.tensor)
}

/// Fails if the importance matrix has invalid values or is of another model.
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
        // Embeddings are looked up, not multiplied, so their entries have no meaning.
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
    // An importance matrix measured on the trunk has no entries for the MTP head.
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

/// Fails if a tensor requires an importance matrix and has no entry.
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

/// Returns the input's keys; those that describe the quantization move to the end.
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
    // llama.cpp's quantizer drops trailing dimensions of 1.
    let mut out = Tensor {
        shape: decision.shape.clone(),
        ..inner.clone()
    };
    if from == to {
        if let Some(codec) = codec(from) {
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
    let (Some(decoder), Some(encoder)) = (codec(from), codec(to)) else {
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
