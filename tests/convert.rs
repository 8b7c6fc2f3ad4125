//! `specconv convert`: its flags and messages. Two checkpoints are compared with the reference converter here,
//! all of them in convert/tests/golden.rs.

use std::fs;

use serde_json::Value;

use crate::util::{Dir, bundled, read_json, reference, sha256, specconv};

/// Flags of the reference converter that we do not have.
const OTHER_FLAGS: [&str; 4] = [
    "--vocab-only",
    "--fuse-qkv",
    "--fuse-gate-up-exps",
    "--split",
];

/// Checks every output of a golden file; whole files are compared by hash.
#[track_caller]
fn outputs_equal(checkpoint: &str, at_least: usize) {
    let golden = read_json(&reference(checkpoint).join("golden.json"));
    let dir = Dir::new();
    let mut n_compared = 0;
    for (name, output) in golden["outputs"].as_object().unwrap() {
        let flags = output["args"].as_array().unwrap();
        let flags: Vec<&str> = flags.iter().map(|flag| flag.as_str().unwrap()).collect();
        let is_other = |flag: &&str| OTHER_FLAGS.iter().any(|other| flag.starts_with(other));
        if flags.iter().any(is_other) {
            continue;
        }
        let target = golden["target"].as_str().map(reference);
        let target = target.iter().map(|folder| folder.to_str().unwrap());
        let target = target.flat_map(|folder| ["--target-model-dir", folder]);
        let flags: Vec<&str> = flags.into_iter().chain(target).collect();
        let path = dir.convert(&reference(checkpoint), "m.gguf", &flags);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, output["size"], "{checkpoint} {name}");
        assert_eq!(sha256(&bytes), output["sha256"], "{checkpoint} {name}");
        n_compared += 1;
    }
    assert!(
        n_compared >= at_least,
        "{checkpoint}: only {n_compared} outputs"
    );
}

#[test]
fn qwen35_equals_the_reference() {
    outputs_equal("qwen35", 13);
}

#[test]
fn eagle3_equals_the_reference() {
    outputs_equal("eagle3-qwen3", 4);
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let dir = Dir::new();
    let hash = |threads: &str| {
        let flags = ["--threads", threads, "--outtype", "q8_0"];
        sha256(&fs::read(dir.convert(&bundled("tiny-qwen35-mtp"), "m.gguf", &flags)).unwrap())
    };
    assert_eq!(hash("1"), hash("5"));
}

#[test]
fn names_follow_the_model_and_the_type() {
    let dir = Dir::new();
    let written = |flags: &[&str], out: &str| {
        let convert = specconv("convert").arg(reference("qwen35")).args(flags);
        let report = convert.arg("-o").arg(dir.join(out)).json();
        let path = report["output"]["path"].as_str().unwrap().to_owned();
        assert!(fs::metadata(&path).unwrap().is_file());
        path.strip_prefix(dir.path().to_str().unwrap())
            .unwrap()
            .to_owned()
    };
    assert_eq!(written(&[], ""), "/Qwen35-381K-BF16.gguf");
    assert_eq!(written(&["--outtype", "f16"], ""), "/Qwen35-381K-F16.gguf");
    assert_eq!(written(&["--mtp"], ""), "/mtp-Qwen35-BF16.gguf");
    assert_eq!(written(&["--no-mtp"], "m-{ftype}.gguf"), "/m-bf16.gguf");
    assert_eq!(
        written(&["--outtype", "q8_0"], "{OUTTYPE}-{outtype}.gguf"),
        "/Q8_0-q8_0.gguf"
    );
}

#[test]
fn a_dry_run_says_the_size_and_writes_nothing() {
    let dir = Dir::new();
    let out = dir.join("m.gguf");
    let convert = || {
        specconv("convert")
            .arg(reference("llama"))
            .arg("-o")
            .arg(&out)
    };
    let planned = convert().arg("--dry-run").json();
    assert_eq!(planned["written"], false);
    assert_eq!(dir.names(), Vec::<String>::new());
    let done = convert().json();
    assert_eq!(done["written"], true);
    for fact in ["path", "size_bytes", "n_tensors", "types"] {
        assert_eq!(planned["output"][fact], done["output"][fact]);
    }
    let bytes = fs::read(&out).unwrap();
    assert_eq!(done["output"]["size_bytes"], bytes.len());
    assert_eq!(planned["output"]["sha256"], serde_json::json!([]));
    assert_eq!(done["output"]["sha256"][0], sha256(&bytes));
}

#[test]
fn assumptions_are_printed_to_stderr() {
    let dir = Dir::new();
    let convert = specconv("convert").arg(reference("qwen35"));
    let ran = convert
        .arg("-o")
        .arg(dir.join("m.gguf"))
        .arg("--json")
        .run();
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let notes = report["notes"].as_array().unwrap();
    assert!(!notes.is_empty());
    for note in notes {
        let line = format!("note: {}\n", note.as_str().unwrap());
        assert!(ran.stderr.contains(&line), "{line:?} not in {}", ran.stderr);
    }
}

#[test]
fn what_cannot_be_converted_is_named() {
    let dir = Dir::new();
    let convert = |folder: &std::path::Path| specconv("convert").arg(folder).error();
    let missing = dir.join("missing");
    assert_eq!(
        convert(&missing),
        format!(
            "{}: does not exist; expected the folder of an HF checkpoint, or hf://org/name",
            missing.display()
        )
    );
    let path = dir.file(
        "config.json",
        r#"{"architectures": ["UnheardOfForCausalLM"]}"#,
    );
    let error = convert(dir.path());
    assert!(
        error.starts_with(&format!(
            "{}: model class \"UnheardOfForCausalLM\" is unknown (supported: ",
            path.display()
        )),
        "{error}"
    );
    let head = specconv("convert").arg(reference("llama")).arg("--mtp");
    let error = head.error();
    assert!(
        error.ends_with("architecture llama has no MTP head to write"),
        "{error}"
    );
}

#[test]
fn supported_models_are_listed() {
    let listed = specconv("convert").args(["--print-supported-models"]).ok();
    let classes: Vec<&str> = listed.lines().collect();
    assert!(classes.contains(&"LlamaForCausalLM"), "{listed}");
    assert!(classes.iter().all(|class| !class.contains(' ')), "{listed}");
}

/// Several outputs of one run equal those of separate `convert` and `quantize` runs.
#[test]
fn several_types_at_once_are_what_each_is_alone() {
    let dir = Dir::new();
    let checkpoint = bundled("tiny-qwen35-mtp");
    let template = dir.join("m-{ftype}.gguf");
    let convert = || specconv("convert").arg(&checkpoint).arg("-o");
    let run = convert().arg(&template);
    let reports = run.args(["--outtype", "bf16,q8_0,q4_k_m"]).json();
    let reports = reports.as_array().unwrap();
    let outtypes: Vec<&Value> = reports.iter().map(|report| &report["outtype"]).collect();
    let bytes = fs::read(dir.join("m-bf16.gguf")).unwrap();
    assert_eq!(reports[0]["output"]["sha256"][0], sha256(&bytes));
    assert_eq!(outtypes, ["bf16", "q8_0", "q4_k_m"]);
    assert_eq!(dir.names(), ["m-bf16.gguf", "m-q4_k_m.gguf", "m-q8_0.gguf"]);
    let alone = dir.join("alone.gguf");
    for outtype in ["bf16", "q8_0"] {
        dir.convert(&checkpoint, "alone.gguf", &["--outtype", outtype]);
        let together = fs::read(dir.join(&format!("m-{outtype}.gguf"))).unwrap();
        assert!(fs::read(&alone).unwrap() == together, "{outtype}");
    }
    fs::remove_file(&alone).unwrap();
    let quantize = specconv("quantize").arg(&checkpoint);
    quantize.arg(&alone).arg("Q4_K_M").ok();
    let together = fs::read(dir.join("m-q4_k_m.gguf")).unwrap();
    assert!(fs::read(&alone).unwrap() == together);

    let error = convert()
        .arg(&alone)
        .args(["--outtype", "bf16,q6_k"])
        .error();
    assert!(error.contains("one name for 2 files"), "{error}");
    let ran = convert().arg(&alone).args(["--outtype", "q4"]).run();
    assert!(ran.stderr.contains("expected one of"), "{}", ran.stderr);
    let error = convert().arg(&alone).args(["--outtype", "q2_k_s"]).error();
    assert!(error.contains("importance matrix"), "{error}");
}
