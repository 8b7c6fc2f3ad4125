//! [`Model`]: weights and the way through them. A target, a draft model and an MTP head are the
//! same thing here, a stack of layers; they differ in what enters the stack.
//!
//! One file per architecture holds the forward pass of its layers, written once over [`Backend`].
//! This module knows neither files nor sequences: [`load`] finds the weights, [`crate::context`]
//! owns the caches.

mod block;
mod llama;
mod load;
mod qwen3;
mod qwen35;
mod weights;

use kernels::backend::{Backend, Columns};
use schemas::arch::{Hparams, LayerKind};

use crate::cache::{Cache, LayerCache, Places};

pub use load::{load_mtp_head, load_target};
pub use weights::check_values;

/// A stack of layers between an input and the vocabulary.
pub struct Model<B: Backend> {
    /// The numbers that size it.
    pub hparams: Hparams,
    /// What the caches of the layers must be.
    pub kinds: Vec<LayerKind>,
    /// Bytes of weights that one pass reads.
    pub pass_bytes: usize,
    input: Input<B>,
    layers: Vec<Box<dyn Layer<B>>>,
    /// The final norm: (n_embd).
    norm: B::Weight,
    /// The output head, the embedding where they are tied: (n_vocab, n_embd).
    head: B::Weight,
}

/// What enters the stack.
enum Input<B: Backend> {
    /// Token embeddings: a target, a draft model.
    Tokens {
        /// (n_vocab, n_embd)
        embd: B::Weight,
    },
    /// Token embeddings joined with the trunk's hidden state of the position before: an MTP head.
    Mtp {
        /// (n_vocab, n_embd)
        embd: B::Weight,
        /// (n_embd)
        enorm: B::Weight,
        /// (n_embd)
        hnorm: B::Weight,
        /// Embedding half first: (n_embd, 2 * n_embd)
        eh_proj: B::Weight,
    },
}

/// One layer: reads and updates the residual stream, `pass.s.x`.
trait Layer<B: Backend>: Send + Sync {
    fn forward(&self, pass: &mut Pass<'_, B>);
}

/// What a layer works on.
struct Pass<'a, B: Backend> {
    backend: &'a B,
    /// Tokens in the batch.
    n: usize,
    positions: &'a [u32],
    places: &'a Places,
    cache: &'a mut LayerCache<B>,
    s: &'a mut Scratch<B>,
}

/// Activations of one pass, allocated once for the largest batch; `n` is its number of tokens.
pub struct Scratch<B: Backend> {
    /// Residual stream: (n, n_embd)
    x: B::Buffer,
    /// Normalised input of a block, and its output: (n, n_embd)
    normed: B::Buffer,
    /// The hidden state after the final norm: (n, n_embd)
    pub hidden: B::Buffer,
    /// Queries, with the gate's rows where a layer has them: (n, 2 * n_head * head_dim)
    q_gate: B::Buffer,
    /// Before the norm by head: (n, n_head * head_dim)
    q_raw: B::Buffer,
    /// (n, n_head * head_dim)
    q: B::Buffer,
    /// (n, n_head * head_dim)
    gate: B::Buffer,
    /// Before the norm by head: (n, n_head_kv * head_dim)
    k_raw: B::Buffer,
    /// (n, n_head_kv * head_dim)
    k: B::Buffer,
    /// (n, n_head_kv * head_dim)
    v: B::Buffer,
    /// (n, n_head * head_dim)
    attended: B::Buffer,
    /// (n, n_ff)
    ffn_gate: B::Buffer,
    /// (n, n_ff)
    ffn_up: B::Buffer,
    /// Joined input of an MTP head: (n, 2 * n_embd)
    joined: B::Buffer,
    delta: DeltaScratch<B>,
    /// Hidden states of the rows whose logits are wanted: (n_outputs, n_embd)
    wanted: B::Buffer,
    /// (n_outputs, n_vocab)
    logits: B::Buffer,
}

/// Activations of a gated delta net layer.
struct DeltaScratch<B: Backend> {
    /// Packed projections before the convolution: (n, n_channel)
    qkv: B::Buffer,
    /// The same after it: (n, n_channel)
    mixed: B::Buffer,
    /// (n, n_head_k * state_size)
    q: B::Buffer,
    /// (n, n_head_k * state_size)
    k: B::Buffer,
    /// (n, inner_size)
    v: B::Buffer,
    /// (n, inner_size)
    z: B::Buffer,
    /// (n, n_head_v)
    alpha: B::Buffer,
    /// (n, n_head_v)
    beta: B::Buffer,
    /// (n, inner_size)
    out: B::Buffer,
    /// Output after its norm: (n, inner_size)
    normed: B::Buffer,
}

impl<B: Backend> Scratch<B> {
    /// Room for batches of up to `n_batch` tokens, `n_outputs` of them with logits.
    pub fn new(backend: &B, hparams: &Hparams, n_batch: usize, n_outputs: usize) -> Scratch<B> {
        let rows = |width: u64| backend.buffer(n_batch * width as usize);
        let output_rows = |width: u64| backend.buffer(n_outputs * width as usize);
        let q_rows = hparams.n_head * hparams.head_dim;
        let kv_rows = hparams.n_head_kv * hparams.head_dim;
        let ssm = &hparams.ssm;
        Scratch {
            x: rows(hparams.n_embd),
            normed: rows(hparams.n_embd),
            hidden: rows(hparams.n_embd),
            q_gate: rows(2 * q_rows),
            q_raw: rows(q_rows),
            q: rows(q_rows),
            gate: rows(q_rows),
            k_raw: rows(kv_rows),
            k: rows(kv_rows),
            v: rows(kv_rows),
            attended: rows(q_rows),
            ffn_gate: rows(hparams.n_ff),
            ffn_up: rows(hparams.n_ff),
            joined: rows(2 * hparams.n_embd),
            delta: DeltaScratch {
                qkv: rows(ssm.n_channel()),
                mixed: rows(ssm.n_channel()),
                q: rows(ssm.key_dim()),
                k: rows(ssm.key_dim()),
                v: rows(ssm.inner_size),
                z: rows(ssm.inner_size),
                alpha: rows(ssm.time_step_rank),
                beta: rows(ssm.time_step_rank),
                out: rows(ssm.inner_size),
                normed: rows(ssm.inner_size),
            },
            wanted: output_rows(hparams.n_embd),
            logits: output_rows(hparams.n_vocab),
        }
    }
}

/// What enters a pass.
pub struct PassInput<'a, B: Backend> {
    /// Token ids.
    pub tokens: &'a [u32],
    /// Their positions.
    pub positions: &'a [u32],
    /// Their places in the caches.
    pub places: &'a Places,
    /// For an MTP head: the trunk's normed hidden state before each token, (n, n_embd).
    pub hidden: Option<&'a B::Buffer>,
    /// Rows whose logits are wanted.
    pub outputs: &'a [usize],
}

impl<B: Backend> Model<B> {
    /// Takes tokens through the stack; leaves the normed hidden state of every row in
    /// `s.hidden`, and returns the logits of the wanted rows, `n_vocab` each.
    pub fn forward(
        &self,
        backend: &B,
        input: &PassInput<'_, B>,
        cache: &mut Cache<B>,
        s: &mut Scratch<B>,
    ) -> Vec<f32> {
        let n = input.tokens.len();
        let (n_embd, eps) = (self.hparams.n_embd as usize, self.hparams.rms_eps);
        match &self.input {
            Input::Tokens { embd } => backend.embed(embd, input.tokens, &mut s.x),
            Input::Mtp {
                embd,
                enorm,
                hnorm,
                eh_proj,
            } => {
                let hidden = input
                    .hidden
                    .expect("the driver gives an MTP head hidden states");
                backend.embed(embd, input.tokens, &mut s.x);
                let width = Columns {
                    stride: n_embd,
                    offset: 0,
                };
                let half = |offset| Columns {
                    stride: 2 * n_embd,
                    offset,
                };
                backend.rms_norm(&s.x, enorm, eps, n, &mut s.normed);
                backend.copy_columns(&s.normed, width, &mut s.joined, half(0), n_embd, n);
                backend.rms_norm(hidden, hnorm, eps, n, &mut s.normed);
                backend.copy_columns(&s.normed, width, &mut s.joined, half(n_embd), n_embd, n);
                backend.matmul(eh_proj, &s.joined, n, &mut s.x);
            }
        }
        for (i, layer) in self.layers.iter().enumerate() {
            let (positions, places, cache) = (input.positions, input.places, cache.layer(i));
            layer.forward(&mut Pass {
                backend,
                n,
                positions,
                places,
                cache,
                s,
            });
        }
        backend.rms_norm(&s.x, &self.norm, eps, n, &mut s.hidden);
        let PassInput { outputs, .. } = *input;
        let mut logits = vec![0.0; outputs.len() * self.hparams.n_vocab as usize];
        if !outputs.is_empty() {
            backend.gather_rows(&s.hidden, n_embd, outputs, &mut s.wanted);
            backend.matmul(&self.head, &s.wanted, outputs.len(), &mut s.logits);
            backend.download(&s.logits, 0, &mut logits);
        }
        logits
    }
}
