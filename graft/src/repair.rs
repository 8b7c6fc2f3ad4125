//! Mends heads that lie elsewhere than the keys say, as [`diagnose`] names them.

use schemas::arch::keys;
use schemas::arch::layout::{Fault, diagnose, layers};
use schemas::arch::nextn::{self, PER_LAYER_KEYS, PerLayer};
use schemas::gguf::{Array, Plan, Value};

use crate::error::{Error, Role};
use crate::mtp::{renumbered, set_integer};

/// A file whose head lies where readers look for it.
#[derive(Clone)]
pub struct Repaired {
    /// The file.
    pub plan: Plan,
    /// What was wrong with it.
    pub faults: Vec<Fault>,
}

/// Mends every fault of a file; one without faults comes back as it is.
///
/// Tensors keep their bytes and their order. `n_trunk` is the length of the trunk, for a sidecar
/// whose keys do not tell it.
///
/// # Errors
/// The trunk's length is needed, or an array is so long or short that its entries cannot be told
/// apart.
pub fn repair_mtp(plan: &Plan, n_trunk: Option<u32>) -> Result<Repaired, Error> {
    let role = Role::Input;
    let key_error = |source| Error::Key { role, source };
    let arch = plan.metadata.need_str(keys::ARCHITECTURE);
    let arch = arch.map_err(key_error)?;
    if nextn::head_layout(arch).is_none() {
        let arch = arch.to_owned();
        return Err(Error::ArchWithoutHead { role, arch });
    }
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
    let mut mended = plan.clone();
    let n_block = n_layer + truth.n_mtp;
    set_integer(&mut mended.metadata, &block_count, n_block);
    let nextn = key(keys::NEXTN_PREDICT_LAYERS);
    match truth.n_mtp {
        0 => drop(mended.metadata.remove(&nextn)),
        n if mended.metadata.contains(&nextn) => set_integer(&mut mended.metadata, &nextn, n),
        n => mended.metadata.set_after(&block_count, &nextn, n),
    }
    for (suffix, kind) in PER_LAYER_KEYS {
        let key = key(suffix);
        if let Some(Value::Array(array)) = mended.metadata.get_mut(&key) {
            resize(array, *kind, n_layer, n_block).map_err(|found| Error::Layout {
                role,
                fault: Fault::PerLayer {
                    key,
                    found,
                    expected: n_block,
                },
            })?;
        }
    }
    for tensor in &mut mended.tensors {
        if tensor.layer().is_some_and(|layer| layer >= truth.first) && truth.n_mtp > 0 {
            *tensor = renumbered(tensor, truth.first, n_layer);
        }
    }
    Ok(Repaired {
        plan: mended,
        faults,
    })
}

/// Gives an array an entry for each block, where it has one for each trunk layer or one for each
/// block of a model with more heads. Fails with its length.
fn resize(array: &mut Array, kind: PerLayer, n_layer: u32, n_block: u32) -> Result<(), usize> {
    let found = array.len();
    if found > n_block as usize {
        // Entries of heads that are not there.
        array.truncate(n_block as usize);
        return Ok(());
    }
    if found < n_layer as usize {
        return Err(found);
    }
    // What the last trunk layer that is like the head's has.
    let is_zero = |value: &Value| value.as_u64() == Some(0);
    let entry = match kind {
        PerLayer::False => Some(Value::Bool(false)),
        PerLayer::Number => {
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
