//! What the commands share: opening an input, writing an output, describing a file.

use std::fmt;
use std::fs;
use std::iter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use convert::{ConvertConfig, MtpMode, OutType};
use schemas::gguf::{
    self, Output, Plan, Resume, SPLIT_COUNT, ShardConfig, ShardStyle, Tensor, WriteConfig,
    WriteError,
};
use schemas::report::{FileReport, SourceReport, TypeShare};

use super::hash;
use super::remote::{self, RemoteCheckpoint};
use crate::interrupt;
use crate::output::{self, Format, PendingFile};

/// Flags of every command that writes files.
#[derive(Clone, Debug, clap::Args)]
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
    /// Keep what is finished if the command is interrupted, and go on from what an earlier one
    /// kept: the same command, with the same inputs. The result is the same file
    #[arg(long)]
    pub(super) resume: bool,
    /// Write the hashes of what was written to a file, as `specconv hash` does
    #[arg(long, value_name = "OUT", conflicts_with = "dry_run")]
    pub(super) manifest: Option<PathBuf>,
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
        let written = self.write_all(&outputs, inputs, &command_line())?;
        Ok(written.files.try_into().expect("one file an output"))
    }

    /// [`WriteArgs::write`] of any number of files; `options` is what decides about their bytes
    /// beside the inputs, by which `--resume` knows its own run.
    pub(super) fn write_all(
        &self,
        outputs: &[Output<'_>],
        inputs: &Inputs,
        options: &str,
    ) -> anyhow::Result<WrittenFiles> {
        for output in outputs {
            inputs.check_output(output.path)?;
        }
        if self.dry_run {
            let layouts = gguf::layouts(outputs)?;
            inputs.tell_fetched();
            let files = outputs.iter().zip(layouts);
            return Ok(WrittenFiles {
                files: files.map(|(o, l)| describe(o, l.size_bytes)).collect(),
                peak_buffer_bytes: 0,
            });
        }
        let default = WriteConfig::new();
        let max_buffer_bytes = self.max_buffer_size.map(|mib| u64::from(mib) << 20);
        let version = env!("CARGO_PKG_VERSION");
        let options = format!("{version} {options}{}", inputs.commits());
        let resume = Resume {
            inputs: &inputs.data,
            options: &options,
        };
        let config = WriteConfig {
            threads: self.threads,
            max_buffer_bytes: max_buffer_bytes.unwrap_or(default.max_buffer_bytes),
            resume: self.resume.then_some(resume),
            ..default
        };
        let paths: Vec<&Path> = outputs.iter().map(|output| output.path).collect();
        let manifest = self.manifest.as_deref();
        let manifest = manifest
            .map(|manifest| start_manifest(manifest, &paths, inputs))
            .transpose()?;
        inputs.prefetch(outputs.iter().flat_map(|output| &output.plan.tensors))?;
        let written = write_list(outputs, &config)?;
        if let Some(manifest) = manifest {
            manifest.finish(&hash::manifest(&paths, self.threads)?)?;
        }
        inputs.tell_fetched();
        Ok(written)
    }

    /// Writes one file that was made from `inputs`, and describes it.
    pub(super) fn write_one(
        &self,
        plan: &Plan,
        path: &Path,
        inputs: &Inputs,
    ) -> anyhow::Result<FileReport> {
        let [report] = self.write([Output { plan, path }], inputs)?;
        Ok(report)
    }

    /// Writes a model in one piece or in parts; `path` is its name in one piece.
    pub(super) fn write_parts(
        &self,
        parts: &[Plan],
        path: &Path,
        inputs: &Inputs,
    ) -> anyhow::Result<FileReport> {
        if let [plan] = parts
            && !plan.metadata.contains(SPLIT_COUNT)
        {
            let [report] = self.write([Output { plan, path }], inputs)?;
            return Ok(report);
        }
        let paths = gguf::shard_paths(path, parts.len());
        let outputs = parts.iter().zip(&paths);
        let outputs: Vec<_> = outputs.map(|(plan, path)| Output { plan, path }).collect();
        let reports = self.write_all(&outputs, inputs, &command_line())?.files;
        let tensors = parts.iter().flat_map(|part| &part.tensors);
        Ok(FileReport {
            path: reports[0].path.clone(),
            parts: reports.iter().map(|part| part.path.clone()).collect(),
            size_bytes: reports.iter().map(|part| part.size_bytes).sum(),
            n_tensors: reports.iter().map(|part| part.n_tensors).sum(),
            types: type_shares(tensors),
        })
    }
}

/// Starts the manifest of files that are not written yet.
fn start_manifest(path: &Path, outputs: &[&Path], inputs: &Inputs) -> anyhow::Result<PendingFile> {
    let folder = |path: &Path| match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => fs::canonicalize(folder).ok(),
        _ => fs::canonicalize(".").ok(),
    };
    let is_same =
        |output: &&Path| output.file_name() == path.file_name() && folder(output) == folder(path);
    ensure!(
        !outputs.iter().any(is_same),
        "{}: is a model that is to be written, expected another name for its manifest",
        path.display()
    );
    let inputs: Vec<&Path> = inputs.files.iter().map(PathBuf::as_path).collect();
    PendingFile::new(path, &inputs)
}

/// Where to cut a model, in the words of the peer's tools.
#[derive(Debug, clap::Args)]
pub(super) struct ShardArgs {
    /// Most tensors in a part
    #[arg(long, value_name = "N")]
    split_max_tensors: Option<usize>,
    /// Most bytes of tensors in a part, such as 2G or 500M (powers of 1000); a part has one
    /// tensor at least
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    split_max_size: Option<u64>,
    /// Leave the first part without tensors, as a small file that has all keys
    #[arg(long)]
    no_tensor_first_split: bool,
}

impl ShardArgs {
    /// The parts; `default_max_tensors` where nothing says how large they may be.
    pub(super) fn shard(
        &self,
        plan: &Plan,
        style: ShardStyle,
        default_max_tensors: Option<usize>,
    ) -> anyhow::Result<Vec<Plan>> {
        // To the peer, 0 means no limit.
        let max_bytes = self.split_max_size.filter(|&n| n > 0);
        let max_tensors = self.split_max_tensors.filter(|&n| n > 0);
        let default = default_max_tensors.filter(|_| max_bytes.is_none());
        let config = ShardConfig {
            max_bytes,
            max_tensors: max_tensors.or(default),
            tensor_free_first: self.no_tensor_first_split,
            style,
        };
        Ok(gguf::shard(plan, &config)?)
    }
}

/// Reads a number of bytes with K, M or G behind it, powers of 1000.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((i, 'K' | 'k')) => (&text[..i], 1_000),
        Some((i, 'M' | 'm')) => (&text[..i], 1_000_000),
        Some((i, 'G' | 'g')) => (&text[..i], 1_000_000_000),
        _ => (text, 1),
    };
    let n: Option<u64> = digits.parse().ok();
    n.and_then(|n| n.checked_mul(unit))
        .ok_or_else(|| "expected a number, with K, M or G behind it if wanted".to_owned())
}

/// The command line, which decides about bytes; what it says of threads and of talking does not.
fn command_line() -> String {
    let mut words = std::env::args_os().skip(1);
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--threads" | "--max-buffer-size" | "--manifest") => drop(words.next()),
            Some("--json" | "--resume") => {}
            Some(word) if word.starts_with("--threads=") => {}
            Some(word) if word.starts_with("--manifest=") => {}
            Some(word) if word.starts_with("--max-buffer-size=") => {}
            _ => kept.push(word.to_string_lossy().into_owned()),
        }
    }
    kept.join(" ")
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
    let label = match outputs {
        [first, .., last] => format!("{} to {}", first.path.display(), last.path.display()),
        [only] => only.path.display().to_string(),
        [] => String::new(),
    };
    let n_bytes = outputs.iter().map(|output| output.plan.data_bytes()).sum();
    let bar = output::progress(&label, n_bytes);
    let written = interrupt::while_writing(|cancelled| {
        let config = WriteConfig {
            progress: &|n| bar.inc(n),
            cancelled,
            ..*config
        };
        gguf::write(outputs, &config)
    });
    bar.finish_and_clear();
    let written = match written {
        Err(WriteError::Cancelled) => return Err(interrupt::interrupted().into()),
        written => written?,
    };
    if written.resumed_bytes > 0 {
        let kept = output::bytes(written.resumed_bytes);
        output::note(&format_args!("{kept} were there from an earlier run"));
    }
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
        parts: Vec::new(),
        size_bytes,
        n_tensors: plan.tensors.len() as u64,
        types: type_shares(&plan.tensors),
    }
}

/// Tensors by element type, the largest share of bytes first.
pub(super) fn type_shares<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Vec<TypeShare> {
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
    /// Those that data is made of; what the others say is in the header.
    data: Vec<PathBuf>,
    /// Those on the Hub.
    remote: Vec<RemoteCheckpoint>,
}

impl Inputs {
    /// Opens a GGUF file, or plans the conversion of a checkpoint, in a folder or on the Hub: either
    /// is a model.
    pub(super) fn open(
        &mut self,
        path: &Path,
        outtype: OutType,
        mtp: MtpMode,
    ) -> anyhow::Result<Plan> {
        if path.is_dir() || remote::is_remote(path) {
            let config = ConvertConfig {
                checkpoint: path.to_path_buf(),
                remote: None,
                outtype,
                mtp,
                tokenizer_from: None,
                target: None,
            };
            return self.open_checkpoint(&config).map(|c| c.plan);
        }
        let plan = gguf::open(path)?;
        let parts = gguf::part_paths(path)?;
        self.data.extend_from_slice(&parts);
        self.files.extend(parts);
        Ok(plan)
    }

    /// Plans the conversion of a checkpoint, in a folder or on the Hub, and tells the notes.
    pub(super) fn open_checkpoint(
        &mut self,
        config: &ConvertConfig,
    ) -> anyhow::Result<convert::Converted> {
        let mut local = config.clone();
        if remote::is_remote(&config.checkpoint) {
            let remote = RemoteCheckpoint::open(&config.checkpoint)?;
            remote.fetch_headers()?;
            local.checkpoint = remote.folder();
            local.remote = Some(remote.remote());
            self.remote.push(remote);
        }
        for folder in local.tokenizer_from.iter_mut().chain(&mut local.target) {
            if remote::is_remote(folder) {
                let remote = RemoteCheckpoint::open(folder)?;
                *folder = remote.folder();
                self.remote.push(remote);
            }
        }
        let converted = convert::plan(&local)?;
        for note in &converted.notes {
            output::note(note);
        }
        for folder in iter::once(&local.checkpoint)
            .chain(&local.tokenizer_from)
            .chain(&local.target)
        {
            let files = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
            let mut files: Vec<_> = files.filter_map(|entry| Some(entry.ok()?.path())).collect();
            files.sort();
            let has = |file: &&PathBuf, wanted| file.extension().is_some_and(|e| e == wanted);
            // Of the others only the tokenizer and the configuration are read, and what is on the
            // Hub is known by its commit.
            let weights = files.iter().filter(|file| has(file, "safetensors"));
            if folder == &config.checkpoint {
                self.data.extend(weights.cloned());
            }
            let others = files.iter().filter(|file| !has(file, "gguf"));
            self.files.extend(others.cloned());
        }
        Ok(converted)
    }

    /// Fetches what tensors are made of, where that is on the Hub.
    pub(super) fn prefetch<'a>(
        &self,
        tensors: impl Iterator<Item = &'a Tensor> + Clone,
    ) -> anyhow::Result<()> {
        let mut checkpoints = self.remote.iter();
        checkpoints.try_for_each(|checkpoint| checkpoint.prefetch(tensors.clone()))
    }

    /// The commits on the Hub that were read.
    pub(super) fn sources(&self) -> Vec<SourceReport> {
        self.remote.iter().map(RemoteCheckpoint::report).collect()
    }

    /// Says how much was fetched.
    pub(super) fn tell_fetched(&self) {
        for source in self.sources() {
            output::note(&remote::summary(&source));
        }
    }

    /// The commits, which decide about bytes as the command line does.
    fn commits(&self) -> String {
        let sources = self.sources().into_iter();
        sources
            .map(|source| format!(" {}", source.commit))
            .collect()
    }

    /// Counts a file that is read apart from the model.
    pub(super) fn add(&mut self, path: &Path) {
        self.files.push(path.to_path_buf());
        self.data.push(path.to_path_buf());
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

/// Where a file goes that was given no name: into the folder of a checkpoint, beside a file, or
/// here if the input is on the Hub.
pub(super) fn default_path(input: &Path, name: &str) -> PathBuf {
    match input.is_dir() {
        _ if remote::is_remote(input) => PathBuf::from(name),
        true => input.join(name),
        false => input.with_file_name(name),
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
            parts,
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
        let path = match parts.last() {
            Some(last) => format!("{path} to {last}"),
            None => path.clone(),
        };
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

    #[test]
    fn files_without_a_name_go_where_the_input_is() {
        let folder = tempfile::tempdir().unwrap();
        let name = "n.gguf";
        assert_eq!(default_path(folder.path(), name), folder.path().join(name));
        assert_eq!(
            default_path(Path::new("a/m.gguf"), name),
            Path::new("a/n.gguf")
        );
        assert_eq!(default_path(Path::new("hf://org/m"), name), Path::new(name));
    }
}
