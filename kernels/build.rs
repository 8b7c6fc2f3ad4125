//! Sets `isa` to the instruction sets of x86-64 that kernels are compiled for: all of them with the feature `every-cpu`
//! and for other machines, else the best one of this CPU. With the feature and `SPECCONV_ISAS=supported` in the
//! environment, those that this CPU can run and its tests compare.

// Cargo reads what a build script prints.
#![allow(clippy::print_stdout)]

use std::env;

#[cfg(target_arch = "x86_64")]
#[path = "src/simd/cpu_features.rs"]
mod cpu_features;

/// Best first.
const ALL: &[&str] = &["avx512", "avxvnni", "avx2"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/simd/cpu_features.rs");
    let quoted: Vec<String> = ALL.iter().map(|isa| format!("\"{isa}\"")).collect();
    let quoted = quoted.join(", ");
    println!("cargo:rustc-check-cfg=cfg(isa, values({quoted}))");
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        return;
    }
    let is_for_this_machine = env::var("HOST") == env::var("TARGET");
    let every_cpu = env::var_os("CARGO_FEATURE_EVERY_CPU").is_some();
    println!("cargo:rerun-if-env-changed=SPECCONV_ISAS");
    let wanted = env::var_os("SPECCONV_ISAS");
    let only_supported = wanted.is_some();
    if let Some(wanted) = wanted {
        assert_eq!(wanted, "supported", "SPECCONV_ISAS has an unknown value");
    }
    let isas = match is_for_this_machine && (only_supported || !every_cpu) {
        true => of_this_cpu(every_cpu),
        false => ALL.to_vec(),
    };
    for isa in isas {
        println!("cargo:rustc-cfg=isa=\"{isa}\"");
    }
}

/// Returns the best instruction set of this CPU, or all that it supports.
#[cfg(target_arch = "x86_64")]
fn of_this_cpu(all: bool) -> Vec<&'static str> {
    let mut isas = cpu_features::supported();
    match isas.first() {
        Some(&"avx512") if !all => isas.truncate(1),
        // With AVX-VNNI also AVX2: only products differ.
        Some(_) => {}
        // Such CPUs are rare: there are kernels for at least one instruction set.
        None => isas.push("avx2"),
    }
    isas
}

#[cfg(not(target_arch = "x86_64"))]
fn of_this_cpu(_: bool) -> Vec<&'static str> {
    ALL.to_vec()
}
