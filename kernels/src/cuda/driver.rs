//! The device interface on NVIDIA's driver. The library is loaded at run time, so the same program runs on
//! machines without it.
//!
//! All work of a device goes through one stream, in order. This module knows neither operations nor shapes.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{
    self, CUdevice_attribute, CUfunction_attribute_enum as CUfunction_attribute, CUresult,
};

use super::compile::{Arch, Cache, Compiler};
use super::device::{Address, Device, DeviceError, Graph, Kernel, Launch, Unit};
use super::prebuilt_ptx::PrebuiltPtx;

/// Minimum CUDA version that a driver must support, as the driver encodes it.
const LEAST_VERSION: i32 = 12_000;

/// Minimum compute capability. The instructions exist in older devices (dp4a, asynchronous barriers), but
/// kernels are not compiled for them.
const LEAST_ARCH: Arch = Arch { major: 8, minor: 0 };

/// Properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Index, from 0.
    pub index: usize,
    /// Product name.
    pub name: String,
    /// Architecture.
    pub arch: Arch,
    /// Total memory.
    pub memory_bytes: u64,
}

/// The driver and its devices.
#[derive(Clone, Debug)]
pub struct Found {
    /// The version of CUDA that the driver supports.
    pub driver: String,
    /// Devices in the driver's order.
    pub devices: Vec<Description>,
}

/// Queries the driver for its devices.
///
/// # Errors
/// The driver is missing, fails to initialise, is too old, or has no device.
pub fn find() -> Result<Found, DeviceError> {
    // SAFETY: loads the library, if there is one, as every call below would.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoDriver {
            looked_for: "libcuda.so, libcuda.so.1".to_owned(),
        });
    }
    result::init().map_err(|DriverError(code)| start_error(code))?;
    let mut version = 0;
    // SAFETY: an integer to write to.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(|DriverError(code)| start_error(code))?;
    let driver = version_name(version);
    if version < LEAST_VERSION {
        return Err(DeviceError::OldDriver {
            found: driver,
            needed: version_name(LEAST_VERSION),
        });
    }
    let failed = |error| failed("counting the devices", error);
    let count = result::device::get_count().map_err(failed)?;
    if count <= 0 {
        return Err(DeviceError::NoDevice { version: driver });
    }
    let devices = (0..count).map(describe).collect::<Result<_, _>>();
    let devices = devices.map_err(failed)?;
    Ok(Found { driver, devices })
}

fn describe(index: i32) -> Result<Description, DriverError> {
    let device = result::device::get(index)?;
    // SAFETY: a device that `get` gave.
    let (major, minor, memory) = unsafe {
        let attribute = |attribute| result::device::get_attribute(device, attribute);
        (
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            result::device::total_mem(device)?,
        )
    };
    Ok(Description {
        index: index as usize,
        name: result::device::get_name(device)?,
        arch: Arch { major, minor },
        memory_bytes: memory as u64,
    })
}

/// Formats a CUDA version: `12080` is 12.8.
fn version_name(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Returns the error, with advice, for a driver that fails to initialise.
fn start_error(code: CUresult) -> DeviceError {
    let advice = match code {
        CUresult::CUDA_ERROR_NO_DEVICE => {
            "it finds no device: see whether nvidia-smi lists one and CUDA_VISIBLE_DEVICES hides it, \
             or run with --device cpu"
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "its library and its kernel module are of different versions: restart the machine, or \
             install the same version of both"
        }
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            "libcuda.so is a stub for linking: put the driver's own first on LD_LIBRARY_PATH"
        }
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "its compatibility package does not support the device: update the NVIDIA driver instead"
        }
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY => {
            "the machine is not ready: see whether its NVIDIA services (nvidia-fabricmanager, \
             nvidia-persistenced) run"
        }
        _ => "see whether nvidia-smi works, or run with --device cpu",
    };
    DeviceError::Start {
        code: code as u32,
        text: format!("{code:?}"),
        advice,
    }
}

fn failed(call: &'static str, DriverError(code): DriverError) -> DeviceError {
    DeviceError::Failed {
        call,
        code: code as u32,
        text: format!("{code:?}"),
    }
}

/// Device index and folder for cached builds of kernels.
#[derive(Clone, Debug)]
pub struct DriverConfig {
    /// Index of the device, from 0.
    pub index: usize,
    /// Folder for builds; `None` to compile in every run.
    pub cache: Option<PathBuf>,
}

/// A device, its stream, and the kernels loaded so far.
pub(crate) struct Driver {
    description: Description,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    images: Images,
    loaded: Mutex<Loaded>,
    graphs: Mutex<Vec<Option<Made>>>,
}

/// Source of kernel images.
enum Images {
    /// NVRTC with its cache of builds.
    Compiler(Compiler, Cache),
    /// The prebuilt kernels in the program.
    Prebuilt(PrebuiltPtx),
}

impl Images {
    /// Selects the source for a device and a driver of that CUDA version: the compiler if it supports both.
    fn find(arch: Arch, driver: &str, cache: Option<PathBuf>) -> Result<Images, DeviceError> {
        let driver_major: i32 = driver
            .split('.')
            .next()
            .and_then(|major| major.parse().ok())
            .unwrap_or(0);
        let suits = |compiler: Compiler| {
            let (for_what, advice) = if compiler.major() > driver_major {
                let advice = format!(
                    "update the NVIDIA driver, or install NVRTC {driver_major}, for example the \
                     package nvidia-cuda-nvrtc-cu{driver_major}, and put its folder first on \
                     LD_LIBRARY_PATH"
                );
                (format!("a driver of CUDA {driver}"), advice)
            } else if !compiler.knows(arch) {
                let advice =
                    "install a version that can, and put its folder first on LD_LIBRARY_PATH";
                (arch.to_string(), advice.to_owned())
            } else {
                return Ok(compiler);
            };
            Err(DeviceError::OtherCompiler {
                version: compiler.version(),
                arch: for_what,
                advice,
            })
        };
        match Compiler::find().and_then(suits) {
            Ok(compiler) => Ok(Images::Compiler(compiler, Cache(cache))),
            Err(error) => PrebuiltPtx::find().map(Images::Prebuilt).ok_or(error),
        }
    }
}

/// A graph in which each kernel follows the one before.
struct Made {
    /// The graph that its nodes belong to.
    graph: sys::CUgraph,
    nodes: Vec<sys::CUgraphNode>,
    ready: sys::CUgraphExec,
}

impl Made {
    /// # Safety
    /// The context is current.
    unsafe fn destroy(self) {
        // SAFETY: created by `graph`. The driver releases a running graph when it is complete.
        unsafe {
            let _ = sys::cuGraphExecDestroy(self.ready);
            let _ = sys::cuGraphDestroy(self.graph);
        }
    }
}

#[derive(Default)]
struct Loaded {
    modules: HashMap<Unit, sys::CUmodule>,
    functions: HashMap<Kernel, Function>,
}

/// A kernel that can be launched.
#[derive(Clone, Copy)]
struct Function {
    function: sys::CUfunction,
    /// Dynamic shared memory per block, in addition to the static memory of the kernel.
    shared_bytes: u32,
}

// SAFETY: driver handles may be used from any thread that has made the context current, which every call
// here does first; mutable state is behind a lock.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

impl Driver {
    pub(crate) fn open(config: DriverConfig) -> Result<Driver, DeviceError> {
        let found = find()?;
        let DriverConfig { index, cache } = config;
        let count = found.devices.len();
        let description = found.devices.into_iter().nth(index);
        let description = description.ok_or(DeviceError::NoSuchDevice { index, count })?;
        if description.arch < LEAST_ARCH {
            let Arch { major, minor } = description.arch;
            return Err(DeviceError::OldDevice {
                name: description.name,
                found: format!("{major}.{minor}"),
            });
        }
        let images = Images::find(description.arch, &found.driver, cache)?;
        let at = |call| move |error| failed(call, error);
        let device = result::device::get(index as i32).map_err(at("choosing the device"))?;
        // SAFETY: a device that `get` gave; its context is released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) };
        let context = context.map_err(at("preparing the device"))?;
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(at("preparing the device"))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Driver {
            description,
            device,
            context,
            stream: stream.map_err(at("making a stream"))?,
            images,
            loaded: Mutex::default(),
            graphs: Mutex::default(),
        })
    }

    /// Makes a driver call in the device's context.
    fn call<T>(
        &self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, DeviceError> {
        // SAFETY: the context is retained for the lifetime of this object.
        unsafe { result::ctx::set_current(self.context) }
            .and_then(|()| call())
            .map_err(|error| failed(name, error))
    }

    /// Returns a kernel, compiling and loading it on first use.
    fn function(&self, kernel: Kernel) -> Result<Function, DeviceError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = loaded.functions.get(&kernel) {
            return Ok(function);
        }
        let module = match loaded.modules.get(&kernel.unit) {
            Some(&module) => module,
            None => {
                let module = self.module(kernel.unit)?;
                loaded.modules.insert(kernel.unit, module);
                module
            }
        };
        let name = CString::new(kernel.name).expect("names have no zero bytes");
        // SAFETY: the module stays loaded for the lifetime of this object.
        let function = self.call("finding a kernel", || unsafe {
            result::module::get_function(module, name)
        })?;
        let shared_bytes = kernel.unit.shared_bytes(kernel.name);
        if shared_bytes > 0 {
            let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a function of a module that is loaded.
            self.call("setting the shared memory of a kernel", || unsafe {
                result::function::set_function_attribute(function, most, shared_bytes as i32)
            })?;
        }
        let function = Function {
            function,
            shared_bytes,
        };
        loaded.functions.insert(kernel, function);
        Ok(function)
    }

    fn module(&self, unit: Unit) -> Result<sys::CUmodule, DeviceError> {
        let arch = self.description.arch;
        let load = |image: &[u8]| {
            // SAFETY: an image of the compiler's, or bytes that the driver refuses.
            self.call("loading kernels", || unsafe {
                result::module::load_data(image.as_ptr().cast())
            })
        };
        let (compiler, cache) = match &self.images {
            Images::Compiler(compiler, cache) => (compiler, cache),
            Images::Prebuilt(prebuilt) => return load(prebuilt.ptx(unit)),
        };
        let kept = cache.look_up(compiler, unit, arch);
        // If the cached build is damaged, the kernel is compiled again.
        if let Some(Ok(module)) = kept.as_deref().map(load) {
            return Ok(module);
        }
        let image = compiler.compile(unit, arch, &[])?.image;
        cache.keep(compiler, unit, arch, &image);
        load(&image)
    }
}

/// Returns the node parameters of a kernel; `params` points to its arguments.
fn node(
    Function {
        function,
        shared_bytes,
    }: Function,
    launch: &Launch,
    params: &mut [*mut c_void; 1],
) -> sys::CUDA_KERNEL_NODE_PARAMS {
    let [x, y, z] = launch.grid.blocks;
    sys::CUDA_KERNEL_NODE_PARAMS {
        func: function,
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: launch.grid.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared_bytes,
        kernelParams: params.as_mut_ptr(),
        extra: ptr::null_mut(),
        kern: ptr::null_mut(),
        ctx: ptr::null_mut(),
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let loaded = self.loaded.get_mut();
        let loaded = std::mem::take(loaded.unwrap_or_else(PoisonError::into_inner));
        let graphs = self.graphs.get_mut();
        let graphs = std::mem::take(graphs.unwrap_or_else(PoisonError::into_inner));
        // SAFETY: created by `open`, and not used any more. Errors of a lost device have already been
        // reported to operations that needed results.
        let _ = self.call("closing the device", || unsafe {
            graphs.into_iter().flatten().for_each(|made| made.destroy());
            for module in loaded.modules.into_values() {
                let _ = result::module::unload(module);
            }
            let _ = result::stream::destroy(self.stream);
            result::primary_ctx::release(self.device)
        });
    }
}

impl Device for Driver {
    fn name(&self) -> String {
        let Description {
            index, name, arch, ..
        } = &self.description;
        format!("cuda:{index} ({name}, {arch})")
    }

    fn free_bytes(&self) -> Option<u64> {
        let (free, _) = self
            .call("querying free memory", result::mem_get_info)
            .ok()?;
        Some(free as u64)
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        let bytes = bytes.max(1).next_multiple_of(256);
        // SAFETY: freed by `free`.
        match self.call("allocating", || unsafe { result::malloc_sync(bytes) }) {
            Ok(address) => Ok(Address(address)),
            Err(DeviceError::Failed { code, .. })
                if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 =>
            {
                Err(DeviceError::OutOfMemory {
                    asked: bytes as u64,
                    free: self.free_bytes().unwrap_or(0),
                })
            }
            Err(error) => Err(error),
        }
    }

    unsafe fn free(&self, address: Address) {
        // SAFETY: the caller's promise; all earlier work is complete by then.
        let _ = self.call("freeing", || unsafe {
            let _ = result::stream::synchronize(self.stream);
            result::free_sync(address.0)
        });
    }

    unsafe fn write(&self, src: &[u8], to: Address) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise; the driver copies from pageable memory before this returns.
        self.call("writing to the device", || unsafe {
            result::memcpy_htod_async(to.0, src, self.stream)
        })
    }

    unsafe fn read(&self, from: Address, dst: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise; `dst` is not read before the stream is synchronised.
        self.call("reading from the device", || unsafe {
            result::memcpy_dtoh_async(dst, from.0, self.stream)?;
            result::stream::synchronize(self.stream)
        })
    }

    unsafe fn fill(&self, to: Address, word: u32, n_words: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        self.call("filling memory", || unsafe {
            sys::cuMemsetD32Async(to.0, word, n_words, self.stream).result()
        })
    }

    unsafe fn launch(&self, launch: &Launch) -> Result<(), DeviceError> {
        let Launch { kernel, grid, args } = launch;
        let Function {
            function,
            shared_bytes,
        } = self.function(*kernel)?;
        let [x, y, z] = grid.blocks;
        let mut params: [*mut c_void; 1] = [args.data().cast_mut()];
        // SAFETY: the caller's promise; the driver copies the arguments before this returns.
        self.call(kernel.name, || unsafe {
            let (grid, block) = ((x, y, z), (grid.threads, 1, 1));
            result::launch_kernel(
                function,
                grid,
                block,
                shared_bytes,
                self.stream,
                &mut params,
            )
        })
    }

    unsafe fn graph(&self, launches: &[Launch]) -> Result<Graph, DeviceError> {
        let functions = launches.iter().map(|launch| self.function(launch.kernel));
        let functions = functions.collect::<Result<Vec<_>, _>>()?;
        let name = "making a graph";
        let mut made = Made {
            graph: ptr::null_mut(),
            nodes: Vec::with_capacity(launches.len()),
            ready: ptr::null_mut(),
        };
        // SAFETY: a place to write to.
        self.call(name, || unsafe {
            sys::cuGraphCreate(&mut made.graph, 0).result()
        })?;
        for (launch, function) in launches.iter().zip(functions) {
            let mut params: [*mut c_void; 1] = [launch.args.data().cast_mut()];
            let params = node(function, launch, &mut params);
            let before = made.nodes.last();
            let mut added = ptr::null_mut();
            // SAFETY: the caller's promise; the driver copies the arguments.
            self.call(name, || unsafe {
                let (before, n) = (before.map_or(ptr::null(), ptr::from_ref), made.nodes.len());
                sys::cuGraphAddKernelNode_v2(&mut added, made.graph, before, n.min(1), &params)
                    .result()
            })?;
            made.nodes.push(added);
        }
        // SAFETY: a graph of kernels, which may be launched at any time.
        self.call(name, || unsafe {
            sys::cuGraphInstantiateWithFlags(&mut made.ready, made.graph, 0).result()
        })?;
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        graphs.push(Some(made));
        Ok(Graph(graphs.len() as u64 - 1))
    }

    unsafe fn change(
        &self,
        graph: Graph,
        index: usize,
        launch: &Launch,
    ) -> Result<(), DeviceError> {
        let function = self.function(launch.kernel)?;
        let mut params: [*mut c_void; 1] = [launch.args.data().cast_mut()];
        let params = node(function, launch, &mut params);
        let graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        let made = graphs[graph.0 as usize]
            .as_ref()
            .expect("a graph that is kept");
        // SAFETY: the caller's promise; the driver copies the arguments.
        self.call("changing a graph", || unsafe {
            sys::cuGraphExecKernelNodeSetParams_v2(made.ready, made.nodes[index], &params).result()
        })
    }

    unsafe fn run(&self, graph: Graph) -> Result<(), DeviceError> {
        let graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        let made = graphs[graph.0 as usize]
            .as_ref()
            .expect("a graph that is kept");
        // SAFETY: the caller's promise.
        self.call("beginning a graph", || unsafe {
            sys::cuGraphLaunch(made.ready, self.stream).result()
        })
    }

    fn forget(&self, graph: Graph) {
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = graphs[graph.0 as usize].take() {
            // SAFETY: the graph has no other owner.
            let _ = self.call("destroying a graph", || unsafe {
                made.destroy();
                Ok(())
            });
        }
    }
}
