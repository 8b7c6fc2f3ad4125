//! Steps of recurrent operations as tables for kernels.

use super::count;
use crate::backend::Step;

/// Encodes steps as a table: row, slot to read or none, slot to write.
pub(crate) fn table(steps: &[Step]) -> Vec<u32> {
    steps
        .iter()
        .flat_map(|step| {
            [
                count(step.row),
                step.read.map_or(u32::MAX, count),
                count(step.write),
            ]
        })
        .collect()
}

/// Returns the number of rows and slots that the steps access.
pub(crate) fn reach(steps: &[Step]) -> (usize, usize) {
    let rows = steps.iter().map(|step| step.row + 1).max();
    let slots = steps
        .iter()
        .map(|step| 1 + step.write.max(step.read.unwrap_or(0)))
        .max();
    (rows.unwrap_or(0), slots.unwrap_or(0))
}
