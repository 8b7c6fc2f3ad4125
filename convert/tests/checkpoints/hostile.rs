//! Checkpoints with damaged files must give an error or a valid plan, never a panic.

use std::fs;

use crate::checkpoint::{Checkpoint, Stored};
use convert::{MtpMode, OutType};
use proptest::prelude::*;
use schemas::gguf::layout;
use serde_json::{Value, json};

const JSON_FILES: [&str; 5] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "model.safetensors.index.json",
];

fn convert(checkpoint: &Checkpoint, outtype: OutType, mtp: MtpMode) {
    let Ok(converted) = checkpoint.convert(outtype, mtp) else {
        return;
    };
    layout(&converted.plan).expect("what is planned can be written");
    for tensor in &converted.plan.tensors {
        // Damaged weights may be out of range, which must be an error and not a panic.
        let _ = tensor.read_all();
    }
}

fn mode() -> impl Strategy<Value = (OutType, MtpMode)> {
    (
        prop::sample::select(vec![
            OutType::F32,
            OutType::F16,
            OutType::BF16,
            OutType::Q8_0,
            OutType::Auto,
        ]),
        prop::sample::select(vec![MtpMode::Inline, MtpMode::Only, MtpMode::Without]),
    )
}

/// Collects a JSON pointer to every value.
fn pointers(value: &Value, at: String, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            let name = name.replace('~', "~0").replace('/', "~1");
            pointers(value, format!("{at}/{name}"), out);
        }),
        // Items of a long list are alike, so the first few are enough.
        Value::Array(items) => items.iter().take(3).enumerate().for_each(|(i, item)| {
            pointers(item, format!("{at}/{i}"), out);
        }),
        _ => {}
    }
    out.push(at);
}

fn odd_value() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(7),
        json!(4_294_967_295u64),
        json!(4_294_967_296u64),
        json!(u64::MAX),
        json!(1e308),
        json!(0.5),
        json!(""),
        json!("../../etc"),
        json!("\u{0}"),
        json!([]),
        json!([[]]),
        json!({}),
        json!({"type": "Sequence", "content": "x"}),
        json!([1, "a", null]),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn odd_values(
        reference in prop::sample::select(vec!["deepseek4", "gemma3", "glm4moe", "llama", "qwen35"]),
        file in prop::sample::select(JSON_FILES.to_vec()),
        place in any::<prop::sample::Index>(),
        value in odd_value(),
        (outtype, mtp) in mode(),
    ) {
        let checkpoint = Checkpoint::of(reference);
        prop_assume!(checkpoint.path(file).exists());
        checkpoint.edit_json(file, |json| {
            let mut places = Vec::new();
            pointers(json, String::new(), &mut places);
            // Most values of a tokenizer are vocabulary entries; the others come first.
            places.sort_by_key(|place| place.starts_with("/model/vocab/"));
            places.truncate(200);
            let place = &places[place.index(places.len())];
            *json.pointer_mut(place).expect("was just found") = value;
        });
        convert(&checkpoint, outtype, mtp);
    }

    #[test]
    fn odd_bytes(
        file in prop::sample::select(
            [&JSON_FILES[..], &["model-00001-of-00002.safetensors", "README.md"]].concat()
        ),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        in_header in any::<bool>(),
        cut in prop::option::weighted(0.3, any::<prop::sample::Index>()),
        (outtype, mtp) in mode(),
    ) {
        let checkpoint = Checkpoint::of("llama");
        let mut bytes = fs::read(checkpoint.path(file)).expect("the file is there");
        let end = if in_header { bytes.len().min(2000) } else { bytes.len() };
        for (place, byte) in edits {
            bytes[place.index(end)] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        checkpoint.write(file, bytes);
        convert(&checkpoint, outtype, mtp);
    }

    #[test]
    fn odd_tensors(
        reference in prop::sample::select(vec!["deepseek4", "gemma3", "glm4moe", "llama", "qwen35"]),
        tensor in any::<prop::sample::Index>(),
        change in 0..5,
        (outtype, mtp) in mode(),
    ) {
        let checkpoint = Checkpoint::of(reference);
        checkpoint.edit_weights(|tensors| {
            let other = tensors[tensor.index(tensors.len() - 1)].clone();
            let tensor = tensor.get_mut(tensors.as_mut_slice());
            match change {
                0 => tensor.shape.insert(0, 1),
                1 => tensor.shape.push(1),
                2 => tensor.shape.reverse(),
                3 => tensor.name = format!("{}.{}", other.name, tensor.name),
                _ => *tensor = Stored { name: tensor.name.clone(), ..other },
            }
        });
        convert(&checkpoint, outtype, mtp);
    }
}
