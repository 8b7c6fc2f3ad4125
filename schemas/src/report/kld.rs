//! Result of `specrun kld`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Provenance;

/// Divergence of quantized models from their base on a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "kld")]
pub struct KldReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Program, date, machine and inputs.
    pub provenance: Option<Provenance>,
    /// Path of the base model's file, or of a file with its logits.
    pub base: String,
    /// Path of the text file; null if the tokens are those of a file with logits.
    pub text: Option<String>,
    /// Chunk length in tokens; each chunk starts with an empty KV cache.
    pub n_ctx: usize,
    /// Number of complete chunks.
    pub n_chunks: usize,
    /// Number of scored tokens: the second half of each chunk.
    pub n_scored: usize,
    /// Perplexity of the base model.
    pub base_perplexity: Estimate,
    /// The models that were compared with the base, in the order given.
    pub models: Vec<ModelDivergence>,
}

/// Divergence of one model from the base. Probabilities are those of the scored tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelDivergence {
    /// Path of the model's file.
    pub model: String,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// Bits of tensor data per weight.
    pub bits_per_weight: f64,
    /// Perplexity of the model.
    pub perplexity: Estimate,
    /// Logarithm of the perplexity divided by that of the base.
    pub ln_perplexity_ratio: Estimate,
    /// Perplexity divided by that of the base.
    pub perplexity_ratio: Estimate,
    /// Perplexity minus that of the base.
    pub perplexity_difference: Estimate,
    /// Correlation of the logarithms of both perplexities; null if one of them does not vary.
    pub correlation: Option<f64>,
    /// Kullback-Leibler divergence of the model's next-token distribution from the base's, in nats.
    pub kld: Distribution,
    /// Positions by divergence, in ascending ranges without gaps.
    #[serde(default)]
    pub kld_histogram: Vec<HistogramBin>,
    /// Probability of the text's next token minus the base's, in percent.
    pub delta_p_percent: Distribution,
    /// Root of the mean square of `delta_p_percent`.
    pub delta_p_rms_percent: Estimate,
    /// Share of the positions at which both models have the same likeliest token.
    pub same_top: Estimate,
}

/// An estimate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// Its standard error, as if positions were independent.
    pub standard_error: f64,
}

/// Distribution of a number over all scored positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// The mean.
    pub mean: Estimate,
    /// Percentiles in descending order, from the maximum (100) to the minimum (0).
    pub percentiles: Vec<Percentile>,
}

impl Distribution {
    /// Returns a percentile, if it is in the list.
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let mut percentiles = self.percentiles.iter();
        Some(percentiles.find(|p| p.percent == percent)?.value)
    }
}

/// The value below which a share of all values lies; values between two positions are interpolated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Percentile {
    /// The share in percent.
    pub percent: f64,
    /// The value.
    pub value: f64,
}

/// Positions whose value is in a range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistogramBin {
    /// Start of the range; the first range includes all smaller values.
    pub from: f64,
    /// End of the range, exclusive.
    pub to: f64,
    /// Number of positions.
    pub n: u64,
}
