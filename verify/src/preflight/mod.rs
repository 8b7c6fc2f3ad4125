//! Checks of a model before it runs, from its metadata keys and values alone.
//!
//! Certain findings fail the check. Unusual values that could result from training are warnings,
//! and are listed as likely causes if a later check fails. The reasons for limits are next to them,
//! and docs/verify.md lists what they find.

mod drafts;
mod siblings;
mod values;

use kernels::statistics::{Survey, survey};
use runner::ModelError;
use runner::model_files::{DraftFile, Files, ModelFile};
use runner::speculate::{DraftKind, SpecType};
use schemas::arch::mtp_layout::{diagnose, name_in_block};
use schemas::arch::{
    EH_PROJ, Expected, FC, MARKOV_W1, MARKOV_W2, PRE_PROJECTION, TensorSpec, Transform,
};
use schemas::gguf::Tensor;
use schemas::progress::{Task, Unit};
use schemas::report::{FitCause, FitFinding, FitReport, Severity, Verdict};
use schemas::threads;

use crate::error::Error;

/// Checks the target and the draft files of these speculators. `prompts` are the tokens that will
/// be decoded.
///
/// # Errors
/// A file cannot be read or has values that are not finite, or a speculator lacks its file.
pub fn preflight(
    files: &Files,
    spec_types: &[SpecType],
    prompts: &[Vec<u32>],
) -> Result<FitReport, Error> {
    let mut drafts: Vec<DraftFile<'_>> = Vec::new();
    for &kind in spec_types {
        drafts.extend(files.draft_file(kind)?);
    }
    let target = survey_file(&files.model)?;
    let mut findings = judge_file(&target, &target);
    findings.extend(values::lost_tokens(&files.model, prompts)?);
    let mut n_tensors = target.tensors.len();
    for draft in drafts {
        if std::ptr::eq(draft.file, &files.model) {
            continue;
        }
        let surveyed = survey_file(draft.file)?;
        n_tensors += surveyed.tensors.len();
        // Head tensors of a separate file are compared with the target's layers.
        let siblings = match draft.draft_kind() {
            DraftKind::Mtp => &target,
            _ => &surveyed,
        };
        findings.extend(judge_file(&surveyed, siblings));
        findings.extend(drafts::judge(files, draft)?);
    }
    findings.sort_by_key(|finding| finding.severity);
    let is_certain = |finding: &FitFinding| finding.severity == Severity::Certain;
    Ok(FitReport {
        n_tensors: n_tensors as u64,
        verdict: Verdict::of(!findings.iter().any(is_certain)),
        findings,
    })
}

/// A file whose values were surveyed.
struct SurveyedFile<'a> {
    file: &'a ModelFile,
    tensors: Vec<SurveyedTensor<'a>>,
}

/// A tensor whose values were surveyed.
struct SurveyedTensor<'a> {
    tensor: &'a Tensor,
    /// The name without `blk.N.`, or the whole name outside the blocks.
    row: &'a str,
    /// True if it belongs to an MTP head.
    in_head: bool,
    /// Its entry in the architecture's table.
    spec: Option<&'static TensorSpec>,
    survey: Survey,
}

impl SurveyedTensor<'_> {
    /// True if it is a matrix: two dimensions or more.
    fn is_matrix(&self) -> bool {
        self.tensor.logical_shape().len() > 1
    }

    /// True if it is a matrix, or one of a single row by the architecture's table.
    fn is_projection(&self) -> bool {
        self.is_matrix() || self.spec.is_some_and(|spec| spec.shape.len() > 1)
    }

    /// True if it has a row for each token; rows of unused tokens may be untrained.
    fn is_token_table(&self) -> bool {
        let tables = ["output.weight", MARKOV_W1, MARKOV_W2];
        tables.contains(&self.row)
            || self.row.ends_with("token_embd.weight")
            || self.row.starts_with("nextn.embed")
            || self.row.ends_with("head_head.weight")
    }

    /// True if it is a norm weight.
    fn is_norm(&self) -> bool {
        !self.is_matrix() && self.row.contains("norm") && self.row.ends_with(".weight")
    }

    /// True if checkpoints of this family store the norm weight as w - 1.
    fn is_stored_less_one(&self) -> bool {
        let changes = self.spec.map_or(&[][..], |spec| spec.transform);
        changes
            .iter()
            .any(|change| matches!(change, Transform::AddOne))
    }
}

fn survey_file(file: &ModelFile) -> Result<SurveyedFile<'_>, Error> {
    file.check_values()?;
    let expected: Vec<Expected> = file.hparams.arch.expected(&file.hparams);
    let n_layer = file.hparams.n_layer;
    let label = format!("survey {}", file.path.display());
    let task = Task::start(&label, file.plan.data_bytes(), Unit::Bytes);
    let survey_tensor = |tensor: &'_ Tensor| -> Result<Option<Survey>, Error> {
        let found = survey(tensor, n_parts(file, tensor));
        task.advance(tensor.size_bytes);
        found.map_err(|source| {
            let tensor = tensor.name.clone();
            file.error(ModelError::Source { tensor, source }).into()
        })
    };
    let surveys: Vec<Option<Survey>> = threads::try_map(
        &file.plan.tensors,
        || (),
        |(), tensor| survey_tensor(tensor),
    )?;
    let tensors = file.plan.tensors.iter().zip(surveys);
    let tensors = tensors.filter_map(|(tensor, survey)| {
        let row = name_in_block(&tensor.name);
        let spec = expected.iter().find(|row| row.name == tensor.name);
        Some(SurveyedTensor {
            tensor,
            row: if row.is_empty() { &tensor.name } else { row },
            in_head: tensor.layer().is_some_and(|layer| layer >= n_layer),
            spec: spec.map(|row| row.spec),
            survey: survey?,
        })
    });
    let tensors = tensors.collect();
    Ok(SurveyedFile { file, tensors })
}

/// Returns the number of parts of the columns that read different inputs: see [`part_name`].
fn n_parts(file: &ModelFile, tensor: &Tensor) -> usize {
    match &file.hparams.features {
        Some(features) if tensor.name == FC => features.layers.len(),
        _ if tensor.name.ends_with(EH_PROJ) || tensor.name == PRE_PROJECTION => 2,
        _ => 1,
    }
}

/// Names the input that a part of a projection's columns reads.
fn part_name(file: &ModelFile, part: usize) -> String {
    let layer = |features: &schemas::arch::Features| features.layers.get(part).copied();
    match file.hparams.features.as_ref().and_then(layer) {
        Some(layer) => format!("the part that reads layer {layer} of the target"),
        None => format!(
            "the half that reads the {}",
            ["embedding", "hidden state"][part]
        ),
    }
}

fn judge_file(surveyed: &SurveyedFile<'_>, siblings: &SurveyedFile<'_>) -> Vec<FitFinding> {
    let file = surveyed.file;
    let faults = diagnose(&file.plan).into_iter();
    let mut findings: Vec<FitFinding> = faults
        .map(|fault| {
            let message = format!("{fault} (specconv repair-mtp repairs this)");
            certain(file, "layout of the MTP head", FitCause::Layout, message)
        })
        .collect();
    findings.extend(surveyed.tensors.iter().flat_map(|t| values::judge(file, t)));
    findings.extend(values::untrained(surveyed));
    findings.extend(siblings::judge(surveyed, siblings));
    findings
}

fn certain(
    file: &ModelFile,
    subject: impl Into<String>,
    cause: FitCause,
    message: impl Into<String>,
) -> FitFinding {
    FitFinding {
        file: file.path.display().to_string(),
        subject: subject.into(),
        cause,
        severity: Severity::Certain,
        message: message.into(),
    }
}

fn suspicious(
    file: &ModelFile,
    subject: impl Into<String>,
    cause: FitCause,
    message: impl Into<String>,
) -> FitFinding {
    FitFinding {
        severity: Severity::Odd,
        ..certain(file, subject, cause, message)
    }
}
