//! DeepSeek V4: settings and tensors that are rejected, and experts of types that llama.cpp's converter does not accept.

use convert::MtpMode::{Inline, Only, Without};
use convert::{Converted, MtpMode, OutType};
use safetensors::Dtype;
use schemas::gguf::{DType, Tensor};
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, Stored};

/// Returns the message for a changed field of the config.
fn with_field(field: &str, value: Value, mtp: MtpMode) -> String {
    let checkpoint = Checkpoint::of("deepseek4");
    checkpoint.edit_json("config.json", |config| config[field] = value);
    checkpoint.refusal(mtp)
}

#[test]
fn configs_are_checked() {
    for (field, value, mtp, expected) in [
        (
            "q_lora_rank",
            json!(null),
            Inline,
            "field q_lora_rank is missing",
        ),
        (
            "norm_topk_prob",
            json!(null),
            Inline,
            "field norm_topk_prob is missing",
        ),
        ("hc_eps", json!(null), Inline, "field hc_eps is missing"),
        (
            "compress_ratios",
            json!([0, 4]),
            Inline,
            "field compress_ratios: expected 0, 4 or 128 for each of 3 layers, and at most 512 entries, found 2 entries",
        ),
        (
            "compress_ratios",
            json!([0, 4, 128]),
            Only,
            "field compress_ratios: expected 0, 4 or 128 for each of 4 layers, and at most 512 entries, found 3 entries",
        ),
        (
            "compress_ratios",
            json!([0, 8, 128, 0]),
            Inline,
            "field compress_ratios: expected 0, 4 or 128 for each of 3 layers, and at most 512 entries, found 8",
        ),
        (
            "num_hidden_layers",
            json!(4_000_000_000u32),
            Inline,
            "field compress_ratios: expected 0, 4 or 128 for each of 4000000000 layers, and at most 512 entries, found 4 entries",
        ),
        (
            "num_hidden_layers",
            json!(0),
            Inline,
            "field num_hash_layers: expected at most 0, the number of layers, found 1",
        ),
        (
            "scoring_func",
            json!("sigmoid"),
            Inline,
            "field scoring_func: expected sqrtsoftplus, found sigmoid",
        ),
        (
            "num_hash_layers",
            json!(4),
            Inline,
            "field num_hash_layers: expected at most 3, the number of layers, found 4",
        ),
        (
            "num_key_value_heads",
            json!(2),
            Inline,
            "num_key_value_heads = 2 is not supported",
        ),
        (
            "o_groups",
            json!(3),
            Inline,
            "key deepseek4.attention.output_group_count: 3, expected a divisor of the 4 heads",
        ),
        (
            "hc_mult",
            json!(0),
            Inline,
            "key deepseek4.hyper_connection.count: 0, expected 1 to 16",
        ),
        (
            "n_routed_experts",
            json!(4_000_000_000u32),
            Inline,
            "key deepseek4.expert_count: 4000000000, expected 1 to 1024",
        ),
        (
            "quantization_config",
            json!({"quant_method": "mxfp4"}),
            Inline,
            "quantization method \"mxfp4\" is not supported; convert the original checkpoint instead",
        ),
    ] {
        let message = with_field(field, value, mtp);
        assert_eq!(message, format!("config.json: {expected}"), "{field}");
    }
}

/// Returns a tensor of a checkpoint.
fn find<'a>(tensors: &'a mut [Stored], name: &str) -> &'a mut Stored {
    let found = tensors.iter_mut().find(|tensor| tensor.name == name);
    found.unwrap_or_else(|| panic!("{name} is missing"))
}

/// Returns the message for changed tensors.
fn with_tensors(edit: impl FnOnce(&mut Vec<Stored>), mtp: MtpMode) -> String {
    let checkpoint = Checkpoint::of("deepseek4");
    checkpoint.edit_weights(edit);
    let message = checkpoint.refusal(mtp);
    message.replace("model.safetensors: ", "")
}

#[test]
fn tensors_are_checked() {
    let without = |name: &'static str| {
        move |tensors: &mut Vec<Stored>| tensors.retain(|tensor| tensor.name != name)
    };
    assert_eq!(
        with_tensors(without("layers.1.attn.wq_a.scale"), Without),
        "tensor layers.1.attn.wq_a.weight: F8_E4M3 weights need their scales, but the checkpoint has no tensor \
         layers.1.attn.wq_a.scale; download the whole checkpoint"
    );
    assert_eq!(
        with_tensors(without("layers.1.ffn.experts.2.w1.scale"), Without),
        "tensor layers.1.ffn.experts.2.w1.weight: I8 weights need their scales, but the checkpoint has no tensor \
         layers.1.ffn.experts.2.w1.scale; download the whole checkpoint"
    );
    assert_eq!(
        with_tensors(without("layers.0.ffn.gate.tid2eid"), Without),
        ".: missing tensors: model.layers.0.ffn.gate.tid2eid"
    );
    assert_eq!(
        with_tensors(without("layers.2.attn.compressor.ape"), Without),
        ".: missing tensors: model.layers.2.attn.compressor.ape"
    );
    assert_eq!(
        with_tensors(without("mtp.0.h_proj.weight"), Only),
        ".: missing tensors: mtp.0.h_proj.weight"
    );
    assert_eq!(
        with_tensors(without("mtp.0.hc_head_fn"), Only),
        ".: missing tensors: mtp.0.hc_head_fn"
    );
    let shape = |tensors: &mut Vec<Stored>| {
        find(tensors, "layers.1.ffn.experts.2.w1.scale").shape = vec![1, 32];
    };
    assert_eq!(
        with_tensors(shape, Without),
        "tensor layers.1.ffn.experts.2.w1.scale: shape [1, 32], expected scales for shape [32, 16] in blocks of [16]"
    );
    let shape = |tensors: &mut Vec<Stored>| {
        find(tensors, "layers.1.attn.compressor.ape").shape = vec![128, 4];
    };
    assert_eq!(
        with_tensors(shape, Without),
        "tensor layers.1.attn.compressor.ape: shape [128, 4], expected [4, 128] from config.json"
    );
    let experts = |tensors: &mut Vec<Stored>| {
        tensors.retain(|tensor| tensor.name != "layers.1.ffn.experts.2.w1.scale");
        let expert = find(tensors, "layers.1.ffn.experts.2.w1.weight");
        expert.dtype = Dtype::BF16;
        expert.shape = vec![32, 32];
        expert.bytes = vec![0; 2 * 32 * 32];
    };
    assert_eq!(
        with_tensors(experts, Without),
        "tensor layers.1.ffn.experts.2.w1.weight: stored as numbers, expected pairs of four-bit floats like \
         layers.1.ffn.experts.0.w1.weight; all experts of a layer have one type"
    );
    let table = |tensors: &mut Vec<Stored>| {
        let table = find(tensors, "layers.0.ffn.gate.tid2eid");
        table.dtype = Dtype::F64;
    };
    assert_eq!(
        with_tensors(table, Without),
        "tensor layers.0.ffn.gate.tid2eid: element type F64, expected I64 or I32"
    );
}

/// Returns all tensors whose names begin so, under names that begin with another prefix.
fn renamed(tensors: &[Stored], from: &str, to: &str) -> Vec<Stored> {
    let of_head = tensors
        .iter()
        .filter(|tensor| tensor.name.starts_with(from));
    let renamed = of_head.map(|tensor| Stored {
        name: tensor.name.replacen(from, to, 1),
        ..tensor.clone()
    });
    renamed.collect()
}

#[test]
fn one_head_is_accepted() {
    for second in ["mtp.1.", "mtp.4294967295."] {
        let two = |tensors: &mut Vec<Stored>| {
            let more = renamed(tensors, "mtp.0.", second);
            tensors.extend(more);
        };
        let found = if second == "mtp.1." { 2 } else { u32::MAX };
        assert_eq!(
            with_tensors(two, Only),
            format!(
                ".: {found} MTP layers, readers of architecture deepseek4 accept 1; convert with --no-mtp"
            )
        );
    }
    let none = |tensors: &mut Vec<Stored>| tensors.retain(|t| !t.name.starts_with("mtp."));
    let message = with_tensors(none, Only);
    assert!(
        message.starts_with(".: no MTP head to write: missing tensors: mtp.0.e_proj.weight,"),
        "{message}"
    );
}

/// Returns a DSpark draft with a changed config or changed tensors, and the message.
fn of_draft(spoil: impl FnOnce(&Checkpoint)) -> String {
    let checkpoint = Checkpoint::of("deepseek4-dspark");
    spoil(&checkpoint);
    let message = checkpoint.refusal(MtpMode::DSpark);
    message.replace("model.safetensors: ", "")
}

#[test]
fn drafts_are_checked() {
    let field = |field: &'static str, value: Value| {
        move |draft: &Checkpoint| draft.edit_json("config.json", |config| config[field] = value)
    };
    assert_eq!(
        of_draft(field("dspark_noise_token_id", json!(null))),
        "config.json: field dspark_noise_token_id is missing"
    );
    assert_eq!(
        of_draft(field("dspark_noise_token_id", json!(320))),
        "config.json: field dflash_config.mask_token_id: expected a token below 320, found 320"
    );
    assert_eq!(
        of_draft(field("dspark_block_size", json!(null))),
        "config.json: field dspark_block_size is missing"
    );
    for layers in [json!([0, 3]), json!([-1]), json!([])] {
        let message = of_draft(field("dspark_target_layer_ids", layers));
        let expected = "config.json: field dspark_target_layer_ids: expected layers of the target, which has 3, found [";
        assert!(message.starts_with(expected), "{message}");
    }
    assert_eq!(
        of_draft(|draft| draft.edit_weights(|t| t.retain(|t| !t.name.starts_with("mtp.")))),
        ".: missing tensors: mtp.0.main_proj.weight"
    );
    assert_eq!(
        of_draft(|draft| {
            draft.edit_weights(|t| t.retain(|t| t.name != "mtp.1.markov_head.markov_w2.weight"));
        }),
        ".: missing tensors: mtp.0.markov_head.markov_w2.weight"
    );
    let second = |draft: &Checkpoint| {
        draft.edit_weights(|tensors| {
            let more = renamed(tensors, "mtp.1.", "mtp.4294967295.");
            tensors.extend(more);
        });
    };
    assert_eq!(
        of_draft(second),
        format!(
            ".: {} MTP layers, readers of architecture dflash accept 512; convert with --no-mtp",
            u32::MAX
        )
    );
    let mut draft = Checkpoint::of("deepseek4-dspark");
    draft.target = None;
    assert_eq!(
        draft.refusal(MtpMode::DSpark),
        ".: the draft uses the tokenizer and hidden states of its target; set the target's folder with --target-model-dir"
    );
    assert_eq!(
        Checkpoint::of("qwen3").refusal(MtpMode::DSpark),
        ".: architecture qwen3 has no DSpark draft inside of a checkpoint; --dspark is for DeepSeek V4 only"
    );
    // A head in the place of a draft.
    let message = {
        let mut head = Checkpoint::of("deepseek4");
        head.target = Some(head.path("."));
        head.edit_json("config.json", |config| {
            config["dspark_noise_token_id"] = json!(1);
            config["dspark_block_size"] = json!(2);
            config["dspark_target_layer_ids"] = json!([0]);
        });
        head.refusal(MtpMode::DSpark)
    };
    assert!(
        message.starts_with(".: missing tensors: mtp.0.main_proj.weight, "),
        "{message}"
    );
}

/// Readers would use an expert that does not exist.
#[test]
fn tables_have_existing_experts_only() {
    for (bytes, found) in [(4i64, 4i64), (-1, -1), (1 << 32, 1 << 32)] {
        let checkpoint = Checkpoint::of("deepseek4");
        checkpoint.edit_weights(|tensors| {
            let table = find(tensors, "layers.0.ffn.gate.tid2eid");
            table.bytes[7 * 16 + 8..8 * 16].copy_from_slice(&bytes.to_le_bytes());
        });
        let converted = convert(&checkpoint, Without);
        let table = tensor(&converted, "blk.0.ffn_gate_tid2eid.weight");
        let message = table.read_all().expect_err("has a broken row").to_string();
        let expected =
            format!("row 7, column 1: {found}, expected 0 to 3; the checkpoint is broken");
        assert!(message.contains(&expected), "{message}");
    }
}

fn convert(checkpoint: &Checkpoint, mtp: MtpMode) -> Converted {
    let converted = checkpoint.convert(OutType::F16, mtp);
    converted.unwrap_or_else(|e| panic!("{e}"))
}

fn tensor<'a>(converted: &'a Converted, name: &str) -> &'a Tensor {
    let found = converted.plan.tensor(name);
    found.unwrap_or_else(|| panic!("{name} is missing"))
}

/// Experts that are numbers keep their type, and the file has it; tensors of images are left out.
#[test]
fn experts_may_be_numbers() {
    for (stored, n_bytes, expected, file_type) in [
        (Dtype::F8_E4M3, 1, DType::Q8_0, 7),
        (Dtype::BF16, 2, DType::BF16, 32),
    ] {
        let checkpoint = Checkpoint::of("deepseek4");
        checkpoint.edit_weights(|tensors| {
            let is_expert = |name: &str| name.contains(".ffn.experts.");
            tensors.retain(|t| !(is_expert(&t.name) && t.name.ends_with(".scale")));
            let mut more = Vec::new();
            for tensor in tensors.iter_mut().filter(|t| is_expert(&t.name)) {
                tensor.dtype = stored;
                tensor.shape = vec![32, 32];
                tensor.bytes = vec![0x38; n_bytes * 32 * 32];
                more.extend((n_bytes == 1).then(|| Stored {
                    name: tensor.name.replace(".weight", ".scale"),
                    dtype: Dtype::F8_E8M0,
                    shape: vec![1, 1],
                    bytes: vec![126],
                }));
            }
            for name in ["vision.norm.weight", "aligner.w1.weight", "image_newline"] {
                more.push(Stored {
                    name: name.to_owned(),
                    dtype: Dtype::F32,
                    shape: vec![1],
                    bytes: vec![0; 4],
                });
            }
            tensors.extend(more);
        });
        for (mtp, block) in [(Inline, 0), (Only, 3)] {
            let converted = convert(&checkpoint, mtp);
            let experts = tensor(&converted, &format!("blk.{block}.ffn_gate_exps.weight"));
            assert_eq!(experts.dtype, expected);
            let metadata = &converted.plan.metadata;
            assert_eq!(metadata.u32("general.file_type"), Ok(Some(file_type)));
            let leading = &converted.plan.tensors[usize::from(mtp == Inline)];
            assert_eq!(leading.name, experts.name);
        }
        let experts = convert(&checkpoint, Without);
        let experts = tensor(&experts, "blk.1.ffn_up_exps.weight");
        let bytes = experts.read_all().expect("has no broken rows");
        if expected == DType::Q8_0 {
            // The code 0x38 is 1, and the scale is 2 to the power of -1.
            assert_eq!(bytes[2..34], [127; 32]);
        }
    }
}

#[test]
fn notes_name_what_differs() {
    let notes = Checkpoint::of("deepseek4").notes(OutType::F16);
    let kept = "matrices keep the types of the checkpoint, FP8 as Q8_0; the type of the file applies to F16 matrices only";
    assert!(notes.iter().any(|note| note == kept), "{notes:?}");
    let sidecar = "the MTP head is left out: ";
    let has_sidecar = |notes: &[String]| notes.iter().any(|note| note.starts_with(sidecar));
    assert!(has_sidecar(&notes), "{notes:?}");
    assert!(!notes.iter().any(|note| note.contains("sliding_window")));
    let notes = Checkpoint::of("deepseek4-bf16").notes(OutType::F16);
    assert!(!has_sidecar(&notes), "{notes:?}");
    // The stages of a DSpark draft have the names of heads.
    let draft = Checkpoint::of("deepseek4");
    draft.edit_weights(|tensors| {
        let first = renamed(tensors, "mtp.0.enorm", "mtp.0.main_norm");
        let second = renamed(tensors, "mtp.0.hnorm", "mtp.1.ffn_norm");
        tensors.retain(|tensor| !tensor.name.starts_with("mtp."));
        tensors.extend(first.into_iter().chain(second));
    });
    let notes = draft.notes(OutType::F16);
    let expected = "no MTP head, left out: mtp.0.main_norm.weight, mtp.1.ffn_norm.weight; --dspark writes a DSpark draft";
    assert!(notes.iter().any(|note| note == expected), "{notes:?}");
}
