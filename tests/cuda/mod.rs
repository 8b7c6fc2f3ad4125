//! CUDA devices: whole models on emulated kernels, and handling of driver errors.

mod drafts;
#[path = "../../kernels/tests/emulated/mod.rs"]
mod emulated;
#[path = "../../runner/tests/speculators/recorder.rs"]
mod recorder;
#[path = "../../runner/tests/speculators/setup.rs"]
#[expect(dead_code, reason = "a part of it is for the tests of the runner")]
mod setup;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use emulated::{Emulated, Order};
use kernels::backend::Backend;
use kernels::cpu::{Cpu, CpuConfig, Layout};
use kernels::cuda::device::Device;
use kernels::cuda::{Cuda, Launching};
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::model::{Loader, Model, load_mtp_head, load_target};
use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{
    Completion, DecodeConfig, DraftLimits, Driver, NgramSimple, Policy, Proof, Request, Speculator,
    TextConfig, mtp,
};
use schemas::gguf::{self, Plan};

use crate::cli::assert_valid;
use crate::util::{Cmd, Dir, bundled, reference, specconv, specrun};

const N_DRAFT: usize = 3;

fn cpu() -> Arc<Cpu> {
    let config = CpuConfig {
        threads: 1,
        isa: None,
        layout: Layout::FileOrder,
        ..CpuConfig::default()
    };
    Arc::new(Cpu::new(config).unwrap())
}

fn cuda(order: Order, launching: Launching) -> Option<(Arc<Emulated>, Arc<Cuda>)> {
    let device = Arc::new(Emulated::new(order)?);
    let cuda = Cuda::new(Arc::clone(&device) as Arc<dyn Device>, launching);
    Some((device, Arc::new(cuda)))
}

fn context<B: Backend>(backend: &Arc<B>, model: Model<B>) -> Context<B> {
    let sizes = ContextConfig {
        cache: CacheConfig {
            n_seq: 1,
            n_ctx: 96,
            n_rollback: N_DRAFT,
            types: CacheTypes::default(),
        },
        n_batch: 8,
        n_outputs: N_DRAFT + 1,
    };
    Context::new(Arc::clone(backend), model, sizes).unwrap()
}

fn decode<B: Backend>(
    backend: &Arc<B>,
    plan: &Plan,
    drafters: Vec<Box<dyn Speculator<B>>>,
) -> Vec<Completion> {
    let request = |(id, tokens): (&str, Vec<u32>)| Request::new(id, tokens, 8);
    let prompts = [
        ("long", (0..11).map(|i| i % 5 * 3 + 1).collect()),
        ("short", vec![7]),
    ];
    let text = TextConfig::new(Sampler::new(SampleConfig::at(0.0, 5)).unwrap());
    let mut config = DecodeConfig {
        on_failure: Some(&mut |failure| panic!("{failure:?}")),
        ..DecodeConfig::new(text.with_proof(Proof::Logits), &|_| false)
    };
    let target = context(backend, load_target(&**backend, plan).unwrap());
    Driver::new(target, drafters, Policy::First)
        .decode(&prompts.map(request), &mut config)
        .unwrap()
        .0
}

/// Decodes with drafts of the model's MTP head, or without drafts if it has none, and with n-gram drafts.
fn assert_same_as_cpu(name: &str, plan: &Plan, cuda: &Arc<Cuda>) {
    let expected = decode(&cpu(), plan, Vec::new());
    let size = |n: usize| n.try_into().unwrap();
    let ngram = NgramSimple {
        n: size(1),
        m: size(N_DRAFT),
    };
    let chain = DraftLimits::of_length(N_DRAFT);
    let own: Vec<Box<dyn Speculator<Cuda>>> = match load_mtp_head(&**cuda, plan) {
        Ok(head) => vec![Box::new(mtp(context(cuda, head), chain))],
        Err(_) => Vec::new(),
    };
    for drafters in [own, vec![Box::new(ngram)]] {
        let kinds: Vec<_> = drafters.iter().map(|d| d.kind().name()).collect();
        for (found, expected) in decode(cuda, plan, drafters).iter().zip(&expected) {
            assert_eq!(found.tokens, expected.tokens, "{name} {kinds:?}: tokens");
            assert_eq!(found.hashes, expected.hashes, "{name} {kinds:?}: logits");
        }
    }
    assert_eq!(cuda.failure(), None);
}

#[test]
fn every_architecture_gives_the_logits_of_the_cpu() {
    let Some((device, cuda)) = cuda(Order::Rising, Launching::Graphs) else {
        return;
    };
    for plan in fixtures::all() {
        let arch = plan.metadata.need_str("general.architecture").unwrap();
        assert_same_as_cpu(arch, &plan, &cuda);
    }
    let (n_run, n_changed) = device.graphs_run();
    assert!(
        n_run > 100 && n_changed > 0,
        "{n_run} graphs, {n_changed} changes"
    );
}

#[test]
fn the_bundled_target_gives_the_logits_of_the_cpu() {
    let Some((device, cuda)) = cuda(Order::Falling, Launching::OneByOne) else {
        return;
    };
    let dir = Dir::new();
    let target = dir.join("target.gguf");
    let quantize = specconv("quantize").arg(bundled("tiny-qwen35-mtp"));
    quantize.arg(&target).arg("Q4_K_M").ok();
    assert_same_as_cpu("bundled", &gguf::open(&target).unwrap(), &cuda);
    assert_eq!(device.graphs_run(), (0, 0));
}

/// The device holds one copy of the embeddings and output head that a head shares with its trunk.
#[test]
fn a_head_shares_its_trunks_vocabulary() {
    let Some((device, cuda)) = cuda(Order::Rising, Launching::Graphs) else {
        return;
    };
    let cuda = &*cuda;
    for plan in fixtures::all() {
        let Ok(alone) = load_mtp_head(cuda, &plan) else {
            continue;
        };
        let n_alone = device.allocated();
        drop(alone);
        assert_eq!(device.allocated(), 0);
        let loader = Loader::new(cuda);
        let trunk = loader.target(&plan).unwrap();
        let n_trunk = device.allocated();
        let head = loader.mtp_head(&plan).unwrap();
        let n_head = device.allocated() - n_trunk;
        let bytes = |name: &str| {
            let tensor = plan.tensors.iter().find(|tensor| tensor.name == name);
            tensor.map_or(0, |tensor| {
                (tensor.size_bytes as usize).next_multiple_of(256)
            })
        };
        assert_eq!(
            n_alone - n_head,
            bytes("token_embd.weight") + bytes("output.weight")
        );
        drop((trunk, head));
    }
}

/// Returns a folder with a stub library for each name; `None` without a compiler.
#[expect(clippy::print_stdout, reason = "a test that proves nothing says so")]
fn libraries(dir: &Dir, names: &[&str]) -> Option<PathBuf> {
    let folder = dir.join("lib");
    std::fs::create_dir_all(&folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cuda/driver.c");
    for name in names {
        let mut compile = Command::new("cc");
        compile.args(["-w", "-shared", "-fPIC", "-o"]);
        match compile.arg(folder.join(name)).arg(&source).output() {
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(_) => {
                println!("skipped: no C compiler, so there is no driver to fail");
                return None;
            }
        }
    }
    Some(folder)
}

/// Returns a command that loads the stub driver from a folder and injects a fault.
fn with_fault(command: Cmd, folder: &Path, fault: &str) -> Cmd {
    let cache = folder.join("cache");
    command
        .env("LD_LIBRARY_PATH", folder.to_str().unwrap())
        .env("SPECRUN_CACHE", cache.to_str().unwrap())
        .env("FAKE_CUDA", fault)
}

#[test]
fn an_unusable_driver_is_an_error_with_a_hint() {
    let dir = Dir::new();
    let Some(folder) = libraries(&dir, &["libcuda.so", "libnvrtc.so"]) else {
        return;
    };
    let model = dir.convert(&reference("llama"), "m.gguf", &["--outtype", "f32"]);
    let run = |fault: &str, device: &str| {
        let run = specrun("logits").args(["--tokens", "1,2,3", "--device", device, "-m"]);
        with_fault(run.arg(&model), &folder, fault).error()
    };
    for (fault, expected) in [
        (
            "init=100",
            "the CUDA driver does not start: 100 (CUDA_ERROR_NO_DEVICE); it finds no device: see whether nvidia-smi",
        ),
        (
            "init=803",
            "803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH); its library and its kernel module are of different versions",
        ),
        (
            "init=34",
            "34 (CUDA_ERROR_STUB_LIBRARY); libcuda.so is a stub",
        ),
        (
            "version=11040",
            "the CUDA driver is too old: it supports CUDA 11.4, 12.0 or later is needed",
        ),
        ("count=0", "no CUDA device: the driver (13.0) reports none"),
        (
            "major=7",
            "Imaginary has compute capability 7.0, 8.0 or later is needed",
        ),
        (
            "compile=6",
            "does not compile: NVRTC_ERROR_COMPILATION: line 7: odd",
        ),
        ("launch=719", "the CUDA device failed in "),
        (
            "synchronize=719",
            "719 (CUDA_ERROR_LAUNCH_FAILED); the results since are lost",
        ),
    ] {
        let error = run(fault, "cuda");
        assert!(error.contains(expected), "{fault}: {error}");
    }
    let error = run("none=0", "cuda:5");
    assert!(
        error.contains("no CUDA device 5: there are 1, counted from 0"),
        "{error}"
    );
    // Too little memory for weights and caches is reported before anything is copied to the device.
    let error = run("memory=4096", "cuda");
    let plan = specrun("plan").arg("-m").arg(&model);
    let plan = plan.args(["-c", "3", "-ctk", "f16", "-ctv", "f16"]).json();
    let [weights, caches] = ["weight_bytes", "kv_bytes"].map(|key| plan["parts"][0][key].as_u64());
    let [weights, caches] = [weights.unwrap(), caches.unwrap()];
    let expected = format!(
        "{weights} bytes of weights and {caches} of caches do not fit cuda:0 (Imaginary, sm_90), where \
         4096 are free: decode fewer sequences"
    );
    assert!(error.contains(&expected), "{expected:?} not in {error}");
    // Too little memory for the remaining buffers gives an error with the requested and the free bytes.
    let error = run(&format!("memory={}", weights + caches), "cuda");
    for part in ["out of device memory: ", " bytes requested, ", " free; "] {
        assert!(error.contains(part), "{part:?} not in {error}");
    }
}

/// Kernels are compiled once: the second run loads the cached build of the first, and a damaged build is
/// compiled again.
#[test]
fn compiled_kernels_are_kept() {
    let dir = Dir::new();
    let Some(folder) = libraries(&dir, &["libcuda.so", "libnvrtc.so"]) else {
        return;
    };
    let model = dir.convert(&reference("llama"), "m.gguf", &["--outtype", "q8_0"]);
    let run = |fault: &str| {
        let run = specrun("logits").args(["--tokens", "1,2,3", "--device", "cuda", "-m"]);
        with_fault(run.arg(&model), &folder, fault)
    };
    run("none=0").ok();
    let kept: Vec<PathBuf> = std::fs::read_dir(folder.join("cache"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(kept.len() > 3, "{kept:?}");
    assert!(
        kept.iter()
            .all(|path| path.extension().is_some_and(|e| e == "cubin"))
    );
    run("compile=6").ok();
    for path in &kept {
        std::fs::write(path, "damaged").unwrap();
    }
    run("none=0").ok();
    assert_eq!(std::fs::read(&kept[0]).unwrap(), b"cubin");
}

/// Prebuilt kernels are used if the compiler is missing or does not support the driver or the
/// device.
#[test]
fn without_a_compiler_kernels_of_before_are_used() {
    let dir = Dir::new();
    let Some(folder) = libraries(&dir, &["libcuda.so", "libnvrtc.so"]) else {
        return;
    };
    let model = dir.convert(&reference("llama"), "m.gguf", &["--outtype", "f32"]);
    let logits = |fault: &str| {
        let run = specrun("logits").args(["--tokens", "1,2,3", "--device", "cuda", "-m"]);
        with_fault(run.arg(&model), &folder, fault)
    };
    let kept = || std::fs::read_dir(folder.join("cache")).is_ok();
    for fault in ["nvrtc=14", "arch=80"] {
        logits(fault).ok();
        assert!(!kept(), "{fault}: there was nothing to compile");
    }
    // The machine may have an installed compiler.
    std::fs::remove_file(folder.join("libnvrtc.so")).unwrap();
    if kernels::cuda::Compiler::find().is_ok() {
        return;
    }
    logits("none=0").ok();
    let error = logits("ptx=218").error();
    assert!(error.contains("218 (CUDA_ERROR_INVALID_PTX)"), "{error}");
    let devices = with_fault(specrun("devices"), &folder, "none=0").ok();
    assert!(
        devices.contains("none of libnvrtc.so, libnvrtc.so.13")
            && devices.contains("prebuilt kernels are used instead"),
        "{devices}"
    );
}

/// Kernels are launched one by one if the driver refuses graphs, or if graphs are switched off.
#[test]
fn kernels_begin_one_by_one_where_graphs_fail() {
    let dir = Dir::new();
    let Some(folder) = libraries(&dir, &["libcuda.so", "libnvrtc.so"]) else {
        return;
    };
    let model = dir.convert(&reference("llama"), "m.gguf", &["--outtype", "f32"]);
    let bench = |fault: &str| {
        let run = specrun("bench").args(["-p", "8", "--width", "2", "-r", "3"]);
        let run = run.args(["--device", "cuda", "-m"]).arg(&model);
        with_fault(run, &folder, fault)
    };
    for fault in ["graph=801", "instantiate=801"] {
        bench(fault).ok();
    }
    for fault in ["graphs=719", "synchronize=719"] {
        let error = bench(fault).error();
        assert!(error.contains("719 (CUDA_ERROR_LAUNCH_FAILED)"), "{error}");
    }
    bench("graphs=719").env("SPECRUN_CUDA_GRAPHS", "off").ok();
}

/// A model runs completely on a device or completely on the CPU.
#[test]
fn some_layers_on_a_device_are_refused() {
    let dir = Dir::new();
    let model = dir.convert(&reference("llama"), "m.gguf", &["--outtype", "f32"]);
    let logits = |n: &str| {
        let run = specrun("logits").args(["--tokens", "1,2,3", "-ngl", n, "-m"]);
        run.arg(&model).env("LD_LIBRARY_PATH", "")
    };
    let expected = logits("0").ok();
    for n in ["all", "99"] {
        assert_eq!(logits(n).ok(), expected);
    }
    let error = logits("1").error();
    assert!(
        error.contains("-ngl 1, but the model has 6 layers and cannot be divided between devices"),
        "{error}"
    );
}

#[test]
fn devices_are_listed() {
    let dir = Dir::new();
    let Some(folder) = libraries(&dir, &["libcuda.so", "libnvrtc.so"]) else {
        return;
    };
    let text = with_fault(specrun("devices"), &folder, "none=0").ok();
    assert!(
        text.contains("cuda:0  Imaginary, compute capability 9.0, 1.1 GB"),
        "{text}"
    );
    let found = with_fault(specrun("devices"), &folder, "none=0").json();
    assert_valid("devices", &found);
    assert_eq!(found["cuda_devices"][0]["name"], "Imaginary");
    let found = with_fault(specrun("devices"), &folder, "init=100").json();
    assert_valid("devices", &found);
    let problem = found["cuda_problems"][0].as_str().unwrap();
    assert!(problem.contains("CUDA_ERROR_NO_DEVICE"), "{problem}");
}
