//! NVIDIA devices as a [`Backend`].
//!
//! Operations are twins of those in `kernels/src/cpu`: for each a `.cu` with the kernels and a `.rs`
//! that checks shapes and launches them. Kernels add in the processor's order and round as it does,
//! so both give the same bits. Everything stays on the device; the host waits for it only in
//! `download`.
//!
//! A device may fail at any time, and operations have no errors: after the first failure nothing
//! more is done, downloads give NaN, and [`Backend::failure`] says what happened.

mod attention;
mod cache;
mod causal_conv;
mod compile;
pub mod device;
mod driver;
mod elementwise;
mod gated_delta;
mod matmul;
mod memory;
mod moe;
mod norm;
mod rope;
mod rows;
pub mod source;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{
    AttentionInput, AttentionShape, Backend, CacheShape, Columns, DeltaInput, DeltaShape,
    ExpertInput, Failure, KeyRows, Rope, Routing, Step, UnsupportedWeight, WeightData,
};
pub use cache::Cache;
pub use compile::{Arch, Build, Compiler};
use device::{Address, Arguments, Device, DeviceError, Grid, Kernel, Memory, Types, Unit};
use driver::Driver;
pub use driver::{Description, DriverConfig, Found, find};
pub use memory::{Buffer, Routes, Weight};
use memory::{Scratch, Tables};

/// A device, and what operations on it share.
pub struct Cuda {
    device: Arc<dyn Device>,
    shared: Mutex<Shared>,
    failure: Mutex<Option<DeviceError>>,
}

/// Memory that operations use one after the other, in the order in which they hold the lock.
struct Shared {
    /// Positions, rows and steps.
    tables: Tables,
    /// Addresses of experts: as many tables as a model has stacks of them, or more.
    experts: Tables,
    scratch: Scratch,
}

/// Tables of positions, rows and steps that are kept.
const TABLES: usize = 64;

/// Tables of experts that are kept.
const EXPERT_TABLES: usize = 1024;

/// A kernel of a file that is compiled once.
const fn kernel(file: &'static str, name: &'static str) -> Kernel {
    let types = Types::None;
    let unit = Unit { file, types };
    Kernel { unit, name }
}

impl Cuda {
    /// Opens a device of the driver's.
    ///
    /// # Errors
    /// There is no such device, or something that it needs is missing.
    pub fn open(config: DriverConfig) -> Result<Cuda, DeviceError> {
        Ok(Cuda::new(Arc::new(Driver::open(config)?)))
    }

    /// Computes on a device.
    pub fn new(device: Arc<dyn Device>) -> Cuda {
        let shared = Shared {
            tables: Tables::new(Arc::clone(&device), TABLES),
            experts: Tables::new(Arc::clone(&device), EXPERT_TABLES),
            scratch: Scratch::new(Arc::clone(&device)),
        };
        Cuda {
            device,
            shared: Mutex::new(shared),
            failure: Mutex::new(None),
        }
    }

    /// Asks the device for something, unless it has failed before.
    fn ask<T>(&self, what: impl FnOnce(&Arc<dyn Device>) -> Result<T, DeviceError>) -> Option<T> {
        let mut failure = lock(&self.failure);
        if failure.is_some() {
            return None;
        }
        what(&self.device)
            .map_err(|error| *failure = Some(error))
            .ok()
    }

    /// Memory of so many bytes.
    fn memory(&self, bytes: usize) -> Memory {
        self.ask(|device| Memory::new(device, bytes))
            .unwrap_or_else(|| Memory::none(&self.device))
    }

    /// Memory of so many words, filled with one.
    fn filled(&self, word: u32, n_words: usize) -> Memory {
        let memory = self.memory(n_words * size_of::<u32>());
        if n_words == 0 {
            return memory;
        }
        // SAFETY: the memory is that long.
        self.ask(|device| unsafe { device.fill(memory.address(), word, n_words) });
        memory
    }

    /// Runs a kernel, if there is anything to do.
    ///
    /// # Safety
    /// `args` is the struct that the kernel takes, and its addresses are good for what the kernel
    /// does with them in this grid.
    unsafe fn launch<A>(&self, kernel: Kernel, grid: Grid, args: &A) {
        if grid.blocks.contains(&0) {
            return;
        }
        let args = Arguments {
            data: std::ptr::from_ref(args).cast(),
            size: size_of::<A>(),
        };
        // SAFETY: the caller's promise.
        self.ask(|device| unsafe { device.launch(kernel, grid, args) });
    }

    /// What operations share, until the lock is dropped: it must outlive the launch.
    fn shared(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }

    /// Where a table lies, as long as `shared` is locked.
    fn table(&self, shared: &mut Shared, words: &[u32]) -> Address {
        self.ask(|_| shared.tables.place(words))
            .unwrap_or(Address::NONE)
    }

    /// Where so many bytes lie that nothing else uses, as long as `shared` is locked.
    fn scratch(&self, shared: &mut Shared, bytes: usize) -> Address {
        self.ask(|_| shared.scratch.place(bytes))
            .unwrap_or(Address::NONE)
    }
}

/// A lock that a panic elsewhere does not break: what it guards is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A count as kernels take it.
fn count(n: usize) -> u32 {
    u32::try_from(n).expect("dimensions are below 2^32")
}

impl Backend for Cuda {
    type Buffer = Buffer;
    type Weight = Weight;
    type Cache = Cache;
    type Routes = Routes;

    fn name(&self) -> String {
        self.device.name()
    }

    fn failure(&self) -> Option<Failure> {
        let failure = lock(&self.failure);
        failure.as_ref().map(|error| Failure {
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
        self.device.free_bytes()
    }

    fn weight_room(&self, file_bytes: u64) -> u64 {
        file_bytes
    }

    fn buffer(&self, len: usize) -> Buffer {
        let memory = self.filled(f32::NAN.to_bits(), len);
        Buffer { memory, len }
    }

    fn cache(&self, shape: &CacheShape) -> Cache {
        Cache::new(self, shape)
    }

    fn routes(&self, n: usize, n_used: usize) -> Routes {
        Routes::new(self, n, n_used)
    }

    fn upload(&self, src: &[f32], dst: &mut Buffer, at: usize) {
        let to = dst.at(at, src.len());
        // SAFETY: every f32 is four bytes, and the buffer holds that many elements from there on.
        self.ask(|device| unsafe { device.write(src.align_to().1, to) });
    }

    fn download(&self, src: &Buffer, at: usize, dst: &mut [f32]) {
        let from = src.at(at, dst.len());
        // SAFETY: every four bytes are an f32, and the buffer holds that many elements from there on.
        let read = self.ask(|device| unsafe { device.read(from, dst.align_to_mut().1) });
        if read.is_none() {
            dst.fill(f32::NAN);
        }
    }

    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut Buffer) {
        rows::embed(self, table, tokens, out);
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
        elementwise::binary(self, "add", x, y, len);
    }

    fn add_bias(&self, x: &mut Buffer, bias: &Weight, n: usize) {
        elementwise::add_bias(self, x, bias, n);
    }

    fn silu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::binary(self, "silu_mul", x, y, len);
    }

    fn gelu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::binary(self, "gelu_mul", x, y, len);
    }

    fn clamped_silu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::binary(self, "clamped_silu_mul", x, y, len);
    }

    fn scale(&self, x: &mut Buffer, factor: f32, len: usize) {
        elementwise::with_number(self, "scale", x, factor, len);
    }

    fn softcap(&self, x: &mut Buffer, cap: f32, len: usize) {
        elementwise::with_number(self, "softcap", x, cap, len);
    }

    fn sigmoid_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        elementwise::binary(self, "sigmoid_mul", x, y, len);
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
        let (from, to) = (src.at(from * dim, n * dim), dst.at(to * dim, n * dim));
        let bytes = n * dim * size_of::<f32>();
        // SAFETY: both buffers hold that many elements from there on, and they are two.
        self.ask(|device| unsafe { device.copy(from, to, bytes) });
    }

    fn copy_within(&self, buffer: &mut Buffer, from: usize, to: usize, len: usize) {
        let (from, to) = (buffer.at(from, len), buffer.at(to, len));
        let bytes = len * size_of::<f32>();
        // SAFETY: the buffer holds that many elements from both on, and they are others.
        self.ask(|device| unsafe { device.copy(from, to, bytes) });
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
