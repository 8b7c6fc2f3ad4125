//! Block codecs, one file per type, and the list of all types.
//!
//! The scalar formulas are the specification. Quantizing must give the bytes of `llama-quantize`, so every
//! sum is a chain of single-precision operations in index order, each rounded once: no fused multiply-add,
//! no reordering, no wider accumulator. Faster versions process several blocks at once, each with its own
//! chain.
//!
//! Codecs see rows of numbers only; the quantize crate chooses the type of each tensor.

pub(crate) mod affine;
pub(crate) mod block;
mod fit_affine;
mod fit_positive;
mod fit_symmetric;
mod float;
mod half;
mod instruction_set;
pub(crate) mod iq4_nl;
mod iq4_xs;
mod lanes;
pub(crate) mod mxfp4;
#[cfg(target_arch = "aarch64")]
mod neon;
mod nibbles;
mod one_pass;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
pub(crate) mod q4_k;
mod q5_0;
mod q5_1;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod simd;
mod steps;
mod weights;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::{LazyLock, OnceLock};

use schemas::gguf::DType;

use block::Codec;
use instruction_set::InstructionSet;

/// The codec of one element type, between rows of `f32` and bytes.
pub trait QuantType: Sync {
    /// The element type.
    fn dtype(&self) -> DType;

    /// Decodes whole blocks: `bytes.len()` is a multiple of the block size and `out.len()` the
    /// matching number of elements; anything else panics.
    fn dequantize(&self, bytes: &[u8], out: &mut [f32]);

    /// Encodes whole rows: `x.len()` is a multiple of the block length and `out.len()` the
    /// matching number of bytes.
    ///
    /// `weights` holds the importance of each column, at least 0; its length is that of a row. Types
    /// without a search ignore it. Without weights, blocks do not depend on each other. Every finite input
    /// is accepted, but magnitudes beyond the range of the type's scales give blocks that
    /// [`find_invalid`](QuantType::find_invalid) reports.
    fn quantize(&self, x: &[f32], weights: Option<&[f32]>, out: &mut [u8]);

    /// Returns the first block whose scale is not finite; quants are always valid.
    fn find_invalid(&self, bytes: &[u8]) -> Option<Invalid>;
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

/// The codecs compiled for one instruction set.
pub struct Implementation {
    /// The instruction set.
    pub name: &'static str,
    /// Every type with a codec.
    pub types: [&'static dyn QuantType; 16],
}

impl Implementation {
    const fn of<I: InstructionSet>() -> Implementation {
        Implementation {
            name: I::NAME,
            types: [
                &Codec::<half::F32, 1, I>::NEW,
                &Codec::<half::F16, 1, I>::NEW,
                &Codec::<half::BF16, 1, I>::NEW,
                &Codec::<q4_0::Q4_0, 32, I>::NEW,
                &Codec::<q4_1::Q4_1, 32, I>::NEW,
                &Codec::<q5_0::Q5_0, 32, I>::NEW,
                &Codec::<q5_1::Q5_1, 32, I>::NEW,
                &Codec::<q8_0::Q8_0, 32, I>::NEW,
                &Codec::<q2_k::Q2_K, 256, I>::NEW,
                &Codec::<q3_k::Q3_K, 256, I>::NEW,
                &Codec::<q4_k::Q4_K, 256, I>::NEW,
                &Codec::<q5_k::Q5_K, 256, I>::NEW,
                &Codec::<q6_k::Q6_K, 256, I>::NEW,
                &Codec::<iq4_nl::IQ4_NL, 32, I>::NEW,
                &Codec::<iq4_xs::IQ4_XS, 256, I>::NEW,
                &Codec::<mxfp4::MXFP4, 32, I>::NEW,
            ],
        }
    }
}

/// Returns the implementations that this machine supports, fastest first, the scalar specification last.
/// All give the same bytes.
pub fn implementations() -> &'static [Implementation] {
    static AVAILABLE: LazyLock<Vec<Implementation>> = LazyLock::new(|| {
        let mut available = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if x86::Avx512::is_available() {
                available.push(Implementation::of::<x86::Avx512>());
            }
            if x86::Avx2::is_available() {
                available.push(Implementation::of::<x86::Avx2>());
            }
        }
        #[cfg(target_arch = "aarch64")]
        if neon::Neon::is_available() {
            available.push(Implementation::of::<neon::Neon>());
        }
        available.push(Implementation::of::<instruction_set::Scalar>());
        available
    });
    &AVAILABLE
}

/// The implementation that [`quant_types`] and [`quant_type`] use.
static CHOSEN: OnceLock<&'static Implementation> = OnceLock::new();

/// An instruction set cannot be selected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ChooseError {
    /// This machine, or this build of the program, lacks it.
    #[error("instruction set {found:?}: not on this machine, which has {available}")]
    Unavailable {
        /// The requested name.
        found: String,
        /// The available instruction sets.
        available: String,
    },
    /// Codecs of another instruction set are already in use.
    #[error("instruction set {found:?}: chosen too late, {chosen:?} is in use")]
    InUse {
        /// The requested name.
        found: String,
        /// The instruction set in use.
        chosen: &'static str,
    },
}

/// Makes the whole process use the codecs of one instruction set instead of the fastest. For benchmarks;
/// the bytes are the same.
///
/// # Errors
/// The machine lacks it, or codecs of another one are already in use.
pub fn choose(name: &str) -> Result<(), ChooseError> {
    let found = || name.to_owned();
    let Some(implementation) = implementations().iter().find(|i| i.name == name) else {
        let names: Vec<&str> = implementations().iter().map(|i| i.name).collect();
        let (found, available) = (found(), names.join(", "));
        return Err(ChooseError::Unavailable { found, available });
    };
    let chosen = CHOSEN.get_or_init(|| implementation).name;
    if chosen == name {
        return Ok(());
    }
    let found = found();
    Err(ChooseError::InUse { found, chosen })
}

/// Every type with a codec.
pub fn quant_types() -> impl Iterator<Item = &'static dyn QuantType> {
    let chosen = CHOSEN.get_or_init(|| &implementations()[0]);
    chosen.types.into_iter()
}

/// Returns the codec of a type; `None` for integers, F64 and types that are only copied.
pub fn quant_type(dtype: DType) -> Option<&'static dyn QuantType> {
    quant_types().find(|quant_type| quant_type.dtype() == dtype)
}
