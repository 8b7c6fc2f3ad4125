//! `specconv plan`, `run` and `finish`: one command on many machines. The plan is a file, and so are the parts: no
//! program has to run besides the shards.

mod finish;
mod inputs;
pub(super) mod models;
mod part;
mod plan;
mod run;

pub(super) use finish::{Args as FinishArgs, run as finish};
pub(super) use plan::{Args as PlanArgs, run as plan};
pub(super) use run::{Args as RunArgs, run};

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Subcommand;
use schemas::report::{WorkParts, WorkPlan};
use schemas::{input, outfile};
use sha2::{Digest, Sha256};

use super::{Cli, Command, convert, quantize};
use crate::hint::Hinted;
use crate::specrun::{imatrix, kld, verify};
use crate::work::{Divisible, Measurement};

/// The program of a plan: all shards need the same version.
const PROGRAM: &str = concat!("specconv ", env!("CARGO_PKG_VERSION"));

/// A command that can be planned.
#[derive(Debug, Subcommand)]
pub(super) enum Planned {
    /// Plan the conversion of an HF checkpoint to GGUF
    #[command(mut_arg("outfile", |arg| arg.short(None::<char>)))]
    Convert(Box<convert::Args>),
    /// Plan the quantization of a model
    Quantize(Box<quantize::Args>),
    /// Plan the collection of an importance matrix (specrun imatrix)
    #[command(mut_arg("outfile", |arg| arg.short(None::<char>)))]
    Imatrix(Box<imatrix::Args>),
    /// Plan the divergence of quantized models from their base (specrun kld)
    Kld(Box<kld::Args>),
    /// Plan a verification (specrun verify)
    Verify(Box<verify::Args>),
}

impl Planned {
    fn divisible(&self) -> &dyn Divisible {
        match self {
            Planned::Convert(args) => &**args,
            Planned::Quantize(args) => &**args,
            Planned::Imatrix(args) => &**args,
            Planned::Kld(args) => &**args,
            Planned::Verify(args) => &**args,
        }
    }

    /// Returns the measurement; `None` for a command that writes models.
    fn measurement(&self) -> Option<&dyn Measurement> {
        match self {
            Planned::Convert(_) | Planned::Quantize(_) => None,
            Planned::Imatrix(args) => Some(&**args),
            Planned::Kld(args) => Some(&**args),
            Planned::Verify(args) => Some(&**args),
        }
    }
}

/// A plan that was read.
struct ReadPlan {
    path: PathBuf,
    plan: WorkPlan,
    /// SHA-256 of the file in hexadecimal.
    sha256: String,
    command: Planned,
    /// True if a flag chose the form of parts.
    has_form: bool,
}

impl ReadPlan {
    /// Reads a plan and parses its command.
    fn open(path: &Path) -> anyhow::Result<ReadPlan> {
        let shown = path.display();
        let bytes = input::read(path, input::Kind::File, input::MAX_LIST);
        let bytes = bytes.with_context(|| shown.to_string())?;
        let plan: WorkPlan =
            serde_json::from_slice(&bytes).with_context(|| format!("{shown}: not a plan"))?;
        if plan.program != PROGRAM {
            let message = format!("{shown}: made by {}, this is {PROGRAM}", plan.program);
            let hint = "all machines need the version that made the plan";
            return Err(Hinted::new(message, hint).into());
        }
        let words = std::iter::once("specconv").chain(plan.command.iter().map(String::as_str));
        let parsed = Cli::parse_words(words.map(OsString::from))
            .map_err(|error| crate::flags::describe(&error).0);
        let parsed = parsed.map_err(|error| anyhow::anyhow!("{shown}: {error}"))?;
        let Command::Plan(args) = parsed.command else {
            bail!("{shown}: its command is not a plan");
        };
        let has_form = args.parts.is_some();
        let command = args.command;
        ensure!(
            command.divisible().kind() == plan.kind,
            "{shown}: a plan of {}, expected {} as in its command",
            plan.kind.name(),
            command.divisible().kind().name()
        );
        let numbers = plan.shards.iter().map(|shard| shard.shard);
        ensure!(
            !plan.shards.is_empty() && numbers.eq(0..plan.shards.len() as u32),
            "{shown}: shards are not numbered from 0"
        );
        let names = plan.shards.iter().flat_map(|shard| &shard.files);
        for file in names {
            let is_plain = !file.name.starts_with('.') && !file.name.contains('/');
            ensure!(
                is_plain,
                "{shown}: {:?} is not the name of a part",
                file.name
            );
        }
        Ok(ReadPlan {
            path: path.to_path_buf(),
            plan,
            sha256: sha256(&bytes),
            command,
            has_form,
        })
    }

    /// Returns the folder of the parts.
    fn folder(&self) -> PathBuf {
        parts_folder(&self.path)
    }

    /// Returns the path of a file of a shard. The name of a shared file depends on the plan, so that shards of another
    /// plan do not write it.
    fn file_path(&self, name: &str) -> PathBuf {
        let path = self.folder().join(name);
        match self.plan.parts {
            WorkParts::Separate => path,
            WorkParts::Shared => outfile::beside(&path, &self.sha256[..16]),
        }
    }
}

/// Returns the folder of the parts of a plan, beside it.
fn parts_folder(plan: &Path) -> PathBuf {
    let mut name = plan.file_name().unwrap_or_default().to_owned();
    name.push(".parts");
    plan.with_file_name(name)
}

fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
