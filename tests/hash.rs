//! `specconv hash` compared with llama-gguf-hash.

use std::fs;
use std::path::Path;

use schemas::report::Verdict;

use crate::util::{Dir, read_json, reference, sha256, specconv};

/// Hashes that llama-gguf-hash prints for all data of the bf16 file of the `llama` checkpoint, and for
/// one tensor.
const PEER: [(&[&str], &str, &str); 2] = [
    (
        &[],
        "sha256    53399b92735909c0a9395ae473c61d3e6be3ca14d93f29b73ebc17ce0953faf2  ",
        "sha256    9db30962d1500632ca6df04c2d558da384ac58769f3bfa578f7f0fd97accd135  ",
    ),
    (
        &["--xxh64"],
        "xxh64     07cddb2abde3dd1f  ",
        "xxh64     89d39c76bb9a2f4a  ",
    ),
];

#[test]
fn lines_are_those_of_the_peer() {
    let dir = Dir::new();
    let file = dir.convert(&reference("llama"), "m.gguf", &[]);
    for (flags, data, tensor) in PEER {
        let text = specconv("hash").args(flags).arg(&file).ok();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 58, "a line for each tensor, and one for all");
        assert_eq!(lines[57], format!("{data}{}", file.display()));
        let tensor = format!("{tensor}{}:output_norm.weight", file.display());
        assert!(lines.contains(&tensor.as_str()), "{text}");
    }
    let report = specconv("hash").arg(&file).json();
    let bytes = fs::read(&file).unwrap();
    assert_eq!(report["files"][0]["sha256"], sha256(&bytes));
    assert_eq!(
        report["verdict"],
        serde_json::to_value(Verdict::Pass).unwrap()
    );
}

#[test]
fn a_check_finds_what_changed() {
    let dir = Dir::new();
    let manifest = dir.join("m.manifest");
    let flags = ["--manifest", manifest.to_str().unwrap()];
    let file = dir.convert(&reference("llama"), "m.gguf", &flags);
    let lines = specconv("hash").arg(&file).ok();
    assert_eq!(fs::read_to_string(&manifest).unwrap(), lines);
    let check = || specconv("hash").arg(&file).arg("--check").arg(&manifest);
    assert!(check().ok().starts_with("PASS: 57 tensors"));
    // The last bytes belong to the last tensor.
    let before = fs::read(&file).unwrap();
    let mut bytes = before.clone();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let ran = check().run();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(
        ran.stdout.matches(": expected ").count(),
        2,
        "{}",
        ran.stdout
    );
    // Entries that are only in the manifest or only in the file.
    let recorded: Vec<&str> = lines.lines().collect();
    let check_of = |lines: &[&str]| {
        fs::write(&manifest, lines.join("\n")).unwrap();
        check().run()
    };
    fs::write(&file, before).unwrap();
    let ran = check_of(&recorded[1..]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(ran.stdout.matches("not in the manifest").count(), 1);
    let extra = format!("sha256  00  {}:blk.99.x.weight", file.display());
    let ran = check_of(&[&recorded[..], &[extra.as_str()]].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(
        ran.stdout.contains("tensor blk.99.x.weight is missing"),
        "{}",
        ran.stdout
    );
    let ran = check_of(&[extra.replace("m.gguf", "other.gguf").as_str()]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stdout.contains("m.gguf: not in the manifest"));
    // Either half of a manifest is sufficient, as for llama-gguf-hash, whose `--no-layer` omits one.
    assert_eq!(check_of(&recorded[..57]).code, Some(0));
    assert_eq!(check_of(&recorded[57..]).code, Some(0));
    fs::write(&manifest, "nothing of use\n").unwrap();
    assert!(check().error().ends_with("expected a manifest"));
}

/// Files with the same name are matched by path first; moved files are matched by name.
#[test]
fn an_entry_is_found_by_path_and_then_by_name() {
    let dir = Dir::new();
    let [a, b, c] = ["a", "b", "c"].map(|folder| {
        fs::create_dir(dir.join(folder)).unwrap();
        dir.join(folder).join("m.gguf")
    });
    let whole = dir.convert(&reference("llama"), "m.gguf", &[]);
    let quantize = specconv("quantize").arg(&whole).arg(&b);
    quantize.arg("Q8_0").ok();
    fs::rename(&whole, &a).unwrap();
    let manifest = dir.join("both.manifest");
    let hash = |files: [&Path; 2]| specconv("hash").args(files);
    hash([&a, &b]).arg("--manifest").arg(&manifest).ok();
    hash([&b, &a]).arg("-c").arg(&manifest).ok();
    fs::copy(&a, &c).unwrap();
    specconv("hash").arg(&c).arg("-c").arg(&manifest).ok();
    fs::copy(&b, &a).unwrap();
    let ran = hash([&a, &b]).arg("-c").arg(&manifest).run();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(!ran.stdout.contains("b/m.gguf"), "{}", ran.stdout);
}

/// A JSON manifest also states the origin of the file.
#[test]
fn a_manifest_states_the_origin() {
    let dir = Dir::new();
    let [lines, json] = ["m.manifest", "m.json"].map(|name| dir.join(name));
    let flags = [&lines, &json].map(|path| path.to_str().unwrap());
    let flags = ["--manifest", flags[0], "--manifest", flags[1]];
    let file = dir.convert(&reference("llama"), "m.gguf", &flags);
    let manifest = read_json(&json);
    crate::cli::assert_valid("manifest", &manifest);
    let found = &manifest["files"][0];
    assert_eq!(found["sha256"], sha256(&fs::read(&file).unwrap()));
    let text = fs::read_to_string(&lines).unwrap();
    for tensor in found["tensors"].as_array().unwrap() {
        assert!(text.contains(tensor["hash"].as_str().unwrap()));
    }
    let inputs = manifest["inputs"].as_array().unwrap();
    for name in [
        "model-00001-of-00002.safetensors",
        "config.json",
        "tokenizer.json",
    ] {
        let path = reference("llama").join(name);
        let input = inputs.iter().find(|i| i["path"] == path.to_str().unwrap());
        let expected = sha256(&fs::read(&path).unwrap());
        assert_eq!(input.unwrap()["sha256"], expected, "{name}");
    }
}

/// A command with several outputs writes one manifest with an entry for each type and each shard.
#[test]
fn quantize_writes_the_manifest_of_each_file() {
    let dir = Dir::new();
    let input = dir.convert(&reference("llama"), "in.gguf", &[]);
    let manifest = dir.join("out.manifest");
    let quantize = |input: &Path, out: &str, ftypes: &str| {
        let quantize = specconv("quantize").arg(input).arg(dir.join(out));
        let quantize = quantize.args([ftypes, "1", "--keep-split"]);
        quantize.arg("--manifest").arg(&manifest)
    };
    let lines_of = |files: &[&str]| {
        let files = files.iter().map(|name| dir.join(name));
        specconv("hash").args(files).ok()
    };
    let split = specconv("split").args(["--split-max-tensors", "30"]);
    split.arg(&input).arg(dir.join("in")).ok();
    let first = dir.join("in-00001-of-00002.gguf");
    quantize(&first, "parts-{FTYPE}.gguf", "Q8_0,Q4_0").ok();
    let found = fs::read_to_string(&manifest).unwrap();
    let firsts = ["Q8_0", "Q4_0"].map(|ftype| format!("parts-{ftype}-00001-of-00002.gguf"));
    assert_eq!(found, lines_of(&firsts.each_ref().map(String::as_str)));
    assert_eq!(found.lines().count(), 2 * (57 + 2));
    let second = dir.join("parts-Q4_0-00002-of-00002.gguf");
    assert!(found.contains(&format!("{}\n", second.display())));
    for name in firsts {
        let check = specconv("hash").arg(dir.join(&name));
        let text = check.arg("--check").arg(&manifest).ok();
        assert!(text.starts_with("PASS: 57 tensors"), "{text}");
    }
    // A manifest must not replace the file it describes, or an input.
    for name in ["x.gguf", "in-00002-of-00002.gguf"] {
        let flags = ["--manifest", name];
        let quantize = specconv("quantize").arg(&first).arg(dir.join("x.gguf"));
        let quantize = quantize.arg("Q8_0").args(flags).current_dir(dir.path());
        assert!(quantize.error().starts_with(name));
    }
    assert!(!dir.join("x.gguf").exists());
}
