//! Means, percentiles and standard errors of the scores of all positions.

use runner::statistics::percentile;
use schemas::report::{Distribution, Estimate, HistogramBin, ModelDivergence, Percentile};

use super::row::RowScore;
use super::scores::ModelScores;

/// The percentiles of a distribution, from the maximum to the minimum.
const PERCENTS: [f64; 13] = [
    100.0, 99.9, 99.0, 95.0, 90.0, 75.0, 50.0, 25.0, 10.0, 5.0, 1.0, 0.1, 0.0,
];

/// Smallest end of a range of the histogram; smaller divergences are rounding.
const SMALLEST_END: f64 = 1e-6;

/// Counts values in ranges that end at 1, 2 or 5 times a power of ten.
fn histogram(values: &[f64]) -> Vec<HistogramBin> {
    let largest = values.iter().copied().fold(SMALLEST_END, f64::max);
    let exponents = -6..=f64::MAX_10_EXP;
    // Parsed, not computed, so that an end is the number that is printed.
    let ends = exponents.flat_map(|exponent| {
        ["1", "2", "5"].map(|digit| format!("{digit}e{exponent}").parse().unwrap_or(f64::MAX))
    });
    let mut bins: Vec<HistogramBin> = Vec::new();
    for to in ends {
        let from = bins.last().map_or(0.0, |bin| bin.to);
        bins.push(HistogramBin { from, to, n: 0 });
        if to > largest {
            break;
        }
    }
    for value in values {
        let i = bins.partition_point(|bin| bin.to <= *value);
        if let Some(bin) = bins.get_mut(i) {
            bin.n += 1;
        }
    }
    bins
}

/// Mean of a number at each position, with its standard error.
pub(super) fn mean(values: &[f64]) -> Estimate {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    Estimate {
        value: mean,
        standard_error: error_of(squares, values.len()),
    }
}

/// Returns the standard error of a mean, from the sum of squared deviations of `n` values.
fn error_of(squares: f64, n: usize) -> f64 {
    match n {
        0 | 1 => 0.0,
        _ => (squares / n as f64 / (n - 1) as f64).sqrt(),
    }
}

fn distribution(values: &[f64]) -> Distribution {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Distribution {
        mean: mean(values),
        percentiles: PERCENTS
            .map(|percent| Percentile {
                percent,
                value: percentile(&sorted, percent / 100.0),
            })
            .into(),
    }
}

/// Returns the perplexity of the tokens with these negative log-probabilities.
pub(super) fn perplexity(surprises: &[f64]) -> Estimate {
    exp(mean(surprises))
}

/// Error propagation of a mean through `exp`.
fn exp(mean: Estimate) -> Estimate {
    let value = mean.value.exp();
    Estimate {
        value,
        standard_error: value * mean.standard_error,
    }
}

/// Summarizes the scores of a model; `base` has the negative log-probabilities of the base.
pub(super) fn model_divergence(model: &ModelScores, base: &[f64]) -> ModelDivergence {
    let scores = &model.rows;
    let of = |number: fn(&RowScore) -> f64| scores.iter().map(number).collect::<Vec<f64>>();
    let surprises = of(|score| score.surprise);
    let (own, base_mean) = (mean(&surprises), mean(base));
    let differences: Vec<f64> = surprises
        .iter()
        .zip(base)
        .map(|(own, base)| own - base)
        .collect();
    // The error of a mean of differences has the covariance in it.
    let ln_ratio = mean(&differences);
    let errors = (own.standard_error, base_mean.standard_error);
    let covariance = (errors.0.powi(2) + errors.1.powi(2) - ln_ratio.standard_error.powi(2)) / 2.0;
    let (own_perplexity, base_perplexity) = (exp(own), exp(base_mean));
    let variance = own_perplexity.standard_error.powi(2) + base_perplexity.standard_error.powi(2)
        - 2.0 * own_perplexity.value * base_perplexity.value * covariance;
    let delta_p = of(|score| 100.0 * score.delta_p);
    let squares: Vec<f64> = delta_p.iter().map(|x| x * x).collect();
    let mean_square = mean(&squares);
    let rms = mean_square.value.sqrt();
    let kld = of(|score| score.kld);
    let same_top = of(|score| f64::from(u8::from(score.same_top)));
    ModelDivergence {
        model: model.model.clone(),
        size_bytes: model.size_bytes,
        bits_per_weight: model.bits_per_weight,
        perplexity: own_perplexity,
        ln_perplexity_ratio: ln_ratio,
        perplexity_ratio: exp(ln_ratio),
        perplexity_difference: Estimate {
            value: own_perplexity.value - base_perplexity.value,
            // Rounding may make it negative.
            standard_error: variance.max(0.0).sqrt(),
        },
        correlation: (errors.0 * errors.1 > 0.0).then(|| covariance / (errors.0 * errors.1)),
        kld: distribution(&kld),
        kld_histogram: histogram(&kld),
        delta_p_percent: distribution(&delta_p),
        delta_p_rms_percent: Estimate {
            value: rms,
            standard_error: match rms > 0.0 {
                true => 0.5 / rms * mean_square.standard_error,
                false => 0.0,
            },
        },
        same_top: mean(&same_top),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_by_hand() {
        let found = distribution(&[3.0, 1.0, 2.0]);
        assert_eq!(found.mean.value, 2.0);
        // Deviations 1, 0, 1: variance 1, of the mean 1/3.
        assert!((found.mean.standard_error - (1.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(found.percentile(100.0), Some(3.0));
        assert_eq!(found.percentile(75.0), Some(2.5));
        assert_eq!(found.percentile(50.0), Some(2.0));
        assert_eq!(found.percentile(0.0), Some(1.0));
        assert_eq!(mean(&[4.0]).standard_error, 0.0);
    }

    #[test]
    fn histograms_count_every_value() {
        let bins = histogram(&[-1e-9, 0.0, 1e-6, 0.3, 0.5, 0.51]);
        let counts: Vec<(f64, f64, u64)> = bins.iter().map(|b| (b.from, b.to, b.n)).collect();
        assert_eq!(counts[0], (0.0, 1e-6, 2));
        assert_eq!(counts[1], (1e-6, 2e-6, 1));
        assert_eq!(counts[counts.len() - 2..], [(0.2, 0.5, 1), (0.5, 1.0, 2)]);
        assert_eq!(bins.iter().map(|bin| bin.n).sum::<u64>(), 6);
        assert_eq!(histogram(&[0.0]).len(), 2);
    }
}
