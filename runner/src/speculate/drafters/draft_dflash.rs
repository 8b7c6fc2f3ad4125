//! `draft-dflash`: a draft that proposes a block of tokens in one pass: the most likely token of each row, or for
//! DFlash2 drafts the candidate that best follows the token before.

use kernels::backend::Backend;

use super::SpecType;
use crate::speculate::Speculator;
use crate::speculate::block_draft::BlockDrafter;
use crate::speculate::spec::{DraftKind, Parts, Spec};

pub(super) const SPEC: Spec = Spec::with_features(
    "draft-dflash",
    DraftKind::Dflash,
    "a DFlash draft (-md FILE)",
);

pub(super) fn build<B: Backend>(mut parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
    let (context, fusion) = parts.fused();
    let limits = parts.config.limits;
    Box::new(BlockDrafter::new(
        SpecType::DraftDflash,
        context,
        fusion,
        limits,
    ))
}
