//! Distance at which products prefetch weights. Some CPUs read a stream faster with software
//! prefetches, some without: the first products of a model measure which. The result affects time alone.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use schemas::gguf::DType;

use super::Cpu;
use crate::backend::{Backend, MatmulOp, WeightData};

/// Distances to choose from, in cache lines; 0 is no prefetching.
const DISTANCES: [usize; 2] = [0, 64];

/// Products that are timed with each distance.
const N_SAMPLES: usize = 24;

/// Minimum bytes of a weight whose product is timed.
const MIN_BYTES: usize = 256 << 10;

/// Seconds per byte of the products timed so far, for each distance.
type Samples = [Vec<f64>; DISTANCES.len()];

/// A distance, or the measurement that will choose it.
pub(crate) struct Prefetch {
    chosen: OnceLock<usize>,
    samples: Mutex<Samples>,
}

impl Prefetch {
    /// `distance` in cache lines; `None` to measure.
    pub(crate) fn new(distance: Option<usize>) -> Prefetch {
        let samples = DISTANCES.map(|_| Vec::with_capacity(2 * N_SAMPLES));
        Prefetch {
            chosen: distance.map_or_else(OnceLock::new, OnceLock::from),
            samples: Mutex::new(samples),
        }
    }

    /// Returns the chosen distance, if it is known yet.
    pub(crate) fn chosen(&self) -> Option<usize> {
        self.chosen.get().copied()
    }

    /// Runs a product, which is given the distance. `bytes` is the size of the weight if it is read from
    /// memory and little else is done.
    pub(crate) fn run(&self, bytes: Option<usize>, product: impl FnOnce(usize)) {
        if let Some(distance) = self.chosen() {
            return product(distance);
        }
        let trial = self.next_trial();
        let started = Instant::now();
        product(DISTANCES[trial]);
        if let Some(bytes) = bytes.filter(|&bytes| bytes >= MIN_BYTES) {
            self.record(trial, started.elapsed(), bytes);
        }
    }

    fn record(&self, trial: usize, time: Duration, bytes: usize) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if self.chosen().is_some() {
            return;
        }
        samples[trial].push(time.as_secs_f64() / bytes as f64);
        if samples.iter().all(|samples| samples.len() >= N_SAMPLES) {
            let medians = samples.each_mut().map(|samples| {
                samples.sort_by(f64::total_cmp);
                samples[samples.len() / 2]
            });
            let best = (0..DISTANCES.len()).min_by(|&a, &b| medians[a].total_cmp(&medians[b]));
            self.chosen
                .get_or_init(|| DISTANCES[best.unwrap_or_default()]);
        }
    }

    /// Returns the index of the distance to time next. The order (the Thue-Morse sequence) has no period, so
    /// that no distance always meets the same weight of a layer.
    fn next_trial(&self) -> usize {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let n: usize = samples.iter().map(Vec::len).sum();
        n.count_ones() as usize % DISTANCES.len()
    }
}

impl Cpu {
    /// Multiplies a weight that is larger than the caches until the distance is chosen, and returns it; takes
    /// less than a second. `None` if this instruction set has no choice.
    pub fn measure_prefetch_distance(&self) -> Option<usize> {
        // 75 MB.
        const N_COLS: usize = 2048;
        const N_ROWS: usize = 65536;
        let row_bytes = DType::Q4_K.row_bytes(N_COLS as u64)? as usize;
        let weight = WeightData {
            dtype: DType::Q4_K,
            n_rows: N_ROWS,
            n_cols: N_COLS,
            bytes: Arc::new(vec![0; N_ROWS * row_bytes]),
        };
        let weight = self.load(weight).ok()?;
        let mut x = self.buffer(N_COLS);
        self.upload(&[0.0; N_COLS], &mut x, 0);
        let mut out = self.buffer(N_ROWS);
        // The first product repacks the weight.
        for _ in 0..=DISTANCES.len() * N_SAMPLES {
            self.matmul(&weight, &x, 1, &mut out);
        }
        self.prefetch_distance()
    }
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
                let trial = prefetch.next_trial();
                let time = if trial == fast { 10 } else { 11 };
                prefetch.record(trial, Duration::from_millis(time), 1 << 20);
            }
            assert_eq!(prefetch.chosen(), Some(distance));
        }
    }

    /// Two models of one backend compute at the same time.
    #[test]
    fn a_product_does_not_wait_for_another() {
        for distance in [None, Some(7)] {
            let prefetch = Prefetch::new(distance);
            let mut inner = false;
            prefetch.run(Some(MIN_BYTES), |_| {
                prefetch.run(Some(MIN_BYTES), |_| inner = true);
            });
            assert!(inner);
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
