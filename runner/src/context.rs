//! [`Context`]: a model with memory of its sequences. Targets, draft models and MTP heads each run
//! in one.

use std::sync::Arc;

use kernels::backend::{Backend, Failure, Largest};

use crate::batch::{Batch, Outputs, SeqId, Text};
use crate::cache::{Cache, CacheConfig, Places};
use crate::error::ModelError;
use crate::load::MAX_DRAFT;
use crate::memory::Memory;
use crate::model::{Model, PassInput, Scratch};

/// Sizes of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextConfig {
    /// What the caches hold.
    pub cache: CacheConfig,
    /// Most tokens of one pass.
    pub n_batch: usize,
    /// Most rows of one pass whose logits are wanted.
    pub n_outputs: usize,
}

impl ContextConfig {
    /// Tokens that are chosen before the host takes them: those of a pass, or of a whole chain of drafts.
    pub(crate) fn n_chosen(&self) -> usize {
        (MAX_DRAFT + 1) * self.n_outputs
    }
}

/// A model, its caches, and room for one pass.
///
/// A sequence can be taken back to any position. Where recurrent layers no longer hold the state of
/// that position, what lies behind the nearest state they hold is run again, in front of the next
/// pass.
pub struct Context<B: Backend> {
    backend: Arc<B>,
    model: Arc<Model<B>>,
    cache: Cache<B>,
    /// What each sequence holds, from its first position on; kept only where some of it may have to
    /// run again.
    texts: Vec<Started>,
    /// Where the last pass wrote.
    places: Places,
    scratch: Scratch<B>,
    results: Results<B>,
    config: ContextConfig,
    n_run: u64,
}

/// What became of the rows whose logits are wanted.
struct Results<B: Backend> {
    /// How many there were in the last pass.
    n: usize,
    /// Their logits, where the host has them: (n, n_out).
    logits: Vec<f32>,
    /// The likeliest of each, likewise.
    likeliest: Vec<Largest>,
    /// Tokens chosen where they were computed: (steps of a chain of drafts, n_outputs).
    chosen: B::Chosen,
}

/// A sequence's text.
#[derive(Debug)]
struct Started {
    /// Position of its first token.
    at: u32,
    text: Text,
}

impl Started {
    fn restart(&mut self, at: u32) {
        self.at = at;
        self.text.truncate(0);
    }
}

impl<B: Backend> Context<B> {
    /// Allocates caches and activations. Contexts may share a model.
    ///
    /// # Errors
    /// Caches and activations do not fit.
    pub fn new(
        backend: Arc<B>,
        model: impl Into<Arc<Model<B>>>,
        config: ContextConfig,
    ) -> Result<Context<B>, ModelError> {
        let model = model.into();
        let cache = Cache::new(&*backend, &model.hparams, &model.kinds, config.cache)?;
        let shape = model.scratch_shape(config.n_batch, config.n_outputs);
        let scratch = Scratch::new(&*backend, &model.hparams, shape);
        let results = Results {
            n: 0,
            logits: Vec::new(),
            likeliest: Vec::new(),
            chosen: backend.tokens(config.n_chosen()),
        };
        if let Some(failure) = backend.failure() {
            return Err(failure.into());
        }
        let n_kept = match cache.has_recurrent() {
            true => config.cache.n_ctx,
            false => 0,
        };
        let nothing = |_| Started {
            at: 0,
            text: Text::with_capacity(n_kept),
        };
        Ok(Context {
            backend,
            model,
            texts: (0..config.cache.n_seq).map(nothing).collect(),
            cache,
            places: Places::default(),
            scratch,
            results,
            config,
            n_run: 0,
        })
    }

    /// Where it computes.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The model.
    pub fn model(&self) -> &Model<B> {
        &self.model
    }

    /// The sizes.
    pub fn config(&self) -> &ContextConfig {
        &self.config
    }

    /// Whether a sequence can be taken back, or shared, at no cost at some positions only.
    pub fn has_states(&self) -> bool {
        self.cache.has_recurrent()
    }

    /// Tokens that went through the model so far, those that had to again among them.
    pub fn n_run(&self) -> u64 {
        self.n_run
    }

    /// Positions held of a sequence.
    pub fn len(&self, seq: SeqId) -> u32 {
        match self.cache.has_recurrent() {
            true => self.texts[seq].at + self.texts[seq].text.len() as u32,
            false => self.cache.len(seq),
        }
    }

    /// Runs a batch behind what the caches hold. `hidden` is what a head sees of its trunk: for each
    /// token the trunk's hidden state, or its fused features, of the position before, (n, n_embd).
    /// Returns the logits of the wanted rows, in order, as many each as the output head has rows.
    pub fn forward(&mut self, batch: &Batch, hidden: Option<&B::Buffer>) -> &[f32] {
        self.run(batch, hidden);
        self.download_logits()
    }

    /// [`Context::forward`], with the logits left where they were computed.
    pub fn run(&mut self, batch: &Batch, hidden: Option<&B::Buffer>) {
        if self.cache.has_recurrent() {
            self.run_again(batch);
            for run in batch.runs() {
                self.texts[run.seq].text.extend(batch.part(run.rows));
            }
        }
        self.pass(batch, None, hidden);
    }

    /// Takes the logits of the last pass to the host; see [`Context::logits`].
    pub fn download_logits(&mut self) -> &[f32] {
        let Results { n, logits, .. } = &mut self.results;
        logits.resize(*n * self.model.n_out(), 0.0);
        if *n > 0 {
            self.backend.download(&self.scratch.logits, 0, logits);
        }
        logits
    }

    /// Takes the likeliest token of each of the last pass's wanted rows to the host, with its logit:
    /// what [`Largest::of`] says of each row of logits, which stay where they were computed.
    pub fn download_likeliest(&mut self) -> &[Largest] {
        self.choose(0);
        let n = self.results.n;
        self.download_chosen(n)
    }

    /// Whether a pass can take tokens that the host has not seen: not where texts may have to run
    /// again.
    pub(crate) fn takes_chosen(&self) -> bool {
        !self.cache.has_recurrent()
    }

    /// Chooses the likeliest token of each of the last pass's wanted rows, where they were computed,
    /// and keeps them from a place on.
    pub(crate) fn choose(&mut self, at: usize) {
        let (results, model) = (&mut self.results, &self.model);
        let places = at..at + results.n;
        let logits = &self.scratch.logits;
        if !places.is_empty() {
            let (n_out, names) = (model.n_out(), model.names());
            self.backend
                .choose(logits, n_out, names, &mut results.chosen, places);
        }
    }

    /// Runs a batch whose tokens are those that were chosen at some places.
    pub(crate) fn run_chosen(
        &mut self,
        batch: &Batch,
        places: &[usize],
        hidden: Option<&B::Buffer>,
    ) {
        self.pass(batch, Some(places), hidden);
    }

    /// Takes what was chosen to the host: the first `n`.
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

    /// Runs what the batch's sequences hold by their texts, but no longer in their caches.
    fn run_again(&mut self, batch: &Batch) {
        loop {
            let mut again = Batch::default();
            for run in batch.runs() {
                let Started { at, text } = &self.texts[run.seq];
                let held = self.cache.len(run.seq);
                let start = (held - at) as usize;
                let n = (text.len() - start).min(self.config.n_batch - again.len());
                again.push_part(run.seq, held, text.part(start..start + n), Outputs::None);
            }
            if again.is_empty() {
                return;
            }
            self.pass(&again, None, None);
        }
    }

    /// `chosen` is where its tokens were chosen, if the host does not know them.
    fn pass(&mut self, batch: &Batch, chosen: Option<&[usize]>, hidden: Option<&B::Buffer>) {
        assert!(
            batch.len() <= self.config.n_batch,
            "batches are cut to n_batch tokens"
        );
        assert!(
            batch.outputs.len() <= self.config.n_outputs,
            "outputs are within n_outputs"
        );
        self.n_run += batch.len() as u64;
        self.cache.place(batch, &mut self.places);
        let input = PassInput {
            tokens: &batch.tokens,
            chosen: chosen.map(|places| (&self.results.chosen, places)),
            embeddings: &batch.embeddings,
            positions: &batch.positions,
            places: &self.places,
            hidden,
            outputs: &batch.outputs,
        };
        self.model
            .forward(&self.backend, &input, &mut self.cache, &mut self.scratch);
        self.results.n = batch.outputs.len();
    }

    /// Whether all passes so far have given results.
    ///
    /// # Errors
    /// The device failed meanwhile.
    pub fn check(&self) -> Result<(), Failure> {
        self.backend.failure().map_or(Ok(()), Err)
    }

    /// What the last [`Context::forward`] returned, or [`Context::download_logits`].
    pub fn logits(&self) -> &[f32] {
        &self.results.logits
    }

    /// What the last [`Context::download_likeliest`] returned.
    pub fn likeliest(&self) -> &[Largest] {
        &self.results.likeliest
    }

    /// Hidden states after the final norm of the last batch's rows, (n, n_embd).
    pub fn hidden(&self) -> &B::Buffer {
        &self.scratch.hidden
    }

    /// Inputs of the model's tapped layers for the last batch's rows, (n, n_tap * n_embd).
    pub fn features(&self) -> &B::Buffer {
        &self.scratch.features
    }

    /// What a chain of drafts feeds the next step with, for the last batch's rows, (n, n_embd).
    pub fn carried(&self) -> &B::Buffer {
        self.model.carried(&self.scratch)
    }

    /// Drops the positions of a sequence from `len` on. Returns how many positions before `len` the next pass
    /// runs again, because recurrent layers kept no state at `len`.
    pub fn truncate(&mut self, seq: SeqId, len: u32) -> u32 {
        let held = self.cache.truncate(seq, len);
        let Started { at, text } = &mut self.texts[seq];
        match len > *at {
            true => text.truncate((len - *at) as usize),
            false => self.texts[seq].restart(0),
        }
        self.len(seq) - held
    }

    /// Makes a sequence the beginning of another, `len` positions of it: a copy, so that either may go
    /// on as it likes.
    pub fn share(&mut self, from: SeqId, to: SeqId, len: u32) {
        self.cache.share(&self.backend, from, to, len);
        if self.cache.has_recurrent() {
            let [source, copy] = self
                .texts
                .get_disjoint_mut([from, to])
                .expect("two sequences of the context");
            copy.restart(source.at);
            let n = len.saturating_sub(source.at) as usize;
            copy.text.extend(source.text.part(0..n));
        }
    }

    /// Forgets a sequence; its next token is that of position `at`, which sees nothing before it.
    pub fn restart(&mut self, seq: SeqId, at: u32) {
        self.cache.restart(seq, at);
        self.texts[seq].restart(at);
    }
}
