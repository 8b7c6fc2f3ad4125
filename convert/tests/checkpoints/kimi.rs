//! Kimi K2: the weights of `deepseek2` under the names of Kimi's classes, with a vocabulary of tiktoken ranks.
//! The expected vocabulary is that of `tests/reference/kimi.py`, the expected tensors are those that llama.cpp
//! writes for `deepseek2`.

use std::fs;
use std::path::Path;

use convert::{Converted, MtpMode, OutType};
use safetensors::Dtype;
use schemas::gguf::Tensor;
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, REFERENCE, Stored};

fn tokenizer_file(name: &str) -> Vec<u8> {
    fs::read(Path::new(REFERENCE).join("kimi").join(name)).expect("kimi.py wrote it")
}

fn expected() -> Value {
    serde_json::from_slice(&tokenizer_file("expected.json")).expect("kimi.py wrote it")
}

/// Replaces the tokenizer, and leaves out the fields that Kimi's configs do not have.
fn text_model() -> Checkpoint {
    let checkpoint = Checkpoint::of("deepseek2");
    checkpoint.remove("tokenizer.json");
    for file in ["tiktoken.model", "tokenizer_config.json"] {
        checkpoint.write(file, tokenizer_file(file));
    }
    checkpoint.edit_json("config.json", |config| {
        let fields = config.as_object_mut().unwrap();
        fields.remove("head_dim");
        fields.insert("model_type".to_owned(), json!("kimi_k2"));
        fields.insert("bos_token_id".to_owned(), json!(292));
        fields.insert("eos_token_id".to_owned(), json!(294));
        let mut rope = fields.remove("rope_parameters").unwrap();
        let rope_fields = rope.as_object_mut().unwrap();
        let theta = rope_fields.remove("rope_theta").unwrap();
        let kind = rope_fields.remove("rope_type").unwrap();
        rope_fields.insert("type".to_owned(), kind);
        fields.insert("rope_theta".to_owned(), theta);
        fields.insert("rope_scaling".to_owned(), rope);
    });
    checkpoint
}

/// Nests the config and renames the weights as in checkpoints that also read images.
fn with_vision(class: &str, model_type: &str, text_class: bool) -> Checkpoint {
    let checkpoint = text_model();
    checkpoint.edit_json("config.json", |config| {
        let mut text = config.clone();
        let fields = text.as_object_mut().unwrap();
        fields.insert("model_type".to_owned(), json!("deepseek_v3"));
        if !text_class {
            fields.remove("architectures");
        }
        *config = json!({
            "architectures": [class], "model_type": model_type, "text_config": text,
            "bos_token_id": 292, "eos_token_id": 294,
        });
    });
    checkpoint.edit_weights(|tensors| {
        for tensor in tensors.iter_mut() {
            tensor.name = format!("language_model.{}", tensor.name);
        }
        for name in ["vision_tower.encoder.weight", "mm_projector.proj.0.weight"] {
            tensors.push(Stored {
                name: name.to_owned(),
                dtype: Dtype::F32,
                shape: vec![1],
                bytes: vec![0; 4],
            });
        }
    });
    checkpoint
}

fn convert(checkpoint: &Checkpoint) -> Converted {
    let converted = checkpoint.convert(OutType::BF16, MtpMode::Inline);
    converted.unwrap_or_else(|e| panic!("{e}"))
}

/// Returns everything about a tensor but its place in the file, sorted by name.
fn contents(tensors: &[Tensor]) -> Vec<(String, Vec<u64>, String, Vec<u8>)> {
    let mut all: Vec<_> = tensors
        .iter()
        .map(|t| {
            let bytes = t.read_all().unwrap();
            (t.name.clone(), t.shape.clone(), t.dtype.to_string(), bytes)
        })
        .collect();
    all.sort();
    all
}

/// Returns the keys of the architecture, with their values.
fn sizes(converted: &Converted) -> Vec<(String, String)> {
    let all = converted.plan.metadata.iter();
    let sizes = all.filter(|(key, _)| key.starts_with("deepseek2."));
    sizes
        .map(|(key, value)| (key.to_owned(), value.to_string()))
        .collect()
}

#[test]
fn vocabularies_of_ranks_are_those_of_the_reference() {
    let converted = convert(&text_model());
    let metadata = &converted.plan.metadata;
    let expected = expected();
    let texts = |key: &str| -> Vec<String> {
        let texts = metadata.strings(&format!("tokenizer.ggml.{key}")).unwrap();
        texts.unwrap().iter().map(ToString::to_string).collect()
    };
    assert_eq!(json!(texts("tokens")), expected["tokens"]);
    assert_eq!(json!(texts("merges")), expected["merges"]);
    let types = metadata.u32s("tokenizer.ggml.token_type").unwrap();
    assert_eq!(json!(types), expected["token_type"]);
    let keys = metadata.iter().map(|(key, _)| key);
    let keys: Vec<&str> = keys.filter(|key| key.starts_with("tokenizer.")).collect();
    assert_eq!(
        keys,
        [
            "tokenizer.ggml.model",
            "tokenizer.ggml.pre",
            "tokenizer.ggml.tokens",
            "tokenizer.ggml.token_type",
            "tokenizer.ggml.merges",
            "tokenizer.ggml.bos_token_id",
            "tokenizer.ggml.eos_token_id",
            "tokenizer.chat_template",
        ]
    );
    assert_eq!(metadata.need_str("tokenizer.ggml.pre"), Ok("kimi-k2"));
    assert_eq!(metadata.need_u32("tokenizer.ggml.eos_token_id"), Ok(294));
}

/// The weights of the text part are those of DeepSeek's class, and so are the sizes, whose order follows from
/// a config without defaults. Only DeepSeek's class keeps its head.
#[test]
fn weights_and_sizes_are_those_of_deepseek() {
    let original = Checkpoint::of("deepseek2");
    let body = original.convert(OutType::BF16, MtpMode::Without).unwrap();
    let whole = original.convert(OutType::BF16, MtpMode::Inline).unwrap();
    let text = convert(&text_model());
    assert!(contents(&text.plan.tensors) == contents(&whole.plan.tensors));
    let sorted = |converted: &Converted| {
        let mut sizes = sizes(converted);
        sizes.sort();
        sizes
    };
    assert_eq!(sorted(&text), sorted(&whole));
    for (class, model_type) in [
        ("KimiK25ForConditionalGeneration", "kimi_k25"),
        ("KimiVLForConditionalGeneration", "kimi_vl"),
    ] {
        let converted = convert(&with_vision(class, model_type, false));
        assert!(
            contents(&converted.plan.tensors) == contents(&body.plan.tensors),
            "{class}"
        );
        assert_eq!(sorted(&converted), sorted(&body), "{class}");
        // Without the default of a field, its keys are after those of every text model.
        let keys: Vec<String> = sizes(&converted).into_iter().map(|(key, _)| key).collect();
        let at = |key: &str| {
            keys.iter()
                .position(|found| found == &format!("deepseek2.{key}"))
        };
        assert_eq!(
            at("attention.key_length"),
            at("attention.kv_lora_rank").map(|at| at + 1),
            "{keys:?}"
        );
        let error = with_vision(class, model_type, false).refusal(MtpMode::Only);
        assert!(error.contains("deepseek2"), "{error}");
    }
    // The class of the text part has precedence.
    let converted = convert(&with_vision(
        "KimiK25ForConditionalGeneration",
        "kimi_k25",
        true,
    ));
    assert!(contents(&converted.plan.tensors) == contents(&whole.plan.tensors));
}

#[test]
fn damaged_ranks_are_refused() {
    let ranks = String::from_utf8(tokenizer_file("tiktoken.model")).unwrap();
    let refusal = |ranks: String| {
        let checkpoint = text_model();
        checkpoint.write("tiktoken.model", ranks);
        checkpoint.refusal(MtpMode::Inline)
    };
    let line = |n: usize| ranks.lines().nth(n - 1).unwrap();
    assert_eq!(
        refusal(ranks.replacen(line(3), "not base64 2", 1)),
        "tiktoken.model: field line 3: expected a token of 1 to 1024 bytes in base64, and its rank, \
         found not base64 2"
    );
    let clash = refusal(ranks.clone() + "YWFh 7\n");
    assert!(clash.contains("tiktoken.model"), "{clash}");
    assert!(clash.contains('7'), "{clash}");
    let outside = refusal(ranks.clone() + "YWFh 99999999\n");
    assert!(outside.contains("99999999"), "{outside}");
    // Other families have other patterns, which their files do not state.
    let qwen = Checkpoint::of("qwen2");
    qwen.remove("tokenizer.json");
    qwen.write("qwen.tiktoken", ranks);
    let error = qwen.refusal(MtpMode::Inline);
    assert!(
        error.contains("only those of Kimi are supported"),
        "{error}"
    );
}

/// The class of GLM 4.7 Flash always routes by sigmoid; readers would assume softmax without the key.
#[test]
fn glm_lite_without_a_scoring_function_routes_by_sigmoid() {
    let checkpoint = Checkpoint::of("glm4moelite");
    let with = convert(&checkpoint);
    checkpoint.edit_json("config.json", |config| {
        let removed = config.as_object_mut().unwrap().remove("scoring_func");
        assert!(removed.is_some());
    });
    let without = convert(&checkpoint);
    let key = "deepseek2.expert_gating_func";
    assert_eq!(without.plan.metadata.need_u32(key), Ok(2));
    assert_eq!(without.plan.metadata, with.plan.metadata);
}
