//! Parts: the files of a shard and their manifest.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use schemas::input;
use schemas::report::{PartFile, PartManifest, SCHEMA_VERSION, WorkShard};
use schemas::work::file_hash;

use super::ReadPlan;

/// Name of the report of `finish` in the folder of parts.
pub(super) const FINISHED: &str = "finished.json";

/// Maximum size of a manifest in bytes.
const MAX_MANIFEST: u64 = 16 << 20;

/// State of the part of a shard.
pub(super) enum State {
    /// The files are those that the shard has to write; their size in bytes.
    Right(u64),
    /// No manifest exists.
    Missing,
    /// The files are not those of the shard.
    Wrong(String),
}

/// Returns the path of the manifest of a shard.
pub(super) fn manifest_path(folder: &Path, shard: u32) -> PathBuf {
    folder.join(format!("part-{shard:05}.json"))
}

/// Checks the part of a shard: its manifest, and the sizes and hashes of its files.
pub(super) fn state(read: &ReadPlan, shard: &WorkShard, cancelled: &dyn Fn() -> bool) -> State {
    let folder = read.folder();
    let path = manifest_path(&folder, shard.shard);
    let bytes = match input::read(&path, input::Kind::File, MAX_MANIFEST) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return State::Missing,
        Err(error) => return State::Wrong(format!("its manifest cannot be read: {error}")),
    };
    let manifest: PartManifest = match serde_json::from_slice(&bytes) {
        Ok(manifest) => manifest,
        Err(error) => return State::Wrong(format!("its manifest is damaged: {error}")),
    };
    if manifest.plan_sha256 != read.sha256 {
        return State::Wrong("stale: made for another plan".to_owned());
    }
    if manifest.shard != shard.shard {
        return State::Wrong(format!("double: a copy of shard {}", manifest.shard));
    }
    let (found, expected) = (&manifest.files, &shard.files);
    let names = found.iter().map(|file| &file.name);
    if !names.eq(expected.iter().map(|file| &file.name)) {
        return State::Wrong("its manifest lists other files than the plan".to_owned());
    }
    let mut size_bytes = 0;
    for file in &manifest.files {
        if let Err(problem) = check_file(&folder, file, cancelled) {
            return State::Wrong(problem);
        }
        size_bytes += file.size_bytes;
    }
    State::Right(size_bytes)
}

fn check_file(folder: &Path, file: &PartFile, cancelled: &dyn Fn() -> bool) -> Result<(), String> {
    let (path, name) = (folder.join(&file.name), &file.name);
    let size = fs::metadata(&path).map_err(|error| format!("{name}: {error}"))?;
    if size.len() != file.size_bytes {
        let expected = file.size_bytes;
        return Err(format!("{name}: {} bytes, expected {expected}", size.len()));
    }
    let hash = file_hash(&path, cancelled).map_err(|error| format!("{name}: {error}"))?;
    match hash == file.xxh3 {
        true => Ok(()),
        false => Err(format!("{name}: hash {hash}, expected {}", file.xxh3)),
    }
}

/// Describes complete files, which still have hidden names.
pub(super) fn manifest(
    read: &ReadPlan,
    shard: &WorkShard,
    hidden: &[PathBuf],
    cancelled: &dyn Fn() -> bool,
) -> io::Result<PartManifest> {
    let files = shard.files.iter().zip(hidden).map(|(file, path)| {
        Ok(PartFile {
            name: file.name.clone(),
            size_bytes: fs::metadata(path)?.len(),
            xxh3: file_hash(path, cancelled)?,
        })
    });
    Ok(PartManifest {
        schema_version: SCHEMA_VERSION,
        plan_sha256: read.sha256.clone(),
        shard: shard.shard,
        files: files.collect::<io::Result<_>>()?,
    })
}

/// Returns the names in the folder of parts that do not belong to the plan.
pub(super) fn foreign(read: &ReadPlan) -> Vec<String> {
    let folder = read.folder();
    let shards = &read.plan.shards;
    let files = shards.iter().flat_map(|shard| &shard.files);
    let mut known: HashSet<PathBuf> = files.map(|file| folder.join(&file.name)).collect();
    known.extend(shards.iter().map(|s| manifest_path(&folder, s.shard)));
    known.insert(folder.join(FINISHED));
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let names = entries.filter(|entry| !known.contains(&entry.path()));
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    // Hidden files belong to shards that run, or were interrupted.
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

/// Removes the parts of a finished plan, and what interrupted shards left.
pub(super) fn remove(read: &ReadPlan) -> io::Result<()> {
    for entry in fs::read_dir(read.folder())? {
        let entry = entry?;
        if entry.file_name() != FINISHED && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
