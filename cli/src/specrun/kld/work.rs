//! A comparison that several machines make: each scores some chunks of the text.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use schemas::gguf::{self, Plan};
use schemas::report::{Verdict, WorkContent, WorkKind};
use verify::divergence::{Scores, n_chunks, score};

use super::{Args, Opened, finish};
use crate::specrun::device::on_device;
use crate::work::{Description, Divisible, FinishedPart, Measurement, Work, share};

impl Divisible for Args {
    fn kind(&self) -> WorkKind {
        WorkKind::Kld
    }

    fn open(&self) -> anyhow::Result<Box<dyn Work + '_>> {
        ensure!(
            self.save_logits.is_none(),
            "--save-logits: not for a command that is divided among machines"
        );
        let opened = Opened::new(self)?;
        Ok(Box::new(KldWork { args: self, opened }))
    }
}

struct KldWork<'a> {
    args: &'a Args,
    opened: Opened,
}

impl Work for KldWork<'_> {
    fn describe(&self, n_shards: usize) -> anyhow::Result<Description> {
        let Opened { text, config, .. } = &self.opened;
        let n_chunks = n_chunks(text, config)?;
        let shards = (0..n_shards).map(|shard| {
            let chunks = share(n_chunks, shard, n_shards);
            let content = (!chunks.is_empty()).then_some(WorkContent::Chunks {
                first: chunks.start as u64,
                count: chunks.len() as u64,
            });
            content.into_iter().collect()
        });
        let mut inputs: Vec<PathBuf> = Vec::new();
        for model in &self.args.models {
            inputs.extend(gguf::part_paths(model)?);
        }
        inputs.extend(self.args.base_logits.iter().chain(&self.args.file).cloned());
        Ok(Description {
            inputs,
            sources: Vec::new(),
            options: format!("{config:?} {:?}", self.args.special),
            outputs: Vec::new(),
            headers: Vec::new(),
            shards: shards.collect(),
        })
    }

    fn parts(&self, contents: &[WorkContent]) -> anyhow::Result<Vec<Plan>> {
        let Opened { text, config, .. } = &self.opened;
        let device = self.args.machine.device(&self.args.models[0])?;
        let mut plans = Vec::new();
        for content in contents {
            let WorkContent::Chunks { first, count } = content else {
                anyhow::bail!("a part of another command, expected chunks");
            };
            let range = *first as usize..(first + count) as usize;
            let (base, compared) = self.opened.models()?;
            let scores: Scores = on_device!(&device, backend => {
                score(backend, base, compared, text, config, range).map_err(Into::into)
            })?;
            plans.push(scores.plan());
        }
        Ok(plans)
    }
}

impl Measurement for Args {
    fn finish(&self, parts: &[FinishedPart]) -> anyhow::Result<Verdict> {
        let pages = self.pages()?;
        let read = |part: &FinishedPart| Scores::of(&part.plan, &part.path);
        let (first, others) = parts.split_first().context("no shard scored a chunk")?;
        let mut scores = read(first)?;
        for part in others {
            let is_same = scores.append(read(part)?);
            ensure!(is_same, "{}: scores of other models", part.path.display());
        }
        finish(self, pages, scores.report())
    }
}
