//! [`BlockDrafter`]: a draft that proposes all of its tokens in one pass.
//!
//! Its context has a cache row for every position that the target has run, made of the target's features.
//! Rows of a pass are stored before the pass is verified; those of rejected tokens are dropped afterwards, as
//! in the target. A draft is one pass over the newest token and mask tokens, whose rows are dropped again.

use std::sync::Arc;

use kernels::backend::Backend;
use schemas::arch::Hparams;

use crate::batch::{Batch, Outputs, Run, SeqId};
use crate::context::{Context, ContextConfig};
use crate::error::Error;
use crate::memory::Memory;
use crate::model::Fusion;

use super::model_draft::{DraftLimits, probability_of_largest, take_token, top_probability};
use super::{Committed, DraftRequest, SpecType, Speculator, TargetPass};

/// A draft context that is given the target's features.
pub struct BlockDrafter<B: Backend> {
    kind: SpecType,
    context: Context<B>,
    fusion: Arc<Fusion<B>>,
    limits: DraftLimits,
    features: Features<B>,
    /// Logits of one token of each active request, with the bias of a draft that has one; or the scores of the
    /// candidates.
    biased: Vec<f32>,
}

/// The target's features of one pass.
pub(crate) struct Features<M: Memory> {
    /// Elements of a row.
    width: usize,
    /// (n_batch, width)
    gathered: M::Floats,
    /// (n_batch, n_embd)
    projected: M::Floats,
    /// (n_batch, n_embd)
    fused: M::Floats,
}

impl<M: Memory> Features<M> {
    /// Allocates buffers for a draft with this context configuration.
    pub(crate) fn new(memory: &M, config: &ContextConfig, draft: &Hparams) -> Features<M> {
        let features = draft.features.as_ref();
        let width = features.map_or(0, |features| features.width()) as usize;
        let rows = |width: usize| memory.scratch(config.n_batch * width);
        let n_embd = draft.n_embd as usize;
        Features {
            width,
            gathered: rows(width),
            projected: rows(n_embd),
            fused: rows(n_embd),
        }
    }
}

impl<B: Backend> BlockDrafter<B> {
    /// Returns a speculator of this kind that drafts with this context's block draft.
    pub fn new(
        kind: SpecType,
        context: Context<B>,
        fusion: Arc<Fusion<B>>,
        limits: DraftLimits,
    ) -> BlockDrafter<B> {
        let features = Features::new(
            context.backend(),
            context.config(),
            &context.model().hparams,
        );
        BlockDrafter {
            kind,
            context,
            fusion,
            limits,
            features,
            biased: Vec::new(),
        }
    }

    /// Returns the number of rows of a block before the first that proposes a token.
    fn n_lead(&self) -> usize {
        let block = self.context.model().block();
        usize::from(!block.is_some_and(|block| block.from_anchor))
    }

    /// Runs the blocks of all requests. The number of rows does not depend on what a request can use: rows
    /// of a block see each other, so it would change the draft.
    fn run(&mut self, requests: &[DraftRequest<'_>]) -> Batch {
        let (n_lead, n_max) = (self.n_lead(), self.n_max());
        let block = self.context.model().block();
        let mask = block.map_or(0, |block| block.mask_token);
        let masks = vec![mask; n_max - 1 + n_lead];
        let mut batch = Batch::default();
        for request in requests {
            let at = self.context.len(request.seq);
            let anchor = match n_lead {
                0 => Outputs::All,
                _ => Outputs::None,
            };
            batch.push(request.seq, at, &[request.last], anchor);
            batch.push(request.seq, at + 1, &masks, Outputs::All);
        }
        self.context.forward(&batch, None);
        batch
    }

    /// Takes token `i` of the blocks of the active requests. Returns the requests that are not finished.
    fn take(
        &mut self,
        i: usize,
        batch: &Batch,
        requests: &mut [DraftRequest<'_>],
        active: &[usize],
    ) -> Result<Vec<usize>, Error> {
        if let Some(n) = self.context.model().n_candidate() {
            return self.select(i, n, batch, requests, active);
        }
        let (n_max, n_out) = (self.n_max(), self.context.model().n_out());
        let row = |request: usize| request * n_max + i;
        let mut confidence = None;
        if self.context.model().has_markov() {
            let previous = newest(requests, active);
            if self.limits.p_min > 0.0 && self.context.model().has_confidence() {
                let rows: Vec<usize> = active.iter().map(|&i| batch.outputs[row(i)]).collect();
                confidence = Some(self.context.confidence(&rows, &previous));
            }
            self.context.markov_bias(&previous, &mut self.biased);
        }
        let (model, logits) = (self.context.model(), self.context.logits());
        let mut unfinished = Vec::new();
        for (at, &index) in active.iter().enumerate() {
            let mut logits = &logits[row(index) * n_out..][..n_out];
            if model.has_markov() {
                let biased = &mut self.biased[at * n_out..][..n_out];
                biased
                    .iter_mut()
                    .zip(logits)
                    .for_each(|(x, logit)| *x += logit);
                logits = biased;
            }
            let probability = || match &confidence {
                Some(confidence) => f64::from(confidence[at]),
                None => top_probability(logits),
            };
            let token = |row| model.token(row);
            let request = &mut requests[index];
            if take_token(token, &self.limits, request, logits, probability)? {
                unfinished.push(index);
            }
        }
        Ok(unfinished)
    }

    /// Takes token `i` of the blocks of the active requests from the `n` most likely ones, scored by the token
    /// before. Returns the requests that are not finished.
    fn select(
        &mut self,
        i: usize,
        n: usize,
        batch: &Batch,
        requests: &mut [DraftRequest<'_>],
        active: &[usize],
    ) -> Result<Vec<usize>, Error> {
        let (model, n_max) = (self.context.model(), self.n_max());
        let n_out = model.n_out();
        let row = |&request: &usize| request * n_max + i;
        let mut candidates = Vec::with_capacity(active.len() * n);
        self.biased.clear();
        for at in active.iter().map(row) {
            for (logit, row) in likeliest(&self.context.logits()[at * n_out..][..n_out], n) {
                candidates.push(model.token(row));
                self.biased.push(logit);
            }
        }
        let rows: Vec<usize> = active.iter().map(|i| batch.outputs[row(i)]).collect();
        let previous = newest(requests, active);
        let scores = &mut self.biased;
        (self.context).score_candidates(&rows, &previous, &candidates, scores);
        let mut unfinished = Vec::new();
        let of_requests = scores.chunks_exact(n).zip(candidates.chunks_exact(n));
        for (&index, (scores, tokens)) in active.iter().zip(of_requests) {
            let token = |candidate| tokens[candidate as usize];
            let probability = || probability_of_largest(scores);
            if take_token(
                token,
                &self.limits,
                &mut requests[index],
                scores,
                probability,
            )? {
                unfinished.push(index);
            }
        }
        Ok(unfinished)
    }
}

/// Returns the newest token of each active request.
fn newest(requests: &[DraftRequest<'_>], active: &[usize]) -> Vec<u32> {
    let newest = |&index: &usize| {
        let request = &requests[index];
        request.draft.last().copied().unwrap_or(request.last)
    };
    active.iter().map(newest).collect()
}

/// Returns the `n` largest logits, in descending order, with their indices. NaN is first, so that it shows.
fn likeliest(logits: &[f32], n: usize) -> Vec<(f32, u32)> {
    let mut top: Vec<(f32, u32)> = Vec::with_capacity(n + 1);
    for (index, &logit) in (0..).zip(logits) {
        let place = top.partition_point(|(x, _)| x.total_cmp(&logit).is_ge());
        if place < n {
            top.insert(place, (logit, index));
            top.truncate(n);
        }
    }
    top
}

impl<B: Backend> Speculator<B> for BlockDrafter<B> {
    fn kind(&self) -> SpecType {
        self.kind
    }

    fn n_max(&self) -> usize {
        let block = self.context.model().block();
        let size = block.map_or(0, |block| block.size as usize);
        self.limits.n_max.min(size.saturating_sub(self.n_lead()))
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        let Features {
            width,
            gathered,
            projected,
            fused,
        } = &mut self.features;
        let read = &self.context.model().hparams.features;
        let layers = read.as_ref().map_or(&[][..], |read| &read.layers);
        let states = pass.feature_rows(layers, *width);
        let mut batch = Batch::default();
        for Run { seq, mut rows } in pass.batch.runs() {
            let (position, held) = (pass.batch.positions[rows.start], self.context.len(seq));
            match position > held {
                true => self.context.restart(seq, position),
                // The target ran tokens again that are here already.
                false => rows.start = rows.end.min(rows.start + (held - position) as usize),
            }
            if rows.is_empty() {
                continue;
            }
            let (start, n) = (pass.batch.positions[rows.start], rows.len());
            let backend = self.context.backend();
            states.copy(backend, rows.start, gathered, batch.len(), n);
            batch.push_slice(seq, start, pass.batch.slice(rows), Outputs::None);
        }
        if batch.is_empty() {
            return Ok(());
        }
        let n = batch.len();
        let backend = self.context.backend();
        self.fusion.forward(backend, gathered, n, projected, fused);
        self.context.inject(&batch, fused);
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        if requests.is_empty() || self.n_max() == 0 {
            return Ok(());
        }
        let ends: Vec<(SeqId, u32)> = requests
            .iter()
            .map(|request| (request.seq, self.context.len(request.seq)))
            .collect();
        let batch = self.run(requests);
        let mut active: Vec<usize> = (0..requests.len()).collect();
        for i in 0..self.n_max() {
            if active.is_empty() {
                break;
            }
            active = self.take(i, &batch, requests, &active)?;
        }
        for (seq, end) in ends {
            self.context.truncate(seq, end);
        }
        Ok(())
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        self.context.truncate(committed.seq, committed.len);
        Ok(())
    }

    fn share(&mut self, from: SeqId, to: SeqId, len: u32) -> Result<u32, Error> {
        let len = len.min(self.context.len(from));
        self.context.share(from, to, len);
        Ok(self.context.len(to))
    }

    fn truncate(&mut self, seq: SeqId, len: u32) -> Result<u32, Error> {
        self.context.truncate(seq, len);
        Ok(self.context.len(seq).min(len))
    }
}
