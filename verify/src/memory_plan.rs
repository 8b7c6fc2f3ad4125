//! Memory of a run, reported before anything is allocated. The numbers are those that the run
//! allocates by ([`runner::context_size`], [`runner::memory`]). The program, its vocabulary, and temporary
//! memory of operations are not included.

use kernels::backend::Backend;
use runner::cache::CacheTypes;
use runner::context_size::ContextSize;
use runner::model_files::{Files, ModelFile};
use runner::run_config::RunConfig;
use schemas::report::{PlanPart, PlanReport, SCHEMA_VERSION};

use crate::error::Error;
use crate::report;

/// Returns the memory of each part of a run on this backend.
///
/// # Errors
/// A speculator lacks its draft file, or the draft does not fit the target.
pub fn memory_plan<B: Backend>(
    backend: &B,
    files: &Files,
    config: &RunConfig,
) -> Result<PlanReport, Error> {
    let sizes = files.target_sizes::<B>(config)?;
    let mut parts = vec![part("target", Some(&files.model), Some(&sizes))];
    parts[0].n_draft_max = config.n_draft_max() as u64;
    for &kind in &config.spec_types {
        let spec = kind.spec();
        let draft = files.draft_file(kind)?;
        let sizes = match draft {
            Some(draft) => {
                files.check_draft(draft)?;
                Some(files.draft_sizes::<B>(draft, config)?)
            }
            None => None,
        };
        let mut part = part(kind.name(), draft.map(|draft| draft.file), sizes.as_ref());
        part.n_draft_max = (spec.n_max)(&config.drafting) as u64;
        part.table_bytes = (spec.table_bytes)(config.n_seq, &files.lookup) as u64;
        parts.push(part);
    }
    let total_bytes = parts.iter().map(total).fold(0, u64::saturating_add);
    let free_bytes = backend.free_bytes();
    // Weights are mapped: they do not have to be free memory, but they only stay resident if there
    // is room.
    Ok(PlanReport {
        schema_version: SCHEMA_VERSION,
        model: files.model.path.display().to_string(),
        n_seq: config.n_seq as u64,
        n_ctx: config.n_ctx as u64,
        fits: free_bytes.map(|free| total_bytes <= free),
        parts,
        total_bytes,
        free_bytes,
    })
}

/// Returns the bytes of one part.
pub fn total(part: &PlanPart) -> u64 {
    [
        part.weight_bytes,
        part.kv_bytes,
        part.state_bytes,
        part.kept_state_bytes,
        part.checkpoint_bytes,
        part.hidden_bytes,
        part.activation_bytes,
        part.logit_bytes,
        part.table_bytes,
    ]
    .into_iter()
    .fold(0, u64::saturating_add)
}

fn part(name: &str, file: Option<&ModelFile>, sizes: Option<&ContextSize>) -> PlanPart {
    let cache = sizes.map(|sizes| sizes.cache).unwrap_or_default();
    let most = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
    PlanPart {
        name: name.to_owned(),
        file: file.map(|file| file.path.display().to_string()),
        weight_bytes: sizes.map_or(0, |sizes| sizes.weight_bytes),
        kv_bytes: most(cache.kv),
        kv_types: sizes.map(|sizes| {
            let CacheTypes { k, v } = sizes.config.cache.types;
            [k, v].map(|element| element.to_string())
        }),
        state_bytes: most(cache.states),
        kept_state_bytes: most(cache.rollback),
        checkpoint_bytes: most(cache.checkpoint),
        hidden_bytes: sizes.map_or(0, |sizes| sizes.hidden_state_bytes),
        activation_bytes: sizes.map_or(0, |sizes| sizes.activation_bytes),
        logit_bytes: sizes.map_or(0, |sizes| sizes.logit_bytes),
        table_bytes: 0,
        n_draft_max: 0,
        n_kept_states: match cache.rollback {
            0 => 0,
            _ => sizes.map_or(0, |sizes| sizes.config.cache.n_rollback as u64),
        },
        rollback: sizes.map(|sizes| report::rollback(sizes.rollback)),
    }
}
