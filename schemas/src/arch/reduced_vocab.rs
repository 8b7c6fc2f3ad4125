//! MTP heads with a reduced vocabulary, as FastMTP heads are published: a sidecar with the map `d2t` and the
//! reduced `output.weight` outside of blocks, like an EAGLE-3 draft.

use super::mtp_layout::{head_blocks, name_in_block};
use super::nextn::{self, SHARED_HEAD_HEAD};
use super::{heads, keys};
use crate::gguf::Plan;
use crate::vocab::D2T;

/// The output of a sidecar.
const OUTPUT: &str = "output.weight";

/// Checks whether a file has a head with a reduced vocabulary in the published layout.
pub fn is_published(plan: &Plan) -> bool {
    head_of(plan).is_some()
}

/// Renames the map and the output of such a head to their names in the layout
/// [`keys::TRIMMED_VOCAB`], and sets its keys. Any other file is returned unmodified.
pub fn adopt(mut plan: Plan) -> Plan {
    let Some((block, n_rows)) = head_of(&plan) else {
        return plan;
    };
    let output = format!("blk.{block}.{SHARED_HEAD_HEAD}");
    let has_own = plan.tensor(&output).is_some();
    for tensor in &mut plan.tensors {
        match tensor.name.as_str() {
            D2T => tensor.name = format!("blk.{block}.{}", nextn::D2T),
            OUTPUT if !has_own => tensor.name.clone_from(&output),
            _ => {}
        }
    }
    plan.metadata.set(keys::MTP_LAYOUT, keys::TRIMMED_VOCAB);
    plan.metadata.set(keys::DRAFT_VOCAB_SIZE, n_rows);
    plan
}

/// Returns the block of the head and the number of its output's rows.
fn head_of(plan: &Plan) -> Option<(u32, u32)> {
    let arch = plan.metadata.str(keys::ARCHITECTURE).ok()??;
    heads::find(arch)?;
    let blocks = head_blocks(plan);
    let (&block, 1) = (blocks.first()?, blocks.len()) else {
        return None;
    };
    let has_trunk = plan.tensors.iter().any(|tensor| {
        let layer = tensor.layer();
        layer.is_some_and(|layer| layer < block) && !name_in_block(&tensor.name).is_empty()
    });
    let own = plan.tensor(&format!("blk.{block}.{SHARED_HEAD_HEAD}"));
    // A trunk needs the output for itself.
    let output = own.or_else(|| plan.tensor(OUTPUT).filter(|_| !has_trunk))?;
    let n_rows = plan.tensor(D2T)?.n_elements();
    let n_rows = u32::try_from(n_rows).ok().filter(|&n| n > 0)?;
    (output.n_rows() == u64::from(n_rows)).then_some((block, n_rows))
}
