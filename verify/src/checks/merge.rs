//! Joins the reports of the parts of a verification.

use schemas::report::{Check, FailedCheck, Verdict, VerifyReport};

/// Joins reports in the order of [`units`](super::units): the first one is that of the target. Speeds are those that
/// each machine measured, against its own decoding without drafts. `None` without a report.
pub fn merge(reports: impl IntoIterator<Item = VerifyReport>) -> Option<VerifyReport> {
    let mut reports = reports.into_iter();
    let mut merged = reports.next()?;
    // Checks of the files come first, those of the target's texts last, as in one run.
    let of_target = merged.failed.split_off(n_of_files(&merged));
    let mut matrices = vec![std::mem::take(&mut merged.matrix)];
    for report in reports {
        let failed = report.failed.iter().skip(n_of_files(&report)).cloned();
        let failed: Vec<FailedCheck> = failed.collect();
        merged.runs.extend(report.runs);
        merged.speculators.extend(report.speculators);
        matrices.push(report.matrix);
        match (&mut merged.agreement, report.agreement) {
            (Some(all), Some(found)) => all.speculators.extend(found.speculators),
            (none @ None, found) => *none = found,
            (Some(_), None) => {}
        }
        if let (Some(all), Some(found)) = (&mut merged.surface, report.surface) {
            all.cells.extend(found.cells);
            all.break_even.extend(found.break_even);
        }
        add(&mut merged.failed, failed);
    }
    add(&mut merged.failed, of_target);
    // One run decodes all speculators in one configuration after another.
    let n_cells = matrices.iter().map(Vec::len).max();
    for i in 0..n_cells.unwrap_or_default() {
        let cells = matrices.iter().filter_map(|cells| cells.get(i));
        merged.matrix.extend(cells.cloned());
    }
    merged.verdict = Verdict::of(merged.failed.is_empty());
    Some(merged)
}

/// Returns the number of failed checks of the files, which come first and are those of every part.
fn n_of_files(report: &VerifyReport) -> usize {
    let is_of_files = |failed: &&FailedCheck| failed.check == Check::Fit;
    report.failed.iter().take_while(is_of_files).count()
}

/// Adds failed checks; the target fails on every machine alike, and is reported once.
fn add(all: &mut Vec<FailedCheck>, failed: Vec<FailedCheck>) {
    for failed in failed {
        if !all.contains(&failed) {
            all.push(failed);
        }
    }
}
