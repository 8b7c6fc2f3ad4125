//! The device interface that [`Cuda`](super::Cuda) needs.
//!
//! A device executes requests in order; only reading waits for them. It knows neither operations nor
//! shapes.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use bytemuck::NoUninit;
use schemas::gguf::DType;

use super::queue::Queue;
use crate::backend::CacheType;

/// An address in device memory; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, NoUninit)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// A null pointer for kernels.
    pub const NONE: Address = Address(0);

    /// Returns the address `bytes` later.
    pub(crate) fn offset(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}

/// A source file of kernels, compiled as a whole for some types: see [`super::source`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// Name of the file, without its extension.
    pub file: &'static str,
    /// Types that it is compiled for.
    pub types: Types,
}

/// Element types that replace macros of a file; the file is compiled once per combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Types {
    /// No types: the file is compiled once.
    None,
    /// The macro `WEIGHT`.
    Weight(DType),
    /// The macro `CELLS`, the type of a cache.
    Cells(DType),
    /// The macros `KEYS` and `VALUES`, the types of two caches.
    Caches(DType, DType),
}

impl Unit {
    /// A unit compiled for a weight type.
    pub(crate) fn of_weight(file: &'static str, weight: DType) -> Unit {
        let types = Types::Weight(weight);
        Unit { file, types }
    }

    /// A unit compiled for a cache type.
    pub(crate) fn of_cache(file: &'static str, element: CacheType) -> Unit {
        let types = Types::Cells(element.dtype());
        Unit { file, types }
    }

    /// A unit compiled for types of keys and values.
    pub(crate) fn of_caches(file: &'static str, keys: CacheType, values: CacheType) -> Unit {
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

/// A kernel by unit and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Its unit.
    pub unit: Unit,
    /// Its name.
    pub name: &'static str,
}

/// Launch dimensions of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Blocks along x, y and z.
    pub blocks: [u32; 3],
    /// Threads per block, along x.
    pub threads: u32,
}

impl Grid {
    pub(crate) fn new(blocks: [u32; 3], threads: u32) -> Grid {
        Grid { blocks, threads }
    }

    /// A grid with one thread for each of `len` elements.
    pub(crate) fn elements(len: usize, threads: u32) -> Grid {
        let blocks = u32::try_from(len.div_ceil(threads as usize));
        Grid::new([blocks.expect("buffers are smaller"), 1, 1], threads)
    }
}

/// Arguments of a kernel: a copy of the single struct that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    words: [u64; Arguments::MOST_WORDS],
    size: usize,
}

impl Arguments {
    const MOST_WORDS: usize = 36;

    /// Copies a struct whose size is a multiple of a word.
    pub(crate) fn of<A: NoUninit>(args: &A) -> Arguments {
        Arguments::with_room(args, 1)
    }

    /// Copies a struct as the first of `n`; the others are zeros.
    pub(crate) fn with_room<A: NoUninit>(args: &A, n: usize) -> Arguments {
        let mut arguments = Arguments {
            words: [0; Arguments::MOST_WORDS],
            size: n * size_of::<A>(),
        };
        arguments.put(0, bytemuck::bytes_of(args));
        arguments
    }

    /// Overwrites bytes at an offset.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        let all = &mut bytemuck::cast_slice_mut(&mut self.words)[..self.size];
        all[at..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Returns a pointer to the struct.
    pub fn data(&self) -> *const c_void {
        self.words.as_ptr().cast()
    }

    /// Returns the bytes of the struct.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.size]
    }

    /// Returns its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

/// A kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// Launch dimensions.
    pub grid: Grid,
    /// Arguments.
    pub args: Arguments,
}

/// A sequence of kernels that a device keeps and launches as one: see [`Device::graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Graph(pub u64);

/// A reason why a device cannot be used, or cannot be used any longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The driver library was not found.
    #[error(
        "no CUDA driver: none of {looked_for} was found; install the NVIDIA driver, or run with --device cpu"
    )]
    NoDriver {
        /// Names of the library.
        looked_for: String,
    },
    /// The driver reports no device.
    #[error(
        "no CUDA device: the driver ({version}) reports none; see whether nvidia-smi lists one and CUDA_VISIBLE_DEVICES hides it, or run with --device cpu"
    )]
    NoDevice {
        /// Version of the driver.
        version: String,
    },
    /// The driver fails to initialise.
    #[error("the CUDA driver does not start: {code} ({text}); {advice}")]
    Start {
        /// The driver's error code.
        code: u32,
        /// Meaning of the code.
        text: String,
        /// Advice to the user.
        advice: &'static str,
    },
    /// The driver is too old for the kernels.
    #[error(
        "the CUDA driver is too old: it supports CUDA {found}, {needed} or later is needed; update the NVIDIA driver"
    )]
    OldDriver {
        /// CUDA version of the driver.
        found: String,
        /// Minimum version.
        needed: String,
    },
    /// No device has the requested index.
    #[error("no CUDA device {index}: there are {count}, counted from 0")]
    NoSuchDevice {
        /// The requested index.
        index: usize,
        /// Number of devices.
        count: usize,
    },
    /// The device is too old for the kernels.
    #[error("{name} has compute capability {found}, 8.0 or later is needed; run with --device cpu")]
    OldDevice {
        /// Name of the device.
        name: String,
        /// Its compute capability.
        found: String,
    },
    /// No compiler for kernels was found.
    #[error(
        "no compiler for CUDA kernels: none of {looked_for} was found; install the CUDA toolkit's NVRTC, for example the package nvidia-cuda-nvrtc, and put its folder on LD_LIBRARY_PATH"
    )]
    NoCompiler {
        /// Names of the library.
        looked_for: String,
    },
    /// The compiler does not support the device.
    #[error("NVRTC {version} cannot compile for {arch}: {advice}")]
    OtherCompiler {
        /// Version of the compiler.
        version: String,
        /// The device's architecture.
        arch: String,
        /// Advice to the user.
        advice: String,
    },
    /// A kernel failed to compile.
    #[error("{unit} does not compile: {log}")]
    Compile {
        /// The unit.
        unit: String,
        /// The compiler's log.
        log: String,
    },
    /// Device memory is exhausted.
    #[error(
        "out of device memory: {asked} bytes requested, {free} free; use a smaller context, fewer sequences, a smaller model, or --device cpu"
    )]
    OutOfMemory {
        /// Requested bytes.
        asked: u64,
        /// Free bytes.
        free: u64,
    },
    /// The model exceeds a limit of the kernels.
    #[error(
        "CUDA kernels are written for at most {most} {what}, and this model has {found}; run with --device cpu"
    )]
    TooLarge {
        /// The quantity that is limited.
        what: &'static str,
        /// The limit.
        most: usize,
        /// The model's value.
        found: usize,
    },
    /// Any other failure; the device may be lost.
    #[error(
        "the CUDA device failed in {call}: {code} ({text}); the results since are lost, run again"
    )]
    Failed {
        /// The call that reported it.
        call: &'static str,
        /// The driver's error code.
        code: u32,
        /// Meaning of the code.
        text: String,
    },
}

/// A device. Addresses are those returned by [`Device::allocate`], or offsets into them.
pub trait Device: Send + Sync + 'static {
    /// Returns a name for logs and reports: `cuda:0 (NVIDIA H100, sm_90)`.
    fn name(&self) -> String;

    /// Bytes that can still be allocated; `None` if unknown.
    fn free_bytes(&self) -> Option<u64>;

    /// Allocates at least `bytes`, aligned to 256 and rounded up to a multiple of 256: kernels read memory
    /// in larger pieces.
    ///
    /// # Errors
    /// Not enough memory is free.
    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError>;

    /// Frees memory.
    ///
    /// # Safety
    /// It was allocated here, and no later request uses it.
    unsafe fn free(&self, address: Address);

    /// Copies from the host. `src` may be reused as soon as this returns.
    ///
    /// # Safety
    /// The bytes lie within allocated memory.
    ///
    /// # Errors
    /// The device failed, in this or an earlier request.
    unsafe fn write(&self, src: &[u8], to: Address) -> Result<(), DeviceError>;

    /// Copies to the host after all earlier requests are complete.
    ///
    /// # Safety
    /// The bytes lie within allocated memory.
    ///
    /// # Errors
    /// The device failed, in this or an earlier request.
    unsafe fn read(&self, from: Address, dst: &mut [u8]) -> Result<(), DeviceError>;

    /// Fills memory with a word.
    ///
    /// # Safety
    /// The words lie within allocated memory.
    ///
    /// # Errors
    /// The device failed, in this or an earlier request.
    unsafe fn fill(&self, to: Address, word: u32, n_words: usize) -> Result<(), DeviceError>;

    /// Launches a kernel.
    ///
    /// # Safety
    /// The arguments are the struct that the kernel takes, and its addresses point to as much memory as the
    /// kernel accesses.
    ///
    /// # Errors
    /// The kernel does not compile, or the device failed, in this or an earlier request.
    unsafe fn launch(&self, launch: &Launch) -> Result<(), DeviceError>;

    /// Creates a graph of kernels that run one after another, any number of times.
    ///
    /// # Safety
    /// The requirements of [`Device::launch`] hold for each kernel whenever the graph runs.
    ///
    /// # Errors
    /// The device does not support graphs, a kernel does not compile, or the device failed in an earlier
    /// request.
    unsafe fn graph(&self, launches: &[Launch]) -> Result<Graph, DeviceError>;

    /// Replaces the arguments of one kernel of a graph, from the next run on.
    ///
    /// # Safety
    /// As for [`Device::launch`]; kernel and grid must not change.
    ///
    /// # Errors
    /// The device failed, in this or an earlier request.
    unsafe fn change(&self, graph: Graph, index: usize, launch: &Launch)
    -> Result<(), DeviceError>;

    /// Launches the kernels of a graph, one after another.
    ///
    /// # Safety
    /// As for [`Device::launch`], for each kernel.
    ///
    /// # Errors
    /// The device failed, in this or an earlier request.
    unsafe fn run(&self, graph: Graph) -> Result<(), DeviceError>;

    /// Releases a graph, which may still be running.
    fn forget(&self, graph: Graph);
}

/// Device memory that is freed when dropped.
pub(crate) struct Memory {
    queue: Arc<Queue>,
    address: Address,
    bytes: usize,
}

impl Memory {
    /// Allocates uninitialised memory; none after a failure, when it is no longer used.
    pub(crate) fn new(queue: &Arc<Queue>, bytes: usize) -> Memory {
        Memory {
            address: queue.allocate(bytes).unwrap_or(Address::NONE),
            queue: Arc::clone(queue),
            bytes,
        }
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != Address::NONE {
            // SAFETY: allocated by `new`, and later requests do not have its address.
            unsafe { self.queue.free(self.address) };
        }
    }
}
