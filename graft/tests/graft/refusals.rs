//! Every refusal, with its message.

use graft::{graft_mtp, split_mtp};
use schemas::gguf::{DType, Metadata, Plan};

use crate::model;

fn target() -> Plan {
    model::plan(model::metadata(4, 0))
}

fn donor() -> Plan {
    model::plan(model::metadata(4, 1))
}

/// A whole, consistent donor of other numbers than the target's.
fn donor_with(change: impl FnOnce(&mut Metadata)) -> Plan {
    let mut metadata = model::metadata(4, 1);
    change(&mut metadata);
    model::plan(metadata)
}

fn without(mut plan: Plan, is_gone: impl Fn(&str) -> bool) -> Plan {
    plan.tensors.retain(|tensor| !is_gone(&tensor.name));
    plan
}

#[track_caller]
fn refused(target: &Plan, donor: &Plan, message: &str) {
    let error = graft_mtp(target, donor)
        .map(|_| "grafted")
        .expect_err(message);
    assert_eq!(error.to_string(), message);
}

#[test]
fn donors_of_another_model() {
    let cases: [(Plan, &str); 12] = [
        (
            donor_with(|m| {
                for (key, value) in model::metadata(4, 0).iter() {
                    m.set(key.replace("qwen35.", "qwen3."), value.clone());
                }
                m.set("general.architecture", "qwen3");
            }),
            "key general.architecture: target has qwen35, donor has qwen3",
        ),
        (
            donor_with(|m| m.set("qwen35.embedding_length", 64u32)),
            "key qwen35.embedding_length: target has 32, donor has 64",
        ),
        (
            donor_with(|m| m.set("qwen35.feed_forward_length", 33u32)),
            "key qwen35.feed_forward_length: target has 32, donor has 33",
        ),
        (
            donor_with(|m| m.set("qwen35.attention.head_count", 4u32)),
            "key qwen35.attention.head_count: target has 2, donor has 4",
        ),
        (
            donor_with(|m| m.set("qwen35.attention.head_count_kv", 2u32)),
            "key qwen35.attention.head_count_kv: target has 1, donor has 2",
        ),
        (
            donor_with(|m| {
                m.set("qwen35.attention.key_length", 8u32);
                m.set("qwen35.attention.value_length", 8u32);
            }),
            "key qwen35.attention.key_length: target has 16, donor has 8",
        ),
        (
            donor_with(|m| m.set("qwen35.rope.dimension_count", 16u32)),
            "key qwen35.rope.dimension_count: target has 8, donor has 16",
        ),
        (
            donor_with(|m| m.set("qwen35.rope.freq_base", 1e7f32)),
            "key qwen35.rope.freq_base: target has 1000000, donor has 10000000",
        ),
        (
            donor_with(|m| {
                m.set("qwen35.rope.scaling.type", "linear");
                m.set("qwen35.rope.scaling.factor", 4f32);
            }),
            "key qwen35.rope.scaling.type: target has none, donor has linear by 4",
        ),
        (
            donor_with(|m| m.set("qwen35.attention.layer_norm_rms_epsilon", 1e-5f32)),
            "key qwen35.attention.layer_norm_rms_epsilon: target has 0.000001, donor has 0.00001",
        ),
        (
            donor_with(|m| m.set("tokenizer.ggml.tokens", vec!["a".to_owned()])),
            "key tokenizer.ggml.tokens: target has 5 tokens, donor has 1 tokens",
        ),
        (
            donor_with(|m| {
                let tokens = ["a", "b", "c", "ba", "bc"].map(String::from);
                m.set("tokenizer.ggml.tokens", tokens.to_vec());
            }),
            r#"token 3: target has "ab", donor has "ba""#,
        ),
    ];
    for (donor, message) in &cases {
        refused(&target(), donor, message);
    }
}

#[test]
fn donors_without_a_whole_head() {
    refused(
        &target(),
        &target(),
        "donor: no MTP head, key qwen35.nextn_predict_layers is missing",
    );
    let mut zero = target();
    zero.metadata.set("qwen35.nextn_predict_layers", 0u32);
    refused(
        &target(),
        &zero,
        "donor: no MTP head, key qwen35.nextn_predict_layers is 0",
    );
    refused(
        &target(),
        &without(donor(), |name| name.starts_with("blk.4.")),
        "donor: key qwen35.nextn_predict_layers is 1, but no tensor of blk.4 is there",
    );
    for row in ["nextn.eh_proj", "nextn.hnorm", "attn_q", "ffn_down"] {
        let gone = format!("blk.4.{row}.weight");
        refused(
            &target(),
            &without(donor(), |name| name == gone),
            &format!("donor: tensor {gone} of the MTP head is missing"),
        );
    }
    let mut transposed = donor();
    let eh_proj = transposed
        .tensors
        .iter_mut()
        .find(|tensor| tensor.name == "blk.4.nextn.eh_proj.weight")
        .unwrap();
    *eh_proj = model::tensor(&eh_proj.name, vec![32, 64], DType::F32, 0);
    refused(
        &target(),
        &transposed,
        "donor: tensor blk.4.nextn.eh_proj.weight: shape [32, 64], expected [64, 32]",
    );
}

#[test]
fn tensors_without_a_key() {
    // As a converter leaves a file that takes the head for one more layer of the trunk.
    let mut undeclared = donor();
    undeclared.metadata.remove("qwen35.nextn_predict_layers");
    refused(
        &target(),
        &undeclared,
        "donor: tensor blk.4.nextn.eh_proj.weight belongs to an MTP head, but of 5 layers the \
         last 0 are MTP layers by the keys",
    );
    let mut beyond = donor();
    beyond.metadata = target().metadata;
    refused(
        &beyond,
        &donor(),
        "target: tensor blk.4.attn_norm.weight belongs to an MTP head, but of 4 layers the last \
         0 are MTP layers by the keys",
    );
}

#[test]
fn targets_with_a_head() {
    refused(
        &donor(),
        &donor(),
        "target: already has an MTP head, key qwen35.nextn_predict_layers is 1",
    );
    let once = graft_mtp(&target(), &donor()).unwrap();
    refused(
        &once,
        &donor(),
        "target: already has an MTP head, key qwen35.nextn_predict_layers is 1",
    );
    refused(
        &without(donor(), |name| name.starts_with("blk.4.")),
        &donor(),
        "target: key qwen35.nextn_predict_layers is 1, but no tensor of blk.4 is there",
    );
}

#[test]
fn per_layer_arrays() {
    let mut short = target();
    let recurrent = vec![true, false, true];
    short
        .metadata
        .set("qwen35.attention.recurrent_layers", recurrent);
    refused(
        &short,
        &donor(),
        "target: key qwen35.attention.recurrent_layers: 3 entries, expected 4, one for each block",
    );
    let mut unknown = target();
    unknown.metadata.set("qwen35.widths", vec![1u32, 2, 3, 4]);
    refused(
        &unknown,
        &donor(),
        "key qwen35.widths: one entry for each of the target's 4 layers, but the donor has none \
         for its MTP layers",
    );
}

#[test]
fn nothing_to_split() {
    let message = |plan: &Plan| split_mtp(plan).map(|_| ()).unwrap_err().to_string();
    assert_eq!(
        message(&target()),
        "input: no MTP head, key qwen35.nextn_predict_layers is missing"
    );
    let sidecar = split_mtp(&donor()).unwrap().mtp;
    assert_eq!(
        message(&sidecar),
        "input: no trunk, tensors of blk.0 to blk.3 are missing"
    );
    let mut llama = Metadata::new();
    for (key, value) in model::metadata(4, 0).iter() {
        llama.set(key.replace("qwen35.", "llama."), value.clone());
    }
    llama.set("general.architecture", "llama");
    assert_eq!(
        message(&model::plan(llama.clone())),
        "input: architecture llama has no MTP head"
    );
    llama.set("general.architecture", "gpt2");
    assert_eq!(
        message(&Plan::new(llama)),
        "input: architecture \"gpt2\" is not supported (supported: llama, qwen3, qwen35)"
    );
}
