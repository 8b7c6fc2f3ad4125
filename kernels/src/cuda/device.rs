//! A device that runs kernels: what [`Cuda`](super::Cuda) needs of one, and nothing else.
//!
//! Everything that is asked of a device happens in the order in which it was asked; only reading
//! waits. Knows neither operations nor shapes.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use schemas::gguf::DType;

use crate::backend::CacheType;

/// A place in the device's memory; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks along x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block, along x.
    pub threads: u32,
}

impl Grid {
    /// One thread for each of `len` elements.
    pub(super) fn elements(len: usize, threads: u32) -> Grid {
        let blocks = u32::try_from(len.div_ceil(threads as usize));
        Grid {
            blocks: [blocks.expect("buffers are smaller"), 1, 1],
            threads,
        }
    }
}

/// The arguments of a kernel: the one struct that it takes.
#[derive(Clone, Copy, Debug)]
pub struct Arguments {
    /// The struct.
    pub data: *const c_void,
    /// Its size in bytes.
    pub size: usize,
}

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

    /// Memory of at least so many bytes, in whole words, at a multiple of 256.
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

    /// Copies within the device.
    ///
    /// # Safety
    /// Both ranges lie within allocated memory and do not overlap.
    ///
    /// # Errors
    /// The device failed, now or in something asked before.
    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError>;

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
    unsafe fn launch(&self, kernel: Kernel, grid: Grid, args: Arguments)
    -> Result<(), DeviceError>;
}

/// Memory of a device, given back when dropped.
pub(super) struct Memory {
    device: Arc<dyn Device>,
    address: Address,
    bytes: usize,
}

impl Memory {
    pub(super) fn new(device: &Arc<dyn Device>, bytes: usize) -> Result<Memory, DeviceError> {
        Ok(Memory {
            address: device.allocate(bytes)?,
            device: Arc::clone(device),
            bytes,
        })
    }

    /// Where there was none to be had: nothing may use it.
    pub(super) fn none(device: &Arc<dyn Device>) -> Memory {
        Memory {
            address: Address::NONE,
            device: Arc::clone(device),
            bytes: 0,
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
            unsafe { self.device.free(self.address) };
        }
    }
}
