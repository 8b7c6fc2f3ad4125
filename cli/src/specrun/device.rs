//! Where a model runs: the processor, or a CUDA device.

use std::env;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use kernels::backend::Backend;
use kernels::cpu::{Cpu, CpuConfig};
use kernels::cuda::{self, Cuda, DriverConfig, Launching};

use crate::output;

/// What a user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// A CUDA device if there is one that can be used, else the processor.
    Auto,
    /// The processor.
    Cpu,
    /// A CUDA device by its number.
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

/// The processor, and which device is wanted instead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceConfig {
    /// Which device.
    pub(crate) choice: DeviceChoice,
    /// How the processor computes.
    pub(crate) cpu: CpuConfig,
}

/// A backend, ready to compute: see [`on_device`].
pub(crate) enum Device {
    /// The processor.
    Cpu(Arc<Cpu>),
    /// A CUDA device.
    Cuda(Arc<Cuda>),
}

impl DeviceConfig {
    /// The processor.
    pub(crate) fn cpu(cpu: CpuConfig) -> DeviceConfig {
        let choice = DeviceChoice::Cpu;
        DeviceConfig { choice, cpu }
    }

    /// The processor, whatever device is wanted.
    pub(crate) fn processor(self) -> anyhow::Result<Arc<Cpu>> {
        Ok(Arc::new(Cpu::new(self.cpu)?))
    }
}

impl Device {
    /// Opens what was asked for.
    pub(crate) fn open(config: DeviceConfig) -> anyhow::Result<Device> {
        match config.choice {
            DeviceChoice::Cpu => Ok(Device::Cpu(config.processor()?)),
            DeviceChoice::Cuda(index) => Ok(Device::Cuda(open_cuda(index)?)),
            DeviceChoice::Auto if cuda::find().is_err() => Ok(Device::Cpu(config.processor()?)),
            DeviceChoice::Auto => match open_cuda(0) {
                Ok(cuda) => {
                    output::talk(&format!("running on {}", cuda.name()));
                    Ok(Device::Cuda(cuda))
                }
                Err(error) => {
                    output::talk(&format!("warning: running on the processor: {error}"));
                    Ok(Device::Cpu(config.processor()?))
                }
            },
        }
    }

    /// Threads that compute: those of the processor, or the one that tells the device what to do.
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

/// Kernels are begun one by one where `SPECRUN_CUDA_GRAPHS` is `off`, to see whether a fault is of
/// graphs.
fn launching() -> Launching {
    match env::var_os("SPECRUN_CUDA_GRAPHS").is_some_and(|value| value == "off") {
        true => Launching::OneByOne,
        false => Launching::Graphs,
    }
}

/// Where compiled kernels are kept: `SPECRUN_CACHE`, else a folder in the user's cache.
fn cache_folder() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let user = || {
        let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")));
        Some(cache?.join("specrun"))
    };
    set("SPECRUN_CACHE").map(PathBuf::from).or_else(user)
}

/// What a computation gave, unless the device failed meanwhile.
pub(crate) fn whole<B: Backend, T>(backend: &B, result: anyhow::Result<T>) -> anyhow::Result<T> {
    match backend.failure() {
        Some(failure) => Err(failure.into()),
        None => result,
    }
}

/// Computes something on whichever backend a device is: the expression is compiled for each. It gives
/// an `anyhow::Result`, and an error if the device failed meanwhile.
macro_rules! on_device {
    ($device:expr, $backend:ident => $result:expr) => {
        match $device {
            $crate::specrun::device::Device::Cpu($backend) => {
                let result = $result;
                $crate::specrun::device::whole(&**$backend, result)
            }
            $crate::specrun::device::Device::Cuda($backend) => {
                let result = $result;
                $crate::specrun::device::whole(&**$backend, result)
            }
        }
    };
}
pub(crate) use on_device;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
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
