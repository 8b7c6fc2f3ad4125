//! Every error with its message.

use graft::{Embeddings, GraftConfig, split_mtp};
use schemas::gguf::{DType, Metadata, Plan};

use crate::model::{self, graft_mtp};

fn target() -> Plan {
    model::plan(model::metadata(4, 0))
}

fn donor() -> Plan {
    model::plan(model::metadata(4, 1))
}

fn without(mut plan: Plan, is_gone: impl Fn(&str) -> bool) -> Plan {
    plan.tensors.retain(|tensor| !is_gone(&tensor.name));
    plan
}

/// Renames the keys to those of another architecture.
fn renamed(metadata: &Metadata, arch: &str) -> Metadata {
    let mut renamed = Metadata::new();
    for (key, value) in metadata.iter() {
        renamed.set(key.replace("qwen35.", &format!("{arch}.")), value.clone());
    }
    renamed.set("general.architecture", arch);
    renamed
}

#[track_caller]
fn refused(target: &Plan, donor: &Plan, message: &str) {
    let error = graft_mtp(target, donor)
        .map(|_| "grafted")
        .expect_err(message);
    assert_eq!(error.to_string(), message);
}

#[test]
fn donors_that_do_not_fit() {
    let mut other = donor();
    other.metadata = renamed(&other.metadata, "qwen3");
    refused(
        &target(),
        &other,
        "key general.architecture: target has qwen35, donor has qwen3",
    );
    let with = |key: &str, n: u32| {
        let mut metadata = model::metadata(4, 1);
        metadata.set(key, n);
        model::plan(metadata)
    };
    refused(
        &target(),
        &with("qwen35.embedding_length", 64),
        "donor: tensor blk.4.attn_norm.weight: shape [64], expected [32]",
    );
    refused(
        &target(),
        &with("qwen35.feed_forward_length", 33),
        "donor: tensor blk.4.ffn_gate.weight: shape [32, 33], expected [32, 32]",
    );
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
        "donor: key qwen35.nextn_predict_layers is 1, but blk.4 has no tensors; run specconv repair-mtp to fix it",
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
    let mut bare = without(donor(), |name| name.contains("nextn."));
    bare.metadata = Metadata::new();
    refused(
        &target(),
        &bare,
        "donor: tensor blk.N.nextn.eh_proj.weight of the MTP head is missing",
    );
}

#[test]
fn targets_with_a_head() {
    let message = "target: already has an MTP head, key qwen35.nextn_predict_layers is 1; run replace-mtp to replace it";
    refused(&donor(), &donor(), message);
    let once = graft_mtp(&target(), &donor()).unwrap();
    refused(&once, &donor(), message);
    refused(
        &without(donor(), |name| name.starts_with("blk.4.")),
        &donor(),
        "target: key qwen35.nextn_predict_layers is 1, but blk.4 has no tensors; run specconv repair-mtp to fix it",
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
        "target: key qwen35.attention.recurrent_layers: 3 entries, expected 4, one for each block; run specconv repair-mtp to fix it",
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
fn embeddings_that_are_not_there() {
    let own = GraftConfig {
        embeddings: Embeddings::Own,
        ..GraftConfig::default()
    };
    let alone = without(donor(), |name| {
        !name.starts_with("blk.4.") || name.contains("nextn.embed_tokens")
    });
    let error = graft::graft_mtp(&target(), &alone, &own).map(|_| ());
    assert_eq!(
        error.unwrap_err().to_string(),
        "donor: tensor blk.4.nextn.embed_tokens.weight of the MTP head is missing"
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
    let mut llama = target();
    llama.metadata = renamed(&llama.metadata, "llama");
    assert_eq!(
        message(&llama),
        "input: architecture llama has no MTP head (known with one: qwen3next, qwen35, qwen35moe, \
         glm4moe, deepseek2, step35, mimo2, nemotron_h_moe, deepseek4, deepseek32, glm-dsa, qwen4exp, \
         glm5-next, hy_v3, cohere2moe, bailingmoe3, exaone-moe, dots3note)"
    );
    let mut minimax = target();
    minimax.metadata = renamed(&minimax.metadata, "minimax-m2");
    assert_eq!(
        message(&minimax),
        "input: architecture minimax-m2 has no MTP head (converters leave the head of its \
         checkpoints out)"
    );
}

#[test]
fn numbers_of_layers_that_make_no_model() {
    let message = |key: &str, n: u32| {
        let mut plan = target();
        plan.metadata.set(key, n);
        split_mtp(&plan).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(
        message("qwen35.block_count", u32::MAX),
        "input: key qwen35.attention.recurrent_layers: 4 entries, expected 4294967295, one for \
         each block; run specconv repair-mtp to fix it"
    );
    let mut plan = target();
    plan.metadata.remove("qwen35.attention.recurrent_layers");
    plan.metadata.set("qwen35.block_count", u32::MAX);
    let error = split_mtp(&plan).map(|_| ()).unwrap_err().to_string();
    assert_eq!(
        error,
        "input: key qwen35.block_count: 4294967295, expected 1 to 512"
    );
    assert_eq!(
        message("qwen35.nextn_predict_layers", 9),
        "input: key qwen35.nextn_predict_layers: 9, expected fewer than the 4 blocks"
    );
}
