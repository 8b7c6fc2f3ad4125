//! One program for all targets; `FUZZ_TARGET` names the one to run. See `fuzz/run`.
#![no_main]

use fuzz::{Run, TARGETS};

thread_local! {
    static RUN: Run = run();
}

/// Prepares the target named by `FUZZ_TARGET`.
fn run() -> Run {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|target| target.name == name);
    let target = found.unwrap_or_else(|| {
        let names = TARGETS.map(|target| target.name).join(", ");
        panic!("FUZZ_TARGET: expected one of {names}")
    });
    (target.prepare)()
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    RUN.with(|run| run(bytes));
});
