//! Prefetching of weights by products. CPUs differ in what is fastest: the first passes of a model measure it. The
//! result affects time alone.

use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use schemas::gguf::DType;

use super::Cpu;
use crate::backend::{Backend, MatmulOp, WeightData};

/// The lines of a weight that products with few activation rows prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetching {
    /// Lines at this distance, in cache lines of 64 bytes; none if it is 0.
    Distance(usize),
    /// Lines of five to sixteen streams at least 4 KiB apart, interleaved. Products that compute longer than they wait
    /// prefetch 96 lines ahead instead.
    Streams,
}

impl Prefetching {
    /// The distance for several activation rows in one pass over a panel. On Zen 4, waiting and computing add up
    /// without software prefetches from three rows on.
    pub(crate) const WIDE_DISTANCE: usize = 96;

    /// Returns the distance, if it is one.
    pub fn distance(self) -> Option<usize> {
        match self {
            Prefetching::Distance(distance) => Some(distance),
            Prefetching::Streams => None,
        }
    }
}

/// A text that is neither a number nor `streams`.
#[derive(Debug, thiserror::Error)]
#[error("expected a number of cache lines or `streams`")]
pub struct ParsePrefetchingError;

impl FromStr for Prefetching {
    type Err = ParsePrefetchingError;

    fn from_str(text: &str) -> Result<Prefetching, ParsePrefetchingError> {
        match text {
            "streams" => Ok(Prefetching::Streams),
            _ => text
                .parse()
                .map(Prefetching::Distance)
                .map_err(|_| ParsePrefetchingError),
        }
    }
}

/// The ways to choose from.
pub(super) const CHOICES: [Prefetching; 3] = [
    Prefetching::Distance(0),
    Prefetching::Distance(64),
    Prefetching::Streams,
];

/// Passes that are timed with each choice, unless fewer show that one is slower.
const N_PASSES: usize = 5;

/// Fewest passes that are timed with each choice.
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
    /// Seconds per byte of each pass, for each choice.
    passes: Vec<Vec<f64>>,
}

/// A product that reads a weight from memory and does little else.
#[derive(Clone, Copy)]
pub(crate) struct Streamed {
    /// Address of the weight.
    pub(crate) weight: usize,
    pub(crate) bytes: usize,
}

/// A choice, or the measurement that will make it.
pub(crate) struct Prefetch {
    /// For products with one activation row.
    chosen: OnceLock<Prefetching>,
    /// For those with several, unless streams were chosen for one.
    wide: Prefetching,
    samples: Mutex<Samples>,
}

impl Prefetch {
    /// `prefetching` is `None` to measure.
    pub(crate) fn new(prefetching: Option<Prefetching>) -> Prefetch {
        let wide = Prefetching::Distance(Prefetching::WIDE_DISTANCE);
        Prefetch {
            chosen: prefetching.map_or_else(OnceLock::new, OnceLock::from),
            wide: prefetching.unwrap_or(wide),
            samples: Mutex::new(Samples {
                passes: vec![Vec::new(); CHOICES.len()],
                ..Samples::default()
            }),
        }
    }

    /// Returns the choice, if it is known yet.
    pub(crate) fn chosen(&self) -> Option<Prefetching> {
        self.chosen.get().copied()
    }

    /// Runs a product with `n` activation rows, which is told what to prefetch. `streamed` is `None` if its time
    /// says nothing about that.
    pub(crate) fn run(
        &self,
        n: usize,
        streamed: Option<Streamed>,
        product: impl FnOnce(Prefetching),
    ) {
        match self.chosen() {
            Some(Prefetching::Streams) => return product(Prefetching::Streams),
            _ if n > 1 => return product(self.wide),
            Some(chosen) => return product(chosen),
            None => {}
        }
        let streamed = streamed.filter(|streamed| streamed.bytes >= MIN_BYTES);
        let prefetching = self.next(streamed);
        let started = Instant::now();
        product(prefetching);
        if let Some(streamed) = streamed {
            self.record(started.elapsed(), streamed.bytes);
        }
    }

    /// Returns what the next product prefetches: the same in a whole pass.
    fn next(&self, streamed: Option<Streamed>) -> Prefetching {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Streamed { weight, .. }) = streamed
            && *samples.first.get_or_insert(weight) == weight
        {
            samples.end_pass();
            if let Some(best) = samples.best() {
                return *self.chosen.get_or_init(|| CHOICES[best]);
            }
        }
        CHOICES[samples.trial()]
    }

    fn record(&self, time: Duration, bytes: usize) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.pass.0 += time.as_secs_f64();
        samples.pass.1 += bytes;
    }
}

impl Samples {
    /// Returns the index of the choice of the current pass. The order (a generalized Thue-Morse sequence) has no
    /// period, so that no choice always meets the same disturbance.
    fn trial(&self) -> usize {
        let n_choice = self.passes.len();
        let mut n: usize = self.passes.iter().map(Vec::len).sum();
        let mut digits = 0;
        while n > 0 {
            digits += n % n_choice;
            n /= n_choice;
        }
        digits % n_choice
    }

    fn end_pass(&mut self) {
        let (seconds, bytes) = std::mem::take(&mut self.pass);
        if bytes > 0 {
            let trial = self.trial();
            self.passes[trial].push(seconds / bytes as f64);
        }
    }

    /// Returns the index of the choice with the smallest median: after enough passes, or as soon as each of its passes
    /// was faster than every pass with another choice.
    fn best(&mut self) -> Option<usize> {
        let n = self.passes.iter().map(Vec::len).min()?;
        if n < MIN_PASSES {
            return None;
        }
        for passes in &mut self.passes {
            passes.sort_by(f64::total_cmp);
        }
        let median = |i: usize| self.passes[i][self.passes[i].len() / 2];
        let best = (0..self.passes.len()).min_by(|&a, &b| median(a).total_cmp(&median(b)))?;
        let slowest = self.passes[best].last()?;
        let mut others = self.passes.iter().enumerate().filter(|&(i, _)| i != best);
        let is_clear = others.all(|(_, passes)| *slowest < passes[0]);
        (is_clear || n >= N_PASSES).then_some(best)
    }
}

impl Cpu {
    /// Multiplies a weight that is larger than the caches until it is known what products prefetch best, and returns it;
    /// takes less than a second.
    pub fn measure_prefetching(&self) -> Option<Prefetching> {
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
        for _ in 0..CHOICES.len() * N_PASSES + 2 {
            self.matmul(&weight, &x, 1, &mut out);
        }
        self.prefetching()
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
    fn the_fastest_choice_is_made() {
        for fastest in CHOICES {
            // Without an overlap of the times, two passes with each suffice.
            for (n_passes, noise) in [(MIN_PASSES, 0), (N_PASSES, 10)] {
                let prefetch = Prefetch::new(None);
                let mut trials = Vec::new();
                while prefetch.chosen().is_none() {
                    // The product of a large weight takes longer, whatever it prefetches.
                    for (weight, time) in [(1, 100), (2, 400)] {
                        let found = prefetch.next(Some(Streamed { weight, ..STREAMED }));
                        let slow = if found == fastest { 0 } else { 1 };
                        // The first passes were disturbed.
                        let noise = if trials.len() < CHOICES.len() {
                            noise
                        } else {
                            0
                        };
                        prefetch.record(Duration::from_millis(time + slow + noise), MIN_BYTES);
                        trials.extend((weight == 1).then_some(found));
                    }
                }
                assert_eq!(prefetch.chosen(), Some(fastest));
                // The last one was not a trial.
                trials.pop();
                for choice in CHOICES {
                    let n = trials.iter().filter(|&&trial| trial == choice).count();
                    assert!(n >= n_passes, "{n} of {n_passes} passes with {choice:?}");
                }
            }
        }
    }

    #[test]
    fn values_are_read() {
        assert_eq!("0".parse::<Prefetching>().unwrap(), CHOICES[0]);
        assert_eq!("64".parse::<Prefetching>().unwrap(), CHOICES[1]);
        assert_eq!("streams".parse::<Prefetching>().unwrap(), CHOICES[2]);
        assert!("stream".parse::<Prefetching>().is_err());
        assert!("-1".parse::<Prefetching>().is_err());
    }

    /// Two models of one backend compute at the same time.
    #[test]
    fn a_product_does_not_wait_for_another() {
        for prefetching in [None, Some(Prefetching::Distance(7))] {
            let prefetch = Prefetch::new(prefetching);
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
        for set in [Prefetching::Distance(7), Prefetching::Streams] {
            let prefetch = Prefetch::new(Some(set));
            prefetch.run(1, Some(STREAMED), |found| assert_eq!(found, set));
            prefetch.run(2, None, |found| assert_eq!(found, set));
        }
    }
}
