//! From blocks to rows: what a type must say about one block, and the [`QuantType`] made of it.

use std::marker::PhantomData;
use std::slice;

use schemas::gguf::DType;

use super::instruction_set::InstructionSet;
use super::lanes::Lanes;
use super::{Invalid, InvalidKind, QuantType};

/// A block of `LEN` elements as it lies in a file.
///
/// # Safety
/// The type is `repr(C)` or `repr(transparent)`, has alignment 1 (bytes and arrays of bytes
/// only), and every bit pattern is a value of it.
pub(crate) unsafe trait Block<const LEN: usize>: Sized + 'static {
    const DTYPE: DType;

    fn dequantize(&self, out: &mut [f32; LEN]);

    /// One row; the three slices have one length. `V`: blocks to search side by side.
    fn quantize_row<V: Lanes>(x: &[[f32; LEN]], weights: Option<&[[f32; LEN]]>, out: &mut [Self]);

    /// What is wrong with the block's scales, if anything.
    fn invalid(&self) -> Option<InvalidKind>;
}

/// The codec of rows of blocks `B` for the machines that have `I`.
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

    fn quantize_row(&self, x: &[f32], weights: Option<&[f32]>, out: &mut [u8]) {
        let out = blocks_mut::<B, LEN>(out);
        let x = whole_chunks(x);
        assert_eq!(x.len(), out.len(), "blocks in and out");
        let weights = weights.map(whole_chunks);
        if let Some(weights) = weights {
            assert_eq!(x.len(), weights.len(), "one weight per column");
        }
        I::quantize_row(x, weights, out);
    }

    fn find_invalid(&self, bytes: &[u8]) -> Option<Invalid> {
        const CHUNK: usize = 256;
        for (i, chunk) in blocks::<B, LEN>(bytes).chunks(CHUNK).enumerate() {
            // First without an early exit: nearly every chunk is good, and a plain loop is fast.
            if chunk
                .iter()
                .fold(false, |bad, block| bad | block.invalid().is_some())
            {
                let found = chunk.iter().enumerate().find_map(|(k, block)| {
                    let index = CHUNK * i + k;
                    block.invalid().map(|kind| Invalid { index, kind })
                });
                return found;
            }
        }
        None
    }
}

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

/// Bytes as the blocks they hold.
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
