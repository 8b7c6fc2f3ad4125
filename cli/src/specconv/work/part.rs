//! Parts: the files of a shard and their manifest.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use schemas::gguf::{FileLayout, HashedRange, Staged};
use schemas::input;
use schemas::report::{
    PartFile, PartManifest, PartRange, SCHEMA_VERSION, WorkContent, WorkFile, WorkParts, WorkPlan,
    WorkShard, WorkSlice, WorkTensor,
};
use schemas::work::check_ranges;

use super::ReadPlan;

/// Name of the report of `finish` in the folder of parts.
pub(super) const FINISHED: &str = "finished.json";

/// Maximum size of a manifest in bytes.
const MAX_MANIFEST: u64 = 256 << 20;

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
    for (file, found) in expected.iter().zip(found) {
        let path = read.file_path(&file.name);
        if let Err(problem) = check_file(&read.plan, file, found, &path, cancelled) {
            let name = path.file_name().unwrap_or_default();
            return State::Wrong(format!("{}: {problem}", name.display()));
        }
    }
    State::Right(size_bytes(&manifest))
}

/// Returns the bytes that a shard wrote.
pub(super) fn size_bytes(manifest: &PartManifest) -> u64 {
    let ranges = manifest.files.iter().flat_map(|file| &file.ranges);
    sum(ranges.map(|range| range.size_bytes))
}

/// Adds sizes, which may be those of a damaged file.
fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

fn check_file(
    plan: &WorkPlan,
    file: &WorkFile,
    found: &PartFile,
    path: &Path,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), String> {
    let metadata = fs::metadata(path).map_err(|error| error.to_string())?;
    let (size, expected) = (metadata.len(), found.size_bytes);
    if size != expected {
        return Err(format!("{size} bytes, expected {expected}"));
    }
    if let WorkContent::Tensors { slices, .. } = &file.content {
        let rows = found.ranges.iter().filter(|range| range.offset > 0);
        let n_bytes = sum(rows.map(|range| range.size_bytes));
        let expected = sum(slices.iter().map(|slice| slice.size_bytes));
        if n_bytes != expected {
            let what = "its manifest has hashes of";
            return Err(format!(
                "{what} {n_bytes} bytes of rows, expected {expected}"
            ));
        }
    }
    let ranges = found.ranges.iter().map(|range| HashedRange {
        offset: range.offset,
        size_bytes: range.size_bytes,
        xxh3: range.xxh3.clone(),
    });
    let ranges: Vec<HashedRange> = ranges.collect();
    let checked = check_ranges(path, &written(plan, file, size), &ranges, cancelled);
    checked.map_err(|error| error.to_string())
}

/// Returns the parts of a file that its shard writes, with the padding after them.
fn written(plan: &WorkPlan, file: &WorkFile, size_bytes: u64) -> Vec<Range<u64>> {
    let (WorkParts::Shared, WorkContent::Tensors { output, slices }) = (plan.parts, &file.content)
    else {
        return std::iter::once(0..size_bytes).collect();
    };
    let output = plan.outputs.get(*output as usize);
    let tensors = output.map_or(&[][..], |output| &output.tensors);
    let start = |tensor: usize| tensors.get(tensor).map_or(size_bytes, |found| found.offset);
    let rows = slices.iter().map(|slice| {
        let end = slice.offset.saturating_add(slice.size_bytes);
        let is_last = |tensor: &WorkTensor| end == end_of(tensor);
        let tensor = slice.tensor as usize;
        match tensors.get(tensor).is_some_and(is_last) {
            true => slice.offset..start(tensor + 1),
            false => slice.offset..end,
        }
    });
    let header = has_header(slices).then(|| 0..start(0));
    header.into_iter().chain(rows).collect()
}

fn end_of(tensor: &WorkTensor) -> u64 {
    tensor.offset.saturating_add(tensor.size_bytes)
}

/// Checks whether a shard writes the header of a shared file: the one with the start of the first tensor does.
fn has_header(slices: &[WorkSlice]) -> bool {
    let first = slices.first();
    first.is_none_or(|slice| slice.tensor == 0 && slice.first_row == 0)
}

/// Returns the layouts of the shared files, with the offsets of the rows of a shard. `headers` are those of the outputs.
pub(super) fn shared_layouts(
    plan: &WorkPlan,
    shard: &WorkShard,
    headers: &[Vec<u8>],
) -> Vec<FileLayout> {
    let layout = |file: &WorkFile| match &file.content {
        WorkContent::Tensors { output, slices } => Some(FileLayout {
            header: match has_header(slices) {
                true => headers.get(*output as usize)?.clone(),
                false => Vec::new(),
            },
            offsets: slices.iter().map(|slice| slice.offset).collect(),
            size_bytes: plan.outputs.get(*output as usize)?.size_bytes,
        }),
        _ => None,
    };
    shard.files.iter().filter_map(layout).collect()
}

/// Describes the part of a shard that was written; `None` if it has no files.
pub(super) fn manifest(
    read: &ReadPlan,
    shard: &WorkShard,
    staged: Option<&Staged>,
) -> PartManifest {
    let sizes = staged.map_or(&[][..], Staged::sizes);
    let ranges = staged.map(Staged::ranges).unwrap_or_default();
    let files = shard.files.iter().zip(sizes).zip(ranges);
    let range = |range: HashedRange| PartRange {
        offset: range.offset,
        size_bytes: range.size_bytes,
        xxh3: range.xxh3,
    };
    PartManifest {
        schema_version: SCHEMA_VERSION,
        plan_sha256: read.sha256.clone(),
        shard: shard.shard,
        files: files
            .map(|((file, &size_bytes), ranges)| PartFile {
                name: file.name.clone(),
                size_bytes,
                ranges: ranges.into_iter().map(range).collect(),
            })
            .collect(),
    }
}

/// Returns the names in the folder of parts that do not belong to the plan.
pub(super) fn foreign(read: &ReadPlan) -> Vec<String> {
    let folder = read.folder();
    let shards = &read.plan.shards;
    let files = shards.iter().flat_map(|shard| &shard.files);
    let mut known: HashSet<PathBuf> = files.map(|file| read.file_path(&file.name)).collect();
    known.extend(shards.iter().map(|s| manifest_path(&folder, s.shard)));
    known.insert(folder.join(FINISHED));
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let names = entries.filter(|entry| !known.contains(&entry.path()));
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    // Hidden files are shared, or belong to shards that run or were interrupted.
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
