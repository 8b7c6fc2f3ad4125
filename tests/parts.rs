//! Split models and interrupted runs: the files that `split`, `merge`, `--resume` and signals leave.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;

use schemas::gguf::{DType, Metadata, Owned, Plan, Tensor};

use crate::util::{Cmd, Dir, read_json, reference, send, sha256, specconv, status};

/// SHA-256 of the shards that llama-gguf-split writes for the bf16 file of the `llama` checkpoint.
const PEER_PARTS: [(&[&str], &[&str]); 3] = [
    (
        &["--split-max-tensors", "20"],
        &[
            "02047b29b40a32023da1afd4e3c3aab967153c5ad80efe68b4fa770b2cdb90c9",
            "cb77868d630235d958abbc75221f8edddf8585254e78a1c059a636fd58c1a53e",
            "87bf4d8f99642353f403d2b24824fe8d7bea20e70f745c33d5fd0d1ddc6cc1ef",
        ],
    ),
    (
        &["--split-max-tensors", "30", "--no-tensor-first-split"],
        &[
            "2b75e0521342b909f41732f530dba4cddee8857d8daa40910c0070211a1edcdf",
            "99ad4af31f3ed6d304ffe1a7beff630dad5fce42839b128f777b65c7b2d93b24",
            "02c520e2ae299c2a8bbd538a3a43d33e2acae45fad20d41d8c775d0161ec2a6f",
        ],
    ),
    (
        &["--split-max-size", "1M"],
        &["f1fa0771b3cb23d80ed0cb4c6d78f22a197b66ab53904fa57328088edc70dfc7"],
    ),
];

#[test]
fn parts_are_those_of_the_peer_and_merge_to_the_model() {
    let dir = Dir::new();
    let whole = dir.convert(&reference("llama"), "m.gguf", &[]);
    for (flags, expected) in PEER_PARTS {
        let report = specconv("split").args(flags).arg(&whole).arg(dir.join("p"));
        let report = report.json();
        let parts = report["output"]["parts"].as_array().unwrap();
        let parts: Vec<&str> = parts.iter().map(|part| part.as_str().unwrap()).collect();
        let found: Vec<String> = parts
            .iter()
            .map(|part| sha256(&fs::read(part).unwrap()))
            .collect();
        assert_eq!(found, expected, "{flags:?}");
        let merged = dir.join("merged.gguf");
        let merge = specconv("merge").args(["--delete-splits", "--overwrite"]);
        let merge = merge.arg(parts[0]).arg(&merged);
        assert_eq!(merge.json()["deleted"], true);
        assert!(fs::read(&merged).unwrap() == fs::read(&whole).unwrap());
        assert_eq!(dir.names(), ["m.gguf", "merged.gguf"]);
    }
}

#[test]
fn a_converted_model_is_split_like_the_reference() {
    let golden = read_json(&reference("qwen3").join("golden.json"));
    let output = &golden["outputs"]["split-f16"];
    let flags = output["args"].as_array().unwrap().iter();
    let flags: Vec<&str> = flags.map(|flag| flag.as_str().unwrap()).collect();
    let dir = Dir::new();
    dir.convert(&reference("qwen3"), "split.gguf", &flags);
    let parts = output["parts"].as_array().unwrap();
    assert_eq!(dir.names().len(), parts.len());
    for part in parts {
        let bytes = fs::read(dir.join(part["file"].as_str().unwrap())).unwrap();
        assert_eq!(sha256(&bytes), part["sha256"]);
    }
}

#[test]
fn incomplete_sets_of_shards_are_rejected() {
    let dir = Dir::new();
    let whole = dir.convert(&reference("llama"), "m.gguf", &[]);
    let merge = |first: &Path| {
        specconv("merge")
            .arg(first)
            .arg(dir.join("out.gguf"))
            .error()
    };
    assert!(merge(&whole).ends_with("not split, expected the first shard of a split model"));
    let split = |n: &str, out: &str| {
        let split = specconv("split").arg("--split-max-tensors").arg(n);
        split.arg(&whole).arg(dir.join(out)).ok();
    };
    split("20", "p");
    split("25", "q");
    let [first, third, other] = ["p-00001-of-00003", "p-00003-of-00003", "q-00002-of-00003"]
        .map(|n| dir.join(&format!("{n}.gguf")));
    let error = merge(&third);
    assert!(error.ends_with("shard 3 of 3 of a split model; open the first shard instead"));
    fs::copy(&other, dir.join("p-00002-of-00003.gguf")).unwrap();
    let error = merge(&first);
    assert!(
        error.contains("also appears in an earlier shard"),
        "{error}"
    );
    fs::remove_file(&third).unwrap();
    fs::remove_file(dir.join("p-00002-of-00003.gguf")).unwrap();
    assert!(merge(&first).contains("p-00002-of-00003.gguf: No such file"));
    assert!(!dir.join("out.gguf").exists());
}

/// Writes a model of one layer with `n` matrices of 1 MB.
pub(crate) fn model(dir: &Dir, n: u32) -> PathBuf {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("general.file_type", 0u32);
    metadata.set("llama.block_count", 1u32);
    let mut plan = Plan::new(metadata);
    for i in 0..n {
        let numbers = (0..1u32 << 18).map(|j| (j.wrapping_mul(2_654_435_761) >> 12) ^ i);
        let source = Owned {
            bytes: numbers.flat_map(|x| (x as f32).to_le_bytes()).collect(),
            row_bytes: 4 << 10,
        };
        let shape = vec![1 << 10, 1 << 8];
        let name = format!("blk.0.part_{i}.weight");
        plan.tensors
            .push(Tensor::new(name, shape, DType::F32, Arc::new(source)).unwrap());
    }
    dir.gguf("in.gguf", &plan)
}

pub(crate) fn spawn(command: Cmd) -> Child {
    let mut command = command.with_default_signals();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Returns the size of a file in bytes; 0 if it does not exist.
fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.len())
}

#[test]
fn killed_at_any_moment_and_resumed_it_is_the_same_file() {
    let dir = Dir::new();
    let input = model(&dir, 80);
    let quantize = |out: &str| {
        let quantize = specconv("quantize").args(["--threads", "1", "--resume"]);
        quantize.arg(&input).arg(dir.join(out)).arg("Q4_K")
    };
    let journal = dir.join(".out.gguf.journal");
    let mut random = 1u64;
    let mut n_killed = 0;
    for _ in 0..20 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // Stop up to three chunks after the last run, or right at the start.
        let goal = len(&journal) + (random >> 33) % 100;
        let mut child = spawn(quantize("out.gguf"));
        while len(&journal) <= goal && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        if child.wait().unwrap().success() {
            break;
        }
        n_killed += 1;
        assert!(
            !dir.join("out.gguf").exists(),
            "only whole files have names"
        );
    }
    assert!(n_killed >= 10, "killed {n_killed} times only");
    quantize("out.gguf").ok();
    quantize("expected.gguf").ok();
    assert!(
        fs::read(dir.join("out.gguf")).unwrap() == fs::read(dir.join("expected.gguf")).unwrap()
    );
    assert_eq!(dir.names(), ["expected.gguf", "in.gguf", "out.gguf"]);
}

#[test]
fn signals_leave_no_files_and_set_the_exit_code() {
    let dir = Dir::new();
    let input = model(&dir, 64);
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let quantize = specconv("quantize").args(["--threads", "1"]);
        let mut child = spawn(quantize.arg(&input).arg(dir.join("out.gguf")).arg("Q4_K"));
        while dir.names().len() < 2 && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        send(&child, signal);
        let (status, stderr) = status(child);
        assert_eq!(status.code(), Some(code), "{stderr}");
        assert!(stderr.contains("interrupted by signal"), "{stderr}");
        assert_eq!(dir.names(), ["in.gguf"]);
    }
}

/// A limit on file sizes simulates a full disk on any machine.
#[test]
fn a_full_disk_is_an_error_before_the_work_and_leaves_no_files() {
    let dir = Dir::new();
    let input = model(&dir, 4);
    let script = "ulimit -f 2000; exec \"$0\" \"$@\"";
    let quantize = specconv("quantize").arg(&input).arg(dir.join("out.gguf"));
    let quantize = quantize.arg("F16").into_command();
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", script]).arg(quantize.get_program());
    let output = limited.args(quantize.get_args()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let expected = format!("error: {}: File too large", dir.join("out.gguf").display());
    assert!(stderr.starts_with(&expected), "{stderr}");
    assert_eq!(dir.names(), ["in.gguf"]);
}
