//! `specrun verify --stamp`: writes the result into the keys of the model.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use schemas::gguf::{self, Plan};
use schemas::passport::{self, settings_sha256, tensors_sha256};
use schemas::report::{Passport, Verdict, VerifyReport};
use verify::best_draft::{best_length, best_speculator};
use verify::{Stage, VerifyConfig};

use crate::specconv::set_metadata::set_keys;
use crate::{hub_config, output};

/// The files that are verified, as they were before.
pub(super) struct Stamp {
    model: Plan,
    drafts: Vec<Plan>,
}

impl Stamp {
    /// Opens the files of a verification; a later change of them is found.
    ///
    /// # Errors
    /// The checks would prove nothing, or the file must not be changed.
    pub(super) fn new(config: &VerifyConfig) -> anyhow::Result<Stamp> {
        ensure!(
            config.stages.contains(&Stage::Identity),
            "--stamp without the check identity would prove nothing, expected --check with identity"
        );
        let model = &config.model;
        if is_cached(model) {
            bail!(
                "{}: is in the cache of the Hub, which must hold the files of the Hub; copy it, and stamp the copy",
                model.display()
            );
        }
        let drafts = config.drafts.models.iter().map(|path| gguf::open(path));
        Ok(Stamp {
            model: gguf::open(model)?,
            drafts: drafts.collect::<Result<_, _>>()?,
        })
    }

    /// Writes the passport of a model that passed; nothing if it failed.
    pub(super) fn write(&self, config: &VerifyConfig, report: &VerifyReport) -> anyhow::Result<()> {
        let path = &config.model;
        if report.verdict == Verdict::Fail {
            output::note(&format_args!(
                "{}: not stamped, checks failed",
                path.display()
            ));
            return Ok(());
        }
        let passport = self.passport(config, report)?;
        set_keys(path, |metadata| passport::write(&passport, metadata))
    }

    fn passport(&self, config: &VerifyConfig, report: &VerifyReport) -> anyhow::Result<Passport> {
        let hash = |plan: &Plan, path: &Path| {
            let hash = tensors_sha256(plan, 0, &|| false);
            hash.with_context(|| path.display().to_string())
        };
        let draft_paths = &config.drafts.models;
        let hashes = self.drafts.iter().zip(draft_paths);
        let name = |path: &Path| {
            path.file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        };
        let best = best_speculator(report);
        let acceptance = best.map_or(&[][..], |best| &best.counters.by_draft_position);
        let provenance = report
            .provenance
            .as_ref()
            .context("a report without its origin")?;
        Ok(Passport {
            tool_version: format!("{} ({})", provenance.tool_version, provenance.tool_commit),
            date: provenance.date.clone(),
            tensors_sha256: hash(&self.model, &config.model)?,
            settings_sha256: settings_sha256(&self.model.metadata),
            speculator: best.map_or("none", |best| &best.name).to_owned(),
            drafts: draft_paths.iter().map(|path| name(path)).collect(),
            drafts_sha256: hashes
                .map(|(plan, path)| hash(plan, path))
                .collect::<anyhow::Result<_>>()?,
            n_draft: best.map_or(0, |best| best_length(report, best)),
            exact: report
                .runs
                .iter()
                .all(|run| run.tokens_identical && run.logits_identical),
            n_prompts: config.prompts.len() as u32,
            prompts_sha256: provenance.prompts_sha256.clone().unwrap_or_default(),
            acceptance: acceptance
                .iter()
                .map(|position| position.acceptance.unwrap_or_default() as f32)
                .collect(),
            pass_cost: report
                .widths
                .iter()
                .map(|width| width.ratio as f32)
                .collect(),
            speedup: best
                .and_then(|best| best.speedup)
                .map(|speedup| speedup as f32),
            backend: report.backend.clone(),
            cpu: provenance.cpu.name.clone(),
        })
    }
}

/// Checks whether a file is in the cache of the Hub.
fn is_cached(path: &Path) -> bool {
    let cache = hub_config::from_environment().and_then(|hub| Ok(hub.cache.canonicalize()?));
    let found = std::path::absolute(path);
    let real = path.canonicalize();
    cache.is_ok_and(|cache| {
        [found, real]
            .into_iter()
            .any(|path| path.is_ok_and(|path| path.starts_with(&cache)))
    })
}
