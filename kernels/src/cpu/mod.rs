//! The CPU [`Backend`].
//!
//! Operations are in `kernels/src/ops`. Their arithmetic is written once, over `Simd`, and compiled for every
//! instruction set; all of them, and any number of threads, give the same bits. Work is split
//! into tasks that own the part of the output they write; a reduction is never split between tasks.

pub(crate) mod activation;
pub(crate) mod arena;
pub(crate) mod bandwidth;
pub(crate) mod buffer;
pub(crate) mod columns;
pub(crate) mod float_activation;
pub(crate) mod huge_pages;
pub(crate) mod math;
pub(crate) mod pool;
pub(crate) mod prefetch;
pub(crate) mod read_ahead;
pub(crate) mod recurrence;
pub(crate) mod repack;
pub(crate) mod weight;

use std::ops::Range;
use std::sync::Mutex;

use schemas::threads;

use crate::backend::{Backend, Largest, Readers, Storage, UnsupportedWeight, WeightData};
pub use crate::ops::cache::cpu::Cache;
pub use crate::ops::moe::cpu::Routes;
use crate::simd::Kernel;
use crate::simd::dispatch::{self, Implementation};
pub use crate::simd::{Isa, UnknownIsa};
use arena::Arena;
pub use buffer::Buffer;
use huge_pages::HugePages;
use pool::{Distribution, Pool};
use prefetch::Prefetch;
pub use prefetch::{ParsePrefetchingError, Prefetching};
use read_ahead::ReadOrder;
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
    /// Lines that products prefetch; `None` to let the first products measure what is fastest.
    pub prefetch: Option<Prefetching>,
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
    /// The CPU lacks the requested instruction set, or the kernels were not compiled for it.
    #[error("the CPU has no {0} instructions, or this program was compiled without them")]
    MissingIsa(Isa),
}

/// The CPU backend: the selected kernels and the threads they run on.
pub struct Cpu {
    /// Threads other than the calling one.
    helpers: Option<Pool>,
    pub(crate) implementation: Implementation,
    pub(crate) layout: Layout,
    pub(crate) prefetch: Prefetch,
    /// Memory of repacked weights.
    pub(crate) huge_pages: HugePages,
    /// Memory of caches, which are freed earlier than weights.
    pub(crate) cache_pages: HugePages,
    pub(crate) read_order: ReadOrder,
}

/// Minimum work, in multiply-adds or moved elements, for which waking other threads pays.
const PARALLEL_WORK: usize = 1 << 17;

/// Work of a task of rows or elements, in multiply-adds, so that the half microsecond to take it does not matter.
pub(crate) const TASK_WORK: usize = 1 << 15;

/// Returns how many rows a task has, from the work for one of them.
pub(crate) fn rows_per_task(work: usize) -> usize {
    (TASK_WORK / work.max(1)).max(1)
}

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
        // Portable code has no instruction that prefetches.
        let prefetch = match implementation.isa() {
            Isa::Portable => Some(Prefetching::Distance(0)),
            _ => config.prefetch,
        };
        Ok(Cpu {
            helpers: (threads > 1).then(|| Pool::new(threads - 1)),
            implementation,
            layout: config.layout,
            prefetch: Prefetch::new(prefetch),
            huge_pages: HugePages::default(),
            cache_pages: HugePages::default(),
            read_order: ReadOrder::default(),
        })
    }

    /// Returns the instruction sets of this CPU that the kernels were compiled for, best first.
    pub fn available() -> Vec<Isa> {
        dispatch::implementations()
            .into_iter()
            .map(Implementation::isa)
            .collect()
    }

    /// Returns the best instruction set of this CPU if the kernels were compiled without it: for another CPU, without
    /// the feature `every-cpu`.
    pub fn left_out() -> Option<Isa> {
        let best = dispatch::best_of_cpu();
        (!Cpu::available().contains(&best)).then_some(best)
    }

    /// Runs a kernel for each task, on all threads if `work`, in multiply-adds, is large enough.
    pub(crate) fn run<T: Send, I, K>(&self, work: usize, tasks: I, kernel: impl Fn(T) -> K + Sync)
    where
        I: IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
        K: Kernel,
    {
        self.for_each(work, tasks, |task| {
            self.implementation.run_operation(kernel(task))
        });
    }

    /// Calls a function for each task, on all threads if `work`, in multiply-adds, is large enough.
    pub(crate) fn for_each<T: Send, I>(&self, work: usize, tasks: I, run: impl Fn(T) + Sync)
    where
        I: IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    {
        self.distribute(work, tasks, Distribution::default(), run);
    }

    /// [`Cpu::for_each`] with the given distribution among threads.
    pub(crate) fn distribute<T: Send, I>(
        &self,
        work: usize,
        tasks: I,
        distribution: Distribution<'_>,
        run: impl Fn(T) + Sync,
    ) where
        I: IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    {
        let tasks = tasks.into_iter();
        let n_task = tasks.len();
        let helpers = match &self.helpers {
            Some(helpers) if work >= PARALLEL_WORK && n_task > 1 => helpers,
            _ => return tasks.for_each(run),
        };
        let arena = Arena::new();
        let tasks = &*arena.alloc_slice_fill_iter(tasks.map(|task| Mutex::new(Some(task))));
        helpers.run(n_task, distribution, &|i| {
            let task = tasks[i].lock().expect("taking a task cannot panic").take();
            run(task.expect("each task is run once"));
        });
    }

    /// Number of compute threads, including the calling one.
    pub fn threads(&self) -> usize {
        1 + self.helpers.as_ref().map_or(0, Pool::len)
    }
}

impl Storage for Cpu {
    type Buffer = Buffer;
    type Weight = Weight;
    type Cache = Cache;
    type Routes = Routes;
    type Chosen = Vec<Largest>;
}

impl Backend for Cpu {
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

    fn read_rate(&self, readers: Readers) -> Option<f64> {
        self.measure_read_rate(self.free_bytes(), readers)
    }

    fn prefetching(&self) -> Option<Prefetching> {
        self.prefetch.chosen()
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

    fn upload(&self, src: &[f32], dst: &mut Buffer, at: usize) {
        dst[at..at + src.len()].copy_from_slice(src);
    }

    fn download(&self, src: &Buffer, at: usize, dst: &mut [f32]) {
        dst.copy_from_slice(&src[at..at + dst.len()]);
    }
}

/// Splits `0..len` into consecutive ranges of `part` elements; the last may be shorter.
pub(crate) fn parts(len: usize, part: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len)
        .step_by(part)
        .map(move |start| start..len.min(start + part))
}
