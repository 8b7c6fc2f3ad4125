//! Matrix product of activations and a weight.
//!
//! A weight row is decoded once and used for every row of the batch. Each output element is one
//! [`Simd::dot`], so neither the batch nor the way rows are shared out can change it.

use super::simd::{Kernel, LANES, Simd};
use super::weight::Weight;
use super::{Cpu, parts};

/// Weight rows, and activation rows, of a tile: their dot products are computed together, so that
/// what is loaded is used several times.
const TILE: usize = 4;

/// Bytes of activations that stay in the second-level cache while weight rows pass by.
const BLOCK_BYTES: usize = 1 << 20;

/// [`Backend::matmul`](crate::backend::Backend::matmul).
pub(super) fn matmul(cpu: &Cpu, w: &Weight, x: &[f32], n: usize, out: &mut [f32]) {
    if n == 0 || w.n_rows == 0 {
        return;
    }
    // Several tasks a thread, so that one that is interrupted does not hold up the others; whole
    // cache lines of output each.
    let n_task = 4 * cpu.threads();
    let rows_per_task = w.n_rows.div_ceil(n_task).next_multiple_of(16);
    let mut tasks: Vec<Product<'_>> = parts(w.n_rows, rows_per_task)
        .map(|rows| Product {
            w,
            x,
            first: rows.start,
            out: Vec::with_capacity(n),
        })
        .collect();
    for row in out.chunks_exact_mut(w.n_rows) {
        for (task, part) in tasks.iter_mut().zip(row.chunks_mut(rows_per_task)) {
            task.out.push(part);
        }
    }
    cpu.run(n * w.n_rows * w.n_cols, tasks, |task| task);
}

/// Some weight rows times all activations.
struct Product<'a> {
    w: &'a Weight,
    /// `(n, n_cols)`
    x: &'a [f32],
    /// First weight row.
    first: usize,
    /// Per activation row, one element per weight row.
    out: Vec<&'a mut [f32]>,
}

impl Kernel for Product<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let n_cols = self.w.n_cols;
        let n_rows = self.out[0].len();
        let mut scratch = vec![0.0; TILE * n_cols];
        let block_len = (BLOCK_BYTES / 4 / n_cols.max(1)).next_multiple_of(TILE);
        let blocks = self
            .x
            .chunks(block_len * n_cols)
            .zip(self.out.chunks_mut(block_len));
        for (x, out) in blocks {
            for rows in parts(n_rows, TILE) {
                let len = rows.len() * n_cols;
                let w = self.w.rows(self.first + rows.start, &mut scratch[..len]);
                for (x, out) in x.chunks(TILE * n_cols).zip(out.chunks_mut(TILE)) {
                    match rows.len() {
                        TILE => tiles::<S, TILE>(simd, w, x, out, rows.start),
                        _ => {
                            for (w, row) in w.chunks_exact(n_cols).zip(rows.clone()) {
                                tiles::<S, 1>(simd, w, x, out, row);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// `R` weight rows times up to [`TILE`] activation rows.
#[inline(always)]
fn tiles<S: Simd, const R: usize>(
    simd: S,
    w: &[f32],
    x: &[f32],
    out: &mut [&mut [f32]],
    row: usize,
) {
    match out.len() {
        4 => tile::<S, R, 4>(simd, w, x, out, row),
        3 => tile::<S, R, 3>(simd, w, x, out, row),
        2 => tile::<S, R, 2>(simd, w, x, out, row),
        1 => tile::<S, R, 1>(simd, w, x, out, row),
        n => unreachable!("{n} rows in a tile"),
    }
}

#[inline(always)]
fn tile<S: Simd, const R: usize, const C: usize>(
    simd: S,
    w: &[f32],
    x: &[f32],
    out: &mut [&mut [f32]],
    row: usize,
) {
    let n_cols = w.len() / R;
    let w: [_; R] = std::array::from_fn(|r| w[r * n_cols..][..n_cols].as_chunks::<LANES>());
    let x: [_; C] = std::array::from_fn(|c| x[c * n_cols..][..n_cols].as_chunks::<LANES>());
    let mut acc = [[simd.splat(0.0); C]; R];
    for i in 0..n_cols / LANES {
        for c in 0..C {
            let x = simd.load(&x[c].0[i]);
            for r in 0..R {
                acc[r][c] = simd.mul_add(simd.load(&w[r].0[i]), x, acc[r][c]);
            }
        }
    }
    if !n_cols.is_multiple_of(LANES) {
        for c in 0..C {
            let x = simd.load_part(x[c].1);
            for r in 0..R {
                acc[r][c] = simd.mul_add(simd.load_part(w[r].1), x, acc[r][c]);
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            out[c][row + r] = simd.sum(acc[r][c]);
        }
    }
}
