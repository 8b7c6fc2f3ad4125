//! Batch invariance and rollback, bit for bit, on a random model of every architecture: logits do
//! not depend on chunking, on other sequences, on threads, or on what was drafted and taken back.

use std::sync::Arc;

use kernels::cpu::{Cpu, CpuConfig};
use proptest::prelude::*;
use runner::batch::{Batch, Outputs};
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::model::load_target;
use schemas::gguf::Plan;

const N_CTX: usize = 48;
const N_ROLLBACK: usize = 5;

fn context(plan: &Plan, threads: usize, n_seq: usize) -> Context<Cpu> {
    let backend = Arc::new(Cpu::new(CpuConfig { threads, isa: None }).unwrap());
    let model = load_target(&*backend, plan).unwrap();
    let cache = CacheConfig {
        n_seq,
        n_ctx: N_CTX,
        n_rollback: N_ROLLBACK,
        types: CacheTypes::default(),
    };
    let sizes = ContextConfig {
        cache,
        n_batch: 64,
        n_outputs: 64,
    };
    Context::new(backend, model, sizes).unwrap()
}

/// The bits of each token's logits, one token a pass, alone in its context, on one thread.
fn reference(plan: &Plan, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut context = context(plan, 1, 1);
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
    let a_move = ([0..9usize, 0..9usize], [0..=N_ROLLBACK, 0..=N_ROLLBACK])
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
                    let added = batch.seqs.iter().filter(|&&s| s == seq).count();
                    let len = context.len(seq) as usize - n_back.min(added);
                    context.truncate(seq, len as u32).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_state_that_is_gone_is_refused() {
    let plan = fixtures::all()
        .find(|plan| plan.metadata.str("general.architecture") == Ok(Some("qwen35")))
        .unwrap();
    let mut context = context(&plan, 1, 1);
    let mut batch = Batch::default();
    batch.push(0, 0, &texts()[0][..20], Outputs::None);
    context.forward(&batch, None);
    context.truncate(0, 20 - N_ROLLBACK as u32).unwrap();
    let error = context
        .truncate(0, 20 - N_ROLLBACK as u32 - 1)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "sequence 0: cannot return to position 14, states reach back to 14"
    );
    context.truncate(0, 0).unwrap();
}
