//! Reserved space in a header: an array of zeros under a key of our own, which readers ignore.
//! Later edits use the space, so that the tensor data need not move.

use std::collections::HashMap;

use super::plan::{Plan, PlanError};
use super::value::{Array, Value};
use super::write::layout;

/// Key of the reserved space.
pub const RESERVED: &str = "specconv.reserved";

/// Maximum of reserved bytes. Readers load the header into memory.
pub const MAX_RESERVED_BYTES: u64 = 64 << 20;

/// Block size with which file systems share blocks between files.
pub(super) const SHARED_BLOCK_BYTES: u64 = 4096;

/// Reserves `n_bytes` in the header. If data is copied from other files, adds bytes to align it
/// with their blocks, so that a file system with reflinks can share blocks instead of copying them.
///
/// # Errors
/// No reader would accept the plan.
pub fn reserve(plan: &mut Plan, n_bytes: u64) -> Result<(), PlanError> {
    let n_bytes = n_bytes.min(MAX_RESERVED_BYTES);
    set(plan, n_bytes);
    let more = bytes_to_share(plan, &layout(plan)?.offsets);
    set(plan, n_bytes + more);
    // Padding can be used like reserved space, so it is counted as such.
    let header_bytes = layout(plan)?.header.len() as u64;
    fit(plan, header_bytes).map(drop)
}

/// Resizes the reserved space so that the header has `header_bytes`, if possible.
///
/// # Errors
/// No reader would accept the plan.
pub(super) fn fit(plan: &mut Plan, header_bytes: u64) -> Result<bool, PlanError> {
    let Some(Value::Array(Array::U8(reserved))) = plan.metadata.get(RESERVED) else {
        return Ok(layout(plan)?.header.len() as u64 == header_bytes);
    };
    let before = reserved.len() as u64;
    set(plan, 0);
    let least = layout(plan)?.header.len() as u64;
    // Take the largest size, so that an edit and its inverse restore the file. Several sizes result
    // in the same header size because headers are padded.
    let alignment = plan.alignment()?;
    let lacking = header_bytes.checked_sub(least);
    let lengths = lacking.into_iter().flat_map(|n| (n..n + alignment).rev());
    for n_bytes in lengths {
        set(plan, n_bytes);
        if layout(plan)?.header.len() as u64 == header_bytes {
            return Ok(true);
        }
    }
    set(plan, before);
    Ok(false)
}

fn set(plan: &mut Plan, n_bytes: u64) {
    let zeros = Array::U8(vec![0; n_bytes as usize]);
    plan.metadata.set(RESERVED, Value::Array(zeros));
}

/// Returns the number of bytes by which the data must move so that most of it is aligned with the
/// blocks of its origin.
fn bytes_to_share(plan: &Plan, offsets: &[u64]) -> u64 {
    let mut bytes_by_distance: HashMap<u64, u64> = HashMap::new();
    for (tensor, offset) in plan.tensors.iter().zip(offsets) {
        if let Some(origin) = tensor.source.origin() {
            let distance = origin.offset.wrapping_sub(*offset) % SHARED_BLOCK_BYTES;
            *bytes_by_distance.entry(distance).or_default() += tensor.size_bytes;
        }
    }
    let alignment = plan.alignment().unwrap_or(1);
    let reachable = bytes_by_distance
        .into_iter()
        .filter(|(distance, _)| distance.is_multiple_of(alignment));
    reachable
        .max_by_key(|&(distance, n_bytes)| (n_bytes, std::cmp::Reverse(distance)))
        .map_or(0, |(distance, _)| distance)
}
