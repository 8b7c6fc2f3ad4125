//! The processor as a [`Backend`].
//!
//! Each operation is one file. Its arithmetic is written once, over [`simd::Simd`], and compiled
//! for every instruction set of [`dispatch`]; all of them, and any number of threads, give the same
//! bits. Work is cut into tasks that own the part of the output they write; a task is never a part
//! of a reduction.

mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod causal_conv;
mod dispatch;
mod elementwise;
mod gated_delta;
mod math;
mod matmul;
mod norm;
mod rope;
mod rows;
mod simd;
mod weight;

use std::ops::Range;

use rayon::prelude::*;

use crate::backend::{
    AttentionShape, Backend, Columns, DeltaInput, DeltaShape, KeyRows, Rope, Step,
    UnsupportedWeight, WeightData,
};
use dispatch::Implementation;
pub use dispatch::Isa;
use simd::Kernel;
pub use weight::Weight;

/// How a [`Cpu`] computes; the results do not depend on it.
#[derive(Clone, Copy, Debug)]
pub struct CpuConfig {
    /// Threads; 0 for one per processor that this process may use.
    pub threads: usize,
    /// Instruction set; `None` for the best one there is.
    pub isa: Option<Isa>,
}

/// Why there is no [`Cpu`].
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The processor lacks the instruction set that was asked for.
    #[error("this processor has no {0} instructions")]
    MissingIsa(Isa),
    /// The threads could not be started.
    #[error("cannot start {threads} threads")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        source: rayon::ThreadPoolBuildError,
    },
}

/// Kernels for the processor, and the threads they run on.
pub struct Cpu {
    pool: rayon::ThreadPool,
    implementation: Implementation,
}

/// Elements in host memory.
#[derive(Clone, Debug)]
pub struct Buffer(Vec<f32>);

/// Multiply-adds, or moved elements, from which waking the other threads pays.
const PARALLEL_WORK: usize = 1 << 16;

impl Cpu {
    /// Starts the threads.
    ///
    /// # Errors
    /// The instruction set is not there, or the threads cannot be started.
    pub fn new(config: CpuConfig) -> Result<Cpu, OpenError> {
        let implementation = dispatch::implementations()
            .into_iter()
            .find(|found| config.isa.is_none_or(|isa| found.isa() == isa))
            .ok_or_else(|| OpenError::MissingIsa(config.isa.unwrap_or(Isa::Portable)))?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(config.threads)
            .thread_name(|i| format!("cpu-{i}"))
            .build()
            .map_err(|source| OpenError::Threads {
                threads: config.threads,
                source,
            })?;
        Ok(Cpu {
            pool,
            implementation,
        })
    }

    /// Instruction sets of this processor, best first.
    pub fn available() -> Vec<Isa> {
        dispatch::implementations()
            .into_iter()
            .map(Implementation::isa)
            .collect()
    }

    /// Runs a kernel for each task: on all threads where `work`, in multiply-adds, pays for it.
    fn run<T: Send, K: Kernel>(&self, work: usize, tasks: Vec<T>, kernel: impl Fn(T) -> K + Sync) {
        let run = |task| self.implementation.run(kernel(task));
        if work < PARALLEL_WORK || tasks.len() < 2 || self.threads() == 1 {
            tasks.into_iter().for_each(run);
        } else {
            self.pool
                .install(|| tasks.into_par_iter().with_max_len(1).for_each(run));
        }
    }

    /// Runs a kernel on this thread.
    fn run_one(&self, kernel: impl Kernel) {
        self.implementation.run(kernel);
    }

    fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }
}

impl Backend for Cpu {
    type Buffer = Buffer;
    type Weight = Weight;

    fn name(&self) -> String {
        format!("cpu-{}", self.implementation.isa())
    }

    fn load(&self, data: WeightData) -> Result<Weight, UnsupportedWeight> {
        let dtype = data.dtype;
        Weight::new(data).ok_or_else(|| UnsupportedWeight {
            backend: self.name(),
            dtype,
        })
    }

    fn weight_bytes(&self, weight: &Weight) -> usize {
        weight.bytes().len()
    }

    fn buffer(&self, len: usize) -> Buffer {
        Buffer(vec![f32::NAN; len])
    }

    fn upload(&self, src: &[f32], dst: &mut Buffer, at: usize) {
        dst.0[at..at + src.len()].copy_from_slice(src);
    }

    fn download(&self, src: &Buffer, at: usize, dst: &mut [f32]) {
        dst.copy_from_slice(&src.0[at..at + dst.len()]);
    }

    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut Buffer) {
        rows::embed(table, tokens, &mut out.0);
    }

    fn matmul(&self, w: &Weight, x: &Buffer, n: usize, out: &mut Buffer) {
        matmul::matmul(self, w, &x.0[..n * w.n_cols], n, &mut out.0[..n * w.n_rows]);
    }

    fn rms_norm(&self, x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer) {
        let len = n * w.n_cols;
        norm::rms_norm(self, &x.0[..len], w, eps, &mut out.0[..len]);
    }

    fn l2_norm(&self, x: &mut Buffer, eps: f32, dim: usize, n: usize) {
        norm::l2_norm(self, &mut x.0[..n * dim], eps, dim);
    }

    fn add(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::add(self, &mut x.0[..len], &y.0[..len]);
    }

    fn add_bias(&self, x: &mut Buffer, bias: &Weight, n: usize) {
        elementwise::add_bias(self, &mut x.0[..n * bias.n_cols], bias);
    }

    fn silu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::silu_mul(self, &mut x.0[..len], &y.0[..len]);
    }

    fn sigmoid_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::sigmoid_mul(self, &mut x.0[..len], &y.0[..len]);
    }

    fn rope(&self, x: &mut Buffer, rope: &Rope, n_head: usize, positions: &[u32]) {
        let len = positions.len() * n_head * rope.head_dim;
        rope::rope(&mut x.0[..len], rope, n_head, positions);
    }

    fn scatter_rows(&self, src: &Buffer, dim: usize, rows: &[usize], dst: &mut Buffer) {
        rows::scatter_rows(&src.0, dim, rows, &mut dst.0);
    }

    fn gather_rows(&self, src: &Buffer, dim: usize, rows: &[usize], dst: &mut Buffer) {
        rows::gather_rows(&src.0, dim, rows, &mut dst.0);
    }

    fn copy_rows(
        &self,
        src: &Buffer,
        from: usize,
        dst: &mut Buffer,
        to: usize,
        dim: usize,
        n: usize,
    ) {
        dst.0[to * dim..][..n * dim].copy_from_slice(&src.0[from * dim..][..n * dim]);
    }

    fn copy_columns(
        &self,
        src: &Buffer,
        from: Columns,
        dst: &mut Buffer,
        to: Columns,
        width: usize,
        n: usize,
    ) {
        rows::copy_columns(&src.0, from, &mut dst.0, to, width, n);
    }

    fn attention(
        &self,
        shape: &AttentionShape,
        q: &Buffer,
        k: &Buffer,
        v: &Buffer,
        keys: &[KeyRows],
        out: &mut Buffer,
    ) {
        let len = keys.len() * shape.n_head * shape.head_dim;
        attention::attention(
            self,
            shape,
            &q.0[..len],
            &k.0,
            &v.0,
            keys,
            &mut out.0[..len],
        );
    }

    fn causal_conv(
        &self,
        x: &Buffer,
        w: &Weight,
        steps: &[Step],
        state: &mut Buffer,
        out: &mut Buffer,
    ) {
        causal_conv::causal_conv(self, &x.0, w, steps, &mut state.0, &mut out.0);
    }

    fn gated_delta_rule(
        &self,
        shape: &DeltaShape,
        input: DeltaInput<'_, Self>,
        steps: &[Step],
        state: &mut Buffer,
        out: &mut Buffer,
    ) {
        gated_delta::gated_delta_rule(self, shape, &input, steps, &mut state.0, &mut out.0);
    }
}

/// Consecutive parts of `0..len`, `part` long but for the last.
fn parts(len: usize, part: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len)
        .step_by(part)
        .map(move |start| start..len.min(start + part))
}
