//! [`State`]: an unfinished collection, kept in a GGUF file of `f64` tensors so that a later run can continue it
//! with the same bits.

use std::path::Path;
use std::sync::Arc;

use schemas::gguf::{
    self, DType, KeyError, Metadata, Output, Owned, Plan, Tensor, Value, WriteConfig,
};

use crate::error::Error;

use super::Surprises;
use super::collector::TensorSums;

const GENERAL_TYPE: &str = "general.type";
const TYPE: &str = "imatrix-state";
const SETTINGS: &str = "imatrix.settings";
const N_DONE: &str = "imatrix.chunks_done";
const N_HEADS: &str = "imatrix.heads";
const PERPLEXITY: &str = "imatrix.perplexity_sums";
const GROUP_PERPLEXITY: &str = "imatrix.group_perplexity_sums";
const ROUTED: &str = "imatrix.routed";

/// Suffixes of the tensors of one weight: squares, sums and counts of complete groups, and of the last group.
const TOTALS: [&str; 3] = [".squares", ".sums", ".counts"];
const GROUP: [&str; 3] = [".group_squares", ".group_sums", ".group_counts"];

/// Sums after some chunks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    /// Number of chunks that were added.
    pub(super) n_done: usize,
    pub(super) surprises: Surprises,
    pub(super) tensors: Vec<TensorSums>,
    /// Sums of a group of chunks that is not complete.
    pub(super) group_surprises: Surprises,
    pub(super) group: Vec<TensorSums>,
    /// MTP heads that were evaluated.
    pub(super) n_heads: usize,
}

impl State {
    /// Returns the file of this state, with the settings of its run.
    pub(super) fn plan(&self, settings: &str) -> Plan {
        let mut metadata = Metadata::new();
        metadata.set(GENERAL_TYPE, TYPE);
        metadata.set(SETTINGS, settings);
        metadata.set(N_DONE, self.n_done as u64);
        metadata.set(N_HEADS, self.n_heads as u64);
        metadata.set(PERPLEXITY, self.surprises.numbers());
        metadata.set(GROUP_PERPLEXITY, self.group_surprises.numbers());
        let all = self.tensors.iter().chain(&self.group);
        let routed = all.filter(|sums| sums.is_routed);
        let mut routed: Vec<String> = routed.map(|sums| sums.name.clone()).collect();
        routed.sort();
        routed.dedup();
        metadata.set(ROUTED, routed);
        let mut plan = Plan::new(metadata);
        for (suffixes, tensors) in [(TOTALS, &self.tensors), (GROUP, &self.group)] {
            for sums in tensors.iter().filter(|sums| !sums.counts.is_empty()) {
                let counts: Vec<f64> = sums.counts.iter().map(|&n| n as f64).collect();
                let values = [&sums.squares, &sums.sums, &counts];
                for (suffix, values) in suffixes.iter().zip(values) {
                    let name = format!("{}{suffix}", sums.name);
                    plan.tensors.push(f64_tensor(name, values));
                }
            }
        }
        plan
    }

    /// Writes the state of a run with these settings.
    pub(super) fn write(&self, path: &Path, settings: &str) -> Result<(), Error> {
        let plan = self.plan(settings);
        let output = Output { plan: &plan, path };
        gguf::write(&[output], &WriteConfig::new())
            .map(drop)
            .map_err(|error| state_error(path, error))
    }

    /// Reads the state of a run; `None` if there is no such file.
    ///
    /// # Errors
    /// The file is not a state, or is that of a run with other settings.
    pub(super) fn read(path: &Path, settings: &str) -> Result<Option<State>, Error> {
        if !path.exists() {
            return Ok(None);
        }
        State::of(&gguf::open_one(path)?, path, settings).map(Some)
    }

    /// Reads the state in an open file.
    ///
    /// # Errors
    /// The file is not a state, or is that of a run with other settings.
    pub(super) fn of(plan: &Plan, path: &Path, settings: &str) -> Result<State, Error> {
        let metadata = &plan.metadata;
        let key = |error: KeyError| state_error(path, error);
        let found = metadata.need_str(SETTINGS).map_err(key)?;
        let mut lines = found.lines().zip(settings.lines());
        if let Some((found, expected)) = lines.find(|(found, expected)| found != expected) {
            return Err(state_error(
                path,
                format!(
                    "belongs to another run: recorded {found}, now {expected}; use the recorded options and \
                     inputs, or remove the file to start again"
                ),
            ));
        }
        let missing = || state_error(path, "not the state of an importance matrix; remove it");
        let number = |key| {
            metadata
                .get(key)
                .and_then(Value::as_u64)
                .ok_or_else(missing)
        };
        let surprises = |key| {
            let numbers = metadata.get(key).and_then(Value::as_array);
            numbers.and_then(Surprises::of).ok_or_else(missing)
        };
        let values = |tensor: &Tensor| -> Result<Vec<f64>, Error> {
            let bytes = tensor.read_all().map_err(|e| state_error(path, e))?;
            let (values, _) = bytes.as_chunks();
            Ok(values.iter().map(|&x| f64::from_le_bytes(x)).collect())
        };
        let routed = metadata.strings(ROUTED).map_err(key)?;
        let is_routed = |name: &str| {
            routed.is_some_and(|names| names.iter().any(|found| found == name.as_bytes()))
        };
        let read = |[squares, sums, counts]: [&str; 3]| -> Result<Vec<TensorSums>, Error> {
            let mut tensors = Vec::new();
            for tensor in &plan.tensors {
                let Some(name) = tensor.name.strip_suffix(squares) else {
                    continue;
                };
                let find = |suffix| plan.tensor(&format!("{name}{suffix}")).ok_or_else(missing);
                let squares = values(tensor)?;
                let counts = values(find(counts)?)?;
                let sums = values(find(sums)?)?;
                if counts.is_empty() || sums.len() != squares.len() {
                    return Err(missing());
                }
                tensors.push(TensorSums {
                    name: name.to_owned(),
                    n_columns: squares.len() / counts.len(),
                    n_matrices: counts.len(),
                    is_routed: is_routed(name),
                    squares,
                    sums,
                    counts: counts.into_iter().map(|n| n as u64).collect(),
                });
            }
            Ok(tensors)
        };
        Ok(State {
            n_done: number(N_DONE)? as usize,
            n_heads: number(N_HEADS)? as usize,
            surprises: surprises(PERPLEXITY)?,
            group_surprises: surprises(GROUP_PERPLEXITY)?,
            tensors: read(TOTALS)?,
            group: read(GROUP)?,
        })
    }
}

/// Returns a tensor of one row.
pub(crate) fn f64_tensor(name: String, values: &[f64]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let n_bytes = bytes.len() as u64;
    Tensor {
        name,
        shape: vec![values.len() as u64],
        dtype: DType::F64,
        size_bytes: n_bytes,
        source: Arc::new(Owned {
            bytes,
            row_bytes: n_bytes,
        }),
    }
}

fn state_error(path: &Path, message: impl ToString) -> Error {
    Error::State {
        path: path.to_path_buf(),
        message: message.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        assert_eq!(State::read(&path, "a").unwrap(), None);
        let sums = |name: &str, x: f64, is_routed| TensorSums {
            name: name.to_owned(),
            n_columns: 2,
            n_matrices: 1,
            is_routed,
            squares: vec![x / 3.0, 2.0],
            sums: vec![-1.0, 1e-300],
            counts: vec![5],
        };
        let state = State {
            n_done: 7,
            n_heads: 2,
            surprises: Surprises {
                n: 3,
                sum: 0.1,
                squares: 0.7,
            },
            tensors: vec![sums("blk.0.x.weight", 1.0, true)],
            group_surprises: Surprises::default(),
            group: vec![
                sums("blk.0.x.weight", 7.0, true),
                sums("blk.0.y.weight", 5.0, false),
            ],
        };
        state.write(&path, "a\nb").unwrap();
        assert_eq!(State::read(&path, "a\nb").unwrap(), Some(state));
        let other = State::read(&path, "a\nc").unwrap_err().to_string();
        assert!(
            other.contains("belongs to another run: recorded b, now c"),
            "{other}"
        );
    }
}
