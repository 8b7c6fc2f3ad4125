//! Batch invariance and rollback, bit for bit, on random models of every architecture, their MTP
//! heads and EAGLE-3 drafts, with float and quantized weights: logits do not depend on the split
//! into passes, other sequences, threads, the instruction set, or drafts that were rolled back.
//!
//! `PROPTEST_CASES` is the number of random histories per model and instruction set.

mod coded;

use std::ops::AddAssign;
use std::sync::Arc;

use kernels::backend::{Backend, CacheType};
use kernels::cpu::{Cpu, CpuConfig, Isa};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use runner::batch::{Batch, Outputs};
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::model::{Fusion, Model, load_eagle3, load_mtp_head, load_target};
use schemas::gguf::Plan;

use coded::coded;

const N_SEQ: usize = 2;
const N_CTX: usize = 40;
const N_ROLLBACK: usize = 5;
/// Maximum number of tokens that a sequence adds in one batch.
const MAX_WIDTH: usize = 8;
/// Maximum number of threads.
const MAX_THREADS: usize = 3;

/// Number of histories per model and instruction set if `PROPTEST_CASES` is not set.
const CASES: u32 = 3;

/// Cache types; each type is used for keys and for values.
const TYPES: [CacheTypes; 4] = [
    types(CacheType::F32, CacheType::Q8_0),
    types(CacheType::F16, CacheType::F16),
    types(CacheType::BF16, CacheType::F32),
    types(CacheType::Q8_0, CacheType::BF16),
];

const fn types(k: CacheType, v: CacheType) -> CacheTypes {
    CacheTypes { k, v }
}

/// A model, head or draft under test.
struct Subject {
    name: String,
    model: Arc<Model<Cpu>>,
    /// Width of the target's hidden states that a head or draft reads at each position.
    n_seen: Option<usize>,
    /// Fusion of the hidden states, for a draft.
    fusion: Option<Fusion<Cpu>>,
}

/// Returns the model of every architecture, its MTP head, and drafts that read its hidden states.
fn subjects(change: fn(Plan) -> Plan) -> Vec<Subject> {
    let backend = cpu(Isa::Portable, 1);
    let mut subjects = Vec::new();
    for plan in fixtures::all() {
        let arch = plan.metadata.need_str("general.architecture").unwrap();
        let name = |part: &str| format!("{arch}{part}");
        let drafts = fixtures::eagle3(&plan).map(change);
        let name = [name(""), name(", its head"), name("'s draft")];
        let plan = change(plan);
        let [trunk, head, draft] = name;
        let mut add = |name, model, n_seen, fusion| {
            subjects.push(Subject {
                name,
                model: Arc::new(model),
                n_seen,
                fusion,
            });
        };
        let model = load_target(&*backend, &plan).unwrap();
        let width = model.hparams.hidden_width() as usize;
        if model.hparams.n_mtp() > 0 {
            let model = load_mtp_head(&*backend, &plan).unwrap();
            add(head, model, Some(width), None);
        }
        // The drafts are the same for every target.
        if trunk == "qwen3" {
            for of_draft in &drafts {
                let (model, fusion) = load_eagle3(&*backend, of_draft, &plan).unwrap();
                let features = model.hparams.features.as_ref().unwrap();
                let n_seen = features.width() as usize;
                add(draft.clone(), model, Some(n_seen), Some(fusion));
            }
        }
        add(trunk, model, None, None);
    }
    subjects
}

fn cpu(isa: Isa, threads: usize) -> Arc<Cpu> {
    let config = CpuConfig {
        threads,
        isa: Some(isa),
        ..CpuConfig::default()
    };
    Arc::new(Cpu::new(config).unwrap())
}

fn context(subject: &Subject, backend: &Arc<Cpu>, types: CacheTypes) -> Context<Cpu> {
    let cache = CacheConfig {
        n_seq: N_SEQ,
        n_ctx: N_CTX,
        n_rollback: N_ROLLBACK,
        types,
    };
    let sizes = ContextConfig {
        cache,
        n_batch: N_SEQ * MAX_WIDTH,
        n_outputs: N_SEQ * MAX_WIDTH,
    };
    Context::new(Arc::clone(backend), Arc::clone(&subject.model), sizes).unwrap()
}

/// Returns the bits of each row's logits.
fn forward(subject: &Subject, context: &mut Context<Cpu>, batch: &Batch) -> Vec<Vec<u32>> {
    let backend = context.backend();
    let hidden = subject.n_seen.map(|n_seen| {
        // Different for each position of each text.
        let places = batch.seqs.iter().zip(&batch.positions);
        let elements = places.flat_map(|(&seq, &position)| {
            (0..n_seen).map(move |i| ((i * 7 + seq * 31 + position as usize * 11) as f32).sin())
        });
        let elements: Vec<f32> = elements.collect();
        let mut seen = backend.buffer(elements.len());
        backend.upload(&elements, &mut seen, 0);
        let Some(fusion) = &subject.fusion else {
            return seen;
        };
        let n = batch.len();
        let mut normed = backend.buffer(n * n_seen);
        let mut fused = backend.buffer(n * subject.model.hparams.n_embd as usize);
        fusion.forward(backend, &seen, n, &mut normed, &mut fused);
        fused
    });
    let logits = context.forward(batch, hidden.as_ref());
    assert!(
        logits.iter().all(|x| x.is_finite()),
        "{}: a cell that nobody wrote was read",
        subject.name
    );
    let rows = logits.chunks_exact(subject.model.n_out());
    rows.map(|row| row.iter().map(|x| x.to_bits()).collect())
        .collect()
}

/// Two texts without common tokens per position, so that a mix-up of sequences shows.
fn texts() -> [Vec<u32>; N_SEQ] {
    let text = |a: u32, b: u32| (0..N_CTX as u32).map(|i| (i * i * a + b) % 251).collect();
    [text(7, 3), text(11, 90)]
}

/// Returns the logits of each token, one token per pass, on one thread with portable instructions.
fn reference(subject: &Subject, types: CacheTypes) -> [Vec<Vec<u32>>; N_SEQ] {
    let mut context = context(subject, &cpu(Isa::Portable, 1), types);
    let mut seq = 0;
    texts().map(|text| {
        let rows = (0..).zip(&text).map(|(position, &token)| {
            let mut batch = Batch::default();
            batch.push(seq, position, &[token], Outputs::All);
            forward(subject, &mut context, &batch).remove(0)
        });
        let rows = rows.collect();
        seq += 1;
        rows
    })
}

/// One step of a random history of all sequences.
#[derive(Clone, Copy, Debug)]
struct Move {
    /// Number of tokens that each sequence adds in one batch.
    n_tokens: [usize; N_SEQ],
    /// Number of positions that each rolls back afterwards; they are evaluated again later.
    n_back: [usize; N_SEQ],
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let tokens = [0..=MAX_WIDTH, 0..=MAX_WIDTH];
    // Mostly within the kept states, sometimes to any position.
    let back = || prop_oneof![4 => 0..=N_ROLLBACK, 1 => 0..=N_CTX];
    let a_move =
        (tokens, [back(), back()]).prop_map(|(n_tokens, n_back)| Move { n_tokens, n_back });
    prop::collection::vec(a_move, 1..24)
}

/// Runs a history and counts its batches.
fn live(
    subject: &Subject,
    context: &mut Context<Cpu>,
    moves: &[Move],
    expected: &[Vec<Vec<u32>>; N_SEQ],
    n_batches: &mut usize,
) -> Result<(), TestCaseError> {
    let texts = texts();
    for Move { n_tokens, n_back } in moves {
        let mut batch = Batch::default();
        for seq in 0..N_SEQ {
            let start = context.len(seq) as usize;
            let end = (start + n_tokens[seq]).min(N_CTX);
            batch.push(seq, start as u32, &texts[seq][start..end], Outputs::All);
        }
        if batch.is_empty() {
            continue;
        }
        n_batches.add_assign(1);
        let rows = forward(subject, context, &batch);
        for (row, bits) in rows.iter().enumerate() {
            let (seq, position) = (batch.seqs[row], batch.positions[row]);
            prop_assert!(
                *bits == expected[seq][position as usize],
                "{}: sequence {seq}, position {position}",
                subject.name,
            );
        }
        for (seq, &n_back) in n_back.iter().enumerate() {
            let len = (context.len(seq) as usize).saturating_sub(n_back);
            context.truncate(seq, len as u32);
        }
    }
    Ok(())
}

/// Runs random histories of every model on every instruction set.
#[expect(clippy::print_stdout, reason = "how much was tried is the result")]
fn check(subjects: &[Subject]) {
    let cases = std::env::var("PROPTEST_CASES").map_or(CASES, |n| n.parse().unwrap());
    let mut n_batches = 0;
    for subject in subjects {
        let expected = TYPES.map(|types| reference(subject, types));
        let before = n_batches;
        for isa in Cpu::available() {
            let backends: Vec<_> = (1..=MAX_THREADS).map(|n| cpu(isa, n)).collect();
            let config = ProptestConfig {
                cases,
                failure_persistence: None,
                ..ProptestConfig::default()
            };
            let strategy = (moves(), 0..MAX_THREADS, 0..TYPES.len());
            let n = std::cell::Cell::new(0);
            let ran = TestRunner::new(config).run(&strategy, |(moves, backend, types)| {
                let mut context = context(subject, &backends[backend], TYPES[types]);
                let mut added = 0;
                let lived = live(subject, &mut context, &moves, &expected[types], &mut added);
                n.set(n.get() + added);
                lived
            });
            if let Err(error) = ran {
                panic!("{} on {isa}: {error}", subject.name);
            }
            n_batches += n.get();
        }
        println!("{}: {} batches", subject.name, n_batches - before);
    }
    // A history has a dozen moves on average, few of them empty.
    let n_histories = subjects.len() * Cpu::available().len() * cases as usize;
    assert!(n_batches > 6 * n_histories, "{n_batches} batches");
}

#[test]
fn logits_do_not_depend_on_the_batch() {
    check(&subjects(|plan| plan));
}

#[test]
fn logits_of_coded_weights_do_not_depend_on_the_batch() {
    check(&subjects(coded));
}
