//! Result of `specrun imatrix`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Estimate, Provenance};

/// An importance matrix: sums over the inputs of weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "imatrix")]
pub struct ImatrixReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Program, date, machine and inputs.
    pub provenance: Option<Provenance>,
    /// Path of the written file; null if statistics of a file were computed.
    pub path: Option<String>,
    /// Names of the texts that it was collected on, those of merged files first.
    pub datasets: Vec<String>,
    /// Chunk length in tokens; each chunk starts with an empty KV cache.
    pub n_ctx: u32,
    /// Number of chunks, those of merged files included.
    pub n_chunks: u32,
    /// Number of chunks that this run evaluated.
    pub n_chunks_evaluated: usize,
    /// Perplexity of the target on the second halves of these chunks; null if it was not computed.
    pub perplexity: Option<Estimate>,
    /// The entries in file order.
    pub entries: Vec<ImatrixEntryReport>,
    /// Statistics of each layer.
    pub layers: Vec<ImatrixLayer>,
}

/// One entry of an importance matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImatrixEntryReport {
    /// Name of the weight.
    pub tensor: String,
    /// Number of sums per count.
    pub n_columns: usize,
    /// Input rows of each expert, or one number for the whole tensor.
    pub counts: Vec<u64>,
    /// Experts without input rows; quantizers weight all of their columns alike.
    pub unused_experts: Vec<usize>,
    /// The statistics; null if no expert had rows.
    pub statistics: Option<ImatrixStatistics>,
}

/// Statistics of an entry, over the mean and the mean square (energy) of each column. Comparisons are with the
/// same weight of the nearest layer before that has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImatrixStatistics {
    /// Sum of the energies.
    pub sum_sq: f64,
    /// Mean of the means.
    pub mean: f64,
    /// Number of columns.
    pub n_elements: usize,
    /// Standard deviation of the means.
    pub std_deviation: f64,
    /// Skewness of the means.
    pub skewness: f64,
    /// Excess kurtosis of the means.
    pub kurtosis: f64,
    /// Root of the mean energy, relative to that of the layer before.
    pub gain: Option<f64>,
    /// Entropy of the energies in percent of the largest possible one; null for one column.
    pub h_norm: Option<f64>,
    /// Euclidean distance of the means from those of the layer before.
    pub l2_dist: Option<f64>,
    /// Cosine similarity with the layer before.
    pub cossim: Option<f64>,
    /// Pearson correlation with the layer before.
    pub pearson: Option<f64>,
    /// Covariance with the layer before.
    pub covariance: Option<f64>,
}

/// Statistics of a layer, over all its entries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImatrixLayer {
    /// Number of the layer.
    pub layer: u32,
    /// True if it is an MTP head.
    pub is_head: bool,
    /// Sum of the energies.
    pub sum_sq: f64,
    /// Root of the mean energy, relative to that of the layer before.
    pub gain: Option<f64>,
    /// Euclidean distance of the means from those of the layer before.
    pub l2_dist: Option<f64>,
    /// Cosine similarity with the layer before.
    pub cossim: Option<f64>,
    /// Pearson correlation with the layer before.
    pub pearson: Option<f64>,
    /// Covariance with the layer before.
    pub covariance: Option<f64>,
}
