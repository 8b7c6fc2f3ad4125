//! `specconv plan`, `run` and `finish`: the result of any number of shards is that of one machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::cli::assert_valid;
use crate::parts::{model, spawn};
use crate::util::{Cmd, Dir, Ran, bundled, read_json, reference, send, specconv, specrun, status};

/// Forms of the parts of models.
const FORMS: [&str; 2] = ["shared", "separate"];

/// Plans a command.
fn plan(dir: &Dir, command: &[&str], n_shards: usize) -> PathBuf {
    let path = dir.join("plan.json");
    let plan = specconv("plan").args(command).arg("--replace-plan");
    let plan = plan.args(["--shards", &n_shards.to_string()]);
    plan.arg("-o").arg(&path).current_dir(dir.path()).ok();
    assert_valid("work-plan", &read_json(&path));
    path
}

/// Plans a command after the parts of the plan before are removed: those of measurements are kept.
fn plan_again(dir: &Dir, command: &[&str], n_shards: usize) -> PathBuf {
    let parts = dir.join("plan.json.parts");
    if parts.exists() {
        fs::remove_dir_all(parts).unwrap();
    }
    plan(dir, command, n_shards)
}

/// Runs a shard in the folder of the plan.
fn shard(dir: &Dir, plan: &Path, shard: usize) -> Cmd {
    let run = specconv("run").arg(plan).current_dir(dir.path());
    run.args(["--shard", &shard.to_string()])
}

fn finish(dir: &Dir, plan: &Path) -> Cmd {
    specconv("finish").arg(plan).current_dir(dir.path())
}

/// Runs all shards, the last one first, and some of them twice.
fn run_all(dir: &Dir, plan: &Path, n_shards: usize) {
    for i in (0..n_shards).rev() {
        let report = shard(dir, plan, i).json();
        assert_valid("run", &report);
        assert_eq!(report["kept"], false, "{report}");
        if i % 3 == 0 {
            let again = shard(dir, plan, i).json();
            assert_eq!(again["kept"], true, "{again}");
            assert_eq!(again["size_bytes"], report["size_bytes"]);
        }
    }
}

/// Returns the bytes of the files in a folder whose names begin so, in order.
fn files(folder: &Path, prefix: &str) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    let found = named.filter(|(name, path)| name.starts_with(prefix) && path.is_file());
    let mut found: Vec<_> = found
        .map(|(name, path)| (name, fs::read(path).unwrap()))
        .collect();
    found.sort();
    found
}

/// Compares the files that a command writes alone with those of shards, in both forms of parts.
fn assert_same(command: &[&str], prefix: &str, input: impl Fn(&Dir)) {
    let expected = Dir::new();
    input(&expected);
    let (name, args) = command.split_first().unwrap();
    specconv(name).args(args).current_dir(expected.path()).ok();
    let expected = files(expected.path(), prefix);
    assert!(!expected.is_empty());
    let dir = Dir::new();
    input(&dir);
    let forms = FORMS.iter().flat_map(|form| [1, 2, 7].map(|n| (form, n)));
    for (form, n_shards) in forms {
        let command = [command, &["--parts", form]].concat();
        let plan = plan(&dir, &command, n_shards);
        assert_eq!(read_json(&plan)["parts"], *form);
        run_all(&dir, &plan, n_shards);
        let manifest = read_json(&dir.join("plan.json.parts/part-00000.json"));
        assert_valid("work-part", &manifest);
        let report = finish(&dir, &plan).arg("--overwrite").json();
        assert_valid("finish", &report);
        assert!(
            files(dir.path(), prefix) == expected,
            "{command:?} in {n_shards} shards"
        );
        let sizes = report["outputs"].as_array().unwrap().iter();
        let size_bytes: u64 = sizes.map(|file| file["size_bytes"].as_u64().unwrap()).sum();
        if *form == "shared" {
            assert_eq!(report["renamed_bytes"], size_bytes);
        }
        // The parts are removed, and finishing again does nothing.
        let parts = dir.join("plan.json.parts");
        assert_eq!(fs::read_dir(&parts).unwrap().count(), 1);
        assert_eq!(finish(&dir, &plan).json()["kept"], true);
        assert_eq!(shard(&dir, &plan, 0).json()["kept"], true);
    }
}

#[test]
fn models_have_the_bytes_of_one_machine() {
    let checkpoint = bundled("tiny-qwen35-mtp");
    let checkpoint = checkpoint.to_str().unwrap();
    let nothing = |_: &Dir| {};
    let convert = ["convert", checkpoint, "--outfile", "out.gguf"];
    assert_same(&convert, "out", nothing);
    let types = [
        "convert",
        checkpoint,
        "--outfile",
        "out-{ftype}.gguf",
        "--outtype",
        "bf16,q8_0",
    ];
    assert_same(&types, "out", nothing);
    let split = [
        &convert[..],
        &["--split-max-tensors", "9", "--no-tensor-first-split"],
    ]
    .concat();
    assert_same(&split, "out", nothing);
    let f32 =
        |dir: &Dir| _ = dir.convert(&reference("qwen35-256"), "in.gguf", &["--outtype", "f32"]);
    let quantize = [
        "quantize",
        "--reserve-header",
        "4K",
        "in.gguf",
        "out-{FTYPE}.gguf",
        "Q4_K_M,Q6_K",
    ];
    assert_same(&quantize, "out", f32);
}

#[test]
fn whole_files_are_renamed() {
    for (form, n_shards, prefix) in [("separate", 1, "part-00000-0"), ("shared", 3, ".output-")] {
        let dir = Dir::new();
        let checkpoint = bundled("tiny-qwen35-mtp");
        let command = [
            "convert",
            checkpoint.to_str().unwrap(),
            "--outfile",
            "out-{ftype}.gguf",
            "--parts",
            form,
        ];
        let plan = plan(&dir, &command, n_shards);
        run_all(&dir, &plan, n_shards);
        let report = finish(&dir, &plan).arg("--keep-parts").json();
        assert_eq!(report["renamed_bytes"], 0, "kept parts are copied");
        let parts = files(&dir.join("plan.json.parts"), prefix);
        let out = report["outputs"][0]["path"].as_str().unwrap().to_owned();
        let written = fs::read(dir.join(&out)).unwrap();
        assert!(matches!(&parts[..], [(_, bytes)] if *bytes == written));
        fs::remove_file(dir.join(&out)).unwrap();
        let report = finish(&dir, &plan).json();
        assert_eq!(report["renamed_bytes"], report["outputs"][0]["size_bytes"]);
        assert!(fs::read(dir.join(&out)).unwrap() == written);
    }
}

/// A plan of a model of 12 MB in three shards.
fn planned(dir: &Dir, form: &str) -> PathBuf {
    model(dir, 12);
    let command = ["quantize", "in.gguf", "out.gguf", "Q8_0", "--parts", form];
    plan(dir, &command, 3)
}

/// Expects that `finish` refuses, and names the problem.
#[track_caller]
fn assert_refused(dir: &Dir, plan: &Path, problem: &str) {
    let error = finish(dir, plan).error();
    assert!(error.contains(problem), "{error}");
    assert!(!dir.join("out.gguf").exists());
}

#[test]
fn parts_that_are_not_right_are_named() {
    let dir = Dir::new();
    let planned = planned(&dir, "separate");
    let at = |name: &str| dir.join("plan.json.parts").join(name);
    let all = "plan.json: shard 0: missing; shard 1: missing; shard 2: missing";
    assert_refused(&dir, &planned, all);
    run_all(&dir, &planned, 3);
    fs::remove_file(at("part-00001.json")).unwrap();
    let ran = finish(&dir, &planned).run();
    assert!(
        ran.stderr.contains("plan.json: shard 1: missing\n"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("plan.json --shard 1"), "{}", ran.stderr);
    // A copy of another shard.
    fs::copy(at("part-00002.json"), at("part-00001.json")).unwrap();
    assert_refused(&dir, &planned, "shard 1: double: a copy of shard 2");
    shard(&dir, &planned, 1).ok();
    // A changed byte, another length, no file.
    let data = at("part-00002-0.gguf");
    let bytes = fs::read(&data).unwrap();
    let mut changed = bytes.clone();
    changed[bytes.len() / 2] ^= 1;
    fs::write(&data, &changed).unwrap();
    assert_refused(&dir, &planned, "shard 2: part-00002-0.gguf: bytes ");
    fs::write(&data, &bytes[1..]).unwrap();
    assert_refused(&dir, &planned, "bytes, expected");
    fs::remove_file(&data).unwrap();
    assert_refused(&dir, &planned, "part-00002-0.gguf: No such file");
    assert_eq!(shard(&dir, &planned, 2).json()["kept"], false);
    // A damaged manifest.
    fs::write(at("part-00000.json"), "{}").unwrap();
    assert_refused(&dir, &planned, "shard 0: its manifest is damaged");
    shard(&dir, &planned, 0).ok();
    // A file that does not belong to the plan.
    fs::write(at("part-00003-0.gguf"), "").unwrap();
    assert_refused(
        &dir,
        &planned,
        "part-00003-0.gguf: foreign, not part of the plan",
    );
    fs::remove_file(at("part-00003-0.gguf")).unwrap();
    finish(&dir, &planned).ok();
}

#[test]
fn damaged_ranges_of_a_shared_file_are_named() {
    let dir = Dir::new();
    let planned = planned(&dir, "shared");
    let folder = dir.join("plan.json.parts");
    let all = "plan.json: shard 0: missing; shard 1: missing; shard 2: missing";
    assert_refused(&dir, &planned, all);
    run_all(&dir, &planned, 3);
    let shared = || {
        let found = files(&folder, ".output-00000.gguf.");
        let [(name, bytes)] = <[_; 1]>::try_from(found).unwrap();
        (folder.join(name), bytes)
    };
    let (data, bytes) = shared();
    let plan = read_json(&planned);
    assert_eq!(plan["outputs"][0]["size_bytes"], bytes.len());
    let rows = &plan["shards"][1]["files"][0]["content"]["slices"][0];
    let first = rows["offset"].as_u64().unwrap() as usize;
    // A byte of the header, of the last rows of shard 0, and of the first rows of shard 1.
    for (at, shards) in [(9, [0, 1, 2]), (first - 1, [0, 1, 2]), (first, [1, 0, 2])] {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        fs::write(&data, &changed).unwrap();
        let error = finish(&dir, &planned).error();
        let [damaged, right @ ..] = shards;
        let problem = format!("plan.json: shard {damaged}: .output-00000.gguf.");
        assert!(error.contains(&problem), "{error}");
        assert!(
            error.contains(": bytes ") && error.contains(": hash "),
            "{error}"
        );
        assert!(!error.contains("; shard"), "{error}");
        for i in right {
            assert_eq!(shard(&dir, &planned, i).json()["kept"], true);
        }
        assert_eq!(shard(&dir, &planned, damaged).json()["kept"], false);
        assert!(shared().1 == bytes);
    }
    // A file that is longer, or missing.
    fs::write(&data, [&bytes[..], b"more"].concat()).unwrap();
    assert_refused(&dir, &planned, "bytes, expected");
    assert_eq!(shard(&dir, &planned, 2).json()["kept"], false);
    assert!(shared().1 == bytes);
    fs::remove_file(&data).unwrap();
    assert_refused(&dir, &planned, ": No such file");
    run_all(&dir, &planned, 3);
    // Manifests that are of another shard, lack ranges, or are missing.
    let manifest = |i: usize| folder.join(format!("part-0000{i}.json"));
    fs::copy(manifest(2), manifest(1)).unwrap();
    assert_refused(&dir, &planned, "shard 1: double: a copy of shard 2");
    shard(&dir, &planned, 1).ok();
    let mut lacking = read_json(&manifest(1));
    let ranges = &mut lacking["files"][0]["ranges"];
    assert!(ranges.as_array_mut().unwrap().pop().is_some());
    fs::write(manifest(1), lacking.to_string()).unwrap();
    assert_refused(&dir, &planned, "its manifest has hashes of");
    fs::remove_file(manifest(1)).unwrap();
    assert_refused(&dir, &planned, "plan.json: shard 1: missing");
    shard(&dir, &planned, 1).ok();
    finish(&dir, &planned).ok();
    assert!(fs::read(dir.join("out.gguf")).unwrap() == bytes);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn parts_of_another_plan_are_not_accepted() {
    FORMS.iter().for_each(|form| assert_stale(form));
}

fn assert_stale(form: &str) {
    let dir = Dir::new();
    let first = planned(&dir, form);
    run_all(&dir, &first, 3);
    let error = specconv("plan").args(["quantize", "in.gguf", "out.gguf", "Q6_K", "-o"]);
    let error = error.arg(&first).current_dir(dir.path()).run();
    assert_eq!(error.code, Some(2));
    assert!(
        error.stderr.contains("hint: --replace-plan"),
        "{}",
        error.stderr
    );
    // The same shards with another type.
    let command = ["quantize", "in.gguf", "out.gguf", "Q6_K", "--parts", form];
    let second = plan(&dir, &command, 3);
    assert_refused(&dir, &second, "shard 0: stale: made for another plan");
    shard(&dir, &second, 0).ok();
    assert_refused(&dir, &second, "shard 1: stale");
    for i in [1, 2] {
        assert_eq!(shard(&dir, &second, i).json()["kept"], false);
    }
    finish(&dir, &second).ok();
    let alone = specconv("quantize").args(["in.gguf", "alone.gguf", "Q6_K"]);
    alone.current_dir(dir.path()).ok();
    let [out, alone] = ["out.gguf", "alone.gguf"].map(|name| fs::read(dir.join(name)).unwrap());
    assert!(out == alone);
}

#[test]
fn another_input_is_refused() {
    let dir = Dir::new();
    let planned = planned(&dir, "shared");
    let input = dir.join("in.gguf");
    let bytes = fs::read(&input).unwrap();
    let error = |dir: &Dir| shard(dir, &planned, 1).error();
    let modified = fs::metadata(&input).unwrap().modified().unwrap();
    let mut changed = bytes.clone();
    changed[9_000_000] ^= 1;
    fs::write(&input, &changed).unwrap();
    let found = error(&dir);
    assert!(found.starts_with("in.gguf: other content; "), "{found}");
    fs::write(&input, &bytes[..bytes.len() - 32]).unwrap();
    assert!(error(&dir).contains("bytes, expected"));
    fs::write(&input, &bytes).unwrap();
    let found = error(&dir);
    assert!(
        found.starts_with("in.gguf: modified at another time"),
        "{found}"
    );
    // From another folder, the input is not found.
    let other = Dir::new();
    let ran = specconv("run").arg(&planned).args(["--shard", "1"]);
    let ran = ran.current_dir(other.path()).run();
    assert!(
        ran.stderr
            .contains("in.gguf: no such file in the current folder"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("hint: relative paths start in"),
        "{}",
        ran.stderr
    );
    let file = fs::File::options().write(true).open(&input).unwrap();
    file.set_modified(modified).unwrap();
    shard(&dir, &planned, 1).ok();
    let found = shard(&dir, &planned, 3).error();
    assert!(found.ends_with("plan.json: no shard 3"), "{found}");
    // Copies may have other times.
    let copied = plan(
        &dir,
        &["quantize", "in.gguf", "out.gguf", "Q8_0", "--copied-inputs"],
        2,
    );
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    run_all(&dir, &copied, 2);
}

#[test]
fn a_changed_chat_template_is_another_input() {
    const TEMPLATE: &str = "hf/additional_chat_templates/tool_use.jinja";
    let dir = Dir::new();
    let folder = dir.join("hf");
    fs::create_dir_all(folder.join("additional_chat_templates")).unwrap();
    for entry in fs::read_dir(bundled("tiny-draft")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    fs::write(dir.join(TEMPLATE), "{{ tools }}").unwrap();
    let planned = plan(&dir, &["convert", "hf", "--outfile", "out.gguf"], 2);
    fs::write(dir.join(TEMPLATE), "{{ other }}").unwrap();
    let found = shard(&dir, &planned, 1).error();
    assert!(found.starts_with(&format!("{TEMPLATE}: ")), "{found}");
}

#[test]
fn a_shard_can_run_twice_at_once_and_continue_after_a_signal() {
    FORMS.iter().for_each(|form| assert_robust(form));
}

fn assert_robust(form: &str) {
    let dir = Dir::new();
    // Absolute paths: the programs run in the folder of the tests.
    let input = model(&dir, 48);
    let (input, out) = (input.to_str().unwrap(), dir.join("out.gguf"));
    let out = out.to_str().unwrap();
    let command = ["quantize", input, out, "Q8_0", "--parts", form];
    let planned = plan(&dir, &command, 3);
    let runs = [0, 2, 0, 0].map(|i| spawn(shard(&dir, &planned, i)));
    for run in runs {
        let (status, stderr) = status(run);
        assert!(status.success(), "{stderr}");
    }
    // Killed at once, in the middle, or never: the next run ends the work.
    let journal = dir.join("plan.json.parts/.part-00001.json.journal");
    let len = || fs::metadata(&journal).map_or(0, |found| found.len());
    for signal in ["KILL", "TERM", "KILL"] {
        let goal = len() + 80;
        let mut run = spawn(shard(&dir, &planned, 1).args(["--threads", "1"]));
        while len() < goal && run.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        if run.try_wait().unwrap().is_none() {
            send(&run, signal);
        }
        run.wait().unwrap();
    }
    shard(&dir, &planned, 1).ok();
    finish(&dir, &planned).ok();
    let alone = specconv("quantize").args(["in.gguf", "alone.gguf", "Q8_0"]);
    alone.current_dir(dir.path()).ok();
    let [out, alone] = ["out.gguf", "alone.gguf"].map(|name| fs::read(dir.join(name)).unwrap());
    assert!(out == alone);
}

#[test]
fn a_full_disk_leaves_no_part() {
    assert_no_part("separate", "part-00000-0.gguf: File too large");
    assert_no_part("shared", ": File too large");
}

fn assert_no_part(form: &str, problem: &str) {
    let dir = Dir::new();
    let planned = planned(&dir, form);
    let limited = |command: Cmd| -> Ran {
        let command = command.into_command();
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -f 2000; exec \"$0\" \"$@\""]);
        limited.arg(command.get_program()).args(command.get_args());
        let output = limited.current_dir(dir.path()).output().unwrap();
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    };
    let ran = limited(shard(&dir, &planned, 0));
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains(problem), "{}", ran.stderr);
    assert_refused(&dir, &planned, "shard 0: missing");
    run_all(&dir, &planned, 3);
    let ran = limited(finish(&dir, &planned));
    if form == "shared" {
        // Nothing is written but the report.
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        return;
    }
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("out.gguf: File too large"),
        "{}",
        ran.stderr
    );
    assert!(!dir.join("out.gguf").exists());
    finish(&dir, &planned).ok();
}

#[test]
fn flags_without_a_meaning_for_parts_are_refused() {
    let dir = Dir::new();
    model(&dir, 1);
    let error = |args: &[&str]| {
        let plan = specconv("plan").args(args).current_dir(dir.path());
        plan.error()
    };
    for flag in ["--dry-run", "--resume", "--json", "--overwrite"] {
        let found = error(&["quantize", "in.gguf", "out.gguf", "Q8_0", flag]);
        assert_eq!(
            found,
            format!("{flag}: not for a command that is divided among machines")
        );
    }
    let found = error(&[
        "kld",
        "in.gguf",
        "in.gguf",
        "-f",
        "in.gguf",
        "--save-logits",
        "x",
    ]);
    assert!(found.starts_with("--save-logits: not for"), "{found}");
    assert!(!dir.join("plan.json").exists());
    let foreign = dir.file("notes.json", "{}");
    let found = specconv("finish").arg(&foreign).error();
    assert!(found.contains("notes.json: not a plan"), "{found}");
    let found = error(&[
        "kld", "in.gguf", "in.gguf", "-f", "in.gguf", "--parts", "shared",
    ]);
    assert!(found.starts_with("--parts: for convert"), "{found}");
    let command = [
        "quantize", "in.gguf", "out.gguf", "Q8_0", "--parts", "shared",
    ];
    let planned = plan(&dir, &command, 1);
    let text = fs::read_to_string(&planned).unwrap();
    fs::write(&planned, text.replacen("specconv 0", "specconv 9", 1)).unwrap();
    let found = shard(&dir, &planned, 0).error();
    assert!(found.contains("made by specconv 9"), "{found}");
    fs::write(&planned, text.replacen("output-00000.gguf", "../x.gguf", 1)).unwrap();
    let found = shard(&dir, &planned, 0).error();
    assert!(found.contains("is not the name of a part"), "{found}");
}

/// The bundled model, a quantized one, and a text.
fn measured(dir: &Dir) {
    let model = dir.convert(
        &bundled("tiny-qwen35-mtp"),
        "base.gguf",
        &["--outtype", "f32"],
    );
    let quantize = specconv("quantize").arg(model).arg(dir.join("q.gguf"));
    quantize.arg("Q4_0").ok();
    let text = fs::read(reference("imatrix").join("text.txt")).unwrap();
    dir.file("text.txt", &text[..3000]);
}

#[test]
fn sums_of_an_importance_matrix_have_the_bits_of_one_machine() {
    let dir = Dir::new();
    measured(&dir);
    for flags in [&["--nextn"][..], &["--process-output", "--chunks", "31"]] {
        let command = [
            &["base.gguf", "-f", "text.txt", "-c", "16", "--json"][..],
            flags,
        ]
        .concat();
        let alone = specrun("imatrix").args(&command).args(["-o", "alone.gguf"]);
        let alone: Value =
            serde_json::from_str(&alone.arg("--overwrite").current_dir(dir.path()).ok()).unwrap();
        let expected = fs::read(dir.join("alone.gguf")).unwrap();
        assert!(
            alone["n_chunks"].as_u64().unwrap() >= 29,
            "seven shards have work"
        );
        for n_shards in [1, 2, 7] {
            let name = format!("{n_shards}-{}.gguf", flags.len());
            let planned = [&["imatrix"][..], &command[..], &["--outfile", &name]].concat();
            let plan = plan_again(&dir, &planned, n_shards);
            let shards = read_json(&plan)["shards"].clone();
            let idle = |shard: &Value| shard["files"].as_array().unwrap().is_empty();
            assert!(!shards.as_array().unwrap().iter().any(idle));
            run_all(&dir, &plan, n_shards);
            let report: Value = serde_json::from_str(&finish(&dir, &plan).ok()).unwrap();
            assert_eq!(report["perplexity"], alone["perplexity"]);
            assert!(
                fs::read(dir.join(&name)).unwrap() == expected,
                "{n_shards} shards"
            );
        }
    }
}

#[test]
fn divergences_have_the_bits_of_one_machine() {
    let dir = Dir::new();
    measured(&dir);
    let save = [
        "base.gguf",
        "q.gguf",
        "-f",
        "text.txt",
        "-c",
        "16",
        "--save-logits",
        "logits",
    ];
    specrun("kld").args(save).current_dir(dir.path()).ok();
    for command in [
        &[
            "base.gguf",
            "q.gguf",
            "-f",
            "text.txt",
            "-c",
            "16",
            "--json",
        ][..],
        &[
            "q.gguf",
            "base.gguf",
            "--base-logits",
            "logits",
            "--chunks",
            "9",
            "--json",
        ],
    ] {
        let measure = |text: &str| -> Value {
            let mut report: Value = serde_json::from_str(text).unwrap();
            assert_valid("kld", &report);
            report["provenance"].take();
            report
        };
        let alone = specrun("kld").args(command).current_dir(dir.path()).ok();
        let planned = [&["kld"][..], command].concat();
        for n_shards in [1, 2, 7] {
            let plan = plan_again(&dir, &planned, n_shards);
            run_all(&dir, &plan, n_shards);
            let joined = finish(&dir, &plan).ok();
            assert_eq!(measure(&joined), measure(&alone), "{n_shards} shards");
            // Parts of measurements are kept: the result can be printed again.
            assert_eq!(measure(&finish(&dir, &plan).ok()), measure(&alone));
        }
    }
}

#[test]
fn verification_reports_become_one() {
    let dir = Dir::new();
    measured(&dir);
    // Without what depends on time.
    let proved = |text: &str| -> Value {
        let mut report: Value = serde_json::from_str(text).unwrap();
        assert_valid("verify", &report);
        report["provenance"].take();
        report["widths"].take();
        report["target"]["speed"].take();
        for run in report["runs"].as_array_mut().unwrap() {
            run["counters"].take();
        }
        for verdict in report["speculators"].as_array_mut().unwrap() {
            verdict["counters"].take();
        }
        report["agreement"]["writing_ms"].take();
        for compared in report["agreement"]["speculators"].as_array_mut().unwrap() {
            compared["elapsed_ms"].take();
        }
        report
    };
    let prompts = ["def main():", "import os\n", "class Queue:"].map(|prompt| {
        let line = serde_json::json!({"id": prompt, "prompt": prompt});
        format!("{line}\n")
    });
    dir.file("prompts.jsonl", prompts.concat());
    let command = [
        "base.gguf",
        "-f",
        "prompts.jsonl",
        "--spec-type",
        "ngram-simple,draft-mtp",
        "-n",
        "12",
        "--matrix",
        "quick",
        "--check",
        "fit,identity,acceptance,invariance,agreement",
        "--json",
    ];
    let alone = specrun("verify")
        .args(command)
        .current_dir(dir.path())
        .run();
    let planned = [&["verify"][..], &command[..]].concat();
    for n_shards in [1, 3, 7] {
        let plan = plan_again(&dir, &planned, n_shards);
        run_all(&dir, &plan, n_shards);
        let joined = finish(&dir, &plan).run();
        assert_eq!(joined.code, alone.code, "{}", joined.stderr);
        assert_eq!(
            proved(&joined.stdout),
            proved(&alone.stdout),
            "{n_shards} shards"
        );
    }
    // A check that fails on one machine fails in the joined report.
    let failing = [&planned[..], &["--min-accept", "1"]].concat();
    let plan = plan_again(&dir, &failing, 4);
    run_all(&dir, &plan, 4);
    let joined = finish(&dir, &plan).run();
    assert_eq!(joined.code, Some(1), "{}", joined.stderr);
}
