//! `draft-simple` with a draft model of another tokenizer: a vocabulary map translates the text
//! token by token into the draft model's tokens, and drafts back.
//!
//! A translation can differ from what the draft model's tokenizer would produce. That lowers the
//! acceptance rate and never changes the text.

use kernels::backend::Backend;
use schemas::vocab::VocabMap;

use crate::batch::{SeqId, Text};
use crate::context::Context;
use crate::error::Error;

use crate::speculate::lazy_draft_context::LazyDraftContext;
use crate::speculate::model_draft::DraftLimits;
use crate::speculate::{Committed, DraftRequest, DraftSampling, SpecType, Speculator, TargetPass};

/// A draft model with its own tokenizer.
pub struct TranslatedDraft<B: Backend> {
    draft: LazyDraftContext<B>,
    map: VocabMap,
    limits: DraftLimits,
    texts: Vec<Translated>,
}

/// A sequence's text in the draft model's tokens.
#[derive(Clone, Debug, Default)]
struct Translated {
    text: Text,
    /// End of each of the target's tokens, in draft tokens.
    ends: Vec<usize>,
}

impl Translated {
    /// Drops the target's tokens from `len` on.
    fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.text.truncate(self.ends.last().copied().unwrap_or(0));
    }
}

impl<B: Backend> TranslatedDraft<B> {
    /// Creates a speculator that drafts with this context's model; the map's draft side is its
    /// vocabulary.
    pub fn new(context: Context<B>, map: VocabMap, limits: DraftLimits) -> TranslatedDraft<B> {
        TranslatedDraft {
            texts: vec![Translated::default(); context.config().cache.n_seq],
            draft: LazyDraftContext::new(context),
            map,
            limits,
        }
    }

    /// Translates a draft into the target's tokens, up to the first token without a translation.
    fn translate(&self, draft: &[u32], n_max: usize) -> Vec<u32> {
        let translated = draft
            .iter()
            .map(|&token| self.map.draft_to_target.of(token));
        let known = translated.take_while(|tokens| !tokens.is_empty());
        known.flatten().copied().take(n_max).collect()
    }
}

impl<B: Backend> Speculator<B> for TranslatedDraft<B> {
    fn kind(&self) -> SpecType {
        SpecType::DraftSimple
    }

    fn n_max(&self) -> usize {
        self.limits.n_max
    }

    fn begin(&mut self, seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        let text = &self.texts[seq].text;
        if text.len() <= self.draft.context.config().cache.n_ctx {
            self.draft.catch_up(seq, text);
        }
        Ok(())
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        let n_ctx = self.draft.context.config().cache.n_ctx;
        for run in pass.batch.runs() {
            let Translated { text, ends } = &mut self.texts[run.seq];
            let position = pass.batch.positions[run.rows.start] as usize;
            ends.truncate(position);
            text.truncate(ends.last().copied().unwrap_or(0));
            self.draft.truncate(run.seq, text.len());
            for &token in &pass.batch.tokens[run.rows] {
                text.tokens.extend(self.map.target_to_draft.of(token));
                ends.push(text.len());
            }
            if text.len() <= n_ctx {
                self.draft.extend(run.seq, text);
            }
        }
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        let n_ctx = self.draft.context.config().cache.n_ctx;
        // The draft tokens of the newest token extend the text, except for the last one, which
        // starts the draft.
        let mut indices = Vec::new();
        let mut inner = Vec::new();
        let mut texts = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            let newest = self.map.target_to_draft.of(request.last);
            let Some((&last, before)) = newest.split_last() else {
                continue;
            };
            let mut text = self.texts[request.seq].text.clone();
            if text.len() + newest.len() + request.n_max > n_ctx {
                continue;
            }
            text.tokens.extend_from_slice(before);
            texts.push(text);
            indices.push(i);
            inner.push(DraftRequest {
                seq: request.seq,
                history: &[],
                last,
                n_max: request.n_max,
                // A random draw belongs to a token of the target, so drafts are greedy.
                sampling: DraftSampling::Greedy,
                draft: Vec::new(),
                distributions: Vec::new(),
            });
        }
        let texts: Vec<&Text> = texts.iter().collect();
        self.draft.draft(&self.limits, &mut inner, &texts)?;
        for (i, inner) in indices.into_iter().zip(inner) {
            let request = &mut requests[i];
            request.draft = self.translate(&inner.draft, request.n_max);
        }
        Ok(())
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        self.texts[committed.seq].truncate(committed.len as usize);
        Ok(())
    }

    fn share(&mut self, from: SeqId, to: SeqId, len: u32) -> Result<u32, Error> {
        self.texts[to] = self.texts[from].clone();
        self.draft.share(from, to);
        self.truncate(to, len)
    }

    fn truncate(&mut self, seq: SeqId, len: u32) -> Result<u32, Error> {
        self.texts[seq].truncate(len as usize);
        self.draft.truncate(seq, self.texts[seq].text.len());
        Ok(len)
    }
}
