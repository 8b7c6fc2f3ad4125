//! Distance at which products prefetch weights. Some CPUs read a stream faster with software
//! prefetches, some without: the first passes of a model measure which. The result affects time alone.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use schemas::gguf::DType;

use super::Cpu;
use crate::backend::{Backend, MatmulOp, WeightData};

/// Distances to choose from, in cache lines; 0 is no prefetching.
const DISTANCES: [usize; 2] = [0, 64];

/// Distance for several activation rows in one pass over a panel. On Zen 4, waiting and computing add up without
/// software prefetches from three rows on.
const WIDE_DISTANCE: usize = 96;

/// Passes that are timed with each distance, unless fewer show that one is slower.
const N_PASSES: usize = 5;

/// Fewest passes that are timed with each distance.
const MIN_PASSES: usize = 2;

/// Minimum bytes of a weight whose product is timed.
const MIN_BYTES: usize = 256 << 10;

/// Times of whole passes over the weights of a model: products of different shapes do not compare.
#[derive(Default)]
struct Samples {
    /// The weight that begins a pass: the first one that was timed.
    first: Option<usize>,
    /// Seconds of the products of the current pass so far, and their bytes.
    pass: (f64, usize),
    /// Seconds per byte of each pass, for each distance.
    passes: [Vec<f64>; DISTANCES.len()],
}

/// A product that reads a weight from memory and does little else.
#[derive(Clone, Copy)]
pub(crate) struct Streamed {
    /// Address of the weight.
    pub(crate) weight: usize,
    pub(crate) bytes: usize,
}

/// A distance, or the measurement that will choose it.
pub(crate) struct Prefetch {
    /// For products with one activation row.
    chosen: OnceLock<usize>,
    /// For those with several.
    wide: usize,
    samples: Mutex<Samples>,
}

impl Prefetch {
    /// `distance` in cache lines; `None` to measure.
    pub(crate) fn new(distance: Option<usize>) -> Prefetch {
        Prefetch {
            chosen: distance.map_or_else(OnceLock::new, OnceLock::from),
            wide: distance.unwrap_or(WIDE_DISTANCE),
            samples: Mutex::default(),
        }
    }

    /// Returns the chosen distance, if it is known yet.
    pub(crate) fn chosen(&self) -> Option<usize> {
        self.chosen.get().copied()
    }

    /// Runs a product with `n` activation rows, which is given the distance. `streamed` is `None` if its time
    /// says nothing about the distance.
    pub(crate) fn run(&self, n: usize, streamed: Option<Streamed>, product: impl FnOnce(usize)) {
        if n > 1 {
            return product(self.wide);
        }
        if let Some(distance) = self.chosen() {
            return product(distance);
        }
        let streamed = streamed.filter(|streamed| streamed.bytes >= MIN_BYTES);
        let distance = self.next_distance(streamed);
        let started = Instant::now();
        product(distance);
        if let Some(streamed) = streamed {
            self.record(started.elapsed(), streamed.bytes);
        }
    }

    /// Returns the distance for the next product: that of the current pass.
    fn next_distance(&self, streamed: Option<Streamed>) -> usize {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Streamed { weight, .. }) = streamed
            && *samples.first.get_or_insert(weight) == weight
        {
            samples.end_pass();
            if let Some(distance) = samples.best() {
                return *self.chosen.get_or_init(|| distance);
            }
        }
        DISTANCES[samples.trial()]
    }

    fn record(&self, time: Duration, bytes: usize) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.pass.0 += time.as_secs_f64();
        samples.pass.1 += bytes;
    }
}

impl Samples {
    /// Returns the index of the distance of the current pass. The order (the Thue-Morse sequence) has no
    /// period, so that no distance always meets the same disturbance.
    fn trial(&self) -> usize {
        let n: usize = self.passes.iter().map(Vec::len).sum();
        n.count_ones() as usize % DISTANCES.len()
    }

    fn end_pass(&mut self) {
        let (seconds, bytes) = std::mem::take(&mut self.pass);
        if bytes > 0 {
            let trial = self.trial();
            self.passes[trial].push(seconds / bytes as f64);
        }
    }

    /// Returns the distance with the smallest median: after enough passes, or as soon as each of its passes was
    /// faster than every pass with another distance.
    fn best(&mut self) -> Option<usize> {
        let n = self.passes.iter().map(Vec::len).min()?;
        if n < MIN_PASSES {
            return None;
        }
        for passes in &mut self.passes {
            passes.sort_by(f64::total_cmp);
        }
        let median = |i: usize| self.passes[i][self.passes[i].len() / 2];
        let best = (0..DISTANCES.len()).min_by(|&a, &b| median(a).total_cmp(&median(b)))?;
        let slowest = self.passes[best].last()?;
        let others = (0..DISTANCES.len()).filter(|&i| i != best);
        let is_clear = others
            .map(|i| self.passes[i][0])
            .all(|fastest| *slowest < fastest);
        (is_clear || n >= N_PASSES).then_some(DISTANCES[best])
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
        // The first product repacks the weight, the second begins a pass.
        for _ in 0..DISTANCES.len() * N_PASSES + 2 {
            self.matmul(&weight, &x, 1, &mut out);
        }
        self.prefetch_distance()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAMED: Streamed = Streamed {
        weight: 1,
        bytes: MIN_BYTES,
    };

    #[test]
    fn the_faster_distance_is_chosen() {
        for (fast, distance) in DISTANCES.into_iter().enumerate() {
            // Without an overlap of the times, two passes with each distance suffice.
            for (n_passes, noise) in [(MIN_PASSES, 0), (N_PASSES, 10)] {
                let prefetch = Prefetch::new(None);
                for pass in 0..DISTANCES.len() * n_passes {
                    // The product of a large weight takes longer, whatever its distance.
                    for (weight, time) in [(1, 100), (2, 400)] {
                        assert_eq!(prefetch.chosen(), None);
                        let found = prefetch.next_distance(Some(Streamed { weight, ..STREAMED }));
                        let slow = if found == DISTANCES[fast] { 0 } else { 1 };
                        // The first pass with each distance was disturbed.
                        let noise = if pass < 2 { noise } else { 0 };
                        prefetch.record(Duration::from_millis(time + slow + noise), MIN_BYTES);
                    }
                }
                assert_eq!(prefetch.next_distance(Some(STREAMED)), distance);
                assert_eq!(prefetch.chosen(), Some(distance));
            }
        }
    }

    /// Two models of one backend compute at the same time.
    #[test]
    fn a_product_does_not_wait_for_another() {
        for distance in [None, Some(7)] {
            let prefetch = Prefetch::new(distance);
            let mut inner = false;
            prefetch.run(1, Some(STREAMED), |_| {
                prefetch.run(1, Some(STREAMED), |_| inner = true);
            });
            assert!(inner);
        }
    }

    #[test]
    fn small_weights_are_not_timed() {
        let prefetch = Prefetch::new(None);
        let small = Streamed {
            bytes: MIN_BYTES - 1,
            ..STREAMED
        };
        for _ in 0..200 {
            prefetch.run(1, Some(small), |_| {});
            prefetch.run(1, None, |_| {});
        }
        assert_eq!(prefetch.chosen(), None);
        let prefetch = Prefetch::new(Some(7));
        prefetch.run(1, Some(STREAMED), |distance| assert_eq!(distance, 7));
        prefetch.run(2, None, |distance| assert_eq!(distance, 7));
    }
}
