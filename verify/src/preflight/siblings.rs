//! Comparison of a tensor's values with the same tensor in other layers.

use kernels::statistics::{NormOffset, norm_offset};
use runner::statistics::median;
use schemas::report::{FitCause, FitFinding};

use super::{SurveyedFile, SurveyedTensor, certain, suspicious};

/// Layers of one model differ by small factors in scale. FP8 weights whose block scales were
/// dropped differ by hundreds or thousands.
const SUSPICIOUS_RATIO: f64 = 8.0;
const CERTAIN_RATIO: f64 = 40.0;
/// A matrix multiplies the magnitude of its input by `rms * sqrt(n_in)`, about 1 in a trained
/// model.
const SUSPICIOUS_GAIN: f64 = 30.0;
const CERTAIN_GAIN: f64 = 300.0;
/// Norms of some families differ this much between sound layers; an outlier then means nothing.
const MAX_NORMS_APART: f64 = 0.5;

/// Compares a file's tensors with those of the layers of `trunk`: the same file, or the target.
pub(super) fn judge(surveyed: &SurveyedFile<'_>, trunk: &SurveyedFile<'_>) -> Vec<FitFinding> {
    let mut findings = Vec::new();
    for tensor in &surveyed.tensors {
        let siblings: Vec<&SurveyedTensor<'_>> = trunk
            .tensors
            .iter()
            .filter(|other| !other.in_head && other.tensor.layer().is_some())
            .filter(|other| other.row == tensor.row && !std::ptr::eq(*other, tensor))
            .collect();
        findings.extend(scale(surveyed, tensor, &siblings));
        findings.extend(lost_rows(surveyed, tensor, &siblings));
        findings.extend(norm(surveyed, tensor, &siblings));
    }
    findings.extend(added_twice(surveyed));
    findings
}

fn scale(
    surveyed: &SurveyedFile<'_>,
    tensor: &SurveyedTensor<'_>,
    siblings: &[&SurveyedTensor<'_>],
) -> Option<FitFinding> {
    let rms = tensor.survey.values().rms();
    if !tensor.is_matrix() || tensor.is_token_table() || rms == 0.0 {
        return None;
    }
    let name = tensor.tensor.name.clone();
    let like = median(siblings.iter().map(|other| other.survey.values().rms()));
    if let Some(like) = like.filter(|&like| like > 0.0) {
        let ratio = (rms / like).max(like / rms);
        let than = if rms > like { "larger" } else { "smaller" };
        let message = format!(
            "values are {ratio:.1} times {than} than those of other layers, as if a scale were \
             missing"
        );
        if ratio > CERTAIN_RATIO {
            return Some(certain(surveyed.file, name, FitCause::Scale, message));
        }
        if ratio > SUSPICIOUS_RATIO {
            return Some(suspicious(surveyed.file, name, FitCause::Scale, message));
        }
    }
    let gain = rms * (tensor.tensor.ne0() as f64).sqrt();
    let message = format!(
        "values are so large that an output is {gain:.0} times its input, as if a scale were \
         missing"
    );
    match gain {
        gain if gain > CERTAIN_GAIN => Some(certain(surveyed.file, name, FitCause::Scale, message)),
        gain if gain > SUSPICIOUS_GAIN => {
            Some(suspicious(surveyed.file, name, FitCause::Scale, message))
        }
        _ => None,
    }
}

/// Finds rows of zeros. If other layers have them too, the width was padded.
fn lost_rows(
    surveyed: &SurveyedFile<'_>,
    tensor: &SurveyedTensor<'_>,
    siblings: &[&SurveyedTensor<'_>],
) -> Option<FitFinding> {
    let survey = &tensor.survey;
    let row = survey.first_zero_row?;
    let is_padded = siblings.iter().any(|other| other.survey.n_zero_rows > 0);
    let is_whole = survey.n_zero_rows == tensor.tensor.n_rows();
    if !tensor.is_matrix() || tensor.is_token_table() || is_padded || is_whole {
        return None;
    }
    let message = match survey.n_zero_rows {
        1 => format!("row {row} is all zero, and no other layer has such a row"),
        n => format!("{n} rows from {row} on are all zero, and no other layer has such rows"),
    };
    let name = tensor.tensor.name.clone();
    // Coarse blocks round rows of small values to zero, and experts that are never routed to decay.
    let is_float = tensor
        .tensor
        .dtype
        .layout()
        .is_some_and(|l| l.block_len == 1);
    let is_expert = tensor.row.contains("_exps");
    match is_float && !is_expert {
        true => Some(certain(surveyed.file, name, FitCause::LostRows, message)),
        false => Some(suspicious(surveyed.file, name, FitCause::LostRows, message)),
    }
}

fn norm(
    surveyed: &SurveyedFile<'_>,
    tensor: &SurveyedTensor<'_>,
    siblings: &[&SurveyedTensor<'_>],
) -> Option<FitFinding> {
    if !tensor.is_norm() || !tensor.is_stored_less_one() {
        return None;
    }
    let mean = tensor.survey.values().mean();
    let means = || siblings.iter().map(|other| other.survey.values().mean());
    let [low, high] = [means().reduce(f64::min)?, means().reduce(f64::max)?];
    if high - low > MAX_NORMS_APART {
        return None;
    }
    let like = median(means())?;
    let how = match norm_offset(mean, like)? {
        NormOffset::Missing => "as if the +1 offset were not applied",
        NormOffset::Twice => "as if the +1 offset were applied twice",
    };
    let message = format!("mean {mean:.3}, {like:.3} in other layers, {how}");
    let name = tensor.tensor.name.clone();
    Some(suspicious(
        surveyed.file,
        name,
        FitCause::NormOffset,
        message,
    ))
}

/// Norm weights are distributed on both sides of 1; if the +1 offset was added twice, none in the
/// whole file is below 1.
fn added_twice(surveyed: &SurveyedFile<'_>) -> Option<FitFinding> {
    let mut norms = surveyed
        .tensors
        .iter()
        .filter(|tensor| tensor.is_norm() && tensor.is_stored_less_one())
        .peekable();
    norms.peek()?;
    let all_above = norms.all(|norm| norm.survey.values().report().min >= 1.0);
    let message = "no value of any norm is below 1, as if the +1 offset were applied twice";
    all_above.then(|| suspicious(surveyed.file, "norms", FitCause::NormOffset, message))
}
