//! In-place edits of headers with reserved space: an edit that fits keeps the file's size, and data
//! never changes.

mod common;

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use schemas::gguf::{
    Editor, MAX_RESERVED_BYTES, Output, Plan, RESERVED, WriteConfig, layout, open_one, reserve,
    write,
};

use common::{file_bytes, one_of_everything};

fn write_to(plan: &Plan, path: &Path) {
    write(&[Output { plan, path }], &WriteConfig::new()).unwrap();
}

/// Opens an editor of a file that no other process edits.
fn editor(path: &Path) -> Editor {
    Editor::open(path, &|| panic!("the lock is taken")).unwrap()
}

fn edit(path: &Path, before: &Plan, after: &mut Plan) -> bool {
    editor(path).edit(before, after).unwrap()
}

/// Opens an editor; returns whether it rolled back an edit.
fn rolls_back(path: &Path) -> bool {
    editor(path).has_rolled_back()
}

fn assert_same_data(found: &Plan, expected: &Plan) {
    assert_eq!(found.tensors.len(), expected.tensors.len());
    for (found, expected) in found.tensors.iter().zip(&expected.tensors) {
        assert_eq!(found.name, expected.name);
        assert!(found.read_all().unwrap() == expected.read_all().unwrap());
    }
}

/// Writes a file with `n_bytes` reserved.
fn reserved(path: &Path, n_bytes: u64) -> Plan {
    let mut plan = one_of_everything();
    // A tensor of unknown type has no size, so it cannot be read back.
    plan.tensors.retain(|tensor| tensor.name != "blk.0.unknown");
    reserve(&mut plan, n_bytes).unwrap();
    fs::write(path, file_bytes(&plan)).unwrap();
    plan
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A text of any length: if it fits, the file keeps its size; if not, the file is unmodified.
    #[test]
    fn texts_fit_or_nothing_happens(n_reserved in 0u64..600, len in 0usize..800) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let plan = reserved(&path, n_reserved);
        let bytes = fs::read(&path).unwrap();
        let before = open_one(&path).unwrap();
        let mut after = before.clone();
        after.metadata.set("general.name", "n".repeat(len));
        let fits = edit(&path, &before, &mut after);
        let found = open_one(&path).unwrap();
        assert_same_data(&found, &plan);
        if fits {
            prop_assert_eq!(fs::metadata(&path).unwrap().len(), bytes.len() as u64);
            prop_assert_eq!(found.metadata.str("general.name").unwrap(), Some(&*"n".repeat(len)));
            prop_assert_eq!(&found.metadata, &after.metadata);
            // The inverse edit restores the file.
            let mut back = found.clone();
            back.metadata.remove("general.name");
            prop_assert!(edit(&path, &found, &mut back));
        }
        prop_assert!(fits || len as u64 > n_reserved.saturating_sub(128), "{} of {}", len, n_reserved);
        prop_assert!(fs::read(&path).unwrap() == bytes);
        prop_assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

/// Values of the same size need no reserved space.
#[test]
fn a_number_fits_without_a_reserve() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut plan = one_of_everything();
    plan.tensors.retain(|tensor| tensor.name != "blk.0.unknown");
    write_to(&plan, &path);
    let before = open_one(&path).unwrap();
    let mut after = before.clone();
    after.metadata.set("a.u32", 77u32);
    assert!(edit(&path, &before, &mut after));
    assert_eq!(open_one(&path).unwrap().metadata, after.metadata);
    after.metadata.set("general.name", "n".repeat(100));
    let before = open_one(&path).unwrap();
    assert!(!edit(&path, &before, &mut after));
    assert_eq!(open_one(&path).unwrap().metadata, before.metadata);
}

/// Other users may depend on a file with several names.
#[cfg(unix)]
#[test]
fn links_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let [path, hard, soft] = ["m", "hard", "soft"].map(|name| folder.path().join(name));
    reserved(&path, 500);
    let named = |path: &Path| {
        let before = open_one(path).unwrap();
        let mut after = before.clone();
        after.metadata.set("general.name", "another");
        edit(path, &before, &mut after)
    };
    std::os::unix::fs::symlink(&path, &soft).unwrap();
    assert!(!named(&soft));
    fs::hard_link(&path, &hard).unwrap();
    assert!(!named(&path));
    fs::remove_file(&hard).unwrap();
    assert!(named(&path));
}

/// A crash during an edit leaves a record of both headers beside a file that has parts of each.
/// Another file that has taken the name since is unmodified.
#[test]
fn an_interrupted_edit_is_rolled_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    reserved(&path, 200);
    let bytes = fs::read(&path).unwrap();
    assert!(!rolls_back(&path));
    let mut new = bytes[..640].to_vec();
    new[30..600].fill(0xAA);
    let kept = folder.path().join(".m.gguf.header");
    let both = [&bytes[..640], &new].concat();
    fs::write(&kept, &both).unwrap();
    let mut torn = bytes.clone();
    torn[30..300].fill(0xAA);
    let mut other = torn.clone();
    other[310] ^= 0x55;
    fs::write(&path, &other).unwrap();
    assert!(!rolls_back(&path));
    assert!(fs::read(&path).unwrap() == other && !kept.exists());
    fs::write(&kept, &both).unwrap();
    fs::write(&path, &torn).unwrap();
    assert!(rolls_back(&path));
    assert!(fs::read(&path).unwrap() == bytes);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A reader must not see a header that is partly old and partly new.
#[test]
fn a_reader_rolls_back_an_interrupted_edit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    reserved(&path, 200);
    let old = fs::read(&path).unwrap();
    let before = open_one(&path).unwrap();
    let mut after = before.clone();
    after.metadata.set("general.name", "another");
    assert!(edit(&path, &before, &mut after));
    let new = fs::read(&path).unwrap();
    let n_header = layout(&before).unwrap().header.len();
    let both = [&old[..n_header], &new[..n_header]].concat();
    for n_written in (0..n_header).step_by(101) {
        let torn = [&new[..n_written], &old[n_written..]].concat();
        fs::write(&path, torn).unwrap();
        fs::write(folder.path().join(".m.gguf.header"), &both).unwrap();
        assert_eq!(open_one(&path).unwrap().metadata, before.metadata);
        assert!(fs::read(&path).unwrap() == old);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

/// Copied data is aligned with the blocks of the input.
#[test]
fn a_reserve_lets_blocks_be_shared() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in", "out"].map(|name| folder.path().join(name));
    reserved(&input, 1000);
    for (n_bytes, key_len) in [(0, 3), (0, 1000), (5000, 77)] {
        let mut plan = open_one(&input).unwrap();
        plan.metadata.set("new.key", "k".repeat(key_len));
        plan.metadata.remove(RESERVED);
        reserve(&mut plan, n_bytes).unwrap();
        write_to(&plan, &output);
        let offset = |path: &Path| {
            let plan = open_one(path).unwrap();
            plan.tensors[0].source.origin().unwrap().offset
        };
        assert_eq!(offset(&input) % 4096, offset(&output) % 4096);
        let plan = open_one(&output).unwrap();
        assert_same_data(&plan, &open_one(&input).unwrap());
    }
    let mut plan = open_one(&input).unwrap();
    reserve(&mut plan, u64::MAX).unwrap();
    let header = schemas::gguf::layout(&plan).unwrap().header.len() as u64;
    assert!(header < MAX_RESERVED_BYTES + (1 << 20));
}
