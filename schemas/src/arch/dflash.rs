//! DFlash and DSpark: drafts that propose a block of tokens in one pass. Their layers attend to features of
//! the target, stored as keys and values, and to the whole block. They have the target's tokens; their own
//! output may have only some of them, listed in [`D2T`].

use super::eagle3::{ENC_OUTPUT_NORM, FC};
use super::hparams::Hparams;
use super::shared_tensors::*;
use super::spec::{ArchSpec, Dim, Scope, TensorSpec};
use super::window::WindowSpec;
use crate::vocab::D2T;

/// Embedding of a previous token in the Markov head; only DSpark drafts have this head.
pub const MARKOV_W1: &str = "markov_w1.weight";
/// Projects that embedding to a bias of the logits.
pub const MARKOV_W2: &str = "markov_w2.weight";
/// Projection to the confidence in a drafted token.
pub const CONFIDENCE: &str = "conf_proj.weight";
/// Bias of the confidence.
pub const CONFIDENCE_BIAS: &str = "conf_proj.bias";

pub(super) const N_FEATURE: Dim = |h| h.features.as_ref().map_or(0, |features| features.width());
/// Rank of the Markov head; 0 if there is none.
pub(super) const MARKOV_RANK: Dim = |h| block(h, |block| block.markov_rank);
/// Width of the confidence head's input; 0 without a Markov head.
pub(super) const CONFIDENCE_IN: Dim = |h| match MARKOV_RANK(h) {
    0 => 0,
    rank => h.n_embd + rank,
};
const CONV_KERNEL: Dim = |h| block(h, |block| block.conv_kernel);
/// Weights of the convolutions that depend on the input: before and after a module.
const CONV_ROWS: Dim = |h| block(h, |block| 2 * block.conv_kernel * block.n_conv_group);
const SELECTOR_RANK: Dim = |h| block(h, |block| block.selector_rank);

fn block(hparams: &Hparams, size: fn(&super::BlockDraft) -> u64) -> u64 {
    let features = hparams.features.as_ref();
    let block = features.and_then(|features| features.block.as_ref());
    block.map_or(0, size)
}

/// A tensor outside of layers.
const fn model(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorSpec {
    TensorSpec::new(Scope::Model, gguf, hf, shape)
}

const AROUND: &[TensorSpec] = &[
    // Drafts without their own embedding or output use the target's.
    TOKEN_EMBD.optional(),
    OUTPUT_NORM,
    model("output.weight", "lm_head.weight", &[N_EMBD, N_VOCAB_DRAFT]).optional(),
    model(FC, FC, &[N_FEATURE, N_EMBD]).or_packed("model.fc.weight", &[]),
    model(ENC_OUTPUT_NORM, "hidden_norm.weight", &[N_EMBD])
        .or_packed("model.hidden_norm.weight", &[]),
    model(
        MARKOV_W1,
        "markov_head.markov_w1.weight",
        &[MARKOV_RANK, N_VOCAB],
    )
    .or_packed("model.markov_head.markov_w1.weight", &[]),
    model(
        MARKOV_W2,
        "markov_head.markov_w2.weight",
        &[MARKOV_RANK, N_VOCAB_DRAFT],
    )
    .or_packed("model.markov_head.markov_w2.weight", &[]),
    model(
        CONFIDENCE,
        "confidence_head.proj.weight",
        &[CONFIDENCE_IN, |_| 1],
    )
    .or_packed("model.confidence_head.proj.weight", &[])
    .optional(),
    model(CONFIDENCE_BIAS, "confidence_head.proj.bias", &[|_| 1])
        .or_packed("model.confidence_head.proj.bias", &[])
        .optional(),
    model(
        "selector_predecessor.weight",
        "candidate_selector.predecessor_codebook",
        &[SELECTOR_RANK, N_VOCAB],
    )
    .or_packed("model.candidate_selector.predecessor_codebook", &[]),
    model(
        "selector_successor.weight",
        "candidate_selector.successor_codebook",
        &[SELECTOR_RANK, N_VOCAB],
    )
    .or_packed("model.candidate_selector.successor_codebook", &[]),
    model(
        "selector_hidden.weight",
        "candidate_selector.hidden_projection.weight",
        &[N_EMBD, SELECTOR_RANK],
    )
    .or_packed("model.candidate_selector.hidden_projection.weight", &[]),
    model(D2T, "", &[N_VOCAB_DRAFT]).optional(),
];

const LAYER: &[TensorSpec] = &[
    ATTN_NORM,
    ATTN_Q,
    ATTN_K,
    // Without it, values are keys before their norm.
    ATTN_V.optional(),
    ATTN_OUTPUT,
    ATTN_Q_NORM,
    ATTN_K_NORM,
    attention("attn_sinks.weight", "self_attn.sinks", &[N_HEAD])
        .or_packed("self_attn.sinks.weight", &[])
        .optional(),
    FFN_NORM,
    attention(
        "attn_conv_base",
        "attention_conv.base_kernel",
        &[N_EMBD, CONV_KERNEL, SIDES],
    ),
    attention(
        "attn_conv_proj.weight",
        "attention_conv.kernel_projection.weight",
        &[N_EMBD, CONV_ROWS],
    ),
    attention(
        "ffn_conv_base",
        "mlp_conv.base_kernel",
        &[N_EMBD, CONV_KERNEL, SIDES],
    ),
    attention(
        "ffn_conv_proj.weight",
        "mlp_conv.kernel_projection.weight",
        &[N_EMBD, CONV_ROWS],
    ),
];

/// Convolutions before and after a module.
const SIDES: Dim = |_| 2;

pub(super) const DFLASH: ArchSpec = ArchSpec {
    name: "dflash",
    hf_classes: &[
        "DFlashDraftModel",
        "DFlash2DraftModel",
        "Qwen3DSparkModel",
        "DSparkDraftModel",
        "DSparkSpeculator",
        "Lfm2DSparkDraftModel",
        "LingDSparkModel",
    ],
    tensors: &[AROUND, LAYER, DENSE],
    window: Some(WindowSpec {
        period: 1,
        rope_freq_base: None,
        heads: false,
    }),
    ..ArchSpec::PLAIN
};
