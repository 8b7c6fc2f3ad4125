//! Checks that weights and caches fit the backend's memory, before anything is loaded.

use std::sync::Arc;

use kernels::backend::Backend;

use crate::cache::{CacheBytes, CacheConfig};
use crate::context::{Context, ContextConfig};
use crate::error::{Error, ModelError};
use crate::load::{Files, Opened, RunConfig};
use crate::model::load_target;
use crate::sizes::Sizes;
use crate::speculate::SpecType;

/// Memory of one model.
struct Share<'a> {
    file: &'a Opened,
    /// The speculator; `None` for the target.
    kind: Option<SpecType>,
    weight_bytes: u64,
    cache: CacheConfig,
    cache_bytes: CacheBytes,
}

impl<'a> Share<'a> {
    fn new(file: &'a Opened, kind: Option<SpecType>, sizes: &Sizes) -> Share<'a> {
        Share {
            file,
            kind,
            weight_bytes: sizes.weight_bytes,
            cache: sizes.config.cache,
            cache_bytes: sizes.cache,
        }
    }
}

impl Files {
    /// Rejects runs that do not fit the backend's memory. They run one after another and keep their
    /// weights.
    pub(crate) fn check_room<B: Backend>(
        &self,
        backend: &B,
        runs: &[RunConfig],
    ) -> Result<(), Error> {
        let shares = |run: &RunConfig| -> Result<Vec<Share<'_>>, Error> {
            let sizes = self.target_sizes::<B>(run)?;
            let mut shares = vec![Share::new(&self.model, None, &sizes)];
            for &kind in &run.spec_types {
                if let Some(file) = self.draft_file(kind)? {
                    let sizes = self.draft_sizes::<B>(kind, file, run)?;
                    shares.push(Share::new(file, Some(kind), &sizes));
                }
            }
            Ok(shares)
        };
        let runs = runs.iter().map(shares).collect::<Result<Vec<_>, _>>()?;
        check(backend, &runs)
    }
}

impl Opened {
    /// Loads the model (without its MTP head) with caches of these sizes.
    ///
    /// # Errors
    /// There is not enough memory, or the model cannot be used.
    pub(crate) fn context<B: Backend>(
        &self,
        backend: &Arc<B>,
        sizes: ContextConfig,
    ) -> Result<Context<B>, Error> {
        let blocks = 0..self.hparams.n_layer as usize;
        let kinds = &self.hparams.layers[blocks.clone()];
        let cache_bytes = CacheBytes::of::<B>(&self.hparams, kinds, sizes.cache);
        let share = Share {
            file: self,
            kind: None,
            weight_bytes: self.weight_bytes(blocks),
            cache: sizes.cache,
            cache_bytes: cache_bytes.map_err(|e| self.error(e))?,
        };
        check(&**backend, &[vec![share]])?;
        self.check_values()?;
        let model = load_target(&**backend, &self.plan).map_err(|e| self.error(e))?;
        self.plan.check_unchanged()?;
        Context::new(Arc::clone(backend), model, sizes).map_err(|e| self.error(e))
    }
}

/// Rejects runs whose models do not fit in memory.
fn check<B: Backend>(backend: &B, runs: &[Vec<Share<'_>>]) -> Result<(), Error> {
    let Some(free_bytes) = backend.free_bytes() else {
        return Ok(());
    };
    let mut loaded = Vec::new();
    let mut weight_bytes = 0;
    for share in runs.iter().flatten() {
        if !loaded.contains(&share.kind) {
            loaded.push(share.kind);
            weight_bytes += backend.weight_room(share.weight_bytes);
        }
    }
    if weight_bytes == 0 {
        // Mapped weights take no memory, so only caches count; the error names the first one that
        // does not fit.
        return runs.iter().flatten().try_for_each(|share| {
            let fits = share
                .cache
                .check_room(share.cache_bytes.total(), free_bytes);
            fits.map_err(|e| share.file.error(e))
        });
    }
    let caches = |run: &Vec<Share<'_>>| -> u128 {
        let bytes = run.iter().map(|share| share.cache_bytes.total());
        bytes.sum()
    };
    let cache_bytes = runs.iter().map(caches).max().unwrap_or_default();
    if u128::from(weight_bytes) + cache_bytes <= u128::from(free_bytes) {
        return Ok(());
    }
    let shares = runs.iter().flatten();
    let largest = shares.max_by_key(|share| share.weight_bytes);
    let largest = largest.expect("some share has weights");
    Err(largest.file.error(ModelError::NoRoom {
        backend: backend.name(),
        weight_bytes,
        cache_bytes,
        free_bytes,
    }))
}
