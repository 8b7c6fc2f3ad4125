//! `specconv hash`: hashes of models, to compare them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use schemas::gguf::{self, Algorithm, Hashes, ManifestEntry, Plan};
use schemas::input;
use schemas::outfile::OutputNames;
use schemas::report::{HashReport, HashedFile, HashedTensor, SCHEMA_VERSION, Verdict};

use crate::output::{self, Format};
use crate::report_file::{self, OverwriteArgs, ReportFile};

/// Hash models tensor by tensor
///
/// The lines have the format of llama-gguf-hash, and each program can check the other's manifests.
/// Metadata is not hashed, so editing keys does not change the hashes. JSON output also has the hashes
/// of whole files and the keys that state the model's origin.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// GGUF files
    ///
    /// For a split model give the first shard; all shards are hashed separately
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Compare with a manifest; exit code 1 if a hash differs or is missing
    #[arg(short, long, value_name = "MANIFEST", conflicts_with = "manifest")]
    check: Option<PathBuf>,
    /// Write the hashes to a manifest file
    #[arg(long, value_name = "OUT")]
    manifest: Option<PathBuf>,
    /// Hash with XXH64, faster than SHA-256
    #[arg(long, conflicts_with = "check")]
    xxh64: bool,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// Number of threads; 0 for one per core
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let entries = args.check.as_deref().map(read_manifest).transpose()?;
    let mut paths = Vec::new();
    for path in &args.files {
        paths.extend(gguf::part_paths(path)?);
    }
    let inputs: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    let mut names = OutputNames::new(&inputs, args.overwrite.existing());
    let manifest = match &args.manifest {
        Some(path) => Some(ReportFile::new(path, &mut names)?),
        None => None,
    };
    let algorithm = match &entries {
        Some(entries) => strongest(entries),
        None if args.xxh64 => Algorithm::Xxh64,
        None => Algorithm::Sha256,
    };
    let hashing = Hashing {
        algorithm,
        threads: args.threads,
        cancelled: &|| false,
    };
    let files = inputs.iter().map(|path| Hashed::new(path, path, &hashing));
    let files = files.collect::<anyhow::Result<Vec<_>>>()?;
    let differences: Vec<String> = entries.map_or(Vec::new(), |entries| {
        let of_file = |file| check(file, &Recorded::of(&entries, algorithm, file));
        files.iter().flat_map(of_file).collect()
    });
    let verdict = Verdict::of(differences.is_empty());
    let text = match &args.check {
        Some(manifest) => check_text(&differences, &files, manifest),
        None => {
            let lines: Vec<String> = files.iter().flat_map(|f| f.lines(algorithm)).collect();
            lines.join("\n")
        }
    };
    // Hashes of whole files take as long as those of the tensors, so only the report has them.
    let report = if args.json {
        let files = files.iter().map(|file| file.report(hashing.cancelled));
        Some(HashReport {
            schema_version: SCHEMA_VERSION,
            algorithm: algorithm.name().to_owned(),
            files: files.collect::<anyhow::Result<_>>()?,
            differences,
            verdict,
        })
    } else {
        None
    };
    if let Some(manifest) = manifest {
        report_file::publish(vec![(manifest, format!("{text}\n").into_bytes())])?;
    }
    output::result(Format::of(args.json), &report, &text)?;
    Ok(verdict)
}

/// Returns the strongest algorithm that a manifest has hashes of.
fn strongest(entries: &[ManifestEntry]) -> Algorithm {
    let has = |algorithm: &Algorithm| entries.iter().any(|entry| entry.algorithm == *algorithm);
    let mut algorithms = Algorithm::ALL.into_iter();
    algorithms
        .find(has)
        .expect("manifests without entries are rejected")
}

/// Lists the differences, and the verdict on the last line.
fn check_text(differences: &[String], files: &[Hashed], manifest: &Path) -> String {
    let n_tensors: usize = files.iter().map(|file| file.plan.tensors.len()).sum();
    let verdict = if differences.is_empty() {
        "PASS"
    } else {
        "FAIL"
    };
    let end = format!(
        "{verdict}: {n_tensors} tensors against {}",
        manifest.display()
    );
    [differences, &[end]].concat().join("\n")
}

fn read_manifest(path: &Path) -> anyhow::Result<Vec<ManifestEntry>> {
    let text = input::read_text(path, input::Kind::Stream, input::MAX_LIST);
    let text = text.with_context(|| path.display().to_string())?;
    let entries = gguf::parse_manifest(&text);
    ensure!(
        !entries.is_empty(),
        "{}: no line with a sha256 or xxh64 hash, expected a manifest",
        path.display()
    );
    Ok(entries)
}

/// Hashing parameters.
pub(super) struct Hashing<'a> {
    /// Hash algorithm of the tensors.
    pub(super) algorithm: Algorithm,
    /// Number of threads; 0 for one per core.
    pub(super) threads: usize,
    /// Returns true when hashing should stop.
    pub(super) cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// A file with the hashes of its tensors.
pub(super) struct Hashed {
    /// Path that is written to manifests.
    path: PathBuf,
    /// Current path of the file.
    at: PathBuf,
    plan: Plan,
    hashes: Hashes,
}

impl Hashed {
    /// Hashes the file at `at`, whose final path is `path`.
    pub(super) fn new(path: &Path, at: &Path, hashing: &Hashing<'_>) -> anyhow::Result<Hashed> {
        let plan = gguf::open_one(at)?;
        let hashes = gguf::hashes(&plan, hashing.algorithm, hashing.threads, hashing.cancelled);
        Ok(Hashed {
            path: path.to_path_buf(),
            at: at.to_path_buf(),
            hashes: hashes.with_context(|| path.display().to_string())?,
            plan,
        })
    }

    /// Returns the name and hash of each tensor.
    fn tensors(&self) -> impl Iterator<Item = (&str, &str)> {
        let names = self.plan.tensors.iter().map(|tensor| tensor.name.as_str());
        names.zip(self.hashes.tensors.iter().map(String::as_str))
    }

    /// Returns the lines of a manifest.
    pub(super) fn lines(&self, algorithm: Algorithm) -> impl Iterator<Item = String> {
        let file = self.path.display().to_string();
        let tensors = self.tensors().map(|(tensor, hash)| (hash, Some(tensor)));
        let all = tensors.chain([(self.hashes.data.as_str(), None)]);
        all.map(move |(hash, tensor)| gguf::manifest_line(algorithm, hash, &file, tensor))
    }

    /// Returns the hashes, including that of the whole file, and the keys that state its origin.
    pub(super) fn report(&self, cancelled: &dyn Fn() -> bool) -> anyhow::Result<HashedFile> {
        let path = self.path.display().to_string();
        let origins = [
            "general.source.",
            "general.base_model.",
            "general.repo_url",
            "general.url",
        ];
        let is_origin = |key: &str| origins.iter().any(|origin| key.starts_with(origin));
        let provenance = self.plan.metadata.iter().filter(|(key, _)| is_origin(key));
        let tensors = self.tensors().map(|(name, hash)| HashedTensor {
            name: name.to_owned(),
            hash: hash.to_owned(),
        });
        Ok(HashedFile {
            size_bytes: fs::metadata(&self.at).with_context(|| path.clone())?.len(),
            sha256: gguf::file_sha256(&self.at, cancelled).with_context(|| path.clone())?,
            path,
            data: self.hashes.data.clone(),
            tensors: tensors.collect(),
            provenance: provenance
                .map(|(key, value)| (key.to_owned(), value.to_string()))
                .collect(),
        })
    }
}

/// The hashes of one file in a manifest.
#[derive(Default)]
struct Recorded<'a> {
    /// Hash of all tensor data.
    data: Option<&'a str>,
    /// Hashes by tensor name.
    tensors: HashMap<&'a str, &'a str>,
}

impl<'a> Recorded<'a> {
    /// Returns the entries under the file's path, or, if there are none, those under the same file name
    /// in any folder: the file may have been moved.
    fn of(entries: &'a [ManifestEntry], algorithm: Algorithm, file: &Hashed) -> Recorded<'a> {
        let path = file.path.display().to_string();
        let exact = Recorded::matching(entries, algorithm, |found| found == path);
        if exact.data.is_some() || !exact.tensors.is_empty() {
            return exact;
        }
        Recorded::matching(entries, algorithm, |found| {
            Path::new(found).file_name() == file.path.file_name()
        })
    }

    fn matching(
        entries: &'a [ManifestEntry],
        algorithm: Algorithm,
        is_file: impl Fn(&str) -> bool,
    ) -> Recorded<'a> {
        let mut recorded = Recorded::default();
        for entry in entries.iter().filter(|entry| entry.algorithm == algorithm) {
            // As in llama-gguf-hash, the first of several entries counts.
            if is_file(&entry.name) {
                recorded.data.get_or_insert(&entry.hash);
            } else if let Some((file, tensor)) = entry.name.rsplit_once(':')
                && is_file(file)
            {
                recorded.tensors.entry(tensor).or_insert(&entry.hash);
            }
        }
        recorded
    }
}

/// Lists the differences between a file and its manifest entries: tensors, all data, or both.
fn check(file: &Hashed, recorded: &Recorded<'_>) -> Vec<String> {
    let path = file.path.display();
    let differs = |subject: &str, expected: &str, found: &str| {
        (expected != found)
            .then(|| format!("{path}: {subject}: expected {expected}, found {found}"))
    };
    let Recorded { data, tensors } = recorded;
    if data.is_none() && tensors.is_empty() {
        return vec![format!("{path}: not in the manifest")];
    }
    let mut found = Vec::new();
    if !tensors.is_empty() {
        found.extend(file.tensors().filter_map(|(tensor, hash)| {
            let subject = format!("tensor {tensor}");
            match tensors.get(tensor) {
                Some(expected) => differs(&subject, expected, hash),
                None => Some(format!("{path}: {subject}: not in the manifest")),
            }
        }));
    }
    found.extend(data.and_then(|expected| differs("all data", expected, &file.hashes.data)));
    let is_missing = |name: &&&str| file.plan.tensor(name).is_none();
    let mut missing: Vec<&&str> = tensors.keys().filter(is_missing).collect();
    missing.sort();
    let message = |name| format!("{path}: tensor {name} is missing");
    found.extend(missing.into_iter().map(message));
    found
}
