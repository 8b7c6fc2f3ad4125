//! DeepSeek V4: hyper-connections of several residual streams, attention with one key-value head over a window and compressed
//! positions, experts in every layer. The MTP head is written only as a sidecar.

use super::dflash::{CONFIDENCE, CONFIDENCE_IN, MARKOV_RANK, MARKOV_W1, MARKOV_W2, N_FEATURE};
use super::eagle3::{ENC_OUTPUT_NORM, FC};
use super::hparams::{Gating, HparamsError, Reader};
use super::nextn::{EH_PROJ, ENORM, HNORM, SHARED_HEAD_NORM, head};
use super::shared_tensors::*;
use super::spec::{
    ArchSpec, BlockSpec, Dim, MtpSpec, Need, Numbering, RoutingSpec, Scope, TensorSpec, Transform,
};
use super::window::WindowSpec;
use super::{ROUTER, keys};

/// Sizes of blocks with compressed positions and hyper-connections; zeros for other architectures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compressed {
    /// `attention.q_lora_rank`: rank of the low-rank query projection.
    pub n_lora_q: u64,
    /// `attention.output_group_count`: groups of heads, each with its own first output projection.
    pub n_group: u64,
    /// `attention.output_lora_rank`: rows of a group's first output projection.
    pub n_lora_out: u64,
    /// `attention.indexer.head_count`: heads that choose compressed positions.
    pub n_head_indexer: u64,
    /// `attention.indexer.key_length`: elements of such a head.
    pub indexer_dim: u64,
    /// `attention.indexer.top_k`: maximum number of compressed positions that a token attends to in blocks that choose
    /// them.
    pub n_chosen: u64,
    /// `attention.compress_rope_freq_base`: base of RoPE frequencies in blocks with compressed positions.
    pub rope_freq_base: f32,
    /// `hyper_connection.epsilon`.
    pub eps: f32,
    /// `hyper_connection.sinkhorn_iterations`: normalisations of the weights between streams.
    pub n_iteration: u64,
    /// `swiglu_clamp_exp` and `swiglu_clamp_shexp` of each block: limits of the activations of experts, and of the
    /// shared expert; 0 for no limit.
    pub limits: Vec<[f32; 2]>,
    /// `hyper_connection.count`: residual streams.
    pub n_stream: u64,
    /// `hash_layer_count`: first blocks, which choose experts by a table of tokens.
    pub n_hash_layer: u64,
    /// `attention.compress_ratios`: for each block, the positions that are compressed to one; 0 if the block
    /// attends to its window only.
    pub ratios: Vec<u64>,
    /// Ratio of one block; see [`Hparams::of_block`](super::Hparams::of_block).
    pub ratio: u64,
    /// Limits of one block.
    pub limit: [f32; 2],
    /// True for one block that chooses experts by the table.
    pub is_hashed: bool,
}

/// Ratios with an implementation in any reader.
const RATIOS: [u64; 3] = [0, WITH_INDEXER, 128];
/// Ratio of blocks that choose compressed positions, which overlap.
const WITH_INDEXER: u64 = 4;
/// Maximum number of streams.
const MAX_STREAMS: u64 = 16;
/// Base of RoPE frequencies without a key.
const DEFAULT_BASE: f32 = 10_000.0;
/// Maximum number of groups of heads and heads of the indexer.
const MAX_COUNT: u64 = 1 << 16;

impl Compressed {
    /// Reads the sizes of a file.
    pub(super) fn read(
        read: &Reader<'_>,
        n_head: u64,
        n_block: u32,
    ) -> Result<Compressed, HparamsError> {
        let key = read.key(keys::COMPRESS_RATIOS);
        let ratios = read.metadata.u32s(&key)?.unwrap_or_default();
        let ratios: Vec<u64> = ratios.into_iter().map(u64::from).collect();
        if ratios.len() < n_block as usize {
            return Err(HparamsError::PerLayer {
                key,
                found: ratios.len(),
                expected: n_block,
            });
        }
        if let Some(&found) = ratios.iter().find(|ratio| !RATIOS.contains(ratio)) {
            return Err(read.range(keys::COMPRESS_RATIOS, found, "0, 4 or 128".to_owned()));
        }
        let n_group = read.within(keys::OUTPUT_GROUP_COUNT, 1, MAX_COUNT)?;
        if !n_head.is_multiple_of(n_group) {
            let expected = format!("a divisor of the {n_head} heads");
            return Err(read.range(keys::OUTPUT_GROUP_COUNT, n_group, expected));
        }
        let limits = limits(read, n_block)?;
        let eps_key = read.key(keys::HYPER_CONNECTION_EPSILON);
        let base = keys::COMPRESS_ROPE_FREQ_BASE;
        Ok(Compressed {
            n_chosen: read.dim(keys::INDEXER_TOP_K)?,
            rope_freq_base: read.positive(base)?.unwrap_or(DEFAULT_BASE),
            eps: read.metadata.need_f32(&eps_key)?,
            n_iteration: read.within(keys::HYPER_CONNECTION_ITERATIONS, 1, MAX_COUNT)?,
            limits,
            limit: [0.0; 2],
            n_lora_q: read.dim(keys::Q_LORA_RANK)?,
            n_group,
            n_lora_out: read.dim(keys::OUTPUT_LORA_RANK)?,
            n_head_indexer: read.within(keys::INDEXER_HEAD_COUNT, 1, MAX_COUNT)?,
            indexer_dim: read.dim(keys::INDEXER_KEY_LENGTH)?,
            n_stream: read.within(keys::HYPER_CONNECTION_COUNT, 1, MAX_STREAMS)?,
            n_hash_layer: read.within(keys::HASH_LAYER_COUNT, 0, u64::from(n_block))?,
            ratios,
            ratio: 0,
            is_hashed: false,
        })
    }

    /// Sets the values of one block.
    pub(super) fn select(&mut self, block: u32) {
        self.ratio = self.ratios.get(block as usize).copied().unwrap_or(0);
        self.limit = self.limits.get(block as usize).copied().unwrap_or([0.0; 2]);
        self.is_hashed = u64::from(block) < self.n_hash_layer;
    }

    /// True if compressed positions of a block with this ratio overlap, and are chosen.
    pub fn has_indexer(ratio: u64) -> bool {
        ratio == WITH_INDEXER
    }

    /// Returns the rows of a compressor of heads of this width; 0 in a block without one.
    fn rows(&self, width: u64) -> u64 {
        match self.ratio {
            0 => 0,
            // Neighbouring compressed positions overlap.
            WITH_INDEXER => 2 * width,
            _ => width,
        }
    }

    /// Returns `n` in blocks with an indexer, else 0.
    fn indexed(&self, n: u64) -> u64 {
        match self.ratio {
            WITH_INDEXER => n,
            _ => 0,
        }
    }
}

/// Reads the limits of the activations of experts and shared experts of each block; 0 for no limit.
fn limits(reader: &Reader<'_>, n_block: u32) -> Result<Vec<[f32; 2]>, HparamsError> {
    let read = |suffix: &str| -> Result<Option<Vec<f32>>, HparamsError> {
        let key = reader.key(suffix);
        let Some(limits) = reader.metadata.f32s(&key)? else {
            return Ok(None);
        };
        if let Some(&found) = limits.iter().find(|limit| limit.is_nan() || **limit < 0.0) {
            return Err(HparamsError::NotPositive { key, found });
        }
        match limits.len() >= n_block as usize {
            true => Ok(Some(limits.to_vec())),
            false => Err(HparamsError::PerLayer {
                key,
                found: limits.len(),
                expected: n_block,
            }),
        }
    };
    let none = || vec![0.0; n_block as usize];
    let experts = read(keys::SWIGLU_CLAMP_EXP)?.unwrap_or_else(none);
    let shared = read(keys::SWIGLU_CLAMP_SHEXP)?.unwrap_or_else(|| experts.clone());
    Ok(experts
        .into_iter()
        .zip(shared)
        .map(<[f32; 2]>::from)
        .collect())
}

const N_LORA_Q: Dim = |h| h.compressed.n_lora_q;
const OUTPUT_ROWS: Dim = |h| h.compressed.n_group * h.compressed.n_lora_out;
const GROUP_WIDTH: Dim = |h| h.n_head * h.head_dim / h.compressed.n_group.max(1);
const N_STREAM: Dim = |h| h.compressed.n_stream;
const STREAMS_WIDTH: Dim = |h| h.compressed.n_stream * h.n_embd;
/// Weights from and to each stream, and between all pairs.
const MIX_ROWS: Dim = |h| (2 + h.compressed.n_stream) * h.compressed.n_stream;
const ONE: Dim = |_| 1;
const THREE: Dim = |_| 3;

const RATIO: Dim = |h| h.compressed.ratio;
const COMPRESSED_ROWS: Dim = |h| h.compressed.rows(h.head_dim);
const COMPRESSED_WIDTH: Dim = |h| {
    if h.compressed.ratio == 0 {
        0
    } else {
        h.head_dim
    }
};
const INDEXER_HEADS: Dim = |h| h.compressed.indexed(h.compressed.n_head_indexer);
const INDEXER_ROWS: Dim = |h| {
    h.compressed
        .indexed(h.compressed.n_head_indexer * h.compressed.indexer_dim)
};
const INDEXER_WIDTH: Dim = |h| h.compressed.indexed(h.compressed.indexer_dim);
const INDEXER_COMPRESSED_ROWS: Dim = |h| h.compressed.indexed(2 * h.compressed.indexer_dim);

const HASHED_EXPERTS: Dim = |h| {
    if h.compressed.is_hashed {
        h.experts.n_used
    } else {
        0
    }
};
const CHOSEN_EXPERTS: Dim = |h| {
    if h.compressed.is_hashed {
        0
    } else {
        h.experts.n_expert
    }
};

/// GGUF names of the mixer of the streams before the output. A sidecar has that of its head in the place of the trunk's.
const MIXER: &[&str] = &[
    "output_hc_fn.weight",
    "output_hc_base.weight",
    "output_hc_scale.weight",
];

const MIXER_FN: TensorSpec = TensorSpec::new(
    Scope::Model,
    MIXER[0],
    "hc_head_fn",
    &[STREAMS_WIDTH, N_STREAM],
);
const MIXER_BASE: TensorSpec = TensorSpec::new(Scope::Model, MIXER[1], "hc_head_base", &[N_STREAM]);
const MIXER_SCALE: TensorSpec = TensorSpec::new(Scope::Model, MIXER[2], "hc_head_scale", &[ONE]);

const ENDS: &[TensorSpec] = &[
    TOKEN_EMBD,
    OUTPUT_NORM,
    // Readers do not fall back to the embedding.
    TensorSpec {
        need: Need::Required,
        ..OUTPUT
    },
    MIXER_FN,
    MIXER_BASE,
    MIXER_SCALE,
];

const ATTENTION: &[TensorSpec] = &[
    layer_norm("attn_norm.weight", "attn_norm.weight"),
    attention("attn_sinks.weight", "attn.attn_sink", &[N_HEAD]),
    attention("attn_q_a.weight", "attn.wq_a.weight", &[N_EMBD, N_LORA_Q]),
    attention("attn_q_a_norm.weight", "attn.q_norm.weight", &[N_LORA_Q]),
    attention("attn_q_b.weight", "attn.wq_b.weight", &[N_LORA_Q, Q_ROWS]),
    attention("attn_kv.weight", "attn.wkv.weight", &[N_EMBD, HEAD_DIM]),
    attention("attn_kv_a_norm.weight", "attn.kv_norm.weight", &[HEAD_DIM]),
    attention(
        "attn_output_a.weight",
        "attn.wo_a.weight",
        &[GROUP_WIDTH, OUTPUT_ROWS],
    ),
    attention(
        "attn_output_b.weight",
        "attn.wo_b.weight",
        &[OUTPUT_ROWS, N_EMBD],
    ),
];

const CONNECTIONS: &[TensorSpec] = &[
    connection(
        "hc_attn_fn.weight",
        "hc_attn_fn",
        &[STREAMS_WIDTH, MIX_ROWS],
    ),
    connection("hc_attn_base.weight", "hc_attn_base", &[MIX_ROWS]),
    connection("hc_attn_scale.weight", "hc_attn_scale", &[THREE]),
    connection("hc_ffn_fn.weight", "hc_ffn_fn", &[STREAMS_WIDTH, MIX_ROWS]),
    connection("hc_ffn_base.weight", "hc_ffn_base", &[MIX_ROWS]),
    connection("hc_ffn_scale.weight", "hc_ffn_scale", &[THREE]),
];

const COMPRESSION: &[TensorSpec] = &[
    attention(
        "attn_compressor_kv.weight",
        "attn.compressor.wkv.weight",
        &[N_EMBD, COMPRESSED_ROWS],
    ),
    attention(
        "attn_compressor_gate.weight",
        "attn.compressor.wgate.weight",
        &[N_EMBD, COMPRESSED_ROWS],
    ),
    attention(
        "attn_compressor_ape.weight",
        "attn.compressor.ape",
        &[COMPRESSED_ROWS, RATIO],
    ),
    attention(
        "attn_compressor_norm.weight",
        "attn.compressor.norm.weight",
        &[COMPRESSED_WIDTH],
    ),
    attention(
        "indexer.proj.weight",
        "attn.indexer.weights_proj.weight",
        &[N_EMBD, INDEXER_HEADS],
    ),
    attention(
        "indexer.attn_q_b.weight",
        "attn.indexer.wq_b.weight",
        &[N_LORA_Q, INDEXER_ROWS],
    ),
    attention(
        "indexer_compressor_kv.weight",
        "attn.indexer.compressor.wkv.weight",
        &[N_EMBD, INDEXER_COMPRESSED_ROWS],
    ),
    attention(
        "indexer_compressor_gate.weight",
        "attn.indexer.compressor.wgate.weight",
        &[N_EMBD, INDEXER_COMPRESSED_ROWS],
    ),
    attention(
        "indexer_compressor_ape.weight",
        "attn.indexer.compressor.ape",
        &[INDEXER_COMPRESSED_ROWS, RATIO],
    ),
    attention(
        "indexer_compressor_norm.weight",
        "attn.indexer.compressor.norm.weight",
        &[INDEXER_WIDTH],
    ),
];

/// The draft's tensors outside of its layers; a layer of the checkpoint has them.
const DRAFT_ENDS: &[TensorSpec] = &[
    TensorSpec::new(Scope::Model, FC, "main_proj.weight", &[N_FEATURE, N_EMBD]),
    TensorSpec::new(Scope::Model, ENC_OUTPUT_NORM, "main_norm.weight", &[N_EMBD]),
    TensorSpec {
        hf: "norm.weight",
        ..OUTPUT_NORM
    },
    MIXER_FN,
    MIXER_BASE,
    MIXER_SCALE,
    TensorSpec::new(
        Scope::Model,
        MARKOV_W1,
        "markov_head.markov_w1.weight",
        &[MARKOV_RANK, N_VOCAB],
    ),
    TensorSpec::new(
        Scope::Model,
        MARKOV_W2,
        "markov_head.markov_w2.weight",
        &[MARKOV_RANK, N_VOCAB],
    ),
    TensorSpec::new(
        Scope::Model,
        CONFIDENCE,
        "confidence_head.proj.weight",
        &[CONFIDENCE_IN, ONE],
    )
    .optional(),
];

/// GGUF name of the table that has the experts of each token.
pub const TOKEN_EXPERTS: &str = "ffn_gate_tid2eid.weight";

const FEED_FORWARD: &[TensorSpec] = &[
    layer_norm("ffn_norm.weight", "ffn_norm.weight"),
    experts(ROUTER, "ffn.gate.weight", &[N_EMBD, N_EXPERT]),
    experts(
        TOKEN_EXPERTS,
        "ffn.gate.tid2eid",
        &[HASHED_EXPERTS, N_VOCAB],
    )
    .with(&[Transform::Indices { below: N_EXPERT }]),
    experts("exp_probs_b.bias", "ffn.gate.bias", &[CHOSEN_EXPERTS]),
    // The bias for tokens of images.
    experts("exp_probs_b_vl.bias", "ffn.gate.bias_vl", &[N_EXPERT]).optional(),
    experts(
        "ffn_gate_exps.weight",
        "ffn.experts.{}.w1.weight",
        &[N_EMBD, N_FF_EXPERT, N_EXPERT],
    ),
    experts(
        "ffn_down_exps.weight",
        "ffn.experts.{}.w2.weight",
        &[N_FF_EXPERT, N_EMBD, N_EXPERT],
    ),
    experts(
        "ffn_up_exps.weight",
        "ffn.experts.{}.w3.weight",
        &[N_EMBD, N_FF_EXPERT, N_EXPERT],
    ),
    experts(
        "ffn_gate_shexp.weight",
        "ffn.shared_experts.w1.weight",
        &[N_EMBD, N_FF_SHARED],
    ),
    experts(
        "ffn_down_shexp.weight",
        "ffn.shared_experts.w2.weight",
        &[N_FF_SHARED, N_EMBD],
    ),
    experts(
        "ffn_up_shexp.weight",
        "ffn.shared_experts.w3.weight",
        &[N_EMBD, N_FF_SHARED],
    ),
];

/// A tensor of hyper-connections.
const fn connection(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorSpec {
    TensorSpec::new(Scope::Layer, gguf, hf, shape)
}

/// The head attends to its window only, and chooses experts by their scores.
const HEAD: MtpSpec = MtpSpec {
    hf_layer: "mtp.{}.",
    numbering: Numbering::Zero,
    tensors: &[
        head(EH_PROJ, "e_proj.weight", &[|h| 2 * h.n_embd, N_EMBD]).beside("h_proj.weight"),
        head(ENORM, "enorm.weight", &[N_EMBD]),
        head(HNORM, "hnorm.weight", &[N_EMBD]),
        head(SHARED_HEAD_NORM, "norm.weight", &[N_EMBD]).optional(),
    ],
    absent: &[
        "attn_compressor_kv.weight",
        "attn_compressor_gate.weight",
        "attn_compressor_ape.weight",
        "attn_compressor_norm.weight",
        "indexer.proj.weight",
        "indexer.attn_q_b.weight",
        "indexer_compressor_kv.weight",
        "indexer_compressor_gate.weight",
        "indexer_compressor_ape.weight",
        "indexer_compressor_norm.weight",
        TOKEN_EXPERTS,
    ],
    own_ends: MIXER,
    ..MtpSpec::PLAIN
};

pub(super) const DEEPSEEK4: ArchSpec = ArchSpec {
    name: "deepseek4",
    hf_classes: &["DeepseekV4ForCausalLM"],
    tensors: &[ENDS, ATTENTION, CONNECTIONS, COMPRESSION, FEED_FORWARD],
    mtp: Some(HEAD),
    routing: RoutingSpec {
        gating: Gating::SqrtSoftplus,
        normalised: false,
    },
    window: Some(WindowSpec {
        period: 0,
        rope_freq_base: None,
        heads: true,
    }),
    hidden_before_norm: true,
    blocks: BlockSpec {
        compressed: true,
        ..BlockSpec::EQUAL
    },
    ..ArchSpec::PLAIN
};

/// DSpark drafts, which checkpoints have under the names of MTP heads. All layers attend to their window only.
pub(super) const DSPARK: ArchSpec = ArchSpec {
    name: "dflash",
    hf_classes: &[],
    hf_layer: "mtp.{}.",
    tensors: &[DRAFT_ENDS, ATTENTION, CONNECTIONS, FEED_FORWARD],
    mtp: None,
    ..DEEPSEEK4
};
