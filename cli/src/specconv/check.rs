//! Checks of a model file against the tensor table of its architecture: declared keys and present
//! tensors. Of a file of another architecture, only its head is checked.

use std::collections::HashSet;

use graft::Fault;
use schemas::arch::heads::{self, HeadSpec};
use schemas::arch::mtp_layout::{self, Layers};
use schemas::arch::nextn::{self, SHARED_HEAD_HEAD};
use schemas::arch::{
    self, Expected, Hparams, HparamsError, LayerKind, NEXTN_PREFIX, Need, Scope, keys,
    reduced_vocab,
};
use schemas::gguf::{Metadata, Plan, Tensor};
use schemas::report::{HeadPlace, HeadReport, LayersReport};
use schemas::vocab::read_d2t;

use super::purpose;

/// Result of checking a file against its architecture.
#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) layers: Option<LayersReport>,
    pub(super) mtp: Option<HeadReport>,
    /// Parts that were not checked.
    pub(super) notes: Vec<String>,
    /// Failed checks.
    pub(super) problems: Vec<String>,
}

/// Checks keys and tensors against each other, without reading tensor data.
pub(super) fn check(file: &Plan) -> Checked {
    let plan = &reduced_vocab::adopt(file.clone());
    let mut checked = Checked::default();
    let purpose = purpose::of(plan);
    let is_model = purpose.as_ref().is_none_or(|purpose| purpose.is_model);
    checked.notes.extend(purpose.map(|purpose| purpose.text));
    if reduced_vocab::is_published(file) {
        let note =
            "the MTP head has a reduced vocabulary, in the layout of published FastMTP heads";
        checked.notes.push(note.to_owned());
    }
    let known = match plan.metadata.need_str(keys::ARCHITECTURE) {
        Ok(name) => arch::by_name(name).ok_or(name),
        Err(error) => {
            if is_model {
                checked.problems.push(error.to_string());
            }
            return checked;
        }
    };
    let faults = graft::diagnose(plan);
    let texts = faults.iter().map(ToString::to_string);
    checked.problems.extend(texts);
    checked.problems.extend(special_tokens(&plan.metadata));
    if let Err(name) = known {
        if let Some(head) = heads::find(name) {
            stored_head(plan, head, &faults, &mut checked);
        }
        return checked;
    }
    match Hparams::from_plan(plan) {
        Ok(hparams) => against_table(plan, &hparams, &faults, &mut checked),
        // A note says so.
        Err(HparamsError::OnlyConverted { .. }) => {}
        // A fault that is already listed also prevents reading the hyperparameters.
        Err(error) if checked.problems.contains(&error.to_string()) => {}
        Err(error) => checked.problems.push(error.to_string()),
    }
    checked
}

/// Describes and checks the head of a file that has no forward pass here.
fn stored_head(plan: &Plan, spec: HeadSpec, faults: &[Fault], checked: &mut Checked) {
    let Some(Layers { n_mtp, first, .. }) = mtp_layout::layers(plan) else {
        return;
    };
    let in_head = |tensor: &&Tensor| tensor.layer().is_some_and(|layer| layer >= first);
    let (tensors, others): (Vec<&Tensor>, Vec<&Tensor>) = plan.tensors.iter().partition(in_head);
    let has_trunk = others.iter().any(|tensor| tensor.layer().is_some());
    let blocks = first..first + n_mtp;
    let missing = blocks.flat_map(|block| {
        let name = move |name: &str| format!("blk.{block}.{name}");
        let missing = spec.tensors().into_iter();
        let missing = missing.filter(move |t| t.is_missing(|n| plan.tensor(&name(n)).is_some()));
        missing.map(move |tensor| name(tensor.name))
    });
    let key = format!("{}.{}", spec.arch, keys::NEXTN_PREDICT_LAYERS);
    let head = HeadReport {
        place: place(!tensors.is_empty(), has_trunk),
        n_declared: plan.metadata.u32(&key).ok().flatten().unwrap_or_default(),
        n_tensors: tensors.len() as u64,
        size_bytes: tensors.iter().map(|tensor| tensor.size_bytes).sum(),
        missing: missing.collect(),
        extra: Vec::new(),
    };
    if faults.is_empty() && n_mtp > 0 {
        let problems = head_problems(&head, spec.arch);
        // A head without a missing tensor can have one of a wrong shape.
        match graft::head_layers(plan) {
            Err(error) if problems.is_empty() => checked.problems.push(error.to_string()),
            _ => checked.problems.extend(problems),
        }
    }
    checked.mtp = Some(head);
}

/// Returns where the head is, given which parts the file has.
fn place(has_head: bool, has_trunk: bool) -> HeadPlace {
    match (has_head, has_trunk) {
        (false, _) => HeadPlace::None,
        (true, true) => HeadPlace::Inline,
        (true, false) => HeadPlace::Sidecar,
    }
}

/// Lists special token ids that are outside the vocabulary.
fn special_tokens(metadata: &Metadata) -> Vec<String> {
    let Ok(Some(tokens)) = metadata.strings(keys::TOKENS) else {
        return Vec::new();
    };
    let ids = metadata
        .iter()
        .filter(|(key, _)| key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id"));
    let outside =
        ids.filter(|(_, value)| value.as_u64().is_none_or(|id| id >= tokens.len() as u64));
    outside
        .map(|(key, id)| {
            format!(
                "key {key}: token {id} is outside the vocabulary of {}",
                tokens.len()
            )
        })
        .collect()
}

/// Compares layers, tensors and head with the table of the architecture.
fn against_table(plan: &Plan, hparams: &Hparams, faults: &[Fault], checked: &mut Checked) {
    checked.layers = Some(layers(hparams));
    let mut head = head(plan, hparams);
    let reduced = reduced_vocab_problems(plan, hparams);
    checked.problems.extend(reduced.iter().flatten().cloned());
    let has_reduced_vocab = reduced.is_some();

    let expected = hparams.arch.expected(hparams);
    for entry in &expected {
        let is_mtp = entry.layer.is_some_and(|layer| layer >= hparams.n_layer);
        match plan.tensor(&entry.name) {
            Some(_) if has_reduced_vocab && entry.spec.gguf == SHARED_HEAD_HEAD => {}
            Some(tensor) => checked.problems.extend(wrong_shape(tensor, entry, hparams)),
            None if entry.spec.need == Need::Optional => {}
            None if is_mtp => head.missing.push(entry.name.clone()),
            // The trunk of a sidecar is in another file.
            None if head.place == HeadPlace::Sidecar && entry.spec.scope != Scope::Model => {}
            None => checked
                .problems
                .push(format!("tensor {} is missing", entry.name)),
        }
    }
    let known: HashSet<&str> = expected.iter().map(|entry| entry.name.as_str()).collect();
    for tensor in &plan.tensors {
        let is_map = has_reduced_vocab && tensor.name.ends_with(nextn::D2T);
        if is_map || known.contains(tensor.name.as_str()) {
            continue;
        }
        if is_in_head(tensor, hparams) {
            head.extra.push(tensor.name.clone());
        } else {
            checked.problems.push(format!(
                "tensor {} is not part of architecture {}",
                tensor.name, hparams.arch.name
            ));
        }
    }
    // A misplaced head is one fault, already listed; tensors that are missing because of it are not
    // listed again.
    if faults.is_empty() {
        checked
            .problems
            .extend(head_problems(&head, hparams.arch.name));
    }
    checked.mtp = Some(head);
}

fn layers(hparams: &Hparams) -> LayersReport {
    let count = |kind| hparams.layers.iter().filter(|&&k| k == kind).count() as u32;
    LayersReport {
        n_block: hparams.n_block(),
        n_attention: count(LayerKind::Attention),
        n_recurrent: count(LayerKind::Recurrent),
        n_feed_forward: count(LayerKind::FeedForward),
        n_mtp: hparams.n_mtp(),
    }
}

fn is_in_head(tensor: &Tensor, hparams: &Hparams) -> bool {
    tensor.layer().is_some_and(|layer| layer >= hparams.n_layer)
        || tensor.name.contains(&format!(".{NEXTN_PREFIX}"))
}

/// Describes the head of a file; missing and extra tensors are not yet known.
fn head(plan: &Plan, hparams: &Hparams) -> HeadReport {
    let (head, others): (Vec<&Tensor>, Vec<&Tensor>) =
        (plan.tensors.iter()).partition(|tensor| is_in_head(tensor, hparams));
    let has_trunk = others.iter().any(|tensor| tensor.layer().is_some());
    HeadReport {
        place: place(!head.is_empty(), has_trunk),
        n_declared: hparams.n_mtp(),
        n_tensors: head.len() as u64,
        size_bytes: head.iter().map(|tensor| tensor.size_bytes).sum(),
        missing: Vec::new(),
        extra: Vec::new(),
    }
}

/// Lists faults in the outputs and the maps of heads with a reduced vocabulary; returns `None` for any
/// other head.
fn reduced_vocab_problems(plan: &Plan, hparams: &Hparams) -> Option<Vec<String>> {
    let layout = plan.metadata.str(keys::MTP_LAYOUT).ok()??;
    if layout != keys::TRIMMED_VOCAB {
        return Some(vec![format!(
            "key {}: expected {}, found {layout}",
            keys::MTP_LAYOUT,
            keys::TRIMMED_VOCAB
        )]);
    }
    let mut problems = Vec::new();
    let size = plan.metadata.need_u32(keys::DRAFT_VOCAB_SIZE);
    let size = size.map_err(|e| problems.push(e.to_string())).ok();
    for block in hparams.n_layer..hparams.n_block() {
        reduced_head_problems(plan, hparams, block, size, &mut problems);
    }
    Some(problems)
}

/// Lists faults in the output and the map of the head in one block, which must have `size` rows.
fn reduced_head_problems(
    plan: &Plan,
    hparams: &Hparams,
    block: u32,
    size: Option<u32>,
    problems: &mut Vec<String>,
) {
    let mut tensor = |name: &str| {
        let name = format!("blk.{block}.{name}");
        let tensor = plan.tensor(&name);
        if tensor.is_none() {
            problems.push(format!("tensor {name} of the MTP head is missing"));
        }
        tensor
    };
    let (output, map) = (tensor(SHARED_HEAD_HEAD), tensor(nextn::D2T));
    let expected = size.map(|size| [hparams.n_embd, size.into()]);
    if let (Some(output), Some(expected)) = (output, expected)
        && output.logical_shape() != expected
    {
        let (name, found) = (&output.name, output.logical_shape());
        problems.push(format!(
            "tensor {name}: shape {found:?}, expected {expected:?} from the keys"
        ));
    }
    let Some(map) = map else { return };
    match read_d2t(map, hparams.n_vocab) {
        Err(error) => problems.push(error.to_string()),
        Ok(ids) if Some(ids.len()) != size.map(|n| n as usize) => problems.push(format!(
            "tensor {}: {} ids, expected {}",
            map.name,
            ids.len(),
            size.unwrap_or_default()
        )),
        Ok(_) => {}
    }
}

fn wrong_shape(tensor: &Tensor, entry: &Expected, hparams: &Hparams) -> Option<String> {
    let mut expected = entry.shape(hparams);
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

/// Lists contradictions between the declaration and the tensors of the head.
fn head_problems(head: &HeadReport, arch: &str) -> Vec<String> {
    let key = format!("{arch}.{}", keys::NEXTN_PREDICT_LAYERS);
    let missing = head.missing.iter();
    let missing = missing.map(|name| format!("tensor {name} of the MTP head is missing"));
    let extra = head.extra.iter().map(|name| match head.n_declared {
        0 => format!("tensor {name} belongs to an MTP head, but key {key} declares none"),
        _ => format!("tensor {name} is not part of an MTP head"),
    });
    missing.chain(extra).collect()
}
