//! Settings of a config that no metadata key expresses.

use schemas::arch::{ArchSpec, Hparams, ROPE_FREQS, keys};

use crate::error::Error;
use crate::hf_config::HfConfig;
use crate::note::Note;

use super::keys::HfArch;

/// Checks settings that no key expresses: an error if readers would compute something else, a note if they
/// would only differ for long contexts.
pub(crate) fn check(
    arch: &ArchSpec,
    hf_arch: &HfArch,
    config: &HfConfig,
) -> Result<Vec<Note>, Error> {
    (hf_arch.check)(config)?;
    let mut notes = Vec::new();
    let window = config.fields.get("sliding_window");
    let used = config.fields.bool(&["use_sliding_window"])?.unwrap_or(true);
    let has_no_key = used && arch.window.is_none() && !hf_arch.has_key(keys::SLIDING_WINDOW);
    if let (Some(window), true) = (window.filter(|window| !window.is_null()), has_no_key) {
        notes.push(Note::SlidingWindow {
            window: window.to_string(),
        });
    }
    let softcap = "attn_logit_softcapping";
    if let Some(cap) = config.fields.f64(&[softcap])? {
        return Err(config.unsupported(softcap, cap));
    }
    // Readers score groups by the sum of their two best experts, and rotate adjacent pairs.
    let fields = &config.fields;
    let method = fields.str(&["topk_method"])?;
    let grouped = fields.u32(&["n_group"])?.is_some_and(|n| n > 1);
    if let (Some(method @ ("greedy" | "group_limited_greedy")), true) = (method.as_deref(), grouped)
    {
        return Err(config.unsupported("topk_method", method));
    }
    // Readers hard-code these numbers, unless there is a key.
    let has_limit = hf_arch.has_key(keys::SWIGLU_CLAMP_EXP);
    for (field, expected) in [("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)] {
        let is_key = has_limit && field == "swiglu_limit";
        let found = fields.f64(&[field])?.filter(|&found| found != expected);
        if let Some(found) = found.filter(|_| !is_key) {
            return Err(config.unsupported(field, found));
        }
    }
    if fields.bool(&["rope_interleave"])? == Some(false) {
        return Err(config.unsupported("rope_interleave", false));
    }
    notes.extend(check_rope(arch, hf_arch, config)?);
    Ok(notes)
}

/// Rejects a model with a query scale that readers do not use, because no key expresses it.
pub(crate) fn check_scale(config: &HfConfig, hparams: &Hparams) -> Result<(), Error> {
    let field = "query_pre_attn_scalar";
    match config.fields.f64(&[field])? {
        Some(scalar) if scalar != hparams.query_width() as f64 => {
            Err(config.unsupported(field, scalar))
        }
        _ => Ok(()),
    }
}

/// Checks scaled RoPE, see [`check`].
fn check_rope(arch: &ArchSpec, hf_arch: &HfArch, config: &HfConfig) -> Result<Option<Note>, Error> {
    let rope = &config.rope;
    match rope.str(&["rope_type"])?.as_deref() {
        None | Some("default") => {}
        Some("linear") => _ = rope.need_f64("factor")?,
        Some("yarn") => {
            rope.need_f64("factor")?;
            let truncate = rope.bool(&["truncate"])?.unwrap_or(true);
            if truncate != arch.yarn_whole_pairs {
                return Err(config.unsupported("rope_parameters.truncate", truncate));
            }
            let number = |field| Ok(rope.f64(&[field])?.unwrap_or(0.0));
            let (mscale, all_dim) = (number("mscale")?, number("mscale_all_dim")?);
            // One key has both numbers, if the architecture has it.
            let has_key = hf_arch.has_key(keys::YARN_LOG_MULTIPLIER);
            if all_dim != 0.0 && (mscale != all_dim && has_key || mscale != 0.0 && !has_key) {
                return Err(config.unsupported("rope_parameters.mscale", mscale));
            }
        }
        Some("llama3") if arch.tensor_specs().any(|spec| spec.gguf == ROPE_FREQS) => {}
        Some("proportional") if hf_arch.gemma4_layout => {}
        // Their factors are tensors, which these architectures do not have.
        Some(found @ ("llama3" | "longrope" | "su")) => {
            return Err(config.unsupported("rope_type", found));
        }
        Some(found) => {
            let found = found.to_owned();
            return Ok(Some(Note::RopeType { found }));
        }
    }
    Ok(None)
}
