//! Statistics of repeated measurements: medians with their spread, comparisons of two speeds, and
//! percentiles.

use runner::statistics::percentile;
use schemas::report::{Interval, KindSpeed, KlDivergence, SpeedChange, SpeedComparison, Spread};

/// Quantiles of Student's t that bound 95 % of a distribution with 2, 3, .. degrees of freedom. The last
/// one is used for more: it is at most 14 % too large.
const STUDENT: [f64; 9] = [
    4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

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
    let ratios: Vec<f64> = pairs
        .iter()
        .map(|(plain, drafted)| drafted / plain)
        .collect();
    let interval = ratio_interval(&ratios);
    Some(SpeedComparison {
        n_runs: pairs.len() as u32,
        tokens_per_s: spread(pairs.iter().map(|&(_, drafted)| drafted))?,
        plain_tokens_per_s: spread(pairs.iter().map(|&(plain, _)| plain))?,
        ratio: spread(ratios.iter().copied())?,
        change: interval.map_or(SpeedChange::Unclear, change),
        ratios,
        interval,
        by_kind,
    })
}

/// Returns the 95 % confidence interval of the mean of ratios, from their logarithms, in which twice as fast
/// and half as fast are equally far from 1. `None` with fewer than three ratios, as two can agree by chance.
fn ratio_interval(ratios: &[f64]) -> Option<Interval> {
    let n = ratios.len();
    let t = *STUDENT.get(n.checked_sub(3)?).or(STUDENT.last())?;
    let logarithms = || ratios.iter().map(|ratio| ratio.ln());
    let mean = logarithms().sum::<f64>() / n as f64;
    let squares: f64 = logarithms().map(|x| (x - mean).powi(2)).sum();
    let half = t * (squares / (n - 1) as f64 / n as f64).sqrt();
    let interval = Interval {
        low: (mean - half).exp(),
        high: (mean + half).exp(),
    };
    // A run that decoded no token has no logarithm.
    (interval.low.is_finite() && interval.high.is_finite()).then_some(interval)
}

fn change(interval: Interval) -> SpeedChange {
    match interval {
        Interval { low, .. } if low > 1.0 => SpeedChange::Faster,
        Interval { high, .. } if high < 1.0 => SpeedChange::Slower,
        _ => SpeedChange::Unclear,
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
        assert_eq!(found.change, SpeedChange::Unclear);
        assert!((found.ratio.median - 1.015).abs() < 1e-9);
    }

    #[test]
    fn a_gain_is_larger_than_its_uncertainty() {
        assert_eq!(compare(&[1.5, 1.6, 1.7]).change, SpeedChange::Faster);
        assert_eq!(compare(&[0.5, 0.6, 0.7]).change, SpeedChange::Slower);
        assert_eq!(compare(&[1.1, 1.2, 1.4]).change, SpeedChange::Unclear);
        // More runs make the same gain certain, even on a busy machine.
        let busy = [1.3, 2.1, 1.5, 1.2, 1.6];
        assert_eq!(compare(&busy[..3]).change, SpeedChange::Unclear);
        assert_eq!(compare(&busy).change, SpeedChange::Faster);
        // Two runs can agree by chance.
        assert_eq!(compare(&[1.5, 1.5]).change, SpeedChange::Unclear);
    }

    #[test]
    fn intervals_by_hand() {
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        // Logarithms 0, 1 and 2: the mean is 1, the standard deviation 1.
        let e = std::f64::consts::E;
        let found = ratio_interval(&[1.0, e, e * e]).unwrap();
        let half = 4.303 / 3.0f64.sqrt();
        close(found.low, (1.0 - half).exp());
        close(found.high, (1.0 + half).exp());
        let equal = ratio_interval(&[2.0; 40]).unwrap();
        close(equal.low, 2.0);
        close(equal.high, 2.0);
        assert_eq!(ratio_interval(&[2.0, 2.0]), None);
        assert_eq!(ratio_interval(&[2.0, 2.0, 0.0]), None);
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
