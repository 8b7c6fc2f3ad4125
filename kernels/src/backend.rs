//! The operations of a forward pass that every backend implements.
//!
//! Activations are row-major `f32`, one row per token; a batch holds rows of any sequences in any order.
//! Every operation works row by row, and the value of a row never depends on the other rows of the batch,
//! on their number, or on the number of threads. This batch invariance is why verifying a draft reproduces
//! plain decoding bit for bit. A backend that cannot guarantee it for an operation must not offer that
//! operation.
//!
//! The caller guarantees matching lengths (a forward pass computes them from checked hyperparameters);
//! implementations assert them. Properties that depend on a file, such as an element type without a kernel,
//! are reported as [`UnsupportedWeight`] when the weight is loaded, never later.

use std::ops::Range;
use std::sync::Arc;

use schemas::gguf::DType;

pub use crate::cpu::prefetch::Prefetching;
pub use crate::ops::attention::{AttentionInput, AttentionOp, AttentionShape, KeyRows};
pub use crate::ops::cache::{CacheOp, CacheShape, CacheType, GatheredRows};
pub use crate::ops::causal_conv::{CausalConvOp, Step};
pub use crate::ops::choose::{ChooseOp, Largest};
pub use crate::ops::compression::{
    CompressionInput, CompressionOp, CompressionShape, IndexerInput, IndexerShape, SourceRow,
};
pub use crate::ops::elementwise::ElementwiseOp;
pub use crate::ops::embed::EmbedOp;
pub use crate::ops::gated_delta::{DeltaInput, DeltaShape, GatedDeltaOp, HeadOrder};
pub use crate::ops::hyper_connection::{HyperConnectionOp, StreamShape};
pub use crate::ops::matmul::MatmulOp;
pub use crate::ops::moe::{ExpertInput, Gating, MoeOp, Routing};
pub use crate::ops::norm::NormOp;
pub use crate::ops::rope::{Rope, RopeLayout, RopeOp};
pub use crate::ops::rows::{Columns, RowsOp};
pub use crate::ops::state_space::{StateSpaceInput, StateSpaceOp, StateSpaceShape};

/// The bytes of a weight, shared for as long as the weight lives; usually a range of a mapped file.
pub type WeightBytes = Arc<dyn WeightMemory>;

/// Memory that holds the bytes of a weight.
pub trait WeightMemory: AsRef<[u8]> + Send + Sync {
    /// Releases bytes that are not expected to be read again: pages of a mapped file may leave memory.
    fn release_pages(&self, bytes: Range<usize>) {
        let _ = bytes;
    }
}

impl WeightMemory for Vec<u8> {}

/// A weight as stored in a file: `n_rows` rows of `n_cols` elements, quantization blocks along the columns.
#[derive(Clone)]
pub struct WeightData {
    /// Element type.
    pub dtype: DType,
    /// Output features; 1 for a vector.
    pub n_rows: usize,
    /// Input features, the contiguous axis.
    pub n_cols: usize,
    /// `n_rows` times the row size of `dtype`.
    pub bytes: WeightBytes,
}

/// The backend has no kernel for the element type.
#[derive(Debug, thiserror::Error)]
#[error("the {backend} backend has no kernel for {dtype} weights")]
pub struct UnsupportedWeight {
    /// [`Backend::name`].
    pub backend: String,
    /// The unsupported type.
    pub dtype: DType,
}

/// A backend failure. Results computed after it are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{backend}: {reason}")]
pub struct Failure {
    /// [`Backend::name`].
    pub backend: String,
    /// The cause, and what to do.
    pub reason: String,
}

/// The threads that a measurement of memory uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// The calling thread.
    One,
    /// All compute threads together.
    All,
}

/// The objects of a backend.
pub trait Storage: Send + Sync + Sized + 'static {
    /// An `f32` buffer in the backend's memory.
    type Buffer: Send + Sync;
    /// A weight loaded for this backend.
    type Weight: Send + Sync;
    /// Keys or values of past tokens, in their own element type.
    type Cache: Send + Sync;
    /// The experts that each row uses, and their weights.
    type Routes: Send + Sync;
    /// Chosen tokens, which may stay on the device.
    type Chosen: Send + Sync;
}

/// A backend: memory, weights, and all operations of a forward pass.
pub trait Backend:
    AttentionOp
    + CacheOp
    + CausalConvOp
    + ChooseOp
    + CompressionOp
    + ElementwiseOp
    + EmbedOp
    + GatedDeltaOp
    + HyperConnectionOp
    + MatmulOp
    + MoeOp
    + NormOp
    + RopeOp
    + RowsOp
    + StateSpaceOp
{
    /// Returns the backend's name and the instruction set or device in use, for logs and reports.
    fn name(&self) -> String;

    /// Returns the first failure so far, if any, such as a lost device or exhausted device memory.
    /// Operations do not report failures; callers check before they use a result.
    fn failure(&self) -> Option<Failure> {
        None
    }

    /// Loads a weight.
    ///
    /// # Errors
    /// The element type has no kernel.
    fn load(&self, data: WeightData) -> Result<Self::Weight, UnsupportedWeight>;

    /// Bytes read from memory when the whole weight is used once.
    fn weight_bytes(&self, weight: &Self::Weight) -> usize;

    /// Bytes that can still be allocated for buffers; `None` if unknown.
    fn free_bytes(&self) -> Option<u64>;

    /// Bytes of memory that a weight of `file_bytes` in the file takes from the backend's free bytes: 0
    /// where files are mapped, or are released while weights are copied.
    fn weight_room(&self, file_bytes: u64) -> u64;

    /// Measures the memory read bandwidth of one thread or of all compute threads together, in bytes per
    /// second; takes up to a second. `None` if the backend does not measure it.
    fn read_rate(&self, _: Readers) -> Option<f64> {
        None
    }

    /// Returns the lines that products prefetch; `None` if it has not been measured yet or the backend has no such choice.
    fn prefetching(&self) -> Option<Prefetching> {
        None
    }

    /// Returns a buffer of `len` elements filled with NaN, so that a read of an unwritten element shows.
    fn buffer(&self, len: usize) -> Self::Buffer;

    /// Returns a buffer of `len` elements for activations. Most passes use only part of it, so memory may
    /// be committed only when it is written.
    fn scratch(&self, len: usize) -> Self::Buffer {
        self.buffer(len)
    }

    /// Copies host memory to `dst[at..]`.
    fn upload(&self, src: &[f32], dst: &mut Self::Buffer, at: usize);

    /// Copies `src[at..]` to host memory.
    fn download(&self, src: &Self::Buffer, at: usize, dst: &mut [f32]);
}
