//! Which tokens are chosen among, and how likely each is.

use std::cmp::Ordering;

use super::{SampleConfig, SampleError, argmax};

/// Nats below the likeliest token from which on none is drawn: with 53 random bits noise lies
/// between -3.7 and 37.5, so nothing can make up for more.
const REACH: f64 = 42.0;

/// The tokens that the filters leave, by id, with log-weights that the temperature has divided.
pub(super) struct Candidates {
    tokens: Vec<(u32, f64)>,
}

impl Candidates {
    /// Filters a row of logits.
    pub(super) fn of(logits: &[f32], config: &SampleConfig) -> Result<Candidates, SampleError> {
        let (_, max) = argmax(logits)?;
        let temperature = f64::from(config.temperature);
        let reach = REACH * temperature.max(1.0);
        let mut found: Vec<(u32, f32)> = (0..)
            .zip(logits.iter().copied())
            .filter(|&(_, logit)| f64::from(max) - f64::from(logit) <= reach)
            .collect();
        // The likelier first, of equals the lower id: a total order, so every filter is exact.
        let likelier = |a: &(u32, f32), b: &(u32, f32)| -> Ordering {
            b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
        };
        if config.top_k > 0 && config.top_k < found.len() {
            found.select_nth_unstable_by(config.top_k - 1, likelier);
            found.truncate(config.top_k);
        }
        let weight = |logit: f32| (f64::from(logit) - f64::from(max)).exp();
        if config.top_p < 1.0 {
            found.sort_unstable_by(likelier);
            let total: f64 = found.iter().map(|&(_, logit)| weight(logit)).sum();
            let share = f64::from(config.top_p) * total;
            let mut sum = 0.0;
            let enough = found.iter().position(|&(_, logit)| {
                sum += weight(logit);
                sum >= share
            });
            found.truncate(enough.map_or(found.len(), |last| last + 1));
        }
        if config.min_p > 0.0 {
            found.retain(|&(_, logit)| weight(logit) >= f64::from(config.min_p));
        }
        found.sort_unstable_by_key(|&(token, _)| token);
        let log_weight = |logit: f32| (f64::from(logit) - f64::from(max)) / temperature;
        Ok(Candidates {
            tokens: found
                .into_iter()
                .map(|(token, logit)| (token, log_weight(logit)))
                .collect(),
        })
    }

    /// Tokens, and logarithms of numbers that are to each other as their probabilities.
    pub(super) fn log_weights(&self) -> impl Iterator<Item = (u32, f64)> {
        self.tokens.iter().copied()
    }

    pub(super) fn distribution(self) -> Distribution {
        let weights = self.tokens.into_iter();
        Distribution::of(weights.map(|(token, x)| (token, x.exp())).collect())
            .expect("the likeliest token has the weight 1")
    }
}

/// Tokens and their probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// By id; they add up to 1.
    tokens: Vec<(u32, f64)>,
}

impl Distribution {
    /// One token and no other.
    pub fn only(token: u32) -> Distribution {
        Distribution {
            tokens: vec![(token, 1.0)],
        }
    }

    /// Of weights by id; `None` where they add up to nothing.
    fn of(mut weights: Vec<(u32, f64)>) -> Option<Distribution> {
        let total: f64 = weights.iter().map(|&(_, weight)| weight).sum();
        if total <= 0.0 {
            return None;
        }
        weights.iter_mut().for_each(|(_, weight)| *weight /= total);
        Some(Distribution { tokens: weights })
    }

    /// The same under other ids.
    pub fn renamed(mut self, token: impl Fn(u32) -> u32) -> Distribution {
        self.tokens.iter_mut().for_each(|(id, _)| *id = token(*id));
        self.tokens.sort_unstable_by_key(|&(id, _)| id);
        self
    }

    /// Tokens by id, with their probabilities.
    pub fn tokens(&self) -> &[(u32, f64)] {
        &self.tokens
    }

    /// The probability of a token.
    pub fn probability(&self, token: u32) -> f64 {
        let found = self.tokens.binary_search_by_key(&token, |&(id, _)| id);
        found.map_or(0.0, |i| self.tokens[i].1)
    }

    /// The token at a place of the cumulative distribution, from 0 to 1.
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

    /// What this one has more than the other; `None` where that is nothing.
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

    fn left(logits: &[f32], config: SampleConfig) -> Vec<u32> {
        let left = Candidates::of(logits, &config).unwrap();
        left.log_weights().map(|(token, _)| token).collect()
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
        // Of the two likeliest, which have 4/7 and 3/7.
        let both = SampleConfig {
            top_k: 2,
            top_p: 0.5,
            ..all
        };
        assert_eq!(left(&logits, both), [3]);
        // Equals go by id, and the temperature comes last.
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
        #[test]
        fn probabilities_add_up_and_the_likeliest_stays(
            logits in prop::collection::vec(-50f32..50.0, 1..60),
            temperature in 0.01f32..20.0, top_k in 0usize..70, top_p in 0f32..=1.0, min_p in 0f32..=1.0,
        ) {
            let config = SampleConfig { temperature, top_k, top_p, min_p, seed: 0 };
            let found = Candidates::of(&logits, &config).unwrap().distribution();
            let sum: f64 = found.tokens().iter().map(|&(_, p)| p).sum();
            prop_assert!((sum - 1.0).abs() < 1e-9);
            prop_assert!(found.tokens().is_sorted_by_key(|&(token, _)| token));
            let (best, _) = argmax(&logits).unwrap();
            let likeliest = found.probability(best);
            prop_assert!(found.tokens().iter().all(|&(_, p)| p <= likeliest));
        }
    }
}
