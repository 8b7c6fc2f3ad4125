//! `ngram-simple`: drafts what followed the last n tokens when they last stood in the text.
//!
//! No model and no state: every draft searches the whole history, so there is nothing to keep in
//! step when the history is cut or replaced.

use std::num::NonZeroUsize;

use kernels::backend::Backend;

use crate::batch::SeqId;
use crate::error::Error;

use super::{Committed, DraftRequest, SpecType, Speculator, TargetPass};

/// Sizes of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramSimple {
    /// How many tokens must stand in the history as they stand at its end. Also the shortest
    /// draft: a match too close to the end to be followed by as many is not used.
    pub n: NonZeroUsize,
    /// The longest draft; below n, there are no drafts at all.
    pub m: NonZeroUsize,
}

impl NgramSimple {
    /// Drafts what may follow `history` and then `last`, the newest token, which is not in it yet.
    /// Empty if nothing is found, and for histories of n + m + 1 tokens or less.
    ///
    /// Only the latest match counts, and one at position 0 never does. If it is followed by fewer
    /// than n tokens there is no draft, even if an earlier match has more.
    pub fn draft(&self, history: &[u32], last: u32) -> Vec<u32> {
        let (n, m) = (self.n.get(), self.m.get());
        let len = history.len();
        if len <= n.saturating_add(m).saturating_add(1) {
            return Vec::new();
        }
        let tail = &history[len - (n - 1)..];
        // Leaving the newest token out keeps the search off the n-gram it starts from.
        let found = history[1..len - 1]
            .windows(n)
            .rposition(|gram| gram[n - 1] == last && gram[..n - 1] == *tail);
        let Some(found) = found else {
            return Vec::new();
        };
        let follows = &history[1 + found + n..];
        let draft = &follows[..follows.len().min(m)];
        if draft.len() < n {
            return Vec::new();
        }
        draft.to_vec()
    }
}

impl Default for NgramSimple {
    /// The peer's sizes: 12 tokens looked for, drafts of up to 48.
    fn default() -> NgramSimple {
        let size = |n| NonZeroUsize::new(n).expect("is not zero");
        NgramSimple {
            n: size(12),
            m: size(48),
        }
    }
}

impl<B: Backend> Speculator<B> for NgramSimple {
    fn kind(&self) -> SpecType {
        SpecType::NgramSimple
    }

    fn n_max(&self) -> usize {
        self.m.get()
    }

    fn begin(&mut self, _seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        Ok(())
    }

    fn process(&mut self, _pass: &TargetPass<'_, B>) -> Result<(), Error> {
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        for request in requests {
            request.draft = NgramSimple::draft(self, request.history, request.last);
        }
        Ok(())
    }

    fn accept(&mut self, _committed: Committed) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::speculate::replay::{Drafter, Tally, phrases, replay};

    fn simple(n: usize, m: usize) -> NgramSimple {
        NgramSimple {
            n: NonZeroUsize::new(n).unwrap(),
            m: NonZeroUsize::new(m).unwrap(),
        }
    }

    impl Drafter for NgramSimple {
        fn draft(&mut self, history: &[u32], last: u32) -> Vec<u32> {
            NgramSimple::draft(self, history, last)
        }
    }

    /// Counted by the peer's own function on the same text.
    #[test]
    fn drafts_as_the_peer_does() {
        let tally = replay(&mut simple(3, 8), &phrases(1, 800), 300);
        let expected = Tally {
            n_rounds: 233,
            n_drafts: 86,
            n_drafted: 688,
            n_accepted: 266,
            hash: 0x4edb_1602_d9c3_8b16,
        };
        assert_eq!(tally, expected);
    }

    #[test]
    fn copies_what_followed_the_latest_match() {
        //            0  1  2  3  4  5  6  7  8  9 10
        let text = [0, 1, 2, 3, 1, 2, 4, 5, 6, 7, 1];
        assert_eq!(simple(2, 3).draft(&text, 2), [4, 5, 6]);
        // Too close to the end for the whole of m, then for n.
        assert_eq!(simple(2, 6).draft(&text, 2), [4, 5, 6, 7, 1]);
        assert_eq!(simple(2, 3).draft(&[0, 1, 2, 0, 0, 1, 2, 1], 2), [0u32; 0]);
        // A match at the very start is none.
        assert_eq!(simple(2, 3).draft(&[1, 2, 3, 4, 5, 6, 7, 1], 2), [0u32; 0]);
        // Too short a history.
        assert_eq!(simple(2, 8).draft(&text, 2), [0u32; 0]);
        assert_eq!(simple(2, usize::MAX).draft(&text, 2), [0u32; 0]);
        assert_eq!(simple(usize::MAX, 1).draft(&text, 2), [0u32; 0]);
    }

    #[test]
    fn one_token_is_an_n_gram_too() {
        assert_eq!(simple(1, 2).draft(&[0, 7, 8, 9, 6], 7), [8, 9]);
        assert_eq!(simple(1, 2).draft(&[], 7), [0u32; 0]);
    }

    proptest! {
        /// Any draft is a copy from the history that stands behind a copy of the n-gram.
        #[test]
        fn a_draft_is_found_in_the_history(
            history in prop::collection::vec(0u32..4, 0..60), last in 0u32..4,
            n in 1usize..5, m in 1usize..9,
        ) {
            let draft = simple(n, m).draft(&history, last);
            if draft.is_empty() {
                return Ok(());
            }
            prop_assert!((n..=m).contains(&draft.len()));
            let gram = [&history[history.len() + 1 - n..], &[last], &draft].concat();
            prop_assert!(history[1..].windows(gram.len()).any(|window| window == gram));
        }
    }
}
