//! `specconv set-metadata` and `set-chat-template`: other keys, the same tensors.

use std::fs;
use std::path::Path;

use schemas::gguf::{Plan, open_one};

use crate::util::{Dir, reference, specconv};

#[track_caller]
fn assert_same_tensors(found: &Plan, expected: &Plan) {
    assert_eq!(found.tensors.len(), expected.tensors.len());
    for (found, expected) in found.tensors.iter().zip(&expected.tensors) {
        assert_eq!(found.name, expected.name);
        assert!(found.read_all().unwrap() == expected.read_all().unwrap());
    }
}

#[test]
fn keys_change_and_tensors_do_not() {
    let dir = Dir::new();
    let file = dir.convert(&reference("llama"), "m.gguf", &[]);
    let before = fs::read(&file).unwrap();
    let original = open_one(&file).unwrap();
    let set = |words: &[&str]| specconv("set-metadata").arg(&file).args(words);
    let report = set(&["general.name=str:Another", "new.key=u32:7"]).json();
    assert_eq!(
        report["set"],
        serde_json::json!(["general.name", "new.key"])
    );
    let changed = open_one(&file).unwrap();
    assert_eq!(changed.metadata.str("general.name"), Ok(Some("Another")));
    assert_eq!(changed.metadata.iter().last().unwrap().0, "new.key");
    assert_same_tensors(&changed, &original);
    // Back again: the very same file.
    let name = original.metadata.need_str("general.name").unwrap();
    let name = format!("general.name=str:{name}");
    set(&[&name, "--remove", "new.key"]).ok();
    assert!(fs::read(&file).unwrap() == before);
    assert_eq!(dir.names(), ["m.gguf"]);
    let ran = set(&[
        "general.name=u32:1",
        "-o",
        dir.join("o.gguf").to_str().unwrap(),
    ])
    .run();
    assert!(ran.stderr.contains("was of type string"), "{}", ran.stderr);
    assert!(
        fs::read(&file).unwrap() == before,
        "-o leaves the input alone"
    );
}

/// With room in the header a longer template moves no data, and the file stays the file it was.
#[test]
fn keys_are_edited_in_place_where_they_fit() {
    use std::os::unix::fs::MetadataExt;
    let dir = Dir::new();
    let file = dir.convert(&reference("llama"), "m.gguf", &["--reserve-header", "4K"]);
    let original = open_one(&file).unwrap();
    let inode = fs::metadata(&file).unwrap().ino();
    let template = dir.file("t.jinja", "{{ messages[0].content }}".repeat(100));
    let set = |template: &Path| specconv("set-chat-template").arg(&file).arg(template);
    assert_eq!(set(&template).json()["in_place"], true);
    let changed = open_one(&file).unwrap();
    let found = changed
        .metadata
        .need_str("tokenizer.chat_template")
        .unwrap();
    assert_eq!(found.len(), 2500);
    assert_same_tensors(&changed, &original);
    assert_eq!(fs::metadata(&file).unwrap().ino(), inode);
    let template = dir.file("t.jinja", "{{ messages[0].content }}".repeat(1000));
    assert_eq!(set(&template).json()["in_place"], false);
    assert_same_tensors(&open_one(&file).unwrap(), &original);
    assert_eq!(dir.names(), ["m.gguf", "t.jinja"]);
    let convert = specconv("convert").arg(reference("llama"));
    let ran = convert.args(["--reserve-header", "9G"]).run();
    assert!(ran.stderr.contains("expected at most"), "{}", ran.stderr);
}

#[test]
fn a_template_replaces_another() {
    let dir = Dir::new();
    let file = dir.convert(&reference("llama"), "m.gguf", &[]);
    let original = open_one(&file).unwrap();
    let template = dir.file("t.jinja", "{{ messages[0].content }}");
    let set = |template: &Path| specconv("set-chat-template").arg(&file).arg(template);
    set(&template).ok();
    let changed = open_one(&file).unwrap();
    let found = changed.metadata.str("tokenizer.chat_template");
    assert_eq!(found, Ok(Some("{{ messages[0].content }}")));
    assert_same_tensors(&changed, &original);
    let empty = dir.file("e.jinja", " \n");
    assert!(
        set(&empty)
            .error()
            .ends_with("is empty, expected a template")
    );
}

#[test]
fn what_cannot_be_changed_is_refused() {
    let dir = Dir::new();
    let file = dir.convert(&reference("llama"), "m.gguf", &[]);
    let before = fs::read(&file).unwrap();
    let error = |words: &[&str]| specconv("set-metadata").arg(&file).args(words).error();
    assert!(error(&["--remove", "no.such"]).ends_with("key no.such is not there"));
    assert!(error(&[]).starts_with("nothing to change"));
    let found = error(&["general.alignment=u32:48"]);
    assert!(
        found.ends_with("expected a power of two as u32, found 48"),
        "{found}"
    );
    assert!(fs::read(&file).unwrap() == before);
}
