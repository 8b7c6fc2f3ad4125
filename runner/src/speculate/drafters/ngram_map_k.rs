//! `ngram-map-k`: as `ngram-simple`, with an index of the history. The draft of an n-gram is limited
//! to the accepted length of its last draft.

use kernels::backend::Backend;

use super::SpecType;
use crate::speculate::Speculator;
use crate::speculate::ngram_map::{self, NgramMaps};
use crate::speculate::spec::{Parts, Spec};

pub(super) const SPEC: Spec = Spec {
    name: "ngram-map-k",
    acceptance_floor: None,
    model: None,
    n_max: |config| config.ngrams.map_k.m.get(),
    table_bytes: |n_seq, _| n_seq * ngram_map::TABLE_BYTES,
};

pub(super) fn build<B: Backend>(parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
    let config = parts.config.ngrams.map_k;
    Box::new(NgramMaps::new(SpecType::NgramMapK, config, parts.n_seq))
}
