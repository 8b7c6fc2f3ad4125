//! Sets `TOOL_COMMIT` to the commit that the programs are built from, `TOOL_TARGET` to the target and
//! `TOOL_FEATURES` to the Cargo features, for reports and `--version`.

// Cargo reads what a build script prints.
#![allow(clippy::print_stdout)]

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=TOOL_COMMIT");
    let given = std::env::var("TOOL_COMMIT").ok();
    let commit = given
        .or_else(commit)
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=TOOL_COMMIT={commit}");
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo:rustc-env=TOOL_TARGET={target}");
    println!("cargo:rustc-env=TOOL_FEATURES={}", features());
    // Cargo.toml has `strip`, but Cargo forgets it for packages with settings of their own. A build with debug information
    // keeps its symbols.
    if is("PROFILE", "release") && is("DEBUG", "false") && is("CARGO_CFG_TARGET_OS", "linux") {
        println!("cargo:rustc-link-arg-bins=-Wl,--strip-all");
    }
}

/// Checks the value of an environment variable.
fn is(name: &str, value: &str) -> bool {
    std::env::var(name).as_deref() == Ok(value)
}

/// The enabled features of this package, separated by commas.
fn features() -> String {
    let variables = std::env::vars().filter_map(|(name, _)| {
        let feature = name.strip_prefix("CARGO_FEATURE_")?;
        Some(feature.to_lowercase().replace('_', "-"))
    });
    let mut features: Vec<String> = variables.filter(|name| name != "default").collect();
    features.sort();
    match features.is_empty() {
        true => "none".to_owned(),
        false => features.join(", "),
    }
}

/// The commit of this repository; `None` for sources that were unpacked from an archive, which may be
/// inside of another repository.
fn commit() -> Option<String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let git = |args: &[&str]| {
        let ran = Command::new("git")
            .arg("-C")
            .arg(workspace)
            .args(args)
            .output();
        let ran = ran.ok().filter(|ran| ran.status.success())?;
        Some(String::from_utf8(ran.stdout).ok()?.trim().to_owned())
    };
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != workspace.canonicalize().ok()? {
        return None;
    }
    // The log of HEAD grows with every commit and checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    let log = workspace.join(log);
    if log.exists() {
        println!("cargo:rerun-if-changed={}", log.display());
    }
    git(&["rev-parse", "HEAD"])
}
