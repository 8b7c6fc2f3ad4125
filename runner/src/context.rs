//! [`Context`]: a model with its caches. Targets, draft models and MTP heads each have one.

use std::sync::Arc;

use kernels::backend::{Backend, Failure, Largest};

use crate::batch::{Batch, Outputs, SeqId, Text};
use crate::cache::{Cache, CacheConfig, Places};
use crate::error::ModelError;
use crate::memory::Memory;
use crate::model::{ClusterTokens, Model, PassInput, Scratch};
use crate::rope_positions::{RopePositions, axes};

/// Maximum number of tokens of a prefill pass.
pub const N_BATCH: usize = 512;
/// Maximum draft length of any speculator; every context is sized for it.
pub const MAX_DRAFT: usize = 64;

/// Sizes of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextConfig {
    /// Size of the caches.
    pub cache: CacheConfig,
    /// Maximum number of tokens of a pass.
    pub n_batch: usize,
    /// Maximum number of rows of a pass whose logits are computed.
    pub n_outputs: usize,
}

impl ContextConfig {
    /// Returns the number of tokens chosen on the device before they are copied to the host: those
    /// of a pass, or of all steps of a draft.
    pub(crate) fn n_chosen(&self) -> usize {
        (MAX_DRAFT + 1) * self.n_outputs
    }
}

/// A model, its caches, and the scratch buffers of one pass.
///
/// A sequence can be rolled back to any position. If layers no longer have the state of
/// that position, the tokens after the nearest kept state are evaluated again before the next pass.
pub struct Context<B: Backend> {
    backend: Arc<B>,
    model: Arc<Model<B>>,
    /// The selected one of chained MTP heads.
    head: usize,
    cache: Cache<B>,
    /// The tokens of each sequence, from its first position on; kept only if some of them may have
    /// to be evaluated again.
    texts: Vec<SequenceText>,
    /// Positions of each sequence; used only if they have several coordinates.
    rope_positions: Vec<RopePositions>,
    /// Cache rows of the last pass.
    places: Places,
    scratch: Scratch<B>,
    results: Results<B>,
    config: ContextConfig,
    n_run: u64,
}

/// Outputs of the last pass.
struct Results<B: Backend> {
    /// Number of rows with logits.
    n: usize,
    /// Their logits, if they were copied to the host: (n, n_out).
    logits: Vec<f32>,
    /// The most likely token of each row, if copied to the host.
    likeliest: Vec<Largest>,
    /// Tokens chosen on the device: (steps of a draft, n_outputs).
    chosen: B::Chosen,
}

/// The text of a sequence.
#[derive(Debug)]
struct SequenceText {
    /// Position of its first token.
    at: u32,
    text: Text,
}

impl SequenceText {
    fn restart(&mut self, at: u32) {
        self.at = at;
        self.text.truncate(0);
    }
}

impl<B: Backend> Context<B> {
    /// Allocates caches and scratch buffers. Contexts may share a model.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(
        backend: Arc<B>,
        model: impl Into<Arc<Model<B>>>,
        config: ContextConfig,
    ) -> Result<Context<B>, ModelError> {
        let model = model.into();
        let cache = Cache::new(
            &*backend,
            &model.hparams,
            model.blocks.clone(),
            config.cache,
        )?;
        let shape = model.scratch_shape(&config);
        let scratch = Scratch::new(&*backend, &model.hparams, shape);
        let results = Results {
            n: 0,
            logits: Vec::new(),
            likeliest: Vec::new(),
            chosen: backend.chosen_tokens(config.n_chosen()),
        };
        if let Some(failure) = backend.failure() {
            return Err(failure.into());
        }
        let n_kept = match cache.has_states() {
            true => config.cache.n_ctx,
            false => 0,
        };
        let nothing = |_| SequenceText {
            at: 0,
            text: Text::with_capacity(n_kept),
        };
        Ok(Context {
            backend,
            model,
            head: 0,
            texts: (0..config.cache.n_seq).map(nothing).collect(),
            rope_positions: vec![RopePositions::default(); config.cache.n_seq],
            cache,
            places: Places::default(),
            scratch,
            results,
            config,
            n_run: 0,
        })
    }

    /// Returns the backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Returns the model; of chained MTP heads, the selected one.
    pub fn model(&self) -> &Model<B> {
        self.model.chained(self.head)
    }

    /// Returns the number of chained MTP heads; 1 for other models.
    pub(crate) fn n_heads(&self) -> usize {
        self.model.n_heads()
    }

    /// Selects the head that the next passes run. All heads have the same positions; each fills its own
    /// cache.
    pub fn select_head(&mut self, head: usize) {
        self.head = head;
    }

    /// Returns the sizes.
    pub fn config(&self) -> &ContextConfig {
        &self.config
    }

    /// True if a sequence can be rolled back or shared without recomputation at some positions
    /// only.
    pub fn has_states(&self) -> bool {
        self.cache.has_states()
    }

    /// Returns the number of tokens evaluated so far, repeated evaluations included.
    pub fn n_run(&self) -> u64 {
        self.n_run
    }

    /// Returns the number of positions of a sequence.
    pub fn len(&self, seq: SeqId) -> u32 {
        match self.cache.has_states() {
            true => self.texts[seq].at + self.texts[seq].text.len() as u32,
            false => self.cache.len(seq),
        }
    }

    /// Evaluates a batch after the tokens in the caches. `hidden` is the input of a head: for each
    /// token the target's hidden state, or its fused features, of the previous position, (n,
    /// n_embd). Returns the logits of the output rows, in order, one per row of the output head.
    pub fn forward(&mut self, batch: &Batch, hidden: Option<&B::Buffer>) -> &[f32] {
        self.run(batch, hidden);
        self.download_logits()
    }

    /// Runs [`Context::forward`] but leaves the logits on the device.
    pub fn run(&mut self, batch: &Batch, hidden: Option<&B::Buffer>) {
        if self.cache.has_states() {
            self.run_again(batch);
            for run in batch.runs() {
                self.texts[run.seq].text.extend(batch.slice(run.rows));
            }
        }
        self.pass(batch, None, hidden);
    }

    /// Copies the logits of the last pass to the host; see [`Context::logits`].
    pub fn download_logits(&mut self) -> &[f32] {
        let Results { n, logits, .. } = &mut self.results;
        logits.resize(*n * self.model.chained(self.head).n_out(), 0.0);
        if *n > 0 {
            self.backend.download(&self.scratch.logits, 0, logits);
        }
        logits
    }

    /// Computes the logits of these rows of the last pass, at most `n_outputs`, in place of those that the
    /// pass computed, and copies them to the host.
    pub fn compute_logits(&mut self, rows: &[usize]) -> &[f32] {
        self.check_outputs(rows);
        let model = self.model.chained(self.head);
        model.output(&*self.backend, rows, &mut self.scratch);
        self.results.n = rows.len();
        self.download_logits()
    }

    fn check_outputs(&self, rows: &[usize]) {
        assert!(
            rows.len() <= self.config.n_outputs,
            "outputs are within n_outputs"
        );
    }

    /// Copies the most likely token of each output row of the last pass to the host, with its
    /// logit, as [`Largest::of`] would find it. The logits stay on the device.
    pub fn download_likeliest(&mut self) -> &[Largest] {
        self.choose(0);
        let n = self.results.n;
        self.download_chosen(n)
    }

    /// True if a pass can use tokens that were chosen on the device. That excludes contexts whose
    /// texts may have to be evaluated again.
    pub(crate) fn takes_chosen(&self) -> bool {
        !self.cache.has_states() && !self.model.reads_tokens()
    }

    /// Chooses the most likely token of each output row of the last pass on the device, and stores
    /// them from index `at` on.
    pub(crate) fn choose(&mut self, at: usize) {
        let (results, model) = (&mut self.results, self.model.chained(self.head));
        let places = at..at + results.n;
        let logits = &self.scratch.logits;
        if !places.is_empty() {
            let (n_out, names) = (model.n_out(), model.names());
            self.backend
                .choose(logits, n_out, names, &mut results.chosen, places);
        }
    }

    /// Evaluates a batch whose tokens are those chosen on the device at these indices.
    pub(crate) fn run_chosen(
        &mut self,
        batch: &Batch,
        places: &[usize],
        hidden: Option<&B::Buffer>,
    ) {
        self.pass(batch, Some(places), hidden);
    }

    /// Copies the first `n` chosen tokens to the host.
    pub(crate) fn download_chosen(&mut self, n: usize) -> &[Largest] {
        let Results {
            likeliest, chosen, ..
        } = &mut self.results;
        let nothing = Largest {
            index: 0,
            value: f32::NAN,
        };
        likeliest.resize(n, nothing);
        if n > 0 {
            self.backend.download_chosen(chosen, 0, likeliest);
        }
        likeliest
    }

    /// Evaluates the tokens of the batch's sequences that are in their texts but no longer in the
    /// caches.
    fn run_again(&mut self, batch: &Batch) {
        loop {
            let mut again = Batch::default();
            for run in batch.runs() {
                let SequenceText { at, text } = &self.texts[run.seq];
                let held = self.cache.len(run.seq);
                let start = (held - at) as usize;
                let n = (text.len() - start).min(self.config.n_batch - again.len());
                again.push_slice(run.seq, held, text.slice(start..start + n), Outputs::None);
            }
            if again.is_empty() {
                return;
            }
            self.pass(&again, None, None);
        }
    }

    /// `chosen` are the indices of tokens that were chosen on the device.
    fn pass(&mut self, batch: &Batch, chosen: Option<&[usize]>, hidden: Option<&B::Buffer>) {
        assert!(
            batch.len() <= self.config.n_batch,
            "batches are cut to n_batch tokens"
        );
        self.check_outputs(&batch.outputs);
        self.n_run += batch.len() as u64;
        self.cache.place(batch, &mut self.places);
        let hparams = &self.model.hparams;
        let axes = match hparams.rope_sections {
            Some(_) => axes(&mut self.rope_positions, batch),
            None => None,
        };
        if self.model.block().is_some_and(|block| !block.causal) {
            let window = hparams.window.as_ref().map(|window| window.size as usize);
            self.places.see_whole_runs(batch, window);
        }
        let input = PassInput {
            tokens: &batch.tokens,
            chosen: chosen.map(|places| (&self.results.chosen, places)),
            embeddings: &batch.embeddings,
            positions: &batch.positions,
            axes: axes.as_ref(),
            places: &self.places,
            hidden,
            outputs: &batch.outputs,
        };
        let model = self.model.chained(self.head);
        model.forward(&self.backend, &input, &mut self.cache, &mut self.scratch);
        self.results.n = batch.outputs.len();
    }

    /// Evaluates tokens that attend to all keys and values in the caches of `target`, and stores none. `hidden` has
    /// for each token the target's hidden state, or that of the step before.
    pub fn run_beside(&mut self, target: &mut Context<B>, batch: &Batch, hidden: &B::Buffer) {
        self.check_outputs(&batch.outputs);
        self.n_run += batch.len() as u64;
        target.cache.see(batch, &mut self.places);
        let input = PassInput {
            tokens: &batch.tokens,
            chosen: None,
            embeddings: &batch.embeddings,
            positions: &batch.positions,
            axes: None,
            places: &self.places,
            hidden: Some(hidden),
            outputs: &batch.outputs,
        };
        let (model, cache) = (&self.model, &mut target.cache);
        model.forward(&self.backend, &input, cache, &mut self.scratch);
        self.results.n = batch.outputs.len();
    }

    /// Returns the tokens of the last pass's logits, where they differ by row.
    pub fn cluster_tokens(&self) -> Option<ClusterTokens<'_>> {
        let n = self.results.n;
        self.model.cluster_tokens(&self.backend, n, &self.scratch)
    }

    /// Stores keys and values of the target's fused features, (n, n_embd), for the tokens of a batch: the
    /// verified text of a block draft.
    pub fn inject(&mut self, batch: &Batch, features: &B::Buffer) {
        self.n_run += batch.len() as u64;
        self.cache.place(batch, &mut self.places);
        let (positions, places) = (&batch.positions, &self.places);
        let (cache, scratch) = (&mut self.cache, &mut self.scratch);
        self.model
            .inject(&self.backend, features, positions, places, cache, scratch);
    }

    /// Adds the bias of a DSpark draft after this token to a row of logits; other drafts have none.
    pub fn add_markov_bias(&mut self, previous: u32, logits: &mut [f32]) {
        if self.model.has_markov() {
            let mut bias = Vec::new();
            self.markov_bias(&[previous], &mut bias);
            logits.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
    }

    /// Copies the bias of a block draft's logits after these tokens to the host: (n, n_out).
    pub(crate) fn markov_bias(&mut self, previous: &[u32], bias: &mut Vec<f32>) {
        let (model, backend) = (&self.model, &*self.backend);
        model.markov_bias(backend, previous, &mut self.scratch);
        bias.resize(previous.len() * model.n_out(), 0.0);
        backend.download(&self.scratch.logits, 0, bias);
    }

    /// Adds to the scores of the candidates of a block draft, (n, n_candidate), how well they follow the tokens
    /// before, in these rows of the last pass.
    pub(crate) fn score_candidates(
        &mut self,
        rows: &[usize],
        previous: &[u32],
        candidates: &[u32],
        scores: &mut [f32],
    ) {
        let (model, backend) = (&self.model, &*self.backend);
        model.score_candidates(
            backend,
            rows,
            previous,
            candidates,
            scores,
            &mut self.scratch,
        );
    }

    /// Copies a block draft's confidence in these rows of the last pass, after these tokens, to the host.
    pub(crate) fn confidence(&mut self, rows: &[usize], previous: &[u32]) -> Vec<f32> {
        let (model, backend) = (&self.model, &*self.backend);
        model.confidence(backend, rows, previous, &mut self.scratch);
        let mut found = vec![0.0; rows.len()];
        backend.download(&self.scratch.logits, 0, &mut found);
        for x in &mut found {
            *x = 1.0 / (1.0 + (-*x).exp());
        }
        found
    }

    /// Checks that all passes so far have produced results.
    ///
    /// # Errors
    /// The device failed.
    pub fn check(&self) -> Result<(), Failure> {
        self.backend.failure().map_or(Ok(()), Err)
    }

    /// Returns the result of the last [`Context::forward`] or [`Context::download_logits`].
    pub fn logits(&self) -> &[f32] {
        &self.results.logits
    }

    /// Returns the result of the last [`Context::download_likeliest`].
    pub fn likeliest(&self) -> &[Largest] {
        &self.results.likeliest
    }

    /// Returns the inputs of the model's tapped layers for the last batch, (n, n_tap * n_embd).
    pub fn features(&self) -> &B::Buffer {
        &self.scratch.features
    }

    /// Returns the last batch's hidden states for MTP heads, or for the next step of a draft, (n,
    /// hidden_width).
    pub fn carried(&self) -> &B::Buffer {
        self.model().carried(&self.scratch)
    }

    /// Drops the positions of a sequence from `len` on. Returns how many positions before `len` the
    /// next pass evaluates again, because recurrent layers kept no state at `len`.
    pub fn truncate(&mut self, seq: SeqId, len: u32) -> u32 {
        let held = self.cache.truncate(seq, len);
        self.rope_positions[seq].truncate(len);
        let SequenceText { at, text } = &mut self.texts[seq];
        match len > *at {
            true => text.truncate((len - *at) as usize),
            false => self.texts[seq].restart(0),
        }
        self.len(seq) - held
    }

    /// Replaces a sequence by a copy of the first `len` positions of another. Both can continue
    /// independently.
    pub fn share(&mut self, from: SeqId, to: SeqId, len: u32) {
        self.cache.share(&self.backend, from, to, len);
        self.rope_positions[to] = self.rope_positions[from].clone();
        self.rope_positions[to].truncate(len);
        if self.cache.has_states() {
            let [source, copy] = self
                .texts
                .get_disjoint_mut([from, to])
                .expect("two sequences of the context");
            copy.restart(source.at);
            let n = len.saturating_sub(source.at) as usize;
            copy.text.extend(source.text.slice(0..n));
        }
    }

    /// Clears a sequence. Its next token has position `at` and attends to nothing before it.
    pub fn restart(&mut self, seq: SeqId, at: u32) {
        self.cache.restart(seq, at);
        self.rope_positions[seq].restart(at);
        self.texts[seq].restart(at);
    }
}
