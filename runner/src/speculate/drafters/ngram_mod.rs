//! `ngram-mod`: one large table, shared by all sequences, from the hash of n tokens to the token
//! that followed them last.
//!
//! A draft follows the table token by token, so it can move from one earlier text into another. The
//! table does not store the n-grams: two with the same hash share an entry, and drafts from it can
//! be wrong. That costs a rejected draft and nothing else.

use std::num::NonZeroUsize;

use kernels::backend::Backend;

use crate::batch::SeqId;
use crate::error::Error;

use super::SpecType;
use crate::speculate::spec::{Parts, Spec};
use crate::speculate::{Committed, DraftRequest, Speculator};

pub(super) const SPEC: Spec = Spec {
    name: "ngram-mod",
    acceptance_floor: None,
    model: None,
    n_max: |config| config.ngrams.hashed.n_max,
    table_bytes: |_, _| TABLE_BYTES,
};

pub(super) fn build<B: Backend>(parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
    Box::new(NgramMod::new(parts.config.ngrams.hashed, parts.n_seq))
}

/// Sizes of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramModConfig {
    /// Number of hashed tokens. Short n-grams give poor drafts: llama.cpp warns below 16.
    pub n: NonZeroUsize,
    /// Minimum draft length; shorter drafts are dropped.
    pub n_min: usize,
    /// Maximum draft length.
    pub n_max: usize,
}

/// 4 Mi entries, 16 MiB.
const N_ENTRIES: usize = 1 << 22;
/// Bytes of the table.
const TABLE_BYTES: usize = N_ENTRIES * size_of::<u32>();
/// Value of an empty entry.
const EMPTY: u32 = u32::MAX;
/// Maximum number of used entries when a prompt begins: one in four.
const MAX_USED: usize = N_ENTRIES / 4;
/// New n-grams of a history are entered when the first of them starts more than this many tokens
/// before the end.
const ENTER_EVERY: usize = 32;
/// Number of consecutive poor drafts of a sequence after which the table is cleared.
const MAX_POOR: u32 = 5;

/// The table, and the state of each sequence.
#[derive(Clone, Debug)]
pub struct NgramMod {
    config: NgramModConfig,
    entries: Vec<u32>,
    n_used: usize,
    seqs: Vec<Seq>,
}

#[derive(Clone, Debug, Default)]
struct Seq {
    /// Position of the first n-gram of the history that is not in the table.
    next: usize,
    /// Length of the latest draft.
    n_drafted: usize,
    /// Consecutive drafts of which less than a quarter was accepted.
    n_poor: u32,
}

impl NgramMod {
    /// Creates an empty table for sequences 0 to `n_seq` - 1.
    pub fn new(config: NgramModConfig, n_seq: usize) -> NgramMod {
        NgramMod {
            config,
            entries: vec![EMPTY; N_ENTRIES],
            n_used: 0,
            seqs: vec![Seq::default(); n_seq],
        }
    }

    /// Starts a sequence on a prompt, which is entered into the table. A table that is too full is
    /// cleared here, and fills again as the sequences continue.
    pub fn begin(&mut self, seq: usize, history: &[u32]) {
        self.seqs[seq].next = 0;
        self.seqs[seq].n_drafted = 0;
        self.enter(seq, history);
        if self.n_used > MAX_USED {
            self.clear();
        }
    }

    /// Drafts a continuation of `history` followed by `last`, the newest token: `n_min` to `n_max`
    /// tokens, or none.
    pub fn draft(&mut self, seq: usize, history: &[u32], last: u32) -> Vec<u32> {
        let NgramModConfig { n, n_min, n_max } = self.config;
        let n = n.get();
        self.seqs[seq].n_drafted = 0;
        if history.len() < n {
            return Vec::new();
        }
        if self.seqs[seq].next + ENTER_EVERY < history.len() {
            self.enter(seq, history);
        }
        // The last n tokens, followed by the draft.
        let mut text = [&history[history.len() - (n - 1)..], &[last]].concat();
        while text.len() < n + n_max {
            match self.entries[entry(&text[text.len() - n..])] {
                EMPTY if text.len() < n + n_min => return Vec::new(),
                EMPTY => break,
                token => text.push(token),
            }
        }
        let draft = text.split_off(n);
        self.seqs[seq].n_drafted = draft.len();
        draft
    }

    /// Records how much of the sequence's latest draft was accepted.
    pub fn accept(&mut self, seq: usize, n_accepted: usize) {
        let state = &mut self.seqs[seq];
        if state.n_drafted == 0 {
            return;
        }
        let is_poor = 4 * n_accepted < state.n_drafted;
        state.n_poor = if is_poor { state.n_poor + 1 } else { 0 };
        if state.n_poor == MAX_POOR {
            state.n_poor = 0;
            // This sequence enters its history again with its next draft; the others do not.
            state.next = 0;
            self.clear();
        }
    }

    /// Enters the n-grams of the history that were added since the last call.
    fn enter(&mut self, seq: usize, history: &[u32]) {
        let n = self.config.n.get();
        let Some(end) = history.len().checked_sub(n) else {
            return;
        };
        for at in self.seqs[seq].next..end {
            let slot = &mut self.entries[entry(&history[at..at + n])];
            self.n_used += usize::from(*slot == EMPTY);
            *slot = history[at + n];
        }
        self.seqs[seq].next = end;
    }

    fn clear(&mut self) {
        self.entries.fill(EMPTY);
        self.n_used = 0;
    }
}

/// Returns the entry of an n-gram: the tokens are hashed by a linear congruential generator
/// (Knuth's MMIX multiplier).
fn entry(gram: &[u32]) -> usize {
    let hash = gram.iter().fold(0u64, |hash, &token| {
        hash.wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(u64::from(token))
    });
    (hash % N_ENTRIES as u64) as usize
}

impl Default for NgramModConfig {
    /// Returns llama.cpp's sizes: 24 hashed tokens, drafts of 48 to 64.
    fn default() -> NgramModConfig {
        NgramModConfig {
            n: NonZeroUsize::new(24).expect("is not zero"),
            n_min: 48,
            n_max: 64,
        }
    }
}

impl<B: Backend> Speculator<B> for NgramMod {
    fn kind(&self) -> SpecType {
        SpecType::NgramMod
    }

    fn n_max(&self) -> usize {
        self.config.n_max
    }

    fn begin(&mut self, seq: SeqId, prompt: &[u32]) -> Result<(), Error> {
        NgramMod::begin(self, seq, prompt);
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        for request in requests {
            request.draft = NgramMod::draft(self, request.seq, request.history, request.last);
        }
        Ok(())
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        if committed.by == Some(SpecType::NgramMod) {
            NgramMod::accept(self, committed.seq, committed.n_accepted);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::speculate::replay::{Drafter, Tally, phrases, replay};

    impl Drafter for NgramMod {
        fn begin(&mut self, history: &[u32]) {
            NgramMod::begin(self, 0, history);
        }

        fn draft(&mut self, history: &[u32], last: u32) -> Vec<u32> {
            NgramMod::draft(self, 0, history, last)
        }

        fn accept(&mut self, n_accepted: usize) {
            NgramMod::accept(self, 0, n_accepted);
        }
    }

    fn table(n: usize, n_min: usize, n_max: usize) -> NgramMod {
        let n = NonZeroUsize::new(n).unwrap();
        NgramMod::new(NgramModConfig { n, n_min, n_max }, 2)
    }

    /// Expected counts come from llama.cpp's table.
    #[test]
    fn drafts_as_the_peer_does() {
        let text = phrases(1, 800);
        assert_eq!(entry(&text[..3]), 1_969_511);
        let mut table = table(3, 2, 8);
        let expected = Tally {
            n_rounds: 229,
            n_drafts: 83,
            n_drafted: 664,
            n_accepted: 270,
            hash: 0x3f6f_211c_4d64_8507,
        };
        assert_eq!(replay(&mut table, &text, 300), expected);
        assert_eq!(table.n_used, 314);
    }

    /// Returns `n` distinct tokens from `from` on.
    fn count_up(from: u32, n: u32) -> Vec<u32> {
        (from..from + n).collect()
    }

    #[test]
    fn sequences_learn_from_each_other() {
        let mut table = table(3, 1, 4);
        table.begin(0, &count_up(0, 50));
        table.begin(1, &[90, 91, 92, 10, 11]);
        assert_eq!(table.draft(1, &[90, 91, 92, 10, 11], 12), [13, 14, 15, 16]);
        assert_eq!(table.draft(1, &[90, 91, 92, 10, 11], 13), [0u32; 0]);
    }

    #[test]
    fn a_draft_ends_where_the_table_does() {
        let history = [count_up(0, 50), vec![45, 46]].concat();
        let mut short = table(3, 3, 8);
        short.begin(0, &history);
        // 45 46 47 -> 48 49 45 46, and then 49 45 46 is followed by nothing yet.
        assert_eq!(short.draft(0, &history, 47), [48, 49, 45, 46]);
        let mut long = table(3, 5, 8);
        long.begin(0, &history);
        assert_eq!(long.draft(0, &history, 47), [0u32; 0]);
    }

    #[test]
    fn poor_drafts_empty_the_table() {
        let history = [count_up(0, 50), vec![10, 11]].concat();
        let mut table = table(3, 1, 8);
        table.begin(0, &history);
        let mut round = |n_accepted| {
            let draft = table.draft(0, &history, 12);
            table.accept(0, n_accepted);
            (draft.len(), table.n_used)
        };
        let full = round(2);
        assert_eq!(full, (8, 49));
        // One good draft interrupts the series: there are no five poor ones in a row.
        for n_accepted in [1, 1, 1, 1, 2, 1, 1, 1, 1] {
            assert_eq!(round(n_accepted), full);
        }
        assert_eq!(round(1), (8, 0));
        // Its own history is entered again at once.
        assert_eq!(round(8), full);
    }

    #[test]
    fn a_prompt_that_overfills_the_table_is_forgotten() {
        let mut table = table(1, 1, 8);
        table.begin(0, &count_up(0, MAX_USED as u32 + 1));
        assert_eq!(table.n_used, MAX_USED);
        table.begin(1, &count_up(MAX_USED as u32, 100));
        assert_eq!(table.n_used, 0);
        assert_eq!(table.draft(1, &[0, 1, 2], 3), [0u32; 0]);
    }

    proptest! {
        #[test]
        fn lengths_hold_whatever_the_history_does(
            steps in prop::collection::vec(
                (any::<bool>(), prop::collection::vec(0u32..3, 0..60), 0u32..3, 0usize..9), 1..6),
            n in 1usize..4, n_min in 0usize..4, more in 0usize..8,
        ) {
            let mut table = table(n, n_min, n_min + more);
            for (begin, history, last, n_accepted) in steps {
                if begin {
                    table.begin(1, &history);
                }
                let draft = table.draft(1, &history, last);
                prop_assert!(draft.is_empty() || (n_min..=n_min + more).contains(&draft.len()));
                table.accept(1, n_accepted);
            }
        }
    }
}
