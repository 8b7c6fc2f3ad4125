//! Reports of `pair` for combinations of a body and a head.

use std::sync::Arc;

use graft::{pair, split_mtp};
use schemas::arch::ARCHS;
use schemas::gguf::{DType, Metadata, Owned, Plan, Tensor};
use schemas::report::{Finding, PairingOutcome, PairingReport};

fn whole() -> Plan {
    let arch = ARCHS.iter().find(|arch| arch.name == "qwen35").unwrap();
    fixtures::model(arch)
}

fn halves() -> (Plan, Plan) {
    let halves = split_mtp(&whole()).unwrap();
    (halves.body, halves.mtp)
}

/// Changes the values of an F32 tensor.
fn with_values(plan: &mut Plan, name: &str, change: impl Fn(usize, f32) -> f32) {
    let tensor = plan.tensors.iter_mut().find(|t| t.name == name).unwrap();
    let bytes = tensor.read_all().unwrap();
    let (values, _) = bytes.as_chunks::<4>();
    let values = values.iter().enumerate();
    let bytes = values.flat_map(|(i, x)| change(i, f32::from_le_bytes(*x)).to_le_bytes());
    let row_bytes = tensor.row_bytes();
    tensor.source = Arc::new(Owned {
        bytes: bytes.collect(),
        row_bytes,
    });
}

/// Returns all checks except those with equal values.
fn found(report: &PairingReport) -> Vec<String> {
    let checks = report.checks.iter();
    let other = checks.filter(|check| check.finding != Finding::Same);
    other
        .map(|c| format!("{:?} {}: {} | {}", c.finding, c.subject, c.target, c.donor))
        .collect()
}

#[track_caller]
fn verdict(target: &Plan, donor: &Plan, outcome: PairingOutcome, findings: &[&str]) {
    let report = pair(target, donor).unwrap();
    assert_eq!(found(&report), findings);
    assert_eq!(report.outcome, outcome);
}

#[test]
fn halves_of_one_model_are_compatible() {
    let (body, mtp) = halves();
    verdict(&body, &mtp, PairingOutcome::Compatible, &[]);
    verdict(&body, &whole(), PairingOutcome::Compatible, &[]);
    let report = pair(&body, &mtp).unwrap();
    assert_eq!((report.donor_block, report.target_block), (4, 4));
    assert_eq!(report.tensors.len(), 14);
    let eh_proj = report
        .tensors
        .iter()
        .find(|t| t.tensor.ends_with("eh_proj.weight"))
        .unwrap();
    let values = eh_proj.values.as_ref().unwrap();
    assert!(values.rms > 0.05 && values.rms < 0.2, "{values:?}");
}

#[test]
fn another_fine_tune_is_plausible() {
    let (body, mut mtp) = halves();
    mtp.metadata.set("general.name", "base");
    let mut named = body.clone();
    named.metadata.set("general.name", "tuned");
    verdict(
        &named,
        &mtp,
        PairingOutcome::Plausible,
        &["Differs general.name: tuned | base"],
    );
    with_values(&mut mtp, "output_norm.weight", |_, x| x * 1.01);
    let report = pair(&body, &mtp).unwrap();
    assert_eq!(report.outcome, PairingOutcome::Plausible);
    assert!(found(&report)[0].starts_with("Differs output_norm.weight: mean "));
}

#[test]
fn tensors_alone_show_nothing_and_so_are_plausible() {
    let (body, mut mtp) = halves();
    mtp.metadata = Metadata::new();
    mtp.tensors.retain(|tensor| tensor.layer().is_some());
    let report = pair(&body, &mtp).unwrap();
    assert_eq!(report.outcome, PairingOutcome::Plausible);
    let unknown = found(&report);
    assert!(
        unknown.iter().all(|c| c.starts_with("Unknown ")),
        "{unknown:#?}"
    );
}

#[test]
fn embeddings_of_another_model_are_refused() {
    let (body, mut mtp) = halves();
    with_values(&mut mtp, "token_embd.weight", |i, x| match i % 2 {
        0 => x,
        _ => -x,
    });
    let report = pair(&body, &mtp).unwrap();
    assert_eq!(report.outcome, PairingOutcome::Refused);
    let refusal = &found(&report)[0];
    assert!(
        refusal.starts_with("Refuses token_embd.weight: 1 | cosine "),
        "{refusal}"
    );
}

#[test]
fn settings_and_tokens_that_differ_are_refused() {
    let (body, mtp) = halves();
    let mut tuned = mtp.clone();
    tuned.metadata.set("qwen35.rope.freq_base", 1e7f32);
    tuned.metadata.set("qwen35.rope.scaling.type", "yarn");
    verdict(
        &body,
        &tuned,
        PairingOutcome::Refused,
        &[
            "Refuses qwen35.rope.freq_base: 10000 | 10000000",
            "Refuses qwen35.rope.scaling.type: none | yarn",
        ],
    );
    let mut spelled = mtp;
    let tokens = spelled.metadata.strings("tokenizer.ggml.tokens").unwrap();
    let mut tokens: Vec<String> = tokens.unwrap().iter().map(ToString::to_string).collect();
    tokens.swap(65, 66);
    spelled.metadata.set("tokenizer.ggml.tokens", tokens);
    verdict(
        &body,
        &spelled,
        PairingOutcome::Refused,
        &[
            "Refuses token 65: \"A\" | \"B\"",
            "Refuses token 66: \"B\" | \"A\"",
        ],
    );
}

#[test]
fn dead_heads_are_refused() {
    let (body, mtp) = halves();
    let eh_proj = "blk.4.nextn.eh_proj.weight";
    let changed = |name: &str, change: &dyn Fn(usize, f32) -> f32| {
        let mut mtp = mtp.clone();
        with_values(&mut mtp, name, change);
        found(&pair(&body, &mtp).unwrap())
    };
    // Rows have 128 values: 64 for the embedding, then 64 for the hidden state.
    let is_left = |i: usize| i % 128 < 64;
    assert_eq!(
        changed(eh_proj, &|i, x| if is_left(i) { 0.0 } else { x }),
        [format!(
            "Refuses {eh_proj}: weights | the embedding's half is all zero"
        )]
    );
    assert_eq!(
        changed(eh_proj, &|i, x| if is_left(i) { x } else { 0.0 }),
        [format!(
            "Refuses {eh_proj}: weights | the hidden state's half is all zero"
        )]
    );
    assert_eq!(
        changed("blk.4.ffn_up.weight", &|_, _| 0.0),
        ["Refuses blk.4.ffn_up.weight: weights | all zero"]
    );
    assert_eq!(
        changed("blk.4.attn_q.weight", &|i, x| if i == 7 {
            f32::NAN
        } else {
            x
        }),
        ["Refuses blk.4.attn_q.weight: finite numbers | 1 NaN or infinite"]
    );
    let found = changed(eh_proj, &|i, x| if is_left(i) { x * 100.0 } else { x });
    assert!(found[0].starts_with(&format!(
        "Differs {eh_proj}: at most 30 to 1 | embedding half "
    )));
    let found = changed("blk.4.attn_q_norm.weight", &|_, x| x - 1.0);
    assert!(
        found[0].ends_with("as if the +1 offset was not applied"),
        "{found:?}"
    );
    let found = changed("blk.4.attn_norm.weight", &|_, x| x + 1.0);
    assert!(
        found[0].ends_with("as if the +1 offset was applied twice"),
        "{found:?}"
    );
}

/// Data of a quantized matrix, declared with the wrong type.
#[test]
fn packed_numbers_read_as_floats_are_refused() {
    let (body, mut mtp) = halves();
    let name = "blk.4.ffn_up.weight";
    let tensor = mtp.tensors.iter_mut().find(|t| t.name == name).unwrap();
    let n_bytes = 2 * tensor.n_elements() as u32;
    let packed = (0..n_bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8);
    let source = Owned {
        bytes: packed.collect(),
        row_bytes: 2 * tensor.ne0(),
    };
    *tensor = Tensor::new(name, tensor.shape.clone(), DType::BF16, Arc::new(source)).unwrap();
    let report = pair(&body, &mtp).unwrap();
    assert_eq!(report.outcome, PairingOutcome::Refused);
    let refusal = &found(&report)[0];
    assert!(
        refusal.ends_with("as if packed data were read as BF16"),
        "{refusal}"
    );
}
