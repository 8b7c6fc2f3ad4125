//! `specconv quantize` against what the reference quantizer made of the same files.

use std::fs;

use quantize::FType;

use crate::util::{Dir, bundled, read_json, reference, sha256, specconv};

/// Whole files, compared by their hash: every file type that we write, from both source types, and
/// the halves of a model.
#[test]
fn files_equal_the_reference() {
    let golden = read_json(&reference("qwen35-256").join("quant.json"));
    let dir = Dir::new();
    let sources: [(&str, &[&str]); 4] = [
        ("f32", &["--outtype", "f32"]),
        ("bf16", &["--outtype", "bf16"]),
        ("mtp-f32", &["--outtype", "f32", "--mtp"]),
        ("no-mtp-f32", &["--outtype", "f32", "--no-mtp"]),
    ];
    let mut n_files = 0;
    for (source, flags) in sources {
        let input = dir.convert(&reference("qwen35-256"), "in.gguf", flags);
        for ftype in FType::all() {
            let case = format!("{source}/{ftype}");
            let Some(expected) = golden["outputs"].get(&case) else {
                continue;
            };
            let output = dir.join("out.gguf");
            let quantize = specconv("quantize").arg(&input).arg(&output);
            let report = quantize.arg(ftype.name()).json();
            let bytes = fs::read(&output).unwrap();
            assert_eq!(bytes.len() as u64, expected["size"], "{case}");
            assert_eq!(sha256(&bytes), expected["sha256"], "{case}");
            assert_eq!(report["ftype"], ftype.name());
            assert_eq!(report["output"]["size_bytes"], bytes.len());
            n_files += 1;
        }
    }
    assert_eq!(n_files, 42);
}

/// The same with flags. Keys tell the importance matrix as it was given, so it is given alike.
#[test]
fn files_made_with_flags_equal_the_reference() {
    let checkpoint = reference("qwen35-256");
    let golden = read_json(&checkpoint.join("quant.json"));
    let dir = Dir::new();
    let imatrix = fs::read(checkpoint.join("imatrix.gguf")).unwrap();
    dir.file("qwen35-256-imatrix.gguf", imatrix);
    let mut n_files = 0;
    for source in ["f32", "bf16"] {
        dir.convert(&checkpoint, "in.gguf", &["--outtype", source]);
        for (case, expected) in golden["outputs"].as_object().unwrap() {
            let Some((of, variant)) = case.split_once('/') else {
                continue;
            };
            let (name, _) = variant.split_once('-').unwrap_or((variant, ""));
            let (Some(flags), Ok(ftype)) = (expected["flags"].as_array(), name.parse::<FType>())
            else {
                continue;
            };
            if of != source {
                continue;
            }
            let flags = flags.iter().map(|flag| flag.as_str().unwrap());
            let quantize = specconv("quantize").current_dir(dir.path()).args(flags);
            quantize.args(["in.gguf", "out.gguf", ftype.name()]).ok();
            let bytes = fs::read(dir.join("out.gguf")).unwrap();
            assert_eq!(sha256(&bytes), expected["sha256"], "{case}");
            n_files += 1;
        }
    }
    assert_eq!(n_files, 10);
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
fn rules_may_lie_in_a_file_and_nothing_is_written_in_a_dry_run() {
    let dir = Dir::new();
    dir.convert(&bundled("tiny-draft"), "in.gguf", &["--outtype", "f32"]);
    dir.file("types.txt", "attn_v=q8_0\n  ffn_down=q5_1 ");
    let quantize = || specconv("quantize").current_dir(dir.path());
    let rules = [
        "--tensor-type",
        "attn_v=q8_0",
        "--tensor-type",
        "ffn_down=q5_1",
    ];
    quantize()
        .args(rules)
        .args(["in.gguf", "a.gguf", "q4_0"])
        .ok();
    let rules = ["--tensor-type-file", "types.txt"];
    quantize()
        .args(rules)
        .args(["in.gguf", "b.gguf", "q4_0"])
        .ok();
    assert!(fs::read(dir.join("a.gguf")).unwrap() == fs::read(dir.join("b.gguf")).unwrap());
    let text = quantize()
        .args(["--dry-run", "in.gguf", "c.gguf", "q4_0"])
        .ok();
    assert!(text.starts_with("would write c.gguf: "), "{text}");
    assert!(text.contains("\ntensor data "), "{text}");
    assert_eq!(dir.names(), ["a.gguf", "b.gguf", "in.gguf", "types.txt"]);
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
