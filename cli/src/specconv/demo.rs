//! `specconv demo`: runs the whole pipeline on the bundled models and checks every stage.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use convert::{ConvertConfig, MtpMode, OutType};
use graft::GraftConfig;
use kernels::cpu::CpuConfig;
use quantize::{FType, QuantizeConfig};
use runner::cache::CacheTypes;
use runner::model_files::{DraftFiles, ModelFile};
use runner::run_config::RunCaches;
use runner::sample::SampleConfig;
use runner::speculate::{DraftConfig, Policy, SpecType};
use schemas::gguf::{self, Plan};
use schemas::outfile::Existing;
use schemas::report::{self, DemoReport, FileReport, SCHEMA_VERSION, Stage, Verdict, VerifyReport};
use verify::checks::InvarianceConfig;
use verify::{DecodeOptions, VerifyConfig, logits};

use super::bundled;
use super::check::check;
use super::write::{Model, write};
use crate::embedded;
use crate::interrupt;
use crate::output::{self, Format, is_verbose};
use crate::report_file::OverwriteArgs;
use crate::specrun::device::DeviceConfig;
use crate::specrun::generate::N_PREDICT;
use crate::specrun::page::number;
use crate::specrun::verify::{built_in_prompts, verdict, verify_on};

/// Run the whole pipeline on the bundled models
///
/// Converts a checkpoint with an MTP head, a draft model, an EAGLE-3 draft and a DFlash draft, splits
/// off the head, quantizes the body, grafts the head back, loads the result, decodes with each
/// speculator, and verifies that text and logits are identical to those of plain decoding.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folder for the files, created if it does not exist
    ///
    /// [default: a temporary folder, removed at the end]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// Number of threads; 0 for one per core
    ///
    /// The result does not depend on it
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The bundled target's checkpoint.
const TARGET: &str = "tiny-qwen35-mtp";
/// Maximum draft length: llama.cpp's default, which the figures in models/README.md refer to.
const N_DRAFT_MAX: usize = 3;

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let temporary;
    let folder = match &args.keep {
        Some(folder) => {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            folder.as_path()
        }
        None => {
            temporary = tempfile::tempdir().context("temporary folder")?;
            temporary.path()
        }
    };
    let mut demo = Demo {
        folder,
        threads: args.threads,
        existing: args.overwrite.existing(),
        stages: Vec::new(),
    };
    let verify = demo.run()?;
    let all_pass = demo.stages.iter().all(|s| s.verdict == Verdict::Pass);
    let report = DemoReport {
        schema_version: SCHEMA_VERSION,
        folder: args.keep.as_ref().map(|f| f.display().to_string()),
        stages: demo.stages,
        verify: Some(verify),
        verdict: Verdict::of(all_pass),
    };
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(report.verdict)
}

/// State of a running pipeline.
struct Demo<'a> {
    folder: &'a Path,
    threads: usize,
    /// Treatment of files that an earlier run kept.
    existing: Existing,
    stages: Vec<Stage>,
}

/// Result of the check of a stage.
struct Outcome<'a> {
    holds: bool,
    checked: &'a str,
}

impl Demo<'_> {
    fn run(&mut self) -> anyhow::Result<VerifyReport> {
        let start = Instant::now();
        bundled::unpack(self.folder, self.existing)?;
        self.stage(
            "unpack the bundled checkpoints",
            start,
            None,
            Outcome {
                holds: true,
                checked: "files written",
            },
        );
        let target = self.convert(TARGET, None, "target-BF16.gguf")?;
        let draft = self.convert("tiny-draft", None, "draft-BF16.gguf")?;
        let eagle3 = self.convert("tiny-eagle3", Some(TARGET), "eagle3-BF16.gguf")?;
        let dflash = self.convert("tiny-dflash", Some(TARGET), "dflash-BF16.gguf")?;
        let (body, head) = self.split(&target)?;
        let quantized = self.quantize(&body)?;
        let grafted = self.graft(&quantized, &head)?;
        self.load(&grafted)?;
        self.verify(grafted, vec![draft, eagle3, dflash])
    }

    /// Records a finished stage. `size_bytes` is the size of the file it wrote, if any.
    fn stage(&mut self, name: &str, start: Instant, size_bytes: Option<u64>, outcome: Outcome<'_>) {
        self.stages.push(Stage {
            name: name.to_owned(),
            elapsed_ms: start.elapsed().as_secs_f64() * 1e3,
            size_bytes,
            acceptance: None,
            verdict: Verdict::of(outcome.holds),
            checked: outcome.checked.to_owned(),
        });
    }

    fn write(&self, plan: &Plan, name: &str) -> anyhow::Result<(PathBuf, FileReport)> {
        let path = self.folder.join(name);
        let [file] = write(
            &[Model::one(plan.clone(), &path)],
            self.threads,
            self.existing,
        )?;
        Ok((path, file))
    }

    fn convert(
        &mut self,
        checkpoint: &str,
        target: Option<&str>,
        name: &str,
    ) -> anyhow::Result<PathBuf> {
        let start = Instant::now();
        let config = ConvertConfig {
            checkpoint: self.folder.join(checkpoint),
            remote: None,
            outtype: OutType::BF16,
            mtp: MtpMode::Inline,
            clusters: true,
            tokenizer_from: None,
            target: target.map(|target| self.folder.join(target)),
        };
        let (path, file) = self.write(&convert::plan(&config)?.plan, name)?;
        let outcome = tensors_match(&path)?;
        let name = format!("convert {checkpoint} to BF16");
        self.stage(&name, start, Some(file.size_bytes), outcome);
        Ok(path)
    }

    fn split(&mut self, target: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
        let start = Instant::now();
        let split = graft::split_mtp(&gguf::open(target)?)?;
        let [body, head] = ["body-BF16.gguf", "mtp-BF16.gguf"].map(|name| self.folder.join(name));
        let files = [(split.body, &body), (split.mtp, &head)];
        let files = files.map(|(plan, path)| Model::one(plan, path));
        let [body_file, head_file] = write(&files, self.threads, self.existing)?;
        let rejoined = graft::graft_mtp(
            &gguf::open(&body)?,
            &gguf::open(&head)?,
            &GraftConfig::default(),
        )?;
        let (rejoined, _) = self.write(&rejoined, "rejoined-BF16.gguf")?;
        let same = same_bytes(&rejoined, target)?;
        fs::remove_file(&rejoined).with_context(|| rejoined.display().to_string())?;
        let size = body_file.size_bytes + head_file.size_bytes;
        self.stage(
            "split into body and MTP head",
            start,
            Some(size),
            Outcome {
                holds: same,
                checked: "grafting restores the file, byte for byte",
            },
        );
        Ok((body, head))
    }

    fn quantize(&mut self, body: &Path) -> anyhow::Result<PathBuf> {
        let start = Instant::now();
        let config = QuantizeConfig::new(FType::Q4_K_M);
        let quantized = quantize::plan(&gguf::open(body)?, &config)?;
        let (path, file) = self.write(&quantized.plan, "body-Q4_K_M.gguf")?;
        let outcome = tensors_match(&path)?;
        let name = "quantize the body to Q4_K_M";
        self.stage(name, start, Some(file.size_bytes), outcome);
        Ok(path)
    }

    fn graft(&mut self, body: &Path, head: &Path) -> anyhow::Result<PathBuf> {
        let start = Instant::now();
        let grafted = graft::graft_mtp(
            &gguf::open(body)?,
            &gguf::open(head)?,
            &GraftConfig::default(),
        )?;
        let (path, file) = self.write(&grafted, "target-Q4_K_M.gguf")?;
        let outcome = tensors_match(&path)?;
        let name = "graft the BF16 head onto the Q4_K_M body";
        self.stage(name, start, Some(file.size_bytes), outcome);
        Ok(path)
    }

    fn cpu(&self) -> CpuConfig {
        CpuConfig {
            threads: self.threads,
            ..CpuConfig::default()
        }
    }

    fn load(&mut self, model: &Path) -> anyhow::Result<()> {
        interrupt::after_writing()?;
        let start = Instant::now();
        let found = logits::logits(
            &DeviceConfig::cpu(self.cpu()).open_cpu()?,
            &ModelFile::new(model)?,
            [1, 2, 3][..].into(),
            1,
            CacheTypes::default(),
        )?;
        let finite =
            |p: &schemas::report::PositionLogits| p.top.iter().all(|t| t.logit.is_finite());
        self.stage(
            "load it and compute logits",
            start,
            None,
            Outcome {
                holds: found.positions.iter().all(finite),
                checked: "logits are finite",
            },
        );
        Ok(())
    }

    fn verify(&mut self, model: PathBuf, drafts: Vec<PathBuf>) -> anyhow::Result<VerifyReport> {
        let config = VerifyConfig {
            model,
            drafts: DraftFiles {
                models: drafts,
                ..DraftFiles::default()
            },
            spec_types: Some(vec![
                SpecType::DraftMtp,
                SpecType::DraftEagle3,
                SpecType::DraftDflash,
                SpecType::DraftSimple,
                SpecType::NgramSimple,
            ]),
            prompts: built_in_prompts()?,
            n_predict: N_PREDICT,
            options: DecodeOptions {
                drafting: DraftConfig::of_length(N_DRAFT_MAX),
                policy: Policy::First,
                n_parallel: 1,
                n_ctx_max: None,
                sample: SampleConfig::GREEDY,
                caches: RunCaches::default(),
            },
            matrix: None,
            min_accept: None,
            min_drafted: 1,
            min_speedup: None,
            invariance: InvarianceConfig::QUICK,
            unit: None,
            stop: embedded::is_stopped,
            text: None,
            surface: None,
            stages: vec![
                verify::Stage::Preflight,
                verify::Stage::Identity,
                verify::Stage::Acceptance,
                verify::Stage::Invariance,
            ],
            baseline: None,
        };
        let report = verify_on(DeviceConfig::cpu(self.cpu()), &config)?;
        self.add_speculators(&report);
        Ok(report)
    }

    /// Records a stage for each verified speculator.
    fn add_speculators(&mut self, report: &VerifyReport) {
        for speculator in &report.speculators {
            let identical = format!(
                "{} of {} prompts bit-identical to plain decoding",
                speculator.n_identical, speculator.n_prompts
            );
            let floor = speculator.floor.as_ref().map(|floor| {
                format!(
                    ", first draft token {} (floor {:.2})",
                    number(floor.measured, 3),
                    floor.acceptance
                )
            });
            self.stages.push(Stage {
                name: format!("decode with {}", speculator.name),
                elapsed_ms: speculator.counters.decode_ms,
                size_bytes: None,
                acceptance: speculator.counters.acceptance,
                verdict: Verdict::of(speculator.verdict == report::Outcome::Pass),
                checked: identical + &floor.unwrap_or_default(),
            });
        }
    }
}

/// Checks the tensors of a file against its keys.
fn tensors_match(path: &Path) -> anyhow::Result<Outcome<'static>> {
    Ok(Outcome {
        holds: check(&gguf::open(path)?).problems.is_empty(),
        checked: "tensors match the keys",
    })
}

fn same_bytes(a: &Path, b: &Path) -> anyhow::Result<bool> {
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    Ok(read(a)? == read(b)?)
}

/// Returns the name of a stage in the table; a chain has too many speculators to list.
fn title(stage: &Stage) -> &str {
    match stage.name.contains(',') {
        true => "decode with all of them as a chain",
        false => &stage.name,
    }
}

/// Text output of the report.
struct Text<'a>(&'a DemoReport);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.stages.iter().map(|s| title(s).len()).max();
        let width = width.unwrap_or_default();
        write!(
            f,
            "{:<width$}  {:>8}  {:>8}  {:>6}  verdict",
            "stage", "time", "size", "accept"
        )?;
        writeln!(f, "{}", if is_verbose() { "  checked" } else { "" })?;
        for s in &self.0.stages {
            let size = s.size_bytes.map(output::bytes).unwrap_or_default();
            let acceptance = s.acceptance.map(|a| format!("{a:.3}")).unwrap_or_default();
            write!(
                f,
                "{:<width$}  {:>6.2} s  {size:>8}  {acceptance:>6}  {}",
                title(s),
                s.elapsed_ms / 1e3,
                verdict(s.verdict)
            )?;
            match is_verbose() || s.verdict == Verdict::Fail {
                true => writeln!(f, "     {}", s.checked)?,
                false => writeln!(f)?,
            }
        }
        if self.0.verdict == Verdict::Pass && !is_verbose() {
            writeln!(
                f,
                "\nAll files match their keys, and all texts are bit-identical to plain decoding.\n\
                 accept: share of the drafted tokens that were accepted. -v prints every check."
            )?;
        }
        for failed in self.0.verify.iter().flat_map(|v| &v.failed) {
            let subject = failed.speculator.as_deref().unwrap_or("files");
            writeln!(f, "FAILED {subject}: {}", failed.message)?;
        }
        if let Some(folder) = &self.0.folder {
            writeln!(f, "files are in {folder}")?;
        }
        write!(f, "verdict: {}", verdict(self.0.verdict))
    }
}
