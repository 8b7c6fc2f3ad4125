//! [`Sampler`]: chooses a token from a row of logits.
//!
//! The sampler does not know about drafts. The random draw for a token depends on the seed, the
//! stream and the position alone, never on the number of earlier draws: a text sampled with
//! speculation equals the text sampled without, for any drafts.
//!
//! Each draw adds noise to the log-probability of every token, and the largest sum wins (the
//! Gumbel-max trick). Two models that use the same noise agree far more often than with independent
//! draws: in at least (1 - d) / (1 + d) of all cases, where d is the total variation distance of
//! their distributions (Daliri, Musco and Suresh, "Coupling without Communication and
//! Drafter-Invariant Speculative Decoding", 2024). A draft model that samples with the target's
//! noise therefore has a high acceptance rate at any temperature, and its drafts still change
//! nothing.

mod candidates;

use kernels::backend::Largest;

use candidates::Candidates;
pub use candidates::Distribution;

/// Configuration of sampling. The filters run in llama.cpp's order: the `top_k` most likely tokens;
/// of these the most likely ones that together reach `top_p`; of these the ones with at least
/// `min_p` times the largest probability; then the temperature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleConfig {
    /// Divides the logits before the softmax. 0 means greedy decoding.
    pub temperature: f32,
    /// Number of most likely tokens to sample from; 0 for all.
    pub top_k: usize,
    /// Cumulative probability to sample from; 1 for all tokens.
    pub top_p: f32,
    /// Minimum probability relative to the most likely token's; 0 for all tokens.
    pub min_p: f32,
    /// Random seed.
    pub seed: u64,
}

impl SampleConfig {
    /// Greedy decoding.
    pub const GREEDY: SampleConfig = SampleConfig {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
    };

    /// Samples from all tokens at a temperature.
    pub const fn at(temperature: f32, seed: u64) -> SampleConfig {
        SampleConfig {
            temperature,
            seed,
            ..SampleConfig::GREEDY
        }
    }
}

/// Identity of a random draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Separates texts drawn with the same seed, for example by the index of the prompt. Not a
    /// sequence number, or the text would depend on its neighbours in the batch.
    pub stream: u64,
    /// Position of the token to choose.
    pub position: u64,
}

/// A token cannot be chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// The temperature is negative, infinite or NaN.
    #[error("temperature: expected a finite number of at least 0, found {found}")]
    Temperature {
        /// The temperature.
        found: f32,
    },
    /// A share is not between 0 and 1.
    #[error("{name}: expected a number from 0 to 1, found {found}")]
    Share {
        /// Name of the parameter.
        name: &'static str,
        /// The number.
        found: f32,
    },
    /// A logit is NaN or positive infinity: the weights or a kernel are broken.
    #[error("logit of token {token} is {value}")]
    Logit {
        /// The first such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// Every logit is negative infinity, or there are none.
    #[error("none of {n_vocab} tokens has a finite logit")]
    NoCandidate {
        /// Length of the row.
        n_vocab: usize,
    },
}

/// Chooses tokens from rows of logits.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    config: SampleConfig,
}

impl Sampler {
    /// Greedy decoding.
    pub const GREEDY: Sampler = Sampler {
        config: SampleConfig::GREEDY,
    };

    /// Creates a sampler; rejects invalid parameters.
    pub fn new(config: SampleConfig) -> Result<Sampler, SampleError> {
        let found = config.temperature;
        if !found.is_finite() || found < 0.0 {
            return Err(SampleError::Temperature { found });
        }
        for (name, found) in [("top-p", config.top_p), ("min-p", config.min_p)] {
            if !(0.0..=1.0).contains(&found) {
                return Err(SampleError::Share { name, found });
            }
        }
        Ok(Sampler { config })
    }

    /// True if it always takes the most likely token.
    pub fn is_greedy(&self) -> bool {
        self.config.temperature == 0.0
    }

    /// Chooses a token from one row of logits (`[n_vocab]`). Negative infinity bans a token.
    ///
    /// At temperature 0 the largest logit wins, with the lowest id among equals. Otherwise the
    /// token is drawn from softmax(logits / temperature) over the tokens that remain after the
    /// filters.
    pub fn sample(&self, logits: &[f32], draw: Draw) -> Result<u32, SampleError> {
        self.sample_named(logits, draw, |row| row)
    }

    /// Runs [`Sampler::sample`] on a row of logits for a subset of the tokens; `token` maps an
    /// index of the row to its token. Returns an index of the row.
    pub fn sample_named(
        &self,
        logits: &[f32],
        draw: Draw,
        token: impl Fn(u32) -> u32,
    ) -> Result<u32, SampleError> {
        let (best, max) = argmax(logits)?;
        if self.is_greedy() {
            return Ok(best);
        }
        let uniforms = self.uniforms(draw);
        let uniform = |row| uniforms.of(Purpose::Token(token(row)));
        // The most likely token first, because few others can exceed it. The first of equals wins.
        let mut winner = (best, gumbel(uniform(best)));
        Candidates::of(logits, max, &self.config).for_each(|row, weight| {
            let u = uniform(row);
            let (winner_row, most) = winner;
            // -ln(-ln u) is at most -ln(1 - u); the factor covers rounding errors of both.
            if 1.0 - u > 1.0001 * exp_or_more(most - weight) {
                return;
            }
            let sum = weight + gumbel(u);
            if sum.total_cmp(&most).then(winner_row.cmp(&row)).is_gt() {
                winner = (row, sum);
            }
        });
        Ok(winner.0)
    }

    /// Returns the distribution that [`Sampler::sample`] draws from, by index of the row.
    pub fn distribution(&self, logits: &[f32]) -> Result<Distribution, SampleError> {
        match self.is_greedy() {
            true => Ok(Distribution::only(argmax(logits)?.0)),
            false => {
                let (_, max) = argmax(logits)?;
                Ok(Candidates::of(logits, max, &self.config).distribution())
            }
        }
    }

    /// Draws a token from a draft's distribution, independently of the target's draw.
    pub fn draft(&self, distribution: &Distribution, draw: Draw) -> u32 {
        distribution.at(self.uniforms(draw).of(Purpose::Draft))
    }

    /// Returns the target's token where `drafted` was drawn from `draft`: the drafted token with
    /// probability min(1, p / q), else a token from the normalized excess of p over q. Both
    /// together have the distribution p that [`Sampler::sample`] draws from (Leviathan, Kalman and
    /// Matias, "Fast Inference from Transformers via Speculative Decoding", 2023).
    pub fn accept_or_resample(
        &self,
        logits: &[f32],
        drafted: u32,
        draft: &Distribution,
        draw: Draw,
    ) -> Result<u32, SampleError> {
        let target = self.distribution(logits)?;
        let uniforms = self.uniforms(draw);
        let (p, q) = (target.probability(drafted), draft.probability(drafted));
        if uniforms.of(Purpose::Acceptance) * q < p {
            return Ok(drafted);
        }
        let rest = target.beyond(draft);
        // The excess can be zero by rounding if the distributions are almost equal.
        let rest = rest.unwrap_or(target);
        Ok(rest.at(uniforms.of(Purpose::Resample)))
    }

    /// Returns the generator of a draw: seeded with output `position` of a generator that is seeded
    /// with output `stream` of the seed's generator.
    fn uniforms(&self, draw: Draw) -> Uniforms {
        let of_stream = splitmix64(self.config.seed, draw.stream);
        Uniforms(splitmix64(of_stream, draw.position))
    }
}

/// A random number generator, by its seed.
#[derive(Clone, Copy)]
struct Uniforms(u64);

impl Uniforms {
    /// Returns a number in (0, 1) with 53 random bits.
    fn of(self, purpose: Purpose) -> f64 {
        let bits = splitmix64(self.0, purpose.index());
        ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }
}

/// Returns an upper bound of `exp(-x)`, at most 7 % too large: linear between powers of two.
fn exp_or_more(x: f64) -> f64 {
    const BIAS: f64 = 1023.0;
    let exponent = (BIAS - x * std::f64::consts::LOG2_E).clamp(1.0, 2046.0);
    f64::from_bits((exponent * (1u64 << 52) as f64) as u64)
}

/// The use of a random number; each use has its own number.
#[derive(Clone, Copy)]
enum Purpose {
    /// Noise of a token.
    Token(u32),
    Draft,
    Acceptance,
    Resample,
}

impl Purpose {
    fn index(self) -> u64 {
        match self {
            Purpose::Token(token) => token.into(),
            Purpose::Draft => 1 << 32,
            Purpose::Acceptance => 2 << 32,
            Purpose::Resample => 3 << 32,
        }
    }
}

/// Converts a uniform number to a draw of the standard Gumbel distribution.
fn gumbel(uniform: f64) -> f64 {
    -(-uniform.ln()).ln()
}

/// Returns the largest logit and the lowest token that has it.
pub(crate) fn argmax(logits: &[f32]) -> Result<(u32, f32), SampleError> {
    let n_vocab = logits.len();
    match n_vocab {
        0 => Err(SampleError::NoCandidate { n_vocab }),
        _ => Largest::of(logits).checked(n_vocab),
    }
}

/// Validation of a largest logit.
pub(crate) trait Checked {
    /// Returns the token and its logit if the logit is finite, for a row of `n_vocab`.
    fn checked(self, n_vocab: usize) -> Result<(u32, f32), SampleError>;
}

impl Checked for Largest {
    fn checked(self, n_vocab: usize) -> Result<(u32, f32), SampleError> {
        let Largest { index, value } = self;
        if value == f32::NEG_INFINITY {
            return Err(SampleError::NoCandidate { n_vocab });
        }
        if !value.is_finite() {
            let token = index as usize;
            return Err(SampleError::Logit { token, value });
        }
        Ok((index, value))
    }
}

/// Returns output `index` (from 0) of the SplitMix64 generator with this seed (Steele, Lea and
/// Flood, "Fast splittable pseudorandom number generators", 2014). Its state is a counter, so any
/// output can be computed without the previous ones.
pub const fn splitmix64(seed: u64, index: u64) -> u64 {
    let state = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = seed.wrapping_add(state);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOWHERE: Draw = Draw {
        stream: 0,
        position: 0,
    };

    fn sampler(temperature: f32, seed: u64) -> Sampler {
        Sampler::new(SampleConfig::at(temperature, seed)).unwrap()
    }

    fn greedy(logits: &[f32]) -> Result<u32, SampleError> {
        sampler(0.0, 1).sample(logits, NOWHERE)
    }

    /// First outputs of the generator for seed 1234567, as listed by Rosetta Code.
    #[test]
    fn splitmix64_vectors() {
        let outputs = [
            6457827717110365317,
            3203168211198807973,
            9817491932198370423,
            4593380528125082431,
            16408922859458223821,
        ];
        for (index, expected) in (0..).zip(outputs) {
            assert_eq!(splitmix64(1234567, index), expected);
        }
    }

    #[test]
    fn greedy_takes_the_largest_and_the_lowest_of_equals() {
        assert_eq!(greedy(&[1.0, 3.0, 2.0]), Ok(1));
        assert_eq!(greedy(&[0.5, 3.0, 3.0, 3.0]), Ok(1));
        assert_eq!(greedy(&[-0.0, 0.0]), Ok(0));
        assert_eq!(greedy(&[f32::NEG_INFINITY, f32::MIN]), Ok(1));
    }

    #[test]
    fn rows_without_a_choice_are_errors() {
        for temperature in [0.0, 1.0] {
            let sample = |row: &[f32]| sampler(temperature, 1).sample(row, NOWHERE).unwrap_err();
            let banned = [f32::NEG_INFINITY; 2];
            assert_eq!(sample(&banned), SampleError::NoCandidate { n_vocab: 2 });
            assert_eq!(sample(&[]), SampleError::NoCandidate { n_vocab: 0 });
            let nan = sample(&[1.0, f32::NAN]);
            assert_eq!(nan.to_string(), "logit of token 1 is NaN");
            let infinite = sample(&[f32::INFINITY, 1.0]);
            assert_eq!(infinite.to_string(), "logit of token 0 is inf");
        }
    }

    #[test]
    fn a_temperature_must_mean_something() {
        for temperature in [-1.0, f32::NAN, f32::INFINITY] {
            let refused = Sampler::new(SampleConfig::at(temperature, 1)).unwrap_err();
            assert!(matches!(refused, SampleError::Temperature { .. }));
        }
        for top_p in [-0.1, 1.1, f32::NAN] {
            let config = SampleConfig {
                top_p,
                ..SampleConfig::at(1.0, 1)
            };
            let refused = Sampler::new(config).unwrap_err().to_string();
            assert!(refused.starts_with("top-p: expected"), "{refused}");
        }
    }

    /// Draws at `positions` positions of a stream, counted per token.
    fn counts(sampler: &Sampler, logits: &[f32], stream: u64, positions: u64) -> Vec<u64> {
        let mut counts = vec![0; logits.len()];
        for position in 0..positions {
            let token = sampler.sample(logits, Draw { stream, position }).unwrap();
            counts[token as usize] += 1;
        }
        counts
    }

    /// Pearson's statistic of the draws against the softmax. With 4 degrees of freedom a correct
    /// sampler exceeds 23.5 once in 10,000 trials; the draws here are fixed.
    #[test]
    fn frequencies_follow_the_softmax() {
        const DRAWS: u64 = 20_000;
        const LIMIT: f64 = 23.5;
        let logits = [1.0f32, -0.5, 2.0, 0.0, 1.5];
        for (temperature, seed) in [(1.0f32, 7u64), (0.7, 8), (2.0, 9)] {
            let weights = logits.map(|x| f64::from(x / temperature).exp());
            let total: f64 = weights.iter().sum();
            for stream in [0, 1, u64::MAX] {
                let counts = counts(&sampler(temperature, seed), &logits, stream, DRAWS);
                let statistic: f64 = counts
                    .iter()
                    .zip(weights)
                    .map(|(&n, w)| {
                        let expected = DRAWS as f64 * w / total;
                        (n as f64 - expected).powi(2) / expected
                    })
                    .sum();
                assert!(
                    statistic < LIMIT,
                    "T {temperature}: {statistic}, {counts:?}"
                );
            }
        }
    }

    #[test]
    fn seeds_and_streams_draw_different_texts() {
        let logits = [0.0f32; 64];
        let text = |seed, stream| -> Vec<u32> {
            (0..32)
                .map(|position| {
                    let draw = Draw { stream, position };
                    sampler(1.0, seed).sample(&logits, draw).unwrap()
                })
                .collect()
        };
        assert_ne!(text(1, 0), text(2, 0));
        assert_ne!(text(1, 0), text(1, 1));
        assert_ne!(text(1, 2), text(2, 1));
        assert_eq!(text(1, 0), text(1, 0));
    }

    proptest! {
        #[test]
        fn a_banned_token_is_never_drawn(
            logits in prop::collection::vec(prop_oneof![Just(f32::NEG_INFINITY), -1e30f32..1e30], 1..40),
            temperature in 1e-6f32..1e6, seed: u64, stream: u64, position: u64,
        ) {
            let drawn = sampler(temperature, seed).sample(&logits, Draw { stream, position });
            if logits.iter().all(|x| *x == f32::NEG_INFINITY) {
                prop_assert_eq!(drawn, Err(SampleError::NoCandidate { n_vocab: logits.len() }));
            } else {
                prop_assert!(logits[drawn.unwrap() as usize].is_finite());
            }
        }

        /// Tokens that are skipped by the bound could not have won.
        #[test]
        fn the_largest_sum_wins(
            logits in prop::collection::vec(-30f32..30.0, 1..2000), temperature in 0.1f32..20.0,
            top_k in 0usize..50, min_p in prop_oneof![Just(0f32), 0f32..=1.0], seed: u64, stream: u64,
        ) {
            let config = SampleConfig { top_k, min_p, ..SampleConfig::at(temperature, seed) };
            let sampler = Sampler::new(config).unwrap();
            let (_, max) = argmax(&logits).unwrap();
            for position in 0..8 {
                let draw = Draw { stream, position };
                let mut sums = Vec::new();
                Candidates::of(&logits, max, &config).for_each(|row, weight| {
                    let noise = gumbel(sampler.uniforms(draw).of(Purpose::Token(row)));
                    sums.push((row, weight + noise));
                });
                let winner = sums.iter().max_by(|(a, x), (b, y)| x.total_cmp(y).then(b.cmp(a)));
                prop_assert_eq!(sampler.sample(&logits, draw).unwrap(), winner.unwrap().0);
            }
        }

        #[test]
        fn a_bound_of_the_exponential_is_one(x in prop_oneof![-700f64..700.0, -1e6..1e6]) {
            let (bound, exact) = (exp_or_more(x), (-x).exp());
            prop_assert!(bound >= exact * (1.0 - 1e-9) || x < -700.0, "{bound} {exact}");
            prop_assert!(bound <= exact * 1.07 || x > 700.0, "{bound} {exact}");
        }

        #[test]
        fn a_low_temperature_is_greedy(
            logits in prop::collection::vec((-100i32..100).prop_map(|x| x as f32), 1..40),
            seed: u64, position: u64,
        ) {
            let token = sampler(1e-4, seed).sample(&logits, Draw { stream: 0, position }).unwrap();
            let best = greedy(&logits).unwrap();
            prop_assert_eq!(logits[token as usize], logits[best as usize]);
        }
    }
}
