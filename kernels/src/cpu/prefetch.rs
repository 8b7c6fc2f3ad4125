//! Distance at which products prefetch weights. Some CPUs read a stream faster with software
//! prefetches, some without: the first products of a model measure which, at no cost. The result affects time
//! alone.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Distances to choose from, in cache lines; 0 is no prefetching.
const DISTANCES: [usize; 2] = [0, 64];

/// Products that are timed with each distance.
const N_SAMPLES: usize = 24;

/// Minimum bytes of a weight whose product is timed.
const MIN_BYTES: usize = 256 << 10;

/// A distance, or the measurement that will choose it.
pub(crate) struct Prefetch {
    state: Mutex<State>,
}

enum State {
    Chosen(usize),
    /// Seconds per byte of the products so far, for each distance.
    Measuring([Vec<f64>; DISTANCES.len()]),
}

impl Prefetch {
    /// `distance` in cache lines; `None` to measure.
    pub(crate) fn new(distance: Option<usize>) -> Prefetch {
        let state = match distance {
            Some(distance) => State::Chosen(distance),
            None => {
                State::Measuring([0; DISTANCES.len()].map(|_| Vec::with_capacity(2 * N_SAMPLES)))
            }
        };
        Prefetch {
            state: Mutex::new(state),
        }
    }

    /// Returns the chosen distance, if it is known yet.
    pub(crate) fn chosen(&self) -> Option<usize> {
        match *self.lock() {
            State::Chosen(distance) => Some(distance),
            State::Measuring(_) => None,
        }
    }

    /// Runs a product, which is given the distance. `bytes` is the size of the weight if it is read from
    /// memory and little else is done.
    pub(crate) fn run(&self, bytes: Option<usize>, product: impl FnOnce(usize)) {
        let trial = match &*self.lock() {
            State::Chosen(distance) => {
                let distance = *distance;
                return product(distance);
            }
            State::Measuring(samples) => next_trial(samples),
        };
        let started = Instant::now();
        product(DISTANCES[trial]);
        if let Some(bytes) = bytes.filter(|&bytes| bytes >= MIN_BYTES) {
            self.record(trial, started.elapsed(), bytes);
        }
    }

    fn record(&self, trial: usize, time: Duration, bytes: usize) {
        let mut state = self.lock();
        let State::Measuring(samples) = &mut *state else {
            return;
        };
        samples[trial].push(time.as_secs_f64() / bytes as f64);
        if samples.iter().all(|samples| samples.len() >= N_SAMPLES) {
            let medians = samples.each_mut().map(|samples| {
                samples.sort_by(f64::total_cmp);
                samples[samples.len() / 2]
            });
            let best = (0..DISTANCES.len()).min_by(|&a, &b| medians[a].total_cmp(&medians[b]));
            *state = State::Chosen(DISTANCES[best.unwrap_or_default()]);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the distance to time next. The order (the Thue-Morse sequence) has no period, so that no distance
/// always meets the same weight of a layer.
fn next_trial(samples: &[Vec<f64>; DISTANCES.len()]) -> usize {
    let n: usize = samples.iter().map(Vec::len).sum();
    n.count_ones() as usize % DISTANCES.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_distance_is_chosen() {
        for (fast, distance) in DISTANCES.into_iter().enumerate() {
            let prefetch = Prefetch::new(None);
            for _ in 0..DISTANCES.len() * N_SAMPLES {
                assert_eq!(prefetch.chosen(), None);
                let trial = match &*prefetch.lock() {
                    State::Chosen(_) => unreachable!("not yet"),
                    State::Measuring(samples) => next_trial(samples),
                };
                let time = if trial == fast { 10 } else { 11 };
                prefetch.record(trial, Duration::from_millis(time), 1 << 20);
            }
            assert_eq!(prefetch.chosen(), Some(distance));
        }
    }

    #[test]
    fn small_weights_are_not_timed() {
        let prefetch = Prefetch::new(None);
        for _ in 0..200 {
            prefetch.run(Some(MIN_BYTES - 1), |_| {});
            prefetch.run(None, |_| {});
        }
        assert_eq!(prefetch.chosen(), None);
        let prefetch = Prefetch::new(Some(7));
        prefetch.run(Some(MIN_BYTES), |distance| assert_eq!(distance, 7));
    }
}
