//! Identity of the files that a plan reads.

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::Context as _;
use schemas::report::{WorkInput, WorkPlan};
use schemas::work::fingerprint;

use crate::hint::Hinted;
use crate::work::text;

/// Identifies a file. With `is_copied`, machines have their own copies, whose modification times may differ.
pub(super) fn identify(path: &Path, is_copied: bool) -> anyhow::Result<WorkInput> {
    let shown = || path.display().to_string();
    let found = fs::metadata(path).with_context(shown)?;
    Ok(WorkInput {
        path: text(path)?,
        size_bytes: found.len(),
        sampled_xxh3: fingerprint(path).with_context(shown)?,
        modified_ns: match is_copied {
            true => None,
            false => Some(modified_ns(&found)),
        },
    })
}

/// Returns the modification time of a file in nanoseconds, as text.
pub(super) fn modified_ns(found: &fs::Metadata) -> String {
    let since = found
        .modified()
        .ok()
        .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    since.unwrap_or_default().as_nanos().to_string()
}

/// Checks that the files are those of the plan.
///
/// # Errors
/// A file is missing or differs.
pub(super) fn check(plan: &WorkPlan, plan_path: &Path) -> anyhow::Result<()> {
    for expected in &plan.inputs {
        let path = Path::new(&expected.path);
        if path.is_relative() && !path.exists() {
            let message = format!("{}: no such file in the current folder", path.display());
            let hint = format!(
                "relative paths start in {}, where the plan was made",
                plan.folder
            );
            return Err(Hinted::new(message, hint).into());
        }
        let found = identify(path, expected.modified_ns.is_none())?;
        let what = match () {
            () if found.size_bytes != expected.size_bytes => format!(
                "{} bytes, expected {}",
                found.size_bytes, expected.size_bytes
            ),
            () if found.sampled_xxh3 != expected.sampled_xxh3 => "other content".to_owned(),
            () if found.modified_ns != expected.modified_ns => {
                "modified at another time".to_owned()
            }
            () => continue,
        };
        let plan = plan_path.display();
        let message = format!(
            "{}: {what}; {plan} was made for another file",
            path.display()
        );
        let hint = "plan again, or restore the file; \"specconv plan --copied-inputs\" ignores modification times";
        return Err(Hinted::new(message, hint).into());
    }
    Ok(())
}
