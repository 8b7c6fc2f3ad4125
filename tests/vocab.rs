//! `specconv graft-vocab`, `split-vocab`, `trim-vocab` and `map-vocab`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemas::gguf::{DType, Owned, Plan, Tensor, open};
use schemas::vocab::{VocabMap, read_d2t};

use crate::util::{Dir, bundled, reference, root, specconv, specrun};

/// Writes a draft with the target's tokenizer and an output head of `n_rows` rows, each filled with its
/// index.
fn draft(dir: &Dir, n_rows: u64) -> PathBuf {
    let target = dir.convert(&bundled("tiny-qwen35-mtp"), "target.gguf", &["--no-mtp"]);
    let mut metadata = open(&target).unwrap().metadata;
    metadata.set("general.architecture", "eagle3");
    let mut plan = Plan::new(metadata);
    let bytes = (0..n_rows).flat_map(|row| [row as f32; 4]);
    let bytes = bytes.flat_map(f32::to_le_bytes).collect();
    let source = Owned {
        bytes,
        row_bytes: 16,
    };
    let shape = vec![4, n_rows];
    let output = Tensor::new("output.weight", shape, DType::F32, Arc::new(source));
    plan.tensors.push(output.unwrap());
    dir.gguf("draft.gguf", &plan)
}

fn map_of(path: &Path) -> Vec<u32> {
    let plan = open(path).unwrap();
    read_d2t(plan.tensor("d2t").unwrap(), 2048).unwrap()
}

fn graft_vocab(draft: &Path, map: &Path, out: &Path) -> crate::util::Cmd {
    let graft = specconv("graft-vocab").arg("--draft").arg(draft);
    graft
        .arg("--overwrite")
        .arg("--map")
        .arg(map)
        .arg("-o")
        .arg(out)
}

#[test]
fn a_map_goes_in_and_comes_out() {
    let dir = Dir::new();
    let draft = draft(&dir, 4);
    let out = dir.join("out.gguf");
    // Token ids 0, 3, 4, 2047, as offsets and as ids.
    for (name, text) in [("a.json", "[0, 2, 2, 2044]"), ("b.txt", "0 3 4 2047")] {
        let map = dir.file(name, text);
        let report = graft_vocab(&draft, &map, &out).json();
        assert_eq!(report["n_draft"], 4);
        assert!(!report["missing_special"].as_array().unwrap().is_empty());
        assert_eq!(map_of(&out), [0, 3, 4, 2047]);
    }
    let (map, without) = (dir.join("map.gguf"), dir.join("without.gguf"));
    let split = specconv("split-vocab").arg(&out).arg("--map").arg(&map);
    split.arg("-o").arg(&without).ok();
    assert!(fs::read(&without).unwrap() == fs::read(&draft).unwrap());
    let again = dir.join("again.gguf");
    graft_vocab(&without, &map, &again).ok();
    assert!(fs::read(&again).unwrap() == fs::read(&out).unwrap());
    let error = graft_vocab(&again, &map, &dir.join("twice.gguf")).error();
    assert!(
        error.ends_with("tensor d2t already exists; remove it with split-vocab"),
        "{error}"
    );
}

/// The published draft-to-target map of the bundled EAGLE-3 head.
#[test]
fn offsets_with_a_mask_are_those_of_a_checkpoint() {
    let dir = Dir::new();
    let draft = draft(&dir, 512);
    let checkpoint = bundled("tiny-eagle3").join("model.safetensors");
    let out = dir.join("out.gguf");
    graft_vocab(&draft, &checkpoint, &out).ok();
    let ids = map_of(&out);
    assert_eq!(ids.len(), 512);
    assert!(
        ids.is_sorted_by(|a, b| a < b),
        "as the published mask lists them"
    );
}

#[test]
fn maps_that_do_not_fit_are_named() {
    let dir = Dir::new();
    let draft = draft(&dir, 4);
    let out = dir.join("out.gguf");
    let error = |text: &str| {
        let map = dir.file("map.txt", text);
        graft_vocab(&draft, &map, &out).error()
    };
    for (text, ending) in [
        ("0 0 7", "3 ids, but tensor output.weight has 4 rows"),
        ("5 4 5 4", "rows 0 and 1 both map to token 5)"),
        ("1 2 3 9", "valid as ids and as offsets; choose with --as"),
        (
            "1 2 x",
            "\"x\" is not a number: invalid digit found in string",
        ),
    ] {
        let found = error(text);
        assert!(found.ends_with(ending), "{found}");
    }
    let target = dir.join("target.gguf");
    let map = dir.file("map.txt", "0 3 4 2047");
    let found = graft_vocab(&target, &map, &out).error();
    assert!(
        found.contains("expected a draft of eagle3 or dflash"),
        "{found}"
    );
    assert!(!out.exists());
}

#[test]
fn a_trimmed_draft_keeps_the_rows_of_its_tokens() {
    let dir = Dir::new();
    let draft = draft(&dir, 2048);
    let out = dir.join("out.gguf");
    let trim = specconv("trim-vocab").arg(&draft).arg("-o").arg(&out);
    let text = root().join("README.md");
    let report = trim.arg("--text").arg(text).args(["-n", "300"]).json();
    let ids = map_of(&out);
    assert_eq!(report["n_draft"], ids.len());
    assert_eq!(
        ids.len() as u64,
        300 + report["n_special"].as_u64().unwrap()
    );
    let coverage = report["coverage"].as_f64().unwrap();
    assert!((0.5..1.0).contains(&coverage), "{coverage}");
    let plan = open(&out).unwrap();
    let output = plan.tensor("output.weight").unwrap();
    let rows = output.read_all().unwrap();
    let firsts = rows.as_chunks::<16>().0.iter();
    let firsts = firsts.map(|row| f32::from_le_bytes([row[0], row[1], row[2], row[3]]) as u32);
    assert!(firsts.eq(ids.iter().copied()));

    // Trimming again by a list finds the rows through the map.
    let list = dir.file("ids.txt", format!("{} {}", ids[5], ids[9]));
    let twice = dir.join("twice.gguf");
    let trim = specconv("trim-vocab").arg(&out).arg("--overwrite");
    let trim = trim.arg("-o").arg(&twice);
    trim.arg("--ids").arg(list).ok();
    assert!(map_of(&twice).contains(&ids[5]));
    // Trimming by another text, most of whose tokens no longer have a row.
    let trim = specconv("trim-vocab").arg(&out).arg("--overwrite");
    let trim = trim.arg("-o").arg(&twice);
    let text = root().join("docs/format.md");
    trim.arg("--text").arg(text).args(["-n", "200"]).ok();
    assert!(map_of(&twice).iter().all(|id| ids.contains(id)));
}

#[test]
fn a_trimmed_head_says_so_and_moves_like_any_other() {
    let dir = Dir::new();
    let whole = dir.convert(&bundled("tiny-qwen35-mtp"), "whole.gguf", &[]);
    let trim = |layout: &str| {
        let trim = specconv("trim-vocab")
            .arg(&whole)
            .args(["--layout", layout]);
        let trim = trim.arg("--text").arg(root().join("README.md"));
        trim.args(["-n", "500", "-o"]).arg(dir.join("trimmed.gguf"))
    };
    let error = trim("peer").error();
    assert!(
        error.contains("--layout specconv for an MTP head"),
        "{error}"
    );
    let report = trim("specconv").json();
    let trimmed = dir.join("trimmed.gguf");
    let plan = open(&trimmed).unwrap();
    let n_draft = report["n_draft"].as_u64().unwrap();
    let layout = plan.metadata.str("specconv.mtp.layout").unwrap();
    assert_eq!(layout, Some("trimmed-vocab"));
    let size = plan.metadata.u32("specconv.mtp.draft_vocab_size").unwrap();
    assert_eq!(size, Some(n_draft as u32));
    let output = plan.tensor("blk.4.nextn.shared_head_head.weight").unwrap();
    assert_eq!(output.shape, [256, n_draft]);
    let embedding = plan.tensor("token_embd.weight").unwrap();
    let ids = read_d2t(plan.tensor("blk.4.nextn.d2t").unwrap(), 2048).unwrap();
    let (rows, all) = (output.read_all().unwrap(), embedding.read_all().unwrap());
    for (row, id) in rows.chunks_exact(512).zip(ids) {
        assert!(row == &all[id as usize * 512..][..512], "token {id}");
    }
    let found = specconv("inspect").arg(&trimmed).json();
    assert_eq!(found["problems"], serde_json::json!([]));

    let (body, mtp) = (dir.join("body.gguf"), dir.join("mtp.gguf"));
    let split = specconv("split-mtp").arg(&trimmed).arg("--body").arg(&body);
    split.arg("--mtp").arg(&mtp).ok();
    assert!(
        !open(&body)
            .unwrap()
            .metadata
            .contains("specconv.mtp.layout")
    );
    let out = dir.join("out.gguf");
    let graft = specconv("graft-mtp").arg("--target").arg(&body);
    graft.arg("--mtp").arg(&mtp).arg("-o").arg(&out).ok();
    assert!(fs::read(&out).unwrap() == fs::read(&trimmed).unwrap());
}

#[test]
fn two_tokenizers_are_mapped() {
    let dir = Dir::new();
    let target = dir.convert(&bundled("tiny-qwen35-mtp"), "target.gguf", &[]);
    let draft = dir.convert(&reference("qwen3"), "draft.gguf", &[]);
    let map = dir.join("map.gguf");
    let run = specconv("map-vocab").arg("--target").arg(&target);
    let report = run.arg("--draft").arg(&draft).arg("-o").arg(&map).json();
    let read = VocabMap::from_plan(&open(&map).unwrap()).unwrap();
    assert_eq!(read.target.n_tokens, 2048);
    assert_eq!(read.target_to_draft.n_tokens(), 2048);
    let to_draft = &report["target_to_draft"];
    let count = |kind: &str| to_draft[kind].as_u64().unwrap();
    assert_eq!(
        count("n_exact") + count("n_sequence") + count("n_none"),
        2048
    );
    assert!(count("n_exact") > 100, "{report}");

    let same = specconv("map-vocab").arg("--overwrite");
    let same = same.arg("--target").arg(&target);
    let report = same.arg("--draft").arg(&target).arg("-o").arg(&map).json();
    assert_eq!(report["target_to_draft"]["n_sequence"], 0);
    let read = VocabMap::from_plan(&open(&map).unwrap()).unwrap();
    let odd = (0..2048).find(|&id| read.target_to_draft.of(id) != [id]);
    let text = |id: u32| {
        open(&target)
            .unwrap()
            .metadata
            .strings("tokenizer.ggml.tokens")
            .unwrap()
            .unwrap()[id as usize]
            .to_owned()
    };
    assert_eq!(
        odd.map(text),
        None,
        "a vocabulary in its own tokens is itself"
    );
}

/// FastMTP heads are published with `output.weight` and `d2t` outside of blocks. Such a sidecar drafts as one in
/// our layout, and so does the head when it is grafted.
#[test]
fn published_heads_with_a_reduced_vocabulary_draft() {
    let dir = Dir::new();
    let checkpoint = bundled("tiny-qwen35-mtp");
    let body = dir.convert(&checkpoint, "body.gguf", &["--no-mtp"]);
    let sidecar = dir.convert(&checkpoint, "mtp.gguf", &["--mtp"]);
    let text = dir.file("text.txt", "def f(x):\n    return x\n".repeat(9));
    let ours = dir.join("ours.gguf");
    let trim = specconv("trim-vocab").arg(&sidecar);
    let trim = trim.args(["--layout", "specconv", "-n", "300", "--text"]);
    trim.arg(&text).arg("-o").arg(&ours).ok();
    let mut plan = open(&ours).unwrap();
    for tensor in &mut plan.tensors {
        tensor.name = match tensor.name.as_str() {
            "blk.4.nextn.d2t" => "d2t".to_owned(),
            "blk.4.nextn.shared_head_head.weight" => "output.weight".to_owned(),
            name => name.to_owned(),
        };
    }
    for key in ["specconv.mtp.layout", "specconv.mtp.draft_vocab_size"] {
        plan.metadata.remove(key).unwrap();
    }
    let published = dir.gguf("published.gguf", &plan);
    let report = specconv("inspect").arg(&published).json();
    assert_eq!(report["problems"], serde_json::json!([]), "{report}");
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("layout of published FastMTP heads"),
        "{notes}"
    );
    let grafted = dir.join("grafted.gguf");
    let graft = specconv("graft-mtp").arg("--target").arg(&body);
    let graft = graft.arg("--mtp").arg(&published).arg("-o").arg(&grafted);
    graft.ok();
    let generate = |model: &Path, draft: Option<&Path>| {
        let generate = specrun("generate").arg("-m").arg(model);
        let generate = generate.args(["-p", "def add(a, b):", "-n", "48"]);
        let generate = match draft {
            Some(draft) => generate.arg("-md").arg(draft),
            None => generate,
        };
        let report = generate.args(["--spec-type", "draft-mtp"]).json();
        let counters = &report["counters"];
        let counts = ["n_drafted", "n_accepted"].map(|key| counters[key].as_u64().unwrap());
        (report["tokens"].clone(), counts)
    };
    let expected = generate(&body, Some(&ours));
    assert!(expected.1[1] > 0, "{expected:?}");
    assert_eq!(generate(&body, Some(&published)), expected);
    assert_eq!(generate(&grafted, None), expected);
}
