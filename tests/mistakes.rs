//! The mistakes that users make most often: each message names the mistake and the command that helps.

use std::fs::{self, File};

use schemas::gguf::{DType, Metadata, Owned, Plan, Tensor};

use crate::util::{Cmd, Dir, bundled, reference, specconv, specrun};

/// Copies a bundled checkpoint without some of its files.
fn checkpoint(dir: &Dir, name: &str, left_out: &[&str]) {
    let folder = dir.join(name);
    fs::create_dir(&folder).unwrap();
    for entry in fs::read_dir(bundled("tiny-draft")).unwrap() {
        let entry = entry.unwrap();
        if left_out.iter().all(|name| entry.file_name() != *name) {
            fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
}

/// Writes a checkpoint of another class.
fn of_class(dir: &Dir, name: &str, class: &str) {
    checkpoint(dir, name, &["config.json"]);
    let config = fs::read_to_string(bundled("tiny-draft").join("config.json")).unwrap();
    let config = config.replace("Qwen3ForCausalLM", class);
    fs::write(dir.join(name).join("config.json"), config).unwrap();
}

/// Writes a model whose only tensor is larger than any disk. The file takes no space.
fn huge(dir: &Dir) {
    const N_BYTES: u64 = 8 << 40;
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("llama.block_count", 1u32);
    let source = std::sync::Arc::new(Owned {
        bytes: vec![0; 4],
        row_bytes: 4,
    });
    let mut plan = Plan::new(metadata);
    plan.tensors
        .push(Tensor::new("output.weight", vec![1], DType::F32, source).unwrap());
    let path = dir.gguf("huge.gguf", &plan);
    let bytes = fs::read(&path).unwrap();
    // The entry of the tensor: its name, one dimension, and the number of elements.
    let at = bytes
        .windows(13)
        .position(|w| w == b"output.weight")
        .unwrap()
        + 13;
    let mut bytes = bytes;
    bytes[at + 4..at + 12].copy_from_slice(&(N_BYTES / 4).to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(bytes.len() as u64 + N_BYTES).unwrap();
}

#[test]
fn errors_name_the_mistake_and_what_helps() {
    let dir = Dir::new();
    let convert = |checkpoint: &str| specconv("convert").args([checkpoint, "-o", "out.gguf"]);
    let quantize = |args: &[&str]| specconv("quantize").args(args);
    let generate = |args: &[&str]| specrun("generate").args(args);
    dir.convert(&bundled("tiny-qwen35-mtp"), "model.gguf", &[]);
    dir.convert(&bundled("tiny-draft"), "small.gguf", &[]);
    dir.convert(&reference("llama"), "other.gguf", &[]);
    let run = |command: Cmd| command.current_dir(dir.path());
    run(quantize(&["model.gguf", "quantized.gguf", "Q8_0"])).ok();
    checkpoint(&dir, "no-tokenizer", &["tokenizer.json"]);
    of_class(&dir, "falcon", "FalconForCausalLM");
    of_class(&dir, "unheard-of", "UnheardOfForCausalLM");
    of_class(&dir, "vision", "Qwen2VLForConditionalGeneration");
    checkpoint(&dir, "lora", &["config.json"]);
    let adapter = "{\"base_model_name_or_path\": \"Qwen/Qwen3-0.6B\"}";
    dir.file("lora/adapter_config.json", adapter);
    dir.file("prompts.txt", "def main():\n");
    dir.file("model.safetensors", "weights");
    huge(&dir);
    let checkpoint = bundled("tiny-draft");
    let checkpoint = checkpoint.to_str().unwrap();
    let cases = [
        (
            "a Hub id without hf://",
            convert("Qwen/Qwen3-0.6B"),
            "Qwen/Qwen3-0.6B: does not exist",
            "write hf://Qwen/Qwen3-0.6B",
        ),
        (
            "a Hub id as a model",
            generate(&["Qwen/Qwen3-0.6B-GGUF", "x"]),
            "Qwen/Qwen3-0.6B-GGUF: No such file",
            "write hf://Qwen/Qwen3-0.6B-GGUF",
        ),
        (
            "a folder where a GGUF file belongs",
            generate(&[checkpoint, "x"]),
            "is a directory",
            "specconv convert",
        ),
        (
            "a GGUF file where a folder belongs",
            convert("model.gguf"),
            "model.gguf: a file, expected the folder",
            "specconv quantize model.gguf",
        ),
        (
            "a weight file where a GGUF file belongs",
            generate(&["model.safetensors", "x"]),
            "expected the magic \"GGUF\"",
            "a checkpoint is given by its folder",
        ),
        (
            "a LoRA adapter",
            convert("lora"),
            "lora: a LoRA adapter of Qwen/Qwen3-0.6B, not a whole model",
            "merge it into Qwen/Qwen3-0.6B first",
        ),
        (
            "no tokenizer",
            convert("no-tokenizer"),
            "no-tokenizer: no tokenizer",
            "--tokenizer-from",
        ),
        (
            "an unsupported class",
            convert("falcon"),
            "model class \"FalconForCausalLM\"",
            "convert_hf_to_gguf.py; quantize, split, hash",
        ),
        (
            "an unknown class",
            convert("unheard-of"),
            "model class \"UnheardOfForCausalLM\" is unknown",
            "convert_hf_to_gguf.py; quantize, split, hash",
        ),
        (
            "a vision model",
            convert("vision"),
            "model class \"Qwen2VLForConditionalGeneration\"",
            "this is a vision model",
        ),
        (
            "a quantized input",
            quantize(&["quantized.gguf", "out.gguf", "Q4_K_M"]),
            "requantizing from Q8_0",
            "pass --allow-requantize",
        ),
        (
            "a full disk",
            quantize(&["huge.gguf", "out.gguf", "F16"]),
            "out.gguf: needs 8796094 MB, the file system has ",
            "free some space",
        ),
        (
            "no such model, and a similar one",
            generate(&["modle.gguf", "x"]),
            "modle.gguf: No such file",
            "did you mean model.gguf?",
        ),
        (
            "no such model",
            quantize(&["xyz", "out.gguf", "Q8_0"]),
            "xyz: No such file",
            "the folder has huge.gguf, model.gguf, other.gguf",
        ),
        (
            "plain text as prompts",
            specrun("verify").args(["model.gguf", "-f", "prompts.txt"]),
            "prompts.txt: line 1",
            "expected JSON lines",
        ),
        (
            "mtp for draft-mtp",
            generate(&["model.gguf", "x", "--spec-type", "mtp"]),
            "unknown speculator \"mtp\"",
            "did you mean draft-mtp?",
        ),
        (
            "a head on an architecture without one",
            specconv("split-mtp").args(["small.gguf", "--mtp", "out.gguf"]),
            "architecture qwen3 has no MTP head",
            "EAGLE-3",
        ),
        (
            "a model without a head",
            generate(&["small.gguf", "x", "--spec-type", "draft-mtp"]),
            "the file has no MTP head",
            "specconv graft-mtp",
        ),
        (
            "a draft with another vocabulary",
            generate(&["model.gguf", "x", "-md", "other.gguf"]),
            "draft does not fit the target",
            "specconv map-vocab",
        ),
        (
            "an output in a missing folder",
            quantize(&["model.gguf", "missing/out.gguf", "Q8_0"]),
            "missing/out.gguf: folder missing does not exist",
            "mkdir -p missing",
        ),
        (
            // A name of 64 letters is invalid, so that nothing is asked.
            "a host without an address",
            convert("hf://org/name")
                .env("HF_ENDPOINT", &format!("http://{}.invalid", "a".repeat(64)))
                .env("HF_HOME", dir.path().to_str().unwrap()),
            ".invalid: the host name cannot be resolved (2 attempts)",
            "HF_HUB_OFFLINE=1",
        ),
        (
            "the type before the output",
            quantize(&["model.gguf", "Q4_K_M", "out.gguf"]),
            "\"out.gguf\": expected a number of threads after the type",
            "specconv quantize model.gguf out.gguf Q4_K_M",
        ),
        (
            "a type that needs an importance matrix",
            quantize(&["model.gguf", "out.gguf", "IQ2_XS"]),
            "IQ2_XS requires an importance matrix",
            "specrun imatrix",
        ),
        (
            "no type",
            quantize(&["model.gguf", "out.gguf"]),
            "out.gguf: no type was given after the output",
            "specconv quantize model.gguf out.gguf Q4_K_M",
        ),
        (
            "a text shorter than the context",
            specrun("perplexity").args(["model.gguf", "-f", "prompts.txt"]),
            "expected at least one chunk of 512",
            "give a longer text",
        ),
        (
            "no prompt",
            generate(&["model.gguf"]),
            "no prompt was given",
            "-f FILE",
        ),
        (
            "no model",
            generate(&["-p", "x"]),
            "no model was given",
            "-m MODEL.gguf",
        ),
        (
            "an unknown flag",
            generate(&["model.gguf", "x", "--no-spcial"]),
            "unexpected argument '--no-spcial' found",
            "'--no-special'",
        ),
        (
            "a flag of llama.cpp without a counterpart",
            generate(&["model.gguf", "x", "--no-mmap"]),
            "unexpected argument '--no-mmap' found",
            "leave it out",
        ),
        (
            "a short flag of llama.cpp with several letters",
            generate(&["model.gguf", "x", "-cnv"]),
            "unexpected argument '-cnv' found",
            "specrun serve",
        ),
        (
            "a file of a repository, as in llama.cpp",
            generate(&["-hf", "org/name", "--hf-file", "m.gguf", "-p", "x"]),
            "unexpected argument '--hf-file' found",
            "-m hf://org/name/FILE.gguf",
        ),
        (
            "an unknown flag that resembles none",
            generate(&["model.gguf", "x", "--why"]),
            "unexpected argument '--why' found",
            "\"specrun generate --help\" lists all flags",
        ),
        (
            "a prompt for verify",
            specrun("verify").args(["model.gguf", "-p", "x"]),
            "unexpected argument '-p' found",
            "-f prompts.jsonl",
        ),
        (
            "a flag before the command",
            specrun("-m").arg("model.gguf"),
            "unexpected argument '-m' found",
            "a command comes first",
        ),
        (
            "an argument too many",
            specconv("graft-mtp").args(["model.gguf", "model.gguf", "out.gguf"]),
            "unexpected argument 'model.gguf' found",
            "for example \"specconv graft-mtp ",
        ),
        (
            "a command of another tool",
            specrun("preflight").arg("model.gguf"),
            "unrecognized subcommand 'preflight'",
            "specrun verify --check fit",
        ),
        (
            "a type as a flag",
            quantize(&["--type", "Q4_K_M", "model.gguf", "out.gguf"]),
            "unexpected argument '--type' found",
            "specconv quantize model.gguf out.gguf Q4_K_M",
        ),
        (
            "the text before the model",
            generate(&["hello", "model.gguf"]),
            "hello: No such file",
            "the model comes before the text",
        ),
        (
            "a text as the first argument, and a model in the environment",
            generate(&["hello"]).env("LLAMA_ARG_MODEL", "model.gguf"),
            "hello: No such file",
            "a text is given with -p",
        ),
        (
            "a wrong number in the environment",
            generate(&["model.gguf", "x"]).env("LLAMA_ARG_CTX_SIZE", "many"),
            "invalid value 'many' for '--ctx-size <N>': expected a whole number",
            "LLAMA_ARG_CTX_SIZE=many",
        ),
        (
            "an empty prompt",
            generate(&["model.gguf", ""]),
            "no tokens",
            "the prompt is empty",
        ),
        (
            "a file of a checkpoint",
            convert("no-tokenizer/config.json"),
            "no-tokenizer/config.json: a file, expected the folder",
            "\"specconv convert no-tokenizer\"",
        ),
    ];
    for (mistake, command, error, hint) in cases {
        let ran = run(command).run();
        assert_eq!(ran.code, Some(2), "{mistake}: {}{}", ran.stdout, ran.stderr);
        assert_eq!(ran.stdout, "", "{mistake}");
        let lines = ran
            .stderr
            .lines()
            .filter(|line| !line.starts_with("note: "));
        let lines: Vec<&str> = lines.collect();
        let [first, second] = lines.as_slice() else {
            panic!("{mistake}: expected an error and a hint, found {lines:#?}");
        };
        assert!(
            first.starts_with("error: ") && first.contains(error),
            "{mistake}: {first}"
        );
        assert!(
            second.starts_with("hint: ") && second.contains(hint),
            "{mistake}: {second}"
        );
        assert!(!dir.join("out.gguf").exists(), "{mistake}");
    }
}

/// A file that exists is replaced only on request, by every command that writes.
#[test]
fn existing_files_are_kept_unless_asked() {
    let dir = Dir::new();
    dir.convert(&bundled("tiny-qwen35-mtp"), "model.gguf", &[]);
    dir.convert(&bundled("tiny-draft"), "small.gguf", &[]);
    let folder = bundled("tiny-draft");
    let folder = folder.to_str().unwrap();
    dir.file("text.txt", "def main():\n");
    let keep = dir.file("keep", "precious");
    let writers: [(&str, &[&str]); 17] = [
        ("convert", &[folder, "-o", "keep"]),
        ("quantize", &["model.gguf", "keep", "Q8_0"]),
        ("split-mtp", &["model.gguf", "--mtp", "keep"]),
        (
            "requantize-mtp",
            &["model.gguf", "-o", "keep", "--mtp-type", "q8_0"],
        ),
        (
            "replace-mtp",
            &[
                "--target",
                "model.gguf",
                "--mtp",
                "model.gguf",
                "-o",
                "keep",
            ],
        ),
        (
            "map-vocab",
            &[
                "--target",
                "model.gguf",
                "--draft",
                "small.gguf",
                "-o",
                "keep",
            ],
        ),
        (
            "trim-vocab",
            &[
                "model.gguf",
                "--layout",
                "specconv",
                "--text",
                "text.txt",
                "-n",
                "9",
                "-o",
                "keep",
            ],
        ),
        ("set-metadata", &["model.gguf", "a.b=u32:1", "-o", "keep"]),
        ("hash", &["model.gguf", "--manifest", "keep"]),
        (
            "quantize",
            &["model.gguf", "new.gguf", "Q8_0", "--manifest", "keep"],
        ),
        ("verify", &["model.gguf", "--report", "keep"]),
        ("verify", &["model.gguf", "--html", "keep"]),
        ("verify", &["model.gguf", "--junit", "keep"]),
        ("bench", &["model.gguf", "--markdown", "keep"]),
        ("bench", &["model.gguf", "--tasks", "--html", "keep"]),
        (
            "generate",
            &["model.gguf", "x", "-n", "1", "--spec-trace", "keep"],
        ),
        (
            "build-lookup",
            &["-m", "model.gguf", "-o", "keep", "text.txt"],
        ),
    ];
    for (command, args) in writers {
        let is_run = ["verify", "bench", "generate", "build-lookup"].contains(&command);
        let program = if is_run { specrun } else { specconv };
        let ran = program(command).args(args).current_dir(dir.path());
        let error = ran.error();
        assert_eq!(
            error, "keep exists; pass --overwrite to replace it",
            "{command} {args:?}"
        );
        assert_eq!(fs::read(&keep).unwrap(), b"precious", "{command}");
        assert!(!dir.join("new.gguf").exists());
    }
    let quantize = specconv("quantize").args(["model.gguf", "keep", "Q8_0"]);
    quantize.arg("--overwrite").current_dir(dir.path()).ok();
    assert!(fs::read(&keep).unwrap().starts_with(b"GGUF"));
    // A plan replaces nothing.
    let quantize = specconv("quantize").args(["model.gguf", "keep", "Q4_0"]);
    quantize.arg("--dry-run").current_dir(dir.path()).ok();
}

/// Steps of a job on GitHub append to one summary.
#[test]
fn a_job_summary_is_appended_to() {
    let dir = Dir::new();
    dir.convert(&bundled("tiny-draft"), "model.gguf", &[]);
    let summary = dir.file("summary", "before\n");
    let bench = specrun("bench").args(["model.gguf", "-p", "8", "--width", "1", "-r", "1"]);
    let bench = bench
        .arg("--markdown")
        .arg(&summary)
        .current_dir(dir.path());
    bench
        .env("GITHUB_STEP_SUMMARY", summary.to_str().unwrap())
        .ok();
    let text = fs::read_to_string(&summary).unwrap();
    assert!(text.starts_with("before\n") && text.len() > 20, "{text}");
}

/// Prompts are given as arguments, on standard input and in files; a text without visible characters is
/// explained.
#[test]
fn generate_needs_no_flags() {
    let dir = Dir::new();
    dir.convert(&bundled("tiny-qwen35-mtp"), "model.gguf", &[]);
    dir.file("prompt.txt", "def main():\n");
    let generate = |args: &[&str]| specrun("generate").args(args).current_dir(dir.path());
    let expected = generate(&["-m", "model.gguf", "-p", "def main():", "-n", "8"]).ok();
    assert!(!expected.trim().is_empty());
    let ways: [&[&str]; 4] = [
        &["model.gguf", "def main():", "-n", "8"],
        &["-m", "model.gguf", "def main():", "-n", "8"],
        &["model.gguf", "-f", "prompt.txt", "-n", "8"],
        &["-q", "model.gguf", "def main():", "-n", "8"],
    ];
    for args in ways {
        assert_eq!(generate(args).ok(), expected, "{args:?}");
    }
    let mut piped = generate(&["model.gguf", "-p", "-", "-n", "8"]).into_command();
    let stdin = File::open(dir.join("prompt.txt")).unwrap();
    let output = piped.stdin(stdin).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);

    let quiet = generate(&["model.gguf", "def main():", "-n", "8", "-q"]).run();
    assert_eq!(quiet.stderr, "");
    let verbose = generate(&[
        "model.gguf",
        "x",
        "-n",
        "8",
        "-v",
        "--spec-type",
        "draft-mtp",
    ])
    .run();
    assert!(
        verbose.stderr.contains("#calls(b,g,a)"),
        "{}",
        verbose.stderr
    );
    let warned = generate(&["model.gguf", "x", "-n", "1", "-ngl", "99"]).run();
    // A machine with a device has no reason to warn.
    let expected = ["warning: -ngl 99: running on the CPU: ", "running on "];
    let is_expected = expected.iter().any(|text| warned.stderr.starts_with(text));
    assert!(is_expected, "{}", warned.stderr);

    let said = |args: &[&str]| {
        generate(&[&["model.gguf", "x = 1", "-n", "1"], args].concat())
            .run()
            .stderr
    };
    let note = "note: 1 token without visible text; this is an instruct model: try --chat";
    assert!(said(&[]).contains(note), "{}", said(&[]));
    let report = generate(&["model.gguf", "x = 1", "-n", "1"]).json();
    let end = format!("tokenizer.ggml.eos_token_id=u32:{}", report["tokens"][0]);
    specconv("set-metadata")
        .arg(dir.join("model.gguf"))
        .arg(end)
        .ok();
    let note = "note: stopped at \\n after 0 visible tokens; this is an instruct model: try --chat";
    assert!(said(&[]).contains(note), "{}", said(&[]));
}
