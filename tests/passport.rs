//! `specrun verify --stamp`: the result of a verification in the keys of the file.

use std::fs;
use std::path::Path;

use schemas::gguf::{Plan, Value as Key, open};
use schemas::passport;
use serde_json::Value;

use crate::util::{Dir, bundled, sha256, specconv, specrun};

/// Converts the bundled model with its head, and verifies it quickly.
fn stamped(dir: &Dir, flags: &[&str]) -> (std::path::PathBuf, Value) {
    let model = dir.convert(&bundled("tiny-qwen35-mtp"), "m.gguf", flags);
    let verify = specrun("verify").arg(&model).arg("--stamp");
    let verify = verify.args(["--check", "identity,acceptance", "-n", "16"]);
    let report = verify.json();
    assert_eq!(report["verdict"], "pass");
    (model, report)
}

fn inspect(path: &Path) -> (Option<i32>, Value) {
    let ran = specconv("inspect").arg(path).arg("--json").run();
    (ran.code, serde_json::from_str(&ran.stdout).unwrap())
}

fn status(path: &Path) -> Value {
    inspect(path).1["passport"]["status"].clone()
}

fn data(plan: &Plan) -> Vec<Vec<u8>> {
    let tensors = plan.tensors.iter();
    tensors.map(|tensor| tensor.read_all().unwrap()).collect()
}

#[test]
fn a_stamp_states_what_was_proved() {
    let dir = Dir::new();
    for (flags, in_place) in [(&["--reserve-header", "8K"][..], true), (&[], false)] {
        let plain = dir.convert(&bundled("tiny-qwen35-mtp"), "plain.gguf", flags);
        let (model, report) = stamped(&dir, flags);
        assert!(data(&open(&model).unwrap()) == data(&open(&plain).unwrap()));
        let len = |path: &Path| fs::metadata(path).unwrap().len();
        assert_eq!(len(&model) == len(&plain), in_place);
        // The report is about the stamped file, so that a card finds it by its hash.
        let hash = &report["provenance"]["files"][0]["sha256"];
        assert_eq!(*hash, sha256(&fs::read(&model).unwrap()));
        let (code, inspected) = inspect(&model);
        assert_eq!(
            (code, &inspected["passport"]["status"]),
            (Some(0), &"valid".into())
        );
        let passport = &inspected["passport"]["passport"];
        assert_eq!(passport["speculator"], "draft-mtp");
        assert_eq!(passport["exact"], true);
        assert_eq!(passport["n_prompts"], 10);
        assert_eq!(passport["backend"], report["backend"]);
        let mtp = &report["speculators"][0]["counters"]["by_draft_position"];
        let rate = passport["acceptance"][0].as_f64().unwrap();
        assert!((rate - mtp[0]["acceptance"].as_f64().unwrap()).abs() < 1e-6);
        let n = passport["n_draft"].as_u64().unwrap();
        assert!(
            (1..=report["n_draft_max"].as_u64().unwrap()).contains(&n),
            "{n}"
        );
        let flags = specconv("draft-flags").arg(&model).ok();
        let expected = format!("--spec-type draft-mtp --spec-draft-n-max {n}\n");
        assert_eq!(flags, expected);
        let words: Vec<&str> = flags.split_whitespace().collect();
        let generate = specrun("generate").arg(&model).args(words);
        generate.args(["-p", "def add(a, b):", "-n", "8"]).ok();
        fs::remove_file(&plain).unwrap();
        fs::remove_file(&model).unwrap();
    }
}

#[test]
fn a_stamp_expires_with_its_tensors() {
    let dir = Dir::new();
    let (model, _) = stamped(&dir, &[]);
    let changed = |name: &str, change: &dyn Fn(&mut Plan)| {
        let mut plan = open(&model).unwrap();
        change(&mut plan);
        dir.gguf(name, &plan)
    };
    // Another byte of a tensor, another name, another key of the passport.
    let mut bytes = fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    let stale = dir.file("byte.gguf", bytes);
    assert_eq!(status(&stale), "stale");
    let ran = specconv("draft-flags").arg(&stale).run();
    assert_eq!((ran.code, ran.stdout.trim()), (Some(1), ""));
    assert!(ran.stderr.contains("passport is stale"), "{}", ran.stderr);
    let renamed = changed("name.gguf", &|plan| plan.tensors.swap(3, 4));
    assert_eq!(status(&renamed), "stale");
    let better = changed("edited.gguf", &|plan| {
        plan.metadata.set("specconv.verify.speedup", 9f32);
    });
    assert_eq!(
        (inspect(&better).0, status(&better)),
        (Some(1), "edited".into())
    );
    let lacking = changed("lacking.gguf", &|plan| {
        _ = plan.metadata.remove("specconv.verify.date");
    });
    assert_eq!(status(&lacking), "edited");
    let mistyped = changed("mistyped.gguf", &|plan| {
        plan.metadata
            .set("specconv.verify.acceptance", Key::from(vec![1u8]));
    });
    assert_eq!(status(&mistyped), "edited");
    let rope = "qwen35.rope.freq_base";
    let base = open(&model).unwrap().metadata.need_f32(rope).unwrap();
    let rotated = changed("rotated.gguf", &|plan| {
        plan.metadata.set(rope, base * 2.0);
    });
    assert_eq!(status(&rotated), "stale");
    // Keys that change no result may change.
    specconv("set-metadata")
        .arg(&model)
        .arg("general.name=str:Other")
        .ok();
    assert_eq!(status(&model), "valid");
    let unread = specconv("inspect").arg(&stale).arg("--no-hash");
    assert_eq!(unread.json()["passport"]["status"], "unchecked");
}

#[test]
fn commands_keep_the_stamp_of_unchanged_tensors_only() {
    let dir = Dir::new();
    let (model, _) = stamped(&dir, &[]);
    let out = |name: &str| dir.path().join(name);
    let split = specconv("split").arg(&model).arg(out("s.gguf"));
    split.args(["--split-max-tensors", "20"]).ok();
    let first = dir.names();
    let first = first
        .iter()
        .find(|name| name.starts_with("s-00001-of"))
        .unwrap();
    assert_eq!(status(&out(first)), "valid");
    specconv("merge")
        .arg(out(first))
        .arg(out("merged.gguf"))
        .ok();
    assert_eq!(status(&out("merged.gguf")), "valid");
    assert!(fs::read(out("merged.gguf")).unwrap() == fs::read(&model).unwrap());
    let quantize = specconv("quantize").arg(&model).arg(out("q.gguf"));
    quantize.arg("Q8_0").ok();
    assert_eq!(status(&out("q.gguf")), Value::Null);
    let parts = specconv("split-mtp").arg(&model);
    let parts = parts.arg("--body").arg(out("body.gguf"));
    parts.arg("--mtp").arg(out("mtp.gguf")).ok();
    assert_eq!(status(&out("body.gguf")), Value::Null);
    assert_eq!(status(&out("mtp.gguf")), Value::Null);
    // A passport of the body does not cover a head that is grafted onto it.
    let mut body = open(&out("body.gguf")).unwrap();
    let mut own = passport::read(&open(&model).unwrap().metadata)
        .unwrap()
        .unwrap();
    own.tensors_sha256 = passport::tensors_sha256(&body, 0, &|| false).unwrap();
    own.settings_sha256 = passport::settings_sha256(&body.metadata);
    own.drafts = vec!["mtp.gguf".to_owned()];
    let mtp = open(&out("mtp.gguf")).unwrap();
    own.drafts_sha256 = vec![passport::tensors_sha256(&mtp, 0, &|| false).unwrap()];
    passport::write(&own, &mut body.metadata);
    let body = dir.gguf("stamped.gguf", &body);
    assert_eq!(status(&body), "valid");
    let graft = specconv("graft-mtp").arg("--target").arg(&body);
    let graft = graft.arg("--mtp").arg(out("mtp.gguf"));
    graft.arg("-o").arg(out("grafted.gguf")).ok();
    assert_eq!(status(&out("grafted.gguf")), Value::Null);
    let requantize = specconv("requantize-mtp").arg(&model);
    let requantize = requantize.arg("-o").arg(out("r.gguf"));
    requantize.args(["--mtp-type", "q8_0"]).ok();
    assert_eq!(status(&out("r.gguf")), Value::Null);
    // Another draft file beside the model is not the one that was verified.
    let flags = specconv("draft-flags").arg(&body).ok();
    assert!(flags.starts_with("-md mtp.gguf --spec-type "), "{flags}");
    let mut bytes = fs::read(out("mtp.gguf")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(out("mtp.gguf"), bytes).unwrap();
    let ran = specconv("draft-flags").arg(&body).run();
    assert_eq!((ran.code, ran.stdout.trim()), (Some(1), ""));
    assert!(ran.stderr.contains("mtp.gguf differ"), "{}", ran.stderr);
}

#[test]
fn only_what_was_proved_is_stamped() {
    let dir = Dir::new();
    let model = dir.convert(&bundled("tiny-qwen35-mtp"), "m.gguf", &[]);
    let before = fs::read(&model).unwrap();
    let verify = || specrun("verify").arg(&model).args(["--stamp", "-n", "8"]);
    let error = verify().args(["--check", "fit"]).error();
    assert!(
        error.contains("--stamp without the check identity"),
        "{error}"
    );
    let failed = verify().args(["--check", "identity,acceptance", "--min-accept", "1"]);
    let failed = failed.run();
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    assert!(failed.stderr.contains("not stamped"), "{}", failed.stderr);
    assert!(fs::read(&model).unwrap() == before);
    let ran = specconv("draft-flags").arg(&model).run();
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("has no passport"), "{}", ran.stderr);
    assert!(ran.stderr.contains("m.gguf --stamp"), "{}", ran.stderr);
}
