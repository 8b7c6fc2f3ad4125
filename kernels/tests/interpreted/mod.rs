//! An emulated CUDA device that interprets PTX.
//!
//! It runs the prebuilt PTX, or the output of an NVRTC compiler, and checks every memory access: bounds,
//! alignment, uninitialised reads and data races. It verifies the code that NVRTC generates, as far as PTX
//! ISA 8.0 is implemented correctly. It does not verify timing, or how the driver compiles PTX.

mod arithmetic;
mod block;
mod faults;
mod memory;
mod program;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use kernels::cuda::device::{Address, Device, DeviceError, Graph, Grid, Launch, Unit};
use kernels::cuda::prebuilt_ptx::PrebuiltPtx;
use kernels::cuda::{Arch, Compiler, Cuda, Launching};

use block::{Block, Given, ordered};
use memory::{Clock, Global};
use program::{Program, parse};

use crate::emulated::Order;

/// Kernels by name.
type Programs = HashMap<String, Program>;

/// PTX of all units, and the parsed programs of those that have been used.
pub(crate) struct Texts {
    of_unit: Box<dyn Fn(Unit) -> Vec<u8> + Send + Sync>,
    parsed: Mutex<HashMap<Unit, Arc<Programs>>>,
}

impl Texts {
    /// The prebuilt PTX.
    pub(crate) fn prebuilt() -> Arc<Texts> {
        static FOUND: OnceLock<Arc<Texts>> = OnceLock::new();
        let find = || {
            let prebuilt = PrebuiltPtx::find().expect("PTX of these sources");
            Texts::new(move |unit| prebuilt.ptx(unit).to_vec())
        };
        Arc::clone(FOUND.get_or_init(find))
    }

    /// PTX compiled for an architecture.
    pub(crate) fn of(compiler: Compiler, arch: Arch) -> Arc<Texts> {
        Texts::new(move |unit| compiler.ptx(unit, arch).expect("kernels that compile"))
    }

    fn new(of_unit: impl Fn(Unit) -> Vec<u8> + Send + Sync + 'static) -> Arc<Texts> {
        Arc::new(Texts {
            of_unit: Box::new(of_unit),
            parsed: Mutex::default(),
        })
    }

    fn programs(&self, unit: Unit) -> Arc<Programs> {
        let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        let programs = parsed.entry(unit).or_insert_with(|| {
            let text = (self.of_unit)(unit);
            let text = str::from_utf8(&text).expect("a text");
            Arc::new(parse(text.trim_end_matches('\0')))
        });
        Arc::clone(programs)
    }
}

/// The emulated device.
pub(crate) struct Interpreted {
    order: Order,
    texts: Arc<Texts>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    memory: Global,
    /// Number of blocks that have run.
    n_run: u64,
}

impl Interpreted {
    /// Creates a backend on an emulated device.
    pub(crate) fn cuda(order: Order, texts: Arc<Texts>) -> Cuda {
        let device = Interpreted {
            order,
            texts,
            state: Mutex::default(),
        };
        Cuda::new(Arc::new(device), Launching::OneByOne)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is locked")
    }
}

impl State {
    /// Runs a kernel whose blocks have that many bytes of dynamic shared memory; returns the fault and the
    /// block it occurred in.
    fn run(
        &mut self,
        program: &Program,
        grid: Grid,
        params: &[u8],
        shared_bytes: usize,
        order: Order,
    ) -> Result<(), String> {
        let [x, y, z] = grid.blocks.map(|n| n as usize);
        let n_block = x * y * z;
        if params.len() != program.param_bytes {
            return Err("the struct of arguments has another size".to_owned());
        }
        if grid.threads == 0 || grid.threads > program.most_threads {
            return Err("more threads than the kernel says, or none".to_owned());
        }
        if grid.blocks[1] > 65535 || grid.blocks[2] > 65535 {
            return Err("more blocks than there can be along y or z".to_owned());
        }
        if self.n_run + n_block as u64 > Clock::MOST_RUNS {
            self.memory.settle();
            self.n_run = 0;
        }
        let given = Given {
            program,
            params,
            n_thread: grid.threads as usize,
            shared_bytes: program.shared_bytes + shared_bytes,
            order,
            launch: self.n_run + 1,
        };
        for block in ordered(order, n_block) {
            self.n_run += 1;
            let place = [block % x, block / x % y, block / x / y].map(|at| at as u32);
            let block = Block::new(&given, &mut self.memory, place, self.n_run);
            block
                .run()
                .map_err(|wrong| format!("block {place:?}, {wrong}"))?;
        }
        Ok(())
    }
}

impl Device for Interpreted {
    fn name(&self) -> String {
        format!("cuda (PTX interpreted, {:?} order)", self.order)
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        Ok(Address(self.state().memory.allocate(bytes)))
    }

    unsafe fn free(&self, address: Address) {
        self.state().memory.free(address.0);
    }

    unsafe fn write(&self, src: &[u8], to: Address) -> Result<(), DeviceError> {
        let mut state = self.state();
        let (tracked, at) = state.memory.find(to.0).expect("memory that is there");
        tracked.put(at, src);
        Ok(())
    }

    unsafe fn read(&self, from: Address, dst: &mut [u8]) -> Result<(), DeviceError> {
        let mut state = self.state();
        let (tracked, at) = state.memory.find(from.0).expect("memory that is there");
        let found = tracked.get(at, dst.len());
        dst.copy_from_slice(found.ok_or_else(|| DeviceError::Failed {
            call: "reading",
            code: 0,
            text: "nobody has written what is read".to_owned(),
        })?);
        Ok(())
    }

    unsafe fn fill(&self, to: Address, word: u32, n_words: usize) -> Result<(), DeviceError> {
        let bytes = word.to_le_bytes().repeat(n_words);
        // SAFETY: the caller's promise.
        unsafe { self.write(&bytes, to) }
    }

    unsafe fn launch(&self, launch: &Launch) -> Result<(), DeviceError> {
        let Launch { kernel, grid, args } = *launch;
        let programs = self.texts.programs(kernel.unit);
        let shared_bytes = kernel.unit.shared_bytes(kernel.name) as usize;
        let program = &programs[kernel.name];
        let mut state = self.state();
        let done = state.run(program, grid, args.bytes(), shared_bytes, self.order);
        done.map_err(|wrong| DeviceError::Failed {
            call: kernel.name,
            code: 0,
            text: format!("{}: {wrong}", kernel.unit),
        })
    }

    unsafe fn graph(&self, _: &[Launch]) -> Result<Graph, DeviceError> {
        unreachable!("kernels are launched one by one")
    }

    unsafe fn change(&self, _: Graph, _: usize, _: &Launch) -> Result<(), DeviceError> {
        unreachable!("kernels are launched one by one")
    }

    unsafe fn run(&self, _: Graph) -> Result<(), DeviceError> {
        unreachable!("kernels are launched one by one")
    }

    fn forget(&self, _: Graph) {}
}
