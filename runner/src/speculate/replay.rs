//! A text to draft for without a model, and the counts that compare drafters.

use crate::sample::splitmix64;

/// Common interface of the drafters under test.
pub(super) trait Drafter {
    fn begin(&mut self, _history: &[u32]) {}
    fn draft(&mut self, history: &[u32], last: u32) -> Vec<u32>;
    fn accept(&mut self, _n_accepted: usize) {}
}

/// Statistics of a drafter over a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) n_rounds: usize,
    /// Drafts that were not empty.
    pub(super) n_drafts: usize,
    pub(super) n_drafted: usize,
    pub(super) n_accepted: usize,
    /// FNV-1a over the drafted tokens, one token per step.
    pub(super) hash: u64,
}

/// A text of `len` tokens made of five phrases of 20 tokens, with about one token in ten replaced:
/// it has both repetitions and mispredictions.
pub(super) fn phrases(seed: u64, len: usize) -> Vec<u32> {
    let mut outputs = (0..).map(|index| splitmix64(seed, index));
    let mut next = || outputs.next().expect("the generator does not end");
    let token = |x: u64| 100 + (x % 50) as u32;
    let phrases: Vec<u32> = (0..5 * 20).map(|_| token(next())).collect();
    let mut text = Vec::new();
    while text.len() < len {
        let start = (next() % 5) as usize * 20;
        for &kept in &phrases[start..start + 20] {
            text.push(if next() % 10 == 0 {
                token(next())
            } else {
                kept
            });
        }
    }
    text.truncate(len);
    text
}

/// Drafts for `text` from position `start` on, as if a target generated it.
pub(super) fn replay(drafter: &mut impl Drafter, text: &[u32], start: usize) -> Tally {
    let mut tally = Tally {
        n_rounds: 0,
        n_drafts: 0,
        n_drafted: 0,
        n_accepted: 0,
        hash: 0xcbf2_9ce4_8422_2325,
    };
    drafter.begin(&text[..start]);
    let mut len = start;
    while len + 1 < text.len() {
        let draft = drafter.draft(&text[..len], text[len]);
        // The last token of the text is the bonus token of the last round.
        let truth = &text[len + 1..text.len() - 1];
        let n_accepted = draft.iter().zip(truth).take_while(|(a, b)| a == b).count();
        tally.n_rounds += 1;
        if !draft.is_empty() {
            tally.n_drafts += 1;
            tally.n_drafted += draft.len();
            tally.n_accepted += n_accepted;
            for &token in &draft {
                tally.hash = (tally.hash ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01b3);
            }
            drafter.accept(n_accepted);
        }
        len += n_accepted + 1;
    }
    tally
}

#[test]
fn the_text_is_the_one_the_counts_were_taken_on() {
    assert_eq!(
        phrases(1, 800)[..8],
        [100, 119, 120, 103, 118, 132, 101, 121]
    );
}
