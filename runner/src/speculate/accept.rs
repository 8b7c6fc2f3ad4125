//! The acceptance rule: which tokens of a draft are accepted, and which token follows them.
//!
//! Sample and match: the target chooses a token from each row of its pass as in plain decoding, and
//! the draft is accepted up to the first difference. The rule is exact at any temperature as long
//! as the choice for a position depends on nothing but the logits and the position.

/// Result of a target pass over `[last token, draft..]`. The committed tokens are
/// `draft[..n_accepted]` and the bonus token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Number of accepted tokens, from the start of the draft.
    pub n_accepted: usize,
    /// The target's token after the accepted ones: its correction of the first rejected token, or
    /// one more token if all were accepted.
    pub bonus: u32,
}

/// Compares a draft with the target's choices.
///
/// `choose(i)` returns the target's token after the last token and `draft[..i]`. It is called for 0,
/// 1, .. in order, up to the first difference and at most `draft.len()`. Its first error ends the
/// comparison.
///
/// An end-of-sequence token inside the draft becomes the bonus token, so that nothing is committed
/// after it. As the last token of a draft it is accepted like any other and a bonus token follows:
/// the caller looks for the end among the committed tokens.
pub fn accept<E>(
    draft: &[u32],
    mut choose: impl FnMut(usize) -> Result<u32, E>,
    is_end_of_generation: impl Fn(u32) -> bool,
) -> Result<Accepted, E> {
    for (i, &drafted) in draft.iter().enumerate() {
        let token = choose(i)?;
        let more_follow = i + 1 < draft.len();
        if token != drafted || (more_follow && is_end_of_generation(token)) {
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
    use crate::sample::{Draw, SampleConfig, SampleError, Sampler, splitmix64};
    use crate::speculate::{DraftSampling, Verification};

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
        // All, some and none accepted.
        (&[1, 2, 3], &[1, 2, 3, 4], 3, 4),
        (&[1, 2, 3], &[1, 2, 7], 2, 7),
        (&[1, 2, 3], &[7], 0, 7),
        // A match after a mismatch does not count.
        (&[1, 2, 3], &[1, 7, 3], 1, 7),
        // The target ends while the draft continues, and ends where the draft predicted it.
        (&[1, 2, 3], &[1, END], 1, END),
        (&[1, END, 3], &[1, END], 1, END),
        (&[END, END], &[END], 0, END),
        // An end as the last drafted token is accepted; a wrong end is rejected.
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

    /// A synthetic model: logits that depend on the whole history.
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

    /// Decodes with drafts of the given lengths, in which each token is right or wrong as
    /// specified.
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

    /// A draft model similar to the target.
    fn guessed_logits(history: &[u32]) -> Vec<f32> {
        let mut logits = logits(history);
        for (token, x) in (0u64..).zip(&mut logits) {
            *x += (splitmix64(history.len() as u64, token) % 1000) as f32 / 700.0;
        }
        logits
    }

    /// Generates `n` tokens after a fixed first one, with drafts as long as possible. Also returns
    /// the number of accepted tokens.
    fn drafted(
        sampler: Sampler,
        verification: Verification,
        n: usize,
    ) -> Result<(Vec<u32>, usize), SampleError> {
        let (mut text, mut n_accepted) = (vec![0], 0);
        let sampling = DraftSampling::Sampled {
            sampler,
            stream: 3,
            verification,
        };
        while text.len() <= n {
            let (mut draft, mut guesses) = (Vec::new(), Vec::new());
            for _ in text.len()..n {
                let history = [text.as_slice(), &draft].concat();
                let position = history.len() as u64;
                let (guess, of) =
                    sampling.token(&guessed_logits(&history), position, |token| token)?;
                draft.push(guess);
                guesses.extend(of);
            }
            let choose = |i: usize| {
                let history = [text.as_slice(), &draft[..i]].concat();
                let (logits, draw) = (
                    logits(&history),
                    Draw {
                        stream: 3,
                        position: history.len() as u64,
                    },
                );
                match guesses.get(i) {
                    None => sampler.sample(&logits, draw),
                    Some(of) => sampler.accept_or_resample(&logits, draft[i], of, draw),
                }
            };
            let accepted = accept(&draft, choose, |_| false)?;
            n_accepted += accepted.n_accepted;
            text.extend(&draft[..accepted.n_accepted]);
            text.push(accepted.bonus);
        }
        Ok((text[1..=n].to_vec(), n_accepted))
    }

    /// Compares the frequencies of the first three tokens, over a vocabulary of 10, with the
    /// target's own probabilities by Pearson's statistic. Texts expected fewer than five times are
    /// pooled. The draws are fixed; with d degrees of freedom a correct sampler stays below d + 4
    /// sqrt(2 d) in all but one of 10,000 trials.
    #[test]
    fn drafted_texts_have_the_targets_distribution() {
        const N: usize = 3;
        const DRAWS: u64 = 30_000;
        for (verification, config) in [
            (Verification::Match, SampleConfig::at(1.0, 0)),
            (Verification::Reject, SampleConfig::at(1.0, 0)),
            (
                Verification::Reject,
                SampleConfig {
                    top_k: 7,
                    top_p: 0.9,
                    min_p: 0.05,
                    ..SampleConfig::at(0.8, 0)
                },
            ),
        ] {
            let mut counts = std::collections::HashMap::<Vec<u32>, u64>::new();
            let mut n_accepted = 0;
            for seed in 0..DRAWS {
                let sampler = Sampler::new(SampleConfig { seed, ..config }).unwrap();
                let (text, n) = drafted(sampler, verification, N).unwrap();
                *counts.entry(text).or_default() += 1;
                n_accepted += n;
            }
            let sampler = Sampler::new(config).unwrap();
            let mut expected = vec![(Vec::new(), DRAWS as f64)];
            for _ in 0..N {
                let longer = |(text, share): (Vec<u32>, f64)| {
                    let history = [&[0], text.as_slice()].concat();
                    let next = sampler.distribution(&logits(&history)).unwrap();
                    let next = next.tokens().to_vec().into_iter();
                    next.map(move |(token, p)| ([text.as_slice(), &[token]].concat(), share * p))
                };
                expected = expected.into_iter().flat_map(longer).collect();
            }
            let (usual, rare): (Vec<_>, Vec<_>) =
                expected.into_iter().partition(|(_, n)| *n >= 5.0);
            let term = |found: f64, expected: f64| (found - expected).powi(2) / expected;
            let of = |text: &Vec<u32>| counts.get(text).copied().unwrap_or(0) as f64;
            let n_usual: f64 = usual.iter().map(|(text, _)| of(text)).sum();
            let mut statistic: f64 = usual.iter().map(|(text, n)| term(of(text), *n)).sum();
            let n_rare: f64 = rare.iter().map(|(_, n)| n).sum();
            if n_rare > 0.0 {
                statistic += term(DRAWS as f64 - n_usual, n_rare);
            }
            let freedom = (usual.len() - usize::from(n_rare == 0.0)) as f64;
            let limit = freedom + 4.0 * (2.0 * freedom).sqrt();
            assert!(
                statistic < limit,
                "{verification:?}: {statistic} of {limit}"
            );
            // Of two drafted tokens at first, and of those drafted again after a rejection.
            let rate = n_accepted as f64 / DRAWS as f64;
            assert!(
                rate > 1.0,
                "{verification:?}: {rate} of each text were guessed"
            );
        }
    }

    proptest! {
        /// The main property: drafts change the number of passes, not the text.
        #[test]
        fn committed_text_is_the_plain_text(
            drafts in prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.8), 0..6), 1..8),
            temperature in prop_oneof![Just(0.0f32), 0.1f32..2.0],
            seed: u64,
            n in 1usize..40,
        ) {
            let sampler = Sampler::new(SampleConfig::at(temperature, seed)).unwrap();
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
