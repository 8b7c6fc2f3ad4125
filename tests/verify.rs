//! `specrun verify` as people and pipelines use it: baselines, ways to decode, formats.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cli::assert_valid;
use crate::run::{Bundle, failing};
use crate::util::{read_json, specconv, specrun};

fn quantize(bundle: &Bundle, ftype: &str) -> std::path::PathBuf {
    let path = bundle.dir.join(&format!("{ftype}.gguf"));
    let quantize = specconv("quantize").arg(&bundle.target).arg(&path);
    quantize.arg(ftype).ok();
    path
}

fn measure<'a>(report: &'a Value, kind: &str) -> &'a Value {
    let measures = report["baseline"]["measures"].as_array().unwrap();
    measures.iter().find(|m| m["kind"] == kind).unwrap()
}

/// A file against itself, a healthy quantization, and one that went wrong.
#[test]
fn a_baseline_tells_healthy_from_worse() {
    let bundle = Bundle::new();
    let earlier = bundle.dir.join("bf16.json");
    let verify = |model: &Path| {
        bundle
            .verify(model)
            .args(["--check", "identity,acceptance"])
    };
    verify(&bundle.target).arg("--report").arg(&earlier).ok();
    let against = |model: &Path, tolerance: &str| {
        let verify = verify(model).arg("--baseline").arg(&earlier);
        verify.args(["--tolerance", tolerance])
    };
    let report = against(&bundle.target, "speed=0,kl=1e-9,text=0,acceptance=0").json();
    assert_eq!(report["baseline"]["verdict"], "pass");
    assert_eq!(measure(&report, "top-agreement")["found"], 1.0);
    assert_eq!(
        measure(&report, "perplexity")["found"],
        measure(&report, "perplexity")["baseline"]
    );

    let report = against(&quantize(&bundle, "Q4_K_M"), "speed=0").json();
    let divergence = measure(&report, "mean-kl")["found"].as_f64().unwrap();
    assert!(divergence > 0.0 && divergence < 0.1, "{divergence}");

    let report = failing(against(&quantize(&bundle, "Q2_K"), "speed=0"));
    let checks = report["failed"].as_array().unwrap();
    assert!(
        checks.iter().all(|check| check["check"] == "baseline"),
        "{checks:#?}"
    );
    let message = checks[0]["message"].as_str().unwrap();
    assert!(
        message.starts_with("mean KL divergence from the baseline's target is"),
        "{message}"
    );
}

#[test]
fn a_baseline_of_something_else_is_refused() {
    let bundle = Bundle::new();
    let verify = |model: &Path, baseline: &Path| {
        let verify = bundle.verify(model).arg("--baseline").arg(baseline);
        verify.args(["--check", "acceptance"])
    };
    let error = verify(&bundle.target, &bundle.target).error();
    assert!(
        error.starts_with(bundle.target.to_str().unwrap()),
        "{error}"
    );
    let fit = bundle.dir.join("fit.json");
    let look = bundle.verify(&bundle.target).args(["--check", "fit"]);
    look.arg("--report").arg(&fit).ok();
    let error = verify(&bundle.target, &fit).error();
    assert!(error.contains("no scores of its target"), "{error}");
    let error = bundle
        .verify(&bundle.target)
        .args(["--tolerance", "kl=1"])
        .run();
    assert_eq!(error.code, Some(2));
    let error = verify(&bundle.target, &fit)
        .args(["--tolerance", "speed"])
        .run();
    assert!(
        error.stderr.contains("expected NAME=NUMBER"),
        "{}",
        error.stderr
    );
}

#[test]
fn every_way_to_decode_gives_the_same_text() {
    let bundle = Bundle::new();
    let verify = bundle.verify(&bundle.target).args(["--matrix", "quick"]);
    let report = verify.arg("-md").arg(&bundle.draft).json();
    let cells = report["matrix"].as_array().unwrap();
    // Three ways, under the head and under the draft model.
    assert_eq!(cells.len(), 6);
    for cell in cells {
        assert_eq!(cell["n_identical"], cell["n_prompts"], "{cell:#}");
    }
    assert!(cells.iter().any(|cell| cell["shape"]["n_parallel"] == 5));
    let invariance = &report["invariance"];
    assert_eq!(invariance["n_different"], 0);
    assert!(invariance["n_rows"].as_u64() > Some(100), "{invariance:#}");
}

#[test]
fn a_speedup_that_is_not_reached_is_named() {
    let bundle = Bundle::new();
    let verify = bundle.verify(&bundle.target).args(["--min-accept", "0"]);
    let report = failing(verify.args(["--min-speedup", "1000", "--check", "identity"]));
    assert_eq!(report["failed"][0]["check"], "speedup");
    assert_eq!(report["failed"].as_array().unwrap().len(), 1);
}

/// One run in every format: what fails stands in all of them.
#[test]
fn every_format_tells_what_failed() {
    let bundle = Bundle::new();
    let [json, xml, md, html] = ["r.json", "r.xml", "r.md", "r.html"].map(|n| bundle.dir.join(n));
    let verify = bundle
        .verify(&bundle.target)
        .args(["--min-accept", "0.999"]);
    let verify = verify.args(["--check", "fit,identity,acceptance"]);
    let verify = verify.arg("--report").arg(&json).arg("--junit").arg(&xml);
    let ran = verify
        .arg("--markdown")
        .arg(&md)
        .arg("--html")
        .arg(&html)
        .run();
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    let message = "expected at least 0.999";
    assert!(ran.stdout.contains(message), "{}", ran.stdout);
    let failed = &read_json(&json)["failed"][0];
    assert!(failed["message"].as_str().unwrap().contains(message));
    let [xml, md, html] = [xml, md, html].map(|path| fs::read_to_string(path).unwrap());
    for text in [&xml, &md, &html] {
        assert!(text.contains(message), "{text}");
        assert!(text.contains("draft-mtp"), "{text}");
    }
    // One look at the files, three prompts, one floor.
    assert!(
        xml.contains(r#"tests="5""#) && xml.contains(r#"failures="1""#),
        "{xml}"
    );
    assert!(md.starts_with("## ❌ specrun verify: fail"), "{md}");
    assert!(md.contains("| draft-mtp | 3 of 3 |"), "{md}");
    assert!(html.contains("<svg"), "{html}");
    assert_stands_alone(&html);
}

/// A whole page that needs nothing beside itself.
pub(crate) fn assert_stands_alone(html: &str) {
    assert!(
        html.starts_with("<!doctype html>") && html.ends_with("</html>\n"),
        "{html}"
    );
    let outside = ["<script", "src=", "href=", "http:", "https:"];
    assert!(outside.iter().all(|word| !html.contains(word)), "{html}");
}

/// Nine sorts of task, in the columns that published numbers have, and two results side by side.
#[test]
fn tasks_are_measured_and_compared() {
    let bundle = Bundle::new();
    let bench = || {
        specrun("bench")
            .arg("-m")
            .arg(&bundle.target)
            .args(["--tasks", "-n", "8"])
    };
    let [md, html] = ["tasks.md", "tasks.html"].map(|name| bundle.dir.join(name));
    let bench_with_pages = bench().arg("--markdown").arg(&md).arg("--html").arg(&html);
    let report = bench_with_pages.json();
    let [md, html] = [md, html].map(|path| fs::read_to_string(path).unwrap());
    for (task, text) in report["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|task| [(task, &md), (task, &html)])
    {
        assert!(text.contains(task["task"].as_str().unwrap()), "{text}");
    }
    assert!(md.starts_with("## specrun bench: tasks"), "{md}");
    // By task: speed, speed over plain decoding, acceptance; then acceptance by place.
    assert_eq!(html.matches("<svg").count(), 4, "{html}");
    assert_stands_alone(&html);
    let aggregate = &report["aggregate"];
    assert_eq!(aggregate["n_requests"], 10);
    assert_eq!(report["aggregate_unflagged"]["n_requests"], 9);
    let sum = |key: &str| -> u64 {
        let tasks = report["tasks"].as_array().unwrap();
        tasks.iter().map(|task| task[key].as_u64().unwrap()).sum()
    };
    assert_eq!(aggregate["total_draft_accepted"], sum("draft_n_accepted"));
    assert_eq!(aggregate["total_predicted"], sum("predicted_n"));
    assert_valid("bench-tasks", &report);
    let text = bench().ok();
    for line in [
        "code_python        pred=",
        "long_code_review   pred=",
        "Aggregate: {",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let file = bundle.dir.file("a.json", report.to_string());
    let compare = || specrun("bench").arg("--compare").arg(&file);
    let text = compare().arg(&file).ok();
    assert!(text.contains("stepwise_math"), "{text}");
    let error = compare().arg(&bundle.target).error();
    assert!(
        error.starts_with(bundle.target.to_str().unwrap()),
        "{error}"
    );
    let ran = specrun("bench").run();
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("--model <M.gguf>"), "{}", ran.stderr);
}
