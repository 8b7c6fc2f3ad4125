//! `specconv split-mtp` and `graft-mtp`.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fixtures::heads::{Form, N_LAYER, model_of};
use schemas::gguf::{Metadata, Owned, Plan, Tensor, open};

use crate::util::{Cmd, Dir, bundled, reference, specconv, specrun};

fn split(input: &Path, dir: &Dir) -> Cmd {
    let split = specconv("split-mtp").arg(input);
    let split = split.arg("--body").arg(dir.join("body.gguf"));
    split.arg("--mtp").arg(dir.join("mtp.gguf"))
}

fn graft(target: &Path, donor: &Path, dir: &Dir) -> Cmd {
    let graft = specconv("graft-mtp").arg("--target").arg(target);
    graft
        .arg("--mtp")
        .arg(donor)
        .arg("--overwrite")
        .arg("-o")
        .arg(dir.join("out.gguf"))
}

/// Splitting and grafting gives the same file again, for all element types.
#[test]
fn split_then_grafted_is_the_same_file() {
    let references = ["glm4moe", "mimo2", "nemotronhmoe", "qwen35", "step35"].map(reference);
    for checkpoint in references.into_iter().chain([bundled("tiny-qwen35-mtp")]) {
        for outtype in ["f32", "bf16", "q8_0"] {
            let dir = Dir::new();
            let whole = dir.convert(&checkpoint, "whole.gguf", &["--outtype", outtype]);
            split(&whole, &dir).ok();
            graft(&dir.join("body.gguf"), &dir.join("mtp.gguf"), &dir).ok();
            assert!(fs::read(&whole).unwrap() == fs::read(dir.join("out.gguf")).unwrap());
        }
    }
}

/// Commands on heads that cannot be run: every layout of the table goes the whole way, and only the requantized head
/// changes.
#[test]
fn heads_of_every_layout_are_changed_by_commands() {
    for head in schemas::arch::heads::heads() {
        for form in [Form::Separate, Form::Fused] {
            let arch = head.arch;
            let dir = Dir::new();
            let whole = dir.gguf("whole.gguf", &model_of(head, form));
            split(&whole, &dir).ok();
            graft(&dir.join("body.gguf"), &dir.join("mtp.gguf"), &dir).ok();
            let same = |file: &str| fs::read(dir.join(file)).unwrap() == fs::read(&whole).unwrap();
            assert!(same("out.gguf"), "{arch} {form:?}");
            let replace = specconv("replace-mtp").arg("--target").arg(&whole);
            let replace = replace.arg("--mtp").arg(dir.join("mtp.gguf"));
            replace.arg("-o").arg(dir.join("replaced.gguf")).ok();
            assert!(same("replaced.gguf"), "{arch} {form:?}");

            let requantized = dir.join("q8.gguf");
            let requantize = specconv("requantize-mtp").arg(&whole).arg("-o");
            let requantize = requantize.arg(&requantized);
            requantize.args(["--mtp-type", "q8_0"]).ok();
            let [before, after] = [&whole, &requantized].map(|file| open(file).unwrap());
            assert!(before.metadata == after.metadata, "{arch} {form:?}");
            let mut n_changed = 0;
            for (before, after) in before.tensors.iter().zip(&after.tensors) {
                let is_changed = before.dtype != after.dtype;
                let is_matrix_of_head = before.layer() == Some(N_LAYER) && before.shape.len() == 2;
                assert!(!is_changed || is_matrix_of_head, "{arch}: {}", after.name);
                let is_same = || before.read_all().unwrap() == after.read_all().unwrap();
                assert!(is_changed || is_same(), "{arch}: {}", after.name);
                n_changed += u32::from(is_changed);
            }
            assert!(n_changed > 0, "{arch} {form:?}");
            // The trunk of a layout that cannot be run is not checked.
            if schemas::arch::by_name(arch).is_none() {
                let report = specconv("inspect").arg(&requantized).json();
                assert_eq!(report["mtp"]["place"], "inline", "{arch}");
                assert_eq!(report["problems"], serde_json::json!([]), "{arch}");
            }
        }
    }
}

/// The halves of a model with several heads have the tensors of the files that the converter writes, and heads
/// are replaced, requantized and trimmed together.
#[test]
fn chained_heads_move_together() {
    for checkpoint in ["mimo2", "step35"] {
        let dir = Dir::new();
        let whole = dir.convert(&reference(checkpoint), "whole.gguf", &["--outtype", "f32"]);
        split(&whole, &dir).ok();
        for (half, mode) in [("body.gguf", "--no-mtp"), ("mtp.gguf", "--mtp")] {
            let flags = ["--outtype", "f32", mode];
            let converted = dir.convert(&reference(checkpoint), "converted.gguf", &flags);
            let data = |file: &Path| specconv("hash").arg(file).json()["files"][0]["data"].clone();
            assert_eq!(
                data(&dir.join(half)),
                data(&converted),
                "{checkpoint} {half}"
            );
            fs::remove_file(converted).unwrap();
        }
        let replace = specconv("replace-mtp").arg("--target").arg(&whole);
        let replace = replace.arg("--mtp").arg(dir.join("mtp.gguf"));
        replace.arg("-o").arg(dir.join("replaced.gguf")).ok();
        assert!(fs::read(&whole).unwrap() == fs::read(dir.join("replaced.gguf")).unwrap());

        let requantize = specconv("requantize-mtp").arg(&whole);
        let requantize = requantize.args(["--mtp-type", "q8_0"]);
        requantize.arg("-o").arg(dir.join("q8.gguf")).ok();
        let text = dir.file("text.txt", "def f(x):\n    return x\n".repeat(9));
        let trim = specconv("trim-vocab").arg(dir.join("q8.gguf"));
        let trim = trim.args(["--layout", "specconv", "-n", "60", "--text"]);
        let trimmed = dir.join("trimmed.gguf");
        trim.arg(&text).arg("-o").arg(&trimmed).ok();
        let inspect = specconv("inspect").arg(&trimmed).json();
        assert_eq!(inspect["problems"], serde_json::json!([]), "{checkpoint}");
        let plan = open(&trimmed).unwrap();
        let n_heads = |name: &str| {
            plan.tensors
                .iter()
                .filter(|t| t.name.ends_with(name))
                .count()
        };
        let n_projections = n_heads("nextn.eh_proj.weight");
        assert_eq!(n_heads("nextn.d2t"), n_projections);
        assert_eq!(n_heads("nextn.shared_head_head.weight"), n_projections);
        let prompts = dir.file("prompts.jsonl", r#"{"id": "a", "prompt": "def g("}"#);
        let verify = specrun("verify").arg("-m").arg(&trimmed);
        let verify = verify.arg("-f").arg(prompts).args(["-n", "12"]);
        let verify = verify.args(["--check", "identity", "--spec-type", "draft-mtp"]);
        assert_eq!(verify.json()["verdict"], "pass");
    }
}

/// A split body stays split, and removing the head gives the same shards again.
#[test]
fn parts_stay_parts() {
    let dir = Dir::new();
    let checkpoint = bundled("tiny-qwen35-mtp");
    let mtp = dir.convert(&checkpoint, "mtp.gguf", &["--outtype", "bf16", "--mtp"]);
    let flags = ["--outtype", "bf16", "--no-mtp", "--split-max-tensors", "20"];
    let body = dir.convert(&checkpoint, "body.gguf", &flags[..3]);
    graft(&body, &mtp, &dir).ok();
    let one = open(&dir.join("out.gguf")).unwrap();
    dir.convert(&checkpoint, "body.gguf", &flags);
    let parts = |stem: &str| -> Vec<String> {
        let names = dir.names().into_iter();
        names
            .filter(|name| name.starts_with(&format!("{stem}-")))
            .collect()
    };
    let bodies = parts("body");
    assert!(bodies.len() > 1, "{bodies:?}");
    let report = graft(&dir.join(&bodies[0]), &mtp, &dir).json();
    assert_eq!(
        report["output"]["parts"].as_array().unwrap().len(),
        bodies.len()
    );
    let joined = parts("out");
    assert_eq!(joined.len(), bodies.len());
    let all = open(&dir.join(&joined[0])).unwrap();
    assert!(all.metadata == one.metadata);
    for (found, expected) in all.tensors.iter().zip(&one.tensors) {
        assert_eq!(found.name, expected.name);
        assert!(found.read_all().unwrap() == expected.read_all().unwrap());
    }
    let halves = specconv("split-mtp").arg(dir.join(&joined[0]));
    halves.arg("--body").arg(dir.join("again.gguf")).ok();
    let again = parts("again");
    assert_eq!(again.len(), bodies.len());
    for (again, body) in again.iter().zip(&bodies) {
        let read = |name: &str| fs::read(dir.join(name)).unwrap();
        assert!(read(again) == read(body), "{again}");
    }
}

/// Body and head equal the files that the converter makes of a checkpoint. Only the head's may have one key more,
/// with the positions of its tensors.
#[test]
fn halves_are_those_of_the_converter() {
    for name in [
        "deepseek2",
        "glm4moe",
        "glm4moelite",
        "mimo2",
        "nemotronhmoe",
        "qwen35",
        "qwen35moe",
        "step35",
    ] {
        let dir = Dir::new();
        let checkpoint = reference(name);
        let whole = dir.convert(&checkpoint, "whole.gguf", &["--outtype", "bf16"]);
        split(&whole, &dir).ok();
        for (flag, half) in [("--no-mtp", "body.gguf"), ("--mtp", "mtp.gguf")] {
            let converted = dir.convert(&checkpoint, "half.gguf", &["--outtype", "bf16", flag]);
            let [converted, half] = [converted, dir.join(half)].map(|path| {
                let mut plan = open(&path).unwrap();
                plan.metadata.remove(graft::TENSOR_POSITIONS);
                let metadata: Vec<_> = plan.metadata.iter().collect();
                let tensor = |t: &Tensor| (t.name.clone(), t.shape.clone(), t.read_all().unwrap());
                let tensors: Vec<_> = plan.tensors.iter().map(tensor).collect();
                (format!("{metadata:?}"), tensors)
            });
            assert_eq!(half.0, converted.0, "{name} {flag}");
            assert!(half.1 == converted.1, "{name} {flag}");
        }
    }
}

/// The main use case: a quantized body gets the 16-bit head directly from the checkpoint.
#[test]
fn a_checkpoint_is_a_donor_for_a_quantized_body() {
    let dir = Dir::new();
    let checkpoint = bundled("tiny-qwen35-mtp");
    let whole = dir.convert(&checkpoint, "whole.gguf", &["--no-mtp"]);
    let body = dir.join("q4.gguf");
    let quantize = specconv("quantize").arg(&whole).arg(&body);
    quantize.arg("Q4_K_M").ok();
    let report = graft(&body, &checkpoint, &dir).json();
    assert_eq!(report["n_grafted_tensors"], 15);
    let found = specconv("inspect").arg(dir.join("out.gguf")).json();
    assert_eq!(found["verdict"], "pass");
    assert_eq!(found["mtp"]["place"], "inline");
    assert_eq!(found["mtp"]["n_declared"], 1);
    same_body(&body, &dir.join("out.gguf"));
}

/// Runs a command that must end with "the check ran and failed", and returns what it printed.
#[track_caller]
fn refused(command: Cmd) -> String {
    let ran = command.run();
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    ran.stdout
}

#[test]
fn a_head_that_does_not_fit_is_refused_with_both_values() {
    let dir = Dir::new();
    let body = dir.convert(&reference("qwen35"), "body.gguf", &["--no-mtp"]);
    let donor = dir.convert(&reference("qwen35-256"), "donor.gguf", &["--mtp"]);
    let text = refused(graft(&body, &donor, &dir));
    assert!(text.starts_with("pairing refused\n"), "{text}");
    let line = "refused  qwen35.embedding_length: target 64, donor 256\n";
    assert!(text.contains(line), "{text}");
    assert!(text.ends_with("nothing written (--force writes the file anyway)\n"));
    // Tensors of other shapes cannot be forced on a body.
    let error = graft(&body, &donor, &dir).arg("--force").error();
    assert!(error.contains("shape [256], expected [64]"), "{error}");
    let llama = dir.convert(&reference("llama"), "llama.gguf", &[]);
    let error = graft(&llama, &donor, &dir).error();
    assert!(
        error.contains("target: architecture llama has no MTP head"),
        "{error}"
    );
    let error = graft(&body, &body, &dir).error();
    assert!(error.contains("donor: no MTP head"), "{error}");
    let whole = dir.convert(&reference("qwen35"), "whole.gguf", &[]);
    let error = graft(&whole, &whole, &dir).error();
    assert!(error.contains("already has an MTP head"), "{error}");
    let error = split(&body, &dir).error();
    assert!(error.contains("no MTP head"), "{error}");
    assert!(!dir.join("out.gguf").exists());
}

/// Negates the values of every second row of an F32 tensor, which makes it look like another model's
/// weights.
fn estranged(mut plan: Plan, name: &str) -> Plan {
    let tensor = plan.tensors.iter_mut().find(|t| t.name == name).unwrap();
    let mut bytes = tensor.read_all().unwrap();
    let row_bytes = tensor.row_bytes() as usize;
    let signs = bytes.chunks_exact_mut(row_bytes).step_by(2).flatten();
    signs.skip(3).step_by(4).for_each(|byte| *byte ^= 0x80);
    let row_bytes = row_bytes as u64;
    tensor.source = Arc::new(Owned { bytes, row_bytes });
    plan
}

/// A forced graft is recorded in the file, and splitting removes the record.
#[test]
fn a_forced_graft_says_what_spoke_against_it() {
    let dir = Dir::new();
    let flags = ["--outtype", "f32"];
    let whole = dir.convert(&reference("qwen35"), "whole.gguf", &flags);
    split(&whole, &dir).ok();
    let (body, mtp) = (dir.join("body.gguf"), dir.join("mtp.gguf"));
    let foreign = estranged(open(&mtp).unwrap(), "token_embd.weight");
    let foreign = dir.gguf("foreign.gguf", &foreign);
    let out = dir.join("out.gguf");
    let report: serde_json::Value =
        serde_json::from_str(&refused(graft(&body, &foreign, &dir).arg("--json"))).unwrap();
    assert_eq!(report["pairing"]["outcome"], "refused");
    assert_eq!(report["verdict"], "fail");
    assert_eq!(report["output"], serde_json::Value::Null);
    assert!(!out.exists());
    let report = graft(&body, &foreign, &dir).arg("--force").json();
    assert_eq!(report["forced"], true);
    let forced = open(&out).unwrap();
    let reasons = forced.metadata.strings("specconv.mtp.forced").unwrap();
    assert!(reasons.unwrap()[0].starts_with(b"token_embd.weight: target 1, donor cosine "));
    let again = dir.join("again.gguf");
    let split = specconv("split-mtp").arg(&out).arg("--body").arg(&again);
    split.ok();
    assert!(fs::read(&again).unwrap() == fs::read(&body).unwrap());
}

/// Types of the head's weights, by their names without the block prefix.
fn head_types(path: &Path) -> Vec<(String, String)> {
    let plan = open(path).unwrap();
    let head = plan.tensors.iter().filter(|t| t.layer() == Some(4));
    let types = head.map(|t| (t.name["blk.4.".len()..].to_owned(), t.dtype.to_string()));
    types.collect()
}

/// Only the head's weights change their type; all other tensors are copied.
#[test]
fn a_head_gets_the_type_and_embeddings_it_is_asked_for() {
    let dir = Dir::new();
    let checkpoint = bundled("tiny-qwen35-mtp");
    let body = dir.convert(&checkpoint, "body.gguf", &["--no-mtp"]);
    let donor = dir.convert(&checkpoint, "mtp-donor.gguf", &["--mtp"]);
    let out = dir.join("out.gguf");
    let flags = ["--mtp-type", "q4_k", "--mtp-embeddings", "own:q8_0"];
    graft(&body, &donor, &dir).args(flags).ok();
    let types = head_types(&out);
    let of = |row: &str| &types.iter().find(|(name, _)| name == row).unwrap().1;
    assert_eq!(of("ffn_up.weight"), "Q4_K");
    assert_eq!(
        of("nextn.eh_proj.weight"),
        "Q8_0",
        "every draft goes through it"
    );
    assert_eq!(of("nextn.hnorm.weight"), "F32");
    assert_eq!(of("nextn.embed_tokens.weight"), "Q8_0");
    assert_eq!(of("nextn.shared_head_head.weight"), "Q8_0");
    same_body(&body, &out);
    let found = specconv("inspect").arg(&out).json();
    assert_eq!(found["problems"], serde_json::json!([]));

    // Back to shared embeddings, with another type, in place.
    let shared = dir.join("shared.gguf");
    let replace = specconv("replace-mtp").arg("--target").arg(&out);
    let replace = replace.arg("--mtp").arg(&donor).arg("-o").arg(&shared);
    replace.args(["--mtp-embeddings", "share"]).ok();
    graft(&body, &donor, &dir).ok();
    assert!(fs::read(&shared).unwrap() == fs::read(&out).unwrap());
    let small = dir.join("small.gguf");
    let requantize = specconv("requantize-mtp")
        .arg(&shared)
        .arg("-o")
        .arg(&small);
    let report = requantize.args(["--mtp-type", "q8_0"]).json();
    assert!(report["head_bytes_after"].as_u64() < report["head_bytes_before"].as_u64());
    same_body(&body, &small);
    let flags = ["--mtp-type", "q8_0"];
    graft(&body, &donor, &dir).args(flags).ok();
    assert!(fs::read(&small).unwrap() == fs::read(&out).unwrap());
}

/// Every tensor of the body is in the other file, byte for byte.
#[track_caller]
fn same_body(body: &Path, path: &Path) {
    let (body, whole) = (open(body).unwrap(), open(path).unwrap());
    for tensor in &body.tensors {
        let copy = whole.tensor(&tensor.name).expect("the body is whole");
        assert_eq!(copy.dtype, tensor.dtype);
        assert!(copy.read_all().unwrap() == tensor.read_all().unwrap());
    }
}

/// A sidecar may have its own low-bit embeddings; its head can still be grafted.
#[test]
fn a_sidecar_may_have_smaller_embeddings() {
    let dir = Dir::new();
    let whole = dir.convert(&bundled("tiny-qwen35-mtp"), "whole.gguf", &[]);
    let sidecar = specconv("split-mtp").arg(&whole);
    sidecar.args(["--mtp-embeddings", "own:q4_k"]).ok();
    let sidecar = dir.join("mtp-whole.gguf");
    let plan = open(&sidecar).unwrap();
    let embedding = plan.tensor("token_embd.weight").unwrap();
    assert_eq!(embedding.dtype.to_string(), "Q4_K");
    split(&whole, &dir).ok();
    graft(&dir.join("body.gguf"), &sidecar, &dir).ok();
    assert!(fs::read(&whole).unwrap() == fs::read(dir.join("out.gguf")).unwrap());
}

/// A file with only the head's tensors, as published by some authors, is a valid donor.
#[test]
fn a_file_of_tensors_alone_is_a_donor() {
    let dir = Dir::new();
    let whole = dir.convert(&reference("qwen35"), "whole.gguf", &[]);
    split(&whole, &dir).ok();
    let mut bare = open(&dir.join("mtp.gguf")).unwrap();
    bare.metadata = Metadata::new();
    bare.tensors.retain(|tensor| tensor.layer().is_some());
    let bare = dir.gguf("bare.gguf", &bare);
    let report = graft(&dir.join("body.gguf"), &bare, &dir).json();
    assert_eq!(report["pairing"]["outcome"], "plausible");
    let tensors = |path: &Path| {
        let plan = open(path).unwrap();
        let tensors = plan.tensors.into_iter();
        tensors
            .map(|t| (t.name.clone(), t.read_all().unwrap()))
            .collect::<Vec<_>>()
    };
    assert!(tensors(&whole) == tensors(&dir.join("out.gguf")));
    let inspected = specconv("inspect").arg(dir.join("out.gguf")).json();
    assert_eq!(inspected["verdict"], "pass");
}

/// Every command reports a head that another tool misplaced; `repair-mtp` fixes it.
#[test]
fn a_misplaced_head_is_named_and_repaired() {
    let dir = Dir::new();
    let whole = dir.convert(&reference("qwen35"), "whole.gguf", &[]);
    split(&whole, &dir).ok();
    let (body, sidecar) = (dir.join("body.gguf"), dir.join("mtp.gguf"));
    let mut plan = open(&sidecar).unwrap();
    for tensor in &mut plan.tensors {
        tensor.name = tensor.name.replace("blk.4.", "blk.0.");
    }
    let broken = dir.gguf("broken.gguf", &plan);
    let fault = "the MTP head is in blk.0, expected blk.4, after the trunk";
    let error = graft(&body, &broken, &dir).error();
    assert!(error.contains(fault), "{error}");
    let text = refused(specconv("inspect").arg(&broken));
    assert!(text.contains(fault), "{text}");
    let repaired = dir.join("repaired.gguf");
    let repair = |input: &Path| specconv("repair-mtp").arg(input).arg("-o").arg(&repaired);
    let text = repair(&broken).ok();
    assert!(text.starts_with(&format!("fault: {fault}\n")), "{text}");
    assert!(fs::read(&repaired).unwrap() == fs::read(&sidecar).unwrap());
    fs::remove_file(&repaired).unwrap();
    let text = repair(&sidecar).ok();
    assert!(
        text.ends_with("no fault found, nothing written\n"),
        "{text}"
    );
    assert!(!repaired.exists());
}

#[test]
fn one_name_for_both_halves_is_refused() {
    let dir = Dir::new();
    let whole = dir.convert(&reference("qwen35"), "whole.gguf", &[]);
    let out = dir.join("out.gguf");
    let split = specconv("split-mtp").arg(&whole);
    let split = split.arg("--body").arg(&out);
    let split = split.arg("--mtp").arg(dir.join("./out.gguf"));
    let error = split.error();
    assert!(error.ends_with("expected different files"), "{error}");
}
