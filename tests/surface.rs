//! `specrun verify --contexts --temps`: acceptance and speed over context length, temperature and task.

use std::fs;

use serde_json::Value;

use crate::util::{Dir, bundled, specconv, specrun};

#[test]
fn every_context_temperature_and_task_is_measured() {
    let dir = Dir::new();
    let model = dir.convert(&bundled("tiny-qwen35-mtp"), "m.gguf", &[]);
    let [html, markdown, junit] = ["s.html", "s.md", "s.xml"].map(|name| dir.join(name));
    let verify = specrun("verify")
        .arg(&model)
        .args(["--check", "fit", "-n", "8"]);
    let verify = verify.args(["--contexts", "200,32,320,32", "--temps", "0,0.8"]);
    let verify = verify
        .arg("--html")
        .arg(&html)
        .arg("--markdown")
        .arg(&markdown);
    let report = verify.arg("--junit").arg(&junit).json();
    crate::cli::assert_valid("verify", &report);
    assert_eq!(report["verdict"], "pass");
    let surface = &report["surface"];
    assert_eq!(surface["contexts"], serde_json::json!([32, 200, 320]));
    assert_eq!(surface["temperatures"], serde_json::json!([0.0, 0.8]));
    let cells = surface["cells"].as_array().unwrap();
    // All tasks together, and three kinds.
    assert_eq!(cells.len(), 3 * 2 * 4);
    for group in cells.chunks(4) {
        let tasks: Vec<&Value> = group.iter().map(|cell| &cell["task"]).collect();
        assert_eq!(
            tasks,
            [
                &Value::Null,
                &"completion".into(),
                &"repetitive".into(),
                &"other".into()
            ]
        );
        let sum = |field: &str| -> [u64; 2] {
            let of = |cells: &[Value]| cells.iter().map(|cell| cell[field].as_u64().unwrap()).sum();
            [of(&group[..1]), of(&group[1..])]
        };
        for field in ["n_texts", "n_identical", "n_drafted", "n_accepted"] {
            let [all, kinds] = sum(field);
            assert_eq!(all, kinds, "{field}");
        }
        let all = &group[0];
        assert_eq!(
            (&all["n_texts"], &all["n_identical"]),
            (&6.into(), &6.into())
        );
        assert_eq!(all["speculator"], "draft-mtp");
        for field in ["tokens_per_s", "plain_tokens_per_s", "speedup"] {
            assert!(all[field].as_f64().unwrap() > 0.0, "{all}");
        }
        assert!(
            all["tokens_per_target_pass"].as_f64().unwrap() > 1.0,
            "{all}"
        );
    }
    // Other contexts are other texts.
    let accepted = |i: usize| (&cells[4 * i]["n_drafted"], &cells[4 * i]["n_accepted"]);
    assert!(accepted(0) != accepted(2) || accepted(2) != accepted(4));
    assert_eq!(surface["break_even"].as_array().unwrap().len(), 2);
    let page = fs::read_to_string(&html).unwrap();
    assert!(page.contains("Acceptance surface"), "{page}");
    assert!(
        page.contains("are equal on the acceptance surface"),
        "{page}"
    );
    assert!(page.contains("where draft-mtp reaches"), "{page}");
    assert_eq!(
        page.matches(r#"<rect class="bar" fill-opacity="#).count(),
        24
    );
    let (gain, loss) = (r#"<rect class="gain""#, r#"<rect class="loss""#);
    assert_eq!(page.matches(gain).count() + page.matches(loss).count(), 24);
    let text = fs::read_to_string(&markdown).unwrap();
    assert_eq!(text.matches("| draft-mtp | 320 |").count(), 8, "{text}");
    let suite = fs::read_to_string(&junit).unwrap();
    assert!(
        suite.contains(r#"<testsuite name="surface" tests="6" failures="0""#),
        "{suite}"
    );
}

#[test]
fn a_context_is_filled_with_the_given_text() {
    let dir = Dir::new();
    let model = dir.convert(&bundled("tiny-qwen35-mtp"), "m.gguf", &[]);
    let prompts = dir.file("p.jsonl", r#"{"id": "a", "prompt": "def add(a, b):"}"#);
    let cell = |text: &str| {
        let text = dir.file("filler.txt", text);
        let verify = specrun("verify")
            .arg(&model)
            .args(["--check", "fit", "-n", "12"]);
        let verify = verify.arg("-f").arg(&prompts).arg("--text").arg(text);
        let report = verify.args(["--contexts", "1k"]).json();
        let cells = report["surface"]["cells"].as_array().unwrap().clone();
        // A prompt without a kind is all there is.
        assert_eq!(cells.len(), 1);
        assert_eq!(cells[0]["n_context"], 1024);
        assert_eq!(report["agreement"], Value::Null);
        (
            cells[0]["n_drafted"].clone(),
            cells[0]["n_accepted"].clone(),
        )
    };
    assert_ne!(cell("import os\n"), cell("The weather was fine. "));
    let error = |flags: &[&str]| {
        let ran = specrun("verify").arg(&model).args(flags).run();
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        ran.stderr
    };
    assert!(error(&["--contexts", "0"]).contains("expected 1 to 16777216 tokens"));
    assert!(error(&["--temps=-1"]).contains("expected a temperature from 0 to 100"));
}

#[test]
fn a_draft_without_the_scaling_of_its_target_is_a_warning() {
    let dir = Dir::new();
    let target = bundled("tiny-qwen35-mtp");
    let model = dir.convert(&target, "m.gguf", &[]);
    let flags = ["--target-model-dir", target.to_str().unwrap()];
    let draft = dir.convert(&bundled("tiny-eagle3"), "eagle3.gguf", &flags);
    let warnings = || {
        let verify = specrun("verify").arg(&model).arg("-md").arg(&draft);
        let report = verify.args(["--check", "fit"]).json();
        assert_eq!(report["verdict"], "pass");
        let findings = report["fit"]["findings"].as_array().unwrap().clone();
        let subjects = findings
            .iter()
            .map(|f| f["subject"].as_str().unwrap().to_owned());
        subjects.collect::<Vec<_>>()
    };
    let subject = "eagle3.rope.scaling.type".to_owned();
    assert!(!warnings().contains(&subject));
    let set = specconv("set-metadata").arg(&model);
    let set = set.arg("qwen35.rope.scaling.type=str:yarn");
    set.arg("qwen35.rope.scaling.factor=f32:4").ok();
    assert!(warnings().contains(&subject));
}
