//! [`Scores`]: the numbers of each scored position, in the order of the text.

use std::path::Path;

use runner::model_files::ModelFile;
use schemas::gguf::{DType, Metadata, Plan, Value};
use schemas::report::{KldReport, ModelDivergence, SCHEMA_VERSION};

use super::logits_error;
use super::row::RowScore;
use super::statistics;
use crate::error::Error;
use crate::imatrix::f64_tensor;

const GENERAL_TYPE: &str = "general.type";
const TYPE: &str = "divergence-scores";
const BASE: &str = "divergence.base";
const TEXT: &str = "divergence.text";
const N_CTX: &str = "divergence.context_length";
const N_CHUNKS: &str = "divergence.chunks";
const MODELS: &str = "divergence.models";
const SIZES: &str = "divergence.size_bytes";
const BITS: &str = "divergence.bits_per_weight";
const SURPRISES: &str = "base.surprises";

/// Scores of all positions of some chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    pub(super) base: String,
    pub(super) text: Option<String>,
    pub(super) n_ctx: usize,
    pub(super) n_chunks: usize,
    /// Negative log-probability of the next token in the base.
    pub(super) base_surprises: Vec<f64>,
    pub(super) models: Vec<ModelScores>,
}

/// Scores of one model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ModelScores {
    pub(super) model: String,
    pub(super) size_bytes: u64,
    pub(super) bits_per_weight: f64,
    pub(super) rows: Vec<RowScore>,
}

impl ModelScores {
    pub(super) fn new(file: &ModelFile, rows: Vec<RowScore>) -> ModelScores {
        let plan = &file.plan;
        ModelScores {
            model: file.path.display().to_string(),
            size_bytes: std::fs::metadata(&file.path).map_or(0, |found| found.len()),
            bits_per_weight: plan.data_bytes() as f64 * 8.0 / plan.n_elements().max(1) as f64,
            rows,
        }
    }
}

impl Scores {
    /// Adds the scores of the chunks that follow. Returns false if they are those of other models.
    pub fn append(&mut self, next: Scores) -> bool {
        let names = |scores: &Scores| {
            let models = scores.models.iter().map(|model| model.model.clone());
            (
                scores.base.clone(),
                scores.n_ctx,
                models.collect::<Vec<_>>(),
            )
        };
        if names(self) != names(&next) {
            return false;
        }
        self.n_chunks += next.n_chunks;
        self.base_surprises.extend(next.base_surprises);
        for (model, next) in self.models.iter_mut().zip(next.models) {
            model.rows.extend(next.rows);
        }
        true
    }

    /// Summarizes the scores. The result has no provenance.
    pub fn report(&self) -> KldReport {
        let models = self.models.iter();
        let models = models.map(|model| statistics::model_divergence(model, &self.base_surprises));
        KldReport {
            schema_version: SCHEMA_VERSION,
            provenance: None,
            base: self.base.clone(),
            text: self.text.clone(),
            n_ctx: self.n_ctx,
            n_chunks: self.n_chunks,
            n_scored: self.base_surprises.len(),
            base_perplexity: statistics::perplexity(&self.base_surprises),
            models: models.collect::<Vec<ModelDivergence>>(),
        }
    }

    /// Returns a file of the scores.
    pub fn plan(&self) -> Plan {
        let mut metadata = Metadata::new();
        metadata.set(GENERAL_TYPE, TYPE);
        metadata.set(BASE, self.base.as_str());
        if let Some(text) = &self.text {
            metadata.set(TEXT, text.as_str());
        }
        metadata.set(N_CTX, self.n_ctx as u64);
        metadata.set(N_CHUNKS, self.n_chunks as u64);
        let of = |models: &[ModelScores]| -> Vec<String> {
            models.iter().map(|model| model.model.clone()).collect()
        };
        metadata.set(MODELS, of(&self.models));
        let sizes: Vec<u64> = self.models.iter().map(|model| model.size_bytes).collect();
        metadata.set(SIZES, sizes);
        let bits: Vec<f64> = self
            .models
            .iter()
            .map(|model| model.bits_per_weight)
            .collect();
        metadata.set(BITS, bits);
        let mut plan = Plan::new(metadata);
        plan.tensors
            .push(f64_tensor(SURPRISES.to_owned(), &self.base_surprises));
        for (i, model) in self.models.iter().enumerate() {
            let numbers = model.rows.iter().flat_map(|row| {
                let same_top = f64::from(u8::from(row.same_top));
                [row.surprise, row.kld, row.delta_p, same_top]
            });
            plan.tensors.push(f64_tensor(
                format!("{i}.rows"),
                &numbers.collect::<Vec<f64>>(),
            ));
        }
        plan
    }

    /// Reads the scores of an open file.
    ///
    /// # Errors
    /// The file has no scores.
    pub fn of(plan: &Plan, path: &Path) -> Result<Scores, Error> {
        let missing = || logits_error(path, "not a file of divergence scores");
        let metadata = &plan.metadata;
        let text = |key| metadata.str(key).ok().flatten().map(str::to_owned);
        let number = |key| {
            metadata
                .get(key)
                .and_then(Value::as_u64)
                .ok_or_else(missing)
        };
        let array = |key| {
            metadata
                .get(key)
                .and_then(Value::as_array)
                .ok_or_else(missing)
        };
        let names = metadata
            .strings(MODELS)
            .ok()
            .flatten()
            .ok_or_else(missing)?;
        let (sizes, bits) = (array(SIZES)?, array(BITS)?);
        let values = |name: &str| -> Result<Vec<f64>, Error> {
            let tensor = plan
                .tensor(name)
                .filter(|tensor| tensor.dtype == DType::F64);
            let bytes = tensor.ok_or_else(missing)?.read_all();
            let bytes = bytes.map_err(|error| logits_error(path, error))?;
            let (values, _) = bytes.as_chunks();
            Ok(values.iter().map(|&x| f64::from_le_bytes(x)).collect())
        };
        let base_surprises = values(SURPRISES)?;
        let mut models = Vec::new();
        for (i, name) in names.iter().enumerate() {
            let numbers = values(&format!("{i}.rows"))?;
            let (rows, rest) = numbers.as_chunks::<4>();
            if rows.len() != base_surprises.len() || !rest.is_empty() {
                return Err(missing());
            }
            let rows = rows
                .iter()
                .map(|&[surprise, kld, delta_p, same_top]| RowScore {
                    surprise,
                    kld,
                    delta_p,
                    same_top: same_top != 0.0,
                });
            models.push(ModelScores {
                model: name.to_string(),
                size_bytes: sizes
                    .get(i)
                    .and_then(|size| size.as_u64())
                    .ok_or_else(missing)?,
                bits_per_weight: match bits.get(i) {
                    Some(Value::F64(bits)) => bits,
                    _ => return Err(missing()),
                },
                rows: rows.collect(),
            });
        }
        Ok(Scores {
            base: text(BASE).ok_or_else(missing)?,
            text: text(TEXT),
            n_ctx: number(N_CTX)? as usize,
            n_chunks: number(N_CHUNKS)? as usize,
            base_surprises,
            models,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(start: usize, end: usize) -> Scores {
        let rows = (start..end).map(|i| RowScore {
            surprise: 1.0 / (i + 3) as f64,
            kld: (i as f64).sin(),
            delta_p: -0.1 * i as f64,
            same_top: i % 3 == 0,
        });
        let rows: Vec<RowScore> = rows.collect();
        Scores {
            base: "base.gguf".to_owned(),
            text: Some("text.txt".to_owned()),
            n_ctx: 8,
            n_chunks: (end - start) / 3,
            base_surprises: rows.iter().map(|row| row.surprise / 7.0).collect(),
            models: ["a.gguf", "b.gguf"]
                .map(|model| ModelScores {
                    model: model.to_owned(),
                    size_bytes: 7,
                    bits_per_weight: 4.5,
                    rows: rows.clone(),
                })
                .into(),
        }
    }

    #[test]
    fn parts_of_a_text_join_to_the_whole() {
        let mut joined = scores(0, 3);
        for (start, end) in [(3, 12), (12, 18)] {
            let part = scores(start, end).plan();
            assert!(joined.append(Scores::of(&part, Path::new("part")).unwrap()));
        }
        assert_eq!(joined, scores(0, 18));
        let mut other = scores(18, 21);
        other.models.pop();
        assert!(!joined.append(other));
        assert_eq!(joined, scores(0, 18));
        let empty = Plan::new(Metadata::new());
        let error = Scores::of(&empty, Path::new("x.gguf")).unwrap_err();
        assert_eq!(error.to_string(), "x.gguf: not a file of divergence scores");
    }
}
