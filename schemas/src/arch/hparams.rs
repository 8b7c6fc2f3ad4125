//! [`Hparams`]: hyperparameters of a model, read from GGUF metadata and validated.

use crate::gguf::{KeyError, Metadata, Plan};
use crate::vocab::D2T;

use super::assistant::Assistant;
use super::deepseek4::Compressed;
use super::dflash::MARKOV_W1;
use super::features::Features;
use super::keys;
use super::mla::Mla;
use super::rope::RopeScaling;
use super::shared_tensors::ROUTER;
use super::spec::{ArchSpec, LayerKind, Scope};
use super::window::Window;

/// Hyperparameters of a model. Field names are those of llama.cpp; each states its key.
#[derive(Clone, Debug)]
pub struct Hparams {
    /// `general.architecture`.
    pub arch: &'static ArchSpec,
    /// Number of trunk layers: `block_count - nextn_predict_layers`.
    pub n_layer: u32,
    /// Kind of each block, trunk first, then MTP layers; `block_count` entries.
    pub layers: Vec<LayerKind>,
    /// `context_length`: context length of training, in positions.
    pub n_ctx_train: u64,
    /// `embedding_length`: embedding width.
    pub n_embd: u64,
    /// Number of tokens: rows of the embedding, or `vocab_size`.
    pub n_vocab: u64,
    /// Number of tokens in a draft's own output: the length of its `d2t`, those of the clusters that get
    /// logits, else `n_vocab`.
    pub n_vocab_draft: u64,
    /// `embedding_length_per_layer_input`: width of a token's embedding for each layer; 0 if there is none.
    pub n_embd_per_layer: u64,
    /// `feed_forward_length`; if it differs by block, the largest; 0 if no layer is dense.
    pub n_ff: u64,
    /// `feed_forward_length` of each block.
    pub block_ff: Vec<u64>,
    /// Mixture of experts; zeros if there is none.
    pub experts: Experts,
    /// `attention.head_count`; if it differs by block, the largest.
    pub n_head: u64,
    /// `attention.head_count_kv`; if it differs by block, the largest.
    pub n_head_kv: u64,
    /// Number of heads of each block.
    pub block_heads: Vec<BlockHeads>,
    /// For each block, the block whose keys and values it attends to: itself, or for the last
    /// `attention.shared_kv_layers` blocks an earlier one of the same kind.
    pub kv_blocks: Vec<u32>,
    /// True for a block that attends to the keys and values of another; see [`Hparams::of_block`].
    pub shares_kv: bool,
    /// `swiglu_clamp_exp`, `swiglu_clamp_shexp`: key and largest entry, if one is not 0.
    pub activation_limit: Option<(&'static str, f32)>,
    /// For each block, true if its feed-forward block is a mixture of experts.
    pub expert_blocks: Vec<bool>,
    /// `attention.key_length`: elements of a query or key head; with MLA, of a compressed KV row.
    pub head_dim: u64,
    /// `attention.value_length`: elements of a value head; with MLA, of a compressed KV row.
    pub value_dim: u64,
    /// `attention.value_scale`: factor on the output of attention.
    pub value_scale: Option<f32>,
    /// `rope.dimension_count`: elements of a head with RoPE.
    pub n_rot: u64,
    /// `rope.freq_base`.
    pub rope_freq_base: f32,
    /// `rope.dimension_sections`: numbers of rotated pairs for the time, the height and the width of an
    /// image's positions; `None` if positions have one coordinate.
    pub rope_sections: Option<[u64; 3]>,
    /// `rope.scaling.*`.
    pub rope_scaling: RopeScaling,
    /// `attention.layer_norm_rms_epsilon`, else `attention.layer_norm_epsilon`.
    pub rms_eps: f32,
    /// `attention.layer_norm_epsilon`, else `attention.layer_norm_rms_epsilon`.
    pub layer_norm_eps: f32,
    /// Sliding window; `None` if no layer has one.
    pub window: Option<Window>,
    /// `final_logit_softcapping`: logits become `cap * tanh(logit / cap)`.
    pub logit_softcap: Option<f32>,
    /// Multi-head latent attention; zeros for other architectures.
    pub mla: Mla,
    /// Compressed positions and hyper-connections; zeros for other architectures.
    pub compressed: Compressed,
    /// Gated delta net; zeros for architectures without recurrent layers.
    pub ssm: Ssm,
    /// Hidden states of the target that a draft reads; `None` for architectures that are not
    /// drafts.
    pub features: Option<Features>,
    /// Keys and values of the target that a draft attends to; `None` for other models.
    pub assistant: Option<Assistant>,
}

/// Number of heads of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeads {
    /// Query heads.
    pub n_head: u64,
    /// Key-value heads.
    pub n_head_kv: u64,
}

/// Mixture of experts and its routing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// `expert_count`; 0 in a dense model.
    pub n_expert: u64,
    /// `expert_used_count`: experts per token.
    pub n_used: u64,
    /// `expert_feed_forward_length`: width of an expert.
    pub n_ff: u64,
    /// `expert_shared_feed_forward_length`, or `expert_shared_count` times the width of an expert:
    /// the total width of the shared experts; 0 if there are none.
    pub n_ff_shared: u64,
    /// `leading_dense_block_count`: number of dense blocks before those with experts.
    pub n_dense: u64,
    /// `expert_group_count`: number of groups of consecutive experts; 0 and 1 mean no groups.
    pub n_group: u64,
    /// `expert_group_used_count`: number of groups from which a token's experts are chosen.
    pub n_group_used: u64,
    /// `moe_latent_size`: width of the input and output of the routed experts, if it is not that of the
    /// embedding; 0 if it is.
    pub n_latent: u64,
    /// `expert_gating_func`.
    pub gating: Gating,
    /// `expert_weights_norm`: true if the weights of a token's experts are normalized to sum to
    /// one.
    pub normalised: bool,
    /// `expert_weights_scale`.
    pub scale: f32,
}

/// Gating function of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each expert.
    Sigmoid,
    /// Square root of the softplus of each expert.
    SqrtSoftplus,
}

/// Shape of recurrent layers: gated delta nets, or Mamba-2 layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ssm {
    /// `ssm.conv_kernel`: taps of the convolution.
    pub conv_kernel: u64,
    /// `ssm.state_size`: elements of a key head; in a delta net also of a value head.
    pub state_size: u64,
    /// `ssm.group_count`: key heads.
    pub group_count: u64,
    /// `ssm.time_step_rank`: value heads.
    pub time_step_rank: u64,
    /// `ssm.inner_size`: elements of all value heads.
    pub inner_size: u64,
}

impl Ssm {
    /// Returns the width of all key heads.
    pub fn key_dim(&self) -> u64 {
        self.group_count * self.state_size
    }

    /// Returns the number of convolution channels: queries, keys, values.
    pub fn n_channel(&self) -> u64 {
        2 * self.key_dim() + self.inner_size
    }
}

/// Error of metadata that is not valid for a model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HparamsError {
    /// A key is missing or mistyped.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// The architecture is not in the table.
    #[error(
        "architecture {found:?} is not supported (supported: {})",
        super::names()
    )]
    UnknownArch {
        /// `general.architecture`.
        found: String,
    },
    /// The architecture has no forward pass here.
    #[error(
        "architecture {found:?} is converted, but not run (run: {})",
        super::names()
    )]
    OnlyConverted {
        /// `general.architecture`.
        found: String,
    },
    /// A number is out of range.
    #[error("key {key}: {found}, expected {expected}")]
    Range {
        /// The key.
        key: String,
        /// The number.
        found: u64,
        /// The allowed range.
        expected: String,
    },
    /// A number that must be positive is not.
    #[error("key {key}: {found}, expected a positive number")]
    NotPositive {
        /// The key.
        key: String,
        /// The number.
        found: f32,
    },
    /// A key requires a computation that no forward pass here implements.
    #[error("key {key}: {found} is not supported")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        found: f32,
    },
    /// A per-layer array does not have one entry per block.
    #[error("key {key}: {found} entries, expected {expected}, one for each block")]
    PerLayer {
        /// The key.
        key: String,
        /// Its length.
        found: usize,
        /// `block_count`.
        expected: u32,
    },
    /// An array has the wrong length.
    #[error("key {key}: {found} entries, expected {expected}")]
    Count {
        /// The key.
        key: String,
        /// Its length.
        found: usize,
        /// Expected length.
        expected: usize,
    },
    /// A trimmed output has no tokens, or more than the vocabulary.
    #[error("{name}: {found} tokens, expected 1 to {n_vocab}")]
    DraftVocab {
        /// Name of the key or tensor.
        name: &'static str,
        /// Its number of tokens.
        found: u64,
        /// Number of tokens in the vocabulary.
        n_vocab: u64,
    },
}

/// Maximum number of blocks; llama.cpp has the same limit.
const MAX_BLOCKS: u64 = 512;
/// Maximum number of experts; llama.cpp has the same limit.
const MAX_EXPERTS: u64 = 1024;
/// Maximum width, context length and vocabulary size; the product of two cannot overflow.
pub(super) const MAX_DIM: u64 = 1 << 28;

impl Hparams {
    /// Reads the hyperparameters of a model file: from its metadata, and the size of a trimmed
    /// output from the length of its `d2t`.
    ///
    /// # Errors
    /// See [`Hparams::from_metadata`]. Fails also if the map is longer than the vocabulary.
    pub fn from_plan(plan: &Plan) -> Result<Hparams, HparamsError> {
        let mut hparams = Hparams::from_metadata(&plan.metadata)?;
        hparams.find_routers(|block| plan.tensor(&format!("blk.{block}.{ROUTER}")).is_some());
        if let Some(markov) = plan.tensor(MARKOV_W1) {
            hparams.set_markov_rank(markov.ne0());
        }
        if let Some(d2t) = plan.tensor(D2T) {
            hparams.n_vocab_draft = draft_vocab(D2T, d2t.n_elements(), hparams.n_vocab)?;
        }
        Ok(hparams)
    }

    /// Reads the hyperparameters from the metadata of a model file.
    ///
    /// # Errors
    /// The architecture does not run, a required key is missing, or a value is out of range.
    pub fn from_metadata(metadata: &Metadata) -> Result<Hparams, HparamsError> {
        Hparams::of_arch(super::of_file(metadata)?, metadata)
    }

    /// Reads the hyperparameters of an architecture, which need not run.
    ///
    /// # Errors
    /// A required key is missing, or a value is out of range.
    pub fn of_arch(arch: &'static ArchSpec, metadata: &Metadata) -> Result<Hparams, HparamsError> {
        let read = Reader { metadata, arch };
        let (n_layer, n_block) = read.layer_counts()?;
        let n_ctx_train = read.dim(keys::CONTEXT_LENGTH)?;
        let n_embd = read.dim(keys::EMBEDDING_LENGTH)?;
        let heads = read.heads(n_embd, n_block)?;
        let n_vocab = match metadata.strings(keys::TOKENS)? {
            Some(tokens) => tokens.len() as u64,
            None => read.dim(keys::VOCAB_SIZE)?,
        };
        let ssm = match arch.has(Scope::Recurrent) {
            true => read.ssm()?,
            false => Ssm::default(),
        };
        let has_widths = arch.has(Scope::Dense) || arch.blocks.single_part;
        let block_ff = match has_widths {
            true => read.block_counts(keys::FEED_FORWARD_LENGTH, &[], n_block)?,
            false => vec![read.optional(keys::FEED_FORWARD_LENGTH, 0)?; n_block as usize],
        };
        let n_ff = block_ff.iter().copied().max().unwrap_or_default();
        let layers = match arch.blocks.single_part {
            true => single_parts(&heads.blocks, &block_ff, n_layer),
            false => read.layer_kinds(n_layer, n_block)?,
        };
        let experts = read.experts(n_ff)?;
        let has_experts = |block: u32| {
            let is_dense = block >= n_layer && arch.mtp.as_ref().is_some_and(|mtp| mtp.dense);
            let has_network = arch.blocks.has_network(layers[block as usize]);
            experts.n_expert > 0 && u64::from(block) >= experts.n_dense && !is_dense && has_network
        };
        let assistant = match arch.assistant {
            true => Some(Assistant::read(&read, n_vocab)?),
            false => None,
        };
        let window = match &arch.window {
            Some(window) => window.read(&read, heads.head_dim, n_layer, n_block)?,
            None => None,
        };
        let expert_blocks = (0..n_block).map(has_experts).collect();
        let compressed = match arch.blocks.compressed {
            true => Compressed::read(&read, heads.blocks[0].n_head, n_block)?,
            false => Compressed::default(),
        };
        Ok(Hparams {
            arch,
            n_layer,
            layers,
            n_ctx_train,
            n_embd,
            n_vocab,
            n_vocab_draft: match metadata.u32(keys::DRAFT_VOCAB_SIZE)? {
                Some(n) => draft_vocab(keys::DRAFT_VOCAB_SIZE, n.into(), n_vocab)?,
                None => assistant.map_or(n_vocab, |own| own.n_scored(n_vocab)),
            },
            n_embd_per_layer: match arch.blocks.window_heads {
                true => read.optional(keys::EMBEDDING_LENGTH_PER_LAYER, 0)?,
                false => 0,
            },
            n_ff,
            block_ff,
            experts,
            n_head: heads.largest(|heads| heads.n_head),
            n_head_kv: heads.largest(|heads| heads.n_head_kv),
            block_heads: heads.blocks,
            kv_blocks: read.kv_blocks(window.as_ref(), n_block)?,
            shares_kv: false,
            activation_limit: read.activation_limit()?,
            expert_blocks,
            head_dim: heads.head_dim,
            value_dim: heads.value_dim,
            value_scale: read.positive(keys::VALUE_SCALE)?,
            n_rot: heads.n_rot,
            rope_freq_base: read.positive(keys::ROPE_FREQ_BASE)?.unwrap_or(10_000.0),
            rope_sections: read.rope_sections()?,
            rope_scaling: RopeScaling::read(&read, n_ctx_train)?,
            rms_eps: read.epsilon([keys::RMS_EPSILON, keys::LAYER_NORM_EPSILON])?,
            layer_norm_eps: read.epsilon([keys::LAYER_NORM_EPSILON, keys::RMS_EPSILON])?,
            window,
            logit_softcap: read.positive(keys::FINAL_LOGIT_SOFTCAPPING)?,
            mla: heads.mla,
            compressed,
            ssm,
            assistant,
            features: match arch.needs_target() {
                true => Some(Features::read(&read, n_embd)?),
                false => None,
            },
        })
    }

    /// Returns the number of residual streams of a token.
    pub fn n_stream(&self) -> u64 {
        self.compressed.n_stream.max(1)
    }

    /// Returns the width of the hidden state that MTP heads read.
    pub fn hidden_width(&self) -> u64 {
        self.n_stream() * self.n_embd
    }

    /// Returns the number of all blocks, trunk and MTP: `block_count`.
    pub fn n_block(&self) -> u32 {
        self.layers.len() as u32
    }

    /// Checks whether a block has a mixture of experts.
    pub fn has_experts(&self, layer: u32) -> bool {
        self.expert_blocks.get(layer as usize) == Some(&true)
    }

    /// Checks whether a block has a dense feed-forward network.
    pub fn is_dense(&self, layer: u32) -> bool {
        let blocks = &self.arch.blocks;
        let kind = self.layers.get(layer as usize);
        kind.is_none_or(|&kind| blocks.has_network(kind))
            && (!self.has_experts(layer) || blocks.dense_beside_experts)
    }

    /// Sets the rank of a block draft's Markov head, which no key states.
    pub fn set_markov_rank(&mut self, rank: u64) {
        let features = self.features.as_mut();
        if let Some(block) = features.and_then(|features| features.block.as_mut()) {
            block.markov_rank = rank;
        }
    }

    /// Finds the blocks of the trunk with experts, if no key states them: those with a router.
    pub fn find_routers(&mut self, has_router: impl Fn(u32) -> bool) {
        if self.arch.blocks.dense_by_tensors && self.experts.n_expert > 0 {
            for block in 0..self.n_layer {
                self.expert_blocks[block as usize] = has_router(block);
            }
        }
    }

    /// Returns the hyperparameters of one block: its own heads, elements with RoPE and feed-forward width.
    pub fn of_block(&self, block: u32) -> Hparams {
        let mut own = self.clone();
        if let Some(heads) = self.block_heads.get(block as usize) {
            (own.n_head, own.n_head_kv) = (heads.n_head, heads.n_head_kv);
        }
        if let Some(&n_ff) = self.block_ff.get(block as usize) {
            own.n_ff = n_ff;
        }
        let window = self.window(block);
        if let Some(heads) = window.and_then(|window| window.heads) {
            (own.head_dim, own.value_dim, own.n_rot) =
                (heads.head_dim, heads.head_dim, heads.n_rot);
        }
        if self.arch.blocks.half_rotation && window.is_none() {
            own.n_rot /= 2;
        }
        own.shares_kv = !self.has_kv(block);
        own.compressed.select(block);
        own
    }

    /// Checks whether a block has its own keys and values.
    pub fn has_kv(&self, block: u32) -> bool {
        !self.arch.assistant && self.kv_blocks.get(block as usize) == Some(&block)
    }

    /// Returns the largest value of a function of a block.
    pub fn largest(&self, value: impl Fn(&Hparams) -> u64) -> u64 {
        let values = (0..self.n_block()).map(|block| value(&self.of_block(block)));
        values.max().unwrap_or_default()
    }

    /// Returns the sliding window of a block, if it has one.
    pub fn window(&self, layer: u32) -> Option<&Window> {
        let slides = |window: &&Window| window.layers.get(layer as usize) == Some(&true);
        self.window.as_ref().filter(slides)
    }

    /// Returns the width whose square root divides `q . k`.
    pub fn query_width(&self) -> u64 {
        (self.arch.query_width)(self)
    }

    /// Returns the number of MTP layers: `nextn_predict_layers`.
    pub fn n_mtp(&self) -> u32 {
        self.n_block() - self.n_layer
    }
}

/// Checks the number of tokens of a trimmed output.
fn draft_vocab(name: &'static str, found: u64, n_vocab: u64) -> Result<u64, HparamsError> {
    match (1..=n_vocab).contains(&found) {
        true => Ok(found),
        false => Err(HparamsError::DraftVocab {
            name,
            found,
            n_vocab,
        }),
    }
}

/// Returns the kinds of blocks with one part each.
fn single_parts(heads: &[BlockHeads], block_ff: &[u64], n_layer: u32) -> Vec<LayerKind> {
    let kind = |(block, (heads, &n_ff)): (u32, (&BlockHeads, &u64))| match (heads.n_head_kv, n_ff) {
        _ if block >= n_layer => LayerKind::Mtp,
        (0, 0) => LayerKind::Recurrent,
        (_, 0) => LayerKind::Attention,
        _ => LayerKind::FeedForward,
    };
    (0..).zip(heads.iter().zip(block_ff)).map(kind).collect()
}

/// Reads the keys of an architecture.
pub(super) struct Reader<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) arch: &'static ArchSpec,
}

impl Reader<'_> {
    pub(super) fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.arch.name)
    }

    pub(super) fn range(&self, suffix: &str, found: u64, expected: String) -> HparamsError {
        HparamsError::Range {
            key: self.key(suffix),
            found,
            expected,
        }
    }

    pub(super) fn within(&self, suffix: &str, min: u64, max: u64) -> Result<u64, HparamsError> {
        let found = u64::from(self.metadata.need_u32(&self.key(suffix))?);
        if (min..=max).contains(&found) {
            return Ok(found);
        }
        Err(self.range(suffix, found, format!("{min} to {max}")))
    }

    pub(super) fn dim(&self, suffix: &str) -> Result<u64, HparamsError> {
        self.within(suffix, 1, MAX_DIM)
    }

    /// Reads an optional text.
    pub(super) fn str(&self, suffix: &str) -> Result<Option<&str>, HparamsError> {
        Ok(self.metadata.str(&self.key(suffix))?)
    }

    /// Reads an optional positive number; some files write 0 for an absent value.
    pub(super) fn positive(&self, suffix: &str) -> Result<Option<f32>, HparamsError> {
        let key = self.key(suffix);
        match self.metadata.f32(&key)? {
            None | Some(0.0) => Ok(None),
            Some(found) if found > 0.0 && found.is_finite() => Ok(Some(found)),
            Some(found) => Err(HparamsError::NotPositive { key, found }),
        }
    }

    /// Reads an epsilon from the first of two keys that is present.
    fn epsilon(&self, suffixes: [&str; 2]) -> Result<f32, HparamsError> {
        let [first, second] = suffixes.map(|suffix| self.metadata.f32(&self.key(suffix)));
        match first?.or(second?) {
            Some(epsilon) => Ok(epsilon),
            None => Ok(self.metadata.need_f32(&self.key(keys::RMS_EPSILON))?),
        }
    }

    /// Reads the sections of M-RoPE, if the architecture has it.
    fn rope_sections(&self) -> Result<Option<[u64; 3]>, HparamsError> {
        if !self.arch.interleaved_sections {
            return Ok(None);
        }
        let key = self.key(keys::ROPE_DIMENSION_SECTIONS);
        let sections = self.metadata.u32s(&key)?.unwrap_or_default();
        let first = sections.first_chunk::<3>();
        Ok(first.map(|sections| sections.map(u64::from)))
    }

    pub(super) fn optional(&self, suffix: &str, default: u64) -> Result<u64, HparamsError> {
        if !self.metadata.contains(&self.key(suffix)) {
            return Ok(default);
        }
        self.within(suffix, 0, MAX_DIM)
    }

    /// Reads the mixture of experts; required for architectures without dense blocks.
    fn experts(&self, n_ff: u64) -> Result<Experts, HparamsError> {
        let n_expert = match (self.arch.has(Scope::Experts), self.arch.has(Scope::Dense)) {
            (true, false) => self.within(keys::EXPERT_COUNT, 1, MAX_EXPERTS)?,
            (true, true) => self.optional(keys::EXPERT_COUNT, 0)?,
            (false, _) => 0,
        };
        if n_expert > MAX_EXPERTS {
            let expected = format!("0 to {MAX_EXPERTS}");
            return Err(self.range(keys::EXPERT_COUNT, n_expert, expected));
        }
        let (mut n_used, mut width) = (0, 0);
        if n_expert > 0 {
            n_used = self.within(keys::EXPERT_USED_COUNT, 1, n_expert)?;
            width = self.optional(keys::EXPERT_FEED_FORWARD_LENGTH, n_ff)?;
            if width == 0 {
                width = self.dim(keys::EXPERT_FEED_FORWARD_LENGTH)?;
            }
        }
        let gating = match self.optional(keys::EXPERT_GATING_FUNC, 0)? {
            0 => self.arch.routing.gating,
            1 => Gating::Softmax,
            2 => Gating::Sigmoid,
            4 if self.arch.routing.gating == Gating::SqrtSoftplus => Gating::SqrtSoftplus,
            other => {
                let expected = "1 (softmax) or 2 (sigmoid)".to_owned();
                return Err(self.range(keys::EXPERT_GATING_FUNC, other, expected));
            }
        };
        let (n_group, n_group_used) = self.expert_groups(n_expert, n_used)?;
        let n_shared = self.optional(keys::EXPERT_SHARED_COUNT, 0)?;
        if n_shared * width > MAX_DIM {
            let expected =
                format!("shared experts of width {width} with a total of at most {MAX_DIM}");
            return Err(self.range(keys::EXPERT_SHARED_COUNT, n_shared, expected));
        }
        let normalised = self.metadata.bool(&self.key(keys::EXPERT_WEIGHTS_NORM))?;
        Ok(Experts {
            n_expert,
            n_used,
            n_ff: width,
            n_ff_shared: match self.optional(keys::EXPERT_SHARED_FEED_FORWARD_LENGTH, 0)? {
                0 => n_shared * width,
                given => given,
            },
            n_dense: self.optional(keys::LEADING_DENSE_BLOCK_COUNT, 0)?,
            n_group,
            n_group_used,
            n_latent: self.optional(keys::MOE_LATENT_SIZE, 0)?,
            gating,
            normalised: normalised.unwrap_or(self.arch.routing.normalised),
            scale: self.positive(keys::EXPERT_WEIGHTS_SCALE)?.unwrap_or(1.0),
        })
    }

    /// Reads the number of expert groups, and from how many a token's experts are chosen.
    fn expert_groups(&self, n_expert: u64, n_used: u64) -> Result<(u64, u64), HparamsError> {
        let n_group = self.optional(keys::EXPERT_GROUP_COUNT, 0)?.max(1);
        if !n_expert.is_multiple_of(n_group) {
            let expected = format!("a divisor of expert_count {n_expert}");
            return Err(self.range(keys::EXPERT_GROUP_COUNT, n_group, expected));
        }
        let n_group_used = match self.optional(keys::EXPERT_GROUP_USED_COUNT, 0)? {
            0 => n_group,
            n => n,
        };
        if n_group_used > n_group || n_used > n_group_used * (n_expert / n_group) {
            let expected = format!("enough of the {n_group} groups for {n_used} experts");
            return Err(self.range(keys::EXPERT_GROUP_USED_COUNT, n_group_used, expected));
        }
        Ok((n_group, n_group_used))
    }

    /// Reads the numbers of trunk layers and of all blocks.
    fn layer_counts(&self) -> Result<(u32, u32), HparamsError> {
        let n_block = self.within(keys::BLOCK_COUNT, 1, MAX_BLOCKS)?;
        // All layers of an assistant are declared as MTP layers.
        let n_mtp = match self.optional(keys::NEXTN_PREDICT_LAYERS, 0)? {
            0 => 0,
            _ if self.arch.assistant => 0,
            _ => self.within(keys::NEXTN_PREDICT_LAYERS, 0, n_block - 1)?,
        };
        Ok(((n_block - n_mtp) as u32, n_block as u32))
    }

    /// Reads the limits of the activations of experts.
    fn activation_limit(&self) -> Result<Option<(&'static str, f32)>, HparamsError> {
        for suffix in [keys::SWIGLU_CLAMP_EXP, keys::SWIGLU_CLAMP_SHEXP] {
            let limits = self.metadata.f32s(&self.key(suffix))?.unwrap_or_default();
            if let Some(&limit) = limits.iter().find(|&&limit| limit != 0.0) {
                return Ok(Some((suffix, limit)));
            }
        }
        Ok(None)
    }

    fn ssm(&self) -> Result<Ssm, HparamsError> {
        let ssm = Ssm {
            conv_kernel: self.within(keys::SSM_CONV_KERNEL, 2, 64)?,
            state_size: self.within(keys::SSM_STATE_SIZE, 1, 1 << 16)?,
            group_count: self.within(keys::SSM_GROUP_COUNT, 1, 1 << 16)?,
            time_step_rank: self.within(keys::SSM_TIME_STEP_RANK, 1, 1 << 16)?,
            inner_size: self.dim(keys::SSM_INNER_SIZE)?,
        };
        let heads = ssm.time_step_rank;
        if self.arch.blocks.single_part {
            for n in [heads, ssm.group_count] {
                if !ssm.inner_size.is_multiple_of(n) {
                    let expected =
                        format!("a multiple of {n}, of the {heads} heads and the groups");
                    return Err(self.range(keys::SSM_INNER_SIZE, ssm.inner_size, expected));
                }
            }
        } else if ssm.inner_size != heads * ssm.state_size {
            let expected = format!("{heads} value heads of {}", ssm.state_size);
            return Err(self.range(keys::SSM_INNER_SIZE, ssm.inner_size, expected));
        }
        if !ssm.time_step_rank.is_multiple_of(ssm.group_count) {
            let expected = format!("a multiple of the {} key heads", ssm.group_count);
            return Err(self.range(keys::SSM_TIME_STEP_RANK, ssm.time_step_rank, expected));
        }
        Ok(ssm)
    }

    /// Reads the kind of each block: of trunk layers from the per-layer array or, in older files, from
    /// the interval.
    fn layer_kinds(&self, n_layer: u32, n_block: u32) -> Result<Vec<LayerKind>, HparamsError> {
        let mut layers = match self.arch.has(Scope::Recurrent) {
            true => self.recurrent_layers(n_layer, n_block)?,
            false => vec![LayerKind::Attention; n_layer as usize],
        };
        layers.resize(n_block as usize, LayerKind::Mtp);
        Ok(layers)
    }

    fn recurrent_layers(&self, n_layer: u32, n_block: u32) -> Result<Vec<LayerKind>, HparamsError> {
        let kind = |is_recurrent| match is_recurrent {
            true => LayerKind::Recurrent,
            false => LayerKind::Attention,
        };
        let key = self.key(keys::RECURRENT_LAYERS);
        if let Some(recurrent) = self.metadata.bools(&key)? {
            if recurrent.len() != n_block as usize {
                return Err(HparamsError::PerLayer {
                    key,
                    found: recurrent.len(),
                    expected: n_block,
                });
            }
            let trunk = recurrent[..n_layer as usize].iter();
            return Ok(trunk.map(|&is_recurrent| kind(is_recurrent)).collect());
        }
        let interval = match self.optional(keys::FULL_ATTENTION_INTERVAL, 4)? {
            0 => return Err(self.range(keys::FULL_ATTENTION_INTERVAL, 0, "1 or more".into())),
            n => n as u32,
        };
        let kinds = (1..=n_layer).map(|layer| kind(!layer.is_multiple_of(interval)));
        Ok(kinds.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Value;

    /// Reads a GLM file with eight experts of width 32 and these additional keys.
    fn experts(keys: &[(&str, Value)]) -> Result<Experts, String> {
        let mut metadata = Metadata::new();
        metadata.set(keys::ARCHITECTURE, "glm4moe");
        for (key, value) in [
            (keys::BLOCK_COUNT, 3),
            (keys::CONTEXT_LENGTH, 512),
            (keys::EMBEDDING_LENGTH, 64),
            (keys::FEED_FORWARD_LENGTH, 96),
            (keys::HEAD_COUNT, 4),
            (keys::VOCAB_SIZE, 10),
            (keys::EXPERT_COUNT, 8),
            (keys::EXPERT_USED_COUNT, 3),
            (keys::EXPERT_FEED_FORWARD_LENGTH, 32),
        ] {
            metadata.set(format!("glm4moe.{key}"), Value::U32(value));
        }
        metadata.set(format!("glm4moe.{}", keys::RMS_EPSILON), Value::F32(1e-6));
        for (key, value) in keys {
            metadata.set(format!("glm4moe.{key}"), value.clone());
        }
        let hparams = Hparams::from_metadata(&metadata);
        hparams.map(|h| h.experts).map_err(|e| e.to_string())
    }

    #[test]
    fn groups_must_hold_the_experts_of_a_token() {
        let groups = |n: u32, used: u32| {
            let count = (keys::EXPERT_GROUP_COUNT, Value::U32(n));
            let found = experts(&[count, (keys::EXPERT_GROUP_USED_COUNT, Value::U32(used))]);
            found.map(|experts| (experts.n_group, experts.n_group_used))
        };
        assert_eq!(groups(2, 1), Ok((2, 1)));
        assert_eq!(groups(0, 0), Ok((1, 1)));
        assert_eq!(groups(4, 0), Ok((4, 4)));
        let message = "key glm4moe.expert_group_count: 3, expected a divisor of expert_count 8";
        assert_eq!(groups(3, 1), Err(message.to_owned()));
        for used in [1, 5] {
            let message = format!(
                "key glm4moe.expert_group_used_count: {used}, expected enough of the 4 groups for 3 experts"
            );
            assert_eq!(groups(4, used), Err(message));
        }
    }

    #[test]
    fn shared_experts_are_as_wide_as_others() {
        let shared = |n: u32| experts(&[(keys::EXPERT_SHARED_COUNT, Value::U32(n))]);
        assert_eq!(shared(2).map(|e| e.n_ff_shared), Ok(64));
        assert_eq!(shared(0).map(|e| e.n_ff_shared), Ok(0));
        let message = shared(1 << 25).expect_err("is too wide");
        assert!(
            message.contains("expected shared experts of width 32"),
            "{message}"
        );
        let routing = experts(&[]).expect("needs no more keys");
        assert_eq!(
            (routing.gating, routing.normalised),
            (Gating::Sigmoid, false)
        );
    }
}
