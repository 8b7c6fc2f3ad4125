//! The judge is shown a backend that breaks the promise of its trait: a row's result depends on how
//! many rows are computed beside it. Both checks must see it.

use std::sync::Arc;

use kernels::backend::{
    AttentionInput, AttentionShape, Backend, CacheShape, Columns, DeltaInput, DeltaShape,
    ExpertInput, KeyRows, Rope, Routing, Step, UnsupportedWeight, WeightData,
};
use kernels::cpu::{Cpu, CpuConfig};
use runner::load::{DraftFiles, RunCaches};
use runner::prompts::Prompt;
use runner::sample::SampleConfig;
use runner::speculate::{Drafting, SpecType};
use runner::verify::InvarianceConfig;
use runner::{Machine, Stage, VerifyConfig, Way, verify};
use schemas::gguf::{Output, WriteConfig, write};
use schemas::report::{Check, Verdict, VerifyReport};

type Buffer = <Cpu as Backend>::Buffer;
type Weight = <Cpu as Backend>::Weight;
type Cache = <Cpu as Backend>::Cache;
type Routes = <Cpu as Backend>::Routes;

/// The processor, but products of wide batches are off by the last bits.
struct Uneven(Cpu);

/// Widest batch whose products are right.
const MAX_EVEN: usize = 2;

/// Operations that are handed on as they are.
macro_rules! hand_on {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)?;)*) => {
        $(fn $name(&self, $($arg: $type),*) $(-> $out)? {
            self.0.$name($($arg),*)
        })*
    };
}

impl Backend for Uneven {
    type Buffer = Buffer;
    type Weight = Weight;
    type Cache = Cache;
    type Routes = Routes;

    fn matmul(&self, w: &Weight, x: &Buffer, n: usize, out: &mut Buffer) {
        self.0.matmul(w, x, n, out);
        if n > MAX_EVEN {
            let mut first = [0.0];
            self.0.download(out, 0, &mut first);
            self.0.upload(&[first[0] * (1.0 + 1e-3)], out, 0);
        }
    }

    /// Operands in a struct are those of one backend.
    fn attention(
        &self,
        shape: &AttentionShape,
        input: AttentionInput<'_, Uneven>,
        keys: &[KeyRows],
        out: &mut Buffer,
    ) {
        let AttentionInput { q, k, v, sinks } = input;
        let input = AttentionInput::<'_, Cpu> { q, k, v, sinks };
        self.0.attention(shape, input, keys, out);
    }

    fn gated_delta_rule(
        &self,
        shape: &DeltaShape,
        input: DeltaInput<'_, Uneven>,
        steps: &[Step],
        state: &mut Buffer,
        out: &mut Buffer,
    ) {
        let DeltaInput {
            q,
            k,
            v,
            alpha,
            beta,
            dt_bias,
            a,
        } = input;
        let input = DeltaInput::<'_, Cpu> {
            q,
            k,
            v,
            alpha,
            beta,
            dt_bias,
            a,
        };
        self.0.gated_delta_rule(shape, input, steps, state, out);
    }

    hand_on! {
        fn name() -> String;
        fn load(data: WeightData) -> Result<Weight, UnsupportedWeight>;
        fn weight_bytes(weight: &Weight) -> usize;
        fn free_bytes() -> Option<u64>;
        fn weight_room(file_bytes: u64) -> u64;
        fn buffer(len: usize) -> Buffer;
        fn cache(shape: &CacheShape) -> Cache;
        fn routes(n: usize, n_used: usize) -> Routes;
        fn upload(src: &[f32], dst: &mut Buffer, at: usize);
        fn download(src: &Buffer, at: usize, dst: &mut [f32]);
        fn embed(table: &Weight, tokens: &[u32], out: &mut Buffer);
        fn rms_norm(x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer);
        fn l2_norm(x: &mut Buffer, eps: f32, dim: usize, n: usize);
        fn add(x: &mut Buffer, y: &Buffer, len: usize);
        fn add_bias(x: &mut Buffer, bias: &Weight, n: usize);
        fn silu_mul(x: &mut Buffer, y: &Buffer, len: usize);
        fn gelu_mul(x: &mut Buffer, y: &Buffer, len: usize);
        fn scale(x: &mut Buffer, factor: f32, len: usize);
        fn clamped_silu_mul(x: &mut Buffer, y: &Buffer, len: usize);
        fn choose_all(n: usize, routes: &mut Routes);
        fn add_expert_bias(x: &mut Buffer, bias: &Weight, routes: &Routes, n: usize);
        fn softcap(x: &mut Buffer, cap: f32, len: usize);
        fn sigmoid_mul(x: &mut Buffer, y: &Buffer, len: usize);
        fn sigmoid_mul_rows(x: &mut Buffer, gate: &Buffer, dim: usize, n: usize);
        fn route(logits: &Buffer, bias: Option<&Weight>, routing: &Routing, n: usize, routes: &mut Routes);
        fn expert_matmul(experts: &[Weight], routes: &Routes, x: &Buffer, input: ExpertInput, n: usize, out: &mut Buffer);
        fn combine_experts(routes: &Routes, x: &Buffer, dim: usize, n: usize, out: &mut Buffer);
        fn rope(x: &mut Buffer, rope: &Rope, n_head: usize, positions: &[u32]);
        fn store_rows(src: &Buffer, rows: &[usize], cache: &mut Cache);
        fn gather_rows(src: &Buffer, dim: usize, rows: &[usize], dst: &mut Buffer);
        fn copy_rows(src: &Buffer, from: usize, dst: &mut Buffer, to: usize, dim: usize, n: usize);
        fn copy_within(buffer: &mut Buffer, from: usize, to: usize, len: usize);
        fn copy_cached(cache: &mut Cache, from: usize, to: usize, n: usize);
        fn copy_columns(src: &Buffer, from: Columns, dst: &mut Buffer, to: Columns, width: usize, n: usize);
        fn causal_conv(x: &Buffer, w: &Weight, steps: &[Step], state: &mut Buffer, out: &mut Buffer);
    }
}

/// One check of a random model on that kind of backend.
fn judge<B: Backend>(backend: B, stage: Stage) -> VerifyReport {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.gguf");
    let plan = fixtures::all()
        .find(|plan| plan.metadata.str("general.architecture") == Ok(Some("qwen35")));
    let mut plan = plan.expect("the architecture has a fixture");
    // Its only merge makes a token that it does not have.
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
        spec_types: vec![SpecType::DraftMtp],
        prompts: vec![Prompt {
            id: "a".to_owned(),
            prompt: "once upon a time there was a small model".to_owned(),
            kind: None,
            n_predict: None,
        }],
        n_predict: 24,
        way: Way {
            caches: RunCaches::default(),
            drafting: Drafting::of_length(3),
            n_parallel: 1,
            sample: SampleConfig::GREEDY,
        },
        matrix: None,
        min_accept: None,
        min_speedup: None,
        invariance: InvarianceConfig::QUICK,
        stages: vec![stage],
        baseline: None,
    };
    let backend = Arc::new(backend);
    let machine = Machine {
        backend,
        n_threads: 1,
    };
    verify(&machine, &[], &config).unwrap()
}

fn cpu() -> Cpu {
    let config = CpuConfig {
        threads: 1,
        ..CpuConfig::default()
    };
    Cpu::new(config).unwrap()
}

#[test]
fn a_kernel_that_depends_on_the_batch_fails_invariance() {
    let found = judge(Uneven(cpu()), Stage::Invariance);
    assert_eq!(found.verdict, Verdict::Fail);
    assert_eq!(found.failed[0].check, Check::Invariance);
    let first = &found.invariance.unwrap().differences[0];
    assert!(first.n_tokens > MAX_EVEN as u64, "{first:?}");
    assert_ne!(first.alone, first.found);
    assert_eq!(judge(cpu(), Stage::Invariance).verdict, Verdict::Pass);
}

#[test]
fn a_kernel_that_depends_on_the_batch_fails_identity() {
    let found = judge(Uneven(cpu()), Stage::Identity);
    let failed = &found.failed[0];
    assert!(
        matches!(failed.check, Check::Tokens | Check::Logits),
        "{failed:?}"
    );
    assert!(failed.message.contains("(logit "), "{}", failed.message);
    let difference = found.runs[0].first_difference.as_ref().unwrap();
    assert!(difference.plain.runner_up.is_some() && difference.plain.logit.is_some());
    assert_eq!(judge(cpu(), Stage::Identity).verdict, Verdict::Pass);
}
