//! Cost of forward passes, measured while they run, and the clock they are measured with.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A source of time. Time affects only the draft length, never the text, so a test can replace it.
pub trait Clock {
    /// Returns the time since a fixed moment.
    fn now(&self) -> Duration;
}

/// The machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic(Instant);

impl Default for Monotonic {
    fn default() -> Monotonic {
        Monotonic(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Number of recent times whose median is used.
const N_RECENT: usize = 9;
/// Relative cost of each additional token before anything is measured; small, so that drafting gets
/// tried.
const FIRST_GUESS: f64 = 0.05;

/// Seconds by number of tokens, as running medians.
#[derive(Clone, Debug, Default)]
pub struct LatencyCurve {
    /// Measured points, ascending by number of tokens.
    points: Vec<Point>,
}

#[derive(Clone, Debug)]
struct Point {
    n: usize,
    times: Recent<N_RECENT>,
}

/// The last `N` values of a series.
#[derive(Clone, Debug, Default)]
struct Recent<const N: usize> {
    values: VecDeque<f64>,
    /// The lower median, because the first measurement is often slow; zero without values.
    median: f64,
}

impl<const N: usize> Recent<N> {
    fn push(&mut self, value: f64) {
        self.values.push_back(value);
        if self.values.len() > N {
            self.values.pop_front();
        }
        let mut sorted: Vec<f64> = self.values.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        self.median = sorted[(sorted.len() - 1) / 2];
    }

    fn scale(&mut self, factor: f64) {
        self.values.iter_mut().for_each(|value| *value *= factor);
        self.median *= factor;
    }
}

/// Number of recent passes that determine the machine's current speed.
const N_NOW: usize = 5;
/// Number of measurements after which a width counts as known.
const N_KNOWN: usize = 3;
/// Factor by which the median pass must differ before the machine's speed counts as changed, and
/// above which a single time counts as interrupted.
pub const CHANGED: f64 = 1.25;

/// Detects changes of the machine's speed, by the ratio of recent pass times of any width to the
/// known times. Machines are shared and throttled. After a change, all earlier measurements are
/// wrong by the same factor, and it would take long to repeat them.
#[derive(Clone, Debug, Default)]
pub struct SpeedDrift {
    ratios: Recent<N_NOW>,
}

impl SpeedDrift {
    /// Records a pass. Returns the factor by which to scale all known times once a change is
    /// certain.
    pub fn record(&mut self, known: &LatencyCurve, n: usize, seconds: f64) -> Option<f64> {
        let is_known = known.n_recent(n) >= N_KNOWN;
        let usual = known.seconds(n).filter(|_| is_known)?;
        self.ratios.push(seconds / usual);
        let change = self.ratios.median;
        if self.ratios.values.len() < N_KNOWN || (1.0 / CHANGED..CHANGED).contains(&change) {
            return None;
        }
        *self = SpeedDrift::default();
        Some(change)
    }
}

impl LatencyCurve {
    /// Records a measurement.
    pub fn record(&mut self, n: usize, seconds: f64) {
        let i = match self.points.binary_search_by_key(&n, |point| point.n) {
            Ok(i) => i,
            Err(i) => {
                let times = Recent::default();
                self.points.insert(i, Point { n, times });
                i
            }
        };
        self.points[i].times.push(seconds);
    }

    /// Multiplies all measured times by a factor.
    pub fn scale(&mut self, factor: f64) {
        for point in &mut self.points {
            point.times.scale(factor);
        }
    }

    /// Returns the largest measured number of tokens.
    pub fn widest(&self) -> usize {
        self.points.last().map_or(0, |point| point.n)
    }

    /// Returns the number of measurements in the current median for `n` tokens.
    pub fn n_recent(&self, n: usize) -> usize {
        let point = self.points.binary_search_by_key(&n, |point| point.n);
        point.map_or(0, |i| self.points[i].times.values.len())
    }

    /// Returns the seconds for `n` tokens: measured, interpolated between the two neighbours, or
    /// beyond the measured range extrapolated along the line through the first and the last point.
    /// `None` before any measurement.
    pub fn seconds(&self, n: usize) -> Option<f64> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let through =
            |a: usize, b: usize| line([a, b].map(|i| (self.points[i].n, self.trusted(i))), n);
        let end = self.points.len() - 1;
        if n > last.n || n < first.n {
            let seconds = match end > 0 {
                true => through(0, end),
                false => {
                    let one = last.times.median / (1.0 + FIRST_GUESS * (last.n as f64 - 1.0));
                    one * (1.0 + FIRST_GUESS * (n as f64 - 1.0))
                }
            };
            // A wider pass does not cost less, and a narrower one costs more than nothing.
            let bound = if n > last.n { self.trusted(end) } else { 0.0 };
            return Some(seconds.max(bound));
        }
        let after = self.points.iter().position(|point| point.n >= n)?;
        Some(match self.points[after].n == n {
            true => self.trusted(after),
            false => through(after - 1, after),
        })
    }

    /// Returns the time at a point. A point measured once is limited to the extrapolation of the
    /// narrower ones, because the first measurement is often slow.
    fn trusted(&self, i: usize) -> f64 {
        let Point { n, times } = &self.points[i];
        match times.values.len() > 1 || i < 2 {
            true => times.median,
            false => {
                let ends = [0, i - 1].map(|i| (self.points[i].n, self.points[i].times.median));
                times.median.min(line(ends, *n).max(ends[1].1))
            }
        }
    }
}

/// Returns the seconds for `n` tokens on the line through two points.
fn line([(n_a, a), (n_b, b)]: [(usize, f64); 2], n: usize) -> f64 {
    a + (b - a) / (n_b - n_a) as f64 * (n as f64 - n_a as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_through_what_was_measured() {
        let mut curve = LatencyCurve::default();
        assert_eq!(curve.seconds(3), None);
        curve.record(1, 2.0);
        assert_eq!(curve.seconds(1), Some(2.0));
        assert_eq!(curve.seconds(11), Some(3.0));
        curve.record(5, 4.0);
        assert_eq!(curve.seconds(3), Some(3.0));
        assert_eq!(curve.seconds(9), Some(6.0));
        curve.record(9, 3.0);
        assert_eq!(curve.seconds(7), Some(3.5));
        assert_eq!((curve.n_recent(9), curve.n_recent(7)), (1, 0));
    }

    #[test]
    fn one_slow_moment_changes_nothing() {
        let mut curve = LatencyCurve::default();
        for seconds in [9.0, 1.0, 1.1, 0.9, 50.0, 1.0] {
            curve.record(1, seconds);
        }
        assert_eq!(curve.seconds(1), Some(1.0));
        // A lasting change moves the median.
        (0..N_RECENT).for_each(|_| curve.record(1, 3.0));
        assert_eq!(curve.seconds(1), Some(3.0));
    }

    #[test]
    fn a_machine_that_changed_is_distinguished_from_one_that_was_interrupted() {
        let mut curve = LatencyCurve::default();
        let mut drift = SpeedDrift::default();
        let mut pass = |n, seconds| {
            let change = drift.record(&curve, n, seconds);
            curve.record(n, seconds);
            change
        };
        for seconds in [1.0, 1.0, 1.1, 0.9, 1.0] {
            assert_eq!(pass(1, seconds), None);
        }
        assert_eq!(pass(1, 50.0), None);
        for _ in 0..N_NOW {
            assert_eq!(pass(1, 1.0), None);
        }
        // The first time of a new width gives no information about the machine.
        assert_eq!(pass(2, 4.0), None);
        let changes = [2.0; 3].map(|seconds| pass(1, seconds));
        assert_eq!(changes, [None, None, Some(2.0)]);
    }

    #[test]
    fn a_first_time_is_not_trusted_to_be_worse_than_what_is_known() {
        let mut curve = LatencyCurve::default();
        for (n, seconds) in [(1, 2.0), (2, 2.5), (4, 9.0)] {
            curve.record(n, seconds);
        }
        assert_eq!(curve.seconds(4), Some(3.5));
        curve.record(4, 9.0);
        assert_eq!(curve.seconds(4), Some(9.0));
        curve.scale(2.0);
        assert_eq!(curve.seconds(2), Some(5.0));
    }
}
