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
const PERPLEXITY: &str = "imatrix.perplexity_sums";

/// Suffixes of the tensors of one weight.
const SQUARES: &str = ".squares";
const SUMS: &str = ".sums";
const COUNTS: &str = ".counts";

/// Sums after some chunks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    /// Number of chunks that were added.
    pub(super) n_done: usize,
    pub(super) surprises: Surprises,
    pub(super) tensors: Vec<TensorSums>,
}

impl State {
    /// Writes the state of a run with these settings.
    pub(super) fn write(&self, path: &Path, settings: &str) -> Result<(), Error> {
        let mut metadata = Metadata::new();
        metadata.set(GENERAL_TYPE, TYPE);
        metadata.set(SETTINGS, settings);
        metadata.set(N_DONE, self.n_done as u64);
        let Surprises { n, sum, squares } = self.surprises;
        metadata.set(PERPLEXITY, vec![n as f64, sum, squares]);
        let mut plan = Plan::new(metadata);
        for sums in self.tensors.iter().filter(|sums| !sums.counts.is_empty()) {
            let counts: Vec<f64> = sums.counts.iter().map(|&n| n as f64).collect();
            for (suffix, values) in [
                (SQUARES, &sums.squares),
                (SUMS, &sums.sums),
                (COUNTS, &counts),
            ] {
                let name = format!("{}{suffix}", sums.name);
                plan.tensors.push(f64_tensor(name, values));
            }
        }
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
        let plan = gguf::open_one(path)?;
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
        let n_done = metadata
            .get(N_DONE)
            .and_then(Value::as_u64)
            .ok_or_else(missing)?;
        let sums = metadata.get(PERPLEXITY).and_then(Value::as_array);
        let sums: Option<Vec<f64>> = sums.map(|sums| {
            let sums = (0..sums.len()).map(|i| sums.get(i));
            let numbers = sums.map(|sum| match sum {
                Some(Value::F64(sum)) => sum,
                _ => f64::NAN,
            });
            numbers.collect()
        });
        let Some([n, sum, squares]) = sums.as_deref() else {
            return Err(missing());
        };
        let values = |tensor: &Tensor| -> Result<Vec<f64>, Error> {
            let bytes = tensor.read_all().map_err(|e| state_error(path, e))?;
            let (values, _) = bytes.as_chunks();
            Ok(values.iter().map(|&x| f64::from_le_bytes(x)).collect())
        };
        let mut tensors = Vec::new();
        for squares in &plan.tensors {
            let Some(name) = squares.name.strip_suffix(SQUARES) else {
                continue;
            };
            let find = |suffix| plan.tensor(&format!("{name}{suffix}")).ok_or_else(missing);
            let counts = values(find(COUNTS)?)?;
            tensors.push(TensorSums {
                name: name.to_owned(),
                squares: values(squares)?,
                sums: values(find(SUMS)?)?,
                counts: counts.into_iter().map(|n| n as u64).collect(),
                ..TensorSums::default()
            });
        }
        Ok(Some(State {
            n_done: n_done as usize,
            surprises: Surprises {
                n: *n as u64,
                sum: *sum,
                squares: *squares,
            },
            tensors,
        }))
    }
}

fn f64_tensor(name: String, values: &[f64]) -> Tensor {
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
        let state = State {
            n_done: 7,
            surprises: Surprises {
                n: 3,
                sum: 0.1,
                squares: 0.7,
            },
            tensors: vec![TensorSums {
                name: "blk.0.x.weight".to_owned(),
                squares: vec![1.0 / 3.0, 2.0],
                sums: vec![-1.0, 1e-300],
                counts: vec![5],
                ..TensorSums::default()
            }],
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
