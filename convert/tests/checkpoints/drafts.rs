//! EAGLE-3 drafts: optional parts, and invalid vocabulary maps.

use std::path::{Path, PathBuf};

use convert::{Converted, MtpMode, OutType};
use safetensors::Dtype;
use serde_json::json;

use crate::checkpoint::{Checkpoint, REFERENCE, Stored};

fn target() -> PathBuf {
    Path::new(REFERENCE).join("qwen3")
}

/// The reference draft, to be modified.
fn draft() -> Checkpoint {
    Checkpoint::of("eagle3-qwen3")
}

/// Rows of the reference draft's output head, and tokens of its target.
const N_DRAFT: usize = 768;
const N_VOCAB: i64 = 960;

fn edit_map(checkpoint: &Checkpoint, edit: impl FnOnce(&mut Vec<i64>)) {
    checkpoint.edit_weights(|tensors| {
        let map = tensors
            .iter_mut()
            .find(|t| t.name == "d2t")
            .expect("is there");
        let (offsets, _) = map.bytes.as_chunks();
        let mut offsets: Vec<i64> = offsets.iter().map(|&b| i64::from_le_bytes(b)).collect();
        edit(&mut offsets);
        map.shape = vec![offsets.len()];
        map.bytes = offsets.iter().flat_map(|o| o.to_le_bytes()).collect();
    });
}

fn remove(tensors: &mut Vec<Stored>, name: &str) {
    let before = tensors.len();
    tensors.retain(|tensor| tensor.name != name);
    assert_eq!(tensors.len() + 1, before, "{name} was there");
}

fn converted(checkpoint: &Checkpoint) -> Converted {
    let converted = checkpoint.convert(OutType::F32, MtpMode::Inline);
    converted.unwrap_or_else(|e| panic!("{e}"))
}

/// llama.cpp takes such a draft for a Llama model and rejects it.
#[test]
fn a_draft_may_know_every_token() {
    let checkpoint = draft();
    checkpoint.edit_json("config.json", |config| {
        let config = config.as_object_mut().expect("an object");
        config.remove("draft_vocab_size").expect("is there");
    });
    checkpoint.edit_weights(|tensors| {
        remove(tensors, "d2t");
        remove(tensors, "t2d");
        // The target's output head is then the draft's.
        remove(tensors, "lm_head.weight");
    });
    let plan = converted(&checkpoint).plan;
    assert_eq!(
        plan.metadata.str("general.architecture"),
        Ok(Some("eagle3"))
    );
    assert!(plan.tensor("output.weight").is_none());
    assert!(plan.tensor("d2t").is_none());
    assert_eq!(plan.tensor("fc.weight").expect("is there").shape, [192, 64]);
}

#[test]
fn the_layers_may_stand_in_an_object_of_their_own() {
    let checkpoint = draft();
    checkpoint.edit_json("config.json", |config| {
        config["eagle_config"] = json!({"eagle_aux_hidden_state_layer_ids": [1, 3, 8]});
    });
    let plan = converted(&checkpoint).plan;
    let layers = plan.metadata.u32s("eagle3.target_layers");
    assert_eq!(layers, Ok(Some(vec![1, 3, 8])));
}

#[test]
fn a_target_is_asked_for_where_it_is_needed() {
    let mut checkpoint = draft();
    checkpoint.target = None;
    assert_eq!(
        checkpoint.refusal(MtpMode::Inline),
        ".: the draft uses the tokenizer and hidden states of its target; set the target's folder with --target-model-dir"
    );
    let mut llama = Checkpoint::of("llama");
    llama.target = Some(target());
    assert_eq!(
        llama.refusal(MtpMode::Inline),
        ".: architecture llama is not a draft; --target-model-dir is for drafts only"
    );
}

#[test]
fn invalid_maps_are_rejected() {
    type Spoil = fn(&Checkpoint);
    let cases: [(Spoil, &str); 8] = [
        (
            |c| edit_map(c, |o| o[5] = N_VOCAB),
            "model.safetensors: invalid offsets in the vocabulary map: tensor d2t: row 5 maps to token 965, the \
             target has 960 tokens",
        ),
        (
            |c| edit_map(c, |o| o[0] = -1),
            "model.safetensors: invalid offsets in the vocabulary map: tensor d2t: row 0 maps to token -1, the \
             target has 960 tokens",
        ),
        (
            |c| edit_map(c, |o| o[1] = i64::MAX),
            "model.safetensors: invalid offsets in the vocabulary map: tensor d2t: row 1 maps to token \
             9223372036854775807, the target has 960 tokens",
        ),
        (
            |c| edit_map(c, |o| o[1] = o[0] - 1),
            "model.safetensors: invalid offsets in the vocabulary map: tensor d2t: rows 0 and 1 both map to token 0",
        ),
        (
            |c| edit_map(c, |o| o.truncate(N_DRAFT - 1)),
            "model.safetensors: tensor d2t: shape [767], expected [768] from config.json",
        ),
        (
            |c| c.edit_weights(|tensors| remove(tensors, "d2t")),
            ".: missing tensors: d2t",
        ),
        (
            |c| c.edit_weights(|tensors| remove(tensors, "lm_head.weight")),
            ".: missing tensors: lm_head.weight",
        ),
        (
            |c| {
                c.edit_weights(|tensors| {
                    let map = tensors.iter_mut().find(|t| t.name == "d2t");
                    map.expect("is there").dtype = Dtype::F64;
                });
            },
            "model.safetensors: tensor d2t: element type F64, expected I64 or I32",
        ),
    ];
    for (spoil, message) in cases {
        let checkpoint = draft();
        spoil(&checkpoint);
        assert_eq!(checkpoint.refusal(MtpMode::Inline), message);
    }
}

#[test]
fn a_draft_of_another_target_is_refused() {
    let checkpoint = draft();
    checkpoint.edit_json("config.json", |config| config["vocab_size"] = json!(961));
    let path = target().join("config.json");
    assert_eq!(
        checkpoint.refusal(MtpMode::Inline),
        format!(
            "config.json: field vocab_size: expected 960, as in {}, found 961",
            path.display()
        )
    );
    let checkpoint = draft();
    checkpoint.edit_json("config.json", |config| {
        config["eagle_aux_hidden_state_layer_ids"] = json!([1, 4, 9]);
    });
    assert_eq!(
        checkpoint.refusal(MtpMode::Inline),
        "config.json: field eagle_aux_hidden_state_layer_ids: expected layers 0 to 8 of the \
         target, found [1, 4, 9]"
    );
}

#[test]
fn a_contradicting_mask_is_noted() {
    let checkpoint = draft();
    checkpoint.edit_weights(|tensors| {
        let mask = tensors.iter_mut().find(|t| t.name == "t2d");
        mask.expect("is there").bytes.reverse();
    });
    let note = "tensor t2d marks other tokens than d2t; d2t is used";
    assert!(checkpoint.notes(OutType::F32).iter().any(|n| n == note));
    assert!(!draft().notes(OutType::F32).iter().any(|n| n == note));
}
