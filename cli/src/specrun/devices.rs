//! `specrun devices`: the devices on this machine that can run models.

use std::fmt::{self, Display};

use kernels::backend::{Backend, Prefetching, Readers};
use kernels::cpu::{Cpu, CpuConfig};
use kernels::cuda::prebuilt_ptx::PrebuiltPtx;
use kernels::cuda::{self, Arch, Compiler};
use schemas::report::{CudaDeviceReport, DevicesReport, SCHEMA_VERSION, Verdict};
use verify::cpu_model::cpu_model;

use super::page::prefetching;
use crate::output::{self, Format};

/// List the CPU instruction sets and the CUDA devices that can run models
///
/// Measures how fast this machine reads memory, which limits decoding, and how weights are best prefetched; this takes a
/// second. If CUDA devices cannot be used, prints the reason and what to do.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let found = cuda::find();
    let compiler = Compiler::find();
    let mut cuda_problems = Vec::new();
    cuda_problems.extend(found.as_ref().err().map(ToString::to_string));
    // Without a device, no compiler is needed.
    if let (Ok(_), Err(problem)) = (&found, &compiler) {
        let fallback = PrebuiltPtx::find().map_or("", |_| "; prebuilt kernels are used instead");
        cuda_problems.push(format!("{problem}{fallback}"));
    }
    let (cuda_driver, devices) = match found {
        Ok(found) => (Some(found.driver), found.devices),
        Err(_) => (None, Vec::new()),
    };
    let cuda_devices = devices.into_iter().map(|device| {
        let Arch { major, minor } = device.arch;
        CudaDeviceReport {
            index: device.index,
            name: device.name,
            compute_capability: format!("{major}.{minor}"),
            memory_bytes: device.memory_bytes,
        }
    });
    let cpu = Cpu::new(CpuConfig::default())?;
    let gigabytes_per_s = |readers| cpu.read_rate(readers).map(|rate| rate / 1e9);
    let read_rate = gigabytes_per_s(Readers::All);
    let prefetching = read_rate.and_then(|_| cpu.measure_prefetching());
    let report = DevicesReport {
        schema_version: SCHEMA_VERSION,
        cpu: Some(cpu_model()),
        read_gigabytes_per_s: read_rate,
        read_gigabytes_per_s_of_one_thread: gigabytes_per_s(Readers::One),
        // Both need free memory for weights that are larger than the caches.
        prefetch_distance: prefetching.and_then(Prefetching::distance),
        prefetches_streams: prefetching == Some(Prefetching::Streams),
        n_threads: schemas::threads::cores(),
        instruction_sets: Cpu::available().iter().map(ToString::to_string).collect(),
        cuda_driver,
        cuda_compiler: compiler.ok().map(|compiler| compiler.version()),
        cuda_devices: cuda_devices.collect(),
        cuda_problems,
    };
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(Verdict::Pass)
}

/// Text output of the report.
struct Text<'a>(&'a DevicesReport);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let sets = r.instruction_sets.join(", ");
        write!(f, "cpu     {} threads, {sets}", r.n_threads)?;
        if let Some(cpu) = &r.cpu {
            write!(f, "\n        {cpu}")?;
        }
        let rates = [r.read_gigabytes_per_s, r.read_gigabytes_per_s_of_one_thread];
        if let [Some(all), Some(one)] = rates {
            write!(
                f,
                "\n        reads {all:.1} GB/s of memory, one thread {one:.1}"
            )?;
        }
        if let Some(text) = prefetching(r.prefetch_distance, r.prefetches_streams) {
            write!(f, "\n        {text}")?;
        }
        for device in &r.cuda_devices {
            write!(
                f,
                "\ncuda:{:<2} {}, compute capability {}, {:.1} GB",
                device.index,
                device.name,
                device.compute_capability,
                device.memory_bytes as f64 / 1e9
            )?;
        }
        let versions = [("driver", &r.cuda_driver), ("NVRTC", &r.cuda_compiler)];
        for (component, version) in versions {
            if let Some(version) = version {
                write!(f, "\n{component:<7} CUDA {version}")?;
            }
        }
        let mut problems = r.cuda_problems.iter();
        problems.try_for_each(|problem| write!(f, "\n{problem}"))
    }
}
