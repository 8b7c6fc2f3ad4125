//! The accept rule: which tokens of a draft stand, and which token follows them.
//!
//! Sample and match: the target chooses a token from each row of its pass as it would in plain
//! decoding, and the draft stands as far as it says the same. The rule is exact at any temperature
//! as long as the choice for a position depends on the logits and the position alone.

/// What a target pass over `[last token, draft..]` decided. The committed tokens are
/// `draft[..n_accepted]` and the bonus token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Draft tokens that stand, from the first on.
    pub n_accepted: usize,
    /// The target's token after them: its correction of the first wrong guess, or one more token
    /// if all were right.
    pub bonus: u32,
}

/// Compares a draft with the target's choices.
///
/// `choose(i)` is the target's token after the last token and `draft[..i]`; it is called for
/// i = 0, 1, .. in order, no further than needed, and `draft.len()` at most. Its first error ends
/// the comparison.
///
/// An end of generation inside the draft becomes the bonus token, so that nothing is committed
/// after it. As the last token of a draft it is accepted like any other, and a bonus token
/// follows: the caller looks for the end among the committed tokens.
pub fn accept<E>(
    draft: &[u32],
    mut choose: impl FnMut(usize) -> Result<u32, E>,
    is_end_of_generation: impl Fn(u32) -> bool,
) -> Result<Accepted, E> {
    for (i, &guess) in draft.iter().enumerate() {
        let token = choose(i)?;
        let guesses_follow = i + 1 < draft.len();
        if token != guess || (guesses_follow && is_end_of_generation(token)) {
            return Ok(Accepted {
                n_accepted: i,
                bonus: token,
            });
        }
    }
    Ok(Accepted {
        n_accepted: draft.len(),
        bonus: choose(draft.len())?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample::{Draw, SampleConfig, Sampler, splitmix64};

    const END: u32 = 9;

    fn is_end(token: u32) -> bool {
        token == END
    }

    /// Draft, the target's tokens, accepted, bonus.
    type Case = (&'static [u32], &'static [u32], usize, u32);

    const CASES: [Case; 12] = [
        // No draft: a plain step.
        (&[], &[5], 0, 5),
        (&[], &[END], 0, END),
        // All, some, none right.
        (&[1, 2, 3], &[1, 2, 3, 4], 3, 4),
        (&[1, 2, 3], &[1, 2, 7], 2, 7),
        (&[1, 2, 3], &[7], 0, 7),
        // A token that is right again after a wrong one does not count.
        (&[1, 2, 3], &[1, 7, 3], 1, 7),
        // The target ends where the draft goes on, and where it guessed the end.
        (&[1, 2, 3], &[1, END], 1, END),
        (&[1, END, 3], &[1, END], 1, END),
        (&[END, END], &[END], 0, END),
        // The end as the last guess is accepted; a wrong end is not.
        (&[1, END], &[1, END, 4], 2, 4),
        (&[END], &[END, 4], 1, 4),
        (&[1, END], &[1, 2], 1, 2),
    ];

    #[test]
    fn cases() {
        for (draft, target, n_accepted, bonus) in CASES {
            let mut n_chosen = 0;
            let choose = |i: usize| {
                n_chosen += 1;
                target.get(i).copied().ok_or(i)
            };
            let accepted = accept(draft, choose, is_end);
            assert_eq!(
                accepted,
                Ok(Accepted { n_accepted, bonus }),
                "{draft:?} {target:?}"
            );
            assert_eq!(n_chosen, n_accepted + 1, "{draft:?} {target:?}");
        }
    }

    #[test]
    fn an_error_stops_the_comparison() {
        let choose = |i: usize| if i == 1 { Err("broken") } else { Ok(1) };
        assert_eq!(accept(&[1, 1, 1], choose, is_end), Err("broken"));
    }

    const N_VOCAB: u32 = 10;

    /// A made-up model: logits that depend on the whole history.
    fn logits(history: &[u32]) -> Vec<f32> {
        let key = history.iter().fold(history.len() as u64, |key, &token| {
            splitmix64(key, u64::from(token))
        });
        (0..N_VOCAB)
            .map(|token| (splitmix64(key, u64::from(token)) % 1000) as f32 / 250.0)
            .collect()
    }

    fn next(sampler: &Sampler, history: &[u32]) -> u32 {
        let draw = Draw {
            stream: 3,
            position: history.len() as u64,
        };
        sampler.sample(&logits(history), draw).unwrap()
    }

    fn plain(sampler: &Sampler, n: usize) -> Vec<u32> {
        let mut text = vec![0];
        while text.len() < n && !is_end(text[text.len() - 1]) {
            text.push(next(sampler, &text));
        }
        text
    }

    /// Decodes with drafts of the given lengths, in which every token is right or wrong as told.
    fn speculative(sampler: &Sampler, n: usize, drafts: &[Vec<bool>]) -> Vec<u32> {
        let mut text = vec![0];
        for round in drafts.iter().cycle() {
            let mut draft: Vec<u32> = Vec::new();
            for &right in round {
                let guess = next(sampler, &[text.as_slice(), &draft].concat());
                draft.push(if right { guess } else { (guess + 1) % N_VOCAB });
            }
            let choose = |i: usize| {
                let history = [text.as_slice(), &draft[..i]].concat();
                Ok::<_, ()>(next(sampler, &history))
            };
            let accepted = accept(&draft, choose, is_end).unwrap();
            let committed = draft[..accepted.n_accepted].iter().copied();
            for token in committed.chain([accepted.bonus]) {
                text.push(token);
                if text.len() == n || is_end(token) {
                    return text;
                }
            }
        }
        text
    }

    proptest! {
        /// The point of it all: drafts change the number of passes, not the text.
        #[test]
        fn committed_text_is_the_plain_text(
            drafts in prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.8), 0..6), 1..8),
            temperature in prop_oneof![Just(0.0f32), 0.1f32..2.0],
            seed: u64,
            n in 1usize..40,
        ) {
            let sampler = Sampler::new(SampleConfig { temperature, seed }).unwrap();
            prop_assert_eq!(speculative(&sampler, n.max(2), &drafts), plain(&sampler, n.max(2)));
        }

        #[test]
        fn what_stands_is_what_the_target_chose(
            draft in prop::collection::vec(0..N_VOCAB, 0..8),
            target in prop::collection::vec(0..N_VOCAB, 9),
        ) {
            let accepted = accept(&draft, |i| Ok::<_, ()>(target[i]), is_end).unwrap();
            let n = accepted.n_accepted;
            prop_assert_eq!(&draft[..n], &target[..n]);
            prop_assert_eq!(accepted.bonus, target[n]);
            let stopped = draft.get(n).is_some_and(|&guess| guess != target[n] || is_end(guess));
            prop_assert!(n == draft.len() || stopped);
            let before_last = draft[..n].iter().rev().skip(usize::from(n == draft.len()));
            prop_assert!(before_last.into_iter().all(|&token| !is_end(token)));
        }
    }
}
