//! Inputs of `specrun`: flags and environment variables known from llama.cpp, models on the
//! Hub, lookup files that grow, and conversations.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;

use serde_json::{Value, json};

use crate::cli::assert_valid;
use crate::hub;
use crate::mock::Mock;
use crate::util::{Cmd, Dir, bundled, reference, send, specconv, specrun, status};

/// The bundled target as a file.
fn target(dir: &Dir) -> PathBuf {
    dir.convert(&bundled("tiny-qwen35-mtp"), "m.gguf", &[])
}

fn generate(model: &Path) -> Cmd {
    specrun("generate").arg("-m").arg(model)
}

/// Returns the usage error of a command.
#[track_caller]
fn usage(command: Cmd) -> String {
    let ran = command.run();
    assert_eq!(ran.code, Some(2), "{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.stdout, "");
    ran.stderr
}

#[test]
fn misspelt_and_removed_flags_are_errors() {
    for command in [
        specrun("-hg").arg("x"),
        specrun("generate").args(["-hx", "org/name"]),
        specrun("generate").arg("-help"),
        specrun("-Version"),
        specconv("-help"),
        specconv("inspect").arg("-hf"),
    ] {
        let error = usage(command);
        assert!(
            error.starts_with("error: unexpected argument '-"),
            "{error}"
        );
    }
    for (old, new) in [
        ("--draft", "--spec-draft-n-max"),
        ("--draft-max=4", "--spec-draft-n-max"),
        ("--draft-n", "--spec-ngram-mod-n-max"),
        ("--draft-min", "--spec-draft-n-min"),
        ("--draft-n-min", "--spec-ngram-mod-n-min"),
    ] {
        let error = usage(specrun("generate").args(["-p", "x", old, "4"]));
        let name = old.split('=').next().unwrap();
        let expected = format!("error: {name} was removed. Use ");
        assert!(
            error.starts_with(&expected) && error.contains(new),
            "{error}"
        );
    }
    // A repository without a name, and without a model.
    for args in [&["-hf"][..], &["-p", "x"], &["-hf", "-p", "x"]] {
        usage(specrun("generate").args(args));
    }
}

#[test]
fn variables_of_llama_cpp_are_read_and_flags_win() {
    let dir = Dir::new();
    let model = target(&dir);
    let model = model.to_str().unwrap();
    let run = || {
        specrun("generate")
            .args(["-p", "def main"])
            .env("LLAMA_ARG_MODEL", model)
    };
    let tokens = |report: Value| report["tokens"].as_array().unwrap().len();
    let limited = || {
        run()
            .env("LLAMA_ARG_N_PREDICT", "5")
            .env("LLAMA_ARG_THREADS", "-1")
    };
    assert_eq!(tokens(limited().json()), 5);
    assert_eq!(tokens(limited().args(["-n", "3", "-t", "1"]).json()), 3);
    let drafted = limited().env("LLAMA_ARG_SPEC_TYPE", "draft-mtp").json();
    assert_eq!(drafted["counters"]["by_speculator"][0]["name"], "draft-mtp");
    let error = usage(run().env("LLAMA_ARG_CTX_SIZE", "many"));
    assert!(error.contains("invalid value 'many'"), "{error}");
    // The context is full after that many tokens, prompt included.
    let report = run().env("LLAMA_ARG_CTX_SIZE", "12").json();
    let n_prompt = report["prompt_tokens"].as_array().unwrap().len();
    assert_eq!(report["stop"], "context");
    assert_eq!(n_prompt + tokens(report), 12);
    let error = run().args(["-c", "1"]).error();
    assert!(error.contains("context"), "{error}");
    let long = run().args(["-c", "1000000", "-n", "2"]).run();
    assert_eq!(long.code, Some(0), "{}", long.stderr);
    assert!(long.stderr.contains("was trained for"), "{}", long.stderr);
}

#[test]
fn models_come_from_the_hub() {
    let dir = Dir::new();
    let whole = target(&dir);
    let draft = dir.convert(&bundled("tiny-draft"), "d.gguf", &[]);
    let mock = Mock::start();
    mock.put("m-BF16.gguf", &fs::read(&draft).unwrap(), true);
    mock.put("m-Q4_K_M.gguf", &fs::read(&whole).unwrap(), true);
    mock.put("mmproj-m-Q4_K_M.gguf", b"no model", true);
    let with_hub = |command: Cmd| hub::with_hub(command, &mock, &dir);
    let prompt = ["-p", "def main():\n", "-n", "8"];
    let expected = generate(&whole).args(prompt).ok();
    let found = with_hub(specrun("generate").args(["-hf", "org/name"]).args(prompt)).run();
    assert_eq!(
        (found.code, &found.stdout),
        (Some(0), &expected),
        "{}",
        found.stderr
    );
    assert!(
        found.stderr.contains("from hf://org/name at commit"),
        "{}",
        found.stderr
    );
    // All files are in the cache now. They are found by type, by name, by variable, and for the draft.
    mock.requests();
    let file = "hf://org/name/m-Q4_K_M.gguf";
    for command in [
        specrun("generate").args(["-hf", "org/name:q4_k_m"]),
        specrun("generate").args(["-m", file]),
        specrun("generate").arg("--hf-repo=org/name"),
        specrun("generate").env("LLAMA_ARG_HF_REPO", "org/name"),
    ] {
        let ran = with_hub(command.args(prompt))
            .env("HF_HUB_OFFLINE", "1")
            .run();
        assert_eq!(
            (ran.code, &ran.stdout),
            (Some(0), &expected),
            "{}",
            ran.stderr
        );
    }
    assert!(mock.requests().is_empty());
    let drafted = specrun("generate").args(["-m", file, "-hfd", "org/name:BF16"]);
    let drafted = with_hub(drafted.args(prompt)).json();
    assert_eq!(
        drafted["counters"]["by_speculator"][0]["name"],
        "draft-simple"
    );
    // A file on the command line takes precedence over the repository variable.
    let given = generate(&whole)
        .args(prompt)
        .env("LLAMA_ARG_HF_REPO", "org/other");
    assert_eq!(with_hub(given).ok(), expected);
    for (reference, expected) in [
        (
            "org/name:Q8_0",
            "no GGUF file of type Q8_0, expected one of m-BF16.gguf",
        ),
        (
            "hf://org/name/x.gguf",
            "no file x.gguf, expected one of m-BF16.gguf",
        ),
        ("org", "not a reference to a repository"),
    ] {
        let error = with_hub(specrun("generate").args(["-hf", reference]).args(prompt)).error();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn dynamic_lookup_files_grow() {
    let dir = Dir::new();
    let model = target(&dir);
    let file = dir.join("x.lookup");
    let run = |prompt: &str| {
        let run = generate(&model).args(["--spec-type", "ngram-cache", "-n", "24", "-p", prompt]);
        run.arg("-lcd").arg(&file).ok()
    };
    let first = run("def main():\n    for");
    let once = fs::read(&file).unwrap();
    assert!(!once.is_empty());
    // The file counts the prompt and the generated text, and the next run adds to it.
    assert_eq!(run("def main():\n    for"), first);
    let twice = fs::read(&file).unwrap();
    assert_eq!(once.len(), twice.len(), "the same n-grams, counted twice");
    assert_ne!(once, twice);
    run("import os\n");
    assert!(fs::read(&file).unwrap().len() > twice.len());
    assert_eq!(dir.names(), ["m.gguf", "x.lookup"]);
    // A file that is not a lookup file is not replaced.
    let other = dir.file("other", b"not a lookup file");
    let bad = generate(&model).args(["-p", "x", "-lcd"]).arg(&other);
    bad.error();
    assert_eq!(fs::read(&other).unwrap(), b"not a lookup file");
}

/// Runs that end at the same time add to the file one after the other.
#[test]
fn concurrent_runs_lose_no_counts() {
    const N_RUN: usize = 4;
    let dir = Dir::new();
    let model = target(&dir);
    let run = |file: &Path| {
        let run = generate(&model).args(["--spec-type", "ngram-cache", "-n", "24", "-p", "import"]);
        run.arg("-lcd").arg(file).ok()
    };
    let (one_by_one, together) = (dir.join("one"), dir.join("together"));
    for _ in 0..N_RUN {
        run(&one_by_one);
    }
    thread::scope(|scope| {
        for _ in 0..N_RUN {
            scope.spawn(|| run(&together));
        }
    });
    assert_eq!(fs::read(one_by_one).unwrap(), fs::read(together).unwrap());
}

#[test]
fn an_interrupted_run_keeps_what_was_counted() {
    let dir = Dir::new();
    let model = target(&dir);
    let file = dir.join("x.lookup");
    let run = generate(&model).args(["--ignore-eos", "-n", "100000", "-c", "100000", "-p", "def"]);
    let run = run.arg("--lookup-cache-dynamic").arg(&file);
    let mut command = run.with_default_signals();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Wait until the first text is printed.
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 8]).unwrap();
    send(&child, "INT");
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    let (status, stderr) = status(child);
    assert_eq!(status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted by signal 2"), "{stderr}");
    assert!(!fs::read(&file).unwrap().is_empty());
    assert_eq!(dir.names(), ["m.gguf", "x.lookup"]);
}

/// A template that begins with BOS, for a model whose texts begin with BOS.
const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}\n\
    {% endfor %}{% if add_generation_prompt %}<|assistant|>{% if not enable_thinking %}-{% endif %}{% endif %}";

#[test]
fn conversations_go_through_the_template() {
    let dir = Dir::new();
    let model = dir.convert(&reference("llama"), "m.gguf", &[]);
    let template = dir.file("t.jinja", TEMPLATE);
    specconv("set-chat-template")
        .arg(&model)
        .arg(&template)
        .ok();
    let tokens = |report: &Value| report["prompt_tokens"].clone();
    let prompt = |args: &[&str]| tokens(&generate(&model).args(["-n", "1"]).args(args).json());
    let raw = |text: &str| {
        let tokenize = specrun("tokenize").arg("-m").arg(&model);
        tokenize.args(["-p", text]).json()["tokens"].clone()
    };
    let eos = "<|eot_id|>";
    let plain = raw("hi");
    assert_eq!(prompt(&["-p", "hi"]), plain);
    assert_eq!(prompt(&["-p", "hi", "--no-chat"]), plain);
    // The tokenizer adds BOS once, and the template's special tokens are parsed as tokens.
    let rendered = raw(&format!("<|user|>hi{eos}\n<|assistant|>"));
    assert_eq!(prompt(&["-p", "hi", "--chat"]), rendered);
    assert_eq!(rendered[0], plain[0]);
    assert_ne!(rendered[1], rendered[0]);
    let unspecial = prompt(&["-p", "hi", "--chat", "--no-special"]);
    assert_eq!(unspecial, rendered, "the template writes BOS itself");
    let kwargs = ["--chat-template-kwargs", r#"{"enable_thinking": false}"#];
    let without = raw(&format!("<|user|>hi{eos}\n<|assistant|>-"));
    assert_eq!(
        prompt(&[&["-p", "hi", "--chat"], &kwargs[..]].concat()),
        without
    );
    let other = dir.file("o.jinja", "[{{ messages[0].content }}]");
    let other = [
        "-p",
        "hi",
        "--chat",
        "--chat-template-file",
        other.to_str().unwrap(),
    ];
    assert_eq!(prompt(&other), raw("[hi]"));
    let unused = ["-n", "1", "--no-chat", "--json"];
    let ran = generate(&model).args(other).args(unused).run();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(tokens(&report), plain);
    let expected = "warning: --chat-template-file and --chat-template-kwargs change nothing";
    assert!(ran.stderr.contains(expected), "{}", ran.stderr);

    let lines = [
        json!({"id": "a", "messages": [{"role": "user", "content": "hi"}]}),
        json!({"id": "b", "prompt": "hi"}),
        json!({"id": "c", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [
            {"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}],
            "chat_template_kwargs": {"enable_thinking": false}, "n_predict": 2}),
    ];
    let lines = lines.map(|line| format!("{line}\n")).concat();
    let file = dir.file("p.jsonl", &lines);
    let report = generate(&model)
        .arg("-f")
        .arg(&file)
        .args(["-n", "1", "--json"])
        .ok();
    let reports: Vec<Value> = report
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let last = raw(&format!(
        "<|system|>s{eos}\n<|user|>x\ny{eos}\n<|assistant|>-"
    ));
    let expected = [&rendered, &plain, &last];
    assert_eq!(reports.len(), 3);
    for (report, expected) in reports.iter().zip(expected) {
        assert_eq!(tokens(report), *expected);
        assert_valid("generate", report);
    }

    // The other commands accept the same files.
    let verify = specrun("verify").arg("-m").arg(&model).arg("-f").arg(&file);
    let verify = verify.args([
        "-n",
        "2",
        "--spec-type",
        "ngram-simple",
        "--check",
        "identity",
    ]);
    let verified = verify.json();
    assert_eq!(verified["runs"].as_array().unwrap().len(), 3, "{verified}");
    let tasks = |flags: &[&str]| {
        let bench = specrun("bench")
            .arg("-m")
            .arg(&model)
            .arg("--tasks")
            .args(flags);
        let bench = bench.args(["--spec-type", "ngram-simple", "-n", "2", "-f"]);
        let report = bench.arg(&file).json();
        assert_valid("bench-tasks", &report);
        let task = &report["tasks"][1];
        let count = |name: &str| task[name].as_u64().unwrap() as usize;
        count("cache_n") + count("prompt_n")
    };
    let plain_lines = dir.file("plain.jsonl", "{\"id\": \"b\", \"prompt\": \"hi\"}\n");
    assert_eq!(tasks(&[]), rendered.as_array().unwrap().len());
    let raw_tasks = specrun("bench")
        .arg("-m")
        .arg(&model)
        .args(["--tasks", "--no-chat"]);
    let raw_tasks = raw_tasks.args(["--spec-type", "ngram-simple", "-n", "2", "-f"]);
    let raw_tasks = raw_tasks.arg(&plain_lines).json();
    assert_eq!(
        raw_tasks["tasks"][0]["prompt_n"],
        plain.as_array().unwrap().len()
    );

    let refused = |args: &[&str]| generate(&model).args(args).error();
    let path = file.to_str().unwrap();
    let error = refused(&["-f", path, "--no-chat"]);
    assert!(
        error.ends_with(
            "p.jsonl: line 1: messages need the chat template, which --no-chat disables"
        ),
        "{error}"
    );
    let raising = dir.file("r.jinja", "{{ raise_exception('no such role') }}");
    let error = refused(&[
        "-f",
        path,
        "--chat-template-file",
        raising.to_str().unwrap(),
    ]);
    assert!(
        error.ends_with("line 1: chat template refuses the conversation: no such role"),
        "{error}"
    );
    let bare = dir.convert(&reference("qwen2"), "bare.gguf", &[]);
    let error = generate(&bare).args(["-p", "hi", "--chat"]).error();
    assert!(
        error.starts_with("the model has no chat template"),
        "{error}"
    );
    usage(generate(&model).args(["-p", "x", "--chat-template-kwargs", "[1]"]));
}

#[test]
fn timings_have_the_names_of_llama_cpp() {
    let dir = Dir::new();
    let model = target(&dir);
    // The first prompt is a prefix of the second, long enough to be shared.
    let start = "import os\nimport sys\n".repeat(20);
    let lines = [
        json!({"id": "a", "prompt": start}),
        json!({"id": "b", "prompt": format!("{start}def f")}),
    ];
    let file = dir.file("p.jsonl", lines.map(|line| format!("{line}\n")).concat());
    let run = generate(&model).arg("-f").arg(&file).args([
        "-n",
        "8",
        "--spec-type",
        "draft-mtp",
        "--json",
    ]);
    let reports = run.ok();
    let reports: Vec<Value> = reports
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    for (report, is_second) in reports.iter().zip([false, true]) {
        let t = &report["timings"];
        let number = |name: &str| t[name].as_f64().unwrap_or_else(|| panic!("{name}: {t}"));
        let n_prompt = report["prompt_tokens"].as_array().unwrap().len() as f64;
        assert_eq!(number("cache_n") + number("prompt_n"), n_prompt);
        assert_eq!(number("cache_n") > 0.0, is_second, "{t}");
        assert_eq!(t["predicted_n"], report["counters"]["n_tokens"]);
        assert_eq!(t["draft_n"], report["counters"]["n_drafted"]);
        assert_eq!(t["draft_n_accepted"], report["counters"]["n_accepted"]);
        for name in [
            "prompt_ms",
            "prompt_per_token_ms",
            "prompt_per_second",
            "predicted_ms",
            "predicted_per_token_ms",
            "predicted_per_second",
        ] {
            assert!(number(name) > 0.0, "{name}: {t}");
        }
        let rate = (number("predicted_n") - 1.0) * 1e3 / number("predicted_ms");
        assert!((number("predicted_per_second") / rate - 1.0).abs() < 1e-9);
    }
}

#[test]
fn tasks_that_say_little_are_flagged() {
    let dir = Dir::new();
    let model = target(&dir);
    let lines = [
        json!({"id": "high_entropy", "prompt": "x = 7"}),
        json!({"id": "a", "prompt": "import os\n", "n_predict": 4}),
    ];
    let file = dir.file("p.jsonl", lines.map(|line| format!("{line}\n")).concat());
    let bench = || {
        specrun("bench")
            .arg("-m")
            .arg(&model)
            .args(["--tasks", "-n", "4", "-f"])
            .arg(&file)
    };
    let report = bench().json();
    assert_valid("bench-tasks", &report);
    assert_eq!(report["tasks"][0]["flags"], json!(["high-entropy"]));
    assert_eq!(report["tasks"][1]["flags"], json!([]));
    assert_eq!(report["aggregate"]["n_requests"], 2);
    assert_eq!(report["aggregate_unflagged"]["n_requests"], 1);
    assert!(bench().ok().contains("high entropy"));
}
