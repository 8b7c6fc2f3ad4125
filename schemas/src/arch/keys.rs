//! Names of metadata keys. Keys marked as "whole key" are complete; all others follow `{arch}.`.

use crate::gguf::{Metadata, Value};

/// Returns the architecture's keys whose arrays have one entry per block.
pub fn per_layer(metadata: &Metadata, arch: &str, n_block: u32) -> Vec<String> {
    let prefix = format!("{arch}.");
    // The lengths of these arrays do not depend on the number of layers.
    let has_own_length = |key: &str| key == ROPE_DIMENSION_SECTIONS || key.starts_with("ple.");
    let is_per_layer = |key: &str, value: &Value| {
        key.strip_prefix(&prefix)
            .is_some_and(|key| !has_own_length(key))
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

/// Name of the architecture; whole key.
pub const ARCHITECTURE: &str = "general.architecture";
/// File type, an id of a quantization mix; whole key.
pub const FILE_TYPE: &str = "general.file_type";
/// Version of the quantized block layouts; whole key.
pub const QUANTIZATION_VERSION: &str = "general.quantization_version";
/// Token texts; whole key.
pub const TOKENS: &str = "tokenizer.ggml.tokens";
/// Layout of an MTP head that llama.cpp does not know; whole key.
pub const MTP_LAYOUT: &str = "specconv.mtp.layout";
/// Value of [`MTP_LAYOUT`]: the head's own output has only some of the target's tokens, listed in
/// [`nextn::D2T`](super::nextn::D2T).
pub const TRIMMED_VOCAB: &str = "trimmed-vocab";
/// Number of rows of a trimmed output, u32; whole key.
pub const DRAFT_VOCAB_SIZE: &str = "specconv.mtp.draft_vocab_size";

/// Number of blocks: trunk and MTP layers.
pub const BLOCK_COUNT: &str = "block_count";
/// Number of MTP layers among the blocks.
pub const NEXTN_PREDICT_LAYERS: &str = "nextn_predict_layers";
/// Context length of training, in positions.
pub const CONTEXT_LENGTH: &str = "context_length";
/// Embedding width.
pub const EMBEDDING_LENGTH: &str = "embedding_length";
/// Width of dense feed-forward blocks.
pub const FEED_FORWARD_LENGTH: &str = "feed_forward_length";
/// Number of tokens, for files without a token list.
pub const VOCAB_SIZE: &str = "vocab_size";
/// Number of query heads.
pub const HEAD_COUNT: &str = "attention.head_count";
/// Number of key-value heads.
pub const HEAD_COUNT_KV: &str = "attention.head_count_kv";
/// Number of experts.
pub const EXPERT_COUNT: &str = "expert_count";
/// Number of experts per token.
pub const EXPERT_USED_COUNT: &str = "expert_used_count";
/// Width of an expert.
pub const EXPERT_FEED_FORWARD_LENGTH: &str = "expert_feed_forward_length";
/// Total width of the shared experts.
pub const EXPERT_SHARED_FEED_FORWARD_LENGTH: &str = "expert_shared_feed_forward_length";
/// Number of shared experts, each of the width of an expert.
pub const EXPERT_SHARED_COUNT: &str = "expert_shared_count";
/// Width of the input and output of routed experts, if it is not that of the embedding.
pub const MOE_LATENT_SIZE: &str = "moe_latent_size";
/// Number of groups of experts.
pub const EXPERT_GROUP_COUNT: &str = "expert_group_count";
/// Number of groups from which a token's experts are chosen.
pub const EXPERT_GROUP_USED_COUNT: &str = "expert_group_used_count";
/// Number of dense layers at the start of the trunk.
pub const LEADING_DENSE_BLOCK_COUNT: &str = "leading_dense_block_count";
/// Interval of layers with experts.
pub const MOE_EVERY_N_LAYERS: &str = "moe_every_n_layers";
/// Per-layer array: limit of the activations of routed experts; 0 for none.
pub const SWIGLU_CLAMP_EXP: &str = "swiglu_clamp_exp";
/// Per-layer array: limit of the activations of shared experts; 0 for none.
pub const SWIGLU_CLAMP_SHEXP: &str = "swiglu_clamp_shexp";
/// Gating function of the router, as a number.
pub const EXPERT_GATING_FUNC: &str = "expert_gating_func";
/// True if the weights of a token's experts are normalized to sum to one.
pub const EXPERT_WEIGHTS_NORM: &str = "expert_weights_norm";
/// Factor on the weights of a token's experts.
pub const EXPERT_WEIGHTS_SCALE: &str = "expert_weights_scale";
/// Elements of a query or key head.
pub const KEY_LENGTH: &str = "attention.key_length";
/// Elements of a value head.
pub const VALUE_LENGTH: &str = "attention.value_length";
/// Rank of the low-rank query projection.
pub const Q_LORA_RANK: &str = "attention.q_lora_rank";
/// MLA: width of the compressed part of a KV row.
pub const KV_LORA_RANK: &str = "attention.kv_lora_rank";
/// MLA: elements of an expanded key head.
pub const KEY_LENGTH_MLA: &str = "attention.key_length_mla";
/// MLA: elements of an expanded value head.
pub const VALUE_LENGTH_MLA: &str = "attention.value_length_mla";
/// Scale of queries that grows with their position.
pub const TEMPERATURE_SCALE: &str = "attention.temperature_scale";
/// Factor on the output of attention.
pub const VALUE_SCALE: &str = "attention.value_scale";
/// False if the context was not extended by scaled positions.
pub const ROPE_SCALING_FINETUNED: &str = "rope.scaling.finetuned";
/// Epsilon of LayerNorm.
pub const LAYER_NORM_EPSILON: &str = "attention.layer_norm_epsilon";
/// Epsilon of RMSNorm.
pub const RMS_EPSILON: &str = "attention.layer_norm_rms_epsilon";
/// Per-layer array: true if a block is recurrent.
pub const RECURRENT_LAYERS: &str = "attention.recurrent_layers";
/// Interval of layers with full attention, in files without the per-layer array.
pub const FULL_ATTENTION_INTERVAL: &str = "full_attention_interval";
/// Per-layer array of trunk layers: true if a layer selects the positions that it attends to.
pub const INDEXER_TYPES: &str = "attention.indexer.types";
/// Number of heads that choose positions.
pub const INDEXER_HEAD_COUNT: &str = "attention.indexer.head_count";
/// Elements of a head that chooses positions.
pub const INDEXER_KEY_LENGTH: &str = "attention.indexer.key_length";
/// Number of positions that are chosen.
pub const INDEXER_TOP_K: &str = "attention.indexer.top_k";
/// Number of groups of heads, each with its own first output projection.
pub const OUTPUT_GROUP_COUNT: &str = "attention.output_group_count";
/// Rank of the low-rank output projection of a group of heads.
pub const OUTPUT_LORA_RANK: &str = "attention.output_lora_rank";
/// Array: number of positions that a block compresses to one; 0 for none. It may have more entries than blocks.
pub const COMPRESS_RATIOS: &str = "attention.compress_ratios";
/// Base of RoPE frequencies in layers with compressed positions.
pub const COMPRESS_ROPE_FREQ_BASE: &str = "attention.compress_rope_freq_base";
/// Number of first layers that choose experts by a table of tokens.
pub const HASH_LAYER_COUNT: &str = "hash_layer_count";
/// Number of streams of hyper-connections.
pub const HYPER_CONNECTION_COUNT: &str = "hyper_connection.count";
/// Number of normalizations of the matrix that mixes the streams.
pub const HYPER_CONNECTION_ITERATIONS: &str = "hyper_connection.sinkhorn_iterations";
/// Epsilon of that normalization.
pub const HYPER_CONNECTION_EPSILON: &str = "hyper_connection.epsilon";
/// Width of the hidden states of the target that a head or an assistant reads, if it is not the embedding
/// width.
pub const EMBEDDING_LENGTH_OUT: &str = "embedding_length_out";
/// Elements of a head with RoPE.
pub const ROPE_DIMENSION_COUNT: &str = "rope.dimension_count";
/// Sections of multi-axis RoPE.
pub const ROPE_DIMENSION_SECTIONS: &str = "rope.dimension_sections";
/// Base of RoPE frequencies.
pub const ROPE_FREQ_BASE: &str = "rope.freq_base";
/// Base of RoPE frequencies in layers with a sliding window.
pub const ROPE_FREQ_BASE_SWA: &str = "rope.freq_base_swa";
/// Size of the sliding window, in positions.
pub const SLIDING_WINDOW: &str = "attention.sliding_window";
/// Layers with a sliding window: one boolean per block, or the interval of layers without one.
pub const SLIDING_WINDOW_PATTERN: &str = "attention.sliding_window_pattern";
/// Soft cap of logits: `cap * tanh(logit / cap)`.
pub const FINAL_LOGIT_SOFTCAPPING: &str = "final_logit_softcapping";
/// Elements of a query or key head of layers with a sliding window.
pub const KEY_LENGTH_SWA: &str = "attention.key_length_swa";
/// Elements of a value head of layers with a sliding window.
pub const VALUE_LENGTH_SWA: &str = "attention.value_length_swa";
/// Elements of a head with RoPE in layers with a sliding window.
pub const ROPE_DIMENSION_COUNT_SWA: &str = "rope.dimension_count_swa";
/// Number of last layers that attend to the keys and values of earlier ones.
pub const SHARED_KV_LAYERS: &str = "attention.shared_kv_layers";
/// Width of a token's embedding for each layer.
pub const EMBEDDING_LENGTH_PER_LAYER: &str = "embedding_length_per_layer_input";
/// Number of clusters of an assistant's tokens.
pub const CENTROID_COUNT: &str = "centroid_count";
/// Number of clusters whose tokens get logits.
pub const CENTROID_USED_COUNT: &str = "centroid_used_count";
/// Type of RoPE scaling.
pub const ROPE_SCALING_TYPE: &str = "rope.scaling.type";
/// Factor of RoPE scaling.
pub const ROPE_SCALING_FACTOR: &str = "rope.scaling.factor";
/// Context length before RoPE scaling, in positions.
pub const ROPE_SCALING_ORIGINAL_CONTEXT: &str = "rope.scaling.original_context_length";
/// YaRN: weight of the unscaled frequency for fast pairs.
pub const YARN_EXT_FACTOR: &str = "rope.scaling.yarn_ext_factor";
/// YaRN: factor on elements with RoPE.
pub const YARN_ATTN_FACTOR: &str = "rope.scaling.yarn_attn_factor";
/// YaRN: pairs with at least this many rotations over the original context are fast.
pub const YARN_BETA_FAST: &str = "rope.scaling.yarn_beta_fast";
/// YaRN: pairs with at most this many rotations over the original context are slow.
pub const YARN_BETA_SLOW: &str = "rope.scaling.yarn_beta_slow";
/// YaRN for DeepSeek: a tenth of the factor on the logarithm of the scaling factor.
pub const YARN_LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
/// Kernel size of the recurrent layers' convolution.
pub const SSM_CONV_KERNEL: &str = "ssm.conv_kernel";
/// Elements of a recurrent head.
pub const SSM_STATE_SIZE: &str = "ssm.state_size";
/// Number of key heads of the recurrent layers.
pub const SSM_GROUP_COUNT: &str = "ssm.group_count";
/// Number of value heads of the recurrent layers.
pub const SSM_TIME_STEP_RANK: &str = "ssm.time_step_rank";
/// Width of all value heads of the recurrent layers.
pub const SSM_INNER_SIZE: &str = "ssm.inner_size";
/// Target layers whose inputs an EAGLE-3 draft reads.
pub const TARGET_LAYERS: &str = "target_layers";
/// Width of the target's hidden states.
pub const TARGET_HIDDEN_SIZE: &str = "target_hidden_size";
/// Number of tokens of a block draft's pass.
pub const BLOCK_SIZE: &str = "block_size";
/// True if the tokens of a block attend only to those before them.
pub const CAUSAL: &str = "attention.causal";
/// Kernel size of a block draft's convolutions.
pub const CONV_KERNEL_SIZE: &str = "conv_kernel_size";
/// Channels of a block draft's convolutions that share weights.
pub const CONV_GROUP_SIZE: &str = "conv_group_size";
/// Rank of a block draft's selector of candidates.
pub const SELECTOR_RANK: &str = "selector_rank";
/// Number of candidates for each token of a block.
pub const SELECTOR_TOP_K: &str = "selector_top_k";
/// Factor on logits.
pub const LOGIT_SCALE: &str = "logit_scale";
/// Factor on embeddings.
pub const EMBEDDING_SCALE: &str = "embedding_scale";
/// True if the first row of a block proposes the first token of the draft; false if the second.
pub const SAMPLE_FROM_ANCHOR: &str = "sample_from_anchor";
/// True if a block draft states its confidence in each token.
pub const HAS_CONFIDENCE_HEAD: &str = "has_confidence_head";
/// Token that stands for a position to be predicted; whole key.
pub const MASK_TOKEN_ID: &str = "tokenizer.ggml.mask_token_id";
/// True if the draft's residual stream starts from the normalized features.
pub const NORM_BEFORE_RESIDUAL: &str = "norm_before_residual";
/// True if the concatenated features are normalized before `fc`.
pub const NORM_BEFORE_FC: &str = "norm_before_fc";
