//! System limits: fewer threads, little memory, files that change while they are read.

use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, thread};

use crate::util::{Cmd, Dir, Ran, bundled, reference, specconv, specrun};

/// Sets a thread stack size larger than any address space, so that every thread start fails, as under a
/// container's process limit.
fn without_threads(command: Cmd) -> Cmd {
    command.env("RUST_MIN_STACK", "1125899906842624")
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the warnings of a run.
fn warnings(ran: &Ran) -> Vec<&str> {
    let lines = ran.stderr.lines();
    lines.filter(|line| line.starts_with("warning: ")).collect()
}

/// Runs a command with and without threads and expects the same output and `n_warnings` warnings.
#[track_caller]
fn assert_same_without_threads(n_warnings: usize, command: impl Fn() -> Cmd) {
    let with = command().run();
    let without = without_threads(command()).run();
    assert_eq!(with.code, Some(0), "{}", with.stderr);
    assert_eq!(without.code, Some(0), "{}", without.stderr);
    assert_eq!(with.stdout, without.stdout);
    let found = warnings(&without);
    assert_eq!(found.len(), n_warnings, "{}", without.stderr);
    assert!(found.iter().all(|line| line.contains("running on 1 of ")));
}

#[test]
fn specconv_works_where_no_thread_can_be_started() {
    let dir = Dir::new();
    let model = dir.convert(&reference("qwen35"), "m.gguf", &[]);
    let quantized = dir.join("q.gguf");
    let quantize = || {
        let quantize = specconv("quantize").args(["--threads", "5"]).arg(&model);
        quantize.arg(&quantized).args(["Q8_0", "--overwrite"])
    };
    quantize().ok();
    let expected = fs::read(&quantized).unwrap();
    let ran = without_threads(quantize()).run();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(warnings(&ran).len(), 1, "{}", ran.stderr);
    let is_same = fs::read(&quantized).unwrap() == expected;
    assert!(is_same, "the bytes depend on the threads");
    assert_same_without_threads(1, || specconv("hash").args(["--threads", "5"]).arg(&model));
}

#[test]
fn specrun_works_where_no_thread_can_be_started() {
    // With one core the program does not start any threads.
    let n_warnings = usize::from(cores() > 1);
    let dir = Dir::new();
    let model = dir.convert(&bundled("tiny-qwen35-mtp"), "m.gguf", &[]);
    let with_head = |command: Cmd| {
        command
            .arg("-m")
            .arg(&model)
            .args(["--spec-type", "draft-mtp"])
    };
    assert_same_without_threads(n_warnings, || {
        with_head(specrun("generate")).args(["-p", "def ", "-n", "8"])
    });
    let verify = || with_head(specrun("verify")).args(["-n", "4"]);
    let ran = without_threads(verify()).run();
    assert_eq!(ran.code, verify().run().code, "{}", ran.stderr);
    assert!(warnings(&ran).len() <= 1, "{}", ran.stderr);
}

#[test]
fn more_threads_than_cores_are_not_started() {
    let dir = Dir::new();
    let model = dir.convert(&reference("qwen3"), "m.gguf", &[]);
    let generate = |threads: &str| {
        let generate = specrun("generate").arg("-m").arg(&model);
        generate
            .args(["-p", "def ", "-n", "8", "-t", threads])
            .run()
    };
    let (one, many) = (generate("1"), generate("512"));
    assert_eq!(many.stdout, one.stdout);
    let cores = cores();
    let note = format!("note: --threads 512: using {cores}, one per core");
    assert!(
        cores >= 512 || many.stderr.contains(&note),
        "{}",
        many.stderr
    );
}

/// Starts a generation, truncates the model file after the first text, and waits for the exit.
fn generate_from_a_cut_file(model: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let generate = specrun("generate").arg("-m").arg(model);
    let generate = generate.args(["-p", "def ", "--ignore-eos"]).args(flags);
    let mut generate = generate.into_command();
    generate.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = generate.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_exact(&mut [0]).unwrap();
    fs::File::options()
        .write(true)
        .truncate(true)
        .open(model)
        .unwrap();
    let drain = thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
    let output = child.wait_with_output().unwrap();
    drain.join().unwrap().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn a_model_that_is_cut_while_it_runs_is_named() {
    let dir = Dir::new();
    let whole = dir.convert(&bundled("tiny-qwen35-mtp"), "whole.gguf", &[]);
    // The trained context length limits the length of a text.
    let longer = "qwen35.context_length=u32:40000";
    specconv("set-metadata").arg(&whole).arg(longer).ok();
    let model = dir.join("m.gguf");
    for _ in 0..5 {
        fs::copy(&whole, &model).unwrap();
        // The text is larger than a pipe buffer, so the run cannot end before the file is truncated.
        let flags = ["--no-repack", "-n", "39000"];
        let (code, stderr) = generate_from_a_cut_file(&model, &flags);
        assert_eq!(code, Some(2), "{stderr}");
        let expected = format!("error: {}: mapped bytes cannot be read", model.display());
        assert!(stderr.contains(&expected), "{stderr}");
    }
}

/// Creates a named pipe in the folder.
fn pipe(dir: &Dir) -> PathBuf {
    let pipe = dir.join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    pipe
}

#[test]
fn a_model_that_changes_while_it_is_loaded_is_refused() {
    let dir = Dir::new();
    let model = dir.convert(&reference("qwen3"), "m.gguf", &[]);
    let pipe = pipe(&dir);
    let generate = specrun("generate").arg("-m").arg(&model);
    let generate = generate.arg("--prompts").arg(&pipe);
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            // Blocks until the program opens the pipe, after it has opened the model.
            let mut prompts = fs::File::options().write(true).open(&pipe).unwrap();
            let model = fs::File::options().write(true).open(&model).unwrap();
            model.set_modified(std::time::UNIX_EPOCH).unwrap();
            prompts.write_all(PROMPTS.as_bytes()).unwrap();
        });
        generate.error()
    });
    let expected = format!(
        "{}: the file changed while it was being read",
        model.display()
    );
    assert!(error.contains(&expected), "{error}");
}

/// A prompt file with one prompt.
const PROMPTS: &str = r#"{"id": "a", "prompt": "def "}"#;

/// Returns a command with a limit on its address space, in KiB.
fn limited(command: Cmd, kib: u64) -> Command {
    let command = command.into_command();
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -v {kib} && exec \"$0\" \"$@\"")]);
    limited.arg(command.get_program()).args(command.get_args());
    limited.stdin(Stdio::null());
    limited
}

/// Messages of the runtimes when they have no memory for themselves.
const RUNTIME_ABORTS: [&str; 2] = [
    "Fatal glibc error",
    "failed to allocate an alternative stack",
];

/// Runs a command with less and less address space, down to the minimum that its program needs to start.
fn assert_no_signal(command: impl Fn() -> Cmd) {
    let starts = |kib: u64| {
        let version = Cmd::of(command().into_command().get_program()).arg("--version");
        limited(version, kib).output().unwrap().status.success()
    };
    let (mut too_few, mut enough) = (1 << 10, 1 << 20);
    while enough - too_few > 64 {
        let middle = (too_few + enough) / 2;
        match starts(middle) {
            true => enough = middle,
            false => too_few = middle,
        }
    }
    let mut n_failed = 0;
    for i in 0..60 {
        let output = limited(command(), enough + i * 150).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => {}
            Some(2) => {
                n_failed += 1;
                assert!(stderr.contains("error: "), "{stderr}");
            }
            // The C library and Rust's runtime abort by themselves, with a message, if they cannot allocate
            // their own tables or the signal stack of a thread.
            None if RUNTIME_ABORTS.iter().any(|text| stderr.contains(text)) => n_failed += 1,
            _ => panic!("{} with {} kB: {stderr}", output.status, enough + i * 150),
        }
    }
    assert!(n_failed > 0, "the limits are all wide enough");
}

#[test]
fn little_memory_ends_programs_with_a_message() {
    let dir = Dir::new();
    let model: PathBuf = dir.convert(&reference("qwen3"), "m.gguf", &[]);
    assert_no_signal(|| {
        let generate = specrun("generate").arg("-m").arg(&model);
        generate.args(["-p", "hello", "-n", "4"])
    });
    assert_no_signal(|| {
        let quantize = specconv("quantize").arg(&model);
        quantize.arg(dir.join("q.gguf")).arg("Q8_0")
    });
}

/// Returns commands that read a file of endless zeros instead of a small file.
fn endless(dir: &Dir, model: &Path) -> Vec<(&'static str, Cmd)> {
    let zero = "/dev/zero";
    let generate = || specrun("generate").arg("-m").arg(model);
    let quantize = || {
        let quantize = specconv("quantize").arg(model);
        quantize.arg(dir.join("q.gguf")).arg("Q8_0")
    };
    let cache = dir.join("cache");
    vec![
        ("prompts", generate().args(["--prompts", zero])),
        ("embeddings", generate().args(["--embeddings", zero])),
        (
            "static lookups",
            generate().args(["-p", "a", "--lookup-cache-static", zero]),
        ),
        (
            "dynamic lookups",
            // `verify`, because `generate` refuses to replace the file before reading it.
            specrun("verify")
                .arg("-m")
                .arg(model)
                .args(["--lookup-cache-dynamic", zero]),
        ),
        (
            "chat template",
            generate().args(["-p", "a", "--chat-template-file", zero]),
        ),
        (
            "vocabulary map",
            generate().args(["-p", "a", "--spec-vocab-map", zero]),
        ),
        ("draft", generate().args(["-p", "a", "-md", zero])),
        ("model", specrun("generate").args(["-p", "a", "-m", zero])),
        ("recipe", specconv("quantize").args(["--recipe", zero])),
        ("imatrix", quantize().args(["--imatrix", zero])),
        ("types", quantize().args(["--tensor-type-file", zero])),
        (
            "template",
            specconv("set-chat-template").arg(model).arg(zero),
        ),
        (
            "token",
            specconv("convert")
                .arg("hf://org/name")
                .env("HF_TOKEN_PATH", zero)
                .env("HF_HOME", cache.to_str().unwrap()),
        ),
        (
            "manifest",
            specconv("hash").arg(model).args(["--check", zero]),
        ),
    ]
}

#[test]
fn endless_files_are_refused() {
    let dir = Dir::new();
    let model = dir.convert(&reference("qwen3"), "m.gguf", &[]);
    for (what, command) in endless(&dir, &model) {
        let error = command.error();
        assert!(
            error.contains("/dev/zero: is a device, expected a regular file"),
            "{what}: {error}"
        );
    }
}

#[test]
fn links_to_devices_in_a_checkpoint_are_refused() {
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let dir = Dir::new();
        let folder = dir.join("checkpoint");
        fs::create_dir(&folder).unwrap();
        for file in fs::read_dir(reference("qwen3")).unwrap().flatten() {
            fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
        fs::remove_file(folder.join(name)).unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.join(name)).unwrap();
        let convert = specconv("convert").arg(&folder);
        let error = convert.arg("-o").arg(dir.join("m.gguf")).error();
        let expected = format!("{name}: is a device, expected a regular file");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn prompts_may_come_through_a_pipe() {
    let dir = Dir::new();
    let model = dir.convert(&reference("qwen3"), "m.gguf", &[]);
    let file = dir.file("p.jsonl", PROMPTS);
    let generate = |path: &Path| {
        let generate = specrun("generate").arg("-m").arg(&model);
        generate.args(["-n", "4", "--prompts"]).arg(path)
    };
    let from_file = generate(&file).ok();
    let pipe = pipe(&dir);
    let writer = thread::spawn({
        let pipe = pipe.clone();
        move || fs::write(pipe, PROMPTS).unwrap()
    });
    assert_eq!(generate(&pipe).ok(), from_file);
    writer.join().unwrap();
}
