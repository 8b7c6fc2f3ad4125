//! Arithmetic: [`quant`], the block codecs that quantize and the runner share, [`statistics`] of the
//! values that they decode, and [`backend`], the operations of a forward pass, with [`cpu`] and
//! [`cuda`] to run them. [`out_of_memory`] ends programs without memory. Knows element types and tensors, but neither files nor architectures.

pub mod backend;
pub mod cpu;
pub mod cuda;
pub mod out_of_memory;
pub mod quant;
pub mod statistics;
