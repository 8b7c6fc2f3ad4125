//! `draft-simple` with a draft model of another tokenizer: the text is translated token by token
//! into the draft model's tokens, and drafts back, by a vocabulary map.
//!
//! A translation can be wrong: the draft model's tokenizer would often cut the same text otherwise.
//! That costs drafts, never the text.

use kernels::backend::Backend;
use schemas::vocab::VocabMap;

use crate::batch::{Batch, Outputs, SeqId};
use crate::context::Context;
use crate::error::Error;

use super::chain::{ChainConfig, draft_chain};
use super::{Committed, DraftRequest, Guessing, SpecType, Speculator, TargetPass};

/// A draft model with a tokenizer of its own.
pub struct TranslatedDraft<B: Backend> {
    context: Context<B>,
    map: VocabMap,
    chain: ChainConfig,
    texts: Vec<Text>,
}

/// A sequence's text in the draft model's tokens; its caches hold a beginning of it.
#[derive(Clone, Debug, Default)]
struct Text {
    tokens: Vec<u32>,
    /// Where each of the target's tokens ends.
    ends: Vec<usize>,
}

impl Text {
    /// Forgets the target's tokens from `len` on.
    fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.tokens.truncate(self.ends.last().copied().unwrap_or(0));
    }
}

impl<B: Backend> TranslatedDraft<B> {
    /// Drafts with the model of this context, whose tokens are the map's draft side.
    pub fn new(context: Context<B>, map: VocabMap, chain: ChainConfig) -> TranslatedDraft<B> {
        TranslatedDraft {
            texts: vec![Text::default(); context.config().cache.n_seq],
            context,
            map,
            chain,
        }
    }

    /// Takes a sequence back to the target's first `len` tokens.
    fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), Error> {
        self.texts[seq].truncate(len);
        let held = self.texts[seq].tokens.len() as u32;
        // What a recurrent state no longer reaches back to is read again.
        match self.context.truncate(seq, held) {
            Ok(()) => Ok(()),
            Err(_) => self.context.truncate(seq, 0),
        }
    }

    /// Runs the tokens that the caches lack, all sequences together.
    fn catch_up(&mut self, mut wanted: Vec<(SeqId, &[u32])>) {
        let n_batch = self.context.config().n_batch;
        loop {
            let mut batch = Batch::default();
            for (seq, tokens) in &mut wanted {
                let n = tokens.len().min(n_batch - batch.len());
                let (now, later) = tokens.split_at(n);
                batch.push(*seq, self.context.len(*seq), now, Outputs::None);
                *tokens = later;
            }
            if batch.is_empty() {
                return;
            }
            self.context.forward(&batch, None);
        }
    }

    /// The draft in the target's tokens, as far as each has a translation.
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
        self.chain.n_max
    }

    fn begin(&mut self, _seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        Ok(())
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        for run in pass.batch.runs() {
            let position = pass.batch.positions[run.rows.start];
            self.truncate(run.seq, position as usize)?;
            let text = &mut self.texts[run.seq];
            for &token in &pass.batch.tokens[run.rows] {
                text.tokens.extend(self.map.target_to_draft.of(token));
                text.ends.push(text.tokens.len());
            }
        }
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        let n_ctx = self.context.config().cache.n_ctx;
        // The newest token goes into the caches but for its last part, which starts the chain.
        let mut inner = Vec::new();
        let mut behind = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            let newest = self.map.target_to_draft.of(request.last);
            let Some((&last, before)) = newest.split_last() else {
                continue;
            };
            let text = &self.texts[request.seq].tokens;
            if text.len() + newest.len() + request.n_max > n_ctx {
                continue;
            }
            let held = self.context.len(request.seq) as usize;
            behind.push((request.seq, [&text[held..], before].concat()));
            let draft = DraftRequest {
                seq: request.seq,
                history: &[],
                last,
                n_max: request.n_max,
                // The noise of a draw belongs to tokens of the target.
                guessing: Guessing::Likeliest,
                draft: Vec::new(),
                guesses: Vec::new(),
            };
            inner.push((i, draft));
        }
        self.catch_up(behind.iter().map(|(seq, new)| (*seq, &new[..])).collect());
        let (places, mut inner): (Vec<usize>, Vec<_>) = inner.into_iter().unzip();
        draft_chain(&mut self.context, &self.chain, &mut inner, None)?;
        for (place, inner) in places.into_iter().zip(inner) {
            let request = &mut requests[place];
            request.draft = self.translate(&inner.draft, request.n_max);
            self.truncate(request.seq, request.history.len())?;
        }
        Ok(())
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        self.truncate(committed.seq, committed.len as usize)
    }
}
