//! Behavior of all commands: exit codes, help, outputs, JSON.

use std::fs;
use std::io::Read;
use std::process::Stdio;

use serde_json::Value;

use crate::util::{Cmd, Dir, bundled, read_json, reference, root, specconv, specrun};

const COMMANDS: [&str; 18] = [
    "convert",
    "quantize",
    "split-mtp",
    "graft-mtp",
    "replace-mtp",
    "requantize-mtp",
    "repair-mtp",
    "graft-vocab",
    "split-vocab",
    "trim-vocab",
    "map-vocab",
    "split",
    "merge",
    "hash",
    "set-metadata",
    "set-chat-template",
    "inspect",
    "demo",
];

#[test]
fn help_is_data_and_usage_errors_are_talk() {
    for command in COMMANDS {
        let help = specconv(command).arg("--help").run();
        assert_eq!(help.code, Some(0));
        assert!(help.stdout.contains("Usage: specconv"), "{}", help.stdout);
        assert!(!help.stdout.contains("TODO"));
        let wrong = specconv(command).arg("--no-such-flag").run();
        assert_eq!(wrong.code, Some(2));
        assert_eq!(wrong.stdout, "");
        assert!(wrong.stderr.starts_with("error: "), "{}", wrong.stderr);
    }
}

/// Names of the commands of a program, from its help.
fn commands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let is_command = |name: &&str| !name.is_empty() && *name != "help";
    names.filter(is_command).map(str::to_owned).collect()
}

#[test]
fn short_help_fits_a_screen() {
    let help = |command: Cmd| command.env("COLUMNS", "80").ok();
    for program in [specconv, specrun] {
        let own = help(program("-h"));
        let commands = commands(&own);
        assert!(commands.len() >= 10, "{commands:?}");
        let texts = commands.iter().map(|name| help(program(name).arg("-h")));
        for text in texts.chain([own.clone()]) {
            let n_lines = text.lines().count();
            assert!(n_lines <= 40, "{n_lines} lines:\n{text}");
            // The parser does not wrap the usage line.
            let lines = text.lines().filter(|line| !line.starts_with("Usage: "));
            let longest = lines.map(|line| line.chars().count()).max();
            assert!(longest <= Some(80), "{longest:?}:\n{text}");
        }
    }
    let long = help(specrun("generate").arg("--help"));
    let headings = [
        "Input",
        "Output",
        "Sampling",
        "Speculation",
        "Machine",
        "Reports",
    ];
    let at = headings.map(|heading| long.find(&format!("\n{heading}:\n")).expect(heading));
    assert!(at.is_sorted(), "{at:?}");
    assert!(!long.contains("no effect"));
    let types = help(specconv("quantize").arg("--help"));
    assert!(types.contains("* Q4_K_M     4.50 bits"), "{types}");
}

/// A user who names a file or a command of another tool first is told the command.
#[test]
fn words_that_are_no_command_get_advice() {
    for (program, word, advice) in [
        (
            specrun as fn(&str) -> Cmd,
            "model.gguf",
            "specrun generate model.gguf",
        ),
        (specrun, "quantize", "the command is \"specconv quantize\""),
        (specconv, "server", "the command is \"specrun serve\""),
    ] {
        let ran = program(word).run();
        assert_eq!(ran.code, Some(2));
        assert!(ran.stderr.contains(advice), "{}", ran.stderr);
    }
    let version = specconv("--version").ok();
    assert!(
        version.starts_with("specconv 0.") && version.contains("\ncommit: "),
        "{version}"
    );
}

/// Completions work in a shell, and there are manual pages.
#[test]
fn shells_complete_commands_and_flags() {
    let dir = Dir::new();
    for (program, name, typed, completed) in [
        (
            specconv as fn(&str) -> Cmd,
            "specconv",
            "quanti",
            "quantize",
        ),
        (specrun, "specrun", "perp", "perplexity"),
    ] {
        for shell in ["zsh", "fish"] {
            let script = program("completions").arg(shell).ok();
            assert!(
                script.contains("overwrite") && script.contains(completed),
                "{script}"
            );
        }
        let script = dir.file(name, program("completions").arg("bash").ok());
        let words = format!(
            "source {}; COMP_WORDS=({name} {typed}); COMP_CWORD=1; _{name} {name} {typed} {name}; \
             echo ${{COMPREPLY[@]}}",
            script.display()
        );
        assert_eq!(
            Cmd::of("bash").arg("-c").arg(words).ok(),
            format!("{completed}\n")
        );
        let page = program("man").ok();
        assert!(page.contains(&format!(".TH {name} 1")), "{page}");
        let page = program("man").arg(completed).ok();
        assert!(
            page.contains(&format!(".TH {name}-{completed} 1")),
            "{page}"
        );
        assert!(
            program("man")
                .arg("nothing")
                .error()
                .contains("no such command")
        );
    }
}

/// Every report is valid against its schema.
#[test]
fn json_is_valid_against_its_schema() {
    let dir = Dir::new();
    let (whole, out) = (dir.join("whole.gguf"), dir.join("out.gguf"));
    let (body, mtp) = (dir.join("body.gguf"), dir.join("mtp.gguf"));
    let reports = [
        (
            "convert",
            specconv("convert")
                .arg(reference("qwen35"))
                .arg("-o")
                .arg(&whole),
        ),
        (
            "quantize",
            specconv("quantize").arg(&whole).arg(&out).arg("Q8_0"),
        ),
        (
            "split-mtp",
            specconv("split-mtp")
                .arg(&whole)
                .arg("--body")
                .arg(&body)
                .arg("--mtp")
                .arg(&mtp),
        ),
        (
            "graft-mtp",
            specconv("graft-mtp")
                .arg("--target")
                .arg(&body)
                .arg("--mtp")
                .arg(&mtp)
                .arg("--overwrite")
                .arg("-o")
                .arg(&out),
        ),
        ("inspect", specconv("inspect").arg(&whole).arg("--tensors")),
        ("hash", specconv("hash").arg(&whole)),
        (
            "set-metadata",
            specconv("set-metadata")
                .arg(&whole)
                .arg("general.author=str:me")
                .arg("-o")
                .arg(dir.join("set.gguf")),
        ),
        (
            "requantize-mtp",
            specconv("requantize-mtp")
                .arg(&whole)
                .arg("-o")
                .arg(dir.join("head.gguf"))
                .args(["--mtp-type", "q8_0"]),
        ),
        (
            "repair-mtp",
            specconv("repair-mtp")
                .arg(&whole)
                .arg("-o")
                .arg(dir.join("repaired.gguf")),
        ),
        (
            "trim-vocab",
            specconv("trim-vocab")
                .arg(&whole)
                .arg("--text")
                .arg(root().join("README.md"))
                .args(["-n", "100", "--layout", "specconv", "-o"])
                .arg(dir.join("trimmed.gguf")),
        ),
        (
            "map-vocab",
            specconv("map-vocab")
                .arg("--target")
                .arg(&whole)
                .arg("--draft")
                .arg(&whole)
                .arg("-o")
                .arg(dir.join("map.gguf")),
        ),
    ];
    for (name, command) in reports {
        assert_valid(name, &command.json());
    }
    let run = |command: &str| specrun(command).arg("-m").arg(&whole);
    let prompts = dir.file("p.jsonl", "{\"id\": \"a\", \"prompt\": \"def f\"}");
    let verify = run("verify").arg("--prompts").arg(&prompts);
    let reports = [
        ("tokenize", run("tokenize").args(["-p", "def f"])),
        ("logits", run("logits").args(["--tokens", "1,2"])),
        ("generate", run("generate").args(["-p", "def f", "-n", "4"])),
        ("verify", verify.args(["-n", "4", "--min-accept", "0"])),
    ];
    for (name, command) in reports {
        assert_valid(name, &command.json());
    }
    let lookup = run("build-lookup").arg("-o").arg(dir.join("x.lookup"));
    assert_valid("build-lookup", &lookup.arg(&prompts).json());
}

#[track_caller]
pub(crate) fn assert_valid(name: &str, report: &Value) {
    let schema = root().join(format!("schemas/json/{name}.schema.json"));
    let schema = jsonschema::validator_for(&read_json(&schema)).expect("a valid schema");
    let errors: Vec<String> = schema.iter_errors(report).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{name}: {errors:#?}\n{report:#}");
}

#[test]
fn an_input_is_never_replaced() {
    let dir = Dir::new();
    let whole = dir.convert(&reference("qwen35"), "whole.gguf", &[]);
    let before = fs::read(&whole).unwrap();
    let link = dir.join("link.gguf");
    std::os::unix::fs::symlink(&whole, &link).unwrap();
    let other = dir.join("other.gguf");
    let refusals = [
        specconv("quantize").arg(&whole).arg(&whole).arg("Q8_0"),
        specconv("quantize").arg(&whole).arg(&link).arg("Q8_0"),
        specconv("split-mtp")
            .arg(&whole)
            .arg("--body")
            .arg(&whole)
            .arg("--mtp")
            .arg(&other),
        specconv("split-mtp")
            .arg(&whole)
            .arg("--body")
            .arg(&other)
            .arg("--mtp")
            .arg(&whole),
        specconv("convert")
            .arg(reference("qwen35"))
            .arg("-o")
            .arg(reference("qwen35").join("config.json")),
    ];
    for command in refusals {
        let error = command.error();
        assert!(
            error.ends_with("output is also an input, expected another file"),
            "{error}"
        );
    }
    assert!(fs::read(&whole).unwrap() == before);
    assert!(!other.exists());
}

#[test]
fn outputs_that_cannot_be_written_are_named() {
    let dir = Dir::new();
    let input = dir.convert(&reference("qwen3"), "in.gguf", &[]);
    let quantize = |out: &std::path::Path| {
        let quantize = specconv("quantize").arg(&input).arg(out);
        quantize.arg("Q8_0").error()
    };
    let error = quantize(&dir.join("no/such/folder.gguf"));
    assert!(error.contains("no/such"), "{error}");
    assert!(error.ends_with("does not exist"), "{error}");
    // A device must be refused, because the finished file would replace it.
    let error = quantize(std::path::Path::new("/dev/null"));
    assert!(error.contains("output is a character device"), "{error}");
    let error = quantize(dir.path());
    assert!(
        error.ends_with("output is a directory, expected the name of a regular file"),
        "{error}"
    );
}

/// `specconv inspect FILE | head -1` is not an error.
#[test]
fn a_closed_pipe_is_success() {
    let dir = Dir::new();
    let file = dir.convert(&bundled("tiny-qwen35-mtp"), "m.gguf", &[]);
    let mut command = specconv("inspect").arg(file).arg("--json").into_command();
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    let mut pipe = child.stderr.take().expect("stderr is a pipe");
    pipe.read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_version_names_commit_target_and_features() {
    for name in ["specconv", "specrun"] {
        let program = match name {
            "specconv" => specconv("--version"),
            _ => specrun("--version"),
        };
        let text = program.ok();
        let lines: Vec<&str> = text.lines().collect();
        let [version, commit, target, features] = lines.as_slice() else {
            panic!("expected four lines, found {lines:#?}")
        };
        assert_eq!(*version, format!("{name} {}", env!("CARGO_PKG_VERSION")));
        assert!(
            commit.starts_with("commit: ") && commit.len() > 12,
            "{commit}"
        );
        assert!(
            target.starts_with("target: ") && target.contains("linux"),
            "{target}"
        );
        assert!(features.starts_with("features: "), "{features}");
    }
}
