//! `draft-simple` with a draft model of another tokenizer: the text is translated token by token
//! into the draft model's tokens, and drafts back, by a vocabulary map.
//!
//! A translation can be wrong: the draft model's tokenizer would often cut the same text otherwise.
//! That costs drafts, never the text.

use kernels::backend::Backend;
use schemas::vocab::VocabMap;

use crate::batch::{SeqId, Text};
use crate::context::Context;
use crate::error::Error;

use super::chain::ChainConfig;
use super::reader::Reader;
use super::{Committed, DraftRequest, Guessing, SpecType, Speculator, TargetPass};

/// A draft model with a tokenizer of its own.
pub struct TranslatedDraft<B: Backend> {
    reader: Reader<B>,
    map: VocabMap,
    chain: ChainConfig,
    texts: Vec<Translated>,
}

/// A sequence's text in the draft model's tokens.
#[derive(Clone, Debug, Default)]
struct Translated {
    text: Text,
    /// Where each of the target's tokens ends.
    ends: Vec<usize>,
}

impl Translated {
    /// Forgets the target's tokens from `len` on.
    fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.text.truncate(self.ends.last().copied().unwrap_or(0));
    }
}

impl<B: Backend> TranslatedDraft<B> {
    /// Drafts with the model of this context, whose tokens are the map's draft side.
    pub fn new(context: Context<B>, map: VocabMap, chain: ChainConfig) -> TranslatedDraft<B> {
        TranslatedDraft {
            texts: vec![Translated::default(); context.config().cache.n_seq],
            reader: Reader::new(context),
            map,
            chain,
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

    fn begin(&mut self, seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        let text = &self.texts[seq].text;
        if text.len() <= self.reader.context.config().cache.n_ctx {
            self.reader.catch_up(seq, text);
        }
        Ok(())
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        let n_ctx = self.reader.context.config().cache.n_ctx;
        for run in pass.batch.runs() {
            let Translated { text, ends } = &mut self.texts[run.seq];
            let position = pass.batch.positions[run.rows.start] as usize;
            ends.truncate(position);
            text.truncate(ends.last().copied().unwrap_or(0));
            self.reader.cut(run.seq, text.len());
            for &token in &pass.batch.tokens[run.rows] {
                text.tokens.extend(self.map.target_to_draft.of(token));
                ends.push(text.len());
            }
            if text.len() <= n_ctx {
                self.reader.went_on(run.seq, text);
            }
        }
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        let n_ctx = self.reader.context.config().cache.n_ctx;
        // The newest token goes in front of the chain but for its last part, which starts it.
        let mut places = Vec::new();
        let mut inner = Vec::new();
        let mut texts = Vec::new();
        for (place, request) in requests.iter().enumerate() {
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
            places.push(place);
            inner.push(DraftRequest {
                seq: request.seq,
                history: &[],
                last,
                n_max: request.n_max,
                // The noise of a draw belongs to tokens of the target.
                guessing: Guessing::Likeliest,
                draft: Vec::new(),
                guesses: Vec::new(),
            });
        }
        let texts: Vec<&Text> = texts.iter().collect();
        self.reader.draft(&self.chain, &mut inner, &texts)?;
        for (place, inner) in places.into_iter().zip(inner) {
            let request = &mut requests[place];
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
        self.reader.share(from, to);
        self.truncate(to, len)
    }

    fn truncate(&mut self, seq: SeqId, len: u32) -> Result<u32, Error> {
        self.texts[seq].truncate(len as usize);
        self.reader.cut(seq, self.texts[seq].text.len());
        Ok(len)
    }
}
