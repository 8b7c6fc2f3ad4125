//! Statistics of repeated measurements: medians with their spread, comparisons of two speeds, and
//! percentiles.

use runner::statistics::percentile;
use schemas::report::{KindSpeed, KlDivergence, SpeedChange, SpeedComparison, Spread};

/// Minimum number of pairs of runs for a significant difference.
pub(crate) const MIN_RUNS: usize = 3;

/// Returns the median and the range of values; `None` without values.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let (&min, &max) = (values.first()?, values.last()?);
    let median = percentile(&values, 0.5);
    Some(Spread { median, min, max })
}

/// Compares the speeds of alternating runs; each pair is without drafts and with drafts. `None` if
/// a run took no time.
pub(crate) fn compare_speeds(
    pairs: &[(Option<f64>, Option<f64>)],
    by_kind: Vec<KindSpeed>,
) -> Option<SpeedComparison> {
    let timed = |&(plain, drafted): &(Option<f64>, Option<f64>)| {
        Some((plain.filter(|&speed| speed > 0.0)?, drafted?))
    };
    let pairs: Vec<(f64, f64)> = pairs.iter().map(timed).collect::<Option<_>>()?;
    let ratio = spread(pairs.iter().map(|(plain, drafted)| drafted / plain))?;
    Some(SpeedComparison {
        n_runs: pairs.len() as u32,
        tokens_per_s: spread(pairs.iter().map(|&(_, drafted)| drafted))?,
        plain_tokens_per_s: spread(pairs.iter().map(|&(plain, _)| plain))?,
        change: change(ratio, pairs.len()),
        ratio,
        by_kind,
    })
}

/// A difference counts if it is larger than the whole range of the ratios.
fn change(ratio: Spread, n_runs: usize) -> SpeedChange {
    let difference = ratio.median - 1.0;
    if n_runs < MIN_RUNS || difference.abs() <= ratio.max - ratio.min {
        return SpeedChange::WithinSpread;
    }
    match difference > 0.0 {
        true => SpeedChange::Faster,
        false => SpeedChange::Slower,
    }
}

/// Returns mean, standard error and percentiles of divergences; `None` without values.
pub(crate) fn divergences(values: &[f64]) -> Option<KlDivergence> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let max = *sorted.last()?;
    let n = sorted.len() as f64;
    let mean = sorted.iter().sum::<f64>() / n;
    let squares: f64 = sorted.iter().map(|x| (x - mean).powi(2)).sum();
    let at = |share: f64| percentile(&sorted, share);
    Some(KlDivergence {
        mean,
        standard_error: (sorted.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt()),
        median: at(0.5),
        p90: at(0.9),
        p95: at(0.95),
        p99: at(0.99),
        p99_9: at(0.999),
        max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(ratios: &[f64]) -> SpeedComparison {
        let pairs: Vec<_> = ratios
            .iter()
            .map(|r| (Some(10.0), Some(10.0 * r)))
            .collect();
        compare_speeds(&pairs, Vec::new()).unwrap()
    }

    #[test]
    fn medians_by_hand() {
        assert_eq!(spread([]), None);
        let found = spread([3.0, 1.0, 10.0]).unwrap();
        assert_eq!((found.median, found.min, found.max), (3.0, 1.0, 10.0));
        assert_eq!(spread([1.0, 2.0, 4.0, 8.0]).unwrap().median, 3.0);
    }

    /// Ratios measured in four runs of a drafter that drafted nothing.
    #[test]
    fn noise_is_not_a_gain() {
        let found = compare(&[1.75, 1.12, 0.91, 0.74]);
        assert_eq!(found.change, SpeedChange::WithinSpread);
        assert!((found.ratio.median - 1.015).abs() < 1e-9);
    }

    #[test]
    fn a_gain_is_larger_than_its_spread() {
        assert_eq!(compare(&[1.5, 1.6, 1.7]).change, SpeedChange::Faster);
        assert_eq!(compare(&[0.5, 0.6, 0.7]).change, SpeedChange::Slower);
        assert_eq!(compare(&[1.1, 1.2, 1.4]).change, SpeedChange::WithinSpread);
        // Two runs can agree by chance.
        assert_eq!(compare(&[1.5, 1.5]).change, SpeedChange::WithinSpread);
    }

    #[test]
    fn runs_without_time_have_no_speed() {
        assert_eq!(compare_speeds(&[], Vec::new()), None);
        let pairs = [(Some(1.0), Some(1.0)), (None, Some(1.0))];
        assert_eq!(compare_speeds(&pairs, Vec::new()), None);
    }

    #[test]
    fn percentiles_by_hand() {
        let values: Vec<f64> = (0..=1000).rev().map(f64::from).collect();
        let found = divergences(&values).unwrap();
        assert_eq!((found.mean, found.median), (500.0, 500.0));
        assert_eq!((found.p90, found.p95, found.p99), (900.0, 950.0, 990.0));
        assert_eq!((found.p99_9, found.max), (999.0, 1000.0));
        // The variance of 0 to n is n (n + 2) / 12; the sample variance has n instead of n + 1 in
        // the denominator.
        let expected = (1000.0f64 * 1002.0 / 12.0 * 1001.0 / 1000.0 / 1001.0).sqrt();
        let error = found.standard_error.unwrap();
        assert!((error - expected).abs() < 1e-9, "{error} {expected}");
        assert_eq!(divergences(&[0.5]).unwrap().standard_error, None);
        assert_eq!(divergences(&[]), None);
    }
}
