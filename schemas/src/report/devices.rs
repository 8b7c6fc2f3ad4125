//! Result of `specrun devices`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::CpuModel;

/// Devices of this machine that can run models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "devices")]
pub struct DevicesReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The CPU; null in reports of older versions.
    #[serde(default)]
    pub cpu: Option<CpuModel>,
    /// Number of CPU threads that this process may use.
    pub n_threads: usize,
    /// Memory read bandwidth of all threads, in units of 10^9 bytes per second; null if it was not measured.
    #[serde(default)]
    pub read_gigabytes_per_s: Option<f64>,
    /// The same of one thread alone.
    #[serde(default)]
    pub read_gigabytes_per_s_of_one_thread: Option<f64>,
    /// Distance at which products prefetch weights, in cache lines of 64 bytes, chosen by measurement; 0 for
    /// no prefetching, null if it was not measured or streams are prefetched.
    #[serde(default)]
    pub prefetch_distance: Option<usize>,
    /// True if products prefetch several streams (`--prefetch streams`).
    #[serde(default)]
    pub prefetches_streams: bool,
    /// Instruction sets of this CPU that have kernels, best first.
    pub instruction_sets: Vec<String>,
    /// CUDA version that the driver supports; null without a driver.
    pub cuda_driver: Option<String>,
    /// Version of NVRTC, which compiles the kernels; null if it is not installed.
    pub cuda_compiler: Option<String>,
    /// CUDA devices in the driver's order.
    pub cuda_devices: Vec<CudaDeviceReport>,
    /// Problems that prevent the use of CUDA devices, with their fixes.
    pub cuda_problems: Vec<String>,
}

/// One CUDA device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CudaDeviceReport {
    /// Device number; `--device cuda:0` is the first.
    pub index: usize,
    /// Name of the device as the driver reports it.
    pub name: String,
    /// CUDA compute capability, such as `9.0`.
    pub compute_capability: String,
    /// Total device memory in bytes.
    pub memory_bytes: u64,
}
