//! [`Batch`]: tokens of any sequences that go through a model together.

/// Number of a token stream within a context, from 0.
pub type SeqId = usize;

/// Tokens for one pass. The tokens of a sequence stand in order of position, each one after the
/// last that the cache holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// The sequence of each token.
    pub seqs: Vec<SeqId>,
    /// The position of each token in its sequence.
    pub positions: Vec<u32>,
    /// Rows whose logits are wanted, ascending.
    pub outputs: Vec<usize>,
}

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
        self.seqs.clear();
        self.positions.clear();
        self.outputs.clear();
    }

    /// The rows of each sequence, in order of first appearance.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (row, &seq) in self.seqs.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if run.seq == seq => run.rows.end = row + 1,
                _ => runs.push(Run {
                    seq,
                    rows: row..row + 1,
                }),
            }
        }
        runs
    }
}

/// Rows of a batch that belong to one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The sequence.
    pub seq: SeqId,
    /// Its rows.
    pub rows: std::ops::Range<usize>,
}
