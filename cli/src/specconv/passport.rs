//! The passport of a file, compared with its tensors.

use std::path::Path;

use anyhow::Context;
use schemas::gguf::{self, Plan};
use schemas::passport::{is_present, is_unedited, read, settings_sha256, tensors_sha256};
use schemas::report::{Passport, PassportReport, PassportStatus};

use crate::specrun::page::decimal;

/// Compares the passport of an open model with its keys and, if `hash`, with its tensors. `None` without a
/// passport.
pub(super) fn check(
    plan: &Plan,
    path: &Path,
    hash: bool,
) -> anyhow::Result<Option<PassportReport>> {
    if !is_present(&plan.metadata) {
        return Ok(None);
    }
    let passport = read(&plan.metadata).ok().flatten();
    let status = match &passport {
        Some(passport) if is_unedited(&plan.metadata) => {
            let has_settings = settings_sha256(&plan.metadata) == passport.settings_sha256;
            match (has_settings, hash) {
                (false, _) => PassportStatus::Stale,
                (true, false) => PassportStatus::Unchecked,
                (true, true) => {
                    let found = tensors_sha256(plan, 0, &|| false);
                    let found = found.with_context(|| path.display().to_string())?;
                    match found == passport.tensors_sha256 {
                        true => PassportStatus::Valid,
                        false => PassportStatus::Stale,
                    }
                }
            }
        }
        _ => PassportStatus::Edited,
    };
    Ok(Some(PassportReport { status, passport }))
}

/// Names the draft files beside a model that are not those of its passport. Files that are elsewhere are not found.
pub(super) fn other_drafts(passport: &Passport, path: &Path) -> anyhow::Result<Vec<String>> {
    let mut others = Vec::new();
    for (name, expected) in passport.drafts.iter().zip(&passport.drafts_sha256) {
        let draft = path.with_file_name(name);
        if !draft.is_file() {
            continue;
        }
        let shown = || draft.display().to_string();
        let plan = gguf::open(&draft)?;
        if tensors_sha256(&plan, 0, &|| false).with_context(shown)? != *expected {
            others.push(shown());
        }
    }
    Ok(others)
}

/// Returns what is wrong with a passport, as a sentence.
pub(super) fn problem(status: PassportStatus) -> Option<&'static str> {
    match status {
        PassportStatus::Valid | PassportStatus::Unchecked => None,
        PassportStatus::Stale => {
            Some("passport is stale: tensors or settings differ from those that were verified")
        }
        PassportStatus::Edited => {
            Some("passport was edited after it was written, or keys of it are missing")
        }
    }
}

/// Returns the flags of the verified speculator, as llama-server and specrun accept them.
pub(super) fn flags(passport: &Passport) -> Vec<String> {
    if passport.n_draft == 0 {
        return Vec::new();
    }
    let drafts = passport.drafts.iter();
    let drafts = drafts.flat_map(|name| ["-md".to_owned(), name.clone()]);
    let speculator = passport.speculator.clone();
    let length = passport.n_draft.to_string();
    let own = [
        "--spec-type".to_owned(),
        speculator,
        "--spec-draft-n-max".to_owned(),
        length,
    ];
    drafts.chain(own).collect()
}

/// Describes a passport in lines of text.
pub(super) fn lines(report: &PassportReport) -> Vec<String> {
    let status = match report.status {
        PassportStatus::Valid => "valid, tensors and settings are those that were verified",
        PassportStatus::Stale => "STALE, tensors or settings differ from those that were verified",
        PassportStatus::Edited => "EDITED after it was written",
        PassportStatus::Unchecked => "not compared with the tensors",
    };
    let mut lines = vec![status.to_owned()];
    let Some(p) = &report.passport else {
        return lines;
    };
    let exact = match p.exact {
        true => "identical",
        false => "NOT identical",
    };
    lines.push(format!("{}: {} prompts {exact}", p.speculator, p.n_prompts));
    if p.n_draft > 0 {
        let rates: Vec<String> = p.acceptance.iter().map(|&a| decimal(a.into(), 2)).collect();
        lines.push(format!(
            "draft length {}, acceptance by position {}{}",
            p.n_draft,
            rates.join(" "),
            p.speedup.map_or(String::new(), |s| format!(
                ", speedup {}",
                decimal(s.into(), 2)
            ))
        ));
    }
    lines.push(format!("{}, {}, {}", p.date, p.cpu, p.backend));
    lines
}
