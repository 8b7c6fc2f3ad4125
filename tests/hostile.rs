//! Broken files through the real binary: exit code 2, one line on stderr, no panic.

use std::fs;
use std::path::Path;

use crate::util::{Cmd, Dir, bundled, reference, specconv, specrun};

/// Returns every command that reads a GGUF file.
fn readers(file: &Path, dir: &Dir) -> Vec<Cmd> {
    let out = dir.join("out.gguf");
    vec![
        specconv("inspect").arg(file),
        specconv("quantize").arg(file).arg(&out).arg("Q8_0"),
        specconv("split-mtp")
            .arg(file)
            .arg("--body")
            .arg(&out)
            .arg("--mtp")
            .arg(dir.join("mtp.gguf")),
        specconv("graft-mtp")
            .arg("--target")
            .arg(file)
            .arg("--mtp")
            .arg(file)
            .arg("-o")
            .arg(&out),
        specrun("generate").arg("-m").arg(file).args(["-p", "a"]),
        specrun("verify").arg("-m").arg(file),
        specrun("logits")
            .arg("-m")
            .arg(file)
            .args(["--tokens", "1"]),
        specrun("bench").arg("-m").arg(file),
        specrun("tokenize").arg("-m").arg(file).args(["-p", "a"]),
    ]
}

#[track_caller]
fn refused(dir: &Dir, bytes: &[u8], what: &str) {
    let file = dir.file("bad.gguf", bytes);
    for reader in readers(&file, dir) {
        let error = reader.error();
        assert!(error.starts_with(file.to_str().unwrap()), "{error}");
        assert!(error.contains(what), "{what:?} not in {error}");
    }
    assert_eq!(dir.names(), ["bad.gguf", "good.gguf"]);
}

#[test]
fn broken_files_are_refused_by_place() {
    let dir = Dir::new();
    let good = dir.convert(&reference("qwen35"), "good.gguf", &[]);
    let good = fs::read(good).unwrap();
    refused(&dir, b"", "byte 0: expected the magic \"GGUF\"");
    refused(&dir, &[0; 4096], "byte 0: expected the magic \"GGUF\"");
    refused(&dir, &good[..good.len() / 2], "data ends at byte");
    refused(&dir, &good[..1000], "byte ");
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    refused(&dir, &changed(4, 7), "byte 4: version 7, expected 2 or 3");
    refused(&dir, &changed(15, 0x40), "the tensor list needs");
    refused(&dir, &changed(23, 0x40), "the key list needs");
    refused(&dir, &changed(31, 0x40), "byte 32: key needs");
    let mut swapped = good.clone();
    swapped[4..8].reverse();
    refused(&dir, &swapped, "big-endian");
}

#[test]
fn what_is_no_file_is_refused() {
    let dir = Dir::new();
    let missing = dir.join("missing.gguf");
    for reader in readers(&missing, &dir) {
        assert_eq!(
            reader.error(),
            format!(
                "{}: No such file or directory (os error 2)",
                missing.display()
            )
        );
    }
    let error = specconv("inspect").arg(dir.path()).error();
    assert!(error.contains("is a directory"), "{error}");
}

/// Flips one bit at many offsets of the header; no command may panic.
#[test]
fn flipped_bits_never_panic() {
    let dir = Dir::new();
    let good = dir.convert(&bundled("tiny-qwen35-mtp"), "good.gguf", &[]);
    let good = fs::read(good).unwrap();
    let header = 100_000.min(good.len());
    for i in 0..60 {
        let mut bytes = good.clone();
        let at = i * i * 27 % header;
        bytes[at] ^= 1 << (i % 8);
        let file = dir.file("bad.gguf", &bytes);
        let ran = specconv("inspect").arg(&file).run();
        assert!(matches!(ran.code, Some(0..=2)), "byte {at}: {}", ran.stderr);
        assert!(
            !ran.stderr.contains("panicked"),
            "byte {at}: {}",
            ran.stderr
        );
    }
}

/// Breaks the bytes of a file.
type Damage = fn(&mut Vec<u8>);

/// Broken checkpoints are refused with exit code 2 and one line on stderr.
#[test]
fn broken_checkpoints_are_refused() {
    let good = reference("qwen3");
    let cases: [(&str, Damage, &str); 4] = [
        ("config.json", |bytes| bytes.truncate(40), "config.json: "),
        (
            "tokenizer.json",
            |bytes| bytes.truncate(400),
            "tokenizer.json: ",
        ),
        (
            "model.safetensors",
            |bytes| bytes.truncate(5000),
            "model.safetensors: ",
        ),
        (
            "model.safetensors",
            |bytes| bytes[7] = 0x7f,
            "model.safetensors: ",
        ),
    ];
    for (name, change, expected) in cases {
        let dir = Dir::new();
        for entry in fs::read_dir(&good).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
        }
        let path = dir.join(name);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let error = specconv("convert").arg(dir.path()).error();
        assert!(error.contains(expected), "{expected:?} not in {error}");
    }
}

/// Broken prompt files are refused by every command that reads one, with the line number.
#[test]
fn broken_prompts_are_refused_by_line() {
    let dir = Dir::new();
    let model = dir.convert(&bundled("tiny-draft"), "model.gguf", &[]);
    let cases: [(&[u8], &str); 6] = [
        (b"", ": no prompts"),
        (b"{\"id\": \"a\", \"prompt\": \"x", ": line 1, column "),
        (
            b"{\"id\": \"a\"}",
            ": line 1, column 11: missing field `prompt`",
        ),
        (
            b"{\"id\": \"a\", \"prompt\": \"x\"}\n{\"id\": \"a\", \"prompt\": \"y\"}",
            ": line 2: id \"a\" is already on line 1",
        ),
        (
            b"{\"id\": \"a\", \"prompt\": \"x\", \"n_predict\": -1}",
            ": line 1, column ",
        ),
        (b"\xff\xfe", "UTF-8"),
    ];
    for (bytes, expected) in cases {
        let prompts = dir.file("prompts.jsonl", bytes);
        for command in ["generate", "verify"] {
            let run = specrun(command).arg("-m").arg(&model);
            let error = run.arg("--prompts").arg(&prompts).error();
            assert!(error.starts_with(prompts.to_str().unwrap()), "{error}");
            assert!(error.contains(expected), "{expected:?} not in {error}");
        }
    }
}
