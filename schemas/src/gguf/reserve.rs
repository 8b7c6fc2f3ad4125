//! Room in a header for keys that are yet to come: an array of zeros under a key of our own, which
//! readers pass over. A later edit takes from it, so that the data stays where it is.

use std::collections::HashMap;

use super::plan::{Plan, PlanError};
use super::value::{Array, Value};
use super::write::layout;

/// Key of the zeros.
pub const RESERVED: &str = "specconv.reserved";

/// Most bytes that a header can hold in reserve: any more is a mistake, and a reader would have to
/// take all of it into memory.
pub const MAX_RESERVED_BYTES: u64 = 64 << 20;

/// Size of the blocks that file systems share between files.
pub(super) const SHARED_BLOCK_BYTES: u64 = 4096;

/// Reserves that many bytes in the header. Where data is copied from other files, a few more let it
/// begin at the same place of a block as there, so that a file system that knows how shares the
/// blocks of the two files instead of copying them.
///
/// # Errors
/// The plan is one that no reader would take.
pub fn reserve(plan: &mut Plan, n_bytes: u64) -> Result<(), PlanError> {
    let n_bytes = n_bytes.min(MAX_RESERVED_BYTES);
    set(plan, n_bytes);
    let more = bytes_to_share(plan, &layout(plan)?.offsets);
    set(plan, n_bytes + more);
    // Padding serves as well as reserve, and counts as that from the start.
    let header_bytes = layout(plan)?.header.len() as u64;
    fit(plan, header_bytes).map(drop)
}

/// Makes the header of `plan` end where one of `header_bytes` ends, if it can.
///
/// # Errors
/// The plan is one that no reader would take.
pub(super) fn fit(plan: &mut Plan, header_bytes: u64) -> Result<bool, PlanError> {
    let Some(Value::Array(Array::U8(reserved))) = plan.metadata.get(RESERVED) else {
        return Ok(layout(plan)?.header.len() as u64 == header_bytes);
    };
    let before = reserved.len() as u64;
    set(plan, 0);
    let least = layout(plan)?.header.len() as u64;
    // All of the room, so that an edit and its opposite leave the file as it was. The header is
    // padded, which may be where some of it is.
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

/// By how much the data has to move for most of it to lie in its blocks as where it comes from.
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
