//! Compares docs/adding.md with the code: the files that mention a sample type, operation or instruction set are
//! those that the document lists, so a new one needs no other file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kernels::types::TYPES;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the source files that a section of the document names, with `NAME` replaced.
fn documented(section: &str, name: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("docs/adding.md")).expect("the document");
    let (_, section) = text
        .split_once(&format!("\n## {section}\n"))
        .expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let words = section.split(|c: char| c.is_whitespace() || "`:,;()".contains(c));
    let paths = words.map(|word| word.trim_end_matches('.').replace("NAME", name));
    paths.filter(|word| word.contains("/src/")).collect()
}

/// Returns the source files under some folders that have one of the words in their code, comments aside, or
/// as a folder in their path.
fn mentioned(folders: &[&str], words: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for folder in folders {
        search(&root().join(folder), words, &mut found);
    }
    found
}

fn search(folder: &Path, words: &[&str], found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            search(&path, words, found);
            continue;
        }
        let is_code = path
            .extension()
            .is_some_and(|e| e == "rs" || e == "cu" || e == "cuh");
        if !is_code {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source file");
        let code = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default());
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let in_code = code
            .flat_map(|line| line.split(|c| !is_name(c)))
            .any(|word| words.contains(&word));
        let in_path = path
            .iter()
            .any(|part| part.to_str().is_some_and(|part| words.contains(&part)));
        if in_code || in_path {
            let path = path.strip_prefix(root()).expect("a path below the root");
            found.insert(path.to_string_lossy().replace('\\', "/"));
        }
    }
}

#[test]
fn every_type_has_its_file() {
    for element_type in TYPES {
        let name = element_type.dtype.to_string().to_lowercase();
        let path = root().join(format!("kernels/src/types/{name}.rs"));
        assert!(path.is_file(), "{}", path.display());
    }
}

#[test]
fn the_files_of_an_element_type_are_documented() {
    let crates = [
        "cli", "convert", "graft", "hub", "kernels", "quantize", "runner", "schemas", "serve",
        "verify",
    ];
    let folders = crates.map(|name| format!("{name}/src"));
    let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
    let found = mentioned(&folders, &["Q5_1", "q5_1"]);
    assert_eq!(found, documented("An element type", "q5_1"));
}

#[test]
fn the_files_of_an_operation_are_documented() {
    let found = mentioned(&["kernels/src"], &["causal_conv", "CausalConvOp"]);
    assert_eq!(
        found,
        documented("An operation of a forward pass", "causal_conv")
    );
}

#[test]
fn the_files_of_an_instruction_set_are_documented() {
    let found = mentioned(&["kernels/src"], &["avx512", "Avx512"]);
    let mut documented = documented("An instruction set", "avx512");
    // Named by the document for other reasons: the help text, and the instruction set that shares code.
    documented.retain(|path| !path.starts_with("cli/") && !path.contains("/neon/"));
    assert_eq!(found, documented);
}
