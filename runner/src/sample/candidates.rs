//! The candidate tokens of a sampling step, and their probabilities.

use std::cmp::Ordering;

use super::SampleConfig;

/// Nats below the most likely token beyond which no token can be drawn: with 53 random bits the
/// noise is between -3.7 and 37.5, so it cannot make up for more.
const REACH: f64 = 42.0;

/// Logits compared at a time.
const PART: usize = 64;

/// Number of most likely tokens searched first for the top-p set; usually enough.
const FIRST_LIKELIEST: usize = 256;

/// The tokens that remain after the filters.
pub(super) struct Candidates<'a> {
    /// Tokens by id with their logits; `None` if no filter removes any of `logits`.
    filtered: Option<Vec<(u32, f32)>>,
    logits: &'a [f32],
    max: f64,
    temperature: f64,
}

/// Orders by descending logit, then ascending id: a total order, so every filter is exact.
fn likelier(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Returns the `k` most likely tokens, in no particular order.
fn likeliest(logits: &[f32], k: usize) -> Vec<(u32, f32)> {
    let room = 4 * k + PART;
    let mut found: Vec<(u32, f32)> = Vec::with_capacity(room.min(logits.len() + PART));
    // The smallest logit of the best `k` so far; later tokens must exceed it, because ids ascend.
    let mut least: Option<f32> = None;
    for (start, part) in (0..).step_by(PART).zip(logits.chunks(PART)) {
        let is_above = |x: f32| least.is_none_or(|least| x.total_cmp(&least).is_gt());
        if !part.iter().fold(false, |any, &x| any | is_above(x)) {
            continue;
        }
        let part = (start..).zip(part.iter().copied());
        found.extend(part.filter(|&(_, logit)| is_above(logit)));
        if found.len() + PART > room {
            found.select_nth_unstable_by(k - 1, likelier);
            found.truncate(k);
            least = Some(found[k - 1].1);
        }
    }
    if k < found.len() {
        found.select_nth_unstable_by(k - 1, likelier);
        found.truncate(k);
    }
    found
}

/// Returns how many of these tokens, in descending order, reach the weight `enough` together;
/// `None` if the sum of all is smaller.
fn nucleus(found: &[(u32, f32)], weight: impl Fn(f32) -> f64, enough: f64) -> Option<usize> {
    let mut sum = 0.0;
    let last = found.iter().position(|&(_, logit)| {
        sum += weight(logit);
        sum >= enough
    });
    last.map(|last| last + 1)
}

/// Returns the most likely tokens that reach the weight `enough` together, searching among more and
/// more.
fn likeliest_with(
    logits: &[f32],
    weight: impl Fn(f32) -> f64 + Copy,
    enough: f64,
) -> Vec<(u32, f32)> {
    let mut k = FIRST_LIKELIEST;
    loop {
        let mut found = likeliest(logits, k);
        found.sort_unstable_by(likelier);
        match nucleus(&found, weight, enough) {
            Some(n) => found.truncate(n),
            None if k < logits.len() => {
                k *= 8;
                continue;
            }
            // Rounding in another order of addition can leave the sum slightly below.
            None => (),
        }
        return found;
    }
}

impl<'a> Candidates<'a> {
    /// Filters a row of logits; `max` is the largest.
    pub(super) fn of(logits: &'a [f32], max: f32, config: &SampleConfig) -> Candidates<'a> {
        let temperature = f64::from(config.temperature);
        let max = f64::from(max);
        let weight = |logit: f32| (f64::from(logit) - max).exp();
        let mut filtered = match config.top_k {
            0 => None,
            k if k >= logits.len() => None,
            k => Some(likeliest(logits, k)),
        };
        if config.top_p < 1.0 {
            let top_p = f64::from(config.top_p);
            filtered = Some(match filtered {
                Some(mut found) => {
                    found.sort_unstable_by(likelier);
                    let total: f64 = found.iter().map(|&(_, logit)| weight(logit)).sum();
                    found.truncate(nucleus(&found, weight, top_p * total).unwrap_or(found.len()));
                    found
                }
                None => {
                    let total: f64 = logits.iter().map(|&logit| weight(logit)).sum();
                    likeliest_with(logits, weight, top_p * total)
                }
            });
        }
        if config.min_p > 0.0 {
            let least = f64::from(config.min_p);
            let found = filtered.take().unwrap_or_else(|| {
                let all = (0..).zip(logits.iter().copied());
                // Avoids an exponential per token: no token below the floor can qualify.
                let floor = least.ln() + max - 1.0;
                all.filter(|&(_, logit)| f64::from(logit) >= floor)
                    .collect()
            });
            let found = found.into_iter();
            filtered = Some(found.filter(|&(_, logit)| weight(logit) >= least).collect());
        }
        if let Some(found) = &mut filtered {
            found.sort_unstable_by_key(|&(token, _)| token);
        }
        Candidates {
            filtered,
            logits,
            max,
            temperature,
        }
    }

    /// Calls `see` for each token, by id, with the logarithm of its probability relative to the
    /// most likely token's.
    pub(super) fn for_each(&self, mut see: impl FnMut(u32, f64)) {
        let reach = REACH * self.temperature.max(1.0);
        let mut within_reach = |token, logit: f32| {
            let below = f64::from(logit) - self.max;
            if -below <= reach {
                see(token, below / self.temperature);
            }
        };
        match &self.filtered {
            Some(found) => found
                .iter()
                .for_each(|&(token, logit)| within_reach(token, logit)),
            None => (0..)
                .zip(self.logits)
                .for_each(|(token, &logit)| within_reach(token, logit)),
        }
    }

    pub(super) fn distribution(&self) -> Distribution {
        let mut weights = Vec::new();
        self.for_each(|token, log_weight| weights.push((token, log_weight.exp())));
        Distribution::of(weights).expect("the likeliest token has the weight 1")
    }
}

/// A probability distribution over tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Probabilities by id; their sum is 1.
    tokens: Vec<(u32, f64)>,
}

impl Distribution {
    /// Returns a distribution with a single token.
    pub fn only(token: u32) -> Distribution {
        Distribution {
            tokens: vec![(token, 1.0)],
        }
    }

    /// Normalizes weights by id; `None` if their sum is zero.
    fn of(mut weights: Vec<(u32, f64)>) -> Option<Distribution> {
        let total: f64 = weights.iter().map(|&(_, weight)| weight).sum();
        if total <= 0.0 {
            return None;
        }
        weights.iter_mut().for_each(|(_, weight)| *weight /= total);
        Some(Distribution { tokens: weights })
    }

    /// Replaces the token ids.
    pub fn renamed(mut self, token: impl Fn(u32) -> u32) -> Distribution {
        self.tokens.iter_mut().for_each(|(id, _)| *id = token(*id));
        self.tokens.sort_unstable_by_key(|&(id, _)| id);
        self
    }

    /// Returns the tokens by id, with their probabilities.
    pub fn tokens(&self) -> &[(u32, f64)] {
        &self.tokens
    }

    /// Returns the probability of a token.
    pub fn probability(&self, token: u32) -> f64 {
        let found = self.tokens.binary_search_by_key(&token, |&(id, _)| id);
        found.map_or(0.0, |i| self.tokens[i].1)
    }

    /// Returns the token at a value of the cumulative distribution, from 0 to 1.
    pub(super) fn at(&self, place: f64) -> u32 {
        let mut sum = 0.0;
        let found = self.tokens.iter().find(|&&(_, probability)| {
            sum += probability;
            place < sum
        });
        // The sum can round to less than 1.
        let last = self.tokens.last();
        found.or(last).expect("no distribution is empty").0
    }

    /// Returns the normalized excess of this distribution over the other; `None` if there is none.
    pub(super) fn beyond(&self, other: &Distribution) -> Option<Distribution> {
        let more = |&(token, p): &(u32, f64)| (token, (p - other.probability(token)).max(0.0));
        let more = self.tokens.iter().map(more);
        Distribution::of(more.filter(|&(_, weight)| weight > 0.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample::argmax;

    fn left(logits: &[f32], config: SampleConfig) -> Vec<u32> {
        let (_, max) = argmax(logits).unwrap();
        let mut left = Vec::new();
        Candidates::of(logits, max, &config).for_each(|token, _| left.push(token));
        left
    }

    #[test]
    fn filters_leave_the_likeliest() {
        let logits = [0.3f32, 0.1, 0.2, 0.4].map(f32::ln);
        let all = SampleConfig::at(1.0, 0);
        assert_eq!(left(&logits, all), [0, 1, 2, 3]);
        assert_eq!(left(&logits, SampleConfig { top_k: 2, ..all }), [0, 3]);
        assert_eq!(left(&logits, SampleConfig { top_p: 0.65, ..all }), [0, 3]);
        assert_eq!(
            left(&logits, SampleConfig { top_p: 0.75, ..all }),
            [0, 2, 3]
        );
        assert_eq!(left(&logits, SampleConfig { top_p: 0.0, ..all }), [3]);
        assert_eq!(
            left(&logits, SampleConfig { min_p: 0.45, ..all }),
            [0, 2, 3]
        );
        // The two most likely tokens have 4/7 and 3/7.
        let both = SampleConfig {
            top_k: 2,
            top_p: 0.5,
            ..all
        };
        assert_eq!(left(&logits, both), [3]);
        // Equal logits are ordered by id, and the temperature is applied last.
        assert_eq!(left(&[0.5; 4], SampleConfig { top_k: 2, ..all }), [0, 1]);
        let hot = SampleConfig {
            min_p: 0.45,
            ..SampleConfig::at(100.0, 0)
        };
        assert_eq!(left(&logits, hot), [0, 2, 3]);
    }

    #[test]
    fn what_one_has_more_than_another() {
        let p = Distribution::of(vec![(0, 0.5), (1, 0.3), (4, 0.2)]).unwrap();
        let q = Distribution::of(vec![(0, 0.7), (4, 0.1), (9, 0.2)]).unwrap();
        let more = p.beyond(&q).unwrap();
        assert_eq!(more.tokens().len(), 2);
        assert!((more.probability(1) - 0.75).abs() < 1e-12);
        assert!((more.probability(4) - 0.25).abs() < 1e-12);
        assert_eq!(p.beyond(&p), None);
        assert_eq!((p.at(0.0), p.at(0.6), p.at(1.0)), (0, 1, 4));
    }

    proptest! {
        /// Few distinct values, so that many are equal.
        #[test]
        fn the_likeliest_are_those_of_a_sort(
            logits in prop::collection::vec((-20i32..20).prop_map(|x| x as f32), 1..3000), k in 1usize..600,
        ) {
            let mut found = likeliest(&logits, k);
            found.sort_unstable_by(likelier);
            let mut all: Vec<(u32, f32)> = (0..).zip(logits).collect();
            all.sort_unstable_by(likelier);
            all.truncate(k);
            prop_assert_eq!(found, all);
        }

        #[test]
        fn a_share_is_that_of_a_sort(
            logits in prop::collection::vec(-10f32..10.0, 1..3000), top_p in 0f32..1.0, temperature in 0.5f32..2.0,
        ) {
            let config = SampleConfig { top_p, ..SampleConfig::at(temperature, 0) };
            let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            all.sort_unstable_by(likelier);
            let weight = |logit: f32| f64::from(logit - all[0].1).exp();
            let total: f64 = all.iter().map(|&(_, logit)| weight(logit)).sum();
            let n = left(&logits, config).len();
            let share = |n: usize| all[..n].iter().map(|&(_, logit)| weight(logit)).sum::<f64>() / total;
            prop_assert!(share(n) > f64::from(top_p) - 1e-6 && share(n - 1) < f64::from(top_p) + 1e-6);
        }

        #[test]
        fn probabilities_add_up_and_the_likeliest_stays(
            logits in prop::collection::vec(-50f32..50.0, 1..60),
            temperature in 0.01f32..20.0, top_k in 0usize..70, top_p in 0f32..=1.0, min_p in 0f32..=1.0,
        ) {
            let config = SampleConfig { temperature, top_k, top_p, min_p, seed: 0 };
            let (best, max) = argmax(&logits).unwrap();
            let found = Candidates::of(&logits, max, &config).distribution();
            let sum: f64 = found.tokens().iter().map(|&(_, p)| p).sum();
            prop_assert!((sum - 1.0).abs() < 1e-9);
            prop_assert!(found.tokens().is_sorted_by_key(|&(token, _)| token));
            let likeliest = found.probability(best);
            prop_assert!(found.tokens().iter().all(|&(_, p)| p <= likeliest));
        }
    }
}
