//! `ngram-simple`: drafts the tokens that followed the previous occurrence of the last n tokens.
//!
//! It has no model and no state: every draft searches the whole history, so nothing has to be kept
//! in sync when the history is truncated or replaced.

use std::num::NonZeroUsize;

use kernels::backend::Backend;

use crate::error::Error;

use super::SpecType;
use crate::speculate::spec::{Parts, Spec, no_tables};
use crate::speculate::{DraftRequest, Speculator};

pub(super) const SPEC: Spec = Spec {
    name: "ngram-simple",
    // Some texts never repeat.
    acceptance_floor: None,
    model: None,
    n_max: |config| config.ngrams.simple.m.get(),
    table_bytes: no_tables,
};

pub(super) fn build<B: Backend>(parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
    Box::new(parts.config.ngrams.simple)
}

/// Sizes of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramSimple {
    /// Length of the n-gram to find. Also the minimum draft length: a match followed by fewer
    /// tokens is not used.
    pub n: NonZeroUsize,
    /// Maximum draft length; below n there are no drafts.
    pub m: NonZeroUsize,
}

impl NgramSimple {
    /// Drafts a continuation of `history` followed by `last`, the newest token. Returns an empty
    /// draft if nothing is found, and for histories of at most n + m + 1 tokens.
    ///
    /// Only the latest match is used, and a match at position 0 never is. If the latest match is
    /// followed by fewer than n tokens there is no draft, even if an earlier match has more.
    pub fn draft(&self, history: &[u32], last: u32) -> Vec<u32> {
        let (n, m) = (self.n.get(), self.m.get());
        let len = history.len();
        if len <= n.saturating_add(m).saturating_add(1) {
            return Vec::new();
        }
        let tail = &history[len - (n - 1)..];
        // Without the newest token, the search cannot find the n-gram it starts from.
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
    /// Returns llama.cpp's sizes: n-grams of 12 tokens, drafts of up to 48.
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

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        for request in requests {
            request.draft = NgramSimple::draft(self, request.history, request.last);
        }
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

    /// Expected counts come from llama.cpp's own function on the same text.
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
        // Too close to the end for m tokens, then for n.
        assert_eq!(simple(2, 6).draft(&text, 2), [4, 5, 6, 7, 1]);
        assert_eq!(simple(2, 3).draft(&[0, 1, 2, 0, 0, 1, 2, 1], 2), [0u32; 0]);
        // A match at position 0 is not used.
        assert_eq!(simple(2, 3).draft(&[1, 2, 3, 4, 5, 6, 7, 1], 2), [0u32; 0]);
        // The history is too short.
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
        /// Every draft is a copy of the tokens after an occurrence of the n-gram.
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
