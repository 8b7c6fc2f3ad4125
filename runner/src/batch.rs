//! [`Batch`]: tokens of any sequences that go through a model together.

use std::ops::Range;
use std::sync::Arc;

/// Number of a token stream within a context, from 0.
pub type SeqId = usize;

/// What stands in the place of a token id where a row enters as an embedding.
pub const NO_TOKEN: u32 = u32::MAX;

/// Tokens for one pass. The tokens of a sequence stand in order of position, each one after the
/// last that the cache holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Token ids; [`NO_TOKEN`] for a row that enters as an embedding.
    pub tokens: Vec<u32>,
    /// Embeddings of those rows, in their order.
    pub embeddings: Vec<Embedding>,
    /// The sequence of each token.
    pub seqs: Vec<SeqId>,
    /// The position of each token in its sequence.
    pub positions: Vec<u32>,
    /// Rows whose logits are wanted, ascending.
    pub outputs: Vec<usize>,
}

/// What enters a model in place of a token's row of its embedding table, after any scale on it, as
/// parts of an image do: (n_embd).
pub type Embedding = Arc<[f32]>;

/// Which of the tokens just added want their logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// None of them.
    None,
    /// The last one.
    Last,
    /// All.
    All,
}

impl Batch {
    /// Adds tokens of one sequence from position `start` on; returns the row of the first.
    pub fn push(&mut self, seq: SeqId, start: u32, tokens: &[u32], outputs: Outputs) -> usize {
        let first = self.len();
        self.tokens.extend_from_slice(tokens);
        self.seqs.extend(tokens.iter().map(|_| seq));
        self.positions.extend((start..).take(tokens.len()));
        match outputs {
            Outputs::None => {}
            Outputs::Last => self.outputs.extend((first..self.len()).last()),
            Outputs::All => self.outputs.extend(first..self.len()),
        }
        first
    }

    /// The same for a part of a text, which may have embeddings.
    pub fn push_part(
        &mut self,
        seq: SeqId,
        start: u32,
        part: TextPart<'_>,
        outputs: Outputs,
    ) -> usize {
        self.embeddings.extend_from_slice(part.embeddings);
        self.push(seq, start, part.tokens, outputs)
    }

    /// Some of its rows.
    pub fn part(&self, rows: Range<usize>) -> TextPart<'_> {
        TextPart::of(&self.tokens, &self.embeddings, rows)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Empties the batch, keeping its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.embeddings.clear();
        self.seqs.clear();
        self.positions.clear();
        self.outputs.clear();
    }

    /// The rows of each sequence, in order of first appearance.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        let mut end = 0;
        self.seqs.chunk_by(|a, b| a == b).map(move |seqs| {
            let start = end;
            end += seqs.len();
            Run {
                seq: seqs[0],
                rows: start..end,
            }
        })
    }
}

/// Rows of a batch that belong to one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The sequence.
    pub seq: SeqId,
    /// Its rows.
    pub rows: Range<usize>,
}

/// A text as it enters a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text {
    /// Token ids; [`NO_TOKEN`] where it is an embedding.
    pub tokens: Vec<u32>,
    /// The embeddings, in order.
    pub embeddings: Vec<Embedding>,
}

/// Some tokens of a text in a row, with the embeddings among them.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextPart<'a> {
    /// As in [`Text`].
    pub tokens: &'a [u32],
    /// As in [`Text`].
    pub embeddings: &'a [Embedding],
}

fn n_embedded(tokens: &[u32]) -> usize {
    tokens.iter().filter(|&&token| token == NO_TOKEN).count()
}

impl<'a> TextPart<'a> {
    fn of(tokens: &'a [u32], embeddings: &'a [Embedding], range: Range<usize>) -> TextPart<'a> {
        // Most texts have none, and need no counting.
        let (first, n) = match embeddings {
            [] => (0, 0),
            _ => (
                n_embedded(&tokens[..range.start]),
                n_embedded(&tokens[range.clone()]),
            ),
        };
        TextPart {
            tokens: &tokens[range],
            embeddings: &embeddings[first..first + n],
        }
    }

    /// Number of tokens.
    pub fn len(self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.tokens.is_empty()
    }

    /// Its first `n` tokens, and the others.
    pub fn split_at(self, n: usize) -> (TextPart<'a>, TextPart<'a>) {
        let part = |range| TextPart::of(self.tokens, self.embeddings, range);
        (part(0..n), part(n..self.tokens.len()))
    }

    /// Tokens from the first on that it has in common with another. Embeddings are the
    /// same if they are the very same ones.
    pub fn n_shared(self, other: TextPart<'_>) -> usize {
        let mut embeddings = self.embeddings.iter().zip(other.embeddings);
        let is_same = |&(a, b): &(&u32, &u32)| match (*a, *b) {
            (NO_TOKEN, NO_TOKEN) => embeddings.next().is_some_and(|(a, b)| Arc::ptr_eq(a, b)),
            (a, b) => a == b,
        };
        self.tokens
            .iter()
            .zip(other.tokens)
            .take_while(is_same)
            .count()
    }
}

impl Text {
    /// Nothing, and room for `n` tokens.
    pub fn with_capacity(n: usize) -> Text {
        Text {
            tokens: Vec::with_capacity(n),
            embeddings: Vec::new(),
        }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Some of it.
    pub fn part(&self, range: Range<usize>) -> TextPart<'_> {
        TextPart::of(&self.tokens, &self.embeddings, range)
    }

    /// All of it.
    pub fn whole(&self) -> TextPart<'_> {
        self.part(0..self.len())
    }

    /// Goes on with a part of another.
    pub fn extend(&mut self, part: TextPart<'_>) {
        self.tokens.extend_from_slice(part.tokens);
        self.embeddings.extend_from_slice(part.embeddings);
    }

    /// Forgets the tokens from `len` on.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            let kept = self.part(0..len).embeddings.len();
            self.embeddings.truncate(kept);
            self.tokens.truncate(len);
        }
    }
}
