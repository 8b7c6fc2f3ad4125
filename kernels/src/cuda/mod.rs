//! The [`Backend`] for NVIDIA devices.
//!
//! Operations are in `kernels/src/ops`: each has a `.cu` file with the kernels and a `cuda.rs` that checks
//! shapes and launches them. Kernels add in the CPU's order and round in the same way, so both
//! give the same bits. All data stays on the device; the host waits only in `download`.
//!
//! A device may fail at any time, and operations return no errors: after the first failure nothing more is
//! executed, downloads give NaN, and [`Backend::failure`] returns the failure.

pub(crate) mod activation;
mod compile;
pub mod device;
mod driver;
mod graphs;
pub(crate) mod memory;
pub mod prebuilt_ptx;
pub(crate) mod queue;
pub mod source;
pub(crate) mod steps;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::NoUninit;

use crate::backend::{Backend, Failure, Storage, UnsupportedWeight, WeightData};
pub use crate::ops::cache::cuda::Cache;
pub use crate::ops::choose::cuda::Chosen;
use crate::ops::norm::cuda::Sum;
use activation::Quants;
pub use compile::{Arch, Build, Compiler};
use device::{Address, Arguments, Device, DeviceError, Grid, Kernel, Launch, Memory, Types, Unit};
use driver::Driver;
pub use driver::{Description, DriverConfig, Found, find};
use memory::{ArrayCache, Scratch};
pub use memory::{Buffer, Routes, Weight};
pub use queue::Launching;
use queue::{MAX_JOINED, Queue, Ticket, Touched};

/// A device and the state shared by its operations.
pub struct Cuda {
    pub(crate) queue: Arc<Queue>,
    shared: Mutex<Shared>,
}

/// Scratch memory that operations use one after another while they hold the lock, and state that one
/// operation leaves for the next.
pub(crate) struct Shared {
    pub(crate) arrays: ArrayCache,
    pub(crate) scratch: Scratch,
    pub(crate) quants: Quants,
    pub(crate) sum: Option<Sum>,
}

/// A kernel of a file that is compiled once.
pub(crate) const fn kernel(file: &'static str, name: &'static str) -> Kernel {
    let types = Types::None;
    let unit = Unit { file, types };
    Kernel { unit, name }
}

impl Cuda {
    /// Opens a device through NVIDIA's driver.
    ///
    /// # Errors
    /// The device does not exist, or a library that it needs is missing.
    pub fn open(config: DriverConfig, launching: Launching) -> Result<Cuda, DeviceError> {
        Ok(Cuda::new(Arc::new(Driver::open(config)?), launching))
    }

    /// Creates the backend on a device.
    pub fn new(device: Arc<dyn Device>, launching: Launching) -> Cuda {
        let queue = Arc::new(Queue::new(device, launching));
        let shared = Shared {
            arrays: ArrayCache::new(Arc::clone(&queue)),
            scratch: Scratch::new(Arc::clone(&queue)),
            quants: Quants::new(Arc::clone(&queue)),
            sum: None,
        };
        Cuda {
            queue,
            shared: Mutex::new(shared),
        }
    }

    /// Allocates memory.
    pub(crate) fn memory(&self, bytes: usize) -> Memory {
        Memory::new(&self.queue, bytes)
    }

    /// Allocates memory and fills it with a word.
    pub(crate) fn filled(&self, word: u32, n_words: usize) -> Memory {
        let memory = self.memory(n_words * size_of::<u32>());
        if n_words > 0 {
            // SAFETY: the memory is that long.
            unsafe { self.queue.fill(memory.address(), word, n_words) };
        }
        memory
    }

    /// Launches a kernel, unless the grid is empty.
    ///
    /// # Safety
    /// `args` is the struct that the kernel takes, and its addresses are valid for what the kernel accesses
    /// in this grid.
    pub(crate) unsafe fn launch<A: NoUninit>(
        &self,
        kernel: Kernel,
        grid: Grid,
        args: &A,
    ) -> Option<Ticket> {
        if grid.blocks.contains(&0) {
            return None;
        }
        let args = Arguments::of(args);
        // SAFETY: the caller's promise.
        unsafe { self.queue.launch(Launch { kernel, grid, args }) }
    }

    /// Launches a kernel that takes several structs, joined with earlier launches if possible.
    ///
    /// # Safety
    /// As for `launch`. Also, of memory that changes, the kernel accesses only `touched`.
    pub(crate) unsafe fn launch_joined<A: NoUninit>(
        &self,
        kernel: Kernel,
        grid: Grid,
        args: &A,
        touched: Touched,
    ) -> Option<Ticket> {
        if grid.blocks.contains(&0) {
            return None;
        }
        let args = Arguments::with_room(args, MAX_JOINED);
        let launch = Launch { kernel, grid, args };
        // SAFETY: the caller's promise.
        unsafe { self.queue.launch_joined(launch, touched) }
    }

    /// Locks the shared state. The lock must be held until the kernel is launched.
    pub(crate) fn shared(&self) -> MutexGuard<'_, Shared> {
        let shared = lock(&self.shared);
        // While the lock is held, no operation uses the address of a table.
        self.queue.clear_tables();
        shared
    }

    /// Returns the address of a table, valid while `shared` is locked.
    pub(crate) fn table(&self, _shared: &mut Shared, words: &[u32]) -> Address {
        self.queue.table(words)
    }

    /// Returns true if `found` is within the limit of the kernels, otherwise records a failure.
    pub(crate) fn has_room(&self, what: &'static str, found: usize, most: usize) -> bool {
        if found > most {
            (self.queue).refuse(DeviceError::TooLarge { what, most, found });
        }
        found <= most
    }

    /// Returns the address of scratch memory, valid while `shared` is locked.
    pub(crate) fn scratch(&self, shared: &mut Shared, bytes: usize) -> Address {
        shared.scratch.place(bytes)
    }
}

/// Locks a mutex, ignoring poisoning: the state it guards is always consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts a count to the type that kernels take.
pub(crate) fn count(n: usize) -> u32 {
    u32::try_from(n).expect("dimensions are below 2^32")
}

impl Storage for Cuda {
    type Buffer = Buffer;
    type Weight = Weight;
    type Cache = Cache;
    type Routes = Routes;
    type Chosen = Chosen;
}

impl Backend for Cuda {
    fn name(&self) -> String {
        self.queue.device().name()
    }

    fn failure(&self) -> Option<Failure> {
        self.queue.failure().map(|error| Failure {
            backend: self.name(),
            reason: error.to_string(),
        })
    }

    fn load(&self, data: WeightData) -> Result<Weight, UnsupportedWeight> {
        Weight::new(self, &data).ok_or_else(|| UnsupportedWeight {
            backend: self.name(),
            dtype: data.dtype,
        })
    }

    fn weight_bytes(&self, weight: &Weight) -> usize {
        weight.n_rows * weight.row_bytes
    }

    fn free_bytes(&self) -> Option<u64> {
        self.queue.device().free_bytes()
    }

    fn weight_room(&self, file_bytes: u64) -> u64 {
        file_bytes
    }

    fn buffer(&self, len: usize) -> Buffer {
        let memory = self.filled(f32::NAN.to_bits(), len);
        Buffer::new(memory, len)
    }

    fn upload(&self, src: &[f32], dst: &mut Buffer, at: usize) {
        let to = dst.at_mut(at, src.len());
        // SAFETY: the buffer holds that many elements from there on.
        unsafe { self.queue.write(bytemuck::cast_slice(src), to) };
    }

    fn download(&self, src: &Buffer, at: usize, dst: &mut [f32]) {
        let from = src.at(at, dst.len());
        // While the lock is held, no operation uses the address of a table.
        let _shared = self.shared();
        // SAFETY: the buffer holds that many elements from there on.
        let read = unsafe { self.queue.read(from, bytemuck::cast_slice_mut(dst)) };
        if read.is_none() {
            dst.fill(f32::NAN);
        }
    }
}
