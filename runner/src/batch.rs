//! [`Batch`]: tokens of any number of sequences that are evaluated in one forward pass.

use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::rope_positions::Coordinates;

/// Number of a sequence within a context, from 0.
pub type SeqId = usize;

/// Stands for a token id in a row whose input is an embedding.
pub const NO_TOKEN: u32 = u32::MAX;

/// Tokens of one pass. The tokens of a sequence are in order of position, and the first one follows
/// the last position in the cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Token ids; [`NO_TOKEN`] for a row whose input is an embedding.
    pub tokens: Vec<u32>,
    /// Embeddings of those rows, in order.
    pub embeddings: Vec<Embedding>,
    /// The sequence of each token.
    pub seqs: Vec<SeqId>,
    /// The position of each token in its sequence.
    pub positions: Vec<u32>,
    /// Rows whose logits are computed, ascending.
    pub outputs: Vec<usize>,
}

/// Input of the first layer in place of a token's row of the embedding table, after any scaling,
/// for example from an image: (n_embd).
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    values: Arc<[f32]>,
    /// Its coordinates, for models whose positions have several; `None` for the position of a token.
    pub position: Option<Coordinates>,
}

impl Embedding {
    /// Sets the coordinates.
    pub fn at(self, position: Coordinates) -> Embedding {
        Embedding {
            position: Some(position),
            ..self
        }
    }

    /// True if both are clones of one embedding.
    fn is_clone(&self, other: &Embedding) -> bool {
        Arc::ptr_eq(&self.values, &other.values) && self.position == other.position
    }
}

impl Deref for Embedding {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values
    }
}

impl FromIterator<f32> for Embedding {
    fn from_iter<I: IntoIterator<Item = f32>>(values: I) -> Embedding {
        Embedding {
            values: values.into_iter().collect(),
            position: None,
        }
    }
}

/// The tokens, among those just added, whose logits are computed.
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
    /// Adds tokens of one sequence from position `start` on. Returns the row of the first.
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

    /// Adds a part of a text, which may contain embeddings, like [`Batch::push`].
    pub fn push_slice(
        &mut self,
        seq: SeqId,
        start: u32,
        slice: TextSlice<'_>,
        outputs: Outputs,
    ) -> usize {
        self.embeddings.extend_from_slice(slice.embeddings);
        self.push(seq, start, slice.tokens, outputs)
    }

    /// Returns the tokens and embeddings of some rows.
    pub fn slice(&self, rows: Range<usize>) -> TextSlice<'_> {
        TextSlice::of(&self.tokens, &self.embeddings, rows)
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// True if there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Clears the batch and keeps its allocations.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.embeddings.clear();
        self.seqs.clear();
        self.positions.clear();
        self.outputs.clear();
    }

    /// Iterates over the rows of each sequence, in order of first appearance.
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

/// A text as input of a model: tokens, and embeddings in place of some of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text {
    /// Token ids; [`NO_TOKEN`] in place of an embedding.
    pub tokens: Vec<u32>,
    /// The embeddings, in order.
    pub embeddings: Vec<Embedding>,
}

/// Consecutive tokens of a text, with the embeddings among them.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextSlice<'a> {
    /// See [`Text::tokens`].
    pub tokens: &'a [u32],
    /// See [`Text::embeddings`].
    pub embeddings: &'a [Embedding],
}

fn n_embedded(tokens: &[u32]) -> usize {
    tokens.iter().filter(|&&token| token == NO_TOKEN).count()
}

impl<'a> From<&'a [u32]> for TextSlice<'a> {
    /// Tokens without embeddings among them.
    fn from(tokens: &'a [u32]) -> TextSlice<'a> {
        TextSlice {
            tokens,
            embeddings: &[],
        }
    }
}

impl<'a> TextSlice<'a> {
    fn of(tokens: &'a [u32], embeddings: &'a [Embedding], range: Range<usize>) -> TextSlice<'a> {
        // Most texts have no embeddings and need no counting.
        let (first, n) = match embeddings {
            [] => (0, 0),
            _ => (
                n_embedded(&tokens[..range.start]),
                n_embedded(&tokens[range.clone()]),
            ),
        };
        TextSlice {
            tokens: &tokens[range],
            embeddings: &embeddings[first..first + n],
        }
    }

    /// Returns the number of tokens.
    pub fn len(self) -> usize {
        self.tokens.len()
    }

    /// True if there are no tokens.
    pub fn is_empty(self) -> bool {
        self.tokens.is_empty()
    }

    /// Splits into the first `n` tokens and the rest.
    pub fn split_at(self, n: usize) -> (TextSlice<'a>, TextSlice<'a>) {
        let slice = |range| TextSlice::of(self.tokens, self.embeddings, range);
        (slice(0..n), slice(n..self.tokens.len()))
    }

    /// Returns the length of the prefix shared with another text. Embeddings are the same only if
    /// they are the same allocation at the same position.
    pub fn n_shared(self, other: TextSlice<'_>) -> usize {
        let mut embeddings = self.embeddings.iter().zip(other.embeddings);
        let is_same = |&(a, b): &(&u32, &u32)| match (*a, *b) {
            (NO_TOKEN, NO_TOKEN) => embeddings.next().is_some_and(|(a, b)| a.is_clone(b)),
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
    /// Returns an empty text with capacity for `n` tokens.
    pub fn with_capacity(n: usize) -> Text {
        Text {
            tokens: Vec::with_capacity(n),
            embeddings: Vec::new(),
        }
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// True if there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns a range of the text.
    pub fn slice(&self, range: Range<usize>) -> TextSlice<'_> {
        TextSlice::of(&self.tokens, &self.embeddings, range)
    }

    /// Returns the whole text.
    pub fn whole(&self) -> TextSlice<'_> {
        self.slice(0..self.len())
    }

    /// Appends a part of another text.
    pub fn extend(&mut self, slice: TextSlice<'_>) {
        self.tokens.extend_from_slice(slice.tokens);
        self.embeddings.extend_from_slice(slice.embeddings);
    }

    /// Drops the tokens from `len` on.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            let kept = self.slice(0..len).embeddings.len();
            self.embeddings.truncate(kept);
            self.tokens.truncate(len);
        }
    }
}
