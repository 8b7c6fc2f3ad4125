//! Arithmetic. [`types`] has the element types with their codecs, [`statistics`] statistics of decoded
//! weights, [`distribution`] comparisons of logits, [`float`] conversions of half-precision floats and
//! [`backend`] the operations of a forward pass with the implementations [`cpu`] and [`cuda`].
//! [`out_of_memory`] ends the program with a message when an allocation fails. This crate knows element
//! types and tensors, but neither files nor architectures.

pub mod backend;
pub mod cpu;
pub mod cuda;
pub mod distribution;
pub mod float;
mod ops;
pub mod out_of_memory;
mod simd;
pub mod statistics;
pub mod types;
