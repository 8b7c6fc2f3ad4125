//! Batch invariance and rollback, bit for bit, on a random model of every architecture: logits do
//! not depend on chunking, on other sequences, on threads, or on what was drafted and taken back.

use std::ops::Range;
use std::sync::Arc;

use kernels::cpu::{Cpu, CpuConfig};
use proptest::prelude::*;
use runner::batch::{Batch, Outputs};
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::model::load_target;
use schemas::arch::Hparams;
use schemas::gguf::Plan;

const N_CTX: usize = 48;
const N_ROLLBACK: usize = 5;

fn context(plan: &Plan, threads: usize, n_seq: usize) -> Context<Cpu> {
    context_of(plan, threads, n_seq, N_CTX)
}

fn context_of(plan: &Plan, threads: usize, n_seq: usize, n_ctx: usize) -> Context<Cpu> {
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

/// The bits of each token's logits, one token a pass, alone in its context, on one thread.
fn reference(plan: &Plan, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut context = context_of(plan, 1, 1, tokens.len());
    let mut rows = Vec::new();
    for (position, &token) in tokens.iter().enumerate() {
        let mut batch = Batch::default();
        batch.push(0, position as u32, &[token], Outputs::All);
        rows.push(bits(&context.forward(&batch, None)));
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

/// Two texts that share nothing, so that a mix-up of sequences shows.
fn texts() -> [Vec<u32>; 2] {
    let text = |a: u32, b: u32| (0..N_CTX as u32).map(|i| (i * i * a + b) % 251).collect();
    [text(7, 3), text(11, 90)]
}

/// One step of a random history of two sequences.
#[derive(Clone, Copy, Debug)]
struct Move {
    /// Tokens each sequence adds in one batch.
    n_tokens: [usize; 2],
    /// Positions each gives back afterwards; they are run again later.
    n_back: [usize; 2],
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    // Mostly as far as states are kept, now and then anywhere.
    let back = || prop_oneof![4 => 0..=N_ROLLBACK, 1 => 0..=N_CTX];
    let a_move = ([0..9usize, 0..9usize], [back(), back()])
        .prop_map(|(n_tokens, n_back)| Move { n_tokens, n_back });
    prop::collection::vec(a_move, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn logits_do_not_depend_on_the_batch(moves in moves(), threads in 1..4usize) {
        let texts = texts();
        for plan in fixtures::all() {
            let expected = texts.each_ref().map(|text| reference(&plan, text));
            let n_vocab = expected[0][0].len();
            let mut context = context(&plan, threads, 2);
            for Move { n_tokens, n_back } in &moves {
                let mut batch = Batch::default();
                for seq in 0..2 {
                    let start = context.len(seq) as usize;
                    let end = (start + n_tokens[seq]).min(N_CTX);
                    batch.push(seq, start as u32, &texts[seq][start..end], Outputs::All);
                }
                if batch.is_empty() {
                    continue;
                }
                let logits = context.forward(&batch, None);
                for (row, logits) in logits.chunks_exact(n_vocab).enumerate() {
                    let (seq, position) = (batch.seqs[row], batch.positions[row]);
                    prop_assert!(
                        bits(logits) == expected[seq][position as usize],
                        "{}: sequence {seq}, position {position}",
                        plan.metadata.need_str("general.architecture").unwrap(),
                    );
                }
                for (seq, &n_back) in n_back.iter().enumerate() {
                    let len = (context.len(seq) as usize).saturating_sub(n_back);
                    context.truncate(seq, len as u32);
                }
            }
        }
    }
}

/// A draft of 64 in a context that keeps five states: wherever it goes wrong, what follows is what
/// follows in a context that never went ahead.
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
        let mut context = context_of(&plan, 2, 2, text.len());
        let run = |context: &mut Context<Cpu>, range: Range<usize>| {
            let mut batch = Batch::default();
            batch.push(0, range.start as u32, &text[range.clone()], Outputs::All);
            // A neighbour, whose text goes on without being taken back.
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
