//! `specconv inspect`: complete output against golden files, and damaged files.

use std::fs;
use std::path::Path;

use schemas::gguf::{DType, Plan, Tensor, open};
use serde_json::Value;

use crate::util::{Dir, assert_golden, bundled, reference, specconv, specrun};

/// The output for each kind of file equals its golden file.
#[test]
fn texts_are_those_of_the_golden_files() {
    let dir = Dir::new();
    let cases = [
        ("llama", "llama", &["--outtype", "f16"][..]),
        ("qwen3", "qwen3", &["--outtype", "q8_0"]),
        ("qwen35-inline", "qwen35", &[]),
        ("qwen35-sidecar", "qwen35", &["--mtp"]),
        ("qwen35-body", "qwen35", &["--no-mtp"]),
    ];
    for (name, checkpoint, flags) in cases {
        dir.convert(&reference(checkpoint), "m.gguf", flags);
        let inspect = specconv("inspect").args(["m.gguf", "--tensors"]);
        let text = inspect.current_dir(dir.path()).ok();
        assert_golden(&format!("inspect/{name}.txt"), &text);
    }
}

fn whole(dir: &Dir) -> Plan {
    let path = dir.convert(&bundled("tiny-qwen35-mtp"), "whole.gguf", &[]);
    open(&path).unwrap()
}

/// Changes a good file, expects exit code 1, and returns the report.
#[track_caller]
fn failing(dir: &Dir, change: impl FnOnce(&mut Plan)) -> Value {
    let mut plan = whole(dir);
    change(&mut plan);
    let path = dir.gguf("changed.gguf", &plan);
    let ran = specconv("inspect").arg(path).arg("--json").run();
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.stderr, "");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["verdict"], "fail");
    report
}

fn problems(report: &Value) -> Vec<&str> {
    let problems = report["problems"].as_array().unwrap();
    problems.iter().map(|p| p.as_str().unwrap()).collect()
}

#[test]
fn a_declared_head_that_is_not_there() {
    let dir = Dir::new();
    let report = failing(&dir, |plan| plan.tensors.retain(|t| t.layer() != Some(4)));
    assert_eq!(
        problems(&report),
        ["key qwen35.nextn_predict_layers is 1, but blk.4 has no tensors"]
    );
    assert_eq!(report["mtp"]["place"], "none");
    assert_eq!(report["mtp"]["n_declared"], 1);
}

#[test]
fn a_head_that_lacks_a_tensor() {
    let dir = Dir::new();
    let name = "blk.4.nextn.eh_proj.weight";
    let report = failing(&dir, |plan| plan.tensors.retain(|t| t.name != name));
    assert_eq!(
        problems(&report),
        [format!("tensor {name} of the MTP head is missing")]
    );
    assert_eq!(report["mtp"]["missing"], serde_json::json!([name]));
}

#[test]
fn a_head_that_no_key_declares() {
    let dir = Dir::new();
    let report = failing(&dir, |plan| {
        plan.metadata.remove("qwen35.nextn_predict_layers");
        plan.metadata.remove("qwen35.attention.recurrent_layers");
    });
    assert_eq!(report["mtp"]["n_declared"], 0);
    let first = "tensor blk.4.nextn.eh_proj.weight belongs to an MTP head, but key \
                 qwen35.nextn_predict_layers declares none";
    assert!(problems(&report).contains(&first), "{report}");
}

#[test]
fn tensors_that_are_missing_extra_or_of_another_shape() {
    let dir = Dir::new();
    let report = failing(&dir, |plan| {
        let norm = plan.tensor("output_norm.weight").unwrap();
        let extra = Tensor {
            name: "blk.0.unknown.weight".to_owned(),
            ..norm.clone()
        };
        plan.tensors.retain(|t| t.name != "blk.1.ffn_up.weight");
        plan.tensors.push(extra);
        plan.metadata.set("qwen35.feed_forward_length", 99u32);
    });
    let found = problems(&report);
    let has = |problem: &str| assert!(found.contains(&problem), "{problem} not in {found:#?}");
    has("tensor blk.1.ffn_up.weight is missing");
    has("tensor blk.0.unknown.weight is not part of architecture qwen35");
    has("tensor blk.0.ffn_up.weight: shape [256, 512], expected [256, 99] from the keys");
}

#[test]
fn special_tokens_that_the_vocabulary_does_not_have() {
    let dir = Dir::new();
    let report = failing(&dir, |plan| {
        plan.metadata.set("tokenizer.ggml.eos_token_id", 2048u32);
    });
    assert_eq!(
        problems(&report),
        ["key tokenizer.ggml.eos_token_id: token 2048 is outside the vocabulary of 2048"]
    );
}

#[test]
fn keys_that_hold_no_model() {
    let dir = Dir::new();
    let report = failing(&dir, |plan| {
        plan.metadata.remove("qwen35.embedding_length");
    });
    assert_eq!(
        problems(&report),
        ["key qwen35.embedding_length is missing"]
    );
    assert_eq!(report["layers"], Value::Null);
    let report = failing(&dir, |plan| {
        plan.metadata.remove("general.architecture");
    });
    assert_eq!(problems(&report), ["key general.architecture is missing"]);
}

#[test]
fn an_architecture_that_is_not_supported_is_no_problem_of_the_file() {
    let dir = Dir::new();
    let mut plan = whole(&dir);
    plan.metadata.set("general.architecture", "unheard-of");
    let path = dir.gguf("changed.gguf", &plan);
    let report = specconv("inspect").arg(path).json();
    assert_eq!(report["verdict"], "pass");
    let note = report["notes"][0].as_str().unwrap();
    assert!(note.starts_with("architecture unheard-of is not supported"));
    assert!(
        note.ends_with("split, merge, hash and set-metadata accept the file"),
        "{note}"
    );
}

/// A model of DeepSeek V4 is described and quantized, and its head is a sidecar; a DSpark draft for it does not run.
#[test]
fn models_of_several_streams() {
    let dir = Dir::new();
    let note = |file: &Path| -> String {
        let report = specconv("inspect").arg(file).json();
        assert_eq!(report["verdict"], "pass");
        report["notes"][0].as_str().unwrap().to_owned()
    };
    let model = dir.convert(&reference("deepseek4"), "m.gguf", &[]);
    let report = specconv("inspect").arg(&model).json();
    assert_eq!(report["verdict"], "pass");
    assert_eq!(report["notes"].as_array().map_or(0, Vec::len), 0);
    let head = dir.convert(&reference("deepseek4"), "mtp.gguf", &["--mtp"]);
    let described = note(&head);
    assert!(
        described.starts_with("an MTP head without its trunk: run it with "),
        "{described}"
    );
    let report = specconv("inspect").arg(&head).json();
    assert_eq!(report["mtp"]["place"], "sidecar");

    let target = reference("deepseek4").display().to_string();
    let flags = ["--dspark", "--target-model-dir", &target];
    let draft = dir.convert(&reference("deepseek4-dspark"), "draft.gguf", &flags);
    let expected = "a DSpark draft of DeepSeek V4 is converted, but not run";
    let described = note(&draft);
    assert!(described.starts_with(expected), "{described}");
    let target = dir.convert(&bundled("tiny-qwen35-mtp"), "target.gguf", &[]);
    let run = specrun("generate").arg("-m").arg(target);
    let error = run.arg("-md").arg(&draft).args(["-p", "a"]).error();
    let expected = "architecture \"dflash with hyper-connections\" is converted, but not run";
    assert!(error.contains(expected), "{error}");

    // Readers would mix the streams of the head with the weights of the trunk.
    let graft = specconv("graft-mtp").arg("--target").arg(&model);
    let graft = graft.arg("--mtp").arg(&head).arg("-o");
    let ran = graft.arg(dir.join("inline.gguf")).run();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let text = format!("{}{}", ran.stdout, ran.stderr);
    assert!(text.contains("output_hc_fn.weight"), "{text}");

    let quantize = specconv("quantize").arg("--allow-requantize").arg(&model);
    let quantized = dir.join("q.gguf");
    quantize.arg(&quantized).arg("q4_0").ok();
    let found = open(&quantized).unwrap();
    let dtype = |name: &str| found.tensor(name).unwrap().dtype;
    assert_eq!(dtype("blk.0.ffn_gate_tid2eid.weight"), DType::I32);
    assert_eq!(dtype("blk.1.attn_q_a.weight"), DType::Q4_0);
}

/// Files that cannot run alone are described, with the commands that accept them.
#[test]
fn files_that_cannot_run_alone_are_described() {
    let dir = Dir::new();
    let note = |plan: &Plan| -> String {
        let report = specconv("inspect")
            .arg(dir.gguf("described.gguf", plan))
            .json();
        assert_eq!(report["verdict"], "pass", "{report}");
        let note = report["notes"][0].as_str();
        note.unwrap_or_default().to_owned()
    };
    let complete = whole(&dir);
    assert_eq!(note(&complete), "");
    let mut sidecar = complete.clone();
    let in_trunk = |t: &Tensor| t.layer().is_some_and(|layer| layer < 4);
    sidecar.tensors.retain(|tensor| !in_trunk(tensor));
    assert!(note(&sidecar).starts_with("an MTP head without its trunk"));
    let kind = |kind: &str| {
        let mut plan = Plan::new(complete.metadata.clone());
        plan.metadata.remove("general.architecture");
        plan.metadata.set("general.type", kind);
        note(&plan)
    };
    assert!(kind("imatrix").starts_with("an importance matrix"));
    assert!(kind("adapter").starts_with("a LoRA adapter"));
    assert!(kind("mmproj").starts_with("a multimodal projector"));

    let mut renamed = complete.clone();
    let arch = |plan: &mut Plan, arch: &str| {
        plan.metadata.set("general.architecture", arch);
        let n_mtp = u32::from(arch != "minimax-m2");
        plan.metadata.set(format!("{arch}.block_count"), 5u32);
        plan.metadata
            .set(format!("{arch}.nextn_predict_layers"), n_mtp);
    };
    arch(&mut renamed, "minimax-m2");
    let text = note(&renamed);
    assert!(
        text.contains("no MTP head: converters leave the head"),
        "{text}"
    );
    // The head of qwen35 has all tensors of one of hy_v3 but this norm.
    arch(&mut renamed, "hy_v3");
    for tensor in &mut renamed.tensors {
        tensor.name = tensor.name.replace("post_attention_norm", "ffn_norm");
    }
    let text = note(&renamed);
    assert!(text.contains("only the MTP head was checked"), "{text}");
    assert!(text.contains("llama.cpp drafts with it"), "{text}");
    let report = specconv("inspect").arg(dir.join("described.gguf")).json();
    assert_eq!(report["mtp"]["place"], "inline");
    assert_eq!(report["mtp"]["n_declared"], 1);
    let name = "blk.4.nextn.enorm.weight";
    renamed.tensors.retain(|tensor| tensor.name != name);
    let path = dir.gguf("damaged.gguf", &renamed);
    let ran = specconv("inspect").arg(path).arg("--json").run();
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        problems(&report),
        [format!("tensor {name} of the MTP head is missing")]
    );
}

#[test]
fn a_split_model_is_one_model() {
    let dir = Dir::new();
    let plan = whole(&dir);
    let (first, second) = plan.tensors.split_at(20);
    for (no, tensors) in [first, second].into_iter().enumerate() {
        let mut part = plan.clone();
        part.tensors = tensors.to_vec();
        part.metadata.set("split.no", no as u16);
        part.metadata.set("split.count", 2u16);
        let n_tensors = plan.tensors.len() as i32;
        part.metadata.set("split.tensors.count", n_tensors);
        dir.gguf(&format!("m-0000{}-of-00002.gguf", no + 1), &part);
    }
    let [first, second] = [1, 2].map(|n| dir.join(&format!("m-0000{n}-of-00002.gguf")));
    let report = specconv("inspect").arg(&first).json();
    assert_eq!(report["n_parts"], 2);
    assert_eq!(report["n_tensors"], plan.tensors.len());
    let sizes = [&first, &second].map(|path| fs::metadata(path).unwrap().len());
    assert_eq!(report["size_bytes"], sizes.iter().sum::<u64>());
    assert_eq!(report["verdict"], "pass");
    let error = specconv("inspect").arg(&second).error();
    assert!(error.ends_with("open the first shard instead"), "{error}");
}
