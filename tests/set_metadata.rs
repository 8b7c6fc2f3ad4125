//! `specconv set-metadata` and `set-chat-template`: changed keys, unmodified tensors.

use std::fs;
use std::path::Path;

use schemas::gguf::{Plan, open_one};

use crate::parts::spawn;
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
    // Restoring the name gives an identical file.
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
    assert!(
        ran.stderr.contains("type changed from string to "),
        "{}",
        ran.stderr
    );
    assert!(
        fs::read(&file).unwrap() == before,
        "-o leaves the input alone"
    );
}

/// With room in the header a longer template is written in place: no data moves and the inode is kept.
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
    assert!(error(&["--remove", "no.such"]).ends_with("key no.such does not exist"));
    assert!(error(&[]).starts_with("nothing to change"));
    let found = error(&["general.alignment=u32:48"]);
    assert!(
        found.ends_with("expected a power of two as u32, found 48"),
        "{found}"
    );
    assert!(fs::read(&file).unwrap() == before);
}

/// Several processes edit one file concurrently. The file has exactly the keys of those that succeed.
#[test]
fn concurrent_edits_lose_nothing() {
    const N_EDITORS: usize = 4;
    let dir = Dir::new();
    // With room in the header, edits are made in place; otherwise each replaces the file.
    for (reserve, n_rounds) in [("64K", 12), ("0", 4)] {
        let flags = ["--reserve-header", reserve];
        let file = dir.convert(&reference("llama"), "m.gguf", &flags);
        let original = open_one(&file).unwrap();
        let mut n_set = 0;
        for round in 0..n_rounds {
            let key = |i: usize| format!("round.{round}.editor.{i}");
            let editor = |i: usize| {
                let value = format!("{}=str:{}", key(i), "v".repeat(round * 40));
                let set = specconv("set-metadata").arg(&file).arg(value);
                spawn(set)
            };
            let editors: Vec<_> = (0..N_EDITORS).map(editor).collect();
            let outputs = editors.into_iter().map(|e| e.wait_with_output().unwrap());
            let codes: Vec<_> = outputs.map(|output| output.status.code()).collect();
            let found = open_one(&file).unwrap().metadata;
            for (i, code) in codes.into_iter().enumerate() {
                assert!(matches!(code, Some(0 | 2)), "round {round}: {code:?}");
                assert_eq!(found.contains(&key(i)), code == Some(0), "round {round}");
                n_set += usize::from(code == Some(0));
            }
        }
        assert_eq!(
            n_set,
            n_rounds * N_EDITORS,
            "every editor waits for its turn"
        );
        assert_same_tensors(&open_one(&file).unwrap(), &original);
        assert_eq!(dir.names(), ["m.gguf"]);
    }
}

/// A running edit of another process is not mistaken for an interrupted one: the second editor waits.
#[test]
fn an_editor_waits_for_the_lock() {
    let dir = Dir::new();
    let file = dir.convert(&reference("llama"), "m.gguf", &["--reserve-header", "4K"]);
    let bytes = fs::read(&file).unwrap();
    let lock = fs::File::open(&file).unwrap();
    lock.lock().unwrap();
    // The journal that an edit keeps while it runs.
    let record = [&bytes[..4096], &bytes[..4096]].concat();
    dir.file(".m.gguf.header", &record);
    let mut editor = spawn(specconv("set-metadata").arg(&file).arg("a.b=u32:1"));
    let mut line = String::new();
    let stderr = editor.stderr.take().unwrap();
    let mut stderr = std::io::BufReader::new(stderr);
    std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
    assert!(line.contains("waiting for another process"), "{line}");
    assert!(fs::read(&file).unwrap() == bytes);
    assert!(dir.join(".m.gguf.header").exists());
    fs::remove_file(dir.join(".m.gguf.header")).unwrap();
    drop(lock);
    assert_eq!(editor.wait().unwrap().code(), Some(0));
    assert_eq!(open_one(&file).unwrap().metadata.u32("a.b"), Ok(Some(1)));
    assert_eq!(dir.names(), ["m.gguf"]);
}
