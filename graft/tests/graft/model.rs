//! A tiny qwen35 with an MTP head, built from the architecture table.

use std::path::Path;
use std::sync::Arc;

use schemas::arch::{Hparams, keys};
use schemas::gguf::{DType, Metadata, Output, Owned, Plan, Tensor, WriteConfig, size_bytes, write};

/// Metadata of a model with these numbers of trunk and MTP layers, in the order of the converter.
pub(crate) fn metadata(n_layer: u32, n_mtp: u32) -> Metadata {
    let mut m = Metadata::new();
    m.set(keys::ARCHITECTURE, "qwen35");
    m.set("general.type", "model");
    m.set("qwen35.block_count", n_layer + n_mtp);
    m.set("qwen35.context_length", 64u32);
    m.set("qwen35.embedding_length", 32u32);
    m.set("qwen35.feed_forward_length", 32u32);
    m.set("qwen35.attention.head_count", 2u32);
    m.set("qwen35.attention.head_count_kv", 1u32);
    m.set("qwen35.rope.dimension_sections", vec![1i32, 1, 2, 0]);
    m.set("qwen35.rope.freq_base", 1e6f32);
    m.set("qwen35.attention.layer_norm_rms_epsilon", 1e-6f32);
    m.set("qwen35.attention.key_length", 16u32);
    m.set("qwen35.attention.value_length", 16u32);
    m.set(keys::FILE_TYPE, 0u32);
    if n_mtp > 0 {
        m.set("qwen35.nextn_predict_layers", n_mtp);
    }
    m.set("qwen35.ssm.conv_kernel", 2u32);
    m.set("qwen35.ssm.state_size", 16u32);
    m.set("qwen35.ssm.group_count", 1u32);
    m.set("qwen35.ssm.time_step_rank", 2u32);
    m.set("qwen35.ssm.inner_size", 32u32);
    let recurrent = (0..n_layer + n_mtp).map(|i| i < n_layer && i % 2 == 0);
    m.set(
        "qwen35.attention.recurrent_layers",
        recurrent.collect::<Vec<_>>(),
    );
    m.set("qwen35.rope.dimension_count", 8u32);
    let tokens = ["a", "b", "c", "ab", "bc"].map(String::from);
    m.set(keys::TOKENS, tokens.to_vec());
    m
}

/// A plan with every tensor of the table but the map of a trimmed head, F32, in the table's order;
/// each tensor's bytes differ.
pub(crate) fn plan(metadata: Metadata) -> Plan {
    let hparams = Hparams::from_metadata(&metadata).expect("the keys of a tiny qwen35");
    let mut plan = Plan::new(metadata);
    let rows = hparams.arch.expected(&hparams).into_iter();
    // A `d2t` map would mean that the head's vocabulary is trimmed.
    let rows = rows.filter(|row| row.spec.gguf != schemas::arch::nextn::D2T);
    for (i, expected) in rows.enumerate() {
        let shape = expected.shape(&hparams);
        plan.tensors
            .push(tensor(&expected.name, shape, DType::F32, i));
    }
    plan
}

/// A tensor of any type id; unknown types get an arbitrary number of bytes.
pub(crate) fn tensor(name: &str, shape: Vec<u64>, dtype: DType, seed: usize) -> Tensor {
    let size_bytes = size_bytes(dtype, &shape).unwrap_or(1 + seed as u64 % 77);
    let bytes = (0..size_bytes as usize).map(|i| (i * 31 + seed * 7 + 1) as u8);
    let mut tensor = Tensor {
        name: name.to_owned(),
        shape,
        dtype,
        size_bytes,
        source: Arc::new(Owned {
            bytes: Vec::new(),
            row_bytes: 1,
        }),
    };
    tensor.source = Arc::new(Owned {
        bytes: bytes.collect(),
        row_bytes: tensor.row_bytes(),
    });
    tensor
}

/// Grafts with the command's default options.
pub(crate) fn graft_mtp(target: &Plan, donor: &Plan) -> Result<Plan, graft::Error> {
    graft::graft_mtp(target, donor, &graft::GraftConfig::default())
}

/// Writes a plan and returns the file's bytes.
pub(crate) fn written(plan: &Plan, path: &Path) -> Vec<u8> {
    write(&[Output { plan, path }], &WriteConfig::new()).expect("a valid plan");
    std::fs::read(path).expect("the file was just written")
}
