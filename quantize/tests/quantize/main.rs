//! Quantizing whole models.

mod mix;
mod pipeline;
