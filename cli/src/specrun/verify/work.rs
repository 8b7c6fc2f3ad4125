//! A verification that several machines make: one checks the target, the others a speculator each.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use schemas::gguf::{self, Metadata, Plan};
use schemas::report::{Verdict, VerifyReport, WorkContent, WorkKind};
use verify::VerifyConfig;
use verify::checks::{merge, units};

use super::{Args, Stamp, finish, lines, verify_on};
use crate::work::{Description, Divisible, FinishedPart, Measurement, Work, share};

const GENERAL_TYPE: &str = "general.type";
const TYPE: &str = "verify-report";
const REPORT: &str = "verify.report";

impl Args {
    /// Returns the configuration of a verification that can be divided.
    fn divided(&self) -> anyhow::Result<VerifyConfig> {
        for (flag, is_set) in [
            ("--url", self.server.url.is_some()),
            ("--baseline", self.baseline.is_some()),
        ] {
            ensure!(
                !is_set,
                "{flag}: not for a command that is divided among machines"
            );
        }
        self.config(lines(self)?)
    }
}

impl Divisible for Args {
    fn kind(&self) -> WorkKind {
        WorkKind::Verify
    }

    fn open(&self) -> anyhow::Result<Box<dyn Work + '_>> {
        let config = self.divided()?;
        Ok(Box::new(VerifyWork { args: self, config }))
    }
}

struct VerifyWork<'a> {
    args: &'a Args,
    config: VerifyConfig,
}

impl Work for VerifyWork<'_> {
    fn describe(&self, n_shards: usize) -> anyhow::Result<Description> {
        let config = &self.config;
        let units = units(config)?;
        let shards = (0..n_shards).map(|shard| {
            let contents = share(units.len(), shard, n_shards).map(|unit| WorkContent::Checks {
                unit: unit as u32,
                name: units[unit].clone(),
            });
            contents.collect()
        });
        let mut inputs: Vec<PathBuf> = gguf::part_paths(&config.model)?;
        for path in self.args.inputs(config).into_iter().skip(1) {
            inputs.push(path.to_path_buf());
        }
        Ok(Description {
            inputs,
            sources: Vec::new(),
            options: format!(
                "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
                config.options,
                config.matrix,
                config.invariance,
                config.stages,
                config.surface,
                config.min_accept,
                config.min_drafted,
                config.min_speedup,
                config
                    .prompts
                    .iter()
                    .map(|prompt| prompt.n_predict)
                    .collect::<Vec<_>>(),
            ),
            outputs: Vec::new(),
            headers: Vec::new(),
            shards: shards.collect(),
        })
    }

    fn parts(&self, contents: &[WorkContent]) -> anyhow::Result<Vec<Plan>> {
        let mut plans = Vec::new();
        for content in contents {
            let WorkContent::Checks { unit, .. } = content else {
                anyhow::bail!("a part of another command, expected checks");
            };
            let config = VerifyConfig {
                unit: Some(*unit as usize),
                ..self.args.divided()?
            };
            let report = verify_on(self.args.model.device_config()?, &config)?;
            let mut metadata = Metadata::new();
            metadata.set(GENERAL_TYPE, TYPE);
            metadata.set(REPORT, serde_json::to_string(&report)?);
            plans.push(Plan::new(metadata));
        }
        Ok(plans)
    }
}

impl Measurement for Args {
    fn finish(&self, parts: &[FinishedPart]) -> anyhow::Result<Verdict> {
        let config = self.divided()?;
        let pages = self.pages(&config)?;
        let stamp = self.stamp.then(|| Stamp::new(&config)).transpose()?;
        let reports = parts.iter().map(|part| {
            let shown = || part.path.display().to_string();
            let json = part.plan.metadata.need_str(REPORT).with_context(shown)?;
            serde_json::from_str::<VerifyReport>(json).with_context(shown)
        });
        let reports: Vec<VerifyReport> = reports.collect::<anyhow::Result<_>>()?;
        let report = merge(reports).context("no shard checked anything")?;
        finish(self, &config, pages, stamp, report)
    }
}
