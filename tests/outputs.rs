//! Output files of both programs: allowed names, atomic publication of several files, and the files
//! that stopped processes leave.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use schemas::gguf::{DType, Metadata, Owned, Plan, Tensor, open_one};

use crate::parts::{model, spawn};
use crate::util::{Cmd, Dir, reference, send, specconv, specrun, status};

/// Runs a command with a limit on file sizes, in blocks of 512 bytes. It simulates a full disk on any
/// machine.
fn limited(command: Cmd, n_blocks: u64) -> (Option<i32>, String) {
    let command = command.into_command();
    let script = format!("ulimit -f {n_blocks}; exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(command.get_program());
    let output = shell.args(command.get_args()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), stderr)
}

/// Writes a model of many tiny tensors; its manifest and its report are larger than the model.
fn many_tensors(dir: &Dir, n: u32) -> PathBuf {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("llama.block_count", 1u32);
    let mut plan = Plan::new(metadata);
    for i in 0..n {
        let bytes = vec![0; 4];
        let source = Arc::new(Owned {
            bytes,
            row_bytes: 4,
        });
        let name = format!("t{i}");
        plan.tensors
            .push(Tensor::new(name, vec![1], DType::F32, source).unwrap());
    }
    dir.gguf("in.gguf", &plan)
}

fn make_fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

/// Otherwise the model would replace the link, and for root even /dev/stdout.
#[test]
fn a_link_to_an_open_file_is_not_replaced() {
    let dir = Dir::new();
    let input = dir.convert(&reference("qwen3"), "in.gguf", &[]);
    let link = dir.join("link");
    symlink("/proc/self/fd/1", &link).unwrap();
    let second = dir.join("second");
    symlink("link", &second).unwrap();
    for out in [&link, &second, Path::new("-")] {
        let redirected = dir.join("redirected");
        let quantize = specconv("quantize").arg(&input).arg(out).arg("Q8_0");
        let mut quantize = quantize.current_dir(dir.path()).into_command();
        let output = quantize.stdout(File::create(&redirected).unwrap());
        let output = output.stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        let expected = "output is standard output, expected the name of a regular file";
        assert!(stderr.trim_end().ends_with(expected), "{stderr}");
        assert_eq!(fs::read(&redirected).unwrap(), b"");
    }
    assert!(link.is_symlink() && second.is_symlink());
    assert_eq!(dir.names(), ["in.gguf", "link", "redirected", "second"]);
}

#[test]
fn what_is_not_a_regular_file_is_refused() {
    let dir = Dir::new();
    let input = dir.convert(&reference("qwen3"), "in.gguf", &[]);
    let fifo = dir.join("fifo");
    make_fifo(&fifo);
    let refusals = [
        specconv("quantize").arg(&input).arg(&fifo).arg("Q8_0"),
        specconv("set-metadata")
            .arg(&input)
            .args(["a.b=u32:1", "-o"])
            .arg(&fifo),
        specrun("build-lookup")
            .arg("-m")
            .arg(&input)
            .arg("-o")
            .arg(&fifo)
            .arg(&input),
    ];
    for command in refusals {
        let error = command.error();
        assert!(
            error.ends_with("output is a FIFO, expected the name of a regular file"),
            "{error}"
        );
    }
    assert_eq!(dir.names(), ["fifo", "in.gguf"]);
}

/// A report is text, so it may go to a stream.
#[test]
fn reports_are_written_through_streams() {
    let dir = Dir::new();
    let input = dir.convert(&reference("qwen3"), "in.gguf", &[]);
    let hash = || specconv("hash").arg(&input);
    let lines = hash().ok();
    assert_eq!(hash().args(["--manifest", "-"]).ok(), lines.repeat(2));
    assert_eq!(
        hash().args(["--manifest", "/dev/stdout"]).ok(),
        lines.repeat(2)
    );
    assert_eq!(hash().args(["--manifest", "/dev/null"]).ok(), lines);
    let fifo = dir.join("fifo");
    make_fifo(&fifo);
    let child = spawn(hash().arg("--manifest").arg(&fifo));
    assert_eq!(fs::read_to_string(&fifo).unwrap(), lines);
    assert!(child.wait_with_output().unwrap().status.success());
    assert_eq!(dir.names(), ["fifo", "in.gguf"]);
}

#[test]
fn hard_links_of_inputs_are_inputs() {
    let dir = Dir::new();
    let input = dir.convert(&reference("qwen3"), "in.gguf", &[]);
    let text = dir.file("text", "some words");
    let link = |of: &Path, name: &str| {
        fs::hard_link(of, dir.join(name)).unwrap();
        dir.join(name)
    };
    let (hard, hard_text) = (link(&input, "hard.gguf"), link(&text, "hard.txt"));
    let before = (fs::read(&input).unwrap(), fs::read(&text).unwrap());
    let out = dir.join("out.gguf");
    let lookup = || specrun("build-lookup").arg("-m").arg(&input).arg("-o");
    let run = |command: &str| specrun(command).arg("-m").arg(&input);
    let refusals = [
        specconv("quantize").arg(&input).arg(&hard).arg("Q8_0"),
        specconv("quantize")
            .arg("--manifest")
            .arg(&hard)
            .arg(&input)
            .arg(&out)
            .arg("Q8_0"),
        specconv("hash").arg(&input).arg("--manifest").arg(&hard),
        specconv("set-metadata")
            .arg(&input)
            .args(["a.b=u32:1", "-o"])
            .arg(&hard),
        lookup().arg(&hard).arg(&text),
        lookup().arg(&hard_text).arg(&text),
        run("verify").arg("--report").arg(&hard),
        run("bench").arg("--html").arg(&hard),
    ];
    for command in refusals {
        let error = command.error();
        assert!(
            error.ends_with("output is also an input, expected another file"),
            "{error}"
        );
    }
    assert!((fs::read(&input).unwrap(), fs::read(&text).unwrap()) == before);
    assert_eq!(dir.names(), ["hard.gguf", "hard.txt", "in.gguf", "text"]);
}

#[test]
fn one_name_is_one_output() {
    let dir = Dir::new();
    let input = dir.convert(&reference("qwen3"), "in.gguf", &[]);
    let (out, report) = (dir.join("out.gguf"), dir.join("r"));
    let same_report = dir.path().join(".").join("r");
    let manifest = |path: &Path| {
        let quantize = specconv("quantize").arg(&input).arg(&out).arg("Q8_0");
        quantize
            .arg("--manifest")
            .arg(&report)
            .arg("--manifest")
            .arg(path)
    };
    let verify = specrun("verify")
        .arg("-m")
        .arg(&input)
        .arg("--report")
        .arg(&report);
    let refusals = [
        manifest(&out),
        manifest(&same_report),
        verify.arg("--junit").arg(&same_report),
        specconv("quantize")
            .args(["--manifest", "-", "--manifest", "/dev/stdout"])
            .arg(&input)
            .arg(&out)
            .arg("Q8_0"),
    ];
    for command in refusals {
        let error = command.error();
        assert!(
            error.ends_with("used for two outputs, expected different files"),
            "{error}"
        );
    }
    assert_eq!(dir.names(), ["in.gguf"]);
}

/// The model is complete when writing the manifest fails; it must not be published without it.
#[test]
fn a_model_and_its_manifest_appear_together_or_not_at_all() {
    let dir = Dir::new();
    let input = many_tensors(&dir, 300);
    let out = dir.file("out.gguf", "before");
    let quantize = || {
        let command =
            specconv("quantize")
                .arg(&input)
                .arg(&out)
                .args(["F32", "--overwrite", "--manifest"]);
        command.arg(dir.join("manifest.json"))
    };
    // The model has some 20 kB, the manifest more than 30.
    let (code, stderr) = limited(quantize(), 50);
    assert_eq!(code, Some(2), "{stderr}");
    let expected = format!(
        "error: {}: File too large",
        dir.join("manifest.json").display()
    );
    assert!(stderr.contains(&expected), "{stderr}");
    assert_eq!(fs::read(&out).unwrap(), b"before");
    assert_eq!(dir.names(), ["in.gguf", "out.gguf"]);
    quantize().ok();
    assert_eq!(dir.names(), ["in.gguf", "manifest.json", "out.gguf"]);
    let manifest = fs::read_to_string(dir.join("manifest.json")).unwrap();
    assert!(
        manifest.contains(&format!("\"{}\"", out.display())),
        "the published name"
    );
    assert!(!manifest.contains("specconv-partial"));
}

/// Both programs report a file size limit as an error and leave no files.
#[test]
fn a_limit_on_file_sizes_is_an_error_of_both_programs() {
    let dir = Dir::new();
    let input = dir.convert(&reference("qwen3"), "in.gguf", &[]);
    let text = dir.file("text", "one two three four five six seven ".repeat(200));
    let out = dir.join("out");
    let lookup = specrun("build-lookup")
        .arg("-m")
        .arg(&input)
        .arg("-o")
        .arg(&out);
    let commands = [
        lookup.arg(&text),
        specconv("hash").arg(&input).arg("--manifest").arg(&out),
        specconv("quantize").arg(&input).arg(&out).arg("Q8_0"),
    ];
    for command in commands {
        let (code, stderr) = limited(command, 0);
        assert_eq!(code, Some(2), "{stderr}");
        let expected = format!("error: {}: File too large", out.display());
        assert!(stderr.starts_with(&expected), "{stderr}");
        assert_eq!(dir.names(), ["in.gguf", "text"]);
    }
}

/// Starts a specrun that waits for the other end of a FIFO, so that signals arrive while it runs.
fn waiting_specrun(dir: &Dir, model: &Path, shell: Option<&str>) -> (Child, File) {
    let fifo = dir.join("fifo");
    if !fifo.exists() {
        make_fifo(&fifo);
    }
    let lookup = specrun("build-lookup").arg("-m").arg(model).arg("-o");
    let lookup = lookup.arg(dir.join("out.lookup")).arg(&fifo);
    let lookup = lookup.with_default_signals();
    let mut command = match shell {
        None => lookup,
        Some(script) => {
            // The script ignores signals after `env` has reset them.
            let args: Vec<_> = lookup.get_args().collect();
            let [reset, program, rest @ ..] = &args[..] else {
                panic!("env has an option and a program");
            };
            let mut shell = Command::new(lookup.get_program());
            shell
                .arg(reset)
                .args(["sh", "-c", script])
                .arg(program)
                .args(rest);
            shell
        }
    };
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    // Blocks until the program has opened the other end.
    let writer = File::options().write(true).open(&fifo).unwrap();
    (child, writer)
}

/// parts.rs has the same test for specconv.
#[test]
fn signals_end_specrun_with_their_exit_codes() {
    let dir = Dir::new();
    let input = dir.convert(&reference("qwen3"), "in.gguf", &[]);
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let (child, _writer) = waiting_specrun(&dir, &input, None);
        send(&child, signal);
        let (status, stderr) = status(child);
        assert_eq!(status.code(), Some(code), "{signal}: {stderr}");
        assert_eq!(dir.names(), ["fifo", "in.gguf"]);
    }
}

/// The exit code of a signal means that no file was written, so a command that has published its files
/// must not return it.
#[test]
fn a_signal_after_the_files_are_published_is_not_a_failure() {
    let dir = Dir::new();
    let input = many_tensors(&dir, 2000);
    let out = dir.join("out.gguf");
    let quantize = specconv("quantize")
        .arg(&input)
        .arg(&out)
        .args(["F32", "--json"]);
    let mut quantize = quantize.with_default_signals();
    quantize.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = quantize.spawn().unwrap();
    while !out.exists() {
        std::thread::yield_now();
    }
    // The test does not read the report, which is larger than a pipe buffer.
    send(&child, "INT");
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(output.stdout.len() > 1 << 16 && output.stdout.ends_with(b"}\n"));
    assert_eq!(dir.names(), ["in.gguf", "out.gguf"]);
}

/// `nohup` starts a program with SIGHUP ignored.
#[test]
fn ignored_signals_stay_ignored() {
    let dir = Dir::new();
    let input = dir.convert(&reference("qwen3"), "in.gguf", &[]);
    let script = "trap '' HUP; exec \"$0\" \"$@\"";
    let (child, mut writer) = waiting_specrun(&dir, &input, Some(script));
    send(&child, "HUP");
    writer.write_all(b"one two three").unwrap();
    drop(writer);
    let (status, stderr) = status(child);
    assert_eq!(status.code(), Some(0), "{stderr}");
    assert_eq!(dir.names(), ["fifo", "in.gguf", "out.lookup"]);
}

/// Starts a quantization and waits until the partial file exists.
fn half_written(dir: &Dir, input: &Path, out: &str) -> Child {
    let n_before = dir.names().len();
    let quantize = specconv("quantize").args(["--threads", "1"]).arg(input);
    let mut child = spawn(quantize.arg(dir.join(out)).arg("Q4_K"));
    while dir.names().len() == n_before {
        assert!(child.try_wait().unwrap().is_none(), "it was too fast");
        std::thread::yield_now();
    }
    child
}

/// Sends a signal to a program. Returns its exit code; `None` if the signal ended it.
fn signalled(mut child: Child, signal: &str) -> Option<i32> {
    send(&child, signal);
    child.wait().unwrap().code()
}

#[test]
fn killed_writers_leave_files_that_the_next_command_removes() {
    let dir = Dir::new();
    let input = model(&dir, 64);
    let small = dir.convert(
        &reference("qwen3"),
        "small.gguf",
        &["--reserve-header", "4K"],
    );
    let commands = [
        specconv("set-metadata").arg(&small).arg("a.b=u32:1"),
        specconv("hash")
            .arg(&small)
            .arg("--manifest")
            .arg(dir.join("lines")),
        specconv("quantize")
            .arg(&small)
            .arg(dir.join("again.gguf"))
            .arg("Q8_0"),
    ];
    for (command, signal) in commands.into_iter().zip(["KILL", "QUIT", "KILL"]) {
        // On a busy machine the program may end before the signal arrives.
        while signalled(half_written(&dir, &input, "out.gguf"), signal).is_some() {
            fs::remove_file(dir.join("out.gguf")).unwrap();
        }
        let strays = || {
            dir.names()
                .iter()
                .filter(|name| name.starts_with('.'))
                .count()
        };
        assert_eq!(strays(), 1, "{:?}", dir.names());
        command.ok();
        assert_eq!(strays(), 0, "{:?}", dir.names());
    }
    assert!(!dir.join("out.gguf").exists());
}

/// The partial file of a running process is not a stray file, even if it has not grown for long.
#[test]
fn files_that_are_being_written_are_left_alone() {
    let dir = Dir::new();
    let input = model(&dir, 64);
    let child = half_written(&dir, &input, "slow.gguf");
    send(&child, "STOP");
    let quantize = specconv("quantize").arg(&input).arg(dir.join("fast.gguf"));
    quantize.arg("Q4_K").ok();
    send(&child, "CONT");
    let (status, stderr) = status(child);
    assert_eq!(status.code(), Some(0), "{stderr}");
    assert!(fs::read(dir.join("slow.gguf")).unwrap() == fs::read(dir.join("fast.gguf")).unwrap());
    assert_eq!(dir.names(), ["fast.gguf", "in.gguf", "slow.gguf"]);
}

/// Files kept for `--resume` have no lock after a kill, but must not be removed.
#[test]
fn what_resume_keeps_is_not_a_stray() {
    let dir = Dir::new();
    let input = model(&dir, 16);
    let kept = [".out.gguf.journal", ".out.gguf.partial"];
    for name in kept {
        dir.file(name, "");
    }
    let quantize = specconv("quantize").arg(&input).arg(dir.join("other.gguf"));
    quantize.arg("Q4_K").ok();
    assert_eq!(dir.names(), [kept[0], kept[1], "in.gguf", "other.gguf"]);
}

#[test]
fn names_may_be_as_long_as_the_file_system_allows() {
    let dir = Dir::new();
    let flags = ["--reserve-header", "4K"];
    let input = dir.convert(&reference("qwen3"), "in.gguf", &flags);
    let quantize = |out: &Path| specconv("quantize").arg(&input).arg(out).arg("Q8_0");
    let longest = dir.join(&"n".repeat(255));
    quantize(&longest).ok();
    quantize(&longest).args(["--resume", "--overwrite"]).ok();
    let set = |key: &str| specconv("set-metadata").arg(&longest).arg(key);
    set("a.b=u32:1").ok();
    set(&format!("a.c=str:{}", "c".repeat(1 << 13))).ok();
    let found = open_one(&longest).unwrap().metadata;
    assert!(found.contains("a.b") && found.contains("a.c"));
    specconv("hash")
        .arg(&input)
        .arg("--manifest")
        .arg(dir.join(&"m".repeat(255)))
        .ok();
    assert_eq!(dir.names().len(), 3);
    let too_long = dir.join(&"n".repeat(256));
    let error = quantize(&too_long).error();
    let expected = format!("{}: File name too long", too_long.display());
    assert!(error.starts_with(&expected), "{error}");
}
