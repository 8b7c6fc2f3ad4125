//! `specconv quantize` against what the reference quantizer made of the same files.

use std::fs;

use crate::util::{Dir, bundled, read_json, reference, sha256, specconv};

/// Whole files, compared by their hash: from both source types, and the halves of a model.
#[test]
fn files_equal_the_reference() {
    let golden = read_json(&reference("qwen35-256").join("quant.json"));
    let dir = Dir::new();
    let cases = [
        ("f32", "Q8_0"),
        ("f32", "Q4_K_M"),
        ("bf16", "Q8_0"),
        ("bf16", "Q4_K_M"),
        ("mtp-f32", "Q4_K_M"),
        ("no-mtp-f32", "Q4_K_M"),
    ];
    for (source, ftype) in cases {
        let (flag, outtype) = match source.rsplit_once('-') {
            Some((flag, outtype)) => (Some(format!("--{flag}")), outtype),
            None => (None, source),
        };
        let flags: Vec<&str> = flag.iter().map(String::as_str).collect();
        let flags = [&["--outtype", outtype], flags.as_slice()].concat();
        let input = dir.convert(&reference("qwen35-256"), "in.gguf", &flags);
        let output = dir.join("out.gguf");
        let quantize = specconv("quantize").arg(&input).arg(&output);
        let report = quantize.arg(ftype).json();
        let bytes = fs::read(&output).unwrap();
        let expected = &golden["outputs"][format!("{source}/{ftype}")];
        assert_eq!(bytes.len() as u64, expected["size"], "{source} {ftype}");
        assert_eq!(sha256(&bytes), expected["sha256"], "{source} {ftype}");
        assert_eq!(report["ftype"], ftype);
        assert_eq!(report["output"]["size_bytes"], bytes.len());
    }
}

#[test]
fn a_checkpoint_is_quantized_without_a_file_in_between() {
    let dir = Dir::new();
    let checkpoint = bundled("tiny-qwen35-mtp");
    let converted = dir.convert(&checkpoint, "f32.gguf", &["--outtype", "f32"]);
    let quantize = |input: &std::path::Path, name: &str| {
        let out = dir.join(name);
        let quantize = specconv("quantize").arg(input).arg(&out).arg("q4_k_m");
        quantize.ok();
        fs::read(out).unwrap()
    };
    let two_steps = quantize(&converted, "two-steps.gguf");
    assert!(two_steps == quantize(&checkpoint, "one-step.gguf"));
    assert_eq!(dir.names(), ["f32.gguf", "one-step.gguf", "two-steps.gguf"]);
}

#[test]
fn the_output_may_be_left_out_and_threads_change_nothing() {
    let dir = Dir::new();
    let input = dir.convert(&bundled("tiny-draft"), "in.gguf", &["--outtype", "f32"]);
    specconv("quantize").arg(&input).args(["Q4_K_M", "1"]).ok();
    let out = dir.join("out.gguf");
    let with_out = specconv("quantize").arg(&input).arg(&out);
    with_out.args(["Q4_K_M", "--threads", "5"]).ok();
    assert_eq!(
        dir.names(),
        ["ggml-model-Q4_K_M.gguf", "in.gguf", "out.gguf"]
    );
    assert!(fs::read(dir.join("ggml-model-Q4_K_M.gguf")).unwrap() == fs::read(out).unwrap());
}

#[test]
fn what_is_no_type_is_named() {
    let dir = Dir::new();
    let input = dir.convert(&bundled("tiny-draft"), "in.gguf", &[]);
    let quantize = |words: &[&str]| specconv("quantize").arg(&input).args(words).error();
    assert!(quantize(&["out.gguf", "Q9_X"]).contains("\"Q9_X\""));
    assert!(quantize(&["Q9_X"]).contains("\"Q9_X\""));
    assert!(quantize(&["out.gguf", "Q8_0", "many"]).contains("\"many\""));
}
