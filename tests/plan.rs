//! Memory of runs as predicted by `specrun plan`.

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::assert_valid;
use crate::run::Bundle;
use crate::util::specrun;

const MIB: u64 = 1 << 20;

#[test]
fn memory_is_printed_before_it_is_allocated() {
    let bundle = Bundle::new();
    let plan = |flags: &[&str]| {
        let plan = specrun("plan").arg("-m").arg(&bundle.target);
        let plan = plan.arg("-md").arg(&bundle.draft).args(flags).json();
        assert_valid("plan", &plan);
        plan
    };
    let flags = ["-c", "512", "-np", "3", "--spec-type"];
    let report = plan(&[&flags[..], &["draft-mtp,draft-simple,ngram-mod"]].concat());
    let part = |i: usize, key: &str| report["parts"][i][key].as_u64().unwrap();
    let names = report["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| &part["name"]);
    let names: Vec<_> = names.collect();
    assert_eq!(names, ["target", "draft-mtp", "draft-simple", "ngram-mod"]);
    // One attention layer and three recurrent ones.
    let target = schemas::gguf::open(&bundle.target).unwrap();
    let key = |name: &str| {
        let key = format!("qwen35.{name}");
        u64::from(target.metadata.need_u32(&key).unwrap())
    };
    let kv_row = key("attention.head_count_kv") * key("attention.key_length");
    assert_eq!(part(0, "kv_bytes"), 2 * 2 * kv_row * 512 * 3);
    assert_eq!(report["parts"][0]["kv_types"], json!(["f16", "f16"]));
    let (conv, inner) = (key("ssm.conv_kernel"), key("ssm.inner_size"));
    let (state, groups) = (key("ssm.state_size"), key("ssm.group_count"));
    let slot = 4 * ((conv - 1) * (inner + 2 * groups * state) + state * inner);
    assert_eq!(part(0, "state_bytes"), 3 * 3 * slot);
    assert_eq!(part(0, "checkpoint_bytes"), 3 * 3 * slot);
    assert_eq!(part(0, "n_draft_max"), 64);
    let n_kept = part(0, "n_kept_states");
    assert_eq!(part(0, "kept_state_bytes"), 3 * 3 * slot * n_kept);
    // Drafts of 64 would take more than a quarter of these weights.
    assert_eq!(report["parts"][0]["rollback"], "checkpoint");
    assert!(part(0, "kept_state_bytes") <= part(0, "weight_bytes") / 4);
    assert!(n_kept < 64);
    assert_eq!(report["parts"][1]["rollback"], "truncation");
    assert_eq!(part(1, "kv_bytes"), part(0, "kv_bytes"));
    assert_eq!(part(3, "table_bytes"), 16 * MIB);
    let sums = (0..4).map(|i| {
        let part = report["parts"][i].as_object().unwrap();
        let bytes = part.iter().filter(|(key, _)| key.ends_with("_bytes"));
        bytes.map(|(_, n)| n.as_u64().unwrap()).sum::<u64>()
    });
    assert_eq!(report["total_bytes"].as_u64(), Some(sums.sum()));
    // The head's weights are part of the target's file and are counted once.
    let file = std::fs::metadata(&bundle.target).unwrap().len();
    assert!(part(0, "weight_bytes") + part(1, "weight_bytes") < file);

    let report = plan(&["-c", "512", "--spec-type", "draft-mtp"]);
    assert_eq!(report["parts"][0]["rollback"], "states");
    assert_eq!(report["parts"][0]["n_kept_states"], 3);

    let plan = specrun("plan").arg("-m").arg(&bundle.target);
    let ran = plan.args(["-c", "4000000000", "-np", "1000"]).run();
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
}

/// A prompt given as embeddings in a file gives the same text; invalid files are refused.
#[test]
fn embeddings_continue_as_their_tokens() {
    let bundle = Bundle::new();
    let generate = |flag: &str, value: &str| {
        let generate = specrun("generate").arg("-m").arg(&bundle.target);
        generate.args([flag, value, "-n", "24", "--spec-type", "draft-mtp"])
    };
    let target = schemas::gguf::open(&bundle.target).unwrap();
    let mut tensors = target.tensors.iter();
    let table = tensors
        .find(|tensor| tensor.name == "token_embd.weight")
        .unwrap();
    let bytes = table.read_all().unwrap();
    let row_bytes = bytes.len() / 2048;
    let tokens = [300usize, 17, 900, 41, 300, 17];
    // BF16 is the upper half of F32.
    let rows = tokens.map(|token| bytes[token * row_bytes..(token + 1) * row_bytes].to_vec());
    let rows = rows.concat();
    let wide = rows
        .chunks_exact(2)
        .flat_map(|half| [0, 0, half[0], half[1]]);
    let file = bundle.dir.file("prompt.f32", wide.collect::<Vec<u8>>());
    let ids = tokens.map(|token| token.to_string()).join(",");
    let (by_id, by_row) = (
        generate("--tokens", &ids).json(),
        generate("--embeddings", file.to_str().unwrap()).json(),
    );
    assert_eq!(by_id["tokens"], by_row["tokens"]);
    for key in ["n_drafted", "n_accepted"] {
        assert_eq!(by_id["counters"][key], by_row["counters"][key]);
    }
    let cut = bundle.dir.file("cut.f32", [0; 7]);
    let error = generate("--embeddings", cut.to_str().unwrap()).error();
    assert!(error.contains("7 bytes, expected rows of 1024"), "{error}");
    let nan = bundle.dir.file("nan.f32", [255; 1024]);
    let error = generate("--embeddings", nan.to_str().unwrap()).error();
    assert!(error.contains("row 0 has a NaN"), "{error}");
}

/// Prompts of texts and embeddings: the embeddings of a text's tokens continue as the text, and an image's
/// coordinates change the text, which drafts do not.
#[test]
fn parts_continue_with_and_without_drafts() {
    let bundle = Bundle::new();
    let target = schemas::gguf::open(&bundle.target).unwrap();
    let table = target.tensor("token_embd.weight").unwrap();
    let (bytes, n_embd) = (table.read_all().unwrap(), table.ne0() as usize);
    let tokenize = specrun("tokenize").arg("-m").arg(&bundle.target);
    let middle = tokenize.args(["-p", "(a, b", "--no-special"]).json();
    let tokens = middle["tokens"].as_array().unwrap();
    let tokens = tokens.iter().map(|id| id.as_u64().unwrap() as usize);
    let tokens: Vec<usize> = tokens.collect();
    // BF16 is the upper half of F32.
    let rows = tokens.iter().flat_map(|&token| {
        let row = &bytes[2 * n_embd * token..][..2 * n_embd];
        row.chunks_exact(2)
            .flat_map(|half| [0, 0, half[0], half[1]])
    });
    let shape = format!("({}, {n_embd})", tokens.len());
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    npy.extend((header.len() as u16).to_le_bytes());
    npy.extend(header.bytes().chain(rows));
    bundle.dir.file("image.npy", npy);
    let positions: Vec<[usize; 3]> = (0..tokens.len()).map(|i| [9, 9 + i, 9]).collect();
    let line = |positions: &str| {
        let image = format!(r#"{{"embeddings": "image.npy"{positions}}}"#);
        let (before, after) = (r#"{"text": "def add"}"#, r#"{"text": "):\n    return"}"#);
        format!(r#"{{"id": "a", "parts": [{before}, {image}, {after}]}}"#)
    };
    let plain = bundle.dir.file("plain.jsonl", line(""));
    let placed = format!(r#", "positions": {positions:?}"#);
    let placed = bundle.dir.file("placed.jsonl", line(&placed));
    let generate = |prompts: &Path, spec_type: &str| {
        let generate = specrun("generate").arg("-m").arg(&bundle.target);
        let generate = generate.arg("-f").arg(prompts);
        generate.args(["-n", "24", "--spec-type", spec_type]).json()["tokens"].clone()
    };
    let text = specrun("generate").arg("-m").arg(&bundle.target);
    let text = text.args(["-p", "def add(a, b):\n    return", "-n", "24"]);
    let tokens_of = |report: Value| report["tokens"].clone();
    let logits = |flag: &str, value: &std::ffi::OsStr| {
        let logits = specrun("logits").arg("-m").arg(&bundle.target);
        let report = logits.arg(flag).arg(value).json();
        report["positions"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .clone()
    };
    let whole = "def add(a, b):\n    return";
    // The parts end where the tokenizer splits the text into words.
    let of_whole = logits("-p", whole.as_ref());
    assert_eq!(logits("-f", plain.as_os_str()), of_whole);
    assert_ne!(logits("-f", placed.as_os_str()), of_whole);
    assert_eq!(generate(&plain, "none"), tokens_of(text.json()));
    for spec_type in ["draft-mtp", "ngram-simple,draft-mtp"] {
        for prompts in [&plain, &placed] {
            assert_eq!(generate(prompts, "none"), generate(prompts, spec_type));
        }
    }
    let verify = specrun("verify").arg("-m").arg(&bundle.target);
    let verify = verify.arg("-f").arg(&placed).args(["-n", "24"]);
    let verify = verify.args(["--check", "fit,identity,invariance"]);
    let report = verify.args(["--spec-type", "draft-mtp"]).json();
    assert_eq!(report["runs"][0]["logits_identical"], true, "{report}");
}

/// Long drafts of a model with recurrent layers need reruns from checkpoints; the text does not change.
#[test]
fn drafts_of_64_are_rolled_back() {
    let bundle = Bundle::new();
    let generate = |flags: &[&str]| {
        let generate = specrun("generate").arg("-m").arg(&bundle.target);
        let prompt = "def add(a, b):\n    return a + b\n\n\n".repeat(4);
        let generate = generate.args(["-p", prompt.as_str(), "-n", "96"]);
        generate.args(flags)
    };
    let long = ["--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", "4"];
    let long = [&long[..], &["--spec-ngram-mod-n-min", "1"]].concat();
    assert_eq!(generate(&[]).ok(), generate(&long).ok());
    let counters = generate(&long).json()["counters"].clone();
    let n = |key: &str| counters[key].as_u64().unwrap();
    assert!(n("n_drafted") > n("n_accepted") && n("n_accepted") > 0);
    let auto = [&long[..], &["--spec-draft-auto"]].concat();
    assert_eq!(generate(&[]).ok(), generate(&auto).ok());
}
