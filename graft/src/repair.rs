//! Repairs heads that are not in the blocks that the keys declare, as [`diagnose`] reports them.

use schemas::arch::mtp_layout::{Fault, diagnose, layers};
use schemas::arch::nextn::{PER_LAYER_KEYS, PerLayer};
use schemas::arch::{heads, keys};
use schemas::gguf::{Array, Plan, Value};

use crate::error::{Error, Role};
use crate::mtp::{renumbered, set_integer};

/// A file whose head is where readers expect it.
#[derive(Clone)]
pub struct Repaired {
    /// The file.
    pub plan: Plan,
    /// The faults that were repaired.
    pub faults: Vec<Fault>,
}

/// Repairs all faults of a file; a file without faults is returned unmodified.
///
/// Tensors keep their bytes and their order. `n_trunk` is the length of the trunk, for a sidecar
/// whose keys do not state it.
///
/// # Errors
/// The trunk's length is needed, or the length of a per-layer array fits neither the trunk nor all
/// blocks.
pub fn repair_mtp(plan: &Plan, n_trunk: Option<u32>) -> Result<Repaired, Error> {
    let role = Role::Input;
    let key_error = |source| Error::Key { role, source };
    let arch = plan.metadata.need_str(keys::ARCHITECTURE);
    let arch = arch.map_err(key_error)?;
    let Some(spec) = heads::find(arch) else {
        let arch = arch.to_owned();
        return Err(Error::ArchWithoutHead { role, arch });
    };
    let key = |suffix: &str| format!("{arch}.{suffix}");
    let block_count = key(keys::BLOCK_COUNT);
    plan.metadata.need_u32(&block_count).map_err(key_error)?;
    let faults = diagnose(plan);
    let Some(truth) = layers(plan).filter(|_| !faults.is_empty()) else {
        let plan = plan.clone();
        return Ok(Repaired { plan, faults });
    };
    let is_elsewhere = truth.n_layer != Some(truth.first);
    let n_layer = match (truth.n_layer, n_trunk) {
        (Some(n), None) => n,
        (Some(n), Some(_)) if !is_elsewhere => n,
        (_, Some(n)) => n,
        (None, None) => return Err(Error::TrunkLength { role }),
    };
    let mut repaired = plan.clone();
    let n_block = n_layer + truth.n_mtp;
    set_integer(&mut repaired.metadata, &block_count, n_block);
    let nextn = key(keys::NEXTN_PREDICT_LAYERS);
    match truth.n_mtp {
        0 => drop(repaired.metadata.remove(&nextn)),
        n if repaired.metadata.contains(&nextn) => set_integer(&mut repaired.metadata, &nextn, n),
        n => repaired.metadata.set_after(&block_count, &nextn, n),
    }
    for (suffix, kind) in PER_LAYER_KEYS {
        let key = key(suffix);
        let has_trunk_only =
            |array: &Array| spec.trunk_arrays.contains(suffix) && array.len() == n_layer as usize;
        if let Some(Value::Array(array)) = repaired.metadata.get_mut(&key)
            && !has_trunk_only(array)
        {
            // Where blocks differ, the entry of a head's cannot be known.
            let kind = Some(*kind).filter(|_| !spec.uneven);
            resize(array, kind, n_layer, n_block).map_err(|found| Error::Layout {
                role,
                fault: Fault::PerLayer {
                    key,
                    found,
                    expected: n_block,
                },
            })?;
        }
    }
    for tensor in &mut repaired.tensors {
        if tensor.layer().is_some_and(|layer| layer >= truth.first) && truth.n_mtp > 0 {
            *tensor = renumbered(tensor, truth.first, n_layer);
        }
    }
    Ok(Repaired {
        plan: repaired,
        faults,
    })
}

/// Resizes a per-layer array to one entry per block. It may have one entry per trunk layer, or
/// entries of additional MTP layers. Fails with the array's length.
fn resize(
    array: &mut Array,
    kind: Option<PerLayer>,
    n_layer: u32,
    n_block: u32,
) -> Result<(), usize> {
    let found = array.len();
    if found > n_block as usize {
        // Entries of MTP layers that are not in the file.
        array.truncate(n_block as usize);
        return Ok(());
    }
    if found < n_layer as usize {
        return Err(found);
    }
    // The entry of the last trunk layer of the same kind as the head's.
    let is_zero = |value: &Value| value.as_u64() == Some(0);
    let entry = match kind {
        None => None,
        Some(PerLayer::False) => Some(Value::Bool(false)),
        Some(PerLayer::Number) => {
            let entries = (0..found).rev().filter_map(|i| array.get(i));
            entries.into_iter().find(|entry| !is_zero(entry))
        }
    };
    for _ in found..n_block as usize {
        if !entry.clone().is_some_and(|entry| array.push(entry)) {
            return Err(found);
        }
    }
    Ok(())
}
