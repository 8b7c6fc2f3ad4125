//! Faulty layouts that other tools write: each is reported and repaired to the expected file.

use graft::{Repaired, diagnose, repair_mtp, split_mtp};
use schemas::gguf::{Metadata, Plan};

use crate::model::{self, graft_mtp};

const NEXTN: &str = "qwen35.nextn_predict_layers";
const BLOCK_COUNT: &str = "qwen35.block_count";
const RECURRENT: &str = "qwen35.attention.recurrent_layers";

fn whole() -> Plan {
    model::plan(model::metadata(4, 1))
}

fn sidecar() -> Plan {
    split_mtp(&whole()).unwrap().mtp
}

fn sorted(metadata: &Metadata) -> Vec<(String, String)> {
    let entries = metadata.iter();
    let mut entries: Vec<_> = entries
        .map(|(k, v)| (k.to_owned(), v.to_string()))
        .collect();
    entries.sort();
    entries
}

/// Diagnoses the faults, repairs them, and compares the result with the expected file.
#[track_caller]
fn mended(broken: &Plan, expected: &Plan, names: &[&str]) {
    let found: Vec<String> = diagnose(broken).iter().map(ToString::to_string).collect();
    assert_eq!(found, names);
    let Repaired { plan, faults } = repair_mtp(broken, None).unwrap();
    assert_eq!(faults, diagnose(broken));
    assert_eq!(sorted(&plan.metadata), sorted(&expected.metadata));
    assert_eq!(plan.tensors.len(), expected.tensors.len());
    for (found, expected) in plan.tensors.iter().zip(&expected.tensors) {
        assert_eq!(found.name, expected.name);
        assert_eq!(found.source.bytes(), expected.source.bytes());
    }
    assert_eq!(diagnose(&plan), []);
}

fn at_block(mut plan: Plan, from: u32, to: u32) -> Plan {
    for tensor in &mut plan.tensors {
        let prefix = format!("blk.{from}.");
        if let Some(row) = tensor.name.strip_prefix(&prefix) {
            tensor.name = format!("blk.{to}.{row}");
        }
    }
    plan
}

#[test]
fn good_files_have_none() {
    for plan in [whole(), sidecar(), split_mtp(&whole()).unwrap().body] {
        assert_eq!(diagnose(&plan), []);
        let repaired = repair_mtp(&plan, None).unwrap();
        assert_eq!(repaired.plan.metadata, plan.metadata);
    }
}

#[test]
fn a_sidecar_that_counts_from_zero() {
    let fault = "the MTP head is in blk.0, expected blk.4, after the trunk";
    mended(&at_block(sidecar(), 4, 0), &sidecar(), &[fault]);

    let mut lost = at_block(sidecar(), 4, 0);
    lost.metadata.set(BLOCK_COUNT, 1u32);
    let names: Vec<String> = diagnose(&lost).iter().map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "the MTP head is in blk.0, expected after the trunk; no key states the number of trunk layers"
        ]
    );
    let error = repair_mtp(&lost, None).map(|_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "input: no key states the number of trunk layers; set it with --trunk-layers N"
    );
    let told = repair_mtp(&lost, Some(4)).unwrap();
    assert_eq!(sorted(&told.plan.metadata), sorted(&sidecar().metadata));
    assert!(told.plan.tensor("blk.4.nextn.eh_proj.weight").is_some());
}

#[test]
fn a_block_count_without_the_head() {
    let mut broken = whole();
    broken.metadata.set(BLOCK_COUNT, 4u32);
    let fault = "key qwen35.block_count is 4, expected 5: it must count the MTP head's block";
    mended(&broken, &whole(), &[fault]);
    let mut broken = sidecar();
    broken.metadata.set(BLOCK_COUNT, 4u32);
    mended(&broken, &sidecar(), &[fault]);
}

#[test]
fn a_key_without_tensors() {
    let mut broken = whole();
    broken.tensors.retain(|tensor| tensor.layer() != Some(4));
    let fault = "key qwen35.nextn_predict_layers is 1, but blk.4 has no tensors";
    mended(&broken, &split_mtp(&whole()).unwrap().body, &[fault]);
}

#[test]
fn tensors_without_a_key() {
    let mut broken = whole();
    broken.metadata.remove(NEXTN);
    let fault = "tensor blk.4.nextn.eh_proj.weight belongs to an MTP head, but key \
                 qwen35.nextn_predict_layers declares none";
    mended(&broken, &whole(), &[fault]);

    // Tensors copied onto a body without changing its keys.
    let mut scripted = whole();
    scripted.metadata = split_mtp(&whole()).unwrap().body.metadata;
    let names = [
        fault,
        "key qwen35.block_count is 4, expected 5: it must count the MTP head's block",
        "key qwen35.attention.recurrent_layers: 4 entries, expected 5, one for each block",
    ];
    mended(&scripted, &whole(), &names);
}

#[test]
fn an_array_that_is_one_short() {
    let mut broken = whole();
    let recurrent = vec![true, false, true, false];
    broken.metadata.set(RECURRENT, recurrent);
    let fault = "key qwen35.attention.recurrent_layers: 4 entries, expected 5, one for each block";
    mended(&broken, &whole(), &[fault]);

    let mut numbers = whole();
    numbers
        .metadata
        .set("qwen35.feed_forward_length", vec![32u32; 4]);
    let mut expected = whole();
    expected
        .metadata
        .set("qwen35.feed_forward_length", vec![32u32; 5]);
    let fault = "key qwen35.feed_forward_length: 4 entries, expected 5, one for each block";
    mended(&numbers, &expected, &[fault]);
}

#[test]
fn arrays_of_unknown_length_cannot_be_repaired() {
    let mut broken = whole();
    broken.metadata.set(RECURRENT, vec![true]);
    let error = repair_mtp(&broken, None)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("1 entries, expected 5"), "{error}");
}

/// A repaired file can be used as a donor.
#[test]
fn a_repaired_sidecar_grafts() {
    let broken = at_block(sidecar(), 4, 0);
    let body = split_mtp(&whole()).unwrap().body;
    let error = graft_mtp(&body, &broken).map(|_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "donor: the MTP head is in blk.0, expected blk.4, after the trunk; run specconv repair-mtp to fix it"
    );
    let mended = repair_mtp(&broken, None).unwrap().plan;
    let grafted = graft_mtp(&body, &mended).unwrap();
    assert_eq!(grafted.metadata, whole().metadata);
}
