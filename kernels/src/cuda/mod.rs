//! The [`Backend`] for NVIDIA devices.
//!
//! Operations mirror those in `kernels/src/cpu`: each has a `.cu` file with the kernels and a `.rs` file
//! that checks shapes and launches them. Kernels add in the CPU's order and round in the same way, so both
//! give the same bits. All data stays on the device; the host waits only in `download`.
//!
//! A device may fail at any time, and operations return no errors: after the first failure nothing more is
//! executed, downloads give NaN, and [`Backend::failure`] returns the failure.

mod activation;
mod attention;
mod cache;
mod causal_conv;
mod choose;
mod compile;
pub mod device;
mod driver;
mod elementwise;
mod gated_delta;
mod graphs;
mod matmul;
mod memory;
mod moe;
mod norm;
pub mod prebuilt_ptx;
mod queue;
mod rope;
mod rows;
pub mod source;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{
    AttentionInput, AttentionShape, Backend, CacheShape, Columns, DeltaInput, DeltaShape,
    ExpertInput, Failure, KeyRows, Largest, Rope, Routing, Step, UnsupportedWeight, WeightData,
};
use activation::Quants;
use bytemuck::NoUninit;
pub use cache::Cache;
pub use choose::Chosen;
pub use compile::{Arch, Build, Compiler};
use device::{Address, Arguments, Device, DeviceError, Grid, Kernel, Launch, Memory, Types, Unit};
use driver::Driver;
pub use driver::{Description, DriverConfig, Found, find};
pub use memory::{Buffer, Routes, Weight};
use memory::{Kept, Scratch};
use norm::Sum;
pub use queue::Launching;
use queue::{MOST_BESIDE, Queue, Ticket, Touched};

/// A device and the state shared by its operations.
pub struct Cuda {
    queue: Arc<Queue>,
    shared: Mutex<Shared>,
}

/// Scratch memory that operations use one after another while they hold the lock, and state that one
/// operation leaves for the next.
struct Shared {
    kept: Kept,
    scratch: Scratch,
    quants: Quants,
    sum: Option<Sum>,
}

/// A kernel of a file that is compiled once.
const fn kernel(file: &'static str, name: &'static str) -> Kernel {
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
            kept: Kept::new(Arc::clone(&queue)),
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
    fn memory(&self, bytes: usize) -> Memory {
        Memory::new(&self.queue, bytes)
    }

    /// Allocates memory and fills it with a word.
    fn filled(&self, word: u32, n_words: usize) -> Memory {
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
    unsafe fn launch<A: NoUninit>(&self, kernel: Kernel, grid: Grid, args: &A) -> Option<Ticket> {
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
    unsafe fn launch_beside<A: NoUninit>(
        &self,
        kernel: Kernel,
        grid: Grid,
        args: &A,
        touched: Touched,
    ) -> Option<Ticket> {
        if grid.blocks.contains(&0) {
            return None;
        }
        let args = Arguments::with_room(args, MOST_BESIDE);
        let launch = Launch { kernel, grid, args };
        // SAFETY: the caller's promise.
        unsafe { self.queue.launch_beside(launch, touched) }
    }

    /// Locks the shared state. The lock must be held until the kernel is launched.
    fn shared(&self) -> MutexGuard<'_, Shared> {
        let shared = lock(&self.shared);
        // While the lock is held, no operation uses the address of a table.
        self.queue.clear_tables();
        shared
    }

    /// Returns the address of a table, valid while `shared` is locked.
    fn table(&self, _shared: &mut Shared, words: &[u32]) -> Address {
        self.queue.table(words)
    }

    /// Returns true if `found` is within the limit of the kernels, otherwise records a failure.
    fn has_room(&self, what: &'static str, found: usize, most: usize) -> bool {
        if found > most {
            (self.queue).refuse(DeviceError::TooLarge { what, most, found });
        }
        found <= most
    }

    /// Returns the address of scratch memory, valid while `shared` is locked.
    fn scratch(&self, shared: &mut Shared, bytes: usize) -> Address {
        shared.scratch.place(bytes)
    }
}

/// Locks a mutex, ignoring poisoning: the state it guards is always consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts a count to the type that kernels take.
fn count(n: usize) -> u32 {
    u32::try_from(n).expect("dimensions are below 2^32")
}

impl Backend for Cuda {
    type Buffer = Buffer;
    type Weight = Weight;
    type Cache = Cache;
    type Routes = Routes;
    type Chosen = Chosen;

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

    fn cache(&self, shape: &CacheShape) -> Cache {
        Cache::new(self, shape)
    }

    fn routes(&self, n: usize, n_used: usize) -> Routes {
        Routes::new(self, n, n_used)
    }

    fn chosen(&self, n: usize) -> Chosen {
        Chosen::new(self, n)
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

    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut Buffer) {
        rows::embed(self, table, tokens, out);
    }

    fn choose(
        &self,
        x: &Buffer,
        dim: usize,
        names: Option<&[u32]>,
        chosen: &mut Chosen,
        places: Range<usize>,
    ) {
        choose::choose(self, x, dim, names, chosen, places);
    }

    fn download_chosen(&self, chosen: &Chosen, at: usize, dst: &mut [Largest]) {
        choose::download(self, chosen, at, dst);
    }

    fn embed_chosen(&self, table: &Weight, chosen: &Chosen, places: &[usize], out: &mut Buffer) {
        choose::embed(self, table, chosen, places, out);
    }

    fn matmul(&self, w: &Weight, x: &Buffer, n: usize, out: &mut Buffer) {
        matmul::matmul(self, w, x, n, out);
    }

    fn rms_norm(&self, x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer) {
        norm::rms_norm(self, x, w, eps, n, out);
    }

    fn l2_norm(&self, x: &mut Buffer, eps: f32, dim: usize, n: usize) {
        norm::l2_norm(self, x, eps, dim, n);
    }

    fn add(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::add(self, x, y, len);
    }

    fn add_bias(&self, x: &mut Buffer, bias: &Weight, n: usize) {
        elementwise::add_bias(self, x, bias, n);
    }

    fn silu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::gate(self, "silu_mul", x, y, len);
    }

    fn gelu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::gate(self, "gelu_mul", x, y, len);
    }

    fn clamped_silu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::gate(self, "clamped_silu_mul", x, y, len);
    }

    fn scale(&self, x: &mut Buffer, factor: f32, len: usize) {
        elementwise::with_number(self, "scale", x, factor, len);
    }

    fn softcap(&self, x: &mut Buffer, cap: f32, len: usize) {
        elementwise::with_number(self, "softcap", x, cap, len);
    }

    fn sigmoid_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::gate(self, "sigmoid_mul", x, y, len);
    }

    fn sigmoid_mul_rows(&self, x: &mut Buffer, gate: &Buffer, dim: usize, n: usize) {
        elementwise::sigmoid_mul_rows(self, x, gate, dim, n);
    }

    fn route(
        &self,
        logits: &Buffer,
        bias: Option<&Weight>,
        routing: &Routing,
        n: usize,
        routes: &mut Routes,
    ) {
        moe::route(self, logits, bias, routing, n, routes);
    }

    fn choose_all(&self, n: usize, routes: &mut Routes) {
        moe::choose_all(self, n, routes);
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
        matmul::expert_matmul(self, experts, routes, x, input, n, out);
    }

    fn add_expert_bias(&self, x: &mut Buffer, bias: &Weight, routes: &Routes, n: usize) {
        moe::add_expert_bias(self, x, bias, routes, n);
    }

    fn combine_experts(&self, routes: &Routes, x: &Buffer, dim: usize, n: usize, out: &mut Buffer) {
        moe::combine_experts(self, routes, x, dim, n, out);
    }

    fn rope(&self, x: &mut Buffer, rope: &Rope, n_head: usize, positions: &[u32]) {
        rope::rope(self, x, rope, n_head, positions);
    }

    fn store_rows(&self, src: &Buffer, rows: &[usize], cache: &mut Cache) {
        cache::store_rows(self, src, rows, cache);
    }

    fn gather_rows(&self, src: &Buffer, dim: usize, rows: &[usize], dst: &mut Buffer) {
        rows::gather_rows(self, src, dim, rows, dst);
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
        let (from, to) = (src.at(from * dim, n * dim), dst.at_mut(to * dim, n * dim));
        // SAFETY: both buffers hold that many elements from there on, and they are distinct.
        unsafe { self.copy(from, to, n * dim * size_of::<f32>()) };
    }

    fn copy_within(&self, buffer: &mut Buffer, from: usize, to: usize, len: usize) {
        let (from, to) = (buffer.at(from, len), buffer.at_mut(to, len));
        // SAFETY: the buffer holds that many elements at both offsets, and the ranges do not overlap.
        unsafe { self.copy(from, to, len * size_of::<f32>()) };
    }

    fn copy_cached(&self, cache: &mut Cache, from: usize, to: usize, n: usize) {
        cache::copy_rows(self, cache, from, to, n);
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
        rows::copy_columns(self, src, from, dst, to, width, n);
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
