//! What passes cost, measured while they run; and the time they are measured in.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Tells the time. Time may choose how long drafts are, never what a text says, so a test can put
/// any other in its place.
pub trait Clock {
    /// Time since some moment.
    fn now(&self) -> Duration;
}

/// The machine's.
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

/// Times that a median is taken of.
const N_RECENT: usize = 9;
/// What each further token adds to a pass of one, as long as nothing was measured: little, so that it
/// will be tried.
const FIRST_GUESS: f64 = 0.05;

/// Seconds by a number of tokens, as running medians.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// By number of tokens, ascending.
    points: Vec<Point>,
}

#[derive(Clone, Debug)]
struct Point {
    n: usize,
    recent: VecDeque<f64>,
    median: f64,
}

impl Curve {
    /// Takes a measurement into account.
    pub fn record(&mut self, n: usize, seconds: f64) {
        let i = match self.points.binary_search_by_key(&n, |point| point.n) {
            Ok(i) => i,
            Err(i) => {
                let (recent, median) = (VecDeque::new(), seconds);
                self.points.insert(i, Point { n, recent, median });
                i
            }
        };
        let Point { recent, median, .. } = &mut self.points[i];
        recent.push_back(seconds);
        if recent.len() > N_RECENT {
            recent.pop_front();
        }
        let mut sorted: Vec<f64> = recent.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        // The lower one of two: a first time is often slow.
        *median = sorted[(sorted.len() - 1) / 2];
    }

    /// The largest number of tokens that was measured.
    pub fn widest(&self) -> usize {
        self.points.last().map_or(0, |point| point.n)
    }

    /// Whether that number of tokens was measured.
    pub fn is_measured(&self, n: usize) -> bool {
        self.n_recent(n) > 0
    }

    /// Measurements of that number of tokens, as far as they count.
    pub fn n_recent(&self, n: usize) -> usize {
        let point = self.points.binary_search_by_key(&n, |point| point.n);
        point.map_or(0, |i| self.points[i].recent.len())
    }

    /// Seconds for a number of tokens: what was measured, on a line between two neighbours that were,
    /// or beyond all on the line from the first to the last of them. `None` before any measurement.
    pub fn seconds(&self, n: usize) -> Option<f64> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let line = |a: &Point, b: &Point| {
            let slope = (b.median - a.median) / (b.n - a.n) as f64;
            a.median + slope * (n as f64 - a.n as f64)
        };
        if n > last.n || n < first.n {
            let seconds = match last.n > first.n {
                true => line(first, last),
                false => {
                    let one = last.median / (1.0 + FIRST_GUESS * (last.n as f64 - 1.0));
                    one * (1.0 + FIRST_GUESS * (n as f64 - 1.0))
                }
            };
            // Neither does a wider pass cost less, nor a narrower one nothing.
            let bound = if n > last.n { last.median } else { 0.0 };
            return Some(seconds.max(bound));
        }
        let after = self.points.iter().position(|point| point.n >= n)?;
        Some(match self.points[after].n == n {
            true => self.points[after].median,
            false => line(&self.points[after - 1], &self.points[after]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_through_what_was_measured() {
        let mut curve = Curve::default();
        assert_eq!(curve.seconds(3), None);
        curve.record(1, 2.0);
        assert_eq!(curve.seconds(1), Some(2.0));
        assert_eq!(curve.seconds(11), Some(3.0));
        curve.record(5, 4.0);
        assert_eq!(curve.seconds(3), Some(3.0));
        assert_eq!(curve.seconds(9), Some(6.0));
        curve.record(9, 3.0);
        assert_eq!(curve.seconds(7), Some(3.5));
        assert!(curve.is_measured(9) && !curve.is_measured(7));
    }

    #[test]
    fn one_slow_moment_changes_nothing() {
        let mut curve = Curve::default();
        for seconds in [9.0, 1.0, 1.1, 0.9, 50.0, 1.0] {
            curve.record(1, seconds);
        }
        assert_eq!(curve.seconds(1), Some(1.0));
        // But what lasts does.
        (0..N_RECENT).for_each(|_| curve.record(1, 3.0));
        assert_eq!(curve.seconds(1), Some(3.0));
    }
}
