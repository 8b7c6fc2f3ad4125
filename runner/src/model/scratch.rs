//! Scratch buffers: the activations of a forward pass.

use kernels::backend::CacheType;
use schemas::arch::Hparams;

use crate::memory::Memory;

use super::deepseek2::MlaScratch;
use super::deepseek4::CompressedScratch;
use super::dflash2::{ConvScratch, SelectorScratch};
use super::streams::StreamScratch;

/// Sizes of the largest pass.
#[derive(Clone, Copy, Debug)]
pub struct ScratchShape {
    /// Number of tokens.
    pub n_batch: usize,
    /// Number of tokens with logits.
    pub n_outputs: usize,
    /// Number of rows of the output head.
    pub n_out: usize,
    /// Number of layers whose input is kept.
    pub n_tap: usize,
    /// Number of positions of a sequence.
    pub n_ctx: usize,
    /// Element type of keys.
    pub cache_type: CacheType,
}

/// Activations of one pass, allocated once for the largest batch; `n` is its number of tokens.
pub struct Scratch<M: Memory> {
    /// Residual streams: (n, n_stream * n_embd)
    pub(super) x: M::Floats,
    /// Normalised input of a block, and its output, or normalised streams: (n, n_stream * n_embd)
    pub(super) normed: M::Floats,
    /// The hidden state after the final norm: (n, n_embd)
    pub hidden: M::Floats,
    /// Queries, with the gate if the layer has one: (n, 2 * n_head * head_dim)
    pub(super) q_gate: M::Floats,
    /// Queries before the norm per head: (n, n_head * head_dim)
    pub(super) q_raw: M::Floats,
    /// (n, n_head * head_dim)
    pub(super) q: M::Floats,
    /// (n, n_head * head_dim)
    pub(super) gate: M::Floats,
    /// Keys before the norm per head: (n, n_head_kv * head_dim)
    pub(super) k_raw: M::Floats,
    /// (n, n_head_kv * head_dim)
    pub(super) k: M::Floats,
    /// (n, n_head_kv * head_dim)
    pub(super) v: M::Floats,
    /// (n, n_head * head_dim)
    pub(super) attended: M::Floats,
    /// (n, n_ff)
    pub(super) ffn_gate: M::Floats,
    /// (n, n_ff)
    pub(super) ffn_up: M::Floats,
    /// Output of the feed-forward block: (n, n_embd)
    pub(super) ffn_out: M::Floats,
    pub(super) experts: ExpertScratch<M>,
    pub(super) per_layer: PerLayerScratch<M>,
    pub(super) clusters: ClusterScratch<M>,
    /// Embeddings of an assistant's target, then the hidden states that its next step reads:
    /// (n, n_embd_target)
    pub(super) lent: M::Floats,
    /// Concatenated input of an MTP head, or of an EAGLE-3 draft's attention: (n, 2 * n_stream * n_embd)
    pub(super) joined: M::Floats,
    /// Inputs of the tapped layers, concatenated: (n, n_tap * n_embd)
    pub features: M::Floats,
    pub(super) recurrent: RecurrentScratch<M>,
    pub(super) mla: MlaScratch<M>,
    pub(super) streams: StreamScratch<M>,
    pub(super) compressed: CompressedScratch<M>,
    pub(super) conv: ConvScratch<M>,
    pub(super) selector: SelectorScratch<M>,
    /// Hidden states of the rows whose logits are computed: (n_outputs, n_embd)
    pub(super) wanted: M::Floats,
    /// (n_outputs, n_out)
    pub(crate) logits: M::Floats,
    /// Rows of the embedding table to look up.
    pub(super) tokens: Vec<u32>,
}

/// Embeddings of tokens for each layer.
pub(super) struct PerLayerScratch<M: Memory> {
    /// Embeddings for all layers: (n, n_layer * width)
    pub(super) embedded: M::Floats,
    /// Projected from the usual embedding, and after the norm: (n, n_layer * width)
    pub(super) projected: M::Floats,
    pub(super) normed: M::Floats,
    /// The embedding for one layer, and its gate: (n, width)
    pub(super) own: M::Floats,
    pub(super) gate: M::Floats,
}

/// Choice of clusters of tokens.
pub(super) struct ClusterScratch<M: Memory> {
    /// (n_outputs, n_cluster)
    pub(super) scores: M::Floats,
    /// Clusters chosen for each row: (n_outputs, n_used)
    pub(super) routes: M::Routes,
}

/// Activations of a mixture of experts.
pub(super) struct ExpertScratch<M: Memory> {
    /// The router's output: (n, n_expert)
    pub(super) logits: M::Floats,
    /// Experts of each token in layers that have a table of them: (n, n_used)
    pub(super) given: Vec<u32>,
    /// Experts chosen by each token: (n, n_used)
    pub(super) routes: M::Routes,
    /// (n, n_used, n_ff)
    pub(super) gate: M::Floats,
    /// (n, n_used, n_ff)
    pub(super) up: M::Floats,
    /// (n, n_used, n_embd)
    pub(super) down: M::Floats,
    /// Output of a dense network beside the experts: (n, n_embd)
    pub(super) dense: M::Floats,
    /// Sum over the chosen experts: (n, n_embd)
    pub(super) sum: M::Floats,
    /// Input of the experts, and the sum of their outputs, if they have another width: (n, n_latent)
    pub(super) latent: M::Floats,
    /// Weight of the shared expert: (n)
    pub(super) shared_gate: M::Floats,
}

/// Activations of a recurrent layer: of a gated delta net, or the same in a Mamba-2 layer.
pub(super) struct RecurrentScratch<M: Memory> {
    /// Packed projections before the convolution: (n, n_channel)
    pub(super) qkv: M::Floats,
    /// Packed projections after the convolution: (n, n_channel)
    pub(super) mixed: M::Floats,
    /// (n, n_head_k * state_size)
    pub(super) q: M::Floats,
    /// (n, n_head_k * state_size)
    pub(super) k: M::Floats,
    /// (n, inner_size)
    pub(super) v: M::Floats,
    /// (n, inner_size)
    pub(super) z: M::Floats,
    /// Decay and strength from one projection, if the layer has only one: (n, 2 * n_head_v)
    pub(super) gates: M::Floats,
    /// Decay input, or time step: (n, n_head_v)
    pub(super) alpha: M::Floats,
    /// (n, n_head_v)
    pub(super) beta: M::Floats,
    /// (n, inner_size)
    pub(super) out: M::Floats,
    /// Output after its norm: (n, inner_size)
    pub(super) normed: M::Floats,
}

impl<M: Memory> Scratch<M> {
    /// Allocates buffers for passes of up to this size.
    pub fn new(memory: &M, hparams: &Hparams, shape: ScratchShape) -> Scratch<M> {
        let ScratchShape {
            n_batch, n_outputs, ..
        } = shape;
        let rows = |width: u64| memory.scratch(n_batch * width as usize);
        let output_rows = |width: u64| memory.scratch(n_outputs * width as usize);
        let q_rows = hparams.largest(|block| block.n_head * block.head_dim);
        let kv_rows = hparams.largest(|block| block.n_head_kv * block.head_dim);
        let assistant = hparams.assistant;
        let n_embd_target = assistant.map_or(0, |own| own.n_embd_target);
        let n_cluster = assistant.map_or(0, |own| own.n_centroid);
        let n_cluster_used = assistant.map_or(0, |own| own.n_centroid_used);
        let per_layer = hparams.n_embd_per_layer;
        let all_layers = per_layer * u64::from(hparams.n_layer);
        let (experts, ssm) = (&hparams.experts, &hparams.ssm);
        let of_delta_net = |width| match hparams.arch.blocks.single_part {
            true => 0,
            false => width,
        };
        // A dense block and the shared expert use the same buffer, one after the other.
        let n_ff = hparams.n_ff.max(experts.n_ff_shared);
        let n_used = experts.n_used;
        let block = hparams
            .features
            .as_ref()
            .and_then(|features| features.block);
        let markov_rank = block.map_or(0, |block| block.markov_rank);
        Scratch {
            x: rows(hparams.hidden_width()),
            normed: rows(hparams.hidden_width()),
            hidden: rows(hparams.n_embd),
            q_gate: rows(2 * q_rows),
            q_raw: rows(q_rows),
            q: rows(q_rows),
            gate: rows(q_rows),
            k_raw: rows(kv_rows),
            k: rows(kv_rows),
            v: rows(kv_rows),
            attended: rows(q_rows),
            ffn_gate: rows(n_ff),
            ffn_up: rows(n_ff),
            ffn_out: rows(hparams.n_embd),
            experts: ExpertScratch {
                logits: rows(experts.n_expert),
                given: Vec::new(),
                routes: memory.expert_routes(n_batch, n_used as usize),
                gate: rows(n_used * experts.n_ff),
                up: rows(n_used * experts.n_ff),
                down: rows(n_used * hparams.n_embd.max(experts.n_latent)),
                dense: rows(match hparams.arch.blocks.dense_beside_experts {
                    true => hparams.n_embd,
                    false => 0,
                }),
                sum: rows(hparams.n_embd),
                latent: rows(experts.n_latent),
                shared_gate: rows(1),
            },
            per_layer: PerLayerScratch {
                embedded: rows(all_layers),
                projected: rows(all_layers),
                normed: rows(all_layers),
                own: rows(per_layer),
                gate: rows(per_layer),
            },
            clusters: ClusterScratch {
                scores: output_rows(n_cluster),
                routes: memory.expert_routes(n_outputs, n_cluster_used as usize),
            },
            lent: rows(n_embd_target),
            joined: rows(
                (hparams.hidden_width() + hparams.hidden_width().max(markov_rank))
                    .max(2 * n_embd_target),
            ),
            features: rows(shape.n_tap as u64 * hparams.n_embd),
            recurrent: RecurrentScratch {
                qkv: rows(ssm.n_channel()),
                mixed: rows(ssm.n_channel()),
                q: rows(of_delta_net(ssm.key_dim())),
                k: rows(of_delta_net(ssm.key_dim())),
                v: rows(of_delta_net(ssm.inner_size)),
                z: rows(ssm.inner_size),
                gates: rows(of_delta_net(2 * ssm.time_step_rank)),
                alpha: rows(ssm.time_step_rank),
                beta: rows(of_delta_net(ssm.time_step_rank)),
                out: rows(ssm.inner_size),
                normed: rows(ssm.inner_size),
            },
            mla: MlaScratch::new(memory, hparams, n_batch),
            streams: StreamScratch::new(memory, hparams, n_batch),
            compressed: CompressedScratch::new(memory, hparams, shape),
            conv: ConvScratch::new(memory, hparams, n_batch),
            selector: SelectorScratch::new(memory, hparams, n_outputs),
            wanted: output_rows(hparams.n_embd.max(markov_rank)),
            logits: output_rows(shape.n_out as u64),
            tokens: Vec::new(),
        }
    }
}
