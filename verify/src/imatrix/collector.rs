//! [`Collector`]: sums of the inputs of weights.
//!
//! Sums are `f64` and are added in the order of the tokens, whatever the number of threads and of chunks in a
//! pass: a thread adds all rows of its columns.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use runner::observe::{InputObserver, InputRows, ObservedTensor, Routing};
use schemas::imatrix::ImatrixEntry;
use schemas::threads;

/// Columns that a thread adds together: their sums stay in the L1 cache.
const N_COLUMNS: usize = 512;

/// Values that are worth starting threads for.
const THREAD_WORK: usize = 1 << 19;

/// Tensors of a vocabulary, which are collected only if [`Collector::process_output`] is set.
const VOCABULARY: [&str; 2] = ["output.weight", "token_embd.weight"];

/// Observes all matrices of models.
pub(super) struct Collector {
    /// True if the inputs of output heads are collected.
    process_output: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tensors: Vec<TensorSums>,
    /// Index of each tensor.
    by_name: HashMap<String, usize>,
    invalid: Option<InvalidInput>,
}

/// Sums of one tensor, empty before its first row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TensorSums {
    pub(super) name: String,
    pub(super) n_columns: usize,
    pub(super) n_matrices: usize,
    /// True if each matrix has its own rows.
    pub(super) is_routed: bool,
    /// Sum of the squares of each column: (n_matrices, n_columns).
    pub(super) squares: Vec<f64>,
    /// Sum of each column: (n_matrices, n_columns).
    pub(super) sums: Vec<f64>,
    /// Rows of each matrix.
    pub(super) counts: Vec<u64>,
}

/// The first input that is NaN or infinite, or too large to be squared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InvalidInput {
    pub(super) tensor: String,
    /// Row of the pass.
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) value: f32,
}

/// Columns of one matrix, with the rows that are added to them.
struct Job<'a> {
    rows: &'a [usize],
    columns: Range<usize>,
    squares: &'a mut [f64],
    sums: &'a mut [f64],
}

impl Collector {
    pub(super) fn new(process_output: bool) -> Collector {
        Collector {
            process_output,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Continues with the sums of an earlier run.
    pub(super) fn restore(&self, tensors: Vec<TensorSums>) {
        let mut state = self.state();
        let names = tensors.iter().map(|sums| sums.name.clone());
        state.by_name = names.zip(0..).collect();
        state.tensors = tensors;
    }

    /// Returns a copy of the sums of all tensors.
    pub(super) fn sums(&self) -> Vec<TensorSums> {
        self.state().tensors.clone()
    }

    /// Returns the first invalid input so far.
    pub(super) fn invalid(&self) -> Option<InvalidInput> {
        self.state().invalid.clone()
    }

    /// Returns the sums of all tensors that had rows, as entries of a file.
    pub(super) fn entries(&self) -> BTreeMap<String, ImatrixEntry> {
        let state = self.state();
        let seen = state.tensors.iter().filter(|sums| !sums.counts.is_empty());
        seen.map(|sums| (sums.name.clone(), sums.entry())).collect()
    }
}

impl InputObserver for Collector {
    fn register(&self, tensor: &ObservedTensor<'_>) -> Option<usize> {
        if VOCABULARY.contains(&tensor.name) && !self.process_output {
            return None;
        }
        let State {
            tensors, by_name, ..
        } = &mut *self.state();
        let index = *by_name.entry(tensor.name.to_owned()).or_insert_with(|| {
            tensors.push(TensorSums {
                name: tensor.name.to_owned(),
                ..TensorSums::default()
            });
            tensors.len() - 1
        });
        tensors[index].describe(tensor);
        Some(index)
    }

    fn observe(&self, tensor: usize, input: &InputRows<'_>) {
        let state = &mut *self.state();
        let sums = &mut state.tensors[tensor];
        if !sums.add(input) && state.invalid.is_none() {
            state.invalid = Some(sums.find_invalid(input));
        }
    }
}

impl TensorSums {
    /// Sets the shape; drops restored sums of another shape.
    fn describe(&mut self, tensor: &ObservedTensor<'_>) {
        self.n_columns = tensor.n_columns;
        self.n_matrices = tensor.n_matrices;
        self.is_routed = tensor.routing == Routing::Chosen;
        let len = self.n_columns * self.n_matrices;
        if [self.squares.len(), self.sums.len()] != [len; 2] || self.counts.len() != self.n_matrices
        {
            self.counts.clear();
        }
    }

    /// Adds rows. Returns false if the sums are no longer finite numbers of the file.
    fn add(&mut self, input: &InputRows<'_>) -> bool {
        if self.counts.is_empty() {
            let len = self.n_matrices * self.n_columns;
            (self.squares, self.sums) = (vec![0.0; len], vec![0.0; len]);
            self.counts = vec![0; self.n_matrices];
        }
        let mut rows = vec![Vec::new(); self.n_matrices];
        for i in 0..input.len() {
            rows[input.get(i).matrix].push(i);
        }
        for (count, rows) in self.counts.iter_mut().zip(&rows) {
            *count += rows.len() as u64;
        }
        let mut jobs = Vec::new();
        let squares = self.squares.chunks_mut(self.n_columns);
        let matrices = squares.zip(self.sums.chunks_mut(self.n_columns));
        for ((squares, sums), rows) in matrices.zip(&rows) {
            if rows.is_empty() {
                continue;
            }
            let parts = squares
                .chunks_mut(N_COLUMNS)
                .zip(sums.chunks_mut(N_COLUMNS));
            for (i, (squares, sums)) in parts.enumerate() {
                let start = i * N_COLUMNS;
                jobs.push(Job {
                    rows,
                    columns: start..start + squares.len(),
                    squares,
                    sums,
                });
            }
        }
        let n_threads = match input.len() * self.n_columns >= THREAD_WORK {
            true => threads::count(0).min(jobs.len()),
            false => 1,
        };
        let (jobs, is_valid) = (Mutex::new(jobs), AtomicBool::new(true));
        let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop();
        threads::run(n_threads, || {
            while let Some(job) = next() {
                if !job.run(input) {
                    is_valid.store(false, Ordering::Relaxed);
                }
            }
        });
        is_valid.into_inner()
    }

    fn find_invalid(&self, input: &InputRows<'_>) -> InvalidInput {
        let values = (0..input.len()).flat_map(|i| {
            let row = input.get(i);
            let values = row.values.iter().enumerate();
            values.map(move |(column, &value)| (row.row, column, value))
        });
        let largest = values
            .clone()
            .max_by(|a, b| a.2.abs().total_cmp(&b.2.abs()));
        let first = values.into_iter().find(|(_, _, value)| !value.is_finite());
        let (row, column, value) = first.or(largest).unwrap_or_default();
        InvalidInput {
            tensor: self.name.clone(),
            row,
            column,
            value,
        }
    }

    /// Returns the entry of a file: one count for all matrices unless each has its own rows.
    fn entry(&self) -> ImatrixEntry {
        let round = |sums: &[f64]| sums.iter().map(|&sum| sum as f32).collect();
        ImatrixEntry {
            squares: round(&self.squares),
            sums: Some(round(&self.sums)),
            counts: match self.is_routed {
                true => self.counts.clone(),
                false => self.counts[..1].to_vec(),
            },
        }
    }
}

impl Job<'_> {
    /// Adds the rows. Returns false if a sum of squares is not a finite `f32`.
    fn run(self, input: &InputRows<'_>) -> bool {
        for &i in self.rows {
            let values = &input.get(i).values[self.columns.clone()];
            let sums = self.squares.iter_mut().zip(&mut *self.sums);
            for ((square, sum), &value) in sums.zip(values) {
                let value = f64::from(value);
                *square += value * value;
                *sum += value;
            }
        }
        // NaN is not below the limit.
        let limit = f64::from(f32::MAX);
        self.squares.iter().all(|&square| square <= limit)
    }
}

#[cfg(test)]
mod tests {
    use kernels::backend::ExpertInput;
    use runner::observe::InputRoutes;

    use super::*;

    fn register(
        collector: &Collector,
        name: &str,
        n_matrices: usize,
        routing: Routing,
    ) -> Option<usize> {
        collector.register(&ObservedTensor {
            name,
            n_columns: 2,
            n_matrices,
            routing,
        })
    }

    #[test]
    fn rows_are_added_to_their_experts() {
        let collector = Collector::new(false);
        let tensor = register(&collector, "blk.0.ffn_up_exps.weight", 3, Routing::Chosen).unwrap();
        let again = register(&collector, "blk.0.ffn_up_exps.weight", 3, Routing::Chosen);
        assert_eq!(again, Some(tensor));
        assert_eq!(register(&collector, "output.weight", 1, Routing::All), None);
        register(&collector, "blk.0.attn_q.weight", 1, Routing::All);
        collector.observe(
            tensor,
            &InputRows {
                values: &[1.0, 2.0, 3.0, -4.0],
                n_columns: 2,
                routes: Some(InputRoutes {
                    experts: &[2, 0, 2, 0],
                    n_used: 2,
                    input: ExpertInput::PerRow,
                }),
            },
        );
        let entries = collector.entries();
        assert_eq!(entries.len(), 1, "tensors without rows have no entry");
        let entry = &entries["blk.0.ffn_up_exps.weight"];
        assert_eq!(entry.counts, [2, 0, 2]);
        assert_eq!(entry.squares, [10.0, 20.0, 0.0, 0.0, 10.0, 20.0]);
        let sums = entry.sums.as_ref().unwrap();
        assert_eq!(sums, &[4.0, -2.0, 0.0, 0.0, 4.0, -2.0]);
    }

    #[test]
    fn heads_share_a_count() {
        let collector = Collector::new(false);
        let tensor = register(&collector, "blk.0.attn_k_b.weight", 2, Routing::All).unwrap();
        collector.observe(
            tensor,
            &InputRows {
                values: &[1.0, 2.0, 3.0, 4.0],
                n_columns: 2,
                routes: Some(InputRoutes {
                    experts: &[0, 1],
                    n_used: 2,
                    input: ExpertInput::PerExpert,
                }),
            },
        );
        let entries = collector.entries();
        let entry = &entries["blk.0.attn_k_b.weight"];
        assert_eq!(entry.counts, [1]);
        assert_eq!(entry.squares, [1.0, 4.0, 9.0, 16.0]);
    }

    #[test]
    fn threads_and_passes_do_not_change_a_bit() {
        let n_columns = 3 * N_COLUMNS / 2;
        let values: Vec<f32> = (0..2048 * n_columns)
            .map(|i| (i as f32 * 0.37).sin() * 10f32.powi((i % 7) as i32 - 3))
            .collect();
        let add = |n_rows: usize| {
            let mut sums = TensorSums {
                n_columns,
                n_matrices: 1,
                ..TensorSums::default()
            };
            for values in values.chunks(n_rows * n_columns) {
                let rows = InputRows {
                    values,
                    n_columns,
                    routes: None,
                };
                assert!(sums.add(&rows));
            }
            sums
        };
        // Only the first is large enough for threads.
        assert_eq!(add(2048), add(7));
    }

    #[test]
    fn an_invalid_input_is_found() {
        let collector = Collector::new(true);
        let tensor = register(&collector, "output.weight", 1, Routing::All).unwrap();
        let observe = |values: &[f32]| {
            collector.observe(
                tensor,
                &InputRows {
                    values,
                    n_columns: 2,
                    routes: None,
                },
            );
        };
        observe(&[1.0, 2.0]);
        assert_eq!(collector.invalid(), None);
        observe(&[1.0, 2.0, 3.0, f32::NAN, f32::INFINITY, 0.0]);
        let found = collector.invalid().unwrap();
        assert_eq!((found.row, found.column), (1, 1));
        assert_eq!(found.tensor, "output.weight");
        assert!(found.value.is_nan());
    }
}
