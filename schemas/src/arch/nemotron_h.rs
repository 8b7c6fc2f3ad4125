//! Nemotron-H, dense and with experts: each layer is a Mamba-2 layer, attention without positions, or a
//! feed-forward network, whose activation is `max(x, 0)^2` without a gate. The MTP head joins attention and
//! experts in one block.

use super::hparams::Gating;
use super::nextn;
use super::shared_tensors::*;
use super::spec::{ArchSpec, BlockSpec, Dim, MtpSpec, RoutingSpec, Scope, TensorSpec, Transform};

const INNER: Dim = |h| h.ssm.inner_size;
const N_CHANNEL: Dim = |h| h.ssm.n_channel();
const N_HEAD_SSM: Dim = |h| h.ssm.time_step_rank;
/// The gate, the channels of the convolution, and a time step for each head.
const SSM_IN_ROWS: Dim = |h| h.ssm.inner_size + h.ssm.n_channel() + h.ssm.time_step_rank;
const N_LATENT: Dim = |h| h.experts.n_latent;
/// Width of the input and output of routed experts.
const N_EMBD_EXPERT: Dim = |h| match h.experts.n_latent {
    0 => h.n_embd,
    n_latent => n_latent,
};

const fn mamba(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorSpec {
    TensorSpec::new(Scope::Recurrent, gguf, hf, shape)
}

const NORM: TensorSpec = layer_norm("attn_norm.weight", "norm.weight");

const MAMBA: &[TensorSpec] = &[
    mamba(
        "ssm_in.weight",
        "mixer.in_proj.weight",
        &[N_EMBD, SSM_IN_ROWS],
    ),
    mamba(
        "ssm_conv1d.weight",
        "mixer.conv1d.weight",
        &[|h| h.ssm.conv_kernel, N_CHANNEL],
    ),
    mamba("ssm_conv1d.bias", "mixer.conv1d.bias", &[N_CHANNEL]).optional(),
    mamba("ssm_dt.bias", "mixer.dt_bias", &[N_HEAD_SSM]),
    mamba("ssm_a", "mixer.A_log", &[|_| 1, N_HEAD_SSM]).with(&[Transform::NegExp]),
    mamba("ssm_d", "mixer.D", &[|_| 1, N_HEAD_SSM]),
    mamba(
        "ssm_norm.weight",
        "mixer.norm.weight",
        &[
            |h| h.ssm.inner_size / h.ssm.group_count.max(1),
            |h| h.ssm.group_count,
        ],
    )
    .with(&[Transform::Split]),
    mamba("ssm_out.weight", "mixer.out_proj.weight", &[INNER, N_EMBD]),
];

/// Without positions the order of a head's rows has no effect; llama.cpp's converter changes it as for Llama.
const Q_PAIRS: &[Transform] = &[Transform::RopePairs { n_head: N_HEAD }];
const K_PAIRS: &[Transform] = &[Transform::RopePairs { n_head: N_HEAD_KV }];

const ATTENTION: &[TensorSpec] = &[
    attention("attn_q.weight", "mixer.q_proj.weight", &[N_EMBD, Q_ROWS]).with(Q_PAIRS),
    attention("attn_k.weight", "mixer.k_proj.weight", &[N_EMBD, KV_ROWS]).with(K_PAIRS),
    attention("attn_v.weight", "mixer.v_proj.weight", &[N_EMBD, KV_ROWS]),
    attention(
        "attn_output.weight",
        "mixer.o_proj.weight",
        &[Q_ROWS, N_EMBD],
    ),
];

const NETWORK: &[TensorSpec] = &[
    TensorSpec::new(
        Scope::Dense,
        "ffn_up.weight",
        "mixer.up_proj.weight",
        &[N_EMBD, N_FF],
    ),
    TensorSpec::new(
        Scope::Dense,
        "ffn_down.weight",
        "mixer.down_proj.weight",
        &[N_FF, N_EMBD],
    ),
];

const LATENT_EXPERTS: &[TensorSpec] = &[
    experts(ROUTER, "mixer.gate.weight", &[N_EMBD, N_EXPERT]),
    experts(
        "exp_probs_b.bias",
        "mixer.gate.e_score_correction_bias",
        &[N_EXPERT],
    ),
    experts(
        "ffn_latent_down.weight",
        "mixer.fc1_latent_proj.weight",
        &[N_EMBD, N_LATENT],
    ),
    experts(
        "ffn_latent_up.weight",
        "mixer.fc2_latent_proj.weight",
        &[N_LATENT, N_EMBD],
    ),
    experts(
        "ffn_down_exps.weight",
        "mixer.experts.{}.down_proj.weight",
        &[N_FF_EXPERT, N_EMBD_EXPERT, N_EXPERT],
    ),
    experts(
        "ffn_up_exps.weight",
        "mixer.experts.{}.up_proj.weight",
        &[N_EMBD_EXPERT, N_FF_EXPERT, N_EXPERT],
    ),
    experts(
        "ffn_up_shexp.weight",
        "mixer.shared_experts.up_proj.weight",
        &[N_EMBD, N_FF_SHARED],
    ),
    experts(
        "ffn_down_shexp.weight",
        "mixer.shared_experts.down_proj.weight",
        &[N_FF_SHARED, N_EMBD],
    ),
];

/// The checkpoint has the head as two layers: the fusion with attention, then the experts.
const HEAD: MtpSpec = MtpSpec {
    tensors: &[
        nextn::head(
            nextn::EH_PROJ,
            "mtp.layers.0.eh_proj.weight",
            &[|h| 2 * h.n_embd, N_EMBD],
        ),
        nextn::head(nextn::ENORM, "mtp.layers.0.enorm.weight", &[N_EMBD]),
        nextn::head(nextn::HNORM, "mtp.layers.0.hnorm.weight", &[N_EMBD]),
        nextn::head(
            "post_attention_norm.weight",
            "mtp.layers.1.norm.weight",
            &[N_EMBD],
        ),
        nextn::head(
            nextn::SHARED_HEAD_NORM,
            "mtp.layers.1.final_layernorm.weight",
            &[N_EMBD],
        ),
    ],
    hf_experts: Some("mtp.layers.1."),
    centered_norm: true,
    ..MtpSpec::PLAIN
};

const SINGLE_PARTS: BlockSpec = BlockSpec {
    head_counts: true,
    single_part: true,
    ..BlockSpec::EQUAL
};

pub(super) const NEMOTRON_H: ArchSpec = ArchSpec {
    name: "nemotron_h",
    hf_classes: &["NemotronHForCausalLM"],
    tensors: &[ENDS, &[NORM], MAMBA, ATTENTION, NETWORK],
    blocks: SINGLE_PARTS,
    ..ArchSpec::PLAIN
};

pub(super) const NEMOTRON_H_MOE: ArchSpec = ArchSpec {
    name: "nemotron_h_moe",
    hf_classes: &["NemotronHForCausalLM"],
    tensors: &[ENDS, &[NORM], MAMBA, ATTENTION, LATENT_EXPERTS],
    mtp: Some(HEAD),
    routing: RoutingSpec {
        gating: Gating::Sigmoid,
        normalised: false,
    },
    blocks: SINGLE_PARTS,
    ..ArchSpec::PLAIN
};
