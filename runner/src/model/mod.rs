//! [`Model`]: weights and their forward pass. A target, a draft model, an MTP head and an EAGLE-3
//! draft are all a stack of layers; they differ in the input of the first layer.
//!
//! Each architecture has a file with the forward pass of its layers, generic over [`Backend`]. This
//! module knows neither files nor sequences: [`loader`] finds the weights, [`crate::context`] owns
//! the caches.

mod assistant;
mod attention;
mod deepseek2;
mod deepseek4;
mod dflash;
mod dflash2;
mod eagle3;
mod feed_forward;
mod gemma3;
mod gemma4;
mod glm4moe;
mod gpt_oss;
mod llama;
mod loader;
mod matrix;
mod mimo2;
mod nemotron_h;
mod projection;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen3next;
mod rope;
mod scratch;
mod step35;
mod streams;
mod weights;

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use kernels::backend::{Backend, Columns};
use kernels::cpu::Cpu;
use schemas::arch::{BlockDraft, Hparams, LayerKind};

use crate::batch::{Embedding, NO_TOKEN};
use crate::cache::{Cache, LayerCache, Places};
use crate::context::ContextConfig;
use crate::error::ModelError;
use crate::rope_positions::Axes;

pub use assistant::ClusterTokens;
pub(crate) use assistant::lent_blocks;
pub(crate) use dflash2::host_bytes;
pub use eagle3::Fusion;
pub(crate) use loader::mtp_blocks;
pub use loader::{
    Loader, load_assistant, load_block_draft, load_eagle3, load_mtp_head, load_target,
};
pub use scratch::{Scratch, ScratchShape};
pub use weights::check_values;

use assistant::Assistant;
use gemma4::PerLayerInput;
use matrix::Matrix;
use streams::{Mixer, mean, spread};
use weights::Weights;

type LoadLayer<B> = fn(&mut Weights<'_, B>) -> Result<Box<dyn Layer<B>>, ModelError>;

/// Returns the loader of an architecture's layers.
fn layer_loader<B: Backend>(arch: &str) -> Option<LoadLayer<B>> {
    let on_cpu: &dyn Any = &cpu_layer_loader(arch);
    match on_cpu.downcast_ref() {
        Some(loader) => *loader,
        None => listed_layer_loader(arch),
    }
}

/// [`listed_layer_loader`] of the CPU. Generic code is compiled where the backend is named, which programs do; they are not
/// optimized in the profile `release`.
#[inline(never)]
fn cpu_layer_loader(arch: &str) -> Option<LoadLayer<Cpu>> {
    listed_layer_loader(arch)
}

/// Returns the loader of an architecture in this list; others cannot be run.
fn listed_layer_loader<B: Backend>(arch: &str) -> Option<LoadLayer<B>> {
    match arch {
        "deepseek2" => Some(deepseek2::load),
        "deepseek4" => Some(deepseek4::load),
        "dflash" => Some(dflash::load),
        "eagle3" => Some(eagle3::load),
        "gemma3" => Some(gemma3::load),
        "gemma4" | "gemma4-assistant" => Some(gemma4::load),
        "glm4moe" => Some(glm4moe::load),
        "gpt-oss" => Some(gpt_oss::load),
        "llama" => Some(llama::load),
        "mimo2" => Some(mimo2::load),
        "nemotron_h" | "nemotron_h_moe" => Some(nemotron_h::load),
        "qwen2" => Some(qwen2::load),
        "qwen3" | "qwen3moe" => Some(qwen3::load),
        "qwen3next" => Some(qwen3next::load),
        "qwen35" | "qwen35moe" => Some(qwen35::load),
        "step35" => Some(step35::load),
        _ => None,
    }
}

/// A stack of layers between an input and the vocabulary.
pub struct Model<B: Backend> {
    /// Hyperparameters.
    pub hparams: Hparams,
    /// Blocks of the file, of which each has a cache.
    pub blocks: Range<u32>,
    /// Bytes of weights that one pass reads.
    pub pass_bytes: usize,
    /// Multiply-adds of one prompt token with weights, without the output head.
    multiply_adds: u64,
    /// Layers whose input is kept for an EAGLE-3 draft, in the order of concatenation; the number
    /// of layers means the output of the last one.
    pub taps: Vec<u32>,
    /// The target's token of each row of the output head, if the head has a reduced vocabulary.
    tokens: Option<Vec<u32>>,
    input: Input<B>,
    layers: Vec<Box<dyn Layer<B>>>,
    /// The final norm: (n_embd).
    norm: B::Weight,
    /// The mixer of the residual streams before the final norm, if there are several.
    mixer: Option<Mixer<B>>,
    /// True if the final norm subtracts the mean.
    centered_norm: bool,
    /// The output head, the embedding where they are tied: (n_out, n_embd).
    head: Arc<Matrix<B>>,
    /// Index of each layer's cache.
    caches: Vec<usize>,
    /// MTP heads after this one: each drafts the token after that of the head before it.
    chained: Vec<Model<B>>,
    /// The parts of an assistant after its layers.
    assistant: Option<Assistant<B>>,
    /// The Markov head of a DSpark draft.
    markov: Option<dflash::Markov<B>>,
    /// The selector of a DFlash2 draft.
    selector: Option<dflash2::Selector<B>>,
    /// Factor on the logits, if there is one.
    logit_scale: Option<f32>,
}

/// Input of the first layer.
enum Input<B: Backend> {
    /// Token embeddings: a target, a draft model.
    Tokens {
        /// (n_vocab, n_embd)
        embd: Arc<Matrix<B>>,
        /// Factor on the embeddings, if there is one.
        scale: Option<f32>,
        /// Embeddings for each layer.
        per_layer: Option<Box<PerLayerInput<B>>>,
    },
    /// Token embeddings concatenated with the target's hidden state of the previous position: an
    /// MTP head.
    Mtp {
        /// (n_vocab, n_embd)
        embd: Arc<Matrix<B>>,
        /// (n_embd)
        enorm: B::Weight,
        /// (n_embd)
        hnorm: B::Weight,
        /// Embedding half first: (n_embd, 2 * n_embd)
        eh_proj: Matrix<B>,
    },
    /// The target's fused features, or the output of the previous step, concatenated with the
    /// normalised embedding of the next token: an EAGLE-3 draft.
    Eagle3 {
        /// (n_vocab, n_embd)
        embd: Arc<Matrix<B>>,
        /// (n_embd)
        norm: B::Weight,
    },
    /// The target's token embeddings concatenated with its hidden state of the previous position, or with the
    /// state of the previous step: an assistant.
    Assistant {
        /// (n_vocab, n_embd_target)
        embd: Arc<Matrix<B>>,
        /// Factor on the embeddings.
        scale: f32,
        /// Embedding half first: (n_embd, 2 * n_embd_target)
        projection: Matrix<B>,
        n_embd_target: usize,
    },
}

/// Divides rows by their root mean square.
fn unweighted_norm<B: Backend>(backend: &B, x: &mut B::Buffer, eps: f32, dim: usize, n: usize) {
    // The root mean square is the Euclidean norm divided by the root of the size.
    backend.l2_norm(x, eps * dim as f32, dim, n);
    backend.scale(x, (dim as f32).sqrt(), n * dim);
}

/// One layer: reads and updates the residual stream, `pass.s.x`.
trait Layer<B: Backend>: Send + Sync {
    fn forward(&self, pass: &mut Pass<'_, B>);

    /// Stores keys and values of the target's fused features, (n, n_embd), for a block draft.
    fn inject(&self, _pass: &mut Pass<'_, B>, _features: &B::Buffer) {
        unreachable!("only block drafts are given features")
    }
}

/// Arguments of a layer's forward pass.
struct Pass<'a, B: Backend> {
    backend: &'a B,
    /// Token ids; none where a block draft stores fused features.
    tokens: &'a [u32],
    /// Tokens in the batch.
    n: usize,
    positions: &'a [u32],
    /// Coordinates of the tokens, if they are not the positions.
    axes: Option<&'a Axes>,
    places: &'a Places,
    cache: &'a mut LayerCache<B>,
    s: &'a mut Scratch<B>,
}

/// Input of a forward pass.
pub struct PassInput<'a, B: Backend> {
    /// Token ids; [`NO_TOKEN`] for an embedding.
    pub tokens: &'a [u32],
    /// Indices of tokens that were chosen on the device; `tokens` then only gives their number.
    pub chosen: Option<(&'a B::Chosen, &'a [usize])>,
    /// The embeddings, in order.
    pub embeddings: &'a [Embedding],
    /// Positions of the tokens.
    pub positions: &'a [u32],
    /// Coordinates of the tokens, if they are not the positions.
    pub axes: Option<&'a Axes>,
    /// Cache rows of the tokens.
    pub places: &'a Places,
    /// For an MTP head the target's hidden state before each token, for an EAGLE-3 draft
    /// the fused features before it: (n, n_embd).
    pub hidden: Option<&'a B::Buffer>,
    /// Rows whose logits are computed.
    pub outputs: &'a [usize],
}

impl<B: Backend> Model<B> {
    /// Returns the kind of cache of each block.
    pub fn kinds(&self) -> &[LayerKind] {
        let Range { start, end } = self.blocks;
        &self.hparams.layers[start as usize..end as usize]
    }

    /// Returns the number of chained MTP heads; 1 for other models.
    pub fn n_heads(&self) -> usize {
        1 + self.chained.len()
    }

    /// Returns one of the chained heads; the first is the model itself.
    pub(crate) fn chained(&self, head: usize) -> &Model<B> {
        match head.checked_sub(1) {
            None => self,
            Some(i) => &self.chained[i],
        }
    }

    /// Returns the number of rows of the output head.
    pub fn n_out(&self) -> usize {
        let reduced = self.tokens.as_ref().map(Vec::len);
        let whole = match self.hparams.assistant {
            Some(own) => own.n_scored(self.hparams.n_vocab),
            None => self.hparams.n_vocab,
        };
        reduced.unwrap_or(whole as usize)
    }

    /// Returns the multiply-adds of a prompt of `n` tokens: with weights (without the output head),
    /// with the keys and values that each token attends to, and in the states of recurrent layers,
    /// each of which is read, updated and multiplied by the query.
    pub fn prompt_multiply_adds(&self, n: u64) -> u64 {
        if self.assistant.is_some() {
            // It does not evaluate prompts.
            return 0;
        }
        let ssm = &self.hparams.ssm;
        let with_keys = |layer: u32, window: u64| {
            let Hparams {
                n_head, head_dim, ..
            } = self.hparams.of_block(layer);
            // Tokens whose window is not full yet, then the others.
            let filling = n.min(window);
            let n_seen = filling * (filling + 1) / 2 + (n - filling) * filling;
            2 * n_seen * n_head * head_dim
        };
        let with_cache = (0..).zip(self.kinds()).map(|(layer, kind)| match kind {
            LayerKind::Attention => {
                let window = self.hparams.window(layer);
                with_keys(layer, window.map_or(n, |window| window.size)) + self.compressed(layer, n)
            }
            // A head is not a layer of the model, so it has no window.
            LayerKind::Mtp => with_keys(self.blocks.start + layer, n),
            LayerKind::Recurrent => {
                n * (ssm.n_channel() * ssm.conv_kernel + 3 * ssm.inner_size * ssm.state_size)
            }
            LayerKind::FeedForward => 0,
        });
        n * self.multiply_adds + with_cache.sum::<u64>()
    }

    /// Returns the multiply-adds of a prompt of `n` tokens with compressed rows: those of attention, and of the indexer.
    fn compressed(&self, layer: u32, n: u64) -> u64 {
        let hparams = self.hparams.of_block(layer);
        let own = &hparams.compressed;
        let Some(n_row) = n.checked_div(own.ratio) else {
            return 0;
        };
        // Each row is seen by all tokens after it, up to a limit per token.
        let n_seen = own.ratio * n_row * (n_row + 1) / 2;
        let attention = 2 * hparams.n_head * hparams.head_dim;
        match schemas::arch::Compressed::has_indexer(own.ratio) {
            false => n_seen * attention,
            true => {
                n_seen.min(n.saturating_mul(own.n_chosen)) * attention
                    + n_seen * own.n_head_indexer * own.indexer_dim
            }
        }
    }

    /// Returns the token of a row of the output head.
    pub fn token(&self, row: u32) -> u32 {
        self.tokens
            .as_ref()
            .map_or(row, |tokens| tokens[row as usize])
    }

    /// Returns the buffer sizes for passes of this model.
    pub fn scratch_shape(&self, config: &ContextConfig) -> ScratchShape {
        ScratchShape {
            n_batch: config.n_batch,
            n_outputs: config.n_outputs,
            n_ctx: config.cache.n_ctx,
            cache_type: config.cache.types.k,
            n_out: self.n_out(),
            n_tap: self.taps.len(),
        }
    }

    /// True if layers choose experts by a table of tokens, which are then needed on the host.
    pub(crate) fn reads_tokens(&self) -> bool {
        let n_hash_layer = self.hparams.compressed.n_hash_layer;
        u64::from(self.blocks.start) < n_hash_layer.min(self.hparams.n_layer.into())
    }

    /// Returns the target's token of each row of the output head, if the head has a reduced
    /// vocabulary.
    pub(crate) fn names(&self) -> Option<&[u32]> {
        self.tokens.as_deref()
    }

    /// Returns the hidden state that MTP heads read, and that is the input of a draft's next step: after
    /// the final norm, or before it for some architectures and for EAGLE-3 drafts.
    pub fn carried<'a>(&self, s: &'a Scratch<B>) -> &'a B::Buffer {
        match self.input {
            Input::Eagle3 { .. } => &s.x,
            Input::Assistant { .. } => &s.lent,
            _ if self.hparams.arch.hidden_before_norm => &s.x,
            Input::Tokens { .. } | Input::Mtp { .. } => &s.hidden,
        }
    }

    /// Runs the layers. Leaves the normalised hidden state of every row in `s.hidden`, and the
    /// logits of the rows in `outputs`, `n_out` each, in `s.logits`.
    pub fn forward(
        &self,
        backend: &B,
        input: &PassInput<'_, B>,
        cache: &mut Cache<B>,
        s: &mut Scratch<B>,
    ) {
        let (n, eps) = (input.tokens.len(), self.hparams.rms_eps);
        self.enter(backend, input, s);
        for (i, layer) in self.layers.iter().enumerate() {
            self.tap(backend, i, n, s);
            let (positions, places) = (input.positions, input.places);
            let cache = cache.layer(self.caches[i]);
            layer.forward(&mut Pass {
                backend,
                tokens: input.tokens,
                n,
                positions,
                axes: input.axes,
                places,
                cache,
                s,
            });
        }
        self.tap(backend, self.layers.len(), n, s);
        let last = match &self.mixer {
            Some(mixer) => {
                mixer.gather(backend, n, s);
                &s.streams.input
            }
            None => &s.x,
        };
        match self.centered_norm {
            true => {
                let eps = self.hparams.layer_norm_eps;
                backend.layer_norm(last, &self.norm, eps, n, &mut s.hidden);
            }
            false => backend.rms_norm(last, &self.norm, eps, n, &mut s.hidden),
        }
        if let Some(assistant) = &self.assistant {
            let projection = &assistant.projection;
            projection.multiply(backend, &s.hidden, n, &mut s.lent);
        }
        self.output(backend, input.outputs, s);
    }

    /// Stores keys and values of the target's fused features, (n, n_embd), in the caches of a block draft.
    pub(crate) fn inject(
        &self,
        backend: &B,
        features: &B::Buffer,
        positions: &[u32],
        places: &Places,
        cache: &mut Cache<B>,
        s: &mut Scratch<B>,
    ) {
        for (i, layer) in self.layers.iter().enumerate() {
            let mut pass = Pass {
                backend,
                tokens: &[],
                n: positions.len(),
                positions,
                axes: None,
                places,
                cache: cache.layer(i),
                s,
            };
            layer.inject(&mut pass, features);
        }
    }

    /// Returns the block of a draft that proposes all tokens in one pass.
    pub fn block(&self) -> Option<BlockDraft> {
        self.hparams.features.as_ref()?.block
    }

    /// True if a block draft's logits depend on the token before.
    pub(crate) fn has_markov(&self) -> bool {
        self.markov.is_some()
    }

    /// True if a block draft states its confidence in a token.
    pub(crate) fn has_confidence(&self) -> bool {
        let markov = self.markov.as_ref();
        markov.is_some_and(|markov| markov.confidence.is_some())
    }

    /// Computes the bias of logits after these tokens into `s.logits`, (n, n_out).
    pub(crate) fn markov_bias(&self, backend: &B, previous: &[u32], s: &mut Scratch<B>) {
        if let Some(markov) = &self.markov {
            backend.embed(&markov.embd, previous, &mut s.wanted);
            let n = previous.len();
            markov.bias.multiply(backend, &s.wanted, n, &mut s.logits);
        }
    }

    /// Computes the confidence in these rows of the last pass, before the sigmoid, into `s.logits`, (n, 1).
    pub(crate) fn confidence(
        &self,
        backend: &B,
        rows: &[usize],
        previous: &[u32],
        s: &mut Scratch<B>,
    ) {
        let Some((markov, weight)) = self
            .markov
            .as_ref()
            .and_then(|markov| Some((markov, markov.confidence.as_ref()?)))
        else {
            return;
        };
        let (n, n_embd, rank) = (rows.len(), self.hparams.n_embd as usize, markov.rank);
        let place = |stride, offset| Columns { stride, offset };
        backend.gather_rows(&s.hidden, n_embd, rows, &mut s.ffn_out);
        backend.embed(&markov.embd, previous, &mut s.wanted);
        let (from, to) = (place(n_embd, 0), place(n_embd + rank, 0));
        backend.copy_columns(&s.ffn_out, from, &mut s.joined, to, n_embd, n);
        let (from, to) = (place(rank, 0), place(n_embd + rank, n_embd));
        backend.copy_columns(&s.wanted, from, &mut s.joined, to, rank, n);
        weight.multiply(backend, &s.joined, n, &mut s.logits);
        if let Some(bias) = &markov.confidence_bias {
            backend.add_bias(&mut s.logits, bias, n);
        }
    }

    /// Computes the logits of these rows of the last pass, `n_out` each, into `s.logits`.
    pub(crate) fn output(&self, backend: &B, rows: &[usize], s: &mut Scratch<B>) {
        if rows.is_empty() {
            return;
        }
        let n_embd = self.hparams.n_embd as usize;
        backend.gather_rows(&s.hidden, n_embd, rows, &mut s.wanted);
        if let Some(clusters) = self.clusters() {
            return clusters.forward(backend, &self.head, rows.len(), s);
        }
        self.head
            .multiply(backend, &s.wanted, rows.len(), &mut s.logits);
        if let Some(scale) = self.logit_scale {
            backend.scale(&mut s.logits, scale, rows.len() * self.n_out());
        }
        if let Some(cap) = self.hparams.logit_softcap {
            backend.softcap(&mut s.logits, cap, rows.len() * self.n_out());
        }
    }

    /// Returns the clusters of an output head that scores only some of the tokens.
    fn clusters(&self) -> Option<&assistant::Clusters<B>> {
        self.assistant.as_ref()?.clusters.as_ref()
    }

    /// Returns the tokens of the logits of the last pass's `n` output rows, where they differ by row.
    pub(crate) fn cluster_tokens(
        &self,
        backend: &B,
        n: usize,
        s: &Scratch<B>,
    ) -> Option<ClusterTokens<'_>> {
        Some(self.clusters()?.tokens(backend, n, s))
    }

    /// Computes the input of the first layer into the residual stream.
    fn enter(&self, backend: &B, input: &PassInput<'_, B>, s: &mut Scratch<B>) {
        let n = input.tokens.len();
        let (n_embd, eps) = (self.hparams.n_embd as usize, self.hparams.rms_eps);
        let n_stream = self.hparams.n_stream() as usize;
        let hidden = || {
            let hidden = input.hidden;
            hidden.expect("the speculator gives a head hidden states")
        };
        let whole = Columns {
            stride: n_embd,
            offset: 0,
        };
        let half = |offset| Columns {
            stride: 2 * n_embd,
            offset,
        };
        match &self.input {
            Input::Tokens {
                embd,
                scale,
                per_layer,
            } => {
                self.embed(backend, embd, *scale, input, s);
                spread(backend, n_stream, n_embd, n, s);
                if let Some(per_layer) = per_layer {
                    per_layer.forward(backend, input, s);
                }
            }
            Input::Mtp {
                embd,
                enorm,
                hnorm,
                eh_proj,
            } => {
                self.embed(backend, embd, None, input, s);
                backend.rms_norm(&s.x, enorm, eps, n, &mut s.normed);
                for stream in 0..n_stream {
                    let to = Columns {
                        stride: 2 * n_stream * n_embd,
                        offset: 2 * stream * n_embd,
                    };
                    backend.copy_columns(&s.normed, whole, &mut s.joined, to, n_embd, n);
                }
                let n = n * n_stream;
                backend.rms_norm(hidden(), hnorm, eps, n, &mut s.normed);
                backend.copy_columns(&s.normed, whole, &mut s.joined, half(n_embd), n_embd, n);
                eh_proj.multiply(backend, &s.joined, n, &mut s.x);
            }
            Input::Eagle3 { embd, norm } => {
                self.embed(backend, embd, None, input, s);
                backend.rms_norm(&s.x, norm, eps, n, &mut s.normed);
                backend.copy_columns(&s.normed, whole, &mut s.joined, half(0), n_embd, n);
                backend.copy_rows(hidden(), 0, &mut s.x, 0, n_embd, n);
            }
            Input::Assistant {
                embd,
                scale,
                projection,
                n_embd_target: width,
            } => {
                let place = |stride, offset| Columns { stride, offset };
                let (whole, half) = (place(*width, 0), |offset| place(2 * width, offset));
                backend.embed(&embd.weight, input.tokens, &mut s.lent);
                backend.scale(&mut s.lent, *scale, n * width);
                backend.copy_columns(&s.lent, whole, &mut s.joined, half(0), *width, n);
                backend.copy_columns(hidden(), whole, &mut s.joined, half(*width), *width, n);
                projection.multiply(backend, &s.joined, n, &mut s.x);
            }
        }
    }

    /// Looks up the embeddings of tokens and inserts those given as input. A given embedding of
    /// another width, as a draft model's table may have, is replaced by zeros: its position counts,
    /// its content is left to the target.
    fn embed(
        &self,
        backend: &B,
        table: &Matrix<B>,
        scale: Option<f32>,
        input: &PassInput<'_, B>,
        s: &mut Scratch<B>,
    ) {
        let (n, n_embd) = (input.tokens.len(), self.hparams.n_embd as usize);
        if let Some((chosen, places)) = input.chosen {
            backend.embed_chosen(&table.weight, chosen, places, &mut s.x);
        } else {
            let has_row = |&token: &u32| if token == NO_TOKEN { 0 } else { token };
            s.tokens.clear();
            s.tokens.extend(input.tokens.iter().map(has_row));
            backend.embed(&table.weight, &s.tokens, &mut s.x);
        }
        if let Some(scale) = scale {
            backend.scale(&mut s.x, scale, n * n_embd);
        }
        let rows = (0..n).filter(|&row| input.tokens[row] == NO_TOKEN);
        for (row, embedding) in rows.zip(input.embeddings) {
            match embedding.len() == n_embd {
                true => backend.upload(embedding, &mut s.x, row * n_embd),
                false => backend.upload(&vec![0.0; n_embd], &mut s.x, row * n_embd),
            }
        }
    }

    /// Copies the residual stream before a layer, if a draft reads it.
    fn tap(&self, backend: &B, layer: usize, n: usize, s: &mut Scratch<B>) {
        let n_embd = self.hparams.n_embd as usize;
        let place = |stride, offset| Columns { stride, offset };
        for (i, &tapped) in self.taps.iter().enumerate() {
            if tapped as usize == layer {
                let n_stream = self.hparams.n_stream() as usize;
                let is_mixed = n_stream > 1;
                if is_mixed {
                    mean(backend, n_stream, n_embd, n, s);
                }
                let from_rows = if is_mixed { &s.normed } else { &s.x };
                let (from, to) = (
                    place(n_embd, 0),
                    place(self.taps.len() * n_embd, i * n_embd),
                );
                backend.copy_columns(from_rows, from, &mut s.features, to, n_embd, n);
            }
        }
    }
}
