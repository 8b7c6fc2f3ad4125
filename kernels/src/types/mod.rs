//! Element types of tensors: one file and one descriptor per type, and [`TYPES`], the list of all types.
//!
//! The file of a type has its block layout, its codec, the unpacking of its blocks for products, its use in
//! caches, and its descriptor, the constant `TYPE`. Its CUDA kernels are in the `.cuh` file of the same
//! name. Everything else in this crate finds a type through its descriptor.
//!
//! The scalar formulas are the specification. Quantizing must give the bytes of `llama-quantize`, so every
//! sum is a chain of single-precision operations in index order, each rounded once: no fused multiply-add,
//! no reordering, no wider accumulator. Faster versions process several blocks at once, each with its own
//! chain.
//!
//! Codecs see rows of numbers only; the quantize crate chooses the type of each tensor.

#![allow(
    non_camel_case_types,
    reason = "types of weights have the names that files give them"
)]

mod bf16;
pub(crate) mod common;
mod f16;
mod f32;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod nvfp4;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod tq1_0;
mod tq2_0;

use schemas::gguf::DType;

use crate::ops::matmul::cpu_floats::{FloatElement, FloatKernels};
use crate::ops::matmul::cpu_quants::QuantKernels;
use crate::simd::Isa;
use crate::simd::dispatch::{self, Implementation, implementations};
use common::block::Codecs;
use common::cache::CacheAccess;
use common::unpack::Unpack;

/// All element types with a codec.
pub static TYPES: &[ElementType] = &[
    f32::TYPE,
    f16::TYPE,
    bf16::TYPE,
    q4_0::TYPE,
    q4_1::TYPE,
    q5_0::TYPE,
    q5_1::TYPE,
    q8_0::TYPE,
    q2_k::TYPE,
    q3_k::TYPE,
    q4_k::TYPE,
    q5_k::TYPE,
    q6_k::TYPE,
    iq1_s::TYPE,
    iq1_m::TYPE,
    iq2_xxs::TYPE,
    iq2_xs::TYPE,
    iq2_s::TYPE,
    iq3_xxs::TYPE,
    iq3_s::TYPE,
    iq4_nl::TYPE,
    iq4_xs::TYPE,
    mxfp4::TYPE,
    nvfp4::TYPE,
    q1_0::TYPE,
    q2_0::TYPE,
    tq1_0::TYPE,
    tq2_0::TYPE,
];

/// A type whose weights cannot be multiplied.
#[cfg(test)]
pub(crate) const WITHOUT_PRODUCTS: ElementType = ElementType {
    products: None,
    ..q8_0::TYPE
};

/// The descriptor of an element type.
pub struct ElementType {
    /// The type in files.
    pub dtype: DType,
    pub(crate) codec: Codecs,
    /// Products with weights of the type; `None` if backends cannot load them.
    pub(crate) products: Option<Products>,
    /// Use in caches; `None` if caches cannot have the type.
    pub(crate) cache: Option<CacheAccess>,
    /// CUDA source: a struct with the name of the type, and `Cells` and its name for caches. `None` if
    /// devices cannot load weights of the type.
    pub(crate) cuda: Option<&'static str>,
}

/// Products of weights of a type with activations.
pub(crate) enum Products {
    /// Weights are converted to `f32`.
    Floats(FloatKernels),
    /// Blocks are unpacked to integers, which are multiplied with quantized activations.
    Quants(QuantKernels),
}

impl Products {
    const fn floats<E: FloatElement<BYTES>, const BYTES: usize>() -> Products {
        Products::Floats(FloatKernels::of::<E, BYTES>())
    }

    const fn quants<T: Unpack>() -> Products {
        Products::Quants(QuantKernels::of::<T>())
    }
}

impl ElementType {
    /// Returns the codec for one instruction set; `None` if this CPU lacks it.
    pub fn codec(&'static self, isa: Isa) -> Option<Codec> {
        let implementation = implementations().into_iter().find(|i| i.isa() == isa)?;
        Some(Codec {
            element_type: self,
            implementation,
        })
    }

    /// True if weights of the type are multiplied as quants.
    pub(crate) fn is_quantized(&self) -> bool {
        matches!(self.products, Some(Products::Quants(_)))
    }
}

/// Returns the descriptor of a type; `None` for integers, F64 and types that are only copied.
pub fn element_type(dtype: DType) -> Option<&'static ElementType> {
    TYPES.iter().find(|t| t.dtype == dtype)
}

/// The codec of an element type on an instruction set, between rows of `f32` and bytes.
#[derive(Clone, Copy)]
pub struct Codec {
    element_type: &'static ElementType,
    implementation: Implementation,
}

impl Codec {
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.element_type.dtype
    }

    /// Decodes whole blocks: `bytes.len()` is a multiple of the block size and `out.len()` the
    /// matching number of elements; anything else panics.
    pub fn dequantize(&self, bytes: &[u8], out: &mut [f32]) {
        (self.element_type.codec.dequantize)(self.implementation, bytes, out);
    }

    /// Encodes whole rows: `x.len()` is a multiple of the block length and `out.len()` the
    /// matching number of bytes.
    ///
    /// `weights` holds the importance of each column, at least 0; its length is that of a row. Types
    /// without a search ignore it. Without weights, blocks do not depend on each other. Every finite input
    /// is accepted, but magnitudes beyond the range of the type's scales give blocks that
    /// [`find_invalid`](Codec::find_invalid) reports.
    pub fn quantize(&self, x: &[f32], weights: Option<&[f32]>, out: &mut [u8]) {
        (self.element_type.codec.quantize)(self.implementation, x, weights, out);
    }

    /// Returns the first block whose scale is not finite; quants are always valid.
    pub fn find_invalid(&self, bytes: &[u8]) -> Option<Invalid> {
        (self.element_type.codec.find_invalid)(self.implementation, bytes)
    }
}

/// The first number that is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Block, counted from the start of the data; for F32, F16 and BF16 the element.
    pub index: usize,
    /// The kind of number found there.
    pub kind: InvalidKind,
}

/// Kinds of non-finite numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidKind {
    /// Not a number.
    Nan,
    /// Plus or minus infinity.
    Infinity,
}

impl InvalidKind {
    /// Classifies the bits of a float with so many fraction and exponent bits; `None` if it is finite.
    #[inline(always)]
    const fn of(bits: u32, fraction_bits: u32, exponent_bits: u32) -> Option<InvalidKind> {
        let infinity = ((1 << exponent_bits) - 1) << fraction_bits;
        match bits & ((1 << (fraction_bits + exponent_bits)) - 1) {
            magnitude if magnitude < infinity => None,
            magnitude if magnitude == infinity => Some(InvalidKind::Infinity),
            _ => Some(InvalidKind::Nan),
        }
    }
}

/// An instruction set cannot be selected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ChooseError {
    /// This machine, or this build of the program, lacks it.
    #[error("instruction set {found:?}: not available on this CPU, which has {available}")]
    Unavailable {
        /// The requested name.
        found: String,
        /// The available instruction sets.
        available: String,
    },
    /// Codecs of another instruction set are already in use.
    #[error("instruction set {found:?}: {chosen} is already in use")]
    InUse {
        /// The requested name.
        found: String,
        /// The instruction set in use.
        chosen: Isa,
    },
}

/// Makes the whole process use the codecs of one instruction set instead of the fastest. For benchmarks;
/// the bytes are the same. `scalar` is another name of `portable`.
///
/// # Errors
/// The machine lacks it, or codecs of another one are already in use.
pub fn choose(name: &str) -> Result<(), ChooseError> {
    let isa = match name {
        "scalar" => Some(Isa::Portable),
        name => name.parse().ok(),
    };
    let available = implementations();
    let Some(implementation) = available.iter().find(|i| Some(i.isa()) == isa) else {
        let names: Vec<String> = available.iter().map(|i| i.isa().to_string()).collect();
        return Err(ChooseError::Unavailable {
            found: name.to_owned(),
            available: names.join(", "),
        });
    };
    let chosen = dispatch::choose(*implementation);
    if Some(chosen) == isa {
        return Ok(());
    }
    let found = name.to_owned();
    Err(ChooseError::InUse { found, chosen })
}

/// Returns the codecs of all types.
pub fn codecs() -> impl Iterator<Item = Codec> {
    let implementation = dispatch::chosen();
    TYPES.iter().map(move |element_type| Codec {
        element_type,
        implementation,
    })
}

/// Returns the codec of a type; `None` for integers, F64 and types that are only copied.
pub fn codec(dtype: DType) -> Option<Codec> {
    codecs().find(|codec| codec.dtype() == dtype)
}
