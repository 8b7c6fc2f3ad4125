//! Detects an MTP head in a checkpoint. The stored tensors decide: configs may declare heads that an
//! exporter dropped, or omit heads that exist.

use schemas::arch::heads;
use schemas::arch::{ArchSpec, EH_PROJ, Expected, Hparams, MtpSpec, Need, Numbering, TensorSpec};

use crate::checkpoint::StoredTensor;
use crate::config::MtpMode;
use crate::error::{Error, Names};
use crate::hf_config::HfConfig;
use crate::note::Note;

/// Returns the number of MTP layers for the file's metadata.
pub(crate) fn count_layers(
    arch: &'static ArchSpec,
    config: &HfConfig,
    tensors: &[StoredTensor],
    mode: MtpMode,
    notes: &mut Vec<Note>,
) -> Result<u32, Error> {
    let path = || config.folder.clone();
    let Some(spec) = &arch.mtp else {
        return match mode {
            MtpMode::Only => Err(Error::MtpUnsupported {
                path: path(),
                arch: arch.name,
            }),
            MtpMode::Inline | MtpMode::Without | MtpMode::DSpark => Ok(0),
        };
    };
    if mode == MtpMode::Without {
        return Ok(0);
    }
    let fields = ["mtp_num_hidden_layers", "num_nextn_predict_layers"];
    let declared = config.fields.u32(&fields)?.unwrap_or(0);
    let n_layer = config.fields.need_u32("num_hidden_layers")?;
    let found = count_stored(spec, n_layer, tensors);
    let max = heads::find(arch.name).and_then(|head| head.max_heads);
    if let Some(max) = max.filter(|&max| found > max) {
        return Err(Error::MtpCount {
            path: path(),
            arch: arch.name,
            found,
            max,
        });
    }
    match found {
        0 if mode == MtpMode::Only => Err(Error::NoMtpHead {
            path: path(),
            missing: required(arch, spec, n_layer),
            declared,
        }),
        2.. if spec.numbering == Numbering::Own => Err(Error::MtpLayers {
            path: path(),
            found,
        }),
        _ => {
            if declared != found {
                notes.push(Note::MtpCount { declared, found });
            }
            Ok(found)
        }
    }
}

/// Returns true if a tensor, named as by [`StoredTensor::text_name`], belongs to a head.
pub(crate) fn is_in_head(spec: &MtpSpec, n_layer: u32, name: &str) -> bool {
    let is_own = |tensor: &TensorSpec| tensor.hf == name;
    head_of(spec, n_layer, name).is_some()
        || spec.numbering == Numbering::Own && spec.tensors.iter().any(is_own)
}

/// Returns the note about a head that is left out, if the checkpoint has one.
pub(crate) fn left_out(arch: &ArchSpec, n_layer: u32, tensors: &[StoredTensor]) -> Option<Note> {
    let spec = arch.mtp.as_ref()?;
    let names = tensors.iter().map(StoredTensor::text_name);
    let names: Names = names
        .filter(|name| is_in_head(spec, n_layer, name))
        .collect();
    let projection = spec.tensors.iter().find(|tensor| tensor.gguf == EH_PROJ)?;
    let projection = format!("{}{}", spec.hf_prefix(n_layer, n_layer), projection.hf);
    match names.0.is_empty() {
        true => None,
        false if names.0.contains(&projection) => Some(Note::SidecarOnly),
        false => Some(Note::OtherHead { names }),
    }
}

fn count_stored(spec: &MtpSpec, n_layer: u32, tensors: &[StoredTensor]) -> u32 {
    let names = tensors.iter().map(StoredTensor::text_name);
    let heads = names.filter(|name| is_in_head(spec, n_layer, name));
    heads
        .map(|name| head_of(spec, n_layer, &name).unwrap_or(0).saturating_add(1))
        .max()
        .unwrap_or(0)
}

/// Returns the HF names of the trunk's tensors outside of blocks that a sidecar has from its head instead.
pub(crate) fn replaced_ends(arch: &ArchSpec, mode: MtpMode) -> Vec<&'static str> {
    let own_ends = arch.mtp.as_ref().map_or(&[][..], |mtp| mtp.own_ends);
    let specs = arch
        .tensor_specs()
        .filter(|spec| own_ends.contains(&spec.gguf));
    match mode {
        MtpMode::Only => specs.map(|spec| spec.hf).collect(),
        MtpMode::Inline | MtpMode::Without | MtpMode::DSpark => Vec::new(),
    }
}

/// Takes the tensors outside of blocks that a sidecar has for its head from the head's layer.
pub(crate) fn take_own_ends(expected: &mut [Expected], hparams: &Hparams) {
    let Some(mtp) = &hparams.arch.mtp else { return };
    let prefix = mtp.hf_prefix(hparams.n_layer, hparams.n_layer);
    for tensor in expected.iter_mut() {
        if mtp.own_ends.contains(&tensor.spec.gguf) {
            tensor.hf_prefix.clone_from(&prefix);
        }
    }
}

/// Returns the index of the head that a tensor name belongs to.
fn head_of(spec: &MtpSpec, n_layer: u32, name: &str) -> Option<u32> {
    if spec
        .hf_experts
        .is_some_and(|prefix| name.starts_with(prefix))
    {
        return Some(0);
    }
    let (before, after) = spec.hf_layer.split_once("{}")?;
    let rest = name.strip_prefix(before)?;
    let number: u32 = rest[..rest.find(after)?].parse().ok()?;
    match spec.numbering {
        Numbering::Own | Numbering::Zero => Some(number),
        Numbering::Blocks => number.checked_sub(n_layer),
    }
}

/// Returns the tensors that the first head requires.
fn required(arch: &ArchSpec, spec: &MtpSpec, n_layer: u32) -> Names {
    let layer = spec.hf_prefix(n_layer, n_layer);
    let tensors = spec.tensors.iter().chain(arch.head_layer());
    tensors
        .filter(|tensor| tensor.need == Need::Required)
        .map(|tensor| format!("{}{}", spec.prefix_of(tensor.scope, &layer), tensor.hf))
        .collect()
}
