//! `ngram-cache`: drafts token by token the most frequent follower of the newest one to four
//! tokens, in this text, in earlier texts, or in a large corpus; the last two come from lookup
//! files.
//!
//! Thresholds and weights are llama.cpp's. llama.cpp's index of the text misses n-grams across the
//! borders of its updates and is not rebuilt for a new prompt; this one is complete.

use std::sync::Arc;

use kernels::backend::Backend;

use crate::batch::SeqId;
use crate::error::Error;

use super::SpecType;
use crate::speculate::lookup::{Followers, Lookup, LookupFiles, MAX_LEN, Ngram, STATIC_LEN};
use crate::speculate::spec::{Parts, Spec};
use crate::speculate::{DraftRequest, Speculator};

pub(super) const SPEC: Spec = Spec {
    name: "ngram-cache",
    acceptance_floor: None,
    model: None,
    n_max: |_| N_DRAFT,
    table_bytes: |_, files| files.fixed.n_bytes() + files.dynamic.n_bytes(),
};

pub(super) fn build<B: Backend>(parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
    Box::new(NgramCache::new(Arc::clone(parts.lookup), parts.n_seq))
}

/// Maximum draft length.
const N_DRAFT: usize = 8;

/// Requirements for drafting from an n-gram, by its length from one token up.
struct Threshold {
    /// Minimum number of occurrences.
    n_seen: [u64; MAX_LEN],
    /// Minimum share of its most frequent follower, in percent.
    percent: [u64; MAX_LEN],
}

/// Thresholds for the text itself and for the corpus.
const LAX: Threshold = Threshold {
    n_seen: [2, 2, 1, 1],
    percent: [66, 50, 50, 50],
};
/// Thresholds for earlier texts.
const STRICT: Threshold = Threshold {
    n_seen: [4, 3, 2, 2],
    percent: [75, 66, 66, 66],
};
/// A follower that occurs n times in the corpus has its count multiplied by n times this weight.
const STATIC_WEIGHT: u64 = 100;

/// A speculator that counts what follows each n-gram of every sequence's text.
pub struct NgramCache {
    files: Arc<LookupFiles>,
    texts: Vec<Text>,
}

/// The part of a sequence's text that is counted.
#[derive(Clone, Debug, Default)]
struct Text {
    len: usize,
    counts: Lookup,
}

impl NgramCache {
    /// Creates the speculator for `n_seq` sequences.
    pub fn new(files: Arc<LookupFiles>, n_seq: usize) -> NgramCache {
        NgramCache {
            files,
            texts: vec![Text::default(); n_seq],
        }
    }

    /// Drafts after `text`, which only grows between calls for one sequence.
    fn draft(&mut self, seq: SeqId, text: &[u32], n_max: usize) -> Vec<u32> {
        let own = &mut self.texts[seq];
        if own.len > text.len() {
            *own = Text::default();
        }
        own.counts.count(text, own.len, 1..=MAX_LEN);
        own.len = text.len();
        let mut text = text[text.len().saturating_sub(MAX_LEN)..].to_vec();
        let start = text.len();
        while text.len() - start < n_max.min(N_DRAFT) {
            let Some(token) = self.next(seq, &text) else {
                break;
            };
            text.push(token);
        }
        text.split_off(start)
    }

    fn next(&self, seq: SeqId, text: &[u32]) -> Option<u32> {
        let in_corpus = self.files.fixed.get(&Ngram::newest(text, STATIC_LEN)?);
        mostly(&self.texts[seq].counts, text, in_corpus, &LAX)
            .or_else(|| mostly(&self.files.dynamic, text, in_corpus, &STRICT))
            .or_else(|| {
                let (token, count) = likeliest(in_corpus?, |_, count| count)?;
                reaches(&LAX, STATIC_LEN, count, in_corpus?).then_some(token)
            })
    }
}

/// Returns the follower of the newest tokens, by the longest n-gram that reaches its threshold.
fn mostly(
    counts: &Lookup,
    text: &[u32],
    in_corpus: Option<&Followers>,
    threshold: &Threshold,
) -> Option<u32> {
    (1..=MAX_LEN).rev().find_map(|len| {
        let followers = counts.get(&Ngram::newest(text, len)?)?;
        let weigh = |token, count: u64| match in_corpus.and_then(|corpus| corpus.get(&token)) {
            Some(&n) => count.saturating_mul(STATIC_WEIGHT * u64::from(n)),
            None => count,
        };
        let (token, count) = likeliest(followers, weigh)?;
        reaches(threshold, len, count, followers).then_some(token)
    })
}

/// Returns the token with the largest weight (the lowest id among equals) and its count.
fn likeliest(followers: &Followers, weigh: impl Fn(u32, u64) -> u64) -> Option<(u32, u64)> {
    let weighed = followers.iter().map(|(&token, &count)| {
        let count = u64::from(count);
        (weigh(token, count), token, count)
    });
    let best = weighed.reduce(|best, other| if other.0 > best.0 { other } else { best });
    best.map(|(_, token, count)| (token, count))
}

fn reaches(threshold: &Threshold, len: usize, count: u64, followers: &Followers) -> bool {
    let total: u64 = followers.values().map(|&n| u64::from(n)).sum();
    total >= threshold.n_seen[len - 1] && 100 * count >= threshold.percent[len - 1] * total
}

impl<B: Backend> Speculator<B> for NgramCache {
    fn kind(&self) -> SpecType {
        SpecType::NgramCache
    }

    fn n_max(&self) -> usize {
        N_DRAFT
    }

    fn begin(&mut self, seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        self.texts[seq] = Text::default();
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        for request in requests {
            let text = [request.history, &[request.last]].concat();
            request.draft = NgramCache::draft(self, request.seq, &text, request.n_max);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use kernels::cpu::Cpu;
    use proptest::prelude::*;

    use super::*;

    fn cache(fixed: &[u32], dynamic: &[u32]) -> NgramCache {
        let mut files = LookupFiles::default();
        files.fixed.count(fixed, 0, STATIC_LEN..=STATIC_LEN);
        files.dynamic.count(dynamic, 0, 1..=MAX_LEN);
        NgramCache::new(Arc::new(files), 1)
    }

    fn draft(fixed: &[u32], dynamic: &[u32], text: &[u32]) -> Vec<u32> {
        cache(fixed, dynamic).draft(0, text, 4)
    }

    #[test]
    fn the_text_itself_comes_first() {
        // An n-gram of three tokens must occur once; one of two tokens must occur more often.
        assert_eq!(
            draft(&[], &[], &[1, 2, 3, 4, 5, 6, 7, 1, 2, 3]),
            [4, 5, 6, 7]
        );
        assert_eq!(draft(&[], &[], &[1, 2, 9, 4, 5, 6, 7, 8, 1, 2]), [0u32; 0]);
        // Two occurrences of a token pair are enough.
        assert_eq!(draft(&[], &[], &[1, 2, 9, 1, 2, 9, 4, 1, 2])[..1], [9]);
        assert_eq!(draft(&[], &[], &[1]), [0u32; 0]);
        assert_eq!(draft(&[], &[], &[]), [0u32; 0]);
    }

    #[test]
    fn then_texts_before_it_then_the_corpus() {
        let before = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8];
        assert_eq!(draft(&[], &before, &[90, 5, 6, 7]), [8, 5, 6, 7]);
        // One occurrence in another text is not enough.
        assert_eq!(draft(&[], &before[..4], &[90, 5, 6, 7]), [0u32; 0]);
        let corpus = [1, 2, 3, 1, 2, 3, 1, 2];
        assert_eq!(draft(&corpus, &[], &[9, 1, 2]), [3, 1, 2, 3]);
        assert_eq!(draft(&corpus, &before, &[5, 6, 7]), [8, 5, 6, 7]);
    }

    #[test]
    fn the_corpus_decides_between_followers() {
        // 7 and 8 followed `1 2` twice each; the corpus knows only 8.
        let text = [1, 2, 7, 0, 1, 2, 8, 0, 1, 2, 7, 0, 1, 2, 8, 4, 1, 2];
        assert_eq!(draft(&[], &[], &text)[..1], [7]);
        assert_eq!(draft(&[1, 2, 8], &[], &text)[..1], [8]);
    }

    #[test]
    fn a_new_prompt_starts_anew() {
        let mut cache = cache(&[], &[]);
        let text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3];
        assert_eq!(cache.draft(0, &text, 8)[..2], [4, 5]);
        let begin = |cache: &mut NgramCache| {
            <NgramCache as Speculator<Cpu>>::begin(cache, 0, &[]).expect("cannot fail");
        };
        begin(&mut cache);
        assert_eq!(
            cache.draft(0, &[8, 1, 2, 3, 9, 9, 9, 9, 9, 9, 1, 2], 8),
            [0u32; 0]
        );
        begin(&mut cache);
        assert_eq!(cache.draft(0, &text, 2), [4, 5]);
    }

    proptest! {
        /// Counting a text in parts gives the same result as counting it at once.
        #[test]
        fn parts_make_the_whole(text in prop::collection::vec(0..6u32, 2..120), cuts in prop::collection::vec(0..120usize, 0..8)) {
            let mut in_parts = cache(&[], &[]);
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&c| c <= text.len()).collect();
            cuts.sort_unstable();
            for cut in cuts {
                in_parts.draft(0, &text[..cut], 0);
            }
            let whole = cache(&[], &[]).draft(0, &text, 8);
            prop_assert_eq!(in_parts.draft(0, &text, 8), whole);
        }
    }

    #[test]
    fn counts_are_kept_by_ngram() {
        let mut counts = Lookup::default();
        counts.count(&[1, 2, 1, 2, 3], 0, 1..=2);
        let followers: HashMap<Vec<u32>, BTreeMap<u32, u32>> = counts
            .iter()
            .map(|(ngram, followers)| (ngram.tokens().collect(), followers.clone()))
            .collect();
        let expected = [
            (vec![1], BTreeMap::from([(2, 2)])),
            (vec![2], BTreeMap::from([(1, 1), (3, 1)])),
            (vec![1, 2], BTreeMap::from([(1, 1), (3, 1)])),
            (vec![2, 1], BTreeMap::from([(2, 1)])),
        ];
        assert_eq!(followers, HashMap::from(expected));
    }
}
