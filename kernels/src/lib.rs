//! Arithmetic: [`quant`], the block codecs that quantize and the runner share, and [`backend`],
//! the operations of a forward pass, with [`cpu`] to run them. Knows element types, but neither files nor architectures.

pub mod backend;
pub mod cpu;
pub mod quant;
