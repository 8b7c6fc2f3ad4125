//! Drafts longer than the number of kept states, on a random model of every architecture with
//! recurrent states.

use std::ops::Range;
use std::sync::Arc;

use kernels::cpu::{Cpu, CpuConfig};
use runner::batch::{Batch, Outputs};
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::model::load_target;
use schemas::arch::Hparams;
use schemas::gguf::Plan;

const N_ROLLBACK: usize = 5;

fn context(plan: &Plan, threads: usize, n_seq: usize, n_ctx: usize) -> Context<Cpu> {
    let backend = Arc::new(
        Cpu::new(CpuConfig {
            threads,
            ..CpuConfig::default()
        })
        .unwrap(),
    );
    let model = load_target(&*backend, plan).unwrap();
    let cache = CacheConfig {
        n_seq,
        n_ctx,
        n_rollback: N_ROLLBACK,
        types: CacheTypes::default(),
    };
    let sizes = ContextConfig {
        cache,
        n_batch: 80,
        n_outputs: 80,
    };
    Context::new(backend, model, sizes).unwrap()
}

/// Returns the bits of each token's logits, one token per pass, alone in its context, on one
/// thread.
fn reference(plan: &Plan, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut context = context(plan, 1, 1, tokens.len());
    let mut rows = Vec::new();
    for (position, &token) in tokens.iter().enumerate() {
        let mut batch = Batch::default();
        batch.push(0, position as u32, &[token], Outputs::All);
        rows.push(bits(context.forward(&batch, None)));
    }
    rows
}

fn bits(logits: &[f32]) -> Vec<u32> {
    assert!(
        logits.iter().all(|x| x.is_finite()),
        "a cell that nobody wrote was read"
    );
    logits.iter().map(|x| x.to_bits()).collect()
}

/// A draft of 64 tokens in a context that keeps five states: after a rollback to any position,
/// logits equal those of a context without drafts.
#[test]
fn a_long_draft_can_be_taken_back_anywhere() {
    const LEN: usize = 12;
    const DRAFT: usize = 64;
    let text: Vec<u32> = (0..100).map(|i| (i * i * 7 + 3) % 251).collect();
    for plan in fixtures::all().filter(|plan| {
        let hparams = Hparams::from_plan(plan).unwrap();
        hparams.ssm.state_size > 0
    }) {
        let expected = reference(&plan, &text);
        let n_vocab = expected[0].len();
        let mut context = context(&plan, 2, 2, text.len());
        let run = |context: &mut Context<Cpu>, range: Range<usize>| {
            let mut batch = Batch::default();
            batch.push(0, range.start as u32, &text[range.clone()], Outputs::All);
            // A second sequence in the batch, which continues without rollbacks.
            let beside = context.len(1);
            if (beside as usize) < text.len() {
                batch.push(1, beside, &text[beside as usize..][..1], Outputs::All);
            }
            let logits = context.forward(&batch, None);
            for (row, logits) in logits.chunks_exact(n_vocab).enumerate() {
                let position = batch.positions[row] as usize;
                assert!(bits(logits) == expected[position], "position {position}");
            }
        };
        run(&mut context, 0..LEN);
        for n_accepted in 0..=DRAFT {
            run(&mut context, LEN..LEN + 1 + DRAFT);
            let len = LEN + 1 + n_accepted;
            context.truncate(0, len as u32);
            run(&mut context, len..len + 2);
            context.truncate(0, LEN as u32);
        }
    }
}
