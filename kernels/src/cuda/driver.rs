//! A device of NVIDIA's driver, which is loaded at run time: one program for machines with and
//! without.
//!
//! All work of a device goes through one stream, in order. Knows neither operations nor shapes.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};

use super::compile::{Arch, Cache, Compiler};
use super::device::{Address, Arguments, Device, DeviceError, Grid, Kernel, Unit};

/// The least version of CUDA that a driver must support, in its own way of counting.
const LEAST_VERSION: i32 = 12_000;

/// The least compute capability: dp4a and asynchronous barriers are there long before, but nothing
/// older has been compiled for.
const LEAST_ARCH: Arch = Arch { major: 8, minor: 0 };

/// What the driver says of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its number, from 0.
    pub index: usize,
    /// What its maker calls it.
    pub name: String,
    /// What its instructions are.
    pub arch: Arch,
    /// All of its memory.
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

/// Asks the driver for its devices.
///
/// # Errors
/// There is no driver, it does not start, it is too old, or it has no device.
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
    let failed = |error| failed("counting devices", error);
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

/// `12080` is CUDA 12.8.
fn version_name(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// What to do where the driver does not start.
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
            "its compatibility package does not suit the device: update the NVIDIA driver instead"
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

/// Which device, and where builds of kernels are kept.
#[derive(Clone, Debug)]
pub struct DriverConfig {
    /// Its number, from 0.
    pub index: usize,
    /// Folder for builds; `None` to compile every time.
    pub cache: Option<PathBuf>,
}

/// A device, its stream, and the kernels loaded so far.
pub(super) struct Driver {
    description: Description,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    compiler: Compiler,
    cache: Cache,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    modules: HashMap<Unit, sys::CUmodule>,
    functions: HashMap<Kernel, sys::CUfunction>,
}

// SAFETY: handles of the driver may be used from any thread that has made the context its own,
// which every call here does first; what changes is behind a lock.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

impl Driver {
    pub(super) fn open(config: DriverConfig) -> Result<Driver, DeviceError> {
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
        let compiler = Compiler::find()?;
        let driver_major: i32 = found
            .driver
            .split('.')
            .next()
            .and_then(|major| major.parse().ok())
            .unwrap_or(0);
        if compiler.major() > driver_major {
            return Err(DeviceError::OtherCompiler {
                version: compiler.version(),
                arch: format!("a driver of CUDA {}", found.driver),
                advice: format!(
                    "update the NVIDIA driver, or install NVRTC {driver_major}, for example the \
                     package nvidia-cuda-nvrtc-cu{driver_major}, and put its folder first on \
                     LD_LIBRARY_PATH"
                ),
            });
        }
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
            compiler,
            cache: Cache(cache),
            loaded: Mutex::default(),
        })
    }

    /// Makes a call on the device's behalf.
    fn call<T>(
        &self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, DeviceError> {
        // SAFETY: the context is retained as long as this lives.
        unsafe { result::ctx::set_current(self.context) }
            .and_then(|()| call())
            .map_err(|error| failed(name, error))
    }

    /// A kernel, compiled and loaded if it is not yet.
    fn function(&self, kernel: Kernel) -> Result<sys::CUfunction, DeviceError> {
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
        // SAFETY: the module stays loaded as long as this lives.
        let function = self.call("finding a kernel", || unsafe {
            result::module::get_function(module, name)
        })?;
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
        let kept = self.cache.look_up(&self.compiler, unit, arch);
        // What was kept may have been damaged; then it is made again.
        if let Some(Ok(module)) = kept.as_deref().map(load) {
            return Ok(module);
        }
        let image = self.compiler.compile(unit, arch, &[])?.image;
        self.cache.keep(&self.compiler, unit, arch, &image);
        load(&image)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let loaded = self.loaded.get_mut();
        let loaded = std::mem::take(loaded.unwrap_or_else(PoisonError::into_inner));
        // SAFETY: made by `open`, and nothing uses them any more. Errors of a lost device are told
        // where results are asked for.
        let _ = self.call("closing the device", || unsafe {
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
        let (free, _) = self.call("asking for memory", result::mem_get_info).ok()?;
        Some(free as u64)
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        let bytes = bytes.max(1).next_multiple_of(256);
        // SAFETY: given back by `free`.
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
        // SAFETY: the caller's promise, and work that was asked for before is done by then.
        let _ = self.call("freeing", || unsafe {
            let _ = result::stream::synchronize(self.stream);
            result::free_sync(address.0)
        });
    }

    unsafe fn write(&self, src: &[u8], to: Address) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise; from memory that is not page-locked the driver takes its copy
        // before this returns.
        self.call("writing to the device", || unsafe {
            result::memcpy_htod_async(to.0, src, self.stream)
        })
    }

    unsafe fn read(&self, from: Address, dst: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise, and nothing looks at `dst` before the stream is done.
        self.call("reading from the device", || unsafe {
            result::memcpy_dtoh_async(dst, from.0, self.stream)?;
            result::stream::synchronize(self.stream)
        })
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        self.call("copying on the device", || unsafe {
            result::memcpy_dtod_async(to.0, from.0, bytes, self.stream)
        })
    }

    unsafe fn fill(&self, to: Address, word: u32, n_words: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        self.call("filling memory", || unsafe {
            sys::cuMemsetD32Async(to.0, word, n_words, self.stream).result()
        })
    }

    unsafe fn launch(
        &self,
        kernel: Kernel,
        grid: Grid,
        args: Arguments,
    ) -> Result<(), DeviceError> {
        let function = self.function(kernel)?;
        let [x, y, z] = grid.blocks;
        let mut params: [*mut c_void; 1] = [args.data.cast_mut()];
        // SAFETY: the caller's promise; the driver takes its copy of the arguments before this returns.
        self.call(kernel.name, || unsafe {
            let block = (grid.threads, 1, 1);
            result::launch_kernel(function, (x, y, z), block, 0, self.stream, &mut params)
        })
    }
}
