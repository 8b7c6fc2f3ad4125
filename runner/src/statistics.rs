//! Percentiles of measurements.

/// Returns the median, the mean of the middle values of an even number; `None` without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    (!sorted.is_empty()).then(|| percentile(&sorted, 0.5))
}

/// Returns the percentile of sorted values (at least one) at a share from 0 to 1, interpolated
/// between neighbours.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let index = share * (sorted.len() - 1) as f64;
    let (below, above) = (
        sorted[index.floor() as usize],
        sorted[index.ceil() as usize],
    );
    below + (above - below) * index.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_by_hand() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0, 10.0]), Some(3.0));
        assert_eq!(median([4.0, 1.0, 8.0, 2.0]), Some(3.0));
        let values: Vec<f64> = (0..=1000).map(f64::from).collect();
        let found = [0.0, 0.5, 0.99, 0.999, 1.0].map(|share| percentile(&values, share));
        assert_eq!(found, [0.0, 500.0, 990.0, 999.0, 1000.0]);
        assert_eq!(percentile(&[1.0, 3.0], 0.25), 1.5);
    }
}
