//! Pruning of layers: the remaining tensors, their order and names, and the keys that count layers.

use std::collections::BTreeSet;
use std::path::Path;

use schemas::arch::keys;
use schemas::gguf::{Array, KeyError, Metadata, Plan, Tensor, Value};

use crate::config::QuantizeConfig;
use crate::error::Error;

/// A tensor under its output name.
pub(crate) struct Item {
    pub(crate) tensor: Tensor,
    /// Name in the input, used by the importance matrix.
    pub(crate) input_name: String,
    /// Layer in the input.
    pub(crate) input_layer: Option<u32>,
    /// Output shard, from 0.
    shard: usize,
}

/// Returns the output's tensors in order: by [`order`], or by file and data offset. Layers after a
/// pruned one are renumbered.
pub(crate) fn items(input: &Plan, config: &QuantizeConfig) -> Result<Vec<Item>, Error> {
    let pruned = set(&config.prune_layers);
    let layers: BTreeSet<u32> = input.tensors.iter().filter_map(Tensor::layer).collect();
    if let Some(&layer) = pruned.difference(&layers).next() {
        let found = match (layers.first(), layers.last()) {
            (Some(first), Some(last)) => format!("{first} to {last}"),
            _ => "none".to_owned(),
        };
        return Err(Error::NoLayer { layer, found });
    }
    if !pruned.is_empty() && pruned == layers {
        let n_layer = layers.len();
        return Err(Error::NoLayerLeft { n_layer });
    }
    let positions = match config.keep_split {
        true => positions(input),
        false => vec![(0, 0); input.tensors.len()],
    };
    let mut tensors: Vec<_> = input.tensors.iter().zip(positions).collect();
    tensors.sort_by_key(|&(tensor, position)| (position, order(tensor)));
    let stays = |layer: Option<u32>| !layer.is_some_and(|layer| pruned.contains(&layer));
    let stay = tensors.into_iter().filter(|(t, _)| stays(t.layer()));
    let items = stay.map(|(tensor, (shard, _))| Item {
        tensor: Tensor {
            name: renumbered(tensor, &pruned),
            ..tensor.clone()
        },
        input_name: tensor.name.clone(),
        input_layer: tensor.layer(),
        shard,
    });
    Ok(items.collect())
}

/// Sort key: tensors outside of layers first, then by layer, then by name.
pub(crate) fn order(tensor: &Tensor) -> (Option<u32>, &str) {
    (tensor.layer(), tensor.name.as_str())
}

/// Returns the file of each tensor, counted from 0, and the offset of its data.
fn positions(input: &Plan) -> Vec<(usize, u64)> {
    let mut files: Vec<&Path> = Vec::new();
    let positions = input.tensors.iter().map(|tensor| {
        // Computed data has no file; all of it goes to the first output file.
        let Some(origin) = tensor.source.origin() else {
            return (0, 0);
        };
        let known = files.iter().position(|&file| file == origin.path);
        let shard = known.unwrap_or_else(|| {
            files.push(origin.path);
            files.len() - 1
        });
        (shard, origin.offset)
    });
    positions.collect()
}

/// Returns the number of tensors in each output file.
pub(crate) fn shard_lens(items: &[Item]) -> Vec<usize> {
    let n_shards = items.iter().map(|item| item.shard + 1).max().unwrap_or(1);
    let mut lens = vec![0; n_shards];
    items.iter().for_each(|item| lens[item.shard] += 1);
    lens
}

fn set(pruned: &[u32]) -> BTreeSet<u32> {
    pruned.iter().copied().collect()
}

fn renumbered(tensor: &Tensor, pruned: &BTreeSet<u32>) -> String {
    let rest = tensor.name.strip_prefix("blk.");
    let rest = rest.and_then(|rest| rest.split_once('.'));
    match (tensor.layer(), rest) {
        (Some(layer), Some((_, row))) => {
            let n_before = pruned.range(..layer).count() as u32;
            format!("blk.{}.{row}", layer - n_before)
        }
        _ => tensor.name.clone(),
    }
}

/// Changes the keys that count layers to match the remaining ones, and returns the names of changed
/// keys. llama.cpp's quantizer does not, and its loader then rejects the file.
pub(crate) fn shorten(metadata: &mut Metadata, pruned: &[u32]) -> Result<Vec<String>, KeyError> {
    let pruned = set(pruned);
    if pruned.is_empty() {
        return Ok(Vec::new());
    }
    let arch = metadata.need_str(keys::ARCHITECTURE)?.to_owned();
    let key = |suffix: &str| format!("{arch}.{suffix}");
    let n_layer = metadata.need_u32(&key(keys::BLOCK_COUNT))?;
    let n_mtp = metadata.u32(&key(keys::NEXTN_PREDICT_LAYERS))?.unwrap_or(0);
    let n_trunk = n_layer.saturating_sub(n_mtp);
    keep_kinds(metadata, &arch, n_layer, n_trunk)?;
    let mut shortened = keys::per_layer(metadata, &arch, n_layer);
    shortened.retain(|key| match metadata.get_mut(key) {
        Some(Value::Array(array)) => {
            remove(array, &pruned);
            true
        }
        _ => false,
    });
    // Tensors may name layers beyond the block count; no key counts those.
    let n_mtp_pruned = pruned.range(n_trunk..n_layer).count() as u32;
    if n_mtp_pruned > 0 {
        let nextn = key(keys::NEXTN_PREDICT_LAYERS);
        metadata.set(&nextn, n_mtp - n_mtp_pruned);
        shortened.push(nextn);
    }
    let n_left = n_layer - pruned.range(..n_layer).count() as u32;
    metadata.set_last(&key(keys::BLOCK_COUNT), n_left);
    Ok(shortened)
}

/// Stores the kind of each layer explicitly if it was derived from the layer's number, which
/// changes.
fn keep_kinds(
    metadata: &mut Metadata,
    arch: &str,
    n_layer: u32,
    n_trunk: u32,
) -> Result<(), KeyError> {
    let interval_key = format!("{arch}.{}", keys::FULL_ATTENTION_INTERVAL);
    let kinds_key = format!("{arch}.{}", keys::RECURRENT_LAYERS);
    let interval = metadata.u32(&interval_key)?.filter(|&n| n > 0);
    if let Some(interval) = interval
        && !metadata.contains(&kinds_key)
    {
        let is_recurrent = |i: u32| i < n_trunk && !(i + 1).is_multiple_of(interval);
        let kinds: Vec<bool> = (0..n_layer).map(is_recurrent).collect();
        metadata.set_after(&interval_key, &kinds_key, kinds);
    }
    Ok(())
}

fn remove(array: &mut Array, pruned: &BTreeSet<u32>) {
    let all = array.clone();
    array.truncate(0);
    let left = (0..all.len()).filter(|&i| !pruned.contains(&(i as u32)));
    for value in left.filter_map(|i| all.get(i)) {
        let fits = array.push(value);
        debug_assert!(fits, "an array takes its own values");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_beyond_the_block_count_are_not_counted() {
        let mut metadata = Metadata::default();
        metadata.set(keys::ARCHITECTURE, "llama".to_owned());
        metadata.set("llama.block_count", 4u32);
        assert_eq!(shorten(&mut metadata, &[1, 4]).unwrap(), [""; 0]);
        assert_eq!(metadata.need_u32("llama.block_count").unwrap(), 3);
        assert_eq!(metadata.u32("llama.nextn_predict_layers").unwrap(), None);
    }
}
