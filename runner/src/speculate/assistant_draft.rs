//! [`AssistantDraft`]: a draft that attends to the keys and values of the target, and has none of its own.
//!
//! The first step of a draft reads the newest token and the target's hidden state of the token before it. Every
//! step has the position of the newest token, and reads the state that the step before returned. No step stores
//! anything, so nothing has to be rolled back: the drafter only keeps the target's states of the last pass, of
//! which one is that of the last accepted token.

use std::ops::Range;

use kernels::backend::Backend;
use schemas::arch::Hparams;

use crate::batch::{Batch, Outputs, Run, SeqId};
use crate::context::{Context, ContextConfig, MAX_DRAFT};
use crate::error::Error;
use crate::memory::Memory;
use crate::sample::Checked;

use super::model_draft::{DraftLimits, take_token, top_probability};
use super::{DraftRequest, DraftSampling, SpecType, Speculator, TargetPass};

/// Rows of a pass that may have to be kept: the newest token and the longest draft.
const N_ROWS: usize = MAX_DRAFT + 1;

/// A draft that attends to the keys and values of the target.
pub struct AssistantDraft<B: Backend> {
    kind: SpecType,
    context: Context<B>,
    limits: DraftLimits,
    states: AssistantStates<B>,
    /// Positions of each sequence's kept states.
    kept: Vec<Range<u32>>,
}

/// Hidden states of the target, and of the steps of a draft.
pub(crate) struct AssistantStates<M: Memory> {
    /// Elements of a state.
    width: usize,
    /// The target's states of the last rows of each sequence's last pass: (n_seq, N_ROWS, width).
    kept: M::Floats,
    /// Inputs of one step: (n_seq, width).
    gathered: M::Floats,
}

impl<M: Memory> AssistantStates<M> {
    /// Allocates the states for an assistant with this context configuration.
    pub(crate) fn new(memory: &M, config: &ContextConfig, draft: &Hparams) -> AssistantStates<M> {
        let n_seq = config.cache.n_seq;
        let width = draft.assistant.map_or(0, |own| own.n_embd_target) as usize;
        AssistantStates {
            width,
            // A read of an unwritten state must show as NaN, as in caches.
            kept: memory.persistent(n_seq * N_ROWS * width),
            gathered: memory.scratch(n_seq * width),
        }
    }
}

impl<B: Backend> AssistantDraft<B> {
    /// Creates a speculator of this kind that drafts with this context's assistant.
    pub fn new(kind: SpecType, context: Context<B>, limits: DraftLimits) -> AssistantDraft<B> {
        let config = context.config();
        let kept = vec![0..0; config.cache.n_seq];
        let states = AssistantStates::new(context.backend(), config, &context.model().hparams);
        AssistantDraft {
            kind,
            context,
            limits,
            states,
            kept,
        }
    }

    /// Returns the row of the kept state of a token.
    fn row(&self, seq: SeqId, position: u32) -> Option<usize> {
        let kept = &self.kept[seq];
        let row = kept.contains(&position).then(|| position - kept.start)?;
        Some(seq * N_ROWS + row as usize)
    }

    /// Adds a token to the draft of each row of the last pass. Returns the rows whose drafts are not finished.
    fn take(
        &mut self,
        requests: &mut [DraftRequest<'_>],
        active: &[usize],
    ) -> Result<Vec<usize>, Error> {
        let is_greedy = |&i: &usize| matches!(requests[i].sampling, DraftSampling::Greedy);
        let mut unfinished = Vec::new();
        if self.limits.p_min == 0.0 && active.iter().all(is_greedy) {
            let n_out = self.context.model().n_out();
            let likeliest = self.context.download_likeliest().to_vec();
            let tokens = self.context.cluster_tokens();
            for (row, (found, &i)) in likeliest.into_iter().zip(active).enumerate() {
                let (column, _) = found.checked(n_out)?;
                let token = tokens
                    .as_ref()
                    .map_or(column, |tokens| tokens.token(row, column));
                requests[i].draft.push(token);
                if requests[i].draft.len() < requests[i].n_max {
                    unfinished.push(row);
                }
            }
            return Ok(unfinished);
        }
        self.context.download_logits();
        let tokens = self.context.cluster_tokens();
        let n_out = self.context.model().n_out();
        let rows = self.context.logits().chunks_exact(n_out).zip(active);
        for (row, (logits, &i)) in rows.enumerate() {
            let token = |column| match &tokens {
                Some(tokens) => tokens.token(row, column),
                None => column,
            };
            let probability = || top_probability(logits);
            let request = &mut requests[i];
            if take_token(token, &self.limits, request, logits, probability)? {
                unfinished.push(row);
            }
        }
        Ok(unfinished)
    }
}

impl<B: Backend> Speculator<B> for AssistantDraft<B> {
    fn kind(&self) -> SpecType {
        self.kind
    }

    fn n_max(&self) -> usize {
        self.limits.n_max
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        let width = self.states.width;
        let states = pass.hidden_rows(width);
        for Run { seq, rows } in pass.batch.runs() {
            let first = rows.end - rows.len().min(N_ROWS);
            let backend = self.context.backend();
            let to = seq * N_ROWS;
            states.copy(backend, first, &mut self.states.kept, to, rows.end - first);
            let positions = &pass.batch.positions;
            self.kept[seq] = positions[first]..positions[rows.end - 1] + 1;
        }
        Ok(())
    }

    /// Drafts nothing: without the target's keys and values there is nothing to attend to.
    fn draft(&mut self, _requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        Ok(())
    }

    fn draft_beside(
        &mut self,
        target: &mut Context<B>,
        requests: &mut [DraftRequest<'_>],
    ) -> Result<(), Error> {
        let width = self.states.width;
        let mut active = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            let before = (request.history.len() as u32).checked_sub(1);
            let Some(from) = before.and_then(|before| self.row(request.seq, before)) else {
                continue;
            };
            let AssistantStates { kept, gathered, .. } = &mut self.states;
            let backend = self.context.backend();
            backend.copy_rows(kept, from, gathered, active.len(), width, 1);
            active.push(i);
        }
        let mut batch = Batch::default();
        while !active.is_empty() {
            batch.clear();
            for &i in &active {
                let request = &requests[i];
                let newest = request.draft.last().copied().unwrap_or(request.last);
                let position = request.history.len() as u32;
                batch.push(request.seq, position, &[newest], Outputs::All);
            }
            self.context
                .run_beside(target, &batch, &self.states.gathered);
            let rows = self.take(requests, &active)?;
            let backend = self.context.backend();
            let gathered = &mut self.states.gathered;
            backend.gather_rows(self.context.carried(), width, &rows, gathered);
            active = rows.into_iter().map(|row| active[row]).collect();
        }
        Ok(())
    }

    fn truncate(&mut self, seq: SeqId, len: u32) -> Result<u32, Error> {
        let Some(last) = len.checked_sub(1) else {
            self.kept[seq] = 0..0;
            return Ok(0);
        };
        match self.row(seq, last) {
            Some(_) => {
                self.kept[seq].end = len;
                Ok(len)
            }
            // The target evaluates the last token again, for its state.
            None => {
                self.kept[seq] = 0..0;
                Ok(last)
            }
        }
    }

    fn share(&mut self, from: SeqId, to: SeqId, len: u32) -> Result<u32, Error> {
        let last = len.saturating_sub(1);
        let Some(row) = self.row(from, last).filter(|_| len > 0) else {
            self.kept[to] = 0..0;
            return Ok(last);
        };
        let AssistantStates { kept, width, .. } = &mut self.states;
        let backend = self.context.backend();
        backend.copy_within(kept, row * *width, to * N_ROWS * *width, *width);
        self.kept[to] = last..len;
        Ok(len)
    }
}
