//! `specconv split-mtp` and `graft-mtp`.

use std::fs;
use std::path::Path;

use crate::util::{Cmd, Dir, bundled, reference, specconv};

fn split(input: &Path, dir: &Dir) -> Cmd {
    let split = specconv("split-mtp").arg(input);
    let split = split.arg("--body").arg(dir.join("body.gguf"));
    split.arg("--mtp").arg(dir.join("mtp.gguf"))
}

fn graft(target: &Path, donor: &Path, dir: &Dir) -> Cmd {
    let graft = specconv("graft-mtp").arg("--target").arg(target);
    graft
        .arg("--mtp")
        .arg(donor)
        .arg("-o")
        .arg(dir.join("out.gguf"))
}

/// A split model put together again is the same file, whatever its types.
#[test]
fn split_then_grafted_is_the_same_file() {
    for checkpoint in [reference("qwen35"), bundled("tiny-qwen35-mtp")] {
        for outtype in ["f32", "bf16", "q8_0"] {
            let dir = Dir::new();
            let whole = dir.convert(&checkpoint, "whole.gguf", &["--outtype", outtype]);
            split(&whole, &dir).ok();
            graft(&dir.join("body.gguf"), &dir.join("mtp.gguf"), &dir).ok();
            assert!(fs::read(&whole).unwrap() == fs::read(dir.join("out.gguf")).unwrap());
        }
    }
}

/// The halves are the files that the converter makes of a checkpoint.
#[test]
fn halves_are_those_of_the_converter() {
    let dir = Dir::new();
    let checkpoint = reference("qwen35");
    let whole = dir.convert(&checkpoint, "whole.gguf", &["--outtype", "bf16"]);
    split(&whole, &dir).ok();
    for (flag, half) in [("--no-mtp", "body.gguf"), ("--mtp", "mtp.gguf")] {
        let converted = dir.convert(&checkpoint, "half.gguf", &["--outtype", "bf16", flag]);
        let tensors = |path: &Path| {
            let plan = schemas::gguf::open(path).unwrap();
            let tensor =
                |t: schemas::gguf::Tensor| (t.name.clone(), t.shape.clone(), t.read_all().unwrap());
            plan.tensors.into_iter().map(tensor).collect::<Vec<_>>()
        };
        assert!(tensors(&converted) == tensors(&dir.join(half)), "{half}");
    }
}

/// The point of it all: a quantized body gets the 16-bit head straight from the checkpoint.
#[test]
fn a_checkpoint_is_a_donor_for_a_quantized_body() {
    let dir = Dir::new();
    let checkpoint = bundled("tiny-qwen35-mtp");
    let whole = dir.convert(&checkpoint, "whole.gguf", &["--no-mtp"]);
    let body = dir.join("q4.gguf");
    let quantize = specconv("quantize").arg(&whole).arg(&body);
    quantize.arg("Q4_K_M").ok();
    let report = graft(&body, &checkpoint, &dir).json();
    assert_eq!(report["n_grafted_tensors"], 15);
    let found = specconv("inspect").arg(dir.join("out.gguf")).json();
    assert_eq!(found["verdict"], "pass");
    assert_eq!(found["mtp"]["place"], "inline");
    assert_eq!(found["mtp"]["n_declared"], 1);
    let in_body = schemas::gguf::open(&body).unwrap();
    let in_out = schemas::gguf::open(&dir.join("out.gguf")).unwrap();
    for tensor in &in_body.tensors {
        let copy = in_out.tensor(&tensor.name).expect("the body is whole");
        assert_eq!(copy.dtype, tensor.dtype);
        assert!(copy.read_all().unwrap() == tensor.read_all().unwrap());
    }
}

#[test]
fn a_head_that_does_not_fit_is_refused_with_both_values() {
    let dir = Dir::new();
    let body = dir.convert(&reference("qwen35"), "body.gguf", &["--no-mtp"]);
    let donor = dir.convert(&reference("qwen35-256"), "donor.gguf", &["--mtp"]);
    assert_eq!(
        graft(&body, &donor, &dir).error(),
        format!(
            "{} onto {}: key qwen35.embedding_length: target has 64, donor has 256",
            donor.display(),
            body.display()
        )
    );
    let llama = dir.convert(&reference("llama"), "llama.gguf", &[]);
    let error = graft(&llama, &donor, &dir).error();
    assert!(
        error.ends_with("key general.architecture: target has llama, donor has qwen35"),
        "{error}"
    );
    let error = graft(&body, &body, &dir).error();
    assert!(error.contains("donor: no MTP head"), "{error}");
    let whole = dir.convert(&reference("qwen35"), "whole.gguf", &[]);
    let error = graft(&whole, &whole, &dir).error();
    assert!(error.contains("already has an MTP head"), "{error}");
    let error = split(&body, &dir).error();
    assert!(error.contains("no MTP head"), "{error}");
    assert!(!dir.join("out.gguf").exists());
}

#[test]
fn one_name_for_both_halves_is_refused() {
    let dir = Dir::new();
    let whole = dir.convert(&reference("qwen35"), "whole.gguf", &[]);
    let out = dir.join("out.gguf");
    let split = specconv("split-mtp").arg(&whole);
    let split = split.arg("--body").arg(&out);
    let split = split.arg("--mtp").arg(dir.join("./out.gguf"));
    let error = split.error();
    assert!(error.ends_with("expected a file for each"), "{error}");
}
