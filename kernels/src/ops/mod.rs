//! The operations of a forward pass, one folder each: the signature, the CPU implementation, the CUDA
//! implementation and its kernels.

pub(crate) mod attention;
pub(crate) mod cache;
pub(crate) mod causal_conv;
pub(crate) mod choose;
pub(crate) mod compression;
pub(crate) mod elementwise;
pub(crate) mod embed;
pub(crate) mod gated_delta;
pub(crate) mod hyper_connection;
pub(crate) mod matmul;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod state_space;

use crate::cuda::source::Source;

/// The CUDA source files of all operations.
pub(crate) static CUDA_SOURCES: [Source; 17] = [
    attention::cuda::SOURCE,
    cache::cuda::SOURCE,
    causal_conv::cuda::SOURCE,
    choose::cuda::SOURCE,
    compression::cuda::SOURCE,
    compression::cuda::INDEXER_SOURCE,
    elementwise::cuda::SOURCE,
    embed::cuda::SOURCE,
    gated_delta::cuda::SOURCE,
    hyper_connection::cuda::SOURCE,
    matmul::cuda::FLOAT_SOURCE,
    matmul::cuda::QUANTS_SOURCE,
    moe::cuda::SOURCE,
    norm::cuda::SOURCE,
    rope::cuda::SOURCE,
    rows::cuda::SOURCE,
    state_space::cuda::SOURCE,
];
