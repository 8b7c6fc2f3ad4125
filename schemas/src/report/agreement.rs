//! Agreement of drafts with the choices of the target, at every position of known texts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Counters, DraftPosition, Floor};

/// Drafts at every position of texts that the target wrote, or that were given, compared with its choices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgreementReport {
    /// Origin of the texts.
    pub texts: AgreementTexts,
    /// Number of texts.
    pub n_texts: u64,
    /// Number of positions with drafts: the tokens after the prompts.
    pub n_positions: u64,
    /// Number of positions at which the target, reading the text, chooses another token than the text has. In texts
    /// of its own there are none.
    pub n_other_choices: u64,
    /// Time to write the texts, in milliseconds; null for given texts and for those that other checks decoded.
    pub writing_ms: Option<f64>,
    /// Results by speculator. Only those with a model are compared: drafts of the others depend on earlier drafts.
    pub speculators: Vec<SpeculatorAgreement>,
}

/// Origin of the texts of an agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AgreementTexts {
    /// The target continued the prompts without drafts.
    Own,
    /// A file, cut into pieces.
    Given,
}

/// Agreement of one speculator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeculatorAgreement {
    /// Name of the speculator.
    pub name: String,
    /// Predicted acceptance by draft position: over all positions of the texts whose outcome is known.
    pub by_draft_position: Vec<DraftPosition>,
    /// Predicted tokens per target pass: 1 plus the sum of the predicted acceptance rates; null without a draft.
    pub tokens_per_target_pass: Option<f64>,
    /// Counters of decoding these texts, which follow from the drafts at the positions where a pass begins; times are
    /// 0. Null for given texts.
    pub decoded: Option<Counters>,
    /// Time of reading the texts and drafting, in milliseconds.
    pub elapsed_ms: f64,
    /// Required acceptance rate; null without one, or if the check acceptance measures it.
    pub floor: Option<Floor>,
    /// True if the predicted rate reached the floor; null without a floor.
    pub floor_held: Option<bool>,
    /// Error or panic that ended the comparison; null if there was none.
    pub error: Option<String>,
}
