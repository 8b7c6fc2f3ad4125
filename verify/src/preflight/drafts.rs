//! Comparison of a draft's metadata keys with the target's.

use runner::ModelError;
use runner::model_files::{DraftFile, Files, ModelFile};
use runner::speculate::DraftKind;
use schemas::arch::mtp_layout::name_in_block;
use schemas::arch::{Hparams, ROPE_FREQS, RopeScaling, keys, nextn};
use schemas::gguf::{DType, Tensor};
use schemas::report::{FitCause, FitFinding};
use schemas::vocab::{D2T, check_d2t};

use crate::error::Error;

use super::{certain, suspicious};

/// Keys of special tokens: a draft with other values was made for another tokenizer.
const SPECIAL_TOKENS: &[&str] = &[
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
];

pub(super) fn judge(files: &Files, draft: DraftFile<'_>) -> Result<Vec<FitFinding>, Error> {
    let kind = draft.draft_kind();
    let DraftFile {
        model, file: draft, ..
    } = draft;
    let mut findings = Vec::new();
    if kind == DraftKind::Mtp {
        findings.extend(keys(&files.model, draft));
    }
    // Keys of a head are compared above, and a head in the target's file has the same keys.
    if model.kind != DraftKind::Mtp {
        findings.extend(scaled_positions(&files.model, draft));
    }
    if files.vocab_map.is_none() || !model.takes_vocab_map {
        findings.extend(special_tokens(&files.model, draft));
    }
    findings.extend(mask_token(files, draft));
    for tensor in &draft.plan.tensors {
        if tensor.name == D2T || name_in_block(&tensor.name) == nextn::D2T {
            findings.extend(draft_vocab(files, draft, tensor)?);
        }
    }
    Ok(findings)
}

/// Compares hyperparameters: a head computes like the layers of its target.
fn keys(target: &ModelFile, draft: &ModelFile) -> Vec<FitFinding> {
    type Field = fn(&Hparams) -> String;
    let fields: [(&str, Field); 6] = [
        (keys::HEAD_COUNT, |h| h.n_head.to_string()),
        (keys::HEAD_COUNT_KV, |h| h.n_head_kv.to_string()),
        (keys::ROPE_DIMENSION_COUNT, |h| h.n_rot.to_string()),
        (keys::ROPE_FREQ_BASE, |h| h.rope_freq_base.to_string()),
        (keys::ROPE_SCALING_TYPE, |h| format!("{:?}", h.rope_scaling)),
        (keys::RMS_EPSILON, |h| h.rms_eps.to_string()),
    ];
    let differ = fields.iter().filter_map(|(key, field)| {
        let (ours, theirs) = (field(&draft.hparams), field(&target.hparams));
        let message = format!("is {ours}, the target has {theirs}");
        let key = format!("{}.{key}", draft.hparams.arch.name);
        (ours != theirs).then(|| certain(draft, key, FitCause::Keys, message))
    });
    differ.collect()
}

fn special_tokens(target: &ModelFile, draft: &ModelFile) -> Vec<FitFinding> {
    let differ = SPECIAL_TOKENS.iter().filter_map(|&key| {
        let token = |file: &ModelFile| file.plan.metadata.u32(key).ok().flatten();
        let (ours, theirs) = (token(draft)?, token(target)?);
        let message = format!("is {ours}, the target has {theirs}");
        (ours != theirs).then(|| suspicious(draft, key, FitCause::Tokens, message))
    });
    differ.collect()
}

/// Finds a draft that was trained without the scaling of its target's positions: it drafts worse in long contexts.
fn scaled_positions(target: &ModelFile, draft: &ModelFile) -> Option<FitFinding> {
    let is_scaled = |file: &ModelFile| {
        let has_factors = file.plan.tensor(ROPE_FREQS).is_some();
        has_factors || file.hparams.rope_scaling != RopeScaling::None
    };
    let key = format!("{}.{}", draft.hparams.arch.name, keys::ROPE_SCALING_TYPE);
    let message = "positions are not scaled, the target's are: the draft was trained without scaling; measure its \
                   acceptance in long contexts with specrun verify --contexts";
    let is_trained_without = is_scaled(target) && !is_scaled(draft);
    is_trained_without.then(|| suspicious(draft, key, FitCause::Keys, message))
}

/// Finds a mask token that texts contain: drafts are trained with one that has no other use.
fn mask_token(files: &Files, draft: &ModelFile) -> Option<FitFinding> {
    let token = draft.hparams.features.as_ref()?.block?.mask_token;
    let message = format!("token {token} is part of texts, expected a special or an unused token");
    let is_text = files.tokenizer.is_text(token);
    is_text.then(|| suspicious(draft, keys::MASK_TOKEN_ID, FitCause::Tokens, message))
}

/// Checks the target's tokens of a reduced output head: in range, unique, and ascending as in
/// published drafts.
fn draft_vocab(
    files: &Files,
    draft: &ModelFile,
    tensor: &Tensor,
) -> Result<Option<FitFinding>, Error> {
    // Other types are rejected when the draft is loaded.
    if tensor.dtype != DType::I64 {
        return Ok(None);
    }
    let bytes = tensor.read_all().map_err(|source| {
        let tensor = tensor.name.clone();
        draft.error(ModelError::Source { tensor, source })
    })?;
    let (ids, _) = bytes.as_chunks::<8>();
    let ids: Vec<i64> = ids.iter().map(|&id| i64::from_le_bytes(id)).collect();
    let is_sorted = |ids: &[i64]| ids.is_sorted_by(|a, b| a < b);
    let name = tensor.name.clone();
    if let Err(error) = check_d2t(&tensor.name, &ids, files.model.hparams.n_vocab) {
        let rows = (0..).zip(&ids);
        let as_ids: Vec<i64> = rows.clone().map(|(row, id)| id + row).collect();
        let as_offsets: Vec<i64> = rows.map(|(row, id)| id - row).collect();
        let is_map = |ids: &[i64]| check_d2t("", ids, files.model.hparams.n_vocab).is_ok();
        let hint = if is_map(&as_ids) && is_sorted(&as_ids) {
            "; these are offsets (token minus row), expected token ids"
        } else if is_map(&as_offsets) && is_sorted(&as_offsets) {
            "; row numbers were added to token ids"
        } else {
            ""
        };
        let message = format!("{error}{hint}");
        return Ok(Some(certain(draft, name, FitCause::DraftVocab, message)));
    }
    let first = ids.windows(2).position(|pair| pair[0] > pair[1]);
    Ok(first.map(|row| {
        let message = format!(
            "row {row} is token {}, the next {}: released drafts list their tokens in ascending \
             order",
            ids[row],
            ids[row + 1]
        );
        suspicious(draft, name, FitCause::DraftVocab, message)
    }))
}
