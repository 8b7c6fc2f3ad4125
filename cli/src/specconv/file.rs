//! What the commands share: opening an input, writing an output, describing a file.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
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
    /// Most MiB that all buffers may hold together, or one row of a tensor if that is more
    /// [default: 64]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_buffer_size: Option<u32>,
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
        let written = self.write_all(&outputs, inputs)?;
        Ok(written.files.try_into().expect("one file an output"))
    }

    /// [`WriteArgs::write`] of any number of files.
    pub(super) fn write_all(
        &self,
        outputs: &[Output<'_>],
        inputs: &Inputs,
    ) -> anyhow::Result<WrittenFiles> {
        for output in outputs {
            inputs.check_output(output.path)?;
        }
        if self.dry_run {
            let layouts = gguf::layouts(outputs)?;
            let files = outputs.iter().zip(layouts);
            return Ok(WrittenFiles {
                files: files.map(|(o, l)| describe(o, l.size_bytes)).collect(),
                peak_buffer_bytes: 0,
            });
        }
        let default = WriteConfig::new();
        let max_buffer_bytes = self.max_buffer_size.map(|mib| u64::from(mib) << 20);
        let config = WriteConfig {
            threads: self.threads,
            max_buffer_bytes: max_buffer_bytes.unwrap_or(default.max_buffer_bytes),
            ..default
        };
        write_list(outputs, &config)
    }
}

/// What was written.
pub(super) struct WrittenFiles {
    /// In the order of the outputs.
    pub(super) files: Vec<FileReport>,
    /// Most bytes that the writer's buffers held at one time; 0 under `--dry-run`.
    pub(super) peak_buffer_bytes: u64,
}

/// Writes files with a progress bar, all or none, and describes them.
pub(super) fn write<const N: usize>(
    outputs: [Output<'_>; N],
    threads: usize,
) -> anyhow::Result<[FileReport; N]> {
    let config = WriteConfig {
        threads,
        ..WriteConfig::new()
    };
    let written = write_list(&outputs, &config)?;
    Ok(written.files.try_into().expect("one file an output"))
}

fn write_list(outputs: &[Output<'_>], config: &WriteConfig<'_>) -> anyhow::Result<WrittenFiles> {
    let names = outputs.iter().map(|output| output.path.display());
    let names: Vec<String> = names.map(|name| name.to_string()).collect();
    let n_bytes = outputs.iter().map(|output| output.plan.data_bytes()).sum();
    let bar = output::progress(&names.join(", "), n_bytes);
    let written = gguf::write(
        outputs,
        &WriteConfig {
            progress: &|n| bar.inc(n),
            ..*config
        },
    );
    bar.finish_and_clear();
    let written = written?;
    let files = outputs.iter().zip(&written.size_bytes);
    Ok(WrittenFiles {
        files: files.map(|(o, &n)| describe(o, n)).collect(),
        peak_buffer_bytes: written.peak_buffer_bytes,
    })
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
        // By device and inode, which symbolic and hard links share.
        let id = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
        let output_id = id(&real);
        let is_real = |input: &PathBuf| output_id.is_some() && id(input) == output_id;
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

/// Fills the type into the last part of a path, as the peer's converter does.
pub(super) fn fill_template(path: &Path, ftype: &str) -> PathBuf {
    let (lower, upper) = (ftype.to_lowercase(), ftype.to_uppercase());
    // A name that is not UTF-8 has no template to fill in.
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return path.to_path_buf();
    };
    let name = name
        .replace("{ftype}", &lower)
        .replace("{outtype}", &lower)
        .replace("{FTYPE}", &upper)
        .replace("{OUTTYPE}", &upper);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_in_the_last_part_only() {
        let filled = |path: &str| fill_template(Path::new(path), "BF16");
        assert_eq!(filled("a/m-{ftype}.gguf"), Path::new("a/m-bf16.gguf"));
        assert_eq!(
            filled("{ftype}/{OUTTYPE}-{outtype}.gguf"),
            Path::new("{ftype}/BF16-bf16.gguf")
        );
        assert_eq!(filled("m.gguf"), Path::new("m.gguf"));
    }
}
