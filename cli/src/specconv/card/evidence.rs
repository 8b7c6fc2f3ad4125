//! Reports of other commands, matched with the files of a folder.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use schemas::input;
use schemas::report::{
    CardDraft, ConvertReport, FileReport, KldReport, Outcome, Provenance, QuantizeReport,
    VerifyReport,
};
use serde_json::Value;
use verify::best_draft::best_speculator;

use super::folder::Folder;

/// A report of one command.
enum Report {
    Convert(ConvertReport),
    Quantize(QuantizeReport),
    Kld(KldReport),
    Verify(Box<VerifyReport>),
}

/// A divergence that was measured on a file of the folder.
pub(super) struct Divergence {
    /// Name of the base.
    pub(super) base: String,
    /// Name of the text; `None` if it is unknown.
    pub(super) text: Option<String>,
    pub(super) n_scored: usize,
    pub(super) n_chunks: usize,
    pub(super) n_ctx: usize,
    /// Names of the measured files.
    pub(super) files: Vec<String>,
}

/// Facts from reports.
pub(super) struct Evidence {
    reports: Vec<(PathBuf, Report)>,
    /// Repository of the converted checkpoint.
    pub(super) source: Option<String>,
    /// Measured divergences.
    pub(super) divergences: Vec<Divergence>,
    /// Reports and results that are not used, one sentence each.
    pub(super) notes: Vec<String>,
}

impl Evidence {
    /// Reads reports.
    pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Evidence> {
        let mut reports = Vec::new();
        for path in paths {
            let text = input::read_text(path, input::Kind::Stream, input::MAX_WHOLE);
            let text = text.with_context(|| path.display().to_string())?;
            let value: Value = serde_json::from_str(&text)
                .with_context(|| format!("{}: not JSON, expected a report", path.display()))?;
            let values = match value {
                Value::Array(values) => values,
                value => vec![value],
            };
            for value in values {
                let report = parse(value).with_context(|| path.display().to_string())?;
                reports.push((path.clone(), report));
            }
        }
        Ok(Evidence {
            reports,
            source: None,
            divergences: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// Adds the measured numbers to the files that they were measured on.
    pub(super) fn apply(&mut self, folder: &mut Folder) -> anyhow::Result<()> {
        for (path, report) in std::mem::take(&mut self.reports) {
            let is_used = match &report {
                Report::Convert(report) => {
                    let repository = report.source.as_ref().map(|source| &source.repository);
                    self.source = self.source.take().or_else(|| repository.cloned());
                    written(folder, &path, &report.output)? || repository.is_some()
                }
                Report::Quantize(report) => written(folder, &path, &report.output)?,
                Report::Kld(report) => self.add_divergence(folder, &path, report)?,
                Report::Verify(report) => self.add_verified(folder, &path, report)?,
            };
            if !is_used {
                let path = path.display();
                self.notes
                    .push(format!("{path}: about no file of the folder, not used"));
            }
        }
        Ok(())
    }

    fn add_divergence(
        &mut self,
        folder: &mut Folder,
        path: &Path,
        report: &KldReport,
    ) -> anyhow::Result<bool> {
        let mut files = Vec::new();
        for measured in &report.models {
            let sha256 = hash_of(path, report.provenance.as_ref(), &measured.model)?;
            let Some(model) = folder.find(path, &measured.model, &sha256)? else {
                continue;
            };
            ensure!(
                model.card.kld.is_none(),
                "{}: a second divergence of {}, expected one report for each file",
                path.display(),
                model.card.name
            );
            model.card.kld = Some(measured.kld.mean);
            model.card.same_top = Some(measured.same_top);
            model.card.perplexity_ratio = Some(measured.perplexity_ratio);
            files.push(model.card.name.clone());
        }
        let is_used = !files.is_empty();
        if is_used {
            self.divergences.push(Divergence {
                base: file_name(&report.base),
                text: report.text.as_deref().map(file_name),
                n_scored: report.n_scored,
                n_chunks: report.n_chunks,
                n_ctx: report.n_ctx,
                files,
            });
        }
        Ok(is_used)
    }

    fn add_verified(
        &mut self,
        folder: &mut Folder,
        path: &Path,
        report: &VerifyReport,
    ) -> anyhow::Result<bool> {
        let sha256 = hash_of(path, report.provenance.as_ref(), &report.model)?;
        let Some(model) = folder.find(path, &report.model, &sha256)? else {
            return Ok(false);
        };
        let name = &model.card.name;
        let failed = report.speculators.iter();
        for failed in failed.filter(|speculator| speculator.verdict == Outcome::Fail) {
            self.notes.push(format!(
                "{}: {} failed with {name}, its numbers are left out",
                path.display(),
                failed.name
            ));
        }
        let Some(best) = best_speculator(report) else {
            return Ok(true);
        };
        if best.speedup.is_some_and(|speedup| speedup < 1.0) {
            self.notes.push(format!(
                "{}: no speculator made {name} faster, its command has no draft flags",
                path.display()
            ));
            return Ok(true);
        }
        let files = report.draft.iter().flat_map(|draft| draft.split(", "));
        model.card.draft = Some(CardDraft {
            speculator: best.name.clone(),
            files: files.map(file_name).collect(),
            n_draft_max: report.n_draft_max,
            acceptance: best.counters.acceptance,
            tokens_per_target_pass: best.counters.tokens_per_target_pass,
            speedup: best.speedup,
        });
        Ok(true)
    }
}

/// Checks that a written file is still the one in the folder; returns false if the folder does not have it.
fn written(folder: &mut Folder, path: &Path, output: &FileReport) -> anyhow::Result<bool> {
    let Some(sha256) = output.sha256.first() else {
        bail!(
            "{}: no hash of {}, expected the report of a run without --dry-run",
            path.display(),
            output.path
        );
    };
    let first = output.parts.first().unwrap_or(&output.path);
    Ok(folder.find(path, first, sha256)?.is_some())
}

/// Returns the hash that a report states for a model.
fn hash_of(path: &Path, provenance: Option<&Provenance>, model: &str) -> anyhow::Result<String> {
    let name = file_name(model);
    let files = provenance
        .into_iter()
        .flat_map(|provenance| &provenance.files);
    let mut named = files.filter(|file| file.name == name);
    let found = named.next().with_context(|| {
        format!(
            "{}: no hash of {name}, expected a report that was written with --json",
            path.display()
        )
    })?;
    ensure!(
        named.all(|other| other.sha256 == found.sha256),
        "{}: several files are named {name}, expected different names",
        path.display()
    );
    Ok(found.sha256.clone())
}

/// Reads a report; each command's has a key that no other has.
fn parse(value: Value) -> anyhow::Result<Report> {
    let has = |key: &str| value.get(key).is_some();
    Ok(if has("base_perplexity") {
        Report::Kld(serde_json::from_value(value)?)
    } else if has("speculators") {
        Report::Verify(Box::new(serde_json::from_value(value)?))
    } else if has("ftype") {
        Report::Quantize(serde_json::from_value(value)?)
    } else if has("outtype") {
        Report::Convert(serde_json::from_value(value)?)
    } else {
        bail!("not a report of convert, quantize, kld or verify");
    })
}

/// Returns the name of a file without its folder.
fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}
