//! `draft-dspark`: a draft that proposes a block of tokens in one pass: tokens one after another, with a bias
//! that depends on the token before.

use kernels::backend::Backend;

use super::SpecType;
use crate::speculate::Speculator;
use crate::speculate::block_draft::BlockDrafter;
use crate::speculate::spec::{DraftKind, Parts, Spec};

pub(super) const SPEC: Spec = Spec::with_features(
    "draft-dspark",
    DraftKind::Dspark,
    "a DSpark draft (-md FILE)",
);

pub(super) fn build<B: Backend>(mut parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
    let (context, fusion) = parts.fused();
    let limits = parts.config.limits;
    Box::new(BlockDrafter::new(
        SpecType::DraftDspark,
        context,
        fusion,
        limits,
    ))
}
