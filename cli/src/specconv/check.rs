//! A model file against the table of its architecture: what the keys declare, and what the
//! tensors hold.

use std::collections::HashSet;

use schemas::arch::{self, Expected, Hparams, LayerKind, NEXTN_PREFIX, Need, Scope, keys};
use schemas::gguf::{Plan, Tensor};
use schemas::report::{HeadPlace, HeadReport, LayersReport};

/// What the table says about a file.
#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) layers: Option<LayersReport>,
    pub(super) mtp: Option<HeadReport>,
    /// What was not checked.
    pub(super) notes: Vec<String>,
    /// What does not hold.
    pub(super) problems: Vec<String>,
}

/// Checks keys and tensors against each other; the data is not looked at.
pub(super) fn check(plan: &Plan) -> Checked {
    let mut checked = Checked::default();
    let known = match plan.metadata.need_str(keys::ARCHITECTURE) {
        Ok(name) => arch::by_name(name).ok_or(name),
        Err(error) => {
            checked.problems.push(error.to_string());
            return checked;
        }
    };
    if let Err(name) = known {
        checked.notes.push(format!(
            "architecture {name} is not supported, so layers and tensors were not checked \
             (supported: {})",
            arch::names()
        ));
        return checked;
    }
    match Hparams::from_metadata(&plan.metadata) {
        Ok(hparams) => against_table(plan, &hparams, &mut checked),
        Err(error) => checked.problems.push(error.to_string()),
    }
    checked
}

fn against_table(plan: &Plan, hparams: &Hparams, checked: &mut Checked) {
    let of_kind = |kind| hparams.layers.iter().filter(|&&k| k == kind).count() as u32;
    checked.layers = Some(LayersReport {
        n_block: hparams.n_block(),
        n_attention: of_kind(LayerKind::Attention),
        n_recurrent: of_kind(LayerKind::Recurrent),
        n_mtp: hparams.n_mtp(),
    });
    let in_head = |tensor: &Tensor| {
        tensor.layer().is_some_and(|layer| layer >= hparams.n_layer)
            || tensor.name.contains(&format!(".{NEXTN_PREFIX}"))
    };
    let head: Vec<&Tensor> = plan.tensors.iter().filter(|t| in_head(t)).collect();
    let has_trunk = plan
        .tensors
        .iter()
        .any(|t| t.layer().is_some() && !in_head(t));
    let place = match (head.is_empty(), has_trunk) {
        (true, _) => HeadPlace::None,
        (false, true) => HeadPlace::Inline,
        (false, false) => HeadPlace::Sidecar,
    };
    let mut report = HeadReport {
        place,
        n_declared: hparams.n_mtp(),
        n_tensors: head.len() as u64,
        size_bytes: head.iter().map(|tensor| tensor.size_bytes).sum(),
        missing: Vec::new(),
        extra: Vec::new(),
    };

    let expected = hparams.arch.expected(hparams);
    for row in &expected {
        let is_mtp = row.layer.is_some_and(|layer| layer >= hparams.n_layer);
        match plan.tensor(&row.name) {
            Some(tensor) => checked.problems.extend(wrong_shape(tensor, row, hparams)),
            None if row.spec.need == Need::Optional => {}
            None if is_mtp => report.missing.push(row.name.clone()),
            // The trunk of a sidecar is another file.
            None if place == HeadPlace::Sidecar && row.spec.scope != Scope::Model => {}
            None => checked
                .problems
                .push(format!("tensor {} is missing", row.name)),
        }
    }
    let places: HashSet<&str> = expected.iter().map(|row| row.name.as_str()).collect();
    for tensor in &plan.tensors {
        if places.contains(tensor.name.as_str()) {
            continue;
        }
        match in_head(tensor) {
            true => report.extra.push(tensor.name.clone()),
            false => checked.problems.push(format!(
                "tensor {}: architecture {} has no place for it",
                tensor.name, hparams.arch.name
            )),
        }
    }
    checked.problems.extend(head_problems(&report, hparams));
    checked.mtp = Some(report);
}

fn wrong_shape(tensor: &Tensor, row: &Expected, hparams: &Hparams) -> Option<String> {
    let mut expected = row.spec.shape(hparams);
    while expected.len() > 1 && expected.last() == Some(&1) {
        expected.pop();
    }
    let found = tensor.logical_shape();
    (found != expected).then(|| {
        format!(
            "tensor {}: shape {found:?}, expected {expected:?} from the keys",
            tensor.name
        )
    })
}

/// Where declaration and tensors of the head disagree.
fn head_problems(head: &HeadReport, hparams: &Hparams) -> Vec<String> {
    let key = format!("{}.{}", hparams.arch.name, keys::NEXTN_PREDICT_LAYERS);
    let n_declared = head.n_declared;
    let mut problems = Vec::new();
    if n_declared > 0 && head.n_tensors == 0 {
        problems.push(format!(
            "key {key} declares a head of {n_declared} layer(s), but the tensors hold none"
        ));
    } else {
        let lacks = head.missing.iter();
        problems.extend(lacks.map(|name| format!("tensor {name} of the MTP head is missing")));
    }
    problems.extend(head.extra.iter().map(|name| match n_declared {
        0 => format!("tensor {name} belongs to an MTP head, but key {key} declares none"),
        _ => format!("tensor {name}: an MTP head has no place for it"),
    }));
    problems
}
