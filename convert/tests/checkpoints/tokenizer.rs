//! The tokenizer that a file describes gives the reference's tokens.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use crate::checkpoint::{Checkpoint, REFERENCE};
use convert::{MtpMode, OutType};
use schemas::gguf::Metadata;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

/// The pattern that readers split by under a name.
fn pattern(pre: &str) -> &'static str {
    match pre {
        "llama-bpe" => {
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        "qwen2" => {
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        "qwen35" => {
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        other => panic!("no reference has the pre-tokenizer {other}"),
    }
}

/// A tokenizer from the keys alone, as a reader of the file makes it.
fn from_metadata(metadata: &Metadata) -> Tokenizer {
    let texts = |key: &str| metadata.strings(key).unwrap().expect("the key is there");
    let tokens = texts("tokenizer.ggml.tokens");
    let types = metadata.u32s("tokenizer.ggml.token_type").unwrap().unwrap();
    let pre = metadata.need_str("tokenizer.ggml.pre").unwrap();
    let vocab: serde_json::Map<_, _> = (0u32..)
        .zip(tokens)
        .map(|(id, text)| (text.to_string(), json!(id)))
        .collect();
    let merges: Vec<_> = texts("tokenizer.ggml.merges")
        .iter()
        .map(ToString::to_string)
        .collect();
    let flags = |special: bool| {
        json!({
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": special,
        })
    };
    let added: Vec<Value> = (0u32..)
        .zip(tokens.iter().zip(types))
        .filter(|(_, (_, token_type))| matches!(token_type, 3 | 4))
        .map(|(id, (text, token_type))| {
            let mut token = flags(token_type == 3);
            token["id"] = json!(id);
            token["content"] = json!(text.to_string());
            token
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let split = json!({
        "type": "Split", "pattern": {"Regex": pattern(pre)}, "behavior": "Isolated", "invert": false,
    });
    let json = json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "model": {
            "type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": pre == "llama-bpe",
        },
    });
    Tokenizer::from_str(&json.to_string()).expect("the keys make a tokenizer")
}

#[test]
fn tokens_are_those_of_the_reference() {
    for name in ["llama", "qwen3", "qwen35", "qwen35-256"] {
        let converted = Checkpoint::of(name).convert(OutType::F32, MtpMode::Inline);
        let tokenizer = from_metadata(&converted.expect("converts").plan.metadata);
        let path = Path::new(REFERENCE).join(name).join("logits.json");
        let logits: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let cases = logits["tokenizer_cases"].as_array().expect("a list");
        assert!(cases.len() > 5, "{name}");
        for case in cases {
            let text = case["text"].as_str().unwrap();
            // Where readers of GGUF give other tokens, those are the ones to expect.
            let expected = case.get("peer_ids").unwrap_or(&case["ids"]);
            let encoding = tokenizer
                .encode(text, false)
                .expect("every byte is a token");
            assert_eq!(json!(encoding.get_ids()), *expected, "{name}: {text:?}");
        }
    }
}
