//! `ngram-map-k` and `ngram-map-k4v`: as `ngram-simple`, but with an index of the history and a
//! record of how much of each n-gram's draft was accepted.
//!
//! A key is an n-gram that was looked up and found; a value is the m-gram that follows it. A key's
//! draft is limited to the accepted length of its last draft. `ngram-map-k4v` also counts up to
//! four values per key and drafts only if one of them dominates.
//!
//! Each text has its own map. It stores only positions in the history, and every use compares the
//! tokens there, so a stale position can cost a draft but not produce a wrong one.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;

use kernels::backend::Backend;

use crate::batch::SeqId;
use crate::error::Error;

use super::{Committed, DraftRequest, SpecType, Speculator};

/// Sizes of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramMapConfig {
    /// Length of a key.
    pub n: NonZeroUsize,
    /// Length of a value, which is the maximum draft length.
    pub m: NonZeroUsize,
    /// The record kept of values.
    pub values: Values,
}

impl NgramMapConfig {
    /// Returns llama.cpp's sizes: keys of 12 tokens, drafts of up to 48.
    pub fn of(values: Values) -> NgramMapConfig {
        let size = |n| NonZeroUsize::new(n).expect("is not zero");
        NgramMapConfig {
            n: size(12),
            m: size(48),
            values,
        }
    }
}

/// The two kinds of map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// `ngram-map-k`: the accepted length of the last draft.
    Latest,
    /// `ngram-map-k4v`: also the counts of up to four values.
    Counted {
        /// Minimum number of lookups before a key is drafted for.
        min_hits: u16,
    },
}

/// Slots of the index: a power of two, 1 MiB of positions.
const N_SLOTS: usize = 1 << 18;
/// Bytes of a sequence's table.
pub(super) const TABLE_BYTES: usize = N_SLOTS * size_of::<u32>();
/// Values counted per key; other continuations are not counted.
const MAX_VALUES: usize = 4;
/// Counts stop growing here.
const MAX_COUNT: u16 = 16380;

/// An indexed history with the accepted lengths of its drafts.
#[derive(Clone, Debug)]
pub(super) struct NgramMap {
    config: NgramMapConfig,
    keys: Vec<Key>,
    /// Position of the first n-gram indexed for each hash; 0 if there is none.
    slots: Vec<u32>,
    /// The last indexed position.
    indexed: usize,
    /// Length of the history at the last draft or start of a text.
    len_seen: usize,
    /// Length of the history at the start of the text: the prompt.
    len_begun: usize,
    /// Key and value of the latest draft.
    drafted: Option<(usize, usize)>,
}

#[derive(Clone, Debug)]
struct Key {
    /// Position in the history.
    at: usize,
    /// Number of lookups.
    n_hits: u16,
    /// Position up to which its values are counted.
    counted: usize,
    values: Vec<Value>,
}

#[derive(Clone, Debug)]
struct Value {
    /// Position in the history.
    at: usize,
    /// Number of times it follows the key.
    n_seen: u16,
    /// Maximum length of its draft.
    limit: usize,
}

impl NgramMap {
    /// Creates an empty map.
    pub(super) fn new(config: NgramMapConfig) -> NgramMap {
        NgramMap {
            config,
            keys: Vec::new(),
            slots: vec![0; N_SLOTS],
            indexed: 0,
            len_seen: 0,
            len_begun: 0,
            drafted: None,
        }
    }

    /// Starts a text. Nothing of the previous text is kept, so that drafts do not depend on which
    /// sequence a text was assigned to. (llama.cpp keeps positions and limits of the earlier text,
    /// and leaves as much of the new one out of its index.)
    pub(super) fn begin(&mut self, history: &[u32]) {
        self.keys.clear();
        self.slots.fill(0);
        self.indexed = 0;
        self.drafted = None;
        self.len_seen = history.len();
        self.len_begun = history.len();
    }

    /// Drafts a continuation of `history` followed by `last`, the newest token. Returns an empty
    /// draft if nothing is found, and for histories shorter than 2n + m.
    pub(super) fn draft(&mut self, history: &[u32], last: u32) -> Vec<u32> {
        let (n, m) = (self.config.n.get(), self.config.m.get());
        self.drafted = None;
        let len = history.len();
        if len < self.span().saturating_add(n) || u32::try_from(len).is_err() {
            return Vec::new();
        }
        if len < self.len_seen {
            self.begin(history);
        }
        self.len_seen = len;

        let gram = [&history[len - (n - 1)..], &[last]].concat();
        let found = self.find(history, &gram);
        self.index(history);
        let Some(found) = found else {
            return Vec::new();
        };
        let key = self.hit(history, &gram, found);
        let Some(value) = self.choose(history, &gram, found, key) else {
            return Vec::new();
        };
        self.drafted = Some((key, value));
        let limit = self.keys[key].values[value].limit.min(m);
        history[found + n..][..limit].to_vec()
    }

    /// Records how much of the latest draft was accepted.
    pub(super) fn accept(&mut self, n_accepted: usize) {
        if let Some((key, value)) = self.drafted {
            self.keys[key].values[value].limit = n_accepted;
        }
    }

    /// Returns the length of a key and its value.
    fn span(&self) -> usize {
        self.config.n.get().saturating_add(self.config.m.get())
    }

    /// Returns the positions that are not indexed yet and are followed by a whole value: those in
    /// the prompt, and those after it. The last positions of the prompt are in neither range, as in
    /// llama.cpp.
    fn unindexed(&self, len: usize) -> [RangeInclusive<usize>; 2] {
        // The range ends at 0, before any start, if the text is too short.
        let last = |len: usize| len.saturating_sub(self.span() + 1);
        [
            self.indexed + 1..=last(self.len_begun),
            self.indexed.max(self.len_begun) + 1..=last(len),
        ]
    }

    /// Returns the position of an n-gram: from the index, else the latest one in the unindexed
    /// ranges.
    fn find(&self, history: &[u32], gram: &[u32]) -> Option<usize> {
        let is_at = |at: usize| history.get(at..at + gram.len()) == Some(gram);
        let at = self.slots[slot(gram)] as usize;
        if at != 0 && at < history.len() - self.span() - 1 && is_at(at) {
            return Some(at);
        }
        self.unindexed(history.len())
            .into_iter()
            .find_map(|range| range.rev().find(|&at| is_at(at)))
    }

    /// Updates the index. The first n-gram with a given hash keeps its slot.
    fn index(&mut self, history: &[u32]) {
        for range in self.unindexed(history.len()) {
            for at in range.rev() {
                let slot = &mut self.slots[slot(&history[at..at + self.config.n.get()])];
                if *slot == 0 {
                    *slot = at as u32;
                }
            }
        }
        self.indexed = self.indexed.max(history.len() - self.span() - 1);
    }

    /// Returns the key of an n-gram, adding it if necessary, and counts a lookup.
    fn hit(&mut self, history: &[u32], gram: &[u32], found: usize) -> usize {
        let n = gram.len();
        let known = |key: &Key| history.get(key.at..key.at + n) == Some(gram);
        let index = self.keys.iter().position(known).unwrap_or_else(|| {
            let latest = Value {
                at: found + n,
                n_seen: 0,
                limit: self.config.m.get(),
            };
            self.keys.push(Key {
                at: found,
                n_hits: 0,
                counted: 0,
                values: match self.config.values {
                    Values::Latest => vec![latest],
                    Values::Counted { .. } => Vec::new(),
                },
            });
            self.keys.len() - 1
        });
        let key = &mut self.keys[index];
        key.n_hits = MAX_COUNT.min(key.n_hits + 1);
        index
    }

    /// Returns the value to draft, if there is one.
    fn choose(&mut self, history: &[u32], gram: &[u32], found: usize, key: usize) -> Option<usize> {
        let Values::Counted { min_hits } = self.config.values else {
            return Some(0);
        };
        let m = self.config.m.get();
        let key = &mut self.keys[key];
        if key.n_hits < min_hits {
            return None;
        }
        key.count(history, gram, found, m);
        let seen = |value: &Value| u32::from(value.n_seen);
        let total: u32 = key.values.iter().map(seen).sum();
        // Returns the first of equals; `max_by_key` would return the last.
        let best = (0..key.values.len())
            .rev()
            .max_by_key(|&i| key.values[i].n_seen)?;
        let most = seen(&key.values[best]);
        let others = total - most;
        (most >= 2 * others).then_some(best)
    }
}

impl Key {
    /// Counts the values that follow the key up to position `found`. The position where the last
    /// count ended is counted again, as in llama.cpp.
    fn count(&mut self, history: &[u32], gram: &[u32], found: usize, m: usize) {
        let n = gram.len();
        for at in self.counted..=found {
            if history[at..at + n] != *gram {
                continue;
            }
            let follows = &history[at + n..][..m];
            let same = |value: &Value| history.get(value.at..value.at + m) == Some(follows);
            if let Some(value) = self.values.iter_mut().find(|value| same(value)) {
                value.n_seen = MAX_COUNT.min(value.n_seen + 1);
            } else if self.values.len() < MAX_VALUES {
                self.values.push(Value {
                    at: at + n,
                    n_seen: 1,
                    limit: m,
                });
            }
        }
        self.counted = found;
    }
}

/// Returns the slot of an n-gram: Knuth's multiplicative hash, token by token.
fn slot(gram: &[u32]) -> usize {
    let hash = gram.iter().fold(0u32, |hash, &token| {
        hash.wrapping_mul(2_654_435_761).wrapping_add(token)
    });
    hash as usize % N_SLOTS
}

/// One map per sequence of a context.
pub struct NgramMaps {
    kind: SpecType,
    n_max: usize,
    maps: Vec<NgramMap>,
}

impl NgramMaps {
    /// Creates empty maps for sequences 0 to `n_seq` - 1; drafts are counted as those of `kind`.
    pub fn new(kind: SpecType, config: NgramMapConfig, n_seq: usize) -> NgramMaps {
        NgramMaps {
            kind,
            n_max: config.m.get(),
            maps: vec![NgramMap::new(config); n_seq],
        }
    }
}

impl<B: Backend> Speculator<B> for NgramMaps {
    fn kind(&self) -> SpecType {
        self.kind
    }

    fn n_max(&self) -> usize {
        self.n_max
    }

    fn begin(&mut self, seq: SeqId, prompt: &[u32]) -> Result<(), Error> {
        self.maps[seq].begin(prompt);
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        for request in requests {
            request.draft = self.maps[request.seq].draft(request.history, request.last);
        }
        Ok(())
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        if committed.by == Some(self.kind) {
            self.maps[committed.seq].accept(committed.n_accepted);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::speculate::replay::{Drafter, Tally, phrases, replay};

    impl Drafter for NgramMap {
        fn begin(&mut self, history: &[u32]) {
            NgramMap::begin(self, history);
        }

        fn draft(&mut self, history: &[u32], last: u32) -> Vec<u32> {
            NgramMap::draft(self, history, last)
        }

        fn accept(&mut self, n_accepted: usize) {
            NgramMap::accept(self, n_accepted);
        }
    }

    fn map(n: usize, m: usize, values: Values) -> NgramMap {
        NgramMap::new(NgramMapConfig {
            n: NonZeroUsize::new(n).unwrap(),
            m: NonZeroUsize::new(m).unwrap(),
            values,
        })
    }

    fn tally(counts: [usize; 4], hash: u64) -> Tally {
        let [n_rounds, n_drafts, n_drafted, n_accepted] = counts;
        Tally {
            n_rounds,
            n_drafts,
            n_drafted,
            n_accepted,
            hash,
        }
    }

    const COUNTED: [Values; 3] = [
        Values::Latest,
        Values::Counted { min_hits: 1 },
        Values::Counted { min_hits: 2 },
    ];

    /// Expected counts come from llama.cpp's own functions.
    #[test]
    fn drafts_as_the_peer_does() {
        let expected = [
            tally([234, 80, 531, 265], 0x75ac_d527_ee2f_2bdc),
            tally([278, 65, 440, 221], 0x0dc4_6bac_03b2_f94c),
            tally([339, 43, 317, 160], 0xecf7_cb35_faae_53d2),
        ];
        let text = phrases(1, 800);
        for (values, expected) in COUNTED.into_iter().zip(expected) {
            let mut map = map(3, 8, values);
            assert_eq!(replay(&mut map, &text, 300), expected, "{values:?}");
        }
    }

    /// This also holds for a text that starts with the same tokens.
    #[test]
    fn a_text_is_drafted_for_as_if_it_were_the_first() {
        let first = phrases(1, 800);
        for other in [phrases(2, 900), [&first[..180], &phrases(2, 300)].concat()] {
            for values in COUNTED {
                let mut used = map(3, 8, values);
                replay(&mut used, &first, 300);
                let fresh = replay(&mut map(3, 8, values), &other, 200);
                assert!(fresh.n_accepted > 0);
                assert_eq!(replay(&mut used, &other, 200), fresh, "{values:?}");
            }
        }
    }

    /// Returns a text that repeats twenty tokens.
    fn loops(n: usize) -> Vec<u32> {
        (0..20).cycle().take(n).collect()
    }

    #[test]
    fn a_draft_is_as_long_as_the_last_one_was_good() {
        let mut map = map(3, 8, Values::Latest);
        let text = loops(50);
        assert_eq!(map.draft(&text, 10), [11, 12, 13, 14, 15, 16, 17, 18]);
        map.accept(2);
        assert_eq!(map.draft(&text, 10), [11, 12]);
        map.accept(0);
        assert_eq!(map.draft(&text, 10), [0u32; 0]);
    }

    #[test]
    fn values_that_follow_equally_often_are_no_draft() {
        let mut text = Vec::new();
        for round in 0..6u32 {
            text.extend([1, 2, 3, 10 + round % 2, 5, 6, 7, 8]);
        }
        text.extend([1, 2]);
        let hits = Values::Counted { min_hits: 1 };
        assert_eq!(map(3, 4, hits).draft(&text, 3), [0u32; 0]);
        assert_eq!(map(3, 4, Values::Latest).draft(&text, 3).len(), 4);
    }

    #[test]
    fn a_history_that_shrinks_unannounced_is_begun_again() {
        let mut map = map(3, 8, Values::Latest);
        let text = loops(400);
        map.begin(&text[..300]);
        map.draft(&text[..399], text[399]);
        let other: Vec<u32> = (100..350).collect();
        assert_eq!(map.draft(&other, 350), [0u32; 0]);
        map.accept(3);
        assert!(map.draft(&text[..399], text[399]).len() <= 8);
    }

    proptest! {
        /// With histories truncated, replaced and extended at random, every draft is a copy of the
        /// tokens after an occurrence of the n-gram, and nothing panics.
        #[test]
        fn a_draft_is_found_in_the_history(
            steps in prop::collection::vec(
                (any::<bool>(), prop::collection::vec(0u32..3, 0..60), 0u32..3, 0usize..9), 1..12),
            n in 1usize..4, m in 1usize..9, min_hits in 0u16..3, counted: bool,
        ) {
            let values = if counted { Values::Counted { min_hits } } else { Values::Latest };
            let mut map = map(n, m, values);
            for (begin, history, last, n_accepted) in steps {
                if begin {
                    map.begin(&history);
                }
                let draft = map.draft(&history, last);
                prop_assert!(draft.len() <= m);
                if !draft.is_empty() {
                    let gram = [&history[history.len() + 1 - n..], &[last], &draft].concat();
                    prop_assert!(history.windows(gram.len()).any(|window| window == gram));
                }
                map.accept(n_accepted);
            }
        }
    }
}
