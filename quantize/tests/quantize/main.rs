//! Tests of quantizing whole models.

mod imatrix;
mod mix;
mod pipeline;
mod rules;
