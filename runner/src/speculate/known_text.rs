//! Drafts at every position of texts that are known before: the target evaluates a text in wide passes, as it would a
//! prompt, and the speculators draft after each of its tokens as if that token had just been chosen.
//!
//! A draft depends on the text before it, not on earlier drafts, and no row of a pass depends on the others. Each draft
//! is therefore the one that decoding verifies at its position, bit for bit, and the counters of decoding follow from
//! the drafts. Speculators that learn from verified drafts, which some n-gram speculators do, are the exception.

use std::convert::Infallible;

use kernels::backend::Backend;
use schemas::progress::{Task, Unit};

use crate::batch::{Batch, Embedding, Outputs, SeqId, Text};
use crate::error::Error;
use crate::sample::{Draw, Sampler};
use crate::tally::{PositionCounts, Tally};

use super::accept::{Accepted, accept};
use super::output_rows::OutputKind;
use super::speculator_set::Draft;
use super::{
    Committed, DraftRequest, DraftSampling, Driver, Request, SpecType, TargetPass, Verification,
};

/// A text to draft for.
#[derive(Clone, Debug)]
pub struct KnownText {
    /// Name of the text in messages.
    pub id: String,
    /// The tokens, more than `n_prompt`; [`NO_TOKEN`](crate::batch::NO_TOKEN) for an embedding of the prompt.
    pub tokens: Vec<u32>,
    /// The embeddings of the prompt, in order.
    pub embeddings: Vec<Embedding>,
    /// Number of tokens at the start after which nothing is drafted; at least one.
    pub n_prompt: usize,
}

/// The drafts for a text. Entry `i` of each list belongs to the position of token `n_prompt + i`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftedText {
    /// The target's choice of the token after this one.
    pub choices: Vec<u32>,
    /// The draft that follows this token.
    pub drafts: Vec<Vec<u32>>,
}

/// Rows of a pass that belong to one text.
struct Window {
    seq: SeqId,
    /// First row of the pass.
    row: usize,
    /// Position of the token in that row.
    start: usize,
    len: usize,
}

impl<B: Backend> Driver<B> {
    /// Drafts after every token of the texts, as many texts at a time as the target has sequences. A text needs a
    /// context that is longer by its longest draft. Returns nothing if `stop` returned true.
    ///
    /// # Errors
    /// A text is empty, out of range or too long, or logits have no largest element.
    pub fn draft_known(
        &mut self,
        texts: &[KnownText],
        sampler: Sampler,
        stop: &dyn Fn() -> bool,
    ) -> Result<Vec<DraftedText>, Error> {
        let n_drafted = |text: &KnownText| text.tokens.len().saturating_sub(text.n_prompt);
        let n_positions = texts.iter().map(n_drafted).sum::<usize>();
        let task = Task::start(
            "draft at every position",
            n_positions as u64,
            Unit::Steps("positions"),
        );
        let mut found = Vec::with_capacity(texts.len());
        let n_seq = self.n_seq();
        for group in texts.chunks(n_seq) {
            for (seq, text) in group.iter().enumerate() {
                self.read_prompt(seq, text)?;
            }
            let first = found.len();
            found.resize_with(first + group.len(), DraftedText::default);
            let mut at: Vec<usize> = group.iter().map(|text| text.n_prompt).collect();
            loop {
                if stop() {
                    return Ok(Vec::new());
                }
                let windows = self.window(group, &mut at);
                if windows.is_empty() {
                    break;
                }
                let n_steps = windows.iter().map(|window| window.len).max();
                for step in 0..n_steps.unwrap_or_default() {
                    let drafted = &mut found[first..];
                    self.draft_step(group, &windows, step, first, sampler, drafted);
                    task.advance(windows.iter().filter(|window| step < window.len).count() as u64);
                }
                self.target.check()?;
                self.choose_window(&windows, first, sampler, &mut found[first..])?;
            }
        }
        Ok(found)
    }

    /// Returns the speculators that failed since the last call, with their errors.
    pub fn take_failures(&mut self) -> Vec<super::Failure> {
        self.speculators.take_failures()
    }

    /// Evaluates the prompt of a text.
    fn read_prompt(&mut self, seq: SeqId, text: &KnownText) -> Result<(), Error> {
        self.check(&Request {
            embeddings: text.embeddings.clone(),
            ..Request::new(&*text.id, text.tokens.clone(), 0)
        })?;
        self.slots[seq] = None;
        let mut at = self.keep(seq, 0);
        let n_batch = self.target.config().n_batch;
        let prompt = Text {
            tokens: text.tokens[..text.n_prompt].to_vec(),
            embeddings: text.embeddings.clone(),
        };
        while at < prompt.len() {
            let end = prompt.len().min(at + n_batch);
            self.evaluate(seq, &prompt, at..end, Outputs::None, OutputKind::Likeliest);
            at = end;
        }
        self.begin(seq, prompt);
        Ok(())
    }

    /// Runs the target over the next tokens of all texts. `at` are the positions that they have reached.
    fn window(&mut self, texts: &[KnownText], at: &mut [usize]) -> Vec<Window> {
        let is_open = |seq: &SeqId| at[*seq] < texts[*seq].tokens.len();
        let open: Vec<SeqId> = (0..texts.len()).filter(is_open).collect();
        let width = self.target.config().n_batch / open.len().max(1);
        let mut batch = Batch::default();
        let mut windows = Vec::new();
        for seq in open {
            let start = at[seq];
            let tokens = &texts[seq].tokens[start..];
            let tokens = &tokens[..tokens.len().min(width)];
            windows.push(Window {
                seq,
                row: batch.push(seq, start as u32, tokens, Outputs::None),
                start,
                len: tokens.len(),
            });
            at[seq] += tokens.len();
        }
        if !windows.is_empty() {
            self.target.run(&batch, None);
        }
        windows
    }

    /// Drafts after one token of each text, and then passes this token's states to the speculators.
    fn draft_step(
        &mut self,
        texts: &[KnownText],
        windows: &[Window],
        step: usize,
        first: usize,
        sampler: Sampler,
        found: &mut [DraftedText],
    ) {
        let n_ctx = self.target.config().cache.n_ctx;
        let active = || windows.iter().filter(|window| step < window.len);
        let requests = active().map(|window| {
            let (seq, position) = (window.seq, window.start + step);
            let tokens = &texts[seq].tokens;
            DraftRequest {
                seq,
                history: &tokens[..position],
                last: tokens[position],
                n_max: n_ctx - position - 1,
                sampling: match sampler.is_greedy() {
                    true => DraftSampling::Greedy,
                    false => DraftSampling::Sampled {
                        sampler,
                        stream: (first + seq) as u64,
                        verification: Verification::Match,
                    },
                },
                draft: Vec::new(),
                distributions: Vec::new(),
            }
        });
        let requests: Vec<DraftRequest<'_>> = requests.collect();
        let mut drafts: Vec<Draft> = Vec::new();
        drafts.resize_with(self.n_seq(), Draft::default);
        self.speculators
            .draft(&mut self.target, &requests, &mut drafts);

        let mut batch = Batch::default();
        let mut rows = Vec::new();
        for window in active() {
            let position = window.start + step;
            let token = texts[window.seq].tokens[position];
            batch.push(window.seq, position as u32, &[token], Outputs::None);
            rows.push(window.row + step);
        }
        let model = self.target.model();
        let n_embd = model.hparams.n_embd as usize;
        let backend = self.target.backend();
        let gather = |from: &B::Buffer, width: usize| {
            let mut to = Backend::scratch(backend, (rows.len() * width).max(1));
            if width > 0 {
                backend.gather_rows(from, width, &rows, &mut to);
            }
            to
        };
        let hidden = gather(self.target.carried(), model.hparams.hidden_width() as usize);
        let features = gather(self.target.features(), n_embd * model.taps.len());
        self.speculators.process(&TargetPass {
            batch: &batch,
            hidden: &hidden,
            features: &features,
            taps: &model.taps,
        });
        for window in active() {
            let draft = &mut drafts[window.seq];
            let committed = Committed {
                seq: window.seq,
                by: draft.by,
                n_accepted: 0,
                len: (window.start + step) as u32 + 1,
            };
            self.speculators.accept(committed, draft.tokens.len());
            found[window.seq]
                .drafts
                .push(std::mem::take(&mut draft.tokens));
        }
    }

    /// Chooses the token after each row of the last target pass.
    fn choose_window(
        &mut self,
        windows: &[Window],
        first: usize,
        sampler: Sampler,
        found: &mut [DraftedText],
    ) -> Result<(), Error> {
        let n_outputs = self.target.config().n_outputs;
        for window in windows {
            let rows: Vec<usize> = (window.row..window.row + window.len).collect();
            let mut position = window.start as u64;
            for rows in rows.chunks(n_outputs) {
                self.target.compute_logits(rows);
                let logits = OutputKind::Logits.rows(&self.target);
                for row in 0..rows.len() {
                    position += 1;
                    let draw = Draw {
                        stream: (first + window.seq) as u64,
                        position,
                    };
                    let choice = logits.sample(row, &sampler, draw)?;
                    found[window.seq].choices.push(choice);
                }
            }
        }
        Ok(())
    }
}

impl DraftedText {
    /// Counts the drafts of all positions whose outcome is known: draft position `k` of a draft counts if the text
    /// has `k` more tokens, and if they are the target's choices. A token counts as accepted if it and all before it
    /// are. `tokens` are those of the text after its prompt.
    pub fn count(&self, tokens: &[u32], is_end: &dyn Fn(u32) -> bool) -> Vec<PositionCounts> {
        let mut counts: Vec<PositionCounts> = Vec::new();
        for (i, draft) in self.drafts.iter().enumerate() {
            // Nothing is drafted after the end of a text.
            if tokens.get(i).is_some_and(|&token| is_end(token)) {
                continue;
            }
            let mut is_accepted = true;
            for (k, &drafted) in draft.iter().enumerate() {
                let Some(&choice) = self.choices.get(i + k) else {
                    break;
                };
                if k > 0 && tokens[i + k] != self.choices[i + k - 1] {
                    break;
                }
                if k > 0 && is_end(tokens[i + k]) {
                    break;
                }
                is_accepted &= drafted == choice;
                if counts.len() <= k {
                    counts.push(PositionCounts::default());
                }
                counts[k].n_drafted += 1;
                counts[k].n_accepted += u64::from(is_accepted);
            }
        }
        counts
    }

    /// Counts the passes of decoding that wrote this text: each begins after the tokens that the pass before
    /// committed. `n_predict` is the number of tokens that could be generated, `tokens` those that were.
    pub fn decoded(
        &self,
        tokens: &[u32],
        by: SpecType,
        n_predict: usize,
        is_end: &dyn Fn(u32) -> bool,
    ) -> Tally {
        let mut tally = Tally {
            n_tokens: tokens.len() as u64,
            ..Tally::default()
        };
        // The first token is chosen from the logits of the prompt.
        let mut i = 0;
        while i + 1 < n_predict.min(self.drafts.len() + 1)
            && tokens.get(i).is_some_and(|&token| !is_end(token))
        {
            // A pass commits one token more than it accepts.
            let n_max = n_predict - i - 2;
            let draft = &self.drafts[i];
            let draft = &draft[..draft.len().min(n_max)];
            // No later choice decides: the text ends there.
            let choose = |k: usize| {
                Ok::<_, Infallible>(self.choices.get(i + k).copied().unwrap_or_default())
            };
            let Accepted { n_accepted, .. } = match accept(draft, choose, is_end) {
                Ok(accepted) => accepted,
                Err(never) => match never {},
            };
            let by = (!draft.is_empty()).then_some(by);
            tally.pass(by, draft.len(), n_accepted);
            i += n_accepted + 1;
        }
        tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u32 = 9;

    fn counts(pairs: &[(u64, u64)]) -> Vec<PositionCounts> {
        let counts = pairs.iter();
        counts
            .map(|&(n_drafted, n_accepted)| PositionCounts {
                n_drafted,
                n_accepted,
            })
            .collect()
    }

    fn is_end(token: u32) -> bool {
        token == END
    }

    #[test]
    fn drafts_count_where_their_outcome_is_known() {
        // The target's own text 1 2 3 4: the draft after 1 is right twice, the others are wrong.
        let own = DraftedText {
            choices: vec![2, 3, 4, 5],
            drafts: vec![vec![2, 3, 0], vec![0, 0, 0], vec![4, 0], vec![0, 0]],
        };
        let found = own.count(&[1, 2, 3, 4], &is_end);
        assert_eq!(found, counts(&[(4, 2), (3, 1), (2, 0)]));
        // A given text 1 7 3 4, of which the target would not have chosen the 7.
        let found = own.count(&[1, 7, 3, 4], &is_end);
        assert_eq!(found, counts(&[(4, 2), (2, 0), (1, 0)]));
        // Nothing is drafted after the end.
        let ended = DraftedText {
            choices: vec![END, 5],
            drafts: vec![vec![END, 5], vec![5, 5]],
        };
        assert_eq!(ended.count(&[1, END], &is_end), counts(&[(1, 1)]));
    }

    #[test]
    fn passes_begin_after_committed_tokens() {
        let own = DraftedText {
            choices: vec![2, 3, 4, 5],
            drafts: vec![vec![2, 3, 0], vec![3, 4, 5], vec![4, 5, 6], vec![0, 0]],
        };
        // After 1, two of two tokens are accepted and one follows; the last token is not followed by a pass.
        let tally = own.decoded(&[1, 2, 3, 4], SpecType::DraftMtp, 4, &is_end);
        assert_eq!((tally.n_passes, tally.n_tokens), (1, 4));
        assert_eq!(tally.by_position, counts(&[(1, 1), (1, 1)]));
        // With a longer text to come, the third token of the draft is verified, too.
        let tally = own.decoded(&[1, 2, 3, 4, 5], SpecType::DraftMtp, 6, &is_end);
        assert_eq!(tally.n_passes, 2);
        assert_eq!(tally.by_position[2], counts(&[(1, 0)])[0]);
    }
}
