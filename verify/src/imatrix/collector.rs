//! [`Collector`]: sums of the inputs of weights.
//!
//! Sums are `f64` and are added in the order of the tokens, whatever the number of threads and of chunks in a
//! pass: a thread adds all rows of its columns. The sums of a group of chunks are complete before they are added to
//! the total, so that another machine can make them.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kernels::statistics::add_row;
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
    /// Sums of the current group.
    tensors: Vec<TensorSums>,
    /// Sums of the groups before it, of the same tensors.
    totals: Vec<TensorSums>,
    /// Index of each tensor.
    by_name: HashMap<String, usize>,
    invalid: Option<InvalidInput>,
}

impl State {
    /// Returns the index of a tensor, which is added if it is new.
    fn add(&mut self, name: String) -> usize {
        if let Some(&index) = self.by_name.get(&name) {
            return index;
        }
        self.tensors.push(TensorSums::named(&name));
        self.totals.push(TensorSums::named(&name));
        self.by_name.insert(name, self.tensors.len() - 1);
        self.tensors.len() - 1
    }
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

impl fmt::Display for InvalidInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InvalidInput {
            tensor,
            column,
            value,
            ..
        } = self;
        write!(
            f,
            "tensor {tensor}: column {column} is {value}, expected numbers whose squares can be added"
        )
    }
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

    /// Continues with the sums of an earlier run: of the groups that it completed, and of its last one.
    pub(super) fn restore(&self, totals: Vec<TensorSums>, group: Vec<TensorSums>) {
        let mut state = self.state();
        for total in totals {
            let index = state.add(total.name.clone());
            state.totals[index] = total;
        }
        for sums in group {
            let index = state.add(sums.name.clone());
            state.tensors[index] = sums;
        }
    }

    /// Returns a copy of the sums of the groups that are complete, with an entry for every tensor.
    pub(super) fn totals(&self) -> Vec<TensorSums> {
        self.state().totals.clone()
    }

    /// Returns a copy of the sums of the current group.
    pub(super) fn group(&self) -> Vec<TensorSums> {
        self.state().tensors.clone()
    }

    /// Returns the sums of the current group, and starts the next one.
    pub(super) fn take_group(&self) -> Vec<TensorSums> {
        let tensors = &mut self.state().tensors;
        let group = tensors.clone();
        tensors.iter_mut().for_each(|sums| sums.counts.clear());
        group
    }

    /// Adds the sums of the current group to those before it, and starts the next one.
    pub(super) fn end_group(&self) {
        let state = &mut *self.state();
        for (total, group) in state.totals.iter_mut().zip(&mut state.tensors) {
            if let Some(invalid) = total.merge(group)
                && state.invalid.is_none()
            {
                state.invalid = Some(invalid);
            }
            group.counts.clear();
        }
    }

    /// Returns the first invalid input so far.
    pub(super) fn invalid(&self) -> Option<InvalidInput> {
        self.state().invalid.clone()
    }

    /// Returns the sums of all tensors that had rows, as entries of a file.
    pub(super) fn entries(&self) -> BTreeMap<String, ImatrixEntry> {
        let state = self.state();
        let sums = state.totals.iter().zip(&state.tensors);
        entries(sums.map(|(total, group)| {
            let mut sums = total.clone();
            sums.merge(group);
            sums
        }))
    }
}

impl InputObserver for Collector {
    fn register(&self, tensor: &ObservedTensor<'_>) -> Option<usize> {
        if VOCABULARY.contains(&tensor.name) && !self.process_output {
            return None;
        }
        let state = &mut *self.state();
        let index = state.add(tensor.name.to_owned());
        state.tensors[index].describe(tensor);
        state.totals[index].describe(tensor);
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

/// Returns the sums of all tensors that had rows, as entries of a file.
pub(super) fn entries(
    sums: impl IntoIterator<Item = TensorSums>,
) -> BTreeMap<String, ImatrixEntry> {
    let seen = sums.into_iter().filter(|sums| !sums.counts.is_empty());
    seen.map(|sums| (sums.name.clone(), sums.entry())).collect()
}

impl TensorSums {
    /// Sums of a tensor without rows.
    pub(super) fn named(name: &str) -> TensorSums {
        TensorSums {
            name: name.to_owned(),
            ..TensorSums::default()
        }
    }

    /// Adds the sums of another group of chunks. Returns the first column whose sum of squares is no longer a number
    /// of the file.
    pub(super) fn merge(&mut self, group: &TensorSums) -> Option<InvalidInput> {
        if group.counts.is_empty() {
            return None;
        }
        if self.counts.is_empty() {
            self.squares = vec![0.0; group.squares.len()];
            self.sums = vec![0.0; group.sums.len()];
            self.counts = vec![0; group.counts.len()];
        }
        let pairs = [
            (&mut self.squares, &group.squares),
            (&mut self.sums, &group.sums),
        ];
        for (totals, added) in pairs {
            for (total, added) in totals.iter_mut().zip(added) {
                *total += added;
            }
        }
        for (total, added) in self.counts.iter_mut().zip(&group.counts) {
            *total += added;
        }
        let limit = f64::from(f32::MAX);
        let at = self.squares.iter().position(|square| *square > limit)?;
        Some(InvalidInput {
            tensor: self.name.clone(),
            row: 0,
            column: at % self.n_columns.max(1),
            value: self.squares[at] as f32,
        })
    }

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
            add_row(values, self.sums, self.squares);
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
    fn groups_are_added_when_they_are_complete() {
        let collector = Collector::new(false);
        let tensor = register(&collector, "blk.0.attn_q.weight", 1, Routing::All).unwrap();
        let observe = |collector: &Collector, value: f32| {
            let values = [value, -value];
            let rows = InputRows {
                values: &values,
                n_columns: 2,
                routes: None,
            };
            collector.observe(tensor, &rows);
        };
        for value in [0.1, 0.2, 0.3] {
            observe(&collector, value);
        }
        let before = collector.entries();
        collector.end_group();
        assert_eq!(collector.entries(), before);
        observe(&collector, 0.7);
        let after = collector.entries();
        // An unfinished group is restored as it was.
        let restored = Collector::new(false);
        restored.restore(collector.totals(), collector.group());
        register(&restored, "blk.0.attn_q.weight", 1, Routing::All);
        assert_eq!(restored.entries(), after);
        for collector in [&collector, &restored] {
            observe(collector, 1e19);
            collector.end_group();
            observe(collector, 1.8e19);
            assert_eq!(collector.invalid(), None);
            collector.end_group();
        }
        assert_eq!(restored.invalid().unwrap().column, 0);
        assert_eq!(restored.totals(), collector.totals());
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
