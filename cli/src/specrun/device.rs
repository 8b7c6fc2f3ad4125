//! Device selection: the CPU or a CUDA device.

use std::env;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use kernels::backend::Backend;
use kernels::cpu::{Cpu, CpuConfig};
use kernels::cuda::{self, Cuda, DriverConfig, Launching};

use crate::output;

/// The device that the user requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A CUDA device if one is usable, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device with this index.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<DeviceChoice, &'static str> {
        let numbered = name.strip_prefix("cuda:").or(name.strip_prefix("CUDA"));
        match (name, numbered.map(str::parse)) {
            ("auto", _) => Ok(DeviceChoice::Auto),
            // llama.cpp's names: none, and CUDA0 for the first device.
            ("cpu" | "none", _) => Ok(DeviceChoice::Cpu),
            ("cuda", _) => Ok(DeviceChoice::Cuda(0)),
            (_, Some(Ok(index))) => Ok(DeviceChoice::Cuda(index)),
            _ => Err("expected auto, cpu, cuda or cuda:N"),
        }
    }
}

/// CPU configuration and the requested device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceConfig {
    /// The requested device.
    pub choice: DeviceChoice,
    /// Threads, instruction set and weight layout of the CPU backend.
    pub cpu: CpuConfig,
}

/// An opened backend: see [`on_device`].
pub enum Device {
    /// The CPU.
    Cpu(Arc<Cpu>),
    /// A CUDA device.
    Cuda(Arc<Cuda>),
}

impl DeviceConfig {
    /// Returns the configuration that runs on the CPU.
    pub(crate) fn cpu(cpu: CpuConfig) -> DeviceConfig {
        let choice = DeviceChoice::Cpu;
        DeviceConfig { choice, cpu }
    }

    /// Opens the CPU backend, whatever device is requested.
    pub(crate) fn open_cpu(self) -> anyhow::Result<Arc<Cpu>> {
        Ok(Arc::new(Cpu::new(self.cpu)?))
    }
}

impl Device {
    /// Opens the requested device.
    ///
    /// # Errors
    /// The device is not available.
    pub fn open(config: DeviceConfig) -> anyhow::Result<Device> {
        match config.choice {
            DeviceChoice::Cpu => Ok(Device::Cpu(config.open_cpu()?)),
            DeviceChoice::Cuda(index) => Ok(Device::Cuda(open_cuda(index)?)),
            DeviceChoice::Auto if cuda::find().is_err() => Ok(Device::Cpu(config.open_cpu()?)),
            DeviceChoice::Auto => match open_cuda(0) {
                Ok(cuda) => {
                    output::status(&format!("running on {}", cuda.name()));
                    Ok(Device::Cuda(cuda))
                }
                Err(error) => {
                    output::warning(&format_args!("running on the CPU: {error}"));
                    Ok(Device::Cpu(config.open_cpu()?))
                }
            },
        }
    }

    /// Returns the number of compute threads; 1 for a CUDA device, whose kernels one thread launches.
    pub(crate) fn n_threads(&self) -> usize {
        match self {
            Device::Cpu(cpu) => cpu.threads(),
            Device::Cuda(_) => 1,
        }
    }
}

fn open_cuda(index: usize) -> Result<Arc<Cuda>, cuda::device::DeviceError> {
    let cache = cache_folder();
    let config = DriverConfig { index, cache };
    Ok(Arc::new(Cuda::open(config, launching())?))
}

/// Returns how kernels are launched: one by one if `SPECRUN_CUDA_GRAPHS` is `off` (to rule out faults of
/// CUDA graphs), else as graphs.
fn launching() -> Launching {
    let is_off = env::var_os("SPECRUN_CUDA_GRAPHS").is_some_and(|value| value == "off");
    if is_off {
        Launching::OneByOne
    } else {
        Launching::Graphs
    }
}

/// Returns the folder of compiled kernels: `SPECRUN_CACHE`, else a folder in the user's cache.
fn cache_folder() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let user = || {
        let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")));
        Some(cache?.join("specrun"))
    };
    set("SPECRUN_CACHE").map(PathBuf::from).or_else(user)
}

/// Returns the result of a computation, or the device's error if the device failed during it.
pub(crate) fn checked<B: Backend, T>(backend: &B, result: anyhow::Result<T>) -> anyhow::Result<T> {
    match backend.failure() {
        Some(failure) => Err(failure.into()),
        None => result,
    }
}

/// Evaluates an expression on the backend of a device; the expression is compiled for each backend.
/// Returns an `anyhow::Result`, which is an error if the device failed during the computation.
macro_rules! on_device {
    ($device:expr, $backend:ident => $result:expr) => {
        match $device {
            $crate::specrun::device::Device::Cpu($backend) => {
                let result = $result;
                $crate::specrun::device::checked(&**$backend, result)
            }
            $crate::specrun::device::Device::Cuda($backend) => {
                let result = $result;
                $crate::specrun::device::checked(&**$backend, result)
            }
        }
    };
}
pub(crate) use on_device;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_are_parsed() {
        let parsed = |name: &str| name.parse::<DeviceChoice>().ok();
        assert_eq!(parsed("auto"), Some(DeviceChoice::Auto));
        assert_eq!(parsed("cpu"), Some(DeviceChoice::Cpu));
        assert_eq!(parsed("cuda"), Some(DeviceChoice::Cuda(0)));
        assert_eq!(parsed("cuda:3"), Some(DeviceChoice::Cuda(3)));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
