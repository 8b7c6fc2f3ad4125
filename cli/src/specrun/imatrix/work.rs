//! An importance matrix that several machines collect: each evaluates some groups of chunks.

use std::path::PathBuf;

use anyhow::ensure;
use schemas::gguf::{self, Plan};
use schemas::report::{Verdict, WorkContent, WorkKind};
use verify::imatrix::{collect_groups, groups, join_groups, n_chunks};

use super::{Args, Opened, finish, merged};
use crate::hint::Hinted;
use crate::specrun::device::on_device;
use crate::work::{Description, Divisible, FinishedPart, Measurement, Work, share};

impl Divisible for Args {
    fn kind(&self) -> WorkKind {
        WorkKind::Imatrix
    }

    fn open(&self) -> anyhow::Result<Box<dyn Work + '_>> {
        if self.file.is_empty() {
            let hint = "give one: -f TEXT.txt";
            return Err(Hinted::new("no text was given", hint).into());
        }
        for (flag, is_set) in [
            ("--resume", self.resume),
            ("--save-frequency", self.save_frequency > 0),
            ("--show-statistics", self.show_statistics),
        ] {
            ensure!(
                !is_set,
                "{flag}: not for a command that is divided among machines"
            );
        }
        let opened = Opened::new(self)?;
        Ok(Box::new(ImatrixWork { args: self, opened }))
    }
}

struct ImatrixWork<'a> {
    args: &'a Args,
    opened: Opened,
}

impl Work for ImatrixWork<'_> {
    fn describe(&self, n_shards: usize) -> anyhow::Result<Description> {
        let Opened { texts, config, .. } = &self.opened;
        let groups: Vec<_> = groups(n_chunks(texts, config)?).collect();
        let shards = (0..n_shards).map(|shard| {
            let groups = &groups[share(groups.len(), shard, n_shards)];
            let contents = groups.iter().map(|chunks| WorkContent::Chunks {
                first: chunks.start as u64,
                count: chunks.len() as u64,
            });
            contents.collect()
        });
        let mut inputs: Vec<PathBuf> = Vec::new();
        for path in self.args.inputs()? {
            // A split model has several files.
            match self
                .args
                .file
                .iter()
                .chain(&self.args.in_file)
                .any(|text| text == path)
            {
                true => inputs.push(path.to_path_buf()),
                false => inputs.extend(gguf::part_paths(path)?),
            }
        }
        Ok(Description {
            inputs,
            sources: Vec::new(),
            options: format!("{config:?} parse_special: {}", self.args.parse_special),
            outputs: Vec::new(),
            headers: Vec::new(),
            shards: shards.collect(),
        })
    }

    fn parts(&self, contents: &[WorkContent]) -> anyhow::Result<Vec<Plan>> {
        let Opened {
            files,
            texts,
            config,
        } = &self.opened;
        let ranges = contents.iter().map(|content| match content {
            WorkContent::Chunks { first, count } => Ok(*first as usize..(first + count) as usize),
            _ => Err(anyhow::anyhow!(
                "a part of another command, expected chunks"
            )),
        });
        let ranges: Vec<_> = ranges.collect::<anyhow::Result<_>>()?;
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
            return Ok(Vec::new());
        };
        let device = self.args.model.device()?;
        on_device!(&device, backend => {
            collect_groups(backend, files, texts, config, first.start..last.end).map_err(Into::into)
        })
    }
}

impl Measurement for Args {
    fn finish(&self, parts: &[FinishedPart]) -> anyhow::Result<Verdict> {
        let outfile = self.outfile();
        let target = self.claim(&outfile)?;
        let before = merged(self)?;
        let groups = parts.iter().map(|part| (part.path.as_path(), &part.plan));
        let collected = join_groups(&self.file, &self.config(None), groups)?;
        finish(self, &outfile, target, before, Some(collected))
    }
}
