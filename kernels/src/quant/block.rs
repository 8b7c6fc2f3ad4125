//! [`Block`], the codec of one block, and [`Codec`], the [`QuantType`] of rows built from it.

use std::marker::PhantomData;
use std::slice;

use schemas::gguf::DType;

use super::instruction_set::InstructionSet;
use super::lanes::Lanes;
use super::{Invalid, InvalidKind, QuantType};

/// A block of `LEN` elements in file layout.
///
/// # Safety
/// The type is `repr(C)` or `repr(transparent)`, has alignment 1 (bytes and arrays of bytes
/// only), and every bit pattern is a value of it.
pub(crate) unsafe trait Block<const LEN: usize>: Sized + 'static {
    const DTYPE: DType;

    fn dequantize<V: Lanes>(&self, out: &mut [f32; LEN]);

    /// Quantizes whole rows. `x` and `out` have the same length; `weights` holds one row, which all rows
    /// share.
    fn quantize_rows<V: Lanes>(x: &[[f32; LEN]], weights: Option<&[[f32; LEN]]>, out: &mut [Self]);

    /// Returns the defect of the block's scales, if any.
    fn invalid(&self) -> Option<InvalidKind>;
}

/// The codec for rows of blocks `B`, compiled for the instruction set `I`.
pub(super) struct Codec<B, const LEN: usize, I>(PhantomData<fn() -> (B, I)>);

impl<B, const LEN: usize, I> Codec<B, LEN, I> {
    pub(super) const NEW: Self = Codec(PhantomData);
}

impl<B, const LEN: usize, I> QuantType for Codec<B, LEN, I>
where
    B: Block<LEN>,
    I: InstructionSet,
{
    fn dtype(&self) -> DType {
        B::DTYPE
    }

    fn dequantize(&self, bytes: &[u8], out: &mut [f32]) {
        let blocks = blocks::<B, LEN>(bytes);
        let out = whole_chunks_mut(out);
        assert_eq!(blocks.len(), out.len(), "blocks in and out");
        I::dequantize(blocks, out);
    }

    fn quantize(&self, x: &[f32], weights: Option<&[f32]>, out: &mut [u8]) {
        let out = blocks_mut::<B, LEN>(out);
        let x = whole_chunks(x);
        assert_eq!(x.len(), out.len(), "blocks in and out");
        let weights = weights.map(whole_chunks);
        let row_blocks = weights.map_or(1, <[_]>::len).max(1);
        assert!(x.len().is_multiple_of(row_blocks), "whole rows");
        let chunk = (CHUNK_LEN / LEN / row_blocks).max(1) * row_blocks;
        for (x, out) in x.chunks(chunk).zip(out.chunks_mut(chunk)) {
            I::quantize_rows(x, weights, out);
        }
    }

    fn find_invalid(&self, bytes: &[u8]) -> Option<Invalid> {
        I::find_invalid(blocks::<B, LEN>(bytes))
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

fn n_blocks<B>(n_bytes: usize) -> usize {
    assert!(
        n_bytes.is_multiple_of(size_of::<B>()),
        "{n_bytes} bytes are not whole blocks of {}",
        size_of::<B>()
    );
    n_bytes / size_of::<B>()
}

/// Casts bytes to blocks.
pub(crate) fn blocks<B: Block<LEN>, const LEN: usize>(bytes: &[u8]) -> &[B] {
    let n = n_blocks::<B>(bytes.len());
    // SAFETY: the slice covers n * size_of::<B>() bytes; by the contract of Block any address is
    // aligned and any content valid.
    unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), n) }
}

fn blocks_mut<B: Block<LEN>, const LEN: usize>(bytes: &mut [u8]) -> &mut [B] {
    let n = n_blocks::<B>(bytes.len());
    // SAFETY: as in `blocks`; the exclusive borrow passes to the result, and by the contract of
    // Block whatever is written through it is initialised bytes.
    unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), n) }
}
