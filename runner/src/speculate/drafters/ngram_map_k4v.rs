//! `ngram-map-k4v`: as `ngram-map-k`, with counts of up to four continuations of each n-gram. It
//! drafts only if one of them dominates.

use kernels::backend::Backend;

use super::SpecType;
use crate::speculate::Speculator;
use crate::speculate::ngram_map::{self, NgramMaps};
use crate::speculate::spec::{Parts, Spec};

pub(super) const SPEC: Spec = Spec {
    name: "ngram-map-k4v",
    acceptance_floor: None,
    model: None,
    n_max: |config| config.ngrams.map_k4v.m.get(),
    table_bytes: |n_seq, _| n_seq * ngram_map::TABLE_BYTES,
};

pub(super) fn build<B: Backend>(parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
    let config = parts.config.ngrams.map_k4v;
    Box::new(NgramMaps::new(SpecType::NgramMapK4v, config, parts.n_seq))
}
