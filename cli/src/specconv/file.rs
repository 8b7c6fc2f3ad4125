//! What the commands share: opening an input, writing an output, describing a file.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use convert::{ConvertConfig, MtpMode, OutType};
use schemas::gguf::{self, Output, Plan, Tensor, WriteConfig};
use schemas::report::{FileReport, TypeShare};

use crate::output::{self, Format};

/// Flags of every command that writes files.
#[derive(Debug, clap::Args)]
pub(super) struct WriteArgs {
    /// Threads; 0 for one a core. The result does not depend on it
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) threads: usize,
    /// Say what would be written, to the byte, and write nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl WriteArgs {
    pub(super) fn format(&self) -> Format {
        Format::of(self.json)
    }

    /// Writes files that were made from `inputs`, all or none, and describes them.
    pub(super) fn write<const N: usize>(
        &self,
        outputs: [Output<'_>; N],
        inputs: &Inputs,
    ) -> anyhow::Result<[FileReport; N]> {
        for output in &outputs {
            inputs.check_output(output.path)?;
        }
        if self.dry_run {
            let layouts = gguf::layouts(&outputs)?;
            return Ok(std::array::from_fn(|i| {
                describe(&outputs[i], layouts[i].size_bytes)
            }));
        }
        write(outputs, self.threads)
    }
}

/// Writes files with a progress bar, all or none, and describes them.
pub(super) fn write<const N: usize>(
    outputs: [Output<'_>; N],
    threads: usize,
) -> anyhow::Result<[FileReport; N]> {
    let names = outputs.map(|output| output.path.display().to_string());
    let n_bytes = outputs.iter().map(|output| output.plan.data_bytes()).sum();
    let bar = output::progress(&names.join(", "), n_bytes);
    let config = WriteConfig {
        threads,
        progress: &|n| bar.inc(n),
        ..WriteConfig::new()
    };
    let written = gguf::write(&outputs, &config);
    bar.finish_and_clear();
    let size_bytes = written?.size_bytes;
    Ok(std::array::from_fn(|i| {
        describe(&outputs[i], size_bytes[i])
    }))
}

fn describe(output: &Output<'_>, size_bytes: u64) -> FileReport {
    let Output { plan, path } = output;
    FileReport {
        path: path.display().to_string(),
        size_bytes,
        n_tensors: plan.tensors.len() as u64,
        types: type_shares(&plan.tensors),
    }
}

/// Tensors by element type, the largest share of bytes first.
pub(super) fn type_shares(tensors: &[Tensor]) -> Vec<TypeShare> {
    let mut shares: Vec<TypeShare> = Vec::new();
    for tensor in tensors {
        let dtype = tensor.dtype.to_string();
        let i = match shares.iter().position(|share| share.dtype == dtype) {
            Some(i) => i,
            None => {
                shares.push(TypeShare {
                    dtype,
                    n_tensors: 0,
                    n_elements: 0,
                    size_bytes: 0,
                });
                shares.len() - 1
            }
        };
        let share = &mut shares[i];
        share.n_tensors += 1;
        share.n_elements = share.n_elements.saturating_add(tensor.n_elements());
        share.size_bytes += tensor.size_bytes;
    }
    shares.sort_by_key(|share| std::cmp::Reverse(share.size_bytes));
    shares
}

/// The files that a command reads, which it must not replace.
#[derive(Default)]
pub(super) struct Inputs {
    files: Vec<PathBuf>,
}

impl Inputs {
    /// Opens a GGUF file, or plans the conversion of a checkpoint folder: either is a model.
    pub(super) fn open(
        &mut self,
        path: &Path,
        outtype: OutType,
        mtp: MtpMode,
    ) -> anyhow::Result<Plan> {
        if path.is_dir() {
            return self.open_checkpoint(path, outtype, mtp).map(|c| c.plan);
        }
        let plan = gguf::open(path)?;
        self.files.push(path.to_path_buf());
        let parts = plan.tensors.iter().filter_map(|t| t.source.origin());
        self.files.extend(parts.map(|part| part.path.to_path_buf()));
        self.files.dedup();
        Ok(plan)
    }

    /// Plans the conversion of a checkpoint folder, and tells the notes.
    pub(super) fn open_checkpoint(
        &mut self,
        path: &Path,
        outtype: OutType,
        mtp: MtpMode,
    ) -> anyhow::Result<convert::Converted> {
        let converted = convert::plan(&ConvertConfig {
            checkpoint: path.to_path_buf(),
            outtype,
            mtp,
        })?;
        for note in &converted.notes {
            output::note(note);
        }
        let files = fs::read_dir(path).with_context(|| path.display().to_string())?;
        let files = files.filter_map(|entry| Some(entry.ok()?.path()));
        self.files
            .extend(files.filter(|file| file.extension().is_none_or(|e| e != "gguf")));
        Ok(converted)
    }

    /// Counts a file that is read apart from the model.
    pub(super) fn add(&mut self, path: &Path) {
        self.files.push(path.to_path_buf());
    }

    /// Refuses an output that is no place for a file, or one of the inputs under whatever name:
    /// to replace what is being read would leave nothing to go back to.
    pub(super) fn check_output(&self, output: &Path) -> anyhow::Result<()> {
        let Ok(real) = fs::canonicalize(output) else {
            // Nothing there yet.
            return Ok(());
        };
        // A finished file takes the place of what has its name, be it a device.
        ensure!(
            real.is_file(),
            "{}: is no regular file, expected the name of a file",
            output.display()
        );
        let is_real = |input: &PathBuf| fs::canonicalize(input).is_ok_and(|input| input == real);
        ensure!(
            !self.files.iter().any(is_real),
            "{}: is an input too, expected another file",
            output.display()
        );
        Ok(())
    }
}

/// One line about a file that was written.
pub(super) struct Written<'a> {
    pub(super) file: &'a FileReport,
    pub(super) written: bool,
}

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileReport {
            path,
            size_bytes,
            n_tensors,
            types,
        } = self.file;
        let types: Vec<String> = types
            .iter()
            .map(|share| format!("{} {}", share.n_tensors, share.dtype))
            .collect();
        let verb = match self.written {
            true => "wrote",
            false => "would write",
        };
        let size = output::bytes(*size_bytes);
        let types = types.join(", ");
        write!(f, "{verb} {path}: {size}, {n_tensors} tensors ({types})")
    }
}
