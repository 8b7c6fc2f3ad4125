//! Sets `isa` to the instruction sets of x86-64 that kernels are compiled for: all of them with the feature `every-cpu`
//! and for other machines, else the best one of this CPU.

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
    let isas = match env::var_os("CARGO_FEATURE_EVERY_CPU") {
        None if is_for_this_machine => of_this_cpu(),
        _ => ALL,
    };
    for isa in isas {
        println!("cargo:rustc-cfg=isa=\"{isa}\"");
    }
}

#[cfg(target_arch = "x86_64")]
fn of_this_cpu() -> &'static [&'static str] {
    match cpu_features::best() {
        "avx512" => &["avx512"],
        // Only products use AVX-VNNI.
        "avxvnni" => &["avxvnni", "avx2"],
        // Also for CPUs without it, which are rare: there are kernels for at least one instruction set.
        _ => &["avx2"],
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn of_this_cpu() -> &'static [&'static str] {
    ALL
}
