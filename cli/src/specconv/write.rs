//! Writing of models, in one file or in shards, and their description in reports.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use schemas::gguf::{
    self, Algorithm, MAX_RESERVED_BYTES, Output, Plan, Resume, SPLIT_COUNT, ShardConfig,
    ShardStyle, Staged, Tensor, WriteConfig, WriteReport,
};
use schemas::outfile::{Existing, OutputNames, Partial};
use schemas::passport;
use schemas::progress::{Task, Unit};
use schemas::report::{CopyReport, FileReport, TypeShare};

use super::hash::Hashing;
use super::input::Inputs;
use super::lock::{Lock, Recorder};
use super::manifest::Manifests;
use super::remote;
use crate::hint::Hinted;
use crate::output::{self, Format};
use crate::report_file::OverwriteArgs;
use crate::{embedded, interrupt};

/// Flags of every command that writes files.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct WriteArgs {
    /// Number of threads; 0 for one per core
    ///
    /// The result does not depend on it
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub(super) threads: usize,
    /// Memory limit of all buffers together, in MiB [default: 64]
    ///
    /// At least one tensor row is buffered
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_buffer_size: Option<u32>,
    /// Print the plan (tensors, types, exact sizes) without writing a file
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Continue an interrupted run, and keep finished data if interrupted
    ///
    /// Requires the same command and inputs as the interrupted run; the result is the same file
    #[arg(long)]
    pub(super) resume: bool,
    /// Bytes to reserve in the header for later edits, such as 64K
    ///
    /// The suffixes K, M and G are powers of 1000. set-metadata uses these bytes instead of moving the data.
    /// Copied data keeps its block alignment, so that file systems with reflinks (XFS, btrfs) can share it
    /// instead of copying it
    #[arg(long, value_name = "BYTES", value_parser = parse_reserve)]
    pub(super) reserve_header: Option<u64>,
    /// Also write a manifest with the hashes of the written files
    ///
    /// The format is that of `specconv hash`. With a name that ends in .json, the manifest also has the hashes of
    /// the inputs, the commit on the Hub and the options. May be given several times
    #[arg(long, value_name = "OUT", conflicts_with = "dry_run")]
    pub(super) manifest: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) overwrite: OverwriteArgs,
    /// Print the result as JSON, with the SHA-256 of the written files
    ///
    /// To compute it, the files are read once more. --verbose prints it without --json
    #[arg(long)]
    pub(super) json: bool,
    /// Use of a lock file, which `specconv lock` and `specconv rebuild` choose.
    #[arg(skip)]
    pub(super) lock: Lock,
}

impl WriteArgs {
    /// Returns the format of the result; a rebuilt command leaves it to `specconv rebuild`.
    pub(super) fn format(&self) -> Format {
        match self.lock.is_rebuild() {
            true => Format::None,
            false => Format::of(self.json),
        }
    }

    /// Writes models made from `inputs`, all or none, and describes them.
    pub(super) fn write<const N: usize>(
        &self,
        models: [Model; N],
        inputs: &Inputs,
    ) -> anyhow::Result<[FileReport; N]> {
        let written = self.write_all(models.into(), inputs, &command_line())?;
        Ok(written
            .models
            .try_into()
            .expect("each model has one report"))
    }

    /// Calls [`WriteArgs::write`] for one model.
    pub(super) fn write_one(&self, model: Model, inputs: &Inputs) -> anyhow::Result<FileReport> {
        let [report] = self.write([model], inputs)?;
        Ok(report)
    }

    /// [`WriteArgs::write`] for any number of models, with buffer and copy statistics. `options`
    /// identifies everything besides the inputs that determines the output bytes; `--resume` recognizes
    /// its own run by it.
    pub(super) fn write_all(
        &self,
        models: Vec<Model>,
        inputs: &Inputs,
        options: &str,
    ) -> anyhow::Result<Written> {
        let models = self.arrange(models)?;
        let outputs: Vec<Output<'_>> = models.iter().flat_map(Model::outputs).collect();
        let mut names = inputs.output_names(match self.dry_run {
            true => Existing::Replace,
            false => self.overwrite.existing(),
        });
        for output in &outputs {
            names.claim_file(output.path)?;
        }
        let (sizes, hashes, written) = if self.dry_run {
            let layouts = gguf::layouts(&outputs)?;
            let sizes = layouts.iter().map(|layout| layout.size_bytes).collect();
            (sizes, Vec::new(), Written::default())
        } else {
            self.write_files(&outputs, names, inputs, options)?
        };
        inputs.report_downloads();
        let (mut sizes, mut hashes) = (sizes.into_iter(), hashes.into_iter());
        let report = |model: &Model| model.report(&mut sizes, &mut hashes);
        Ok(Written {
            models: models.iter().map(report).collect(),
            ..written
        })
    }

    /// Returns models as they are written: with reserved bytes, without passports of other models.
    ///
    /// # Errors
    /// No reader would accept a plan.
    pub(super) fn arrange(&self, mut models: Vec<Model>) -> anyhow::Result<Vec<Model>> {
        if let Some(n_bytes) = self.reserve_header {
            for (plan, path) in models.iter_mut().flat_map(|model| &mut model.files) {
                gguf::reserve(plan, n_bytes).with_context(|| path.display().to_string())?;
            }
        }
        models.iter_mut().for_each(Model::drop_passport);
        Ok(models)
    }

    /// Checks that the outputs can be written by several machines.
    ///
    /// # Errors
    /// A flag has no meaning for a part, or the name of an output is not allowed.
    pub(super) fn check_division<'a>(
        &self,
        mut outputs: impl Iterator<Item = Output<'a>>,
        inputs: &Inputs,
    ) -> anyhow::Result<()> {
        for (flag, is_set) in [
            ("--dry-run", self.dry_run),
            ("--resume", self.resume),
            ("--manifest", !self.manifest.is_empty()),
            ("--json", self.json),
            (
                "--overwrite",
                self.overwrite.existing() == Existing::Replace,
            ),
        ] {
            if is_set {
                let message = format!("{flag}: not for a command that is divided among machines");
                let hint = "\"specconv finish\" has --overwrite and --json; a shard always resumes";
                return Err(Hinted::new(message, hint).into());
            }
        }
        // The same names are claimed again when the parts are joined.
        let mut names = inputs.output_names(Existing::Replace);
        outputs.try_for_each(|output| names.claim_file(output.path))?;
        Ok(())
    }

    /// Writes files and manifests; returns the sizes and hashes of the files, and statistics without models.
    fn write_files(
        &self,
        outputs: &[Output<'_>],
        mut names: OutputNames,
        inputs: &Inputs,
        options: &str,
    ) -> anyhow::Result<(Vec<u64>, Vec<String>, Written)> {
        let default = WriteConfig::new();
        let max_buffer_bytes = self.max_buffer_size.map(|mib| u64::from(mib) << 20);
        let version = env!("CARGO_PKG_VERSION");
        let options = format!("{version} {options}{}", inputs.commits());
        let resume = Resume {
            inputs: inputs.data(),
            journal: None,
            options: &options,
        };
        let config = WriteConfig {
            threads: self.threads,
            max_buffer_bytes: max_buffer_bytes.unwrap_or(default.max_buffer_bytes),
            resume: self.resume.then_some(resume),
            ..default
        };
        let manifests = Manifests::start(&self.manifest, &mut names)?;
        let tensors = outputs.iter().flat_map(|output| &output.plan.tensors);
        inputs.prefetch(tensors.clone())?;
        let recorder = Recorder::start(&self.lock, &mut names, inputs, tensors)?;
        let mut hashes = Vec::new();
        let written = write_outputs(outputs, &config, |staged, cancelled| {
            if self.json || output::is_verbose() {
                let found = staged
                    .hidden()
                    .map(|path| gguf::file_sha256(path, cancelled));
                hashes = found.collect::<Result<_, _>>()?;
            }
            let paths = outputs.iter().map(|output| output.path);
            let files: Vec<(&Path, &Path)> = paths.zip(staged.hidden()).collect();
            let lock = match recorder {
                Some(recorder) => recorder.stage(&files, cancelled)?,
                None => Vec::new(),
            };
            let hashing = Hashing {
                algorithm: Algorithm::Sha256,
                threads: self.threads,
                cancelled,
            };
            let manifests = manifests.stage(files, inputs, &options, &hashing)?;
            Ok(lock.into_iter().chain(manifests).collect())
        })?;
        let statistics = Written {
            models: Vec::new(),
            peak_buffer_bytes: written.peak_buffer_bytes,
            copied: CopyReport {
                by_kernel_bytes: written.kernel_copied_bytes,
                shared_bytes: written.shared_bytes,
            },
        };
        Ok((written.size_bytes, hashes, statistics))
    }
}

/// A model to be written, in one file or in shards.
#[derive(Clone)]
pub(super) struct Model {
    files: Vec<(Plan, PathBuf)>,
}

impl Model {
    pub(super) fn one(plan: Plan, path: &Path) -> Model {
        Model {
            files: vec![(plan, path.to_path_buf())],
        }
    }

    /// Shards of a model; `path` is the name without shard numbers. A single plan without split keys is
    /// one file.
    pub(super) fn parts(parts: Vec<Plan>, path: &Path) -> Model {
        match <[Plan; 1]>::try_from(parts) {
            Ok([plan]) if !plan.metadata.contains(SPLIT_COUNT) => Model::one(plan, path),
            Ok(parts) => Model::numbered(parts.into(), path),
            Err(parts) => Model::numbered(parts, path),
        }
    }

    /// Shards of a model with numbers in their names, even if there is only one.
    pub(super) fn numbered(parts: Vec<Plan>, path: &Path) -> Model {
        let paths = gguf::shard_paths(path, parts.len());
        Model {
            files: parts.into_iter().zip(paths).collect(),
        }
    }

    /// A model made from `input`, with as many shards. A new tensor goes to the shard of the tensor
    /// before it.
    pub(super) fn sharded_like(plan: Plan, input: &Path, path: &Path) -> anyhow::Result<Model> {
        // A checkpoint has no shards to keep.
        let shards = if input.is_file() {
            gguf::part_paths(input)?
        } else {
            Vec::new()
        };
        if shards.len() < 2 {
            return Ok(Model::one(plan, path));
        }
        let mut n_tensors = vec![0; shards.len()];
        let mut shard = 0;
        for tensor in &plan.tensors {
            let range = tensor.source.input(0);
            let found = range.and_then(|range| shards.iter().position(|path| path == range.path));
            // Shard indices never decrease, even if tensors were reordered.
            shard = shard.max(found.unwrap_or(shard));
            n_tensors[shard] += 1;
        }
        // Only the first shard, which has the keys, may be without tensors.
        let mut is_first = true;
        n_tensors.retain(|&n| std::mem::take(&mut is_first) || n > 0);
        let style = gguf::shard_style(&gguf::open_one(&shards[0])?.metadata);
        Ok(Model::numbered(
            gguf::shard_by(&plan, &n_tensors, style)?,
            path,
        ))
    }

    /// Removes a passport unless the tensors are copies of all tensors of one model, as in a split or merged one.
    fn drop_passport(&mut self) {
        let plans = || self.files.iter().map(|(plan, _)| plan);
        if !plans().any(|plan| passport::is_present(&plan.metadata)) {
            return;
        }
        let tensors = || plans().flat_map(|plan| &plan.tensors);
        let origins = tensors().map(|tensor| Some(tensor.source.origin()?.path));
        let origins: Option<BTreeSet<&Path>> = origins.collect();
        let is_whole = |origins: &BTreeSet<&Path>| -> Option<bool> {
            let first = origins.first()?;
            let parts = gguf::part_paths(first).ok()?;
            let n_tensors = gguf::open(first).ok()?.tensors.len();
            let is_part = |path: &&Path| parts.iter().any(|part| part == path);
            Some(n_tensors == tensors().count() && origins.iter().all(is_part))
        };
        if origins.as_ref().and_then(is_whole) != Some(true) {
            for (plan, _) in &mut self.files {
                passport::remove(&mut plan.metadata);
            }
        }
    }

    pub(super) fn outputs(&self) -> impl Iterator<Item = Output<'_>> {
        let files = self.files.iter();
        files.map(|(plan, path)| Output { plan, path })
    }

    /// Describes a model whose files already exist.
    pub(super) fn as_written(&self) -> anyhow::Result<FileReport> {
        let size = |(_, path): &(Plan, PathBuf)| Ok(fs::metadata(path)?.len());
        let sizes: Vec<u64> = self.files.iter().map(size).collect::<anyhow::Result<_>>()?;
        Ok(self.report(&mut sizes.into_iter(), &mut [].into_iter()))
    }

    /// Describes the model, with the next of the sizes and hashes.
    fn report(
        &self,
        sizes: &mut impl Iterator<Item = u64>,
        hashes: &mut impl Iterator<Item = String>,
    ) -> FileReport {
        let paths: Vec<String> = (self.files.iter())
            .map(|(_, path)| path.display().to_string())
            .collect();
        let tensors = || self.files.iter().flat_map(|(plan, _)| &plan.tensors);
        FileReport {
            path: paths[0].clone(),
            size_bytes: sizes.take(self.files.len()).sum(),
            sha256: hashes.take(self.files.len()).collect(),
            n_tensors: tensors().count() as u64,
            types: type_shares(tensors()),
            parts: if self.files[0].0.metadata.contains(SPLIT_COUNT) {
                paths
            } else {
                Vec::new()
            },
        }
    }
}

/// Result of writing models.
#[derive(Default)]
pub(super) struct Written {
    /// Descriptions, in the order of the models.
    pub(super) models: Vec<FileReport>,
    /// Peak size of the writer's buffers, in bytes; 0 with `--dry-run`.
    pub(super) peak_buffer_bytes: u64,
    /// Data that was copied without passing through the buffers.
    pub(super) copied: CopyReport,
}

/// Shard size flags, named as in llama.cpp's tools.
#[derive(Debug, clap::Args)]
pub(super) struct ShardArgs {
    /// Maximum number of tensors per shard
    #[arg(long, value_name = "N")]
    split_max_tensors: Option<usize>,
    /// Maximum bytes of tensor data per shard, such as 2G or 500M
    ///
    /// The suffixes K, M and G are powers of 1000. A shard has at least one tensor
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    split_max_size: Option<u64>,
    /// Write a first shard without tensors, a small file with all keys
    #[arg(long)]
    no_tensor_first_split: bool,
}

impl ShardArgs {
    /// Splits a plan into shards. `default_max_tensors` applies if no flag limits their size.
    pub(super) fn shard(
        &self,
        plan: &Plan,
        style: ShardStyle,
        default_max_tensors: Option<usize>,
    ) -> anyhow::Result<Vec<Plan>> {
        // As in llama.cpp, 0 means no limit.
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

/// Parses the number of bytes to reserve, which has an upper limit.
pub(super) fn parse_reserve(text: &str) -> Result<u64, String> {
    let n_bytes = parse_bytes(text)?;
    if n_bytes > MAX_RESERVED_BYTES {
        return Err(format!("expected at most {MAX_RESERVED_BYTES} bytes"));
    }
    Ok(n_bytes)
}

/// Parses a number of bytes with an optional suffix K, M or G (powers of 1000).
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((i, 'K' | 'k')) => (&text[..i], 1_000),
        Some((i, 'M' | 'm')) => (&text[..i], 1_000_000),
        Some((i, 'G' | 'g')) => (&text[..i], 1_000_000_000),
        _ => (text, 1),
    };
    let n: Option<u64> = digits.parse().ok();
    n.and_then(|n| n.checked_mul(unit)).ok_or_else(|| {
        "expected a number of bytes, optionally with the suffix K, M or G".to_owned()
    })
}

/// Returns the command line without the arguments that do not affect the output bytes.
pub(super) fn command_line() -> String {
    let args = embedded::args().unwrap_or_else(|| std::env::args_os().collect());
    let words = relevant_words(args.into_iter().skip(1));
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Removes the arguments that do not affect the output bytes, such as threads.
pub(super) fn relevant_words(mut words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-t" | "--threads" | "--max-buffer-size" | "--manifest" | "--isa") => {
                drop(words.next());
            }
            Some("--json" | "--resume" | "--overwrite") => {}
            Some("-q" | "--quiet" | "-v" | "--verbose") => {}
            Some(word) if word.starts_with("--threads=") => {}
            Some(word) if word.starts_with("--manifest=") => {}
            Some(word) if word.starts_with("--max-buffer-size=") => {}
            Some(word) if word.starts_with("--isa=") => {}
            _ => kept.push(word),
        }
    }
    kept
}

/// Writes files with a progress bar, all or none, together with the files that `derive` makes from them
/// before they are published.
fn write_outputs(
    outputs: &[Output<'_>],
    config: &WriteConfig<'_>,
    derive: impl FnOnce(&Staged, &(dyn Fn() -> bool + Sync)) -> anyhow::Result<Vec<Partial>>,
) -> anyhow::Result<WriteReport> {
    let label = match outputs {
        [first, .., last] => format!("{} to {}", first.path.display(), last.path.display()),
        [only] => only.path.display().to_string(),
        [] => String::new(),
    };
    let n_bytes = outputs.iter().map(|output| output.plan.data_bytes()).sum();
    let task = Task::start(&format!("write {label}"), n_bytes, Unit::Bytes);
    let written = interrupt::while_writing(|cancelled| {
        let config = WriteConfig {
            progress: &|n| task.advance(n),
            cancelled,
            ..*config
        };
        let staged = gguf::stage(outputs, &config)?;
        let derived = derive(&staged, cancelled)?;
        Ok(staged.publish(derived)?)
    })?;
    drop(task);
    if written.resumed_bytes > 0 {
        let kept = output::bytes(written.resumed_bytes);
        output::note(&format_args!(
            "continued after {kept} of an interrupted run"
        ));
    }
    Ok(written)
}

/// Writes models with the defaults of [`WriteArgs`], for commands without these flags.
pub(super) fn write<const N: usize>(
    models: &[Model; N],
    threads: usize,
    existing: Existing,
) -> anyhow::Result<[FileReport; N]> {
    let config = WriteConfig {
        threads,
        ..WriteConfig::new()
    };
    let outputs: Vec<Output<'_>> = models.iter().flat_map(Model::outputs).collect();
    let mut names = OutputNames::new(NO_INPUTS, existing);
    for output in &outputs {
        names.claim_file(output.path)?;
    }
    let mut sizes = write_outputs(&outputs, &config, |_, _| Ok(Vec::new()))?
        .size_bytes
        .into_iter();
    let mut report = |model: &Model| model.report(&mut sizes, &mut [].into_iter());
    Ok(models.each_ref().map(&mut report))
}

/// The inputs of a command that reads no files.
pub(super) const NO_INPUTS: [&Path; 0] = [];

/// Sums tensors by element type, the largest share of bytes first.
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

/// Returns the default path of an output: in the folder of a checkpoint, beside an input file, or in the
/// current folder for an input on the Hub.
pub(super) fn default_path(input: &Path, name: &str) -> PathBuf {
    if remote::is_remote(input) {
        PathBuf::from(name)
    } else if input.is_dir() {
        input.join(name)
    } else {
        input.with_file_name(name)
    }
}

/// Text line about a written file.
pub(super) struct FileLine<'a> {
    pub(super) file: &'a FileReport,
    pub(super) written: bool,
}

impl fmt::Display for FileLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileReport {
            path,
            parts,
            size_bytes,
            n_tensors,
            types,
            sha256,
        } = self.file;
        let types: Vec<String> = types
            .iter()
            .map(|share| format!("{} {}", share.n_tensors, share.dtype))
            .collect();
        let verb = if self.written { "wrote" } else { "would write" };
        let size = output::bytes(*size_bytes);
        let types = types.join(", ");
        let path = match parts.last() {
            Some(last) => format!("{path} to {last}"),
            None => path.clone(),
        };
        write!(f, "{verb} {path}: {size}, {n_tensors} tensors ({types})")?;
        sha256
            .iter()
            .try_for_each(|hash| write!(f, "\nsha256 {hash}"))
    }
}

/// Returns the path of each output, one per file type. Several types need a placeholder in the name.
pub(super) fn fill_templates(template: &Path, ftypes: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    ensure!(
        ftypes.len() < 2 || fill_template(template, "a") != fill_template(template, "b"),
        "{}: one name for {} files, expected {{ftype}} in it, which the type replaces",
        template.display(),
        ftypes.len()
    );
    let paths = ftypes.iter().map(|ftype| fill_template(template, ftype));
    Ok(paths.collect())
}

/// Replaces the type placeholders in the last component of a path, as llama.cpp's converter does.
fn fill_template(path: &Path, ftype: &str) -> PathBuf {
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
    fn placeholders_are_replaced_in_the_last_component_only() {
        let filled = |path: &str| fill_template(Path::new(path), "BF16");
        assert_eq!(filled("a/m-{ftype}.gguf"), Path::new("a/m-bf16.gguf"));
        assert_eq!(
            filled("{ftype}/{OUTTYPE}-{outtype}.gguf"),
            Path::new("{ftype}/BF16-bf16.gguf")
        );
        assert_eq!(filled("m.gguf"), Path::new("m.gguf"));
    }

    #[test]
    fn files_without_a_name_go_to_the_folder_of_the_input() {
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
