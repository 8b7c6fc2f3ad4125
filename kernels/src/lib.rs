//! Arithmetic. [`quant`] has the block codecs shared by quantize and the runner, [`statistics`] statistics
//! of decoded weights, [`backend`] the operations of a forward pass with the implementations [`cpu`] and
//! [`cuda`]. [`out_of_memory`] ends the program with a message when an allocation fails. This crate knows
//! element types and tensors, but neither files nor architectures.

pub mod backend;
pub mod cpu;
pub mod cuda;
pub mod out_of_memory;
pub mod quant;
pub mod statistics;
