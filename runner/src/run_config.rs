//! [`RunConfig`]: speculators and sizes of a run.

use crate::cache::CacheTypes;
use crate::context::MAX_DRAFT;
use crate::speculate::{DraftConfig, Policy, SpecType};

/// Configuration of a run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Speculators, in the order in which they are asked.
    pub spec_types: Vec<SpecType>,
    /// The choice between drafts of several speculators.
    pub policy: Policy,
    /// Configuration of drafting.
    pub drafting: DraftConfig,
    /// Number of parallel sequences.
    pub n_seq: usize,
    /// Maximum number of positions of each sequence.
    pub n_ctx: usize,
    /// Element types of the caches.
    pub caches: RunCaches,
}

impl RunConfig {
    /// Returns a run of one sequence of up to `n_ctx` positions, with default drafts and caches.
    pub fn new(spec_types: Vec<SpecType>, n_ctx: usize) -> RunConfig {
        RunConfig {
            spec_types,
            policy: Policy::default(),
            drafting: DraftConfig::default(),
            n_seq: 1,
            n_ctx,
            caches: RunCaches::default(),
        }
    }

    /// Returns the maximum draft length of all speculators.
    pub fn n_draft_max(&self) -> usize {
        let lengths = self.spec_types.iter();
        let lengths = lengths.map(|kind| (kind.spec().n_max)(&self.drafting));
        lengths.max().unwrap_or(0).min(MAX_DRAFT)
    }
}

/// Element types of a run's caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunCaches {
    /// Types of the target's caches.
    pub target: CacheTypes,
    /// Types of the drafts' caches.
    pub draft: CacheTypes,
}
