//! Options of quantization.

use schemas::gguf::DType;

use crate::ftype::FType;
use crate::imatrix::Imatrix;
use crate::rule::{KeyOverride, TypeRule};

/// Options of quantization.
#[derive(Clone, Debug)]
pub struct QuantizeConfig {
    /// File type of the result.
    pub ftype: FType,
    /// True to requantize tensors that are already quantized, which loses accuracy.
    pub allow_requantize: bool,
    /// Importance matrix; one without entries has no effect.
    pub imatrix: Option<Imatrix>,
    /// True to give all weights the default type of [`ftype`](Self::ftype), without a mix.
    pub pure: bool,
    /// True to leave `output.weight` unmodified.
    pub leave_output: bool,
    /// Type of `output.weight`, and of a tied embedding.
    pub output_type: Option<DType>,
    /// Type of token embeddings, whatever their row length.
    pub embedding_type: Option<DType>,
    /// Types by name; the first matching rule counts. Not used for file types F32, F16 and BF16.
    pub tensor_types: Vec<TypeRule>,
    /// Type of MTP weights that no rule matches. `eh_proj`, which every draft depends on, gets at
    /// least Q8_0.
    pub mtp_type: Option<DType>,
    /// Values of keys in the result; the mix uses them, too.
    pub overrides: Vec<KeyOverride>,
    /// Layers to remove. Later layers are renumbered; the mix still counts all layers.
    pub prune_layers: Vec<u32>,
    /// True to keep the input's shards, with tensors in the order of their data. The mix counts in
    /// output order, so types may differ.
    pub keep_split: bool,
}

impl QuantizeConfig {
    /// Options for a file type, with all other options at their defaults.
    pub fn new(ftype: FType) -> QuantizeConfig {
        QuantizeConfig {
            ftype,
            allow_requantize: false,
            imatrix: None,
            pure: false,
            leave_output: false,
            output_type: None,
            embedding_type: None,
            tensor_types: Vec::new(),
            mtp_type: None,
            overrides: Vec::new(),
            prune_layers: Vec::new(),
            keep_split: false,
        }
    }

    /// Returns the importance matrix if it has entries.
    pub(crate) fn imatrix(&self) -> Option<&Imatrix> {
        self.imatrix.as_ref().filter(|imatrix| !imatrix.is_empty())
    }
}
