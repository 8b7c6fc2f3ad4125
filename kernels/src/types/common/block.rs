//! [`Block`], the codec of one block, and [`Codecs`], the codec of rows that every descriptor contains.

use std::slice;

use crate::float::{f16_to_f32, f32_to_f16};
use crate::simd::dispatch::Implementation;
use crate::simd::lanes::Lanes;
use crate::simd::{KernelInto, Simd};
use crate::types::{Invalid, InvalidKind};

/// Plain bytes.
///
/// # Safety
/// The type is `repr(C)` or `repr(transparent)`, has alignment 1 (bytes and arrays of bytes
/// only), and every bit pattern is a value of it.
pub(crate) unsafe trait Bytes: Sized + 'static {
    /// Returns the bytes.
    #[inline(always)]
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: by the contract every byte is initialised.
        unsafe { slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }
}

// SAFETY: bytes.
unsafe impl<const N: usize> Bytes for [u8; N] {}

/// A block of `LEN` elements in file layout.
pub(crate) trait Block<const LEN: usize>: Bytes {
    /// Offsets of the half-precision numbers.
    const HALVES: &'static [usize] = &[0];

    /// Dequantizes the block.
    fn dequantize<V: Lanes>(&self, out: &mut [f32; LEN]);

    /// Dequantizes blocks; both slices have the same length.
    #[inline(always)]
    fn dequantize_blocks<S: Simd>(_simd: S, blocks: &[Self], out: &mut [[f32; LEN]]) {
        for (block, out) in blocks.iter().zip(out) {
            block.dequantize::<S::Codec>(out);
        }
    }

    /// Quantizes whole rows. `x` and `out` have the same length; `weights` holds one row, which all rows
    /// share.
    fn quantize_rows<V: Lanes>(x: &[[f32; LEN]], weights: Option<&[[f32; LEN]]>, out: &mut [Self]);

    /// Returns the defect of the block's scales, if any.
    #[inline(always)]
    fn invalid(&self) -> Option<InvalidKind> {
        let half = |at: usize| Half([self.as_bytes()[at], self.as_bytes()[at + 1]]);
        let kinds = Self::HALVES.iter().map(|&at| half(at).invalid());
        kinds.fold(None, Option::or)
    }
}

/// Quantizes whole rows, weighted by the importance of each column if it is given.
type QuantizeRowsFn = fn(Implementation, x: &[f32], weights: Option<&[f32]>, out: &mut [u8]);

/// The codec of a type: functions that run on any instruction set, with the same results.
pub(crate) struct Codecs {
    /// Dequantizes whole blocks; panics if `out` has another length.
    pub(crate) dequantize: fn(Implementation, bytes: &[u8], out: &mut [f32]),
    /// Quantizes whole rows.
    pub(crate) quantize: QuantizeRowsFn,
    /// Finds the first invalid block.
    pub(crate) find_invalid: fn(Implementation, bytes: &[u8]) -> Option<Invalid>,
}

impl Codecs {
    /// The codec of rows of blocks `B`.
    pub(crate) const fn of<B: Block<LEN>, const LEN: usize>() -> Codecs {
        Codecs {
            dequantize: dequantize::<B, LEN>,
            quantize: quantize::<B, LEN>,
            find_invalid: find_invalid::<B, LEN>,
        }
    }
}

fn dequantize<B: Block<LEN>, const LEN: usize>(on: Implementation, bytes: &[u8], out: &mut [f32]) {
    let blocks = blocks::<B>(bytes);
    let out = whole_chunks_mut(out);
    assert_eq!(blocks.len(), out.len(), "blocks in and out");
    on.run_operation_into(Dequantize { blocks }, out);
}

struct Dequantize<'a, B> {
    blocks: &'a [B],
}

impl<B: Block<LEN>, const LEN: usize> KernelInto<[[f32; LEN]]> for Dequantize<'_, B> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, out: &mut [[f32; LEN]]) {
        B::dequantize_blocks(simd, self.blocks, out);
    }
}

fn quantize<B: Block<LEN>, const LEN: usize>(
    on: Implementation,
    x: &[f32],
    weights: Option<&[f32]>,
    out: &mut [u8],
) {
    let out = blocks_mut::<B>(out);
    let x = whole_chunks(x);
    assert_eq!(x.len(), out.len(), "blocks in and out");
    let weights = weights.map(whole_chunks);
    let row_blocks = weights.map_or(1, <[_]>::len).max(1);
    assert!(x.len().is_multiple_of(row_blocks), "whole rows");
    let chunk = (CHUNK_LEN / LEN / row_blocks).max(1) * row_blocks;
    for (x, out) in x.chunks(chunk).zip(out.chunks_mut(chunk)) {
        on.run_operation_into(QuantizeRows { x, weights }, out);
    }
}

struct QuantizeRows<'a, const LEN: usize> {
    x: &'a [[f32; LEN]],
    weights: Option<&'a [[f32; LEN]]>,
}

impl<B: Block<LEN>, const LEN: usize> KernelInto<[B]> for QuantizeRows<'_, LEN> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S, out: &mut [B]) {
        B::quantize_rows::<S::Codec>(self.x, self.weights, out);
    }
}

fn find_invalid<B: Block<LEN>, const LEN: usize>(
    on: Implementation,
    bytes: &[u8],
) -> Option<Invalid> {
    let mut found = None;
    let blocks = blocks::<B>(bytes);
    on.run_operation_into(FindInvalid::<B, LEN> { blocks }, &mut found);
    found
}

struct FindInvalid<'a, B, const LEN: usize> {
    blocks: &'a [B],
}

impl<B: Block<LEN>, const LEN: usize> KernelInto<Option<Invalid>> for FindInvalid<'_, B, LEN> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S, found: &mut Option<Invalid>) {
        const CHUNK: usize = 256;
        for (i, chunk) in self.blocks.chunks(CHUNK).enumerate() {
            // First without an early exit, which is fast: nearly every chunk is valid.
            let any = |bad: bool, block: &B| bad | block.invalid().is_some();
            if chunk.iter().fold(false, any) {
                *found = chunk.iter().enumerate().find_map(|(k, block)| {
                    let index = CHUNK * i + k;
                    block.invalid().map(|kind| Invalid { index, kind })
                });
                return;
            }
        }
    }
}

/// A half-precision field of a block, little endian.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Half([u8; 2]);

impl Half {
    pub(crate) const ZERO: Half = Half([0; 2]);

    #[inline(always)]
    pub(crate) fn from_bits(bits: u16) -> Half {
        Half(bits.to_le_bytes())
    }

    /// Rounds to nearest, ties to even; infinite from 65520 on.
    #[inline(always)]
    pub(crate) fn from_f32(x: f32) -> Half {
        Half::from_bits(f32_to_f16(x))
    }

    /// Returns the defect if the number is not finite.
    #[inline(always)]
    pub(crate) fn invalid(self) -> Option<InvalidKind> {
        InvalidKind::of(u32::from(u16::from_le_bytes(self.0)), 10, 5)
    }

    #[inline(always)]
    pub(crate) fn to_f32(self) -> f32 {
        f16_to_f32(u16::from_le_bytes(self.0))
    }
}

/// Elements that are fitted before they are rounded: few enough to stay in a cache, enough to fill the
/// lanes with superblocks of short rows.
const CHUNK_LEN: usize = 1 << 15;

fn whole_chunks<const LEN: usize>(x: &[f32]) -> &[[f32; LEN]] {
    let (chunks, rest) = x.as_chunks();
    assert!(rest.is_empty(), "{} elements are not whole blocks", x.len());
    chunks
}

fn whole_chunks_mut<const LEN: usize>(x: &mut [f32]) -> &mut [[f32; LEN]] {
    let (chunks, rest) = x.as_chunks_mut();
    assert!(rest.is_empty(), "elements are not whole blocks");
    chunks
}

#[inline(always)]
fn n_blocks<B>(n_bytes: usize) -> usize {
    assert!(
        n_bytes.is_multiple_of(size_of::<B>()),
        "{n_bytes} bytes are not whole blocks of {}",
        size_of::<B>()
    );
    n_bytes / size_of::<B>()
}

/// Casts bytes to blocks.
#[inline(always)]
fn blocks<B: Bytes>(bytes: &[u8]) -> &[B] {
    let n = n_blocks::<B>(bytes.len());
    // SAFETY: the slice covers n * size_of::<B>() bytes; by the contract of Bytes any address is
    // aligned and any content valid.
    unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), n) }
}

/// Casts blocks to bytes.
#[inline(always)]
pub(crate) fn bytes_of<B: Bytes>(blocks: &[B]) -> &[u8] {
    // SAFETY: by the contract of Bytes every byte is initialised.
    unsafe { slice::from_raw_parts(blocks.as_ptr().cast(), size_of_val(blocks)) }
}

/// Casts bytes to blocks.
#[inline(always)]
pub(crate) fn blocks_mut<B: Bytes>(bytes: &mut [u8]) -> &mut [B] {
    let n = n_blocks::<B>(bytes.len());
    // SAFETY: as in `blocks`; the exclusive borrow passes to the result, and by the contract of
    // Bytes whatever is written through it is initialised bytes.
    unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), n) }
}
