//! Matrix product of activations and a weight.
//!
//! Quantized weights are multiplied as integers ([`super::cpu_quants`]), float weights as floats
//! ([`super::cpu_floats`]). Neither the batch nor the number of threads can change an element.

use std::ops::Range;
use std::ptr;

use bumpalo::collections::Vec;

use super::MatmulOp;
use super::cpu_floats::FloatProduct;
use super::cpu_quants::QuantProduct;
use crate::cpu::activation::Activations;
use crate::cpu::arena::Arena;
use crate::cpu::buffer::Buffer;
use crate::cpu::columns::ColumnsMut;
use crate::cpu::float_activation::FloatActivations;
use crate::cpu::pool::Distribution;
use crate::cpu::prefetch::{Prefetching, Streamed};
use crate::cpu::read_ahead::{self, Start};
use crate::cpu::repack::Panels;
use crate::cpu::weight::Weight;
use crate::cpu::{Cpu, Layout};
use crate::types::Products;

impl MatmulOp for Cpu {
    fn matmul(&self, w: &Weight, x: &Buffer, n: usize, out: &mut Buffer) {
        self.matmul_each(&mut [(w, out)], x, n);
    }

    fn matmul_each(&self, products: &mut [(&Weight, &mut Buffer)], x: &Buffer, n: usize) {
        // Weights of quants read the same form of the activations, and so do those of floats.
        let is_quants = |w: &Weight| matches!(w.products, Products::Quants(_));
        for alike in products.chunk_by_mut(|a, b| is_quants(a.0) == is_quants(b.0)) {
            let arena = Arena::new();
            let (w, _) = &alike[0];
            let x = Factor::new(self, &arena, w, &x[..n * w.n_cols]);
            let terms = alike.iter_mut().map(|(w, out)| Term {
                x: &x,
                w,
                out: &mut out[..n * w.n_rows],
            });
            multiply_all(self, Place::Fixed, terms);
        }
    }
}

/// Weight rows per task are a multiple of this: whole cache lines of output.
const TASK_ROWS: usize = 32;

/// Minimum work per task: the overhead of a task is half a microsecond or more.
const TASK_WORK: usize = 4 << 20;

/// Approximate cost of unpacking a weight, in multiply-adds.
const UNPACK_WORK: usize = 4;

/// Activation rows in the form that a weight's products read: quantized or float.
#[derive(Clone, Copy)]
pub(crate) enum Factor<'a> {
    Quants(Activations<'a>),
    Floats(FloatActivations<'a>),
}

impl<'a> Factor<'a> {
    /// Prepares activations, `(n, n_in)`, for products with weights like `w`.
    pub(crate) fn new(cpu: &Cpu, arena: &'a Arena, w: &Weight, x: &'a [f32]) -> Factor<'a> {
        match w.products {
            Products::Quants(_) => Factor::Quants(Activations::new(cpu, arena, x, w.n_cols)),
            Products::Floats(_) => Factor::Floats(FloatActivations::new(cpu, arena, x, w.n_cols)),
        }
    }

    /// Copies the given rows, in that order.
    pub(crate) fn gather<'b>(&self, cpu: &Cpu, arena: &'b Arena, rows: &[usize]) -> Factor<'b> {
        match self {
            Factor::Quants(x) => Factor::Quants(x.gather(cpu, arena, rows)),
            Factor::Floats(x) => Factor::Floats(x.gather(cpu, arena, rows)),
        }
    }

    /// Number of activation rows.
    fn n_rows(&self) -> usize {
        match self {
            Factor::Quants(x) => x.len(),
            Factor::Floats(x) => x.len(),
        }
    }
}

/// The product of a factor and a weight like that which it was prepared for.
pub(crate) struct Term<'a> {
    pub(crate) x: &'a Factor<'a>,
    pub(crate) w: &'a Weight,
    /// `(n, n_out)`
    pub(crate) out: &'a mut [f32],
}

impl Term<'_> {
    /// Approximate number of multiply-adds.
    fn work(&self) -> usize {
        (self.out.len() + UNPACK_WORK * self.w.n_rows) * self.w.n_cols
    }
}

/// Place of products among those of a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Every pass multiplies the same weights here.
    Fixed,
    /// The weights depend on the tokens.
    Varying,
}

/// Computes some products in one operation, so that threads wait for each other once.
pub(crate) fn multiply_all<'a>(cpu: &Cpu, place: Place, terms: impl IntoIterator<Item = Term<'a>>) {
    let arena = Arena::new();
    let terms = terms.into_iter().filter(|term| !term.out.is_empty());
    let terms = Vec::from_iter_in(terms, &arena);
    let Some(Term { w: first, .. }) = terms.first() else {
        return;
    };
    let first: &Weight = first;
    let n = terms.iter().map(|term| term.x.n_rows()).max().unwrap_or(0);
    // What has just been repacked is in the caches.
    let is_read = |w: &Weight| match w.products {
        Products::Quants(_) => w.panels().is_some(),
        Products::Floats(_) => true,
    };
    let is_streamed = cpu.prefetch.chosen().is_none() && terms.iter().all(|term| is_read(term.w));
    let streamed = is_streamed.then(|| Streamed {
        weight: ptr::from_ref(first).addr(),
        bytes: terms.iter().map(|term| term.w.bytes().len()).sum(),
    });
    for w in terms.iter().map(|term| term.w) {
        if let (Layout::Repacked, Products::Quants(kernels)) = (cpu.layout, w.products) {
            w.panels_or_init(|| Panels::new(cpu, w, kernels.geometry));
        }
    }
    let work = terms.iter().map(Term::work).sum();
    let (tasks, shares) = split(cpu, &arena, terms, work);
    let ahead = match place {
        Place::Fixed if n <= read_ahead::MAX_ROWS => {
            cpu.read_order.record(&first.follower, |last| {
                if last.is_empty() {
                    last.extend(starts(&tasks, &shares));
                }
            });
            Some(&*arena.alloc_slice_clone(&first.follower.starts()))
        }
        _ => None,
    };
    let distribution = Distribution {
        shares: Some(&shares),
        ahead,
    };
    cpu.prefetch.run(n, streamed, |prefetching| {
        cpu.distribute(work, tasks, distribution, |task| task.run(cpu, prefetching));
    });
}

/// Some weight rows of a product.
struct Task<'a> {
    x: &'a Factor<'a>,
    w: &'a Weight,
    /// The first weight row.
    first: usize,
    /// The weight rows of this and other tasks with which one thread begins.
    rows: Range<usize>,
    /// One column per weight row, `(n, rows)`.
    out: ColumnsMut<'a>,
}

/// Tasks of products.
struct Tasks<'a, 'b> {
    tasks: Vec<'b, Task<'a>>,
    /// The tasks that each thread begins with, so far.
    shares: Vec<'b, Range<usize>>,
    n_share: usize,
    /// Work of a share.
    share_work: usize,
    /// Work of all tasks so far.
    work: usize,
}

impl Tasks<'_, '_> {
    /// Returns the number of rows for the current share, rounded to a multiple of [`TASK_ROWS`]; the last share takes all
    /// rows that are left.
    fn rows_left(&self, row_work: usize) -> usize {
        let n = self.shares.len() + 1;
        if n >= self.n_share {
            return usize::MAX;
        }
        let work = (n * self.share_work).saturating_sub(self.work);
        (work / row_work + TASK_ROWS / 2) / TASK_ROWS * TASK_ROWS
    }

    /// Gives all tasks since the last share to the next thread.
    fn end_share(&mut self) {
        let start = self.shares.last().map_or(0, |share| share.end);
        self.shares.push(start..self.tasks.len());
        let is_next = |a: &Task<'_>, b: &Task<'_>| ptr::eq(a.w, b.w) && a.rows.end == b.rows.start;
        for tasks in self.tasks[start..].chunk_by_mut(is_next) {
            let end = tasks.last().map_or(0, |task| task.rows.end);
            let start = tasks.first().map_or(0, |task| task.rows.start);
            tasks.iter_mut().for_each(|task| task.rows = start..end);
        }
    }
}

/// Splits products into tasks, and returns with them those that each thread begins with: about the same work.
fn split<'a, 'b>(
    cpu: &Cpu,
    arena: &'b Arena,
    terms: Vec<'_, Term<'a>>,
    work: usize,
) -> (Vec<'b, Task<'a>>, Vec<'b, Range<usize>>) {
    let n_share = cpu.threads();
    let share_work = work.div_ceil(n_share);
    // Large products use several tasks per thread, so that others can take those of an interrupted thread.
    let task_work = share_work.div_ceil((share_work / TASK_WORK).clamp(1, 8));
    let mut all_tasks = Tasks {
        tasks: Vec::new_in(arena),
        shares: Vec::with_capacity_in(n_share, arena),
        n_share,
        share_work,
        work: 0,
    };
    for term in terms {
        let row_work = (term.work() / term.w.n_rows).max(1);
        let max_rows = task_work.div_ceil(row_work).next_multiple_of(TASK_ROWS);
        let Term { x, w, out } = term;
        let mut rest = ColumnsMut::whole(out, w.n_rows);
        while rest.n_cols() > 0 {
            let n_row = rest
                .n_cols()
                .min(max_rows)
                .min(all_tasks.rows_left(row_work));
            if n_row == 0 {
                all_tasks.end_share();
                continue;
            }
            let first = w.n_rows - rest.n_cols();
            let (out, later) = rest.split_at(n_row);
            let rows = first..first + n_row;
            all_tasks.tasks.push(Task {
                x,
                w,
                first,
                rows,
                out,
            });
            all_tasks.work += n_row * row_work;
            rest = later;
        }
    }
    while all_tasks.shares.len() < n_share {
        all_tasks.end_share();
    }
    (all_tasks.tasks, all_tasks.shares)
}

/// Returns what each thread reads first.
fn starts(tasks: &[Task<'_>], shares: &[Range<usize>]) -> impl Iterator<Item = Start> {
    shares.iter().map(|share| {
        let first = tasks[share.clone()].first();
        first.map(Task::addresses).into_iter().collect()
    })
}

impl Task<'_> {
    fn run(self, cpu: &Cpu, prefetching: Prefetching) {
        let Task {
            x,
            w,
            first,
            rows,
            out,
        } = self;
        match (x, w.products) {
            (Factor::Quants(x), Products::Quants(kernels)) => {
                let product = QuantProduct {
                    w,
                    x,
                    first,
                    out,
                    rows,
                    prefetching,
                };
                (kernels.multiply)(cpu.implementation, product);
            }
            (&Factor::Floats(x), Products::Floats(kernels)) => {
                let product = FloatProduct {
                    w,
                    x,
                    first,
                    out,
                    rows,
                    prefetching,
                };
                (kernels.multiply)(cpu.implementation, product);
            }
            _ => unreachable!("the factor is that of another kind of weight"),
        }
    }

    /// Returns the addresses of the weight from the first row on.
    fn addresses(&self) -> Range<usize> {
        match (self.w.panels(), self.w.products) {
            (Some(panels), _) => panels.addresses(self.first),
            (None, Products::Floats(_)) => self.w.addresses(self.first),
            (None, Products::Quants(_)) => 0..0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use schemas::gguf::DType;

    use super::*;
    use crate::backend::{Backend, WeightData};
    use crate::cpu::CpuConfig;

    #[test]
    fn a_weight_remembers_where_threads_begin_with_the_next() {
        const N_COLS: usize = 256;
        const N_ROWS: usize = 64;
        let config = CpuConfig {
            threads: 2,
            ..CpuConfig::default()
        };
        let cpu = Cpu::new(config).expect("an instruction set");
        let row_bytes = DType::Q8_0.row_bytes(N_COLS as u64).expect("whole blocks") as usize;
        let [first, second] = [0, 1].map(|_| {
            let data = WeightData {
                dtype: DType::Q8_0,
                n_rows: N_ROWS,
                n_cols: N_COLS,
                bytes: Arc::new(vec![0; N_ROWS * row_bytes]),
            };
            cpu.load(data).expect("a type with products")
        });
        let (x, mut out) = (cpu.buffer(N_COLS), cpu.buffer(N_ROWS));
        cpu.matmul(&first, &x, 1, &mut out);
        assert_eq!(*first.follower.starts(), []);
        cpu.matmul(&second, &x, 1, &mut out);
        let panels = second.panels().expect("repacked by its product");
        let starts = [0, N_ROWS / 2].map(|row| Start::from_iter(Some(panels.addresses(row))));
        assert_eq!(*first.follower.starts(), starts);
    }

    #[test]
    fn threads_begin_with_the_same_work() {
        const N_COLS: usize = 256;
        for n_rows in [&[2048][..], &[2048, 1024, 1024], &[64, 4096, 7], &[8, 8, 8]] {
            for threads in 1..=5 {
                let config = CpuConfig {
                    threads,
                    ..CpuConfig::default()
                };
                let cpu = Cpu::new(config).expect("an instruction set");
                let weights = n_rows.iter().map(|&n_rows| {
                    let data = WeightData {
                        dtype: DType::F32,
                        n_rows,
                        n_cols: N_COLS,
                        bytes: Arc::new(vec![0; 4 * n_rows * N_COLS]),
                    };
                    cpu.load(data).expect("a type with products")
                });
                let weights: std::vec::Vec<Weight> = weights.collect();
                let arena = Arena::new();
                let x = Factor::new(&cpu, &arena, &weights[0], &[0.0; N_COLS]);
                let terms = weights.iter().map(|w| Term {
                    x: &x,
                    w,
                    out: arena.filled(0.0, w.n_rows),
                });
                let terms = Vec::from_iter_in(terms, &arena);
                let work = terms.iter().map(Term::work).sum();
                let (tasks, shares) = split(&cpu, &arena, terms, work);
                let mut all = tasks.iter();
                for w in &weights {
                    let mut row = 0;
                    while row < w.n_rows {
                        let task = all.next().expect("tasks of all rows");
                        assert!(ptr::eq(task.w, w) && task.first == row);
                        row += task.out.n_cols();
                    }
                }
                assert_eq!(shares.len(), threads);
                let total: usize = n_rows.iter().sum();
                for share in &shares {
                    let n: usize = tasks[share.clone()]
                        .iter()
                        .map(|task| task.out.n_cols())
                        .sum();
                    assert!(
                        n.abs_diff(total / threads) <= 2 * TASK_ROWS,
                        "{n} of {total}"
                    );
                }
            }
        }
    }
}
