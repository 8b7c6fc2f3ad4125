//! The CPU [`Backend`].
//!
//! Each operation is one file. Its arithmetic is written once, over `Simd`, and compiled for every
//! instruction set; all of them, and any number of threads, give the same bits. Work is split
//! into tasks that own the part of the output they write; a reduction is never split between tasks.

mod activation;
mod arena;
mod attention;
mod bandwidth;
mod buffer;
mod cache;
mod causal_conv;
mod choose;
mod dot;
mod elementwise;
mod gated_delta;
mod math;
mod matmul;
mod moe;
mod norm;
mod pool;
mod repack;
mod rope;
mod rows;
mod weight;

use std::ops::Range;
use std::sync::Mutex;

use schemas::threads;

use crate::backend::{
    AttentionInput, AttentionShape, Backend, CacheShape, Columns, DeltaInput, DeltaShape,
    ExpertInput, KeyRows, Largest, Rope, Routing, Step, UnsupportedWeight, WeightData,
};
use crate::simd::Kernel;
use crate::simd::dispatch::{self, Implementation};
pub use crate::simd::{Isa, UnknownIsa};
pub use buffer::Buffer;
pub use cache::Cache;
pub(crate) use dot::QuantKernels;
pub use moe::Routes;
use pool::Pool;
pub use weight::Weight;

/// Configuration of a [`Cpu`]. Results do not depend on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuConfig {
    /// Threads; 0 for one per core available to this process. More threads than cores are slower, because
    /// the threads of an operation wait for each other.
    pub threads: usize,
    /// Instruction set; `None` for the best available.
    pub isa: Option<Isa>,
    /// Memory layout of quantized weights.
    pub layout: Layout,
}

/// Memory layout of quantized weights in products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Repacked: sixteen rows are interleaved, copied at the first product. Faster, and takes as much
    /// memory as the file, whose pages are no longer used.
    #[default]
    Repacked,
    /// File order; the file may be mapped.
    FileOrder,
}

/// The reason why a [`Cpu`] cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The CPU lacks the requested instruction set.
    #[error("the CPU has no {0} instructions")]
    MissingIsa(Isa),
}

/// The CPU backend: the selected kernels and the threads they run on.
pub struct Cpu {
    /// Threads other than the calling one.
    helpers: Option<Pool>,
    implementation: Implementation,
    layout: Layout,
}

/// Minimum work, in multiply-adds or moved elements, for which waking other threads pays.
const PARALLEL_WORK: usize = 1 << 17;

impl Cpu {
    /// Starts the threads, or as many of them as the system allows.
    ///
    /// # Errors
    /// The CPU lacks the instruction set.
    pub fn new(config: CpuConfig) -> Result<Cpu, OpenError> {
        let implementation = dispatch::implementations()
            .into_iter()
            .find(|found| config.isa.is_none_or(|isa| found.isa() == isa))
            .ok_or_else(|| OpenError::MissingIsa(config.isa.unwrap_or(Isa::Portable)))?;
        let threads = threads::count(config.threads);
        Ok(Cpu {
            helpers: (threads > 1).then(|| Pool::new(threads - 1)),
            implementation,
            layout: config.layout,
        })
    }

    /// Returns the instruction sets of this CPU, best first.
    pub fn available() -> Vec<Isa> {
        dispatch::implementations()
            .into_iter()
            .map(Implementation::isa)
            .collect()
    }

    /// Runs a kernel for each task, on all threads if `work`, in multiply-adds, is large enough.
    fn run<T, I, K>(&self, work: usize, tasks: I, kernel: impl Fn(T) -> K + Sync)
    where
        I: IntoIterator<Item = T, IntoIter: ExactSizeIterator + Send>,
        K: Kernel,
    {
        self.for_each(work, tasks, |task| self.implementation.run(kernel(task)));
    }

    /// Calls a function for each task, on all threads if `work`, in multiply-adds, is large enough.
    fn for_each<T, I>(&self, work: usize, tasks: I, run: impl Fn(T) + Sync)
    where
        I: IntoIterator<Item = T, IntoIter: ExactSizeIterator + Send>,
    {
        let tasks = tasks.into_iter();
        let n_task = tasks.len();
        let helpers = match &self.helpers {
            Some(helpers) if work >= PARALLEL_WORK && n_task > 1 => helpers,
            _ => return tasks.for_each(run),
        };
        let tasks = Mutex::new(tasks);
        let next = || tasks.lock().expect("taking a task cannot panic").next();
        helpers.run(n_task, &|_| {
            if let Some(task) = next() {
                run(task);
            }
        });
    }

    /// Runs a kernel on the calling thread.
    fn run_one(&self, kernel: impl Kernel) {
        self.implementation.run(kernel);
    }

    /// Number of compute threads, including the calling one.
    pub fn threads(&self) -> usize {
        1 + self.helpers.as_ref().map_or(0, Pool::len)
    }
}

impl Backend for Cpu {
    type Buffer = Buffer;
    type Weight = Weight;
    type Cache = Cache;
    type Routes = Routes;
    type Chosen = Vec<Largest>;

    fn free_bytes(&self) -> Option<u64> {
        // Linux only. On other systems a lack of memory shows at allocation.
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        kib.checked_mul(1024)
    }

    fn weight_room(&self, _file_bytes: u64) -> u64 {
        0
    }

    fn read_rate(&self) -> Option<f64> {
        self.measure_read_rate(self.free_bytes())
    }

    fn name(&self) -> String {
        format!("cpu-{}", self.implementation.isa())
    }

    fn load(&self, data: WeightData) -> Result<Weight, UnsupportedWeight> {
        let dtype = data.dtype;
        Weight::new(self, data).ok_or_else(|| UnsupportedWeight {
            backend: self.name(),
            dtype,
        })
    }

    fn weight_bytes(&self, weight: &Weight) -> usize {
        weight.bytes().len()
    }

    fn buffer(&self, len: usize) -> Buffer {
        Buffer::new(len)
    }

    fn scratch(&self, len: usize) -> Buffer {
        if cfg!(debug_assertions) {
            Buffer::new(len)
        } else {
            Buffer::untouched(len)
        }
    }

    fn cache(&self, shape: &CacheShape) -> Cache {
        Cache::new(self, shape)
    }

    fn routes(&self, n: usize, n_used: usize) -> Routes {
        Routes::new(n, n_used)
    }

    fn chosen(&self, n: usize) -> Vec<Largest> {
        let value = f32::NAN;
        vec![Largest { index: 0, value }; n]
    }

    fn upload(&self, src: &[f32], dst: &mut Buffer, at: usize) {
        dst[at..at + src.len()].copy_from_slice(src);
    }

    fn download(&self, src: &Buffer, at: usize, dst: &mut [f32]) {
        dst.copy_from_slice(&src[at..at + dst.len()]);
    }

    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut Buffer) {
        rows::embed(table, tokens.iter().copied(), out);
    }

    fn choose(
        &self,
        x: &Buffer,
        dim: usize,
        names: Option<&[u32]>,
        chosen: &mut Vec<Largest>,
        places: Range<usize>,
    ) {
        choose::choose(self, x, dim, names, &mut chosen[places]);
    }

    fn download_chosen(&self, chosen: &Vec<Largest>, at: usize, dst: &mut [Largest]) {
        dst.copy_from_slice(&chosen[at..at + dst.len()]);
    }

    fn embed_chosen(
        &self,
        table: &Weight,
        chosen: &Vec<Largest>,
        places: &[usize],
        out: &mut Buffer,
    ) {
        let tokens = places.iter().map(|&place| chosen[place].index);
        rows::embed(table, tokens, out);
    }

    fn matmul(&self, w: &Weight, x: &Buffer, n: usize, out: &mut Buffer) {
        matmul::matmul(self, w, &x[..n * w.n_cols], &mut out[..n * w.n_rows]);
    }

    fn rms_norm(&self, x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer) {
        let len = n * w.n_cols;
        norm::rms_norm(self, &x[..len], w, eps, &mut out[..len]);
    }

    fn l2_norm(&self, x: &mut Buffer, eps: f32, dim: usize, n: usize) {
        norm::l2_norm(self, &mut x[..n * dim], eps, dim);
    }

    fn add(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::add(self, &mut x[..len], &y[..len]);
    }

    fn add_bias(&self, x: &mut Buffer, bias: &Weight, n: usize) {
        elementwise::add_bias(self, &mut x[..n * bias.n_cols], bias);
    }

    fn silu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::silu_mul(self, &mut x[..len], &y[..len]);
    }

    fn gelu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::gelu_mul(self, &mut x[..len], &y[..len]);
    }

    fn clamped_silu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::clamped_silu_mul(self, &mut x[..len], &y[..len]);
    }

    fn scale(&self, x: &mut Buffer, factor: f32, len: usize) {
        elementwise::scale(&mut x[..len], factor);
    }

    fn softcap(&self, x: &mut Buffer, cap: f32, len: usize) {
        elementwise::softcap(&mut x[..len], cap);
    }

    fn sigmoid_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::sigmoid_mul(self, &mut x[..len], &y[..len]);
    }

    fn sigmoid_mul_rows(&self, x: &mut Buffer, gate: &Buffer, dim: usize, n: usize) {
        elementwise::sigmoid_mul_rows(self, &mut x[..n * dim], &gate[..n], dim);
    }

    fn route(
        &self,
        logits: &Buffer,
        bias: Option<&Weight>,
        routing: &Routing,
        n: usize,
        routes: &mut Routes,
    ) {
        moe::route(self, &logits[..n * routing.n_expert], bias, routing, routes);
    }

    fn choose_all(&self, n: usize, routes: &mut Routes) {
        routes.choose_all(n);
    }

    fn expert_matmul(
        &self,
        experts: &[Weight],
        routes: &Routes,
        x: &Buffer,
        input: ExpertInput,
        n: usize,
        out: &mut Buffer,
    ) {
        let len = n * routes.n_used * experts[0].n_rows;
        moe::expert_matmul(self, experts, routes, x, input, &mut out[..len]);
    }

    fn add_expert_bias(&self, x: &mut Buffer, bias: &Weight, routes: &Routes, n: usize) {
        let len = n * routes.n_used * bias.n_cols;
        moe::add_expert_bias(&mut x[..len], bias, routes);
    }

    fn combine_experts(&self, routes: &Routes, x: &Buffer, dim: usize, n: usize, out: &mut Buffer) {
        let x = &x[..n * routes.n_used * dim];
        moe::combine_experts(self, routes, x, dim, &mut out[..n * dim]);
    }

    fn rope(&self, x: &mut Buffer, rope: &Rope, n_head: usize, positions: &[u32]) {
        let len = positions.len() * n_head * rope.head_dim;
        rope::rope(&mut x[..len], rope, n_head, positions);
    }

    fn store_rows(&self, src: &Buffer, rows: &[usize], cache: &mut Cache) {
        cache.store_rows(src, rows);
    }

    fn gather_rows(&self, src: &Buffer, dim: usize, rows: &[usize], dst: &mut Buffer) {
        rows::gather_rows(src, dim, rows, dst);
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
        dst[to * dim..][..n * dim].copy_from_slice(&src[from * dim..][..n * dim]);
    }

    fn copy_within(&self, buffer: &mut Buffer, from: usize, to: usize, len: usize) {
        buffer.copy_within(from..from + len, to);
    }

    fn copy_cached(&self, cache: &mut Cache, from: usize, to: usize, n: usize) {
        cache.copy_rows(from, to, n);
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
        rows::copy_columns(src, from, dst, to, width, n);
    }

    fn attention(
        &self,
        shape: &AttentionShape,
        input: AttentionInput<'_, Self>,
        keys: &[KeyRows],
        out: &mut Buffer,
    ) {
        attention::attention(self, shape, &input, keys, out);
    }

    fn causal_conv(
        &self,
        x: &Buffer,
        w: &Weight,
        steps: &[Step],
        state: &mut Buffer,
        out: &mut Buffer,
    ) {
        causal_conv::causal_conv(self, x, w, steps, state, out);
    }

    fn gated_delta_rule(
        &self,
        shape: &DeltaShape,
        input: DeltaInput<'_, Self>,
        steps: &[Step],
        state: &mut Buffer,
        out: &mut Buffer,
    ) {
        gated_delta::gated_delta_rule(self, shape, &input, steps, state, out);
    }
}

/// Splits `0..len` into consecutive ranges of `part` elements; the last may be shorter.
fn parts(len: usize, part: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len)
        .step_by(part)
        .map(move |start| start..len.min(start + part))
}
