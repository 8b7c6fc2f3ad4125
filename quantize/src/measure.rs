//! [`Measure`]: error and time of quantizing a tensor.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of partial sums of a row's squared errors, each in column order.
const LANES: usize = 16;

/// Error and time of one tensor; complete after all its rows were read.
#[derive(Debug)]
pub struct Measure {
    n_columns: u64,
    errors: Mutex<Errors>,
    busy_ns: AtomicU64,
}

/// Squared errors. Rows are read in any order but summed in row order, so the sum does not depend
/// on the threads.
#[derive(Debug)]
enum Errors {
    /// No row has been read; the number of rows.
    Unread(u64),
    /// One sum per row; NaN for rows that have not been read.
    Partial { sums: Vec<f64>, n_missing: u64 },
    /// The sum over all rows.
    Whole { sum: f64, n_rows: u64 },
}

impl Measure {
    pub(crate) fn new(n_columns: u64, n_rows: u64) -> Measure {
        Measure {
            n_columns,
            errors: Mutex::new(Errors::Unread(n_rows)),
            busy_ns: AtomicU64::new(0),
        }
    }

    /// Adds the squared errors of the rows starting at `first`.
    pub(crate) fn add(&self, first: u64, row_errors: &[f64], elapsed: Duration) {
        let elapsed_ns = elapsed.as_nanos().try_into().unwrap_or(u64::MAX);
        self.busy_ns.fetch_add(elapsed_ns, Ordering::Relaxed);
        let mut errors = self.errors.lock().expect("nothing panics under this lock");
        if let Errors::Unread(n_rows) = *errors {
            *errors = Errors::Partial {
                sums: vec![f64::NAN; n_rows as usize],
                n_missing: n_rows,
            };
        }
        let Errors::Partial { sums, n_missing } = &mut *errors else {
            return;
        };
        for (sum, &error) in sums[first as usize..].iter_mut().zip(row_errors) {
            *n_missing -= u64::from(sum.is_nan());
            *sum = error;
        }
        if *n_missing == 0 {
            *errors = Errors::Whole {
                sum: sums.iter().sum(),
                n_rows: sums.len() as u64,
            };
        }
    }

    /// Returns the sum of squared errors and the number of elements; `None` until every row was
    /// read, and after a resumed run, which reads only some rows.
    pub fn squared_error(&self) -> Option<(f64, u64)> {
        match *self.errors.lock().expect("nothing panics under this lock") {
            Errors::Whole { sum, n_rows } => Some((sum, n_rows * self.n_columns)),
            _ => None,
        }
    }

    /// Returns the time that threads spent on the tensor, summed.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy_ns.load(Ordering::Relaxed))
    }
}

/// Returns the sum of squared differences of two rows.
pub(crate) fn squared_error(x: &[f32], y: &[f32]) -> f64 {
    let (x_lanes, x_rest) = x.as_chunks::<LANES>();
    let (y_lanes, y_rest) = y.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for (x, y) in x_lanes.iter().zip(y_lanes) {
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            let error = x - y;
            *sum += error * error;
        }
    }
    let rest = x_rest.iter().zip(y_rest).map(|(x, y)| (x - y) * (x - y));
    let sum = sums.into_iter().chain(rest).map(f64::from).sum::<f64>();
    // For very large or very small values, squares overflow or underflow f32.
    match sum.is_finite() && sum >= f64::from(f32::MIN_POSITIVE) {
        true => sum,
        false => {
            let errors = x.iter().zip(y).map(|(&x, &y)| f64::from(x) - f64::from(y));
            errors.map(|error| error * error).sum()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_may_come_in_any_order() {
        let rows = [0.1, 1e9, 0.3, 1e-9, 7.7];
        let sum_of = |order: &[usize]| {
            let measure = Measure::new(4, rows.len() as u64);
            for &i in order {
                assert_eq!(measure.squared_error(), None);
                measure.add(i as u64, &rows[i..][..1], Duration::from_nanos(3));
            }
            assert_eq!(measure.busy().as_nanos(), 3 * order.len() as u128);
            measure.squared_error().unwrap()
        };
        let (sum, n) = sum_of(&[0, 1, 2, 3, 4]);
        assert_eq!(n, 20);
        for order in [[4, 3, 2, 1, 0], [1, 3, 0, 4, 2]] {
            assert_eq!(sum_of(&order).0.to_bits(), sum.to_bits());
        }
        let twice = Measure::new(1, 2);
        twice.add(0, &[1.0], Duration::ZERO);
        twice.add(0, &[1.0], Duration::ZERO);
        assert_eq!(twice.squared_error(), None, "a row read twice counts once");
    }

    #[test]
    fn errors_beyond_single_precision() {
        let of = |x: f32, y: f32| squared_error(&[x; 40], &[y; 40]).sqrt() / 40f64.sqrt();
        for (x, y) in [(1e30f32, 3e30f32), (1e-30, 3e-30), (1.0, 3.0)] {
            let expected = f64::from(y) - f64::from(x);
            assert!((of(x, y) / expected - 1.0).abs() < 1e-6, "{x}");
        }
        assert_eq!(of(0.5, 0.5), 0.0);
    }
}
