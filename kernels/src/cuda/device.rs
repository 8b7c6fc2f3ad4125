//! A device that runs kernels: what [`Cuda`](super::Cuda) needs of one, and nothing else.
//!
//! Everything that is asked of a device happens in the order in which it was asked; only reading
//! waits. Knows neither operations nor shapes.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use bytemuck::NoUninit;
use schemas::gguf::DType;

use super::queue::Queue;
use crate::backend::CacheType;

/// A place in the device's memory; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, NoUninit)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// What kernels see as a null pointer.
    pub const NONE: Address = Address(0);

    /// The place `bytes` further on.
    pub(super) fn offset(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}

/// A file of kernels, compiled as a whole: see [`super::source`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// Name of the file, without its extension.
    pub file: &'static str,
    /// What it is compiled for.
    pub types: Types,
}

/// Types that words in a file stand for: it is compiled for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Types {
    /// None: it is compiled once.
    None,
    /// `WEIGHT`.
    Weight(DType),
    /// `CELLS`, of a cache.
    Cells(DType),
    /// `KEYS` and `VALUES`, of two caches.
    Caches(DType, DType),
}

impl Unit {
    /// A file that is compiled for a type of weight.
    pub(super) fn of_weight(file: &'static str, weight: DType) -> Unit {
        let types = Types::Weight(weight);
        Unit { file, types }
    }

    /// A file that is compiled for a type of cache.
    pub(super) fn of_cache(file: &'static str, element: CacheType) -> Unit {
        let types = Types::Cells(element.dtype());
        Unit { file, types }
    }

    /// A file that is compiled for types of keys and values.
    pub(super) fn of_caches(file: &'static str, keys: CacheType, values: CacheType) -> Unit {
        let types = Types::Caches(keys.dtype(), values.dtype());
        Unit { file, types }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.cu", self.file)?;
        match self.types {
            Types::None => Ok(()),
            Types::Weight(dtype) | Types::Cells(dtype) => write!(f, " for {dtype}"),
            Types::Caches(keys, values) => write!(f, " for {keys} and {values}"),
        }
    }
}

/// A kernel and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Where it is.
    pub unit: Unit,
    /// Its name.
    pub name: &'static str,
}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Blocks along x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block, along x.
    pub threads: u32,
}

impl Grid {
    pub(super) fn new(blocks: [u32; 3], threads: u32) -> Grid {
        Grid { blocks, threads }
    }

    /// One thread for each of `len` elements.
    pub(super) fn elements(len: usize, threads: u32) -> Grid {
        let blocks = u32::try_from(len.div_ceil(threads as usize));
        Grid::new([blocks.expect("buffers are smaller"), 1, 1], threads)
    }
}

/// The arguments of a kernel: the one struct that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    words: [u64; Arguments::MOST_WORDS],
    size: usize,
}

impl Arguments {
    const MOST_WORDS: usize = 36;

    /// A copy of the struct, which is of whole words.
    pub(super) fn of<A: NoUninit>(args: &A) -> Arguments {
        Arguments::with_room(args, 1)
    }

    /// The first of `n` structs of that kind, and zeros for the others.
    pub(super) fn with_room<A: NoUninit>(args: &A, n: usize) -> Arguments {
        let mut arguments = Arguments {
            words: [0; Arguments::MOST_WORDS],
            size: n * size_of::<A>(),
        };
        arguments.put(0, bytemuck::bytes_of(args));
        arguments
    }

    /// Puts some bytes of a struct in their place.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        let all = &mut bytemuck::cast_slice_mut(&mut self.words)[..self.size];
        all[at..][..bytes.len()].copy_from_slice(bytes);
    }

    /// The struct.
    pub fn data(&self) -> *const c_void {
        self.words.as_ptr().cast()
    }

    /// The same as bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.size]
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

/// A kernel to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Which.
    pub kernel: Kernel,
    /// By how many threads.
    pub grid: Grid,
    /// On what.
    pub args: Arguments,
}

/// Kernels that a device keeps, to begin all of them at once: see [`Device::graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Graph(pub u64);

/// Why a device cannot be used, or can be no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no driver library.
    #[error(
        "no CUDA driver: none of {looked_for} was found; install the NVIDIA driver, or run with --device cpu"
    )]
    NoDriver {
        /// Names of the library.
        looked_for: String,
    },
    /// The driver knows no device.
    #[error(
        "no CUDA device: the driver ({version}) reports none; see whether nvidia-smi lists one and CUDA_VISIBLE_DEVICES hides it, or run with --device cpu"
    )]
    NoDevice {
        /// Of the driver.
        version: String,
    },
    /// The driver does not start.
    #[error("the CUDA driver does not start: {code} ({text}); {advice}")]
    Start {
        /// The driver's number.
        code: u32,
        /// What it means.
        text: String,
        /// What to do.
        advice: &'static str,
    },
    /// The driver is older than what kernels are compiled for.
    #[error(
        "the CUDA driver is too old: it supports CUDA {found}, {needed} or later is needed; update the NVIDIA driver"
    )]
    OldDriver {
        /// Of the driver.
        found: String,
        /// The least that will do.
        needed: String,
    },
    /// No device has that number.
    #[error("no CUDA device {index}: there are {count}, counted from 0")]
    NoSuchDevice {
        /// What was asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The device is older than what kernels are written for.
    #[error("{name} has compute capability {found}, 8.0 or later is needed; run with --device cpu")]
    OldDevice {
        /// Of the device.
        name: String,
        /// What it has.
        found: String,
    },
    /// Kernels cannot be compiled.
    #[error(
        "no compiler for CUDA kernels: none of {looked_for} was found; install the CUDA toolkit's NVRTC, for example the package nvidia-cuda-nvrtc, and put its folder on LD_LIBRARY_PATH"
    )]
    NoCompiler {
        /// Names of the library.
        looked_for: String,
    },
    /// The compiler does not know the device.
    #[error("NVRTC {version} cannot compile for {arch}: {advice}")]
    OtherCompiler {
        /// Of the compiler.
        version: String,
        /// The device's architecture.
        arch: String,
        /// What to do.
        advice: String,
    },
    /// A kernel does not compile.
    #[error("{unit} does not compile: {log}")]
    Compile {
        /// Which.
        unit: String,
        /// What the compiler says.
        log: String,
    },
    /// Memory ran out.
    #[error(
        "out of device memory: {asked} bytes were asked for, {free} are free; take a smaller context or batch, a smaller model, or --device cpu"
    )]
    OutOfMemory {
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The model has more of something than kernels are written for.
    #[error(
        "CUDA kernels are written for at most {most} {what}, and this model has {found}; run with --device cpu"
    )]
    TooLarge {
        /// What is counted.
        what: &'static str,
        /// The most there can be.
        most: usize,
        /// How many there are.
        found: usize,
    },
    /// Anything else; the device may be lost.
    #[error(
        "the CUDA device failed in {call}: {code} ({text}); the results since are lost, run again"
    )]
    Failed {
        /// The call that showed it.
        call: &'static str,
        /// The driver's number.
        code: u32,
        /// What it means.
        text: String,
    },
}

/// A device. Addresses are those of [`Device::allocate`] and places behind them.
pub trait Device: Send + Sync + 'static {
    /// Which it is, for logs and reports: `cuda:0 (NVIDIA H100, sm_90)`.
    fn name(&self) -> String;

    /// Bytes that could still be allocated; `None` where nothing tells.
    fn free_bytes(&self) -> Option<u64>;

    /// Memory of at least so many bytes, at a multiple of 256 and up to another: kernels read whole
    /// pieces of it.
    ///
    /// # Errors
    /// There is not so much.
    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError>;

    /// Gives memory back.
    ///
    /// # Safety
    /// It was allocated here, and nothing that is asked for later uses it.
    unsafe fn free(&self, address: Address);

    /// Copies from the host; `src` may be changed as soon as this returns.
    ///
    /// # Safety
    /// The bytes lie within allocated memory.
    ///
    /// # Errors
    /// The device failed, now or in something asked before.
    unsafe fn write(&self, src: &[u8], to: Address) -> Result<(), DeviceError>;

    /// Copies to the host, when everything asked for before is done.
    ///
    /// # Safety
    /// The bytes lie within allocated memory.
    ///
    /// # Errors
    /// The device failed, now or in something asked before.
    unsafe fn read(&self, from: Address, dst: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes a word again and again.
    ///
    /// # Safety
    /// The words lie within allocated memory.
    ///
    /// # Errors
    /// The device failed, now or in something asked before.
    unsafe fn fill(&self, to: Address, word: u32, n_words: usize) -> Result<(), DeviceError>;

    /// Runs a kernel.
    ///
    /// # Safety
    /// The arguments are the struct that the kernel takes, and what its addresses point to is as
    /// long as the kernel expects.
    ///
    /// # Errors
    /// The kernel does not compile, or the device failed, now or in something asked before.
    unsafe fn launch(&self, launch: &Launch) -> Result<(), DeviceError>;

    /// Keeps kernels, to run one after another as often as is wanted.
    ///
    /// # Safety
    /// That of [`Device::launch`], for each whenever they are run.
    ///
    /// # Errors
    /// The device cannot do that, or a kernel does not compile, or the device failed in something
    /// asked before.
    unsafe fn graph(&self, launches: &[Launch]) -> Result<Graph, DeviceError>;

    /// Gives one of the kernels of a graph other arguments, from the next run on.
    ///
    /// # Safety
    /// That of [`Device::launch`]; it is the same kernel, with the same grid.
    ///
    /// # Errors
    /// The device failed, now or in something asked before.
    unsafe fn change(&self, graph: Graph, index: usize, launch: &Launch)
    -> Result<(), DeviceError>;

    /// Runs the kernels of a graph, one after another.
    ///
    /// # Safety
    /// That of [`Device::launch`], for each.
    ///
    /// # Errors
    /// The device failed, now or in something asked before.
    unsafe fn run(&self, graph: Graph) -> Result<(), DeviceError>;

    /// Lets a graph go, which may still be under way.
    fn forget(&self, graph: Graph);
}

/// Memory of a device, given back when dropped.
pub(super) struct Memory {
    queue: Arc<Queue>,
    address: Address,
    bytes: usize,
}

impl Memory {
    /// Memory that may hold anything; none after a failure, when nothing uses it any more.
    pub(super) fn new(queue: &Arc<Queue>, bytes: usize) -> Memory {
        Memory {
            address: queue.allocate(bytes).unwrap_or(Address::NONE),
            queue: Arc::clone(queue),
            bytes,
        }
    }

    pub(super) fn address(&self) -> Address {
        self.address
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != Address::NONE {
            // SAFETY: allocated by `new`, and whoever asks for something later has no address of it.
            unsafe { self.queue.free(self.address) };
        }
    }
}
