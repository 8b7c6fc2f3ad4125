//! Every operation, on every implementation this machine can run: against its formula in `f64`,
//! and against itself, bit for bit, in other batches, with other threads and instruction sets.

mod cases;
mod data;
mod moe;
mod recurrent;

use kernels::backend::Backend;
use kernels::cpu::{Cpu, CpuConfig, Layout};

use cases::cases;
use data::{Random, f64_row, largest};

/// An operation on a batch of items: rows, or for the recurrent operations whole sequences.
struct Case<B> {
    name: String,
    /// Error allowed relative to the largest expected element.
    tolerance: f64,
    /// Per item, what the formula says.
    expected: Vec<Vec<f64>>,
    /// Computes the chosen items, in that order, in one batch.
    run: Run<B>,
}

type Run<B> = Box<dyn Fn(&B, &[usize]) -> Vec<Vec<f32>>>;

#[test]
fn operations_follow_their_formulas() {
    for backend in backends() {
        let mut failures = Vec::new();
        let cases = cases();
        for case in &cases {
            let all: Vec<usize> = (0..case.expected.len()).collect();
            let got = (case.run)(&backend, &all);
            for (item, (got, want)) in got.iter().zip(&case.expected).enumerate() {
                assert_eq!(got.len(), want.len(), "{}", case.name);
                let worst = got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).abs());
                let worst = worst.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a });
                let relative = worst / largest(&case.expected);
                if relative.is_nan() || relative > case.tolerance {
                    failures.push(format!("{}, item {item}: off by {relative:.1e}", case.name));
                    break;
                }
            }
        }
        assert!(
            failures.is_empty(),
            "{}: {} of {} cases:\n{}",
            backend.name(),
            failures.len(),
            cases.len(),
            failures.join("\n")
        );
    }
}

#[test]
fn results_do_not_depend_on_batch_threads_or_instruction_set() {
    let backends = backends();
    for case in cases() {
        if let Some(found) = find_dependence(&case, &backends) {
            panic!("{found}");
        }
    }
}

#[test]
fn a_kernel_that_depends_on_its_batch_is_found() {
    let mut random = Random(5);
    let x = random.rows(6, 200);
    let case = Case {
        name: "sum from a place that the batch decides".into(),
        tolerance: cases::SUM_TOLERANCE,
        expected: x.iter().map(|x| vec![f64_row(x).iter().sum()]).collect(),
        run: Box::new(move |_: &Cpu, items| {
            let sum = |x: &[f32]| {
                x.iter()
                    .cycle()
                    .skip(items.len())
                    .take(x.len())
                    .sum::<f32>()
            };
            items.iter().map(|&i| vec![sum(&x[i])]).collect()
        }),
    };
    assert!(find_dependence(&case, &backends()).is_some());
}

/// Computes items alone and in batches of random composition; the first difference in words.
fn find_dependence<B: Backend>(case: &Case<B>, backends: &[B]) -> Option<String> {
    let n = case.expected.len();
    let all: Vec<usize> = (0..n).collect();
    let together = bits((case.run)(&backends[0], &all));
    let mut random = Random(11);
    for (i, backend) in backends.iter().enumerate() {
        let mut batches = vec![all.clone()];
        batches.extend(all.iter().map(|&item| vec![item]));
        batches.extend((0..4).map(|_| {
            let len = 1 + random.below(n);
            (0..len).map(|_| random.below(n)).collect()
        }));
        for batch in batches {
            for (got, &item) in bits((case.run)(backend, &batch)).iter().zip(&batch) {
                if *got != together[item] {
                    let (name, case) = (backend.name(), &case.name);
                    return Some(format!(
                        "{case}: item {item} changes on backend {i} ({name}) in batch {batch:?}"
                    ));
                }
            }
        }
    }
    None
}

fn bits(rows: Vec<Vec<f32>>) -> Vec<Vec<u32>> {
    rows.into_iter()
        .map(|row| row.into_iter().map(f32::to_bits).collect())
        .collect()
}

/// Every instruction set with one, two and three threads, and both layouts of codes.
fn backends() -> Vec<Cpu> {
    let mut backends = Vec::new();
    for isa in Cpu::available() {
        for (threads, layout) in [
            (1, Layout::SideBySide),
            (1, Layout::InFile),
            (2, Layout::SideBySide),
            (3, Layout::InFile),
            (3, Layout::SideBySide),
        ] {
            let config = CpuConfig {
                threads,
                isa: Some(isa),
                layout,
            };
            backends.push(Cpu::new(config).expect("an available instruction set"));
        }
    }
    backends
}
