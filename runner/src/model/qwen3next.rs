//! Qwen3-Next: the layers of Qwen3.5, with value heads and their gates grouped by key head.

use kernels::backend::{Backend, HeadOrder};

use crate::error::ModelError;

use super::weights::Weights;
use super::{Layer, qwen35};

pub(super) fn load<B: Backend>(
    weights: &mut Weights<'_, B>,
) -> Result<Box<dyn Layer<B>>, ModelError> {
    qwen35::load_with(weights, HeadOrder::Grouped)
}
