//! A tokenizer built from a file's keys gives the same tokens as the reference.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use crate::checkpoint::{Checkpoint, REFERENCE};
use convert::{ConvertConfig, MtpMode, OutType, plan};
use schemas::gguf::Metadata;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

/// Returns the pattern that readers use for a pre-tokenizer name.
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

/// Builds a tokenizer from the keys alone, as a reader of the file does.
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
            // If readers of GGUF produce other tokens, those are expected.
            let expected = case.get("peer_ids").unwrap_or(&case["ids"]);
            let encoding = tokenizer
                .encode(text, false)
                .expect("every byte is a token");
            assert_eq!(json!(encoding.get_ids()), *expected, "{name}: {text:?}");
        }
    }
}

/// Published files write `[\r\n]` as escapes of the pattern, or as the characters themselves.
#[test]
fn patterns_are_recognized_by_meaning() {
    for (name, pre) in [("deepseek2", "deepseek-v3"), ("qwen3", "qwen2")] {
        let checkpoint = Checkpoint::of(name);
        let converted = || checkpoint.convert(OutType::BF16, MtpMode::Inline).unwrap();
        let change_patterns = |change: &dyn Fn(String) -> String| {
            checkpoint.edit_json("tokenizer.json", |j| {
                let steps = j["pre_tokenizer"]["pretokenizers"].as_array_mut().unwrap();
                for pattern in steps
                    .iter_mut()
                    .filter_map(|s| s.pointer_mut("/pattern/Regex"))
                {
                    *pattern = json!(change(pattern.as_str().unwrap().to_owned()));
                }
            });
        };
        let found = |converted: &convert::Converted| {
            let pre = converted.plan.metadata.need_str("tokenizer.ggml.pre");
            pre.unwrap().to_owned()
        };
        let before = converted();
        change_patterns(&|text| text.replace(r"\r\n", "\r\n"));
        let raw = converted();
        assert_eq!(
            (found(&before), found(&raw)),
            (pre.to_owned(), pre.to_owned())
        );
        assert_eq!(raw.notes, before.notes);
        // A pattern with the same effect counts as the known one, and the user gets a note.
        change_patterns(&|text| text.replace(r"|\s+(?!\S)|\s+", r"|\s+(?!\S)|\s"));
        let other = converted();
        assert_eq!(found(&other), pre);
        let notes: Vec<String> = other.notes.iter().map(ToString::to_string).collect();
        assert!(
            notes.iter().any(|n| n.contains(&format!("like {pre}"))),
            "{notes:?}"
        );
        // A pattern with another effect is rejected.
        change_patterns(&|text| text.replace("[\r\n]", "[\n]"));
        let refused = checkpoint.convert(OutType::BF16, MtpMode::Inline);
        assert!(refused.is_err_and(|e| e.to_string().contains("unknown pre-tokenizer pattern")));
    }
}

/// A `tokenizer.json` converted from a SentencePiece model has no scores; the scores derived from its
/// merges sort the pieces in the same order.
#[test]
fn pieces_of_json_are_those_of_the_model() {
    let checkpoint = Checkpoint::of("llama-spm");
    let keys = |checkpoint: &Checkpoint| {
        let converted = checkpoint.convert(OutType::BF16, MtpMode::Inline);
        converted.unwrap_or_else(|e| panic!("{e}")).plan.metadata
    };
    let model = keys(&checkpoint);
    checkpoint.remove("tokenizer.model");
    checkpoint.remove("added_tokens.json");
    let json = keys(&checkpoint);
    assert_eq!(json.str("tokenizer.ggml.model"), Ok(Some("llama")));
    let tokens = |keys: &Metadata| {
        keys.strings("tokenizer.ggml.tokens")
            .unwrap()
            .unwrap()
            .clone()
    };
    let scores = |keys: &Metadata| {
        keys.f32s("tokenizer.ggml.scores")
            .unwrap()
            .unwrap()
            .to_vec()
    };
    let (texts, json_texts) = (tokens(&model), tokens(&json));
    // Tokens of added_tokens.json are padding in this file.
    assert!((0..512).all(|id| (500..502).contains(&id) || texts[id] == json_texts[id]));
    let types = |keys: &Metadata| keys.u32s("tokenizer.ggml.token_type").unwrap().unwrap();
    let (types, json_types) = (types(&model), types(&json));
    assert!((0..512).all(|id| (500..502).contains(&id) || types[id] == json_types[id]));
    let order = |scores: &[f32]| {
        let is_merged = |id: &usize| types[*id] == 1 && texts[*id].to_string().chars().count() > 1;
        let mut ids: Vec<_> = (0..500).filter(is_merged).collect();
        ids.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        ids
    };
    let (scores, json_scores) = (scores(&model), scores(&json));
    assert_eq!(order(&scores), order(&json_scores));
    // The file has no key, because readers add a space before texts by default.
    assert!(!json.contains("tokenizer.ggml.add_space_prefix"));
    checkpoint.edit_json("tokenizer.json", |j| {
        j["normalizer"]["normalizers"][0] = json!(null)
    });
    let never = keys(&checkpoint).bool("tokenizer.ggml.add_space_prefix");
    assert_eq!(never, Ok(Some(false)));
}

#[test]
fn a_tokenizer_is_taken_from_elsewhere() {
    let checkpoint = Checkpoint::of("llama");
    let own = checkpoint.convert(OutType::BF16, MtpMode::Inline).unwrap();
    let donor = Checkpoint::of("llama");
    let take = || {
        plan(&ConvertConfig {
            checkpoint: checkpoint.path("."),
            remote: None,
            target: None,
            outtype: OutType::BF16,
            mtp: MtpMode::Inline,
            clusters: true,
            tokenizer_from: Some(donor.path(".")),
        })
        .unwrap_or_else(|e| panic!("{e}"))
    };
    let tokenizer = |metadata: &Metadata| {
        let keys = metadata
            .iter()
            .filter(|(key, _)| key.starts_with("tokenizer."));
        keys.map(|(key, value)| (key.to_owned(), value.clone()))
            .collect::<Vec<_>>()
    };
    // The checkpoint's own tokenizer cannot be read.
    checkpoint.edit_json("tokenizer.json", |j| {
        j["model"]["type"] = json!("WordPiece")
    });
    assert_eq!(
        tokenizer(&take().plan.metadata),
        tokenizer(&own.plan.metadata)
    );
    // Both can be read, and differ.
    checkpoint.edit_json("tokenizer.json", |j| j["model"]["type"] = json!("BPE"));
    donor.remove("tokenizer_config.json");
    donor.edit_json("tokenizer.json", |j| {
        j["added_tokens"][8]["content"] = json!("<|tool|>")
    });
    let notes: Vec<String> = take().notes.iter().map(ToString::to_string).collect();
    let expected = "the tokenizer of the other folder has other tokens than the checkpoint's: \
                    1008 \"<|tool|>\", not \"<|python_tag|>\"";
    assert!(notes.iter().any(|note| note == expected), "{notes:?}");
}
