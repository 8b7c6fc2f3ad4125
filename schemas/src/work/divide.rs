//! Cuts the tensors of files into shards of about the same amount of work.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use indexmap::IndexMap;

use crate::gguf::{Plan, Tensor};

/// Rows at which a tensor may be cut are multiples of so many bytes in the file, if it has enough rows: parts
/// then keep the alignment of their data, and a file system with reflinks can share it.
const CUT_BYTES: u64 = 32;
/// A cut moves to the start of a file that is within this fraction of a shard: parts that are whole files need
/// not be copied.
const FILE_SNAP: u64 = 8;
/// A cut moves to the start of a tensor that is within this fraction of a shard.
const TENSOR_SNAP: u64 = 64;

/// Rows of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index of the tensor in its file.
    pub tensor: usize,
    /// The rows.
    pub rows: Range<u64>,
}

/// The share of a shard in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the file.
    pub file: usize,
    /// Slices of its tensors, in their order.
    pub slices: Vec<Slice>,
}

/// A tensor, and the index of its file and its own.
struct Placed<'a> {
    file: usize,
    index: usize,
    tensor: &'a Tensor,
}

/// Tensors that are computed from the same input. They are cut at the same rows, so that a shard reads its part
/// of the input once for all of them.
struct Group<'a> {
    tensors: Vec<Placed<'a>>,
    /// Rows of each tensor; `None` if the group must not be cut.
    n_rows: Option<u64>,
    /// Elements of all tensors together.
    cost: u64,
}

/// Divides the tensors of files among shards, in the order of the files. Shards have about the same number of
/// elements. Returns the parts of each shard; a shard may have none. A file without tensors belongs to the first one.
pub fn divide(files: &[&Plan], n_shards: usize) -> Vec<Vec<Part>> {
    let groups = groups(files);
    let total: u128 = groups.iter().map(|group| u128::from(group.cost)).sum();
    let starts = starts(&groups);
    let cut = |shard: usize| {
        let ideal = (total * shard as u128 / n_shards as u128) as u64;
        cut(&groups, &starts, ideal, (total / n_shards as u128) as u64)
    };
    let mut cuts: Vec<Cut> = (1..n_shards).map(cut).collect();
    cuts.insert(0, Cut { group: 0, row: 0 });
    cuts.push(Cut {
        group: groups.len(),
        row: 0,
    });
    // A cut may have moved past the next one.
    for i in 1..cuts.len() {
        cuts[i] = cuts[i].max(cuts[i - 1]);
    }
    let shards = cuts.windows(2);
    let mut shards: Vec<Vec<Part>> = shards
        .map(|pair| parts(&groups, pair[0], pair[1]))
        .collect();
    if let Some(first) = shards.first_mut() {
        let empty = (0..files.len()).filter(|&file| files[file].tensors.is_empty());
        first.extend(empty.map(|file| Part {
            file,
            slices: Vec::new(),
        }));
        first.sort_by_key(|part| part.file);
    }
    shards
}

/// A position between rows: the first `row` rows of a group are before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cut {
    group: usize,
    row: u64,
}

fn groups<'a>(files: &[&'a Plan]) -> Vec<Group<'a>> {
    let mut by_input: IndexMap<(Option<PathBuf>, u64, usize), Vec<Placed<'a>>> = IndexMap::new();
    for (file, plan) in files.iter().enumerate() {
        for (index, tensor) in plan.tensors.iter().enumerate() {
            let key = match tensor.source.input(0) {
                Some(at) => (Some(at.path.to_path_buf()), at.offset, 0),
                None => (None, index as u64, file),
            };
            by_input.entry(key).or_default().push(Placed {
                file,
                index,
                tensor,
            });
        }
    }
    let group = |tensors: Vec<Placed<'a>>| {
        let rows = |placed: &Placed<'_>| {
            let known = placed.tensor.dtype.layout().is_some();
            known.then(|| placed.tensor.n_rows())
        };
        let n_rows = rows(&tensors[0]);
        Group {
            n_rows: n_rows.filter(|n| *n > 1 && tensors.iter().all(|t| rows(t) == Some(*n))),
            cost: (tensors.iter())
                .map(|placed| placed.tensor.n_elements())
                .fold(0, u64::saturating_add),
            tensors,
        }
    };
    by_input.into_values().map(group).collect()
}

/// Returns the cost of all groups before each group, and that of all.
fn starts(groups: &[Group<'_>]) -> Vec<u64> {
    let mut sum = 0u64;
    let mut starts = vec![0];
    for group in groups {
        sum = sum.saturating_add(group.cost);
        starts.push(sum);
    }
    starts
}

/// Returns the position nearest to `ideal` at which a shard can end.
fn cut(groups: &[Group<'_>], starts: &[u64], ideal: u64, shard_cost: u64) -> Cut {
    let nearest = |group: &usize| starts[*group].abs_diff(ideal);
    let candidates = |snap| (0..=groups.len()).filter(move |i| nearest(i) <= shard_cost / snap);
    let begins_file = |group: usize| {
        let first = |g: &Group<'_>| g.tensors.iter().map(|placed| placed.file).min();
        let last = |g: &Group<'_>| g.tensors.iter().map(|placed| placed.file).max();
        match (
            group.checked_sub(1).map(|g| last(&groups[g])),
            groups.get(group),
        ) {
            (Some(before), Some(after)) => before < first(after),
            _ => true,
        }
    };
    let files = candidates(FILE_SNAP).filter(|&group| begins_file(group));
    let start = files.min_by_key(nearest);
    if let Some(group) = start.or_else(|| candidates(TENSOR_SNAP).min_by_key(nearest)) {
        return Cut { group, row: 0 };
    }
    // The group that contains the position.
    let group = starts.partition_point(|start| *start <= ideal).max(1) - 1;
    let Some(found) = groups.get(group) else {
        return Cut {
            group: groups.len(),
            row: 0,
        };
    };
    match found.n_rows {
        Some(n_rows) => {
            let step = found.tensors.iter().map(|placed| step(placed.tensor));
            let step = step.max().unwrap_or(1);
            let step = if n_rows / step > 4 { step } else { 1 };
            let exact = u128::from(ideal - starts[group]) * u128::from(n_rows);
            let row = (exact / u128::from(found.cost.max(1))) as u64;
            let row = (row / step * step).min(n_rows);
            Cut { group, row }
        }
        None if ideal - starts[group] > found.cost / 2 => Cut {
            group: group + 1,
            row: 0,
        },
        None => Cut { group, row: 0 },
    }
}

/// Returns the number of rows whose bytes are a multiple of [`CUT_BYTES`].
fn step(tensor: &Tensor) -> u64 {
    let row_bytes = tensor.row_bytes();
    // The size of a row is at least 1, and CUT_BYTES is a power of two.
    CUT_BYTES >> row_bytes.trailing_zeros().min(CUT_BYTES.trailing_zeros())
}

/// Returns the parts between two cuts.
fn parts(groups: &[Group<'_>], from: Cut, to: Cut) -> Vec<Part> {
    let mut files: BTreeMap<usize, Vec<Slice>> = BTreeMap::new();
    for (i, group) in groups.iter().enumerate() {
        if i < from.group || (i, 0) >= (to.group, to.row) {
            continue;
        }
        for placed in &group.tensors {
            let n_rows = placed.tensor.n_rows();
            let start = if i == from.group { from.row } else { 0 };
            let end = if i == to.group { to.row } else { n_rows };
            if start < end || start == 0 && n_rows == 0 {
                files.entry(placed.file).or_default().push(Slice {
                    tensor: placed.index,
                    rows: start..end,
                });
            }
        }
    }
    let part = |(file, mut slices): (usize, Vec<Slice>)| {
        slices.sort_by_key(|slice| slice.tensor);
        Part { file, slices }
    };
    files.into_iter().map(part).collect()
}
