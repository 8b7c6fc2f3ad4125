//! Arithmetic: [`quant`], the block codecs that quantize and the runner share, and [`backend`],
//! the operations of a forward pass. Knows element types, but neither files nor architectures.

pub mod backend;
pub mod quant;
