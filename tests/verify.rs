//! `specrun verify` as users and CI run it: baselines, decoding settings, output formats.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cli::assert_valid;
use crate::run::{Bundle, CHECKPOINTS, failing};
use crate::util::{Dir, bundled, read_json, reference, sha256, specconv, specrun};

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

/// Compares a file with itself, with a healthy quantization, and with a damaged one.
#[test]
fn a_baseline_detects_a_worse_model() {
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
    assert_eq!(measure(&report, "same-text")["found"], 1.0);
    assert_eq!(measure(&report, "top-agreement")["found"], 1.0);
    assert_eq!(
        measure(&report, "perplexity")["found"],
        measure(&report, "perplexity")["baseline"]
    );

    // Reports of older versions have no provenance and no repeated speed measurements.
    let mut old = read_json(&earlier);
    for field in ["provenance", "policy"] {
        old.as_object_mut().unwrap().remove(field);
    }
    for field in ["n_rows", "n_not_finite", "speed"] {
        old["target"].as_object_mut().unwrap().remove(field);
    }
    for field in ["speed", "error"] {
        old["speculators"][0].as_object_mut().unwrap().remove(field);
    }
    let old = bundle.dir.file("old.json", old.to_string());
    let report = verify(&bundle.target).arg("--baseline").arg(old).json();
    assert_eq!(report["baseline"]["verdict"], "pass");

    let report = against(&quantize(&bundle, "Q4_K_M"), "speed=0").json();
    let divergence = measure(&report, "mean-kl")["found"].as_f64().unwrap();
    assert!(divergence > 0.0 && divergence < 0.1, "{divergence}");
    let kl = &report["baseline"]["kl"];
    assert_eq!(kl["mean"], divergence);
    let rising = ["median", "p90", "p95", "p99", "p99_9", "max"];
    let rising = rising.map(|name| kl[name].as_f64().unwrap());
    assert!(rising.is_sorted() && rising[5] > divergence, "{kl:#}");
    let error = kl["standard_error"].as_f64().unwrap();
    assert!(error > 0.0 && error < divergence, "{kl:#}");
    // Any text is allowed by default, so there is no `same-text` measure.
    let measures = report["baseline"]["measures"].as_array().unwrap();
    assert!(measures.iter().all(|m| m["kind"] != "same-text"));

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

/// Nothing in an undamaged file of any architecture looks like damage.
#[test]
fn undamaged_files_pass_the_preflight() {
    let dir = Dir::new();
    let prompt = dir.file("prompt.jsonl", r#"{"id": "a", "prompt": "def f"}"#);
    for checkpoint in CHECKPOINTS {
        let file = dir.convert(&reference(checkpoint), &format!("{checkpoint}.gguf"), &[]);
        let verify = specrun("verify").arg("-m").arg(file).arg("-f").arg(&prompt);
        let verify = verify.args(["--spec-type", "ngram-mod", "--check", "fit"]);
        let fit = &verify.json()["fit"];
        assert_eq!(fit["verdict"], "pass", "{checkpoint}: {fit}");
    }
}

#[test]
fn every_way_to_decode_gives_the_same_text() {
    let bundle = Bundle::new();
    let verify = bundle.verify(&bundle.target).args(["--matrix", "quick"]);
    let report = verify.arg("-md").arg(&bundle.draft).json();
    let cells = report["matrix"].as_array().unwrap();
    // Three decoding settings, with the head and with the draft model.
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
    let message = report["failed"][0]["message"].as_str().unwrap();
    assert!(message.contains("(median of "), "{message}");
}

/// Speeds are medians of at least five alternating runs, with their range.
#[test]
fn speeds_have_a_spread() {
    let bundle = Bundle::new();
    let report = bundle.verify(&bundle.target).args(["--check", "speed"]);
    let report = report.json();
    let speculator = &report["speculators"][0];
    let speed = &speculator["speed"];
    assert!(speed["n_runs"].as_u64() >= Some(5), "{speed:#}");
    for name in ["tokens_per_s", "plain_tokens_per_s", "ratio"] {
        let [min, median, max] = ["min", "median", "max"].map(|k| speed[name][k].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= max, "{speed:#}");
    }
    let n_ratios = speed["ratios"].as_array().unwrap().len() as u64;
    assert_eq!(Some(n_ratios), speed["n_runs"].as_u64(), "{speed:#}");
    let [low, high] = ["low", "high"].map(|k| speed["interval"][k].as_f64().unwrap());
    assert!(low <= high, "{speed:#}");
    let expected = match (low > 1.0, high < 1.0) {
        (true, _) => "faster",
        (_, true) => "slower",
        _ => "unclear",
    };
    assert_eq!(speed["change"], expected, "{speed:#}");
    assert_eq!(speculator["speedup"], speed["ratio"]["median"]);
    assert_eq!(
        report["target"]["tokens_per_s"],
        report["target"]["speed"]["median"]
    );
    assert!(
        !speed["by_kind"].as_array().unwrap().is_empty(),
        "{speed:#}"
    );
    // Without the acceptance check no speed is measured.
    let report = bundle.verify(&bundle.target).args(["--check", "identity"]);
    let report = report.json();
    assert_eq!(report["speculators"][0]["speedup"], Value::Null);
    assert_eq!(report["target"]["tokens_per_s"], Value::Null);
}

/// Verifies each speculator alone and the chain, at the requested number of sequences and policy.
#[test]
fn a_chain_is_verified_as_given() {
    let bundle = Bundle::new();
    let verify = || {
        let verify = bundle.verify(&bundle.target).arg("-md").arg(&bundle.draft);
        let verify = verify.args(["--check", "identity,acceptance", "--parallel", "2"]);
        verify.args(["--spec-type", "ngram-simple,draft-simple"])
    };
    let chain = "ngram-simple,draft-simple";
    for policy in ["first", "best"] {
        let report = verify().args(["--spec-policy", policy]).json();
        assert_eq!(report["policy"], policy);
        assert_eq!(report["n_parallel"], 2);
        let speculators = report["speculators"].as_array().unwrap();
        let names: Vec<&str> = speculators
            .iter()
            .map(|s| s["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["ngram-simple", "draft-simple", chain]);
        assert_eq!(report["runs"].as_array().unwrap().len(), 9);
        let entry = &speculators[2];
        assert_eq!(entry["verdict"], "pass", "{entry:#}");
        assert_eq!(entry["n_identical"], 3);
        let counters = &entry["counters"];
        let members = counters["by_speculator"].as_array().unwrap();
        assert_eq!(members.len(), 2);
        for count in ["n_drafted", "n_accepted"] {
            let sum: u64 = members.iter().map(|m| m[count].as_u64().unwrap()).sum();
            assert_eq!(counters[count], sum, "{counters:#}");
        }
        assert!(members[1]["n_drafted"].as_u64() > Some(0), "{counters:#}");
    }
    let text = verify().ok();
    assert!(
        text.contains(&format!("{chain}: 3 of 3 prompts identical")),
        "{text}"
    );
    assert!(text.contains("    draft-simple: drafted "), "{text}");
    // Speculators that were detected from the files do not form a requested chain.
    let report = bundle.verify(&bundle.target).arg("-md").arg(&bundle.draft);
    let report = report.args(["--check", "identity"]).json();
    assert_eq!(report["speculators"].as_array().unwrap().len(), 2);
}

/// A speculator that drafted nothing is not reported as passed in any format.
#[test]
fn a_drafter_without_drafts_is_not_exercised() {
    let bundle = Bundle::new();
    let prompts = "{\"id\": \"a\", \"prompt\": \"def f(x):\"}";
    let prompts = bundle.dir.file("short.jsonl", prompts);
    let verify = || {
        let verify = specrun("verify").arg("-m").arg(&bundle.target);
        let verify = verify.arg("-f").arg(&prompts).args(["-n", "4"]);
        verify.args(["--spec-type", "ngram-map-k"])
    };
    let report = verify().json();
    let speculator = &report["speculators"][0];
    assert_eq!(report["verdict"], "pass");
    assert_eq!(speculator["verdict"], "not-exercised", "{speculator:#}");
    assert_eq!(speculator["counters"]["n_drafted"], 0);
    assert_eq!(speculator["speedup"], 1.0);
    assert_eq!(speculator["speed"], Value::Null);
    assert_eq!(speculator["floor_held"], Value::Null);
    let [xml, md, html] = ["r.xml", "r.md", "r.html"].map(|n| bundle.dir.join(n));
    let text = verify().arg("--junit").arg(&xml).arg("--markdown").arg(&md);
    let text = text.arg("--html").arg(&html).ok();
    let [xml, md, html] = [xml, md, html].map(|path| fs::read_to_string(path).unwrap());
    for shown in [&text, &xml, &md, &html] {
        assert!(shown.contains("not exercised"), "{shown}");
    }
    assert!(
        text.ends_with("verdict: pass; not exercised: ngram-map-k\n"),
        "{text}"
    );
    assert!(
        xml.contains("<skipped") && xml.contains(r#"skipped="1""#),
        "{xml}"
    );
    for flags in [&["--strict"][..], &["--min-drafted", "3"]] {
        let report = failing(verify().args(flags));
        assert_eq!(report["failed"][0]["check"], "drafted");
        assert_eq!(report["speculators"][0]["verdict"], "fail");
        let message = report["failed"][0]["message"].as_str().unwrap();
        assert!(
            message.starts_with("drafted 0 tokens on 1 prompts"),
            "{message}"
        );
    }
    let report = failing(verify().args(["--min-speedup", "1.1"]));
    let message = report["failed"][0]["message"].as_str().unwrap();
    assert!(
        message.contains("1.000 as nothing was drafted"),
        "{message}"
    );
}

/// Most published files have no MTP head: the target alone can be verified.
#[test]
fn a_model_without_a_drafter_is_verified() {
    let bundle = Bundle::new();
    let checkpoint = bundled("tiny-qwen35-mtp");
    let body = bundle.dir.convert(&checkpoint, "body.gguf", &["--no-mtp"]);
    let earlier = bundle.dir.join("body.json");
    let report = bundle.verify(&body).arg("--report").arg(&earlier).json();
    assert_eq!(report["verdict"], "pass");
    assert_eq!(report["fit"]["verdict"], "pass");
    assert_eq!(report["invariance"]["verdict"], "pass");
    assert_eq!(report["speculators"].as_array().unwrap().len(), 0);
    let target = &report["target"];
    assert_eq!(target["n_not_finite"], 0);
    assert!(target["n_rows"].as_u64() > Some(40), "{target:#}");
    let verify = bundle.verify(&body).arg("--baseline").arg(&earlier);
    // Speeds differ while other programs run.
    let report = verify.args(["--tolerance", "speed=0"]).json();
    assert_eq!(report["baseline"]["n_same_text"], 3);
    assert!(
        bundle
            .verify(&body)
            .args(["--check", "fit"])
            .ok()
            .contains("verdict: pass")
    );
    // An existing head need not be used.
    let report = bundle
        .verify(&bundle.target)
        .args(["--spec-type", "none"])
        .json();
    assert_eq!(report["speculators"].as_array().unwrap().len(), 0);
    assert_eq!(report["verdict"], "pass");
}

/// Texts end where the context is full, with drafts and without.
#[test]
fn a_context_size_limits_texts() {
    let bundle = Bundle::new();
    let verify = |n_ctx: &str| {
        let verify = bundle.verify(&bundle.target).args(["-c", n_ctx]);
        verify.args(["--check", "identity", "--spec-type", "draft-mtp"])
    };
    let n_prompts: Vec<u64> = verify("0").json()["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["n_prompt_tokens"].as_u64().unwrap())
        .collect();
    let n_ctx = n_prompts.iter().max().unwrap() + 10;
    for run in verify(&n_ctx.to_string()).json()["runs"]
        .as_array()
        .unwrap()
    {
        let n_prompt = run["n_prompt_tokens"].as_u64().unwrap();
        let n_tokens = run["counters"]["n_tokens"].as_u64().unwrap();
        assert_eq!(n_tokens, 40.min(n_ctx - n_prompt), "{run:#}");
        assert_eq!(run["logits_identical"], true);
    }
    let error = verify("3").error();
    assert!(error.contains("context"), "{error}");
}

/// A report states the program that made it, the date and the input files.
#[test]
fn a_report_has_its_origin() {
    let bundle = Bundle::new();
    let verify = |n: &str| {
        let verify = specrun("verify").arg("-m").arg(&bundle.target);
        let verify = verify.arg("-md").arg(&bundle.draft);
        let report = verify.args(["-n", n, "--check", "fit"]).json();
        report["provenance"].clone()
    };
    let found = verify("4");
    let files = found["files"].as_array().unwrap();
    assert_eq!(files.len(), 2);
    for (file, path) in files.iter().zip([&bundle.target, &bundle.draft]) {
        let bytes = fs::read(path).unwrap();
        assert_eq!(file["name"], path.file_name().unwrap().to_str().unwrap());
        assert_eq!(file["size_bytes"], bytes.len());
        assert_eq!(file["sha256"], sha256(&bytes));
        assert_eq!(file["file_type"], "BF16");
    }
    assert_eq!(found["tool_version"], env!("CARGO_PKG_VERSION"));
    assert!(!found["tool_commit"].as_str().unwrap().is_empty());
    let date: Vec<char> = found["date"].as_str().unwrap().chars().collect();
    let digits = date.iter().filter(|c| c.is_ascii_digit()).count();
    assert_eq!((date.len(), digits, date[10], date[19]), (20, 14, 'T', 'Z'));
    assert!(!found["cpu"]["name"].as_str().unwrap().is_empty());
    assert_eq!(found["prompts_sha256"], verify("4")["prompts_sha256"]);
    assert_ne!(found["prompts_sha256"], verify("5")["prompts_sha256"]);
}

/// Every output format contains the failed checks.
#[test]
fn every_format_names_the_failed_check() {
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
    assert!(
        ran.stderr.contains(&format!("wrote {}", html.display())),
        "{}",
        ran.stderr
    );
    let message = "expected at least 0.999";
    assert!(ran.stdout.contains(message), "{}", ran.stdout);
    let failed = &read_json(&json)["failed"][0];
    assert!(failed["message"].as_str().unwrap().contains(message));
    assert_eq!(failed["limit"], 0.999);
    let [xml, md, html] = [xml, md, html].map(|path| fs::read_to_string(path).unwrap());
    for text in [&xml, &md, &html] {
        assert!(text.contains(message), "{text}");
        assert!(text.contains("draft-mtp"), "{text}");
    }
    // The files, the target, three prompts, the drafts, one floor.
    assert!(
        xml.contains(r#"tests="7""#) && xml.contains(r#"failures="1""#),
        "{xml}"
    );
    assert!(md.starts_with("## ❌ specrun verify: fail"), "{md}");
    assert!(md.contains("| draft-mtp | fail | 3 of 3 |"), "{md}");
    assert!(html.contains("<svg"), "{html}");
    assert_self_contained(&html);
    // The text is the same, but the drafter is not to be used: no part of it is green.
    for part in ["Is it safe to use?", "Is it faster?", "at least 0.999"] {
        assert!(html.contains(part), "{part}: {html}");
    }
    // The answers are the same everywhere: texts are identical, and still the drafter is not to be used.
    let answers = html.split("class=\"answers\"").nth(1).unwrap();
    let answers = answers.split("<dl>").next().unwrap();
    assert!(!answers.contains("answer pass"), "{answers}");
    let text = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [answers, md.as_str(), text.as_str()] {
        for part in [
            "draft-mtp: acceptance",
            "Texts with and without drafts are identical",
            "Not usable",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    assert!(md.contains("**Is it safe to use? No.** "), "{md}");
    assert!(text.contains("Is it safe to use? No. "), "{text}");
    let drafters = html.split("<h2>Drafters</h2>").nth(1).unwrap();
    let drafters = drafters.split("<details").next().unwrap();
    assert!(!drafters.contains(r#"class=" pass""#), "{drafters}");
    assert!(drafters.contains("bar failed"), "{drafters}");
}

/// Checks that an HTML page is complete and needs no other files.
pub(crate) fn assert_self_contained(html: &str) {
    assert!(
        html.starts_with("<!doctype html>") && html.ends_with("</html>\n"),
        "{html}"
    );
    let outside = ["<script", "src=", "href=", "http:", "https:"];
    assert!(outside.iter().all(|word| !html.contains(word)), "{html}");
}

/// Measures nine kinds of tasks, with the columns of published results, and compares two results.
#[test]
fn tasks_are_measured_and_compared() {
    let bundle = Bundle::new();
    let bench = || {
        specrun("bench").arg("-m").arg(&bundle.target).args([
            "--tasks",
            "-n",
            "8",
            "--spec-policy",
            "best",
        ])
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
    // Charts by task: speed, speedup, acceptance rate. Then acceptance by draft position.
    assert_eq!(html.matches("<svg").count(), 4, "{html}");
    assert_self_contained(&html);
    let aggregate = &report["aggregate"];
    assert_eq!(aggregate["n_requests"], 10);
    assert_eq!(report["n_runs"], 3);
    for task in report["tasks"].as_array().unwrap() {
        match task["draft_n"].as_u64() {
            Some(0) => assert_eq!(task["speedup"], 1.0, "{task:#}"),
            _ => {
                assert_eq!(task["speed"]["n_runs"], 3, "{task:#}");
                assert_eq!(task["speedup"], task["speed"]["ratio"]["median"]);
            }
        }
    }
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
        "all 10 tasks: ",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let tables = text
        .lines()
        .filter(|line| !line.starts_with(bundle.target.to_str().unwrap()));
    let longest = tables.map(|line| line.chars().count()).max();
    assert!(longest <= Some(80), "{text}");
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
    assert!(ran.stderr.contains("no model was given"), "{}", ran.stderr);
}
