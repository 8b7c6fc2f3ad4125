//! Errors of checks and measurements.

use std::path::PathBuf;

use kernels::backend::Failure;
use runner::sample::SampleError;
use schemas::gguf::ReadError;

use crate::prompts::PromptError;

/// A check or a measurement could not run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    /// A model could not be loaded or run.
    #[error(transparent)]
    Run(#[from] runner::Error),
    /// The prompt file cannot be used; the message names the file.
    #[error(transparent)]
    Prompts(#[from] PromptError),
    /// A comparison with an earlier report is not possible.
    #[error("{}: {message}", .path.display())]
    Baseline { path: PathBuf, message: String },
    /// A server cannot be reached or refuses a request.
    #[error("{url}: {message}")]
    Server { url: String, message: String },
    /// A file with the logits of a base model cannot be used.
    #[error("{}: {message}", .path.display())]
    Logits { path: PathBuf, message: String },
    /// The state of an unfinished run cannot be used.
    #[error("{}: {message}", .path.display())]
    State { path: PathBuf, message: String },
    /// The caller stopped the run.
    #[error("interrupted")]
    Interrupted,
    /// An activation is NaN, infinite or too large.
    #[error(
        "{model}: tensor {tensor}: chunk {chunk}: column {column} of an input row is {value}, expected numbers \
         whose squares can be added"
    )]
    InvalidActivation {
        model: String,
        tensor: String,
        /// From 1.
        chunk: usize,
        column: usize,
        value: f32,
    },
    /// All chunks of the texts were skipped.
    #[error(
        "the texts have {n_chunks} chunks, expected more than the {first_chunk} that are skipped"
    )]
    NoChunks { n_chunks: usize, first_chunk: usize },
    /// All prompts contain embeddings.
    #[error(
        "all prompts contain embeddings, expected one of text alone, whose context can be extended"
    )]
    NoTextPrompts,
    /// The text is too short to score.
    #[error("{text}: {n_tokens} tokens, expected at least one chunk of {n_ctx}")]
    ShortText {
        text: String,
        n_tokens: usize,
        n_ctx: usize,
    },
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Error {
        Error::Run(error.into())
    }
}

impl From<SampleError> for Error {
    fn from(error: SampleError) -> Error {
        Error::Run(error.into())
    }
}

impl From<Failure> for Error {
    fn from(error: Failure) -> Error {
        Error::Run(error.into())
    }
}
