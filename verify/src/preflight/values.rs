//! Checks of a single tensor's values.

use std::collections::BTreeSet;

use kernels::statistics::{Defect, MAX_PARTS_RATIO, Part, is_zero_row};
use runner::ModelError;
use runner::model_files::ModelFile;
use schemas::arch::{ROPE_FREQS, Transform};
use schemas::report::{FitCause, FitFinding};

use crate::error::Error;

use super::{SurveyedFile, SurveyedTensor, certain, part_name, suspicious};

/// Share of negative values that excludes a norm weight with the +1 offset applied: the standard
/// deviation of the weights would have to be about two. Without the +1 offset, half of them are
/// negative.
const MAX_NEGATIVE_SHARE: f64 = 0.3;

pub(super) fn judge(file: &ModelFile, surveyed: &SurveyedTensor<'_>) -> Vec<FitFinding> {
    let name = || surveyed.tensor.name.clone();
    let fail = |cause, message: String| vec![certain(file, name(), cause, message)];
    let values = surveyed.survey.values();
    match surveyed.survey.defect() {
        // Factors may be huge: a pair of elements that RoPE shall not rotate has 1e30.
        Some(Defect::Implausible(_)) if surveyed.row == ROPE_FREQS => {}
        Some(Defect::Implausible(share)) => {
            let message = format!(
                "{:.0} % of the values have a magnitude that no weight has, as if packed data were read as \
                 {}",
                100.0 * share,
                surveyed.tensor.dtype
            );
            return fail(FitCause::Packed, message);
        }
        Some(Defect::NotFinite(n)) => {
            return fail(
                FitCause::NotFinite,
                format!("{n} values are NaN or infinite"),
            );
        }
        // A bias may be zero.
        Some(Defect::Zero) if surveyed.is_projection() || surveyed.is_norm() => {
            return fail(FitCause::Zero, "all values are zero".to_owned());
        }
        Some(Defect::ZeroPart(part)) => {
            let message = format!("{} is all zero", part_name(file, part));
            return fail(FitCause::DeadPart, message);
        }
        Some(Defect::Zero) | None => {}
    }
    let mut findings = Vec::new();
    if surveyed.is_matrix() && values.is_constant() {
        let message = format!("all values are {:.6}", values.mean());
        findings.push(certain(file, name(), FitCause::Constant, message));
    }
    if surveyed.is_norm()
        && surveyed.is_stored_less_one()
        && values.negative_share() > MAX_NEGATIVE_SHARE
    {
        let message = format!(
            "{:.0} % of the values are negative, mean {:.3}: stored as w - 1, and the +1 offset \
             was not applied",
            100.0 * values.negative_share(),
            values.mean()
        );
        findings.push(certain(file, name(), FitCause::NormOffset, message));
    }
    let is_decay = |change: &Transform| matches!(change, Transform::NegExp);
    let changes = surveyed.spec.map_or(&[][..], |spec| spec.transform);
    if changes.iter().any(is_decay) && values.negative_share() < 1.0 {
        let message = "some values are not negative, expected -exp(A_log) of the checkpoint";
        findings.push(certain(file, name(), FitCause::Scale, message));
    }
    if let Some((part, ratio)) = surveyed.survey.quietest_part()
        && ratio > MAX_PARTS_RATIO
    {
        let message = format!(
            "{} is {ratio:.0} times smaller than another part, it has almost no effect",
            part_name(file, part)
        );
        findings.push(suspicious(file, name(), FitCause::DeadPart, message));
    }
    findings
}

/// Finds a head, or a model, of which no matrix shows training. Single matrices can look untrained
/// in a small model that was trained briefly.
pub(super) fn untrained(surveyed: &SurveyedFile<'_>) -> Vec<FitFinding> {
    let of = |in_head: bool, subject: &str| {
        let tensors = surveyed.tensors.iter();
        let matrices = tensors.filter(|t| t.in_head == in_head && t.is_matrix());
        let parts = matrices.flat_map(|t| &t.survey.parts);
        let mut parts = parts.filter_map(Part::is_like_noise).peekable();
        parts.peek()?;
        let message = "rows and columns of every matrix vary no more than those of random \
                       numbers, as before any training";
        let is_untrained = parts.all(|is_noise| is_noise);
        is_untrained.then(|| suspicious(surveyed.file, subject, FitCause::Untrained, message))
    };
    let found = [of(true, "the MTP head"), of(false, "the whole model")];
    found.into_iter().flatten().collect()
}

/// Finds tokens of the prompts whose embedding is all zero. Rows of tokens that no text uses may be
/// zero.
pub(super) fn lost_tokens(
    file: &ModelFile,
    prompts: &[Vec<u32>],
) -> Result<Option<FitFinding>, Error> {
    let Some(table) = file.plan.tensor("token_embd.weight") else {
        return Ok(None);
    };
    let tokens: BTreeSet<u64> = prompts
        .iter()
        .flatten()
        .map(|&token| token.into())
        .collect();
    for token in tokens.into_iter().filter(|&token| token < table.n_rows()) {
        let is_zero = is_zero_row(table, token).map_err(|source| {
            let tensor = table.name.clone();
            file.error(ModelError::Source { tensor, source })
        })?;
        if is_zero == Some(true) {
            let message = format!("the row of token {token}, which a prompt contains, is all zero");
            let finding = certain(file, table.name.clone(), FitCause::LostRows, message);
            return Ok(Some(finding));
        }
    }
    Ok(None)
}
