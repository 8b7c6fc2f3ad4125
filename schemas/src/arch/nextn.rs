//! Rows that only an MTP (NextN) head has. GGUF names are the same for every architecture; where
//! the checkpoint keeps them differs by family.

use super::rows::N_EMBD;
use super::spec::{Dim, Scope, TensorSpec, Transform};

/// Prefix of these rows behind `blk.N.`.
pub const NEXTN_PREFIX: &str = "nextn.";
/// The projection of embedding and hidden state to one width; every head has it.
pub const EH_PROJ: &str = "nextn.eh_proj.weight";

/// An embedding of the head's own.
pub const EMBED_TOKENS: &str = "nextn.embed_tokens.weight";
/// An output of the head's own.
pub const SHARED_HEAD_HEAD: &str = "nextn.shared_head_head.weight";
/// In the layout [`TRIMMED_VOCAB`](super::keys::TRIMMED_VOCAB): the target's token of each row of
/// the head's own output, absolute ids as I64.
pub const D2T: &str = "nextn.d2t";

const ADD_ONE: &[Transform] = &[Transform::AddOne];
/// Embedding half first, then the hidden state's.
const EH_PROJ_COLUMNS: Dim = |h| 2 * h.n_embd;

const fn row(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorSpec {
    TensorSpec::new(Scope::Mtp, gguf, hf, shape)
}

/// The head of Qwen3-Next and Qwen3.5: named apart from its layer, norms stored less one.
/// Readers take the trunk's tensor for an absent optional one.
pub(super) const QWEN: &[TensorSpec] = &[
    row(EH_PROJ, "mtp.fc.weight", &[EH_PROJ_COLUMNS, N_EMBD]),
    row(
        "nextn.enorm.weight",
        "mtp.pre_fc_norm_embedding.weight",
        &[N_EMBD],
    )
    .with(ADD_ONE),
    row(
        "nextn.hnorm.weight",
        "mtp.pre_fc_norm_hidden.weight",
        &[N_EMBD],
    )
    .with(ADD_ONE),
    row(
        "nextn.shared_head_norm.weight",
        "mtp.norm.weight",
        &[N_EMBD],
    )
    .with(ADD_ONE)
    .optional(),
    row(
        EMBED_TOKENS,
        "mtp.embed_tokens.weight",
        &[N_EMBD, |h| h.n_vocab],
    )
    .optional(),
    row(
        SHARED_HEAD_HEAD,
        "mtp.lm_head.weight",
        &[N_EMBD, |h| h.n_vocab],
    )
    .optional(),
];
