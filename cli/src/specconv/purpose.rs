//! Describes files that cannot run alone: what they are, and what can be done with them.

use schemas::arch::heads::{self, Drafting, HeadSpec};
use schemas::arch::mtp_layout::head_blocks;
use schemas::arch::{self, keys};
use schemas::gguf::{Plan, Tensor};

/// The description of a file.
pub(super) struct Purpose {
    /// One sentence.
    pub(super) text: String,
    /// False if the file has no model, so keys about one are not missing.
    pub(super) is_model: bool,
}

/// Commands for files of any architecture.
const ANY: &str = "The commands quantize, split, merge, hash and set-metadata accept the file";

/// Returns the description of a file that cannot run alone; `None` for complete models of an
/// architecture that runs.
pub(super) fn of(plan: &Plan) -> Option<Purpose> {
    let text = |key| plan.metadata.str(key).ok().flatten();
    let name = text(keys::ARCHITECTURE);
    if let Some(text) = other_kind(text("general.type"), name) {
        let is_model = false;
        let text = text.to_owned();
        return Some(Purpose { text, is_model });
    }
    let text = match (arch::by_name(name?), heads::find(name?)) {
        (Some(arch), _) if arch.is_draft() && arch::has_streams(&plan.metadata, arch.name) => {
            format!(
                "a DSpark draft of DeepSeek V4 is converted, but not run, so layers and tensors were not checked; \
                 llama.cpp drafts with it. {ANY}"
            )
        }
        (Some(arch), _) if arch.is_draft() => {
            "a draft that reads hidden states of its target: run \
             it with specrun generate -m TARGET -md FILE"
                .to_owned()
        }
        (Some(_), _) => sidecar(plan)?,
        (None, Some(head)) => stored(plan, head),
        (None, None) => unknown(name?),
    };
    let is_model = true;
    Some(Purpose { text, is_model })
}

/// Describes files that are not models of text.
fn other_kind(kind: Option<&str>, arch: Option<&str>) -> Option<&'static str> {
    Some(match (kind?, arch) {
        ("adapter", _) => {
            "a LoRA adapter: it cannot be applied here; merge it into its model first"
        }
        ("imatrix", _) => {
            "an importance matrix: pass it to specconv quantize --imatrix, or show it with specrun \
             imatrix"
        }
        ("mmproj", _) | (_, Some("clip")) => {
            "a multimodal projector: it computes embeddings of images, which specrun accepts in \
             prompts but does not compute"
        }
        _ => return None,
    })
}

/// Describes a file that has only a head of an architecture that runs.
fn sidecar(plan: &Plan) -> Option<String> {
    let heads = head_blocks(plan);
    let mut layers = plan.tensors.iter().filter_map(Tensor::layer);
    let has_only_heads = !heads.is_empty() && layers.all(|layer| heads.contains(&layer));
    has_only_heads.then(|| {
        "an MTP head without its trunk: run it with specrun generate -m TARGET -md FILE, or add it \
         to the target with specconv graft-mtp"
            .to_owned()
    })
}

/// Describes a model that cannot run here, but whose head can be changed.
fn stored(plan: &Plan, head: HeadSpec) -> String {
    let arch = head.arch;
    if head_blocks(plan).is_empty() {
        return format!(
            "architecture {arch} is not supported, so layers and tensors were not checked. The file has no \
             MTP head, and graft-mtp can add one. {ANY}"
        );
    }
    let drafting = match head.drafting {
        Drafting::Here | Drafting::LlamaCpp => "llama.cpp drafts with it",
        Drafting::Nothing => "llama.cpp stores it, but does not draft with it",
    };
    format!(
        "architecture {arch} is not supported, so only the MTP head was checked. split-mtp, graft-mtp, \
         replace-mtp, requantize-mtp and repair-mtp accept it; {drafting}. {ANY}"
    )
}

/// Describes a model of an architecture that has no entry in any table.
fn unknown(arch: &str) -> String {
    let head = match heads::left_out(arch) {
        Some(reason) => format!(" It has no MTP head: {reason}."),
        None => String::new(),
    };
    format!(
        "architecture {arch} is not supported, so layers and tensors were not checked \
         (supported: {}).{head} {ANY}",
        arch::names()
    )
}
