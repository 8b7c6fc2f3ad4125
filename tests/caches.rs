//! Element types of the KV cache: effects of rounding keys and values.

use crate::util::{Dir, bundled, reference, specrun};

const TYPES: [&str; 4] = ["f32", "f16", "bf16", "q8_0"];

/// Speculation gives bit-identical results with every K and V cache type, of target and draft.
#[test]
fn identity_holds_with_every_type() {
    let dir = Dir::new();
    let model = dir.convert(&bundled("tiny-qwen35-mtp"), "m.gguf", &[]);
    for (i, k) in TYPES.into_iter().enumerate() {
        let v = TYPES[(i + 1) % TYPES.len()];
        let verify = specrun("verify").arg("-m").arg(&model);
        let verify = verify.args(["-n", "12", "--check", "identity,invariance"]);
        let types = ["-ctk", k, "-ctv", v, "-ctkd", v, "-ctvd", k];
        let report = verify.args(types).json();
        assert_eq!(report["verdict"], "pass", "{k}, {v}");
    }
}

/// Checks the largest difference from the logits with F32 caches. Logits range over about ten units.
#[test]
fn logits_differ_by_what_is_rounded() {
    let dir = Dir::new();
    let model = dir.convert(&bundled("tiny-qwen35-mtp"), "m.gguf", &[]);
    let logits = |name: &str| {
        let logits = specrun("logits").arg("-m").arg(&model);
        let logits = logits.args(["-p", "def add(a, b):\n    return", "--top", "1000000"]);
        let report = logits.args(["-ctk", name, "-ctv", name]).json();
        let positions = report["positions"].as_array().unwrap();
        let mut rows = Vec::new();
        for position in positions {
            let top = position["top"].as_array().unwrap();
            let mut row = vec![f64::NAN; top.len()];
            for token in top {
                let id = token["id"].as_u64().unwrap() as usize;
                row[id] = token["logit"].as_f64().unwrap();
            }
            rows.extend(row);
        }
        rows
    };
    let exact = logits("f32");
    for (name, bound) in [("f16", 0.02), ("bf16", 0.2), ("q8_0", 0.2)] {
        let found = logits(name);
        let differences = found.iter().zip(&exact).map(|(a, b)| (a - b).abs());
        let largest = differences.fold(0.0, f64::max);
        assert!(0.0 < largest && largest < bound, "{name}: {largest}");
    }
}

#[test]
fn heads_with_partial_blocks_are_rejected() {
    let dir = Dir::new();
    let model = dir.convert(&reference("llama"), "m.gguf", &[]);
    let generate = specrun("generate").arg("-m").arg(&model).args(["-p", "a"]);
    let error = generate.args(["-ctv", "q8_0"]).error();
    assert_eq!(
        error,
        format!(
            "{}: a q8_0 cache holds blocks of 32 elements, and key_length is 16: choose f16, bf16 or f32",
            model.display()
        )
    );
    let generate = specrun("generate").arg("-m").arg(&model).args(["-p", "a"]);
    let ran = generate.args(["-ctk", "q4_0"]).run();
    assert!(
        ran.stderr.contains("expected f32 or f16 or bf16 or q8_0"),
        "{}",
        ran.stderr
    );
}
