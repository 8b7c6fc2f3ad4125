//! Compiles every kernel with NVRTC for several architectures and checks that no registers are spilled.
//! NVRTC needs no device. `.ci/run` installs it and prints this test's output.

#![expect(clippy::print_stdout, reason = "what kernels need is the result")]

use std::sync::Mutex;

use kernels::cuda::device::Unit;
use kernels::cuda::prebuilt_ptx::{self, PrebuiltPtx};
use kernels::cuda::{Arch, Compiler, source};

/// Architectures of A100, H100 and the RTX 50 series.
const ARCHS: [Arch; 3] = [
    Arch { major: 8, minor: 0 },
    Arch { major: 9, minor: 0 },
    Arch {
        major: 12,
        minor: 0,
    },
];

/// Resources of one kernel, as reported by the compiler.
struct Needs {
    name: String,
    registers: u64,
    shared_bytes: u64,
    spilled_bytes: u64,
}

#[test]
fn every_kernel_compiles_without_spills() {
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(error) => return println!("skipped: {error}"),
    };
    println!("NVRTC {}", compiler.version());
    let work: Vec<(Arch, Unit)> = ARCHS
        .into_iter()
        .flat_map(|arch| source::units().map(move |unit| (arch, unit)))
        .collect();
    let queue = Mutex::new(work.into_iter());
    let spills = Mutex::new(Vec::new());
    let worker = || {
        while let Some((arch, unit)) = next(&queue) {
            let build = compiler
                .compile(unit, arch, &["--ptxas-options=-v"])
                .unwrap_or_else(|error| panic!("{error}"));
            assert!(!build.image.is_empty(), "{unit}, {arch}");
            let needs = needs(&build.log);
            assert!(!needs.is_empty(), "{unit}, {arch}: {}", build.log);
            for kernel in needs {
                let Needs {
                    name,
                    registers,
                    shared_bytes,
                    spilled_bytes,
                } = kernel;
                // The compiler does not know the dynamic shared memory of a launch.
                let shared_bytes = shared_bytes + u64::from(unit.shared_bytes(&name));
                let line = format!(
                    "{arch:<7} {unit:<32} {name:<20} {registers:>3} registers, {shared_bytes:>6} bytes shared, {spilled_bytes} spilled",
                    arch = arch.to_string(),
                    unit = unit.to_string(),
                );
                println!("{line}");
                if spilled_bytes > 0 {
                    spills.lock().expect("no panic here").push(line);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let n = std::thread::available_parallelism().map_or(1, usize::from);
        (0..n).for_each(|_| drop(scope.spawn(worker)));
    });
    let spills = spills.into_inner().expect("no panic while it was locked");
    assert!(
        spills.is_empty(),
        "spilled registers:\n{}",
        spills.join("\n")
    );
}

/// Compiler version for prebuilt PTX: PTX can be read by drivers of the same or a later CUDA version, and
/// this is the oldest supported driver.
const PREBUILT_COMPILER: &str = "12.0";

/// The prebuilt PTX matches the sources. UPDATE_PTX=1 regenerates it.
#[test]
fn prebuilt_ptx_matches_the_sources() {
    if std::env::var_os("UPDATE_PTX").is_some() {
        let compiler = Compiler::find().expect("NVRTC to update with");
        assert_eq!(
            compiler.version(),
            PREBUILT_COMPILER,
            "the version of NVRTC"
        );
        let ptx = |unit| {
            compiler
                .ptx(unit, prebuilt_ptx::ARCH)
                .expect("kernels that compile")
        };
        let texts: Vec<Vec<u8>> = source::units().map(ptx).collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cuda/prebuilt_ptx.bin");
        std::fs::write(path, PrebuiltPtx::pack(&texts)).expect("a file to write");
        return println!("written: {path}");
    }
    assert!(
        PrebuiltPtx::find().is_some(),
        "kernels have changed: install nvidia-cuda-nvrtc-cu12==12.0.140, put the folder of its \
         libraries on LD_LIBRARY_PATH, and run UPDATE_PTX=1 cargo test --workspace --test nvrtc"
    );
}

fn next<I: Iterator>(queue: &Mutex<I>) -> Option<I::Item> {
    queue.lock().expect("taking cannot panic").next()
}

/// Parses the assembler's log: a line with the kernel's name, then lines with its resources.
fn needs(log: &str) -> Vec<Needs> {
    let mut found: Vec<Needs> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            found.push(Needs {
                name: rest.split('\'').next().unwrap_or_default().to_owned(),
                registers: 0,
                shared_bytes: 0,
                spilled_bytes: 0,
            });
        }
        let Some(kernel) = found.last_mut() else {
            continue;
        };
        let before = |what: &str| -> u64 {
            let number = line.split(what).next().filter(|rest| *rest != line);
            let number = number.and_then(|rest| rest.split_whitespace().last());
            number.and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        kernel.registers = kernel.registers.max(before(" registers"));
        kernel.shared_bytes = kernel.shared_bytes.max(before(" bytes smem"));
        let spilled = before(" bytes spill stores").max(before(" bytes spill loads"));
        kernel.spilled_bytes = kernel.spilled_bytes.max(spilled);
    }
    found
}
