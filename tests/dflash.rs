//! Block drafts: counts of the reference, and of llama.cpp, on the reference drafts.

use serde_json::Value;

use crate::run::{F32_CACHES, comma_separated};
use crate::util::{Dir, read_json, reference, specrun};

/// Drafted and accepted counts for several block lengths; the speculator is detected automatically.
#[test]
fn counts_are_those_of_the_reference() {
    for (checkpoint, name) in [
        ("dflash-qwen3", "draft-dflash"),
        ("dspark-qwen3", "draft-dspark"),
    ] {
        let dir = Dir::new();
        let folder = reference("qwen3");
        let flags = [
            "--outtype",
            "f32",
            "--target-model-dir",
            folder.to_str().unwrap(),
        ];
        let target = dir.convert(&folder, "target.gguf", &flags[..2]);
        let draft = dir.convert(&reference(checkpoint), "draft.gguf", &flags);
        let golden = read_json(&reference(checkpoint).join("logits.json"));
        for run in golden["speculation"].as_array().unwrap() {
            let n_max = run["n_max"].to_string();
            let generate = specrun("generate").arg("-m").arg(&target);
            let generate = generate.arg("-md").arg(&draft);
            let generate = generate
                .arg("--tokens")
                .arg(comma_separated(&golden["prompt"]));
            let n_predict = run["n_predict"].to_string();
            let flags = ["--spec-draft-n-max", &n_max, "-n", &n_predict];
            let generate = generate.args(flags).args(F32_CACHES);
            let report: Value = generate.arg("--ignore-eos").json();
            assert_eq!(report["tokens"], run["tokens"], "{checkpoint} {n_max}");
            let counters = &report["counters"];
            assert_eq!(counters["by_speculator"][0]["name"], name);
            let place = format!("{checkpoint} {n_max}");
            assert_eq!(counters["n_drafted"], run["draft_n"], "{place}");
            assert_eq!(counters["n_accepted"], run["draft_n_accepted"], "{place}");
        }
    }
}
