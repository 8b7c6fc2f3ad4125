//! Result of `specrun devices`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where models could run on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "devices")]
pub struct DevicesReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Threads of the processor that this process may use.
    pub n_threads: usize,
    /// Instruction sets of the processor that kernels are compiled for, best first.
    pub instruction_sets: Vec<String>,
    /// The version of CUDA that the driver supports; null without a driver.
    pub cuda_driver: Option<String>,
    /// The version of NVRTC, which compiles kernels; null without it.
    pub cuda_compiler: Option<String>,
    /// CUDA devices in the driver's order.
    pub cuda_devices: Vec<CudaDeviceReport>,
    /// What keeps CUDA devices from being used, and what to do.
    pub cuda_problems: Vec<String>,
}

/// One CUDA device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CudaDeviceReport {
    /// Its number: `--device cuda:0` is the first.
    pub index: usize,
    /// What its maker calls it.
    pub name: String,
    /// Which instructions it has.
    pub compute_capability: String,
    /// All of its memory.
    pub memory_bytes: u64,
}
