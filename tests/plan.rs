//! Memory of runs as predicted by `specrun plan`.

use serde_json::json;

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
