//! Against the reference checkpoints: token ids that the tokenizers of the checkpoints and the
//! peer gave for texts picked to be awkward, and any other text through the checkpoints' own
//! tokenizer.

use std::path::{Path, PathBuf};

use schemas::gguf::Metadata;
use serde_json::Value;

use super::*;

const CHECKPOINTS: [&str; 4] = ["llama", "qwen3", "qwen35", "qwen35-256"];

/// The whole text, control tokens included, nothing added.
const EXACT: EncodeConfig = EncodeConfig {
    add_special: false,
    parse_special: true,
};

fn reference(checkpoint: &str, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/reference")
        .join(checkpoint)
        .join(file)
}

fn json(checkpoint: &str, file: &str) -> Value {
    let text = std::fs::read_to_string(reference(checkpoint, file)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The tokenizer keys of the file that the peer made of a checkpoint.
fn metadata(checkpoint: &str) -> Metadata {
    let golden = json(checkpoint, "golden.json");
    let mut metadata = Metadata::new();
    for entry in golden["outputs"]["f32"]["kv"].as_array().unwrap() {
        let key = entry["key"].as_str().unwrap();
        if !key.starts_with("tokenizer.ggml.") {
            continue;
        }
        let items = match entry["ref"].as_str() {
            Some(array) => &golden["arrays"][array],
            None => &entry["value"],
        };
        match (entry["type"].as_str().unwrap(), entry["item"].as_str()) {
            ("string", _) => metadata.set(key, items.as_str().unwrap()),
            ("bool", _) => metadata.set(key, items.as_bool().unwrap()),
            ("uint32", _) => metadata.set(key, ids(items.as_u64().unwrap())),
            ("array", Some("string")) => {
                let texts = items
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|x| x.as_str().unwrap().to_owned());
                metadata.set(key, texts.collect::<Vec<String>>());
            }
            ("array", Some("int32")) => {
                let types = items
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|x| x.as_i64().unwrap() as i32);
                metadata.set(key, types.collect::<Vec<i32>>());
            }
            other => panic!("{key}: {other:?}"),
        }
    }
    metadata
}

fn ids(id: u64) -> u32 {
    id.try_into().unwrap()
}

fn token_list(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| ids(id.as_u64().unwrap()))
        .collect()
}

fn tokenizer(checkpoint: &str) -> Tokenizer {
    Tokenizer::from_metadata(&metadata(checkpoint)).unwrap()
}

#[test]
fn awkward_texts() {
    for checkpoint in CHECKPOINTS {
        let tokenizer = tokenizer(checkpoint);
        for case in json(checkpoint, "logits.json")["tokenizer_cases"]
            .as_array()
            .unwrap()
        {
            let text = case["text"].as_str().unwrap();
            let expected = token_list(case.get("peer_ids").unwrap_or(&case["ids"]));
            assert_eq!(
                tokenizer.encode(text, EXACT),
                expected,
                "{checkpoint}: {text:?}"
            );
            assert_eq!(tokenizer.decode(&expected, ControlText::Show), text);
        }
    }
}
