//! `specconv lock` and `specconv rebuild`: the same bytes again, or the name of the input that changed.

use std::fs;
use std::path::Path;

use schemas::report::LockFile;
use serde_json::Value;

use crate::hub::{hub, with_hub};
use crate::mock::{COMMIT, Mock};
use crate::util::{Cmd, Dir, Ran, reference, sha256, specconv};

const LOCK: &str = "spec.lock";

/// Prepares a folder with a model, an importance matrix and a recipe, and quantizes it with a lock file.
fn locked() -> Dir {
    let dir = Dir::new();
    dir.convert(&reference("qwen35-256"), "in.gguf", &[]);
    let imatrix = reference("qwen35-256").join("imatrix.gguf");
    fs::copy(imatrix, dir.join("imatrix.gguf")).unwrap();
    let recipe =
        "in = \"in.gguf\"\nout = \"out.gguf\"\ntype = \"Q4_K_M\"\nimatrix = \"imatrix.gguf\"\n";
    dir.file("m.toml", recipe);
    let lock = run(&dir, "lock").args(["quantize", "--recipe", "m.toml", "-t", "1", "--json"]);
    let report: Value = serde_json::from_str(&lock.ok()).unwrap();
    let hash = sha256(&fs::read(dir.join("out.gguf")).unwrap());
    assert_eq!(report["output"]["sha256"][0], hash.as_str());
    dir
}

fn run(dir: &Dir, command: &str) -> Cmd {
    specconv(command).current_dir(dir.path())
}

fn read(dir: &Dir) -> LockFile {
    toml::from_str(&fs::read_to_string(dir.join(LOCK)).unwrap()).unwrap()
}

fn write(dir: &Dir, lock: &LockFile) {
    fs::write(dir.join(LOCK), toml::to_string(lock).unwrap()).unwrap();
}

fn rebuild(dir: &Dir, flags: &[&str]) -> (Ran, Value) {
    let ran = run(dir, "rebuild").arg("--json").args(flags).run();
    let report: Value = serde_json::from_str(&ran.stdout).expect(&ran.stderr);
    crate::cli::assert_valid("rebuild", &report);
    (ran, report)
}

fn hash(path: &Path) -> String {
    sha256(&fs::read(path).unwrap())
}

#[test]
fn a_lock_file_names_everything_that_decides() {
    let dir = locked();
    let lock = read(&dir);
    crate::cli::assert_valid("lock", &serde_json::to_value(&lock).unwrap());
    assert_eq!(lock.command, ["quantize", "--recipe", "m.toml"]);
    assert_eq!(lock.tool.version, env!("CARGO_PKG_VERSION"));
    let paths = |files: &[schemas::report::HashedInput]| -> Vec<String> {
        for file in files {
            assert_eq!(file.sha256, hash(&dir.join(&file.path)));
        }
        files.iter().map(|file| file.path.clone()).collect()
    };
    assert_eq!(paths(&lock.inputs), ["imatrix.gguf", "in.gguf", "m.toml"]);
    assert_eq!(paths(&lock.outputs), ["out.gguf"]);
    // The lock file is an output like the model: it replaces nothing unless asked.
    let again = run(&dir, "lock").args(["quantize", "in.gguf", "other.gguf", "Q8_0"]);
    assert!(
        again.error().starts_with("spec.lock exists"),
        "it replaces nothing"
    );
    assert!(!dir.join("other.gguf").exists());
}

#[test]
fn the_same_bytes_are_made_on_every_instruction_set() {
    let dir = locked();
    let (mut lock, expected) = (read(&dir), hash(&dir.join("out.gguf")));
    let words = lock.command.clone();
    let isas = kernels::cpu::Cpu::available().into_iter();
    let isas: Vec<String> = isas.map(|isa| isa.to_string()).collect();
    assert!(isas.iter().any(|isa| isa == "portable"), "{isas:?}");
    for isa in isas {
        lock.command = words.clone();
        lock.command.extend(["--isa".to_owned(), isa.clone()]);
        write(&dir, &lock);
        fs::remove_file(dir.join("out.gguf")).unwrap();
        let (ran, report) = rebuild(&dir, &["--locked"]);
        assert_eq!(ran.code, Some(0), "{isa}: {}", ran.stdout);
        assert_eq!(report["outputs"][0]["sha256"], expected.as_str());
        assert_eq!(hash(&dir.join("out.gguf")), expected, "{isa}");
    }
    let exists = run(&dir, "rebuild").arg("--locked").error();
    assert!(exists.starts_with("out.gguf exists"), "{exists}");
    let text = run(&dir, "rebuild").args(["--locked", "--overwrite"]).ok();
    assert!(
        text.ends_with("PASS: the files are those of spec.lock\n"),
        "{text}"
    );
}

#[test]
fn a_changed_input_is_named_and_nothing_is_written() {
    let dir = locked();
    fs::remove_file(dir.join("out.gguf")).unwrap();
    let before = fs::read(dir.join(LOCK)).unwrap();
    let refused = |name: &str| {
        let (ran, report) = rebuild(&dir, &["--locked"]);
        assert_eq!((ran.code, &report["verdict"]), (Some(1), &"fail".into()));
        let differences = report["differences"].as_array().unwrap();
        assert_eq!(differences.len(), 1, "{report}");
        let difference = differences[0].as_str().unwrap();
        assert!(
            difference.starts_with(&format!("input {name}: ")),
            "{difference}"
        );
        assert!(!dir.join("out.gguf").exists());
        assert!(fs::read(dir.join(LOCK)).unwrap() == before);
    };
    for name in ["in.gguf", "imatrix.gguf", "m.toml"] {
        let content = fs::read(dir.join(name)).unwrap();
        let mut changed = content.clone();
        match name {
            "m.toml" => changed.extend(b"pure = true\n"),
            _ => *changed.last_mut().unwrap() ^= 1,
        }
        fs::write(dir.join(name), changed).unwrap();
        refused(name);
        fs::remove_file(dir.join(name)).unwrap();
        refused(name);
        fs::write(dir.join(name), content).unwrap();
    }
    let (ran, _) = rebuild(&dir, &["--locked"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    // Without --locked the file is updated, and holds again.
    let mut recipe = fs::read_to_string(dir.join("m.toml")).unwrap();
    recipe.push_str("pure = true\n");
    fs::write(dir.join("m.toml"), recipe).unwrap();
    let (ran, report) = rebuild(&dir, &["--overwrite"]);
    assert_eq!((ran.code, &report["verdict"]), (Some(0), &"pass".into()));
    let differences = report["differences"].as_array().unwrap();
    let starts: Vec<&str> = differences
        .iter()
        .map(|text| text.as_str().unwrap().split(": ").next().unwrap())
        .collect();
    assert_eq!(starts, ["input m.toml", "output out.gguf"]);
    let (ran, report) = rebuild(&dir, &["--locked", "--overwrite"]);
    assert_eq!(
        (ran.code, &report["differences"]),
        (Some(0), &Value::Array(vec![]))
    );
}

#[test]
fn other_bytes_are_not_published() {
    let dir = locked();
    let mut lock = read(&dir);
    let expected = hash(&dir.join("out.gguf"));
    fs::remove_file(dir.join("out.gguf")).unwrap();
    lock.outputs[0].sha256 = "0".repeat(64);
    lock.tool.version = "0.0.1".to_owned();
    write(&dir, &lock);
    let ran = run(&dir, "rebuild").arg("--locked").run();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let first = format!("output out.gguf: sha256 {expected} (");
    assert!(ran.stdout.starts_with(&first), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("was written by 0.0.1 ("),
        "{}",
        ran.stdout
    );
    assert_eq!(dir.names(), ["imatrix.gguf", "in.gguf", "m.toml", LOCK]);
}

#[test]
fn commands_without_models_have_no_lock_file() {
    let dir = Dir::new();
    let model = dir.convert(&reference("llama"), "m.gguf", &[]);
    let error = run(&dir, "lock").arg("hash").arg(&model).error();
    assert!(error.starts_with("hash writes no models"), "{error}");
    let dry = run(&dir, "lock").args(["quantize", "m.gguf", "o.gguf", "Q8_0", "--dry-run"]);
    assert!(dry.error().starts_with("--dry-run writes no files"));
    for (text, expected) in [
        (
            "version = 1\ncommand = 3",
            "spec.lock:2:11: invalid type: integer `3`",
        ),
        (
            "version = 2\ncommand = []\ntool = {version = \"1\", commit = \"a\"}",
            "spec.lock: version 2, expected 1",
        ),
        (
            "version = 1\ncommand = []\ntool = {version = \"1\", commit = \"a\"}",
            "spec.lock: command: ",
        ),
        (
            "version = 1\ncommand = [\"rebuild\"]\ntool = {version = \"1\", commit = \"a\"}",
            "spec.lock: command \"rebuild\" writes no models",
        ),
        (
            "version = 1\ncommand = [\"quantize\", \"--nope\"]\ntool = {version = \"1\", commit = \"a\"}",
            "spec.lock: command: unexpected argument '--nope' found",
        ),
    ] {
        dir.file(LOCK, text);
        let error = run(&dir, "rebuild").error();
        assert!(error.starts_with(expected), "{error}");
    }
}

fn convert_on_hub(mock: &Mock, dir: &Dir) {
    let words = ["convert", "hf://org/name", "-o", "m.gguf", "--mtp"];
    with_hub(specconv("lock").args(words), mock, dir).ok();
}

/// Rebuilds with an empty cache.
fn rebuild_on_hub(mock: &Mock, dir: &Dir) -> Ran {
    let _ = fs::remove_dir_all(dir.join("cache"));
    let rebuild = specconv("rebuild").args(["--locked", "--overwrite"]);
    with_hub(rebuild, mock, dir).run()
}

#[test]
fn a_checkpoint_on_the_hub_is_read_at_its_commit() {
    let dir = Dir::new();
    let mock = hub("qwen35-256");
    convert_on_hub(&mock, &dir);
    let lock = read(&dir);
    let [source] = lock.sources.as_slice() else {
        panic!("{lock:?}");
    };
    assert_eq!(
        (source.repository.as_str(), source.revision.as_str()),
        ("org/name", "main")
    );
    assert_eq!(source.commit, COMMIT);
    // Only the head is named, and the hashes are those of its bytes.
    let (mut n_named, mut n_bytes) = (0, 0);
    for weights in &source.weights {
        let content = fs::read(reference("qwen35-256").join(&weights.file)).unwrap();
        let mut bytes = Vec::new();
        for range in &weights.ranges {
            let (first, last) = range.split_once('-').unwrap();
            let [first, last] = [first, last].map(|text| text.parse::<usize>().unwrap());
            bytes.extend_from_slice(&content[first..=last]);
        }
        assert_eq!(weights.sha256, sha256(&bytes));
        n_named += bytes.len();
        n_bytes += content.len();
    }
    assert!(
        n_named > 0 && n_named * 2 < n_bytes,
        "{n_named} of {n_bytes}"
    );
    let inputs: Vec<&str> = lock
        .inputs
        .iter()
        .map(|input| input.path.as_str())
        .collect();
    assert!(inputs.contains(&"hf://org/name/config.json"), "{inputs:?}");
    assert!(
        inputs.iter().all(|path| path.starts_with("hf://")),
        "{inputs:?}"
    );

    mock.requests();
    let ran = rebuild_on_hub(&mock, &dir);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let requests = mock.requests();
    let listed = |revision: &str| {
        let path = format!("/revision/{revision}?");
        requests.iter().any(|request| request.path.contains(&path))
    };
    assert!(listed(COMMIT) && !listed("main"));

    // Another byte of the head, or of a description, is found although the Hub lists its hash.
    let change = |name: &str, at: usize| {
        let mut state = mock.state.lock().unwrap();
        state.files.get_mut(name).unwrap().0[at] ^= 1;
    };
    let weights = &source.weights[0];
    let first = weights.ranges[0].split('-').next().unwrap();
    let first: usize = first.parse().unwrap();
    for (name, at) in [(weights.file.as_str(), first), ("README.md", 0)] {
        if !mock.state.lock().unwrap().files.contains_key(name) {
            continue;
        }
        change(name, at);
        let ran = rebuild_on_hub(&mock, &dir);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        let expected = format!("input hf://org/name/{name}: sha256 ");
        assert!(ran.stdout.contains(&expected), "{}", ran.stdout);
        change(name, at);
    }
}
