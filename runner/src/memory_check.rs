//! Checks that weights and caches fit the backend's memory, before anything is loaded.

use kernels::backend::Backend;

use crate::cache::{CacheBytes, CacheConfig};
use crate::context_size::ContextSize;
use crate::error::{Error, ModelError};
use crate::model_files::{Files, ModelFile};
use crate::run_config::RunConfig;
use crate::speculate::SpecType;

/// Memory of one model.
struct ModelMemory<'a> {
    file: &'a ModelFile,
    /// The speculator; `None` for the target.
    kind: Option<SpecType>,
    weight_bytes: u64,
    cache: CacheConfig,
    cache_bytes: CacheBytes,
}

impl<'a> ModelMemory<'a> {
    fn new(file: &'a ModelFile, kind: Option<SpecType>, sizes: &ContextSize) -> ModelMemory<'a> {
        ModelMemory {
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
    pub(crate) fn check_memory<B: Backend>(
        &self,
        backend: &B,
        runs: &[RunConfig],
    ) -> Result<(), Error> {
        let models = |run: &RunConfig| -> Result<Vec<ModelMemory<'_>>, Error> {
            let sizes = self.target_sizes::<B>(run)?;
            let mut models = vec![ModelMemory::new(&self.model, None, &sizes)];
            for &kind in &run.spec_types {
                if let Some(draft) = self.draft_file(kind)? {
                    let sizes = self.draft_sizes::<B>(draft, run)?;
                    models.push(ModelMemory::new(draft.file, Some(kind), &sizes));
                }
            }
            Ok(models)
        };
        let runs = runs.iter().map(models).collect::<Result<Vec<_>, _>>()?;
        check(backend, &runs)
    }
}

/// Rejects a single model that does not fit the backend's memory.
pub(crate) fn check_model<B: Backend>(
    backend: &B,
    file: &ModelFile,
    cache: CacheConfig,
) -> Result<(), Error> {
    let blocks = 0..file.hparams.n_layer;
    let cache_bytes = CacheBytes::of::<B>(&file.hparams, blocks.clone(), cache);
    let memory = ModelMemory {
        file,
        kind: None,
        weight_bytes: file.weight_bytes(blocks),
        cache,
        cache_bytes: cache_bytes.map_err(|e| file.error(e))?,
    };
    check(backend, &[vec![memory]])
}

/// Rejects runs whose models do not fit in memory.
fn check<B: Backend>(backend: &B, runs: &[Vec<ModelMemory<'_>>]) -> Result<(), Error> {
    let Some(free_bytes) = backend.free_bytes() else {
        return Ok(());
    };
    let mut loaded = Vec::new();
    let mut weight_bytes = 0;
    for model in runs.iter().flatten() {
        if !loaded.contains(&model.kind) {
            loaded.push(model.kind);
            weight_bytes += backend.weight_room(model.weight_bytes);
        }
    }
    if weight_bytes == 0 {
        // Mapped weights take no memory, so only caches count; the error names the first one that
        // does not fit.
        return runs.iter().flatten().try_for_each(|model| {
            let fits = model
                .cache
                .check_memory(model.cache_bytes.total(), free_bytes);
            fits.map_err(|e| model.file.error(e))
        });
    }
    let caches = |run: &Vec<ModelMemory<'_>>| -> u128 {
        let bytes = run.iter().map(|model| model.cache_bytes.total());
        bytes.sum()
    };
    let cache_bytes = runs.iter().map(caches).max().unwrap_or_default();
    if u128::from(weight_bytes) + cache_bytes <= u128::from(free_bytes) {
        return Ok(());
    }
    let models = runs.iter().flatten();
    let largest = models.max_by_key(|model| model.weight_bytes);
    let largest = largest.expect("some model has weights");
    Err(largest.file.error(ModelError::NoRoom {
        backend: backend.name(),
        weight_bytes,
        cache_bytes,
        free_bytes,
    }))
}
