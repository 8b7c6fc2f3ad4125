//! Tests every operation on every implementation that this machine supports: against its formula in `f64`,
//! and for equal bits in other batches, with other thread counts and instruction sets.

mod cases;
mod choose;
mod compression;
mod data;
mod elementwise;
#[path = "../emulated/mod.rs"]
mod emulated;
mod hyper_connection;
mod joined;
mod moe;
mod recurrent;
mod scales;

use std::iter;
use std::sync::Arc;

use kernels::backend::Backend;
use kernels::cpu::{Cpu, CpuConfig, Layout, Prefetching};
use kernels::cuda::{Cuda, DriverConfig, Launching};

use cases::{cases, device_cases};
use data::{Random, f64_row, largest};
use emulated::{Emulated, Order};

/// An operation on a batch of items, which are rows, or whole sequences for recurrent operations.
struct Case<B> {
    name: String,
    /// Allowed error relative to the largest expected element.
    tolerance: f64,
    /// Expected result per item, by the formula.
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
                let largest = largest(&case.expected);
                if worst.is_nan() || worst > case.tolerance * largest {
                    let name = &case.name;
                    failures.push(format!(
                        "{name}, item {item}: off by {worst:.1e} of {largest:.1e}"
                    ));
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

/// In any batch, and with threads executed in either order.
#[test]
fn cuda_kernels_give_the_bits_of_the_cpu() {
    let (rising, falling) = (
        cuda(Order::Rising, Launching::OneByOne),
        cuda(Order::Falling, Launching::Graphs),
    );
    let (Some(rising), Some(falling)) = (rising, falling) else {
        return;
    };
    let cpu = &backends()[0];
    for (on_cpu, case) in device_cases().iter().zip(device_cases()) {
        let all: Vec<usize> = (0..case.expected.len()).collect();
        let expected = bits((on_cpu.run)(cpu, &all));
        // Emulation is slow: a few batches are as good a test as each item alone.
        let batches = random_batches(all.len()).take(3);
        let found = find_difference(&case, &expected, &rising, batches);
        assert_eq!(found, None);
        let got = bits((case.run)(&falling, &all));
        assert!(got == expected, "{} changes in falling order", case.name);
    }
    assert_eq!((rising.failure(), falling.failure()), (None, None));
}

/// The same on a real device.
#[test]
#[expect(clippy::print_stdout, reason = "says on what it ran")]
fn a_cuda_device_gives_the_bits_of_the_cpu() {
    let Some(device) = device() else { return };
    let cpu = &backends()[0];
    let (share, n_share) = share_of_cases();
    let mut failures = Vec::new();
    let cases = device_cases().into_iter().zip(device_cases());
    for (on_cpu, case) in cases.skip(share).step_by(n_share) {
        let all: Vec<usize> = (0..case.expected.len()).collect();
        let expected = bits((on_cpu.run)(cpu, &all));
        let alone = all.iter().map(|&item| vec![item]);
        let batches = iter::once(all.clone()).chain(alone);
        let batches = batches.chain(random_batches(all.len()).take(4));
        failures.extend(find_difference(&case, &expected, &device, batches));
    }
    assert_eq!(device.failure(), None);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let n_case = device_cases::<Cuda>().len();
    println!(
        "{}: {n_case} cases, share {share} of {n_share}",
        device.name()
    );
}

/// Returns which share of the cases to test on a device: `CUDA_TEST_SHARE` is `2/8` for the third of eight. Tools
/// that slow the device down are faster with several processes.
fn share_of_cases() -> (usize, usize) {
    let Ok(share) = std::env::var("CUDA_TEST_SHARE") else {
        return (0, 1);
    };
    let numbers = share.split_once('/').expect("INDEX/COUNT");
    let number = |text: &str| text.parse().expect("a number");
    (number(numbers.0), number(numbers.1))
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

/// Computes items together, alone and in random batches; returns a description of the first difference.
fn find_dependence<B: Backend>(case: &Case<B>, backends: &[B]) -> Option<String> {
    let all: Vec<usize> = (0..case.expected.len()).collect();
    let together = bits((case.run)(&backends[0], &all));
    let mut random = random_batches(all.len());
    backends.iter().enumerate().find_map(|(i, backend)| {
        let alone = all.iter().map(|&item| vec![item]);
        let batches = iter::once(all.clone()).chain(alone);
        let batches = batches.chain(random.by_ref().take(4));
        let found = find_difference(case, &together, backend, batches)?;
        Some(format!("{found} on backend {i}"))
    })
}

/// Returns batches of random length and composition.
fn random_batches(n: usize) -> impl Iterator<Item = Vec<usize>> {
    let mut random = Random(11);
    iter::repeat_with(move || {
        let len = 1 + random.below(n);
        (0..len).map(|_| random.below(n)).collect()
    })
}

/// Returns the first item whose bits differ in some batch.
fn find_difference<B: Backend>(
    case: &Case<B>,
    expected: &[Vec<u32>],
    backend: &B,
    batches: impl Iterator<Item = Vec<usize>>,
) -> Option<String> {
    for batch in batches {
        for (got, &item) in bits((case.run)(backend, &batch)).iter().zip(&batch) {
            if *got != expected[item] {
                let (name, case) = (backend.name(), &case.name);
                return Some(format!(
                    "{case}: item {item} changes on {name} in batch {batch:?}"
                ));
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

/// Every instruction set with one, two and three threads, and both weight layouts.
fn backends() -> Vec<Cpu> {
    let mut backends = Vec::new();
    for isa in Cpu::available() {
        let none = Prefetching::Distance(0);
        for (threads, layout, prefetch) in [
            (1, Layout::Repacked, Prefetching::Distance(40)),
            (1, Layout::FileOrder, Prefetching::Streams),
            (2, Layout::Repacked, none),
            (3, Layout::FileOrder, none),
            (3, Layout::Repacked, Prefetching::Streams),
        ] {
            let config = CpuConfig {
                threads,
                isa: Some(isa),
                layout,
                prefetch: Some(prefetch),
            };
            backends.push(Cpu::new(config).expect("an available instruction set"));
        }
    }
    backends
}

/// The device whose index is in `CUDA_TEST_DEVICE`; `None` if there is no such variable.
#[expect(clippy::print_stdout, reason = "a test that proves nothing says so")]
fn device() -> Option<Cuda> {
    let named = std::env::var("CUDA_TEST_DEVICE").ok();
    let Some(index) = named.and_then(|index| index.parse().ok()) else {
        println!("skipped: CUDA_TEST_DEVICE names no device");
        return None;
    };
    let config = DriverConfig { index, cache: None };
    Some(Cuda::open(config, Launching::Graphs).expect("the device that is named"))
}

/// The CUDA kernels, emulated on the CPU; `None` if no C++ compiler is installed.
fn cuda(order: Order, launching: Launching) -> Option<Cuda> {
    Some(Cuda::new(Arc::new(Emulated::new(order)?), launching))
}
