//! `specrun verify --check agreement`: drafts at every position predict what decoding measures.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::util::{Dir, bundled, reference, root, specrun};

/// The bundled target and its drafts: with the file, or in the target itself.
fn files(dir: &Dir) -> (PathBuf, Vec<PathBuf>) {
    let target = bundled("tiny-qwen35-mtp");
    let model = dir.convert(&target, "target.gguf", &[]);
    let flags = ["--target-model-dir", target.to_str().unwrap()];
    let draft = dir.convert(&bundled("tiny-draft"), "draft.gguf", &[]);
    let eagle3 = dir.convert(&bundled("tiny-eagle3"), "eagle3.gguf", &flags);
    (model, vec![draft, eagle3])
}

fn verify(model: &Path, drafts: &[PathBuf], check: &str, flags: &[&str]) -> Value {
    let mut verify = specrun("verify").arg(model).args(["--check", check]);
    for draft in drafts {
        verify = verify.arg("-md").arg(draft);
    }
    let report = verify.args(flags).json();
    crate::cli::assert_valid("verify", &report);
    report
}

/// Compares what decoding would count with what it counted.
fn assert_predicted(found: &Value, measured: &Value) {
    for field in [
        "n_tokens",
        "n_drafted",
        "n_accepted",
        "n_target_passes",
        "tokens_per_target_pass",
        "accepted_lengths",
        "by_draft_position",
    ] {
        let (found, measured) = (&found["decoded"][field], &measured["counters"][field]);
        assert_eq!(found, measured, "{field}");
    }
}

#[test]
fn the_drafts_are_those_of_decoding() {
    let dir = Dir::new();
    let (model, drafts) = files(&dir);
    for flags in [
        &["--spec-draft-n-max", "3"][..],
        &["--spec-draft-n-max", "1"],
        &["--spec-draft-n-max", "7", "--temp", "0.8", "--seed", "3"],
        &["--spec-draft-n-max", "4", "--spec-draft-p-min", "0.6"],
    ] {
        let flags = [flags, &["-n", "24"]].concat();
        let report = verify(&model, &drafts, "identity,agreement", &flags);
        let found = &report["agreement"];
        assert_eq!(
            (&found["n_texts"], &found["texts"]),
            (&10.into(), &"own".into())
        );
        assert_eq!(found["n_other_choices"], 0);
        assert_eq!(found["writing_ms"], Value::Null);
        let speculators = found["speculators"].as_array().unwrap();
        let names: Vec<&str> = speculators
            .iter()
            .map(|s| s["name"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            ["draft-simple", "draft-eagle3", "draft-mtp"],
            "{flags:?}"
        );
        for (found, measured) in speculators
            .iter()
            .zip(report["speculators"].as_array().unwrap())
        {
            assert_eq!(found["name"], measured["name"]);
            assert_predicted(found, measured);
            // Every position counts, not only those at which a pass begins.
            let n = |s: &Value| s["by_draft_position"][0]["n_drafted"].as_u64().unwrap();
            assert!(n(found) > n(&measured["counters"]), "{found}");
        }
    }
}

/// Blocks, drafts that attend to the target's keys and values, and several heads in a chain.
#[test]
fn drafts_of_other_kinds_are_predicted_too() {
    let dir = Dir::new();
    for (target, draft, name) in [
        ("qwen3", Some("dflash-qwen3"), "draft-dflash"),
        ("qwen3", Some("dspark-qwen3"), "draft-dspark"),
        ("gemma4", Some("gemma4-assistant"), "draft-mtp"),
        ("mimo2", None, "draft-mtp"),
    ] {
        let target = reference(target);
        let model = dir.convert(&target, "target.gguf", &[]);
        let flags = ["--target-model-dir", target.to_str().unwrap()];
        let flags = match name {
            "draft-mtp" => &[][..],
            _ => &flags,
        };
        let draft = draft.map(|draft| dir.convert(&reference(draft), "draft.gguf", flags));
        let drafts: Vec<PathBuf> = draft.into_iter().collect();
        let flags = ["-n", "8", "--min-accept", "0"];
        let report = verify(&model, &drafts, "identity,agreement", &flags);
        let found = &report["agreement"]["speculators"][0];
        assert_eq!(found["name"], name);
        assert!(
            found["decoded"]["n_drafted"].as_u64().unwrap() > 0,
            "{found}"
        );
        assert_predicted(found, &report["speculators"][0]);
    }
}

#[test]
fn texts_are_written_once_or_given() {
    let dir = Dir::new();
    let (model, _) = files(&dir);
    let both = verify(&model, &[], "identity,agreement", &["-n", "20"]);
    let alone = verify(&model, &[], "fit,agreement", &["-n", "20"]);
    let speculators = |report: &Value| {
        let mut found = report["agreement"]["speculators"].clone();
        for own in found.as_array_mut().unwrap() {
            for field in ["elapsed_ms", "floor", "floor_held"] {
                own.as_object_mut().unwrap().remove(field);
            }
        }
        found
    };
    assert_eq!(speculators(&both), speculators(&alone));
    assert!(alone["agreement"]["writing_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(alone["speculators"], Value::Array(Vec::new()));
    // The floor is that of the predicted rate, unless the acceptance is measured.
    let floor = &alone["agreement"]["speculators"][0]["floor"];
    assert_eq!(floor["acceptance"], 0.4);
    assert_eq!(alone["agreement"]["speculators"][0]["floor_held"], true);
    let ran = specrun("verify")
        .arg(&model)
        .args(["--check", "agreement", "-n", "20"]);
    let ran = ran.args(["--min-accept", "0.99"]).run();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(
        ran.stdout.contains("FAILED acceptance, draft-mtp"),
        "{}",
        ran.stdout
    );

    let text: String = fs::read_to_string(root().join("README.md")).unwrap();
    let given = dir.file("given.txt", &text[..6000]);
    let flags = ["--text", given.to_str().unwrap(), "--min-accept", "0"];
    let report = verify(&model, &[], "agreement", &flags);
    let found = &report["agreement"];
    assert_eq!(found["texts"], "given");
    // A text of another origin is not what the target would have written.
    assert!(found["n_other_choices"].as_u64().unwrap() > 0, "{found}");
    let own = &found["speculators"][0];
    assert_eq!(own["decoded"], Value::Null);
    let n = |k: usize| own["by_draft_position"][k]["n_drafted"].as_u64().unwrap();
    assert!(n(0) == found["n_positions"].as_u64().unwrap() && n(0) > n(1) && n(1) > n(2));

    let short = dir.file("short.txt", "too short");
    let error = specrun("verify")
        .arg(&model)
        .args(["--check", "agreement", "--text"]);
    let error = error.arg(short).error();
    assert!(error.contains("short.txt: "), "{error}");
    let error = specrun("verify")
        .arg(&model)
        .args(["--check", "fit", "--text"]);
    assert!(
        error
            .arg(given)
            .error()
            .starts_with("--text without the check agreement")
    );
}
