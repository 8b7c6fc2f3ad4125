//! Names of metadata keys. Those without a dot in front of the architecture's name are whole;
//! the others follow `{arch}.`.

use crate::gguf::{Metadata, Value};

/// Keys of an architecture whose arrays have one entry for each of `n_block` blocks.
pub fn per_layer(metadata: &Metadata, arch: &str, n_block: u32) -> Vec<String> {
    let prefix = format!("{arch}.");
    // An array of four, whatever the number of layers.
    let sections = format!("{arch}.{ROPE_DIMENSION_SECTIONS}");
    let is_per_layer = |key: &str, value: &Value| {
        key.starts_with(&prefix)
            && key != sections
            && value
                .as_array()
                .is_some_and(|array| array.len() == n_block as usize)
    };
    let entries = metadata.iter();
    entries
        .filter(|&(key, value)| is_per_layer(key, value))
        .map(|(key, _)| key.to_owned())
        .collect()
}

/// Architecture name; whole key.
pub const ARCHITECTURE: &str = "general.architecture";
/// The mix of types, as an id; whole key.
pub const FILE_TYPE: &str = "general.file_type";
/// Version of the quantized layouts; whole key.
pub const QUANTIZATION_VERSION: &str = "general.quantization_version";
/// Token texts; whole key.
pub const TOKENS: &str = "tokenizer.ggml.tokens";
/// Layout of an MTP head that upstream has none for; whole key.
pub const MTP_LAYOUT: &str = "specconv.mtp.layout";
/// Value of [`MTP_LAYOUT`]: the head's own output has some of the target's tokens, named by
/// [`nextn::D2T`](super::nextn::D2T).
pub const TRIMMED_VOCAB: &str = "trimmed-vocab";
/// Rows of that output, u32; whole key.
pub const DRAFT_VOCAB_SIZE: &str = "specconv.mtp.draft_vocab_size";

/// Blocks: trunk and MTP layers.
pub const BLOCK_COUNT: &str = "block_count";
/// MTP layers among the blocks.
pub const NEXTN_PREDICT_LAYERS: &str = "nextn_predict_layers";
/// Positions the model was trained for.
pub const CONTEXT_LENGTH: &str = "context_length";
/// Width of the residual stream.
pub const EMBEDDING_LENGTH: &str = "embedding_length";
/// Width of the feed-forward layer.
pub const FEED_FORWARD_LENGTH: &str = "feed_forward_length";
/// Tokens, where the file says so apart from the token list.
pub const VOCAB_SIZE: &str = "vocab_size";
/// Query heads.
pub const HEAD_COUNT: &str = "attention.head_count";
/// Key and value heads.
pub const HEAD_COUNT_KV: &str = "attention.head_count_kv";
/// Experts of a mixture.
pub const EXPERT_COUNT: &str = "expert_count";
/// Experts that each token uses.
pub const EXPERT_USED_COUNT: &str = "expert_used_count";
/// Width of an expert.
pub const EXPERT_FEED_FORWARD_LENGTH: &str = "expert_feed_forward_length";
/// Width of the expert that every token uses.
pub const EXPERT_SHARED_FEED_FORWARD_LENGTH: &str = "expert_shared_feed_forward_length";
/// Experts that every token uses, each as wide as the others.
pub const EXPERT_SHARED_COUNT: &str = "expert_shared_count";
/// Groups of experts.
pub const EXPERT_GROUP_COUNT: &str = "expert_group_count";
/// Groups that the experts of a token come from.
pub const EXPERT_GROUP_USED_COUNT: &str = "expert_group_used_count";
/// Layers without experts at the beginning of the trunk.
pub const LEADING_DENSE_BLOCK_COUNT: &str = "leading_dense_block_count";
/// How router outputs become weights, as a number.
pub const EXPERT_GATING_FUNC: &str = "expert_gating_func";
/// Whether the weights of a token's experts are scaled to a sum of one.
pub const EXPERT_WEIGHTS_NORM: &str = "expert_weights_norm";
/// Factor on the weights of a token's experts.
pub const EXPERT_WEIGHTS_SCALE: &str = "expert_weights_scale";
/// Elements of a query or key head.
pub const KEY_LENGTH: &str = "attention.key_length";
/// Elements of a value head.
pub const VALUE_LENGTH: &str = "attention.value_length";
/// Elements between the two projections of queries.
pub const Q_LORA_RANK: &str = "attention.q_lora_rank";
/// Elements of a compressed row, from which keys and values of all heads follow.
pub const KV_LORA_RANK: &str = "attention.kv_lora_rank";
/// Elements of a key head that follows from a compressed row.
pub const KEY_LENGTH_MLA: &str = "attention.key_length_mla";
/// Elements of a value head that follows from a compressed row.
pub const VALUE_LENGTH_MLA: &str = "attention.value_length_mla";
/// How queries grow with their position.
pub const TEMPERATURE_SCALE: &str = "attention.temperature_scale";
/// Epsilon of RMSNorm.
pub const RMS_EPSILON: &str = "attention.layer_norm_rms_epsilon";
/// Whether each block is recurrent.
pub const RECURRENT_LAYERS: &str = "attention.recurrent_layers";
/// Every how many layers one has full attention, in files without the per-layer array.
pub const FULL_ATTENTION_INTERVAL: &str = "full_attention_interval";
/// Elements of a head that are rotated.
pub const ROPE_DIMENSION_COUNT: &str = "rope.dimension_count";
/// Sections of multi-axis rotation.
pub const ROPE_DIMENSION_SECTIONS: &str = "rope.dimension_sections";
/// Base of the rotation's frequencies.
pub const ROPE_FREQ_BASE: &str = "rope.freq_base";
/// Base of the rotation's frequencies in layers with a window.
pub const ROPE_FREQ_BASE_SWA: &str = "rope.freq_base_swa";
/// Positions that a token sees in layers with a window.
pub const SLIDING_WINDOW: &str = "attention.sliding_window";
/// Which layers have a window: whether each block does, or every how many layers one has none.
pub const SLIDING_WINDOW_PATTERN: &str = "attention.sliding_window_pattern";
/// The largest logit: they are bent to stay below it.
pub const FINAL_LOGIT_SOFTCAPPING: &str = "final_logit_softcapping";
/// Kind of scaling of positions.
pub const ROPE_SCALING_TYPE: &str = "rope.scaling.type";
/// Factor of the scaling.
pub const ROPE_SCALING_FACTOR: &str = "rope.scaling.factor";
/// Positions before the scaling.
pub const ROPE_SCALING_ORIGINAL_CONTEXT: &str = "rope.scaling.original_context_length";
/// YaRN: how much of a fast pair's own frequency is kept.
pub const YARN_EXT_FACTOR: &str = "rope.scaling.yarn_ext_factor";
/// YaRN: factor on rotated elements.
pub const YARN_ATTN_FACTOR: &str = "rope.scaling.yarn_attn_factor";
/// YaRN: turns over the original context from which on a pair is fast.
pub const YARN_BETA_FAST: &str = "rope.scaling.yarn_beta_fast";
/// YaRN: turns over the original context down to which a pair is not slow.
pub const YARN_BETA_SLOW: &str = "rope.scaling.yarn_beta_slow";
/// YaRN as DeepSeek has it: a tenth of what multiplies the logarithm of the factor.
pub const YARN_LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
/// Taps of the recurrent layers' convolution.
pub const SSM_CONV_KERNEL: &str = "ssm.conv_kernel";
/// Elements of a recurrent head.
pub const SSM_STATE_SIZE: &str = "ssm.state_size";
/// Key heads of the recurrent layers.
pub const SSM_GROUP_COUNT: &str = "ssm.group_count";
/// Value heads of the recurrent layers.
pub const SSM_TIME_STEP_RANK: &str = "ssm.time_step_rank";
/// Elements of all value heads of the recurrent layers.
pub const SSM_INNER_SIZE: &str = "ssm.inner_size";
/// Layers of the target whose inputs an EAGLE-3 draft sees.
pub const TARGET_LAYERS: &str = "target_layers";
/// Width of the target's residual stream.
pub const TARGET_HIDDEN_SIZE: &str = "target_hidden_size";
/// Whether the draft's residual stream starts from the normalised features.
pub const NORM_BEFORE_RESIDUAL: &str = "norm_before_residual";
/// Whether the joined features are normalised before they are fused.
pub const NORM_BEFORE_FC: &str = "norm_before_fc";
