//! Verification on broken backends: results of a row that depend on its batch, panics while drafts
//! are verified, and logits that are not finite. Each must be a named failure in the report.

use std::sync::Arc;

use kernels::backend::Backend;
use kernels::cpu::Cpu;
use runner::model_files::DraftFiles;
use runner::run_config::RunCaches;
use runner::sample::SampleConfig;
use runner::speculate::{DraftConfig, Policy, SpecType};
use schemas::gguf::{Output, WriteConfig, write};
use schemas::report::{Check, Outcome, Verdict, VerifyReport};
use verify::checks::InvarianceConfig;
use verify::prompts::Prompt;
use verify::{DecodeOptions, Machine, Stage, VerifyConfig, verify};

use crate::forwarding::{Buffer, ForwardingBackend, Hooks};

/// Nothing is wrong.
struct Healthy;

impl Hooks for Healthy {}

/// Matrix products of wide batches are slightly wrong.
struct BatchDependent;

/// Maximum batch width with correct products.
const MAX_CORRECT_WIDTH: usize = 2;

impl Hooks for BatchDependent {
    fn after_matmul(&self, cpu: &Cpu, n: usize, out: &mut Buffer) {
        if n > MAX_CORRECT_WIDTH {
            let mut first = [0.0];
            cpu.download(out, 0, &mut first);
            cpu.upload(&[first[0] * (1.0 + 1e-3)], out, 0);
        }
    }
}

/// Matrix products of drafts panic: prompts are wider, plain decoding has one row.
struct Panicking;

impl Hooks for Panicking {
    fn after_matmul(&self, _cpu: &Cpu, n: usize, _out: &mut Buffer) {
        assert!(!(2..=4).contains(&n), "a product of\n{n} rows");
    }
}

/// Matrix products of one row are NaN.
struct NanProducts;

impl Hooks for NanProducts {
    fn after_matmul(&self, cpu: &Cpu, n: usize, out: &mut Buffer) {
        if n == 1 {
            cpu.upload(&[f32::NAN], out, 0);
        }
    }
}

/// Runs one check of a random model and its head on a backend.
fn judge(hooks: impl Hooks, stage: Stage) -> VerifyReport {
    judge_all(hooks, stage, &[SpecType::DraftMtp])
}

/// Runs one check of a random model and these speculators on a backend.
fn judge_all(hooks: impl Hooks, stage: Stage, spec_types: &[SpecType]) -> VerifyReport {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.gguf");
    let plan = fixtures::all()
        .find(|plan| plan.metadata.str("general.architecture") == Ok(Some("qwen35")));
    let mut plan = plan.expect("the architecture has a fixture");
    // Its only merge produces a token that the vocabulary does not have.
    plan.metadata
        .set("tokenizer.ggml.merges", Vec::<String>::new());
    let output = Output {
        plan: &plan,
        path: &model,
    };
    write(&[output], &WriteConfig::new()).unwrap();
    let config = VerifyConfig {
        model,
        drafts: DraftFiles::default(),
        spec_types: Some(spec_types.to_vec()),
        prompts: vec![Prompt {
            parts: Vec::new(),
            id: "a".to_owned(),
            prompt: "once upon a time there was a small model".to_owned(),
            kind: None,
            n_predict: None,
        }],
        n_predict: 24,
        options: DecodeOptions {
            caches: RunCaches::default(),
            drafting: DraftConfig::of_length(3),
            policy: Policy::First,
            n_parallel: 1,
            n_ctx_max: None,
            sample: SampleConfig::GREEDY,
        },
        matrix: None,
        min_accept: None,
        min_drafted: 0,
        min_speedup: None,
        invariance: InvarianceConfig::QUICK,
        unit: None,
        stop: || false,
        text: None,
        surface: None,
        stages: vec![stage],
        baseline: None,
    };
    let machine = Machine {
        backend: Arc::new(ForwardingBackend::new(hooks)),
        n_threads: 1,
    };
    verify(&machine, &[], &config).unwrap()
}

#[test]
fn a_kernel_that_depends_on_the_batch_fails_invariance() {
    let found = judge(BatchDependent, Stage::Invariance);
    assert_eq!(found.verdict, Verdict::Fail);
    assert_eq!(found.failed[0].check, Check::Invariance);
    let first = &found.invariance.unwrap().differences[0];
    assert!(first.n_tokens > MAX_CORRECT_WIDTH as u64, "{first:?}");
    assert_ne!(first.alone, first.found);
    assert_eq!(judge(Healthy, Stage::Invariance).verdict, Verdict::Pass);
}

#[test]
fn a_kernel_that_depends_on_the_batch_fails_identity() {
    let found = judge(BatchDependent, Stage::Identity);
    let failed = &found.failed[0];
    assert!(
        matches!(failed.check, Check::Tokens | Check::Logits),
        "{failed:?}"
    );
    assert!(failed.message.contains("(logit "), "{}", failed.message);
    let difference = found.runs[0].first_difference.as_ref().unwrap();
    assert!(difference.plain.runner_up.is_some() && difference.plain.logit.is_some());
    assert_eq!(judge(Healthy, Stage::Identity).verdict, Verdict::Pass);
}

#[test]
fn a_panic_while_drafting_is_a_failure_of_the_report() {
    let chain = [SpecType::NgramSimple, SpecType::DraftMtp];
    let found = judge_all(Panicking, Stage::Identity, &chain);
    assert_eq!(found.verdict, Verdict::Fail);
    let names: Vec<&str> = found.speculators.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(
        names,
        ["ngram-simple", "draft-mtp", "ngram-simple,draft-mtp"]
    );
    for name in &names[1..] {
        let verdict = found.speculators.iter().find(|s| s.name == *name).unwrap();
        assert_eq!(verdict.verdict, Outcome::Fail);
        let error = verdict.error.as_deref().unwrap();
        assert!(error.starts_with("panicked at "), "{error}");
        assert!(error.contains(": a product of, "), "{error}");
        let failed = found
            .failed
            .iter()
            .find(|f| f.speculator.as_deref() == Some(name));
        let failed = failed.unwrap();
        assert_eq!(failed.check, Check::Speculator);
        assert_eq!(failed.message, format!("decoding failed: {error}"));
    }
}

#[test]
fn logits_that_are_not_numbers_are_a_failure_of_the_target() {
    // Also without speculators.
    let found = judge_all(NanProducts, Stage::Identity, &[]);
    assert_eq!(found.verdict, Verdict::Fail);
    let failed = &found.failed[0];
    assert_eq!(
        (failed.check, failed.speculator.as_deref()),
        (Check::Target, None)
    );
    assert!(failed.message.contains("is NaN"), "{}", failed.message);
    assert!(found.speculators.is_empty() && found.runs.is_empty());
}
