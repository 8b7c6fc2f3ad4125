//! Steps of CI systems: the action's script, its annotations, and the hooks, as a runner starts them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use schemas::gguf;

use crate::util::{Cmd, Dir, Ran, bundled, read_json, root};

/// Checks that take little time.
const QUICK: &str = "--check fit,identity --spec-type draft-mtp -n 8";

/// Writes a copy of a model with the values of a tensor set to zero, and returns the tensor's name.
fn with_dead_head(model: &Path, copy: &Path) -> String {
    let plan = gguf::open(model).unwrap();
    let mut tensors = plan.tensors.iter();
    let projection = tensors.find(|t| t.name.contains("eh_proj")).unwrap();
    let offset = projection.source.origin().unwrap().offset as usize;
    let mut bytes = fs::read(model).unwrap();
    bytes[offset..offset + projection.size_bytes as usize].fill(0);
    fs::write(copy, bytes).unwrap();
    projection.name.clone()
}

/// Returns the command of the action's step with this id.
fn step(id: &str) -> String {
    let text = fs::read_to_string(root().join("action.yml")).unwrap();
    let (_, step) = text.split_once(&format!("id: {id}\n")).unwrap();
    let (_, run) = step.split_once("run: '").unwrap();
    run.split('\'').next().unwrap().to_owned()
}

/// Runs Bash with the programs on the PATH.
fn bash(dir: &Dir, command: &str) -> Cmd {
    let programs = Path::new(env!("CARGO_BIN_EXE_specrun")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let shell = Cmd::of("bash").args(["--noprofile", "--norc", "-eo", "pipefail", "-c"]);
    shell
        .arg(command)
        .env("PATH", &path)
        .current_dir(dir.path())
}

/// Runs the step that verifies, with the variables that a runner sets.
fn verify(dir: &Dir, models: &str) -> Ran {
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    bash(dir, &step("verify"))
        .env("GITHUB_ACTIONS", "true")
        .env("GITHUB_ACTION_PATH", root().to_str().unwrap())
        .env("GITHUB_STEP_SUMMARY", &text(dir.join("summary.md")))
        .env("GITHUB_OUTPUT", &text(dir.join("output")))
        .env("RUNNER_TEMP", &text(dir.join("temp")))
        .env("MODELS", models)
        .env("ARGS", QUICK)
        .run()
}

#[test]
fn the_action_annotates_damaged_files() {
    let dir = Dir::new();
    let good = dir.convert(&bundled("tiny-qwen35-mtp"), "good.gguf", &[]);
    let ran = verify(&dir, "good.gguf");
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(!ran.stdout.contains("::error"), "{}", ran.stdout);
    let report = read_json(&dir.join("temp/specrun-verify/1-good.json"));
    assert_eq!(report["verdict"], "pass");

    let tensor = with_dead_head(&good, &dir.join("dead.gguf"));
    let ran = verify(&dir, "  *.gguf  \n\n");
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    let annotation = format!("::error file=dead.gguf,title=zero::{tensor}: ");
    let mut lines = ran.stdout.lines();
    assert!(
        lines.any(|line| line.starts_with(&annotation)),
        "{}",
        ran.stdout
    );
    let sarif = read_json(&dir.join("temp/specrun-verify/1-dead.sarif"));
    let result = &sarif["runs"][0]["results"][0];
    let location = &result["locations"][0];
    assert_eq!(sarif["version"], "2.1.0");
    assert_eq!(result["ruleId"], "zero");
    assert_eq!(
        location["physicalLocation"]["artifactLocation"]["uri"],
        "dead.gguf"
    );
    assert_eq!(location["logicalLocations"][0]["name"], tensor.as_str());

    let summary = fs::read_to_string(dir.join("summary.md")).unwrap();
    assert!(
        summary.contains("good.gguf") && summary.contains(&tensor),
        "{summary}"
    );
    let output = fs::read_to_string(dir.join("output")).unwrap();
    assert!(output.starts_with("reports="), "{output}");
}

#[test]
fn the_action_annotates_files_that_cannot_run() {
    let dir = Dir::new();
    let good = dir.convert(&bundled("tiny-draft"), "good.gguf", &[]);
    dir.file("cut.gguf", &fs::read(good).unwrap()[..9000]);
    let ran = verify(&dir, "cut.gguf\nmissing.gguf");
    assert_eq!(ran.code, Some(2), "{}{}", ran.stdout, ran.stderr);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let [cut, missing] = lines.as_slice() else {
        panic!("expected two lines, found {lines:#?}")
    };
    assert!(cut.starts_with("::error file=cut.gguf,title=could not run::cut.gguf: "));
    assert_eq!(
        *missing,
        "::error file=missing.gguf,title=could not run::missing.gguf: no such file"
    );
}

/// Each version installs in its own way. Package managers are stubs that print their arguments.
#[test]
fn the_action_installs_what_its_version_says() {
    let dir = Dir::new();
    for name in ["cargo", "python3"] {
        let script = format!("#!/bin/sh\necho {name} \"$@\"\n");
        let stub = dir.file(name, script);
        fs::set_permissions(stub, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let command = format!("export PATH=\"$PWD:$PATH\"; {}", step("install"));
    let run = |version: &str| {
        let ran = bash(&dir, &command).env("VERSION", version);
        let ran = ran
            .env("GITHUB_ACTION_PATH", root().to_str().unwrap())
            .run();
        assert_eq!(ran.code, Some(0), "{version}: {}", ran.stderr);
        ran.stdout
    };
    let cli = root().join("ci/../cli");
    let cargo = format!("cargo install --locked --path {}\n", cli.display());
    assert_eq!(run("source"), cargo);
    assert!(run("none").starts_with("specrun "));
    assert!(run("==0.1.0").ends_with(" specconv==0.1.0\n"));
}

/// The script of the GitLab template runs all models and ends with the worst exit code.
#[test]
fn the_gitlab_job_runs_every_model() {
    let text = fs::read_to_string(root().join("ci/gitlab.yml")).unwrap();
    let (_, script) = text.split_once("  script:\n    - |\n").unwrap();
    let (script, _) = script.split_once("  artifacts:").unwrap();
    let dir = Dir::new();
    let good = dir.convert(&bundled("tiny-qwen35-mtp"), "good.gguf", &[]);
    with_dead_head(&good, &dir.join("dead.gguf"));
    let run = |models: &str| {
        let job = bash(&dir, script).env("SPECRUN_MODELS", models);
        job.env("SPECRUN_ARGS", QUICK).run().code
    };
    assert_eq!(run("good.gguf"), Some(0));
    assert_eq!(run("*.gguf"), Some(1));
    assert!(dir.join("specrun-verify/dead.xml").exists());
    assert!(dir.join("specrun-verify/good.html").exists());
    assert_eq!(run("dead.gguf missing.gguf"), Some(2));
}

#[test]
fn hooks_check_files_and_folders() {
    let dir = Dir::new();
    dir.convert(&bundled("tiny-draft"), "good.gguf", &[]);
    dir.file(
        "cut.gguf",
        &fs::read(dir.join("good.gguf")).unwrap()[..9000],
    );
    let hook = root().join("ci/pre-commit.sh");
    let run = |args: &str| bash(&dir, &format!("{} {args}", hook.display())).run();
    assert_eq!(run("gguf good.gguf").code, Some(0));
    let ran = run("gguf good.gguf cut.gguf");
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.starts_with("error: cut.gguf: "),
        "{}",
        ran.stderr
    );

    let checkpoint = bundled("tiny-draft");
    let config = checkpoint.join("config.json").display().to_string();
    assert_eq!(run(&format!("checkpoint {config}")).code, Some(0));
    dir.file("config.json", "{}");
    assert_eq!(run("checkpoint config.json").code, Some(1));
}

/// The hooks and steps name files that exist.
#[test]
fn pipelines_name_files_that_exist() {
    let hooks = fs::read_to_string(root().join(".pre-commit-hooks.yaml")).unwrap();
    let entries: Vec<&str> = hooks
        .lines()
        .filter_map(|l| l.trim().strip_prefix("entry: "))
        .collect();
    assert_eq!(entries.len(), 2);
    for entry in entries {
        let program = entry.split(' ').next().unwrap();
        assert!(root().join(program).is_file(), "{entry}");
    }
}
