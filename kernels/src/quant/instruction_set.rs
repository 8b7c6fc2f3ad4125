//! Codecs compiled for several instruction sets, selected at run time.
//!
//! The instruction set does not affect results: vector instructions compute in each lane what scalar ones
//! do, and the compiler neither reorders sums nor fuses multiplications and additions.

use super::Invalid;
use super::block::Block;
use super::lanes::Lanes;

/// Runs the functions of a [`Block`] in code compiled for one instruction set. If `is_available` returns
/// false, no other function may be called.
pub(super) trait InstructionSet: 'static {
    const NAME: &'static str;

    fn is_available() -> bool;

    /// Dequantizes blocks; both slices have the same length.
    fn dequantize<B: Block<LEN>, const LEN: usize>(blocks: &[B], out: &mut [[f32; LEN]]);

    /// As [`Block::quantize_rows`].
    fn quantize_rows<B: Block<LEN>, const LEN: usize>(
        x: &[[f32; LEN]],
        weights: Option<&[[f32; LEN]]>,
        out: &mut [B],
    );

    /// Returns the first invalid block.
    fn find_invalid<B: Block<LEN>, const LEN: usize>(blocks: &[B]) -> Option<Invalid>;
}

#[inline(always)]
pub(super) fn dequantize<B: Block<LEN>, const LEN: usize, V: Lanes>(
    blocks: &[B],
    out: &mut [[f32; LEN]],
) {
    for (block, out) in blocks.iter().zip(out) {
        block.dequantize::<V>(out);
    }
}

#[inline(always)]
pub(super) fn find_invalid<B: Block<LEN>, const LEN: usize>(blocks: &[B]) -> Option<Invalid> {
    const CHUNK: usize = 256;
    for (i, chunk) in blocks.chunks(CHUNK).enumerate() {
        // First without an early exit, which is fast: nearly every chunk is valid.
        let any = |bad: bool, block: &B| bad | block.invalid().is_some();
        if chunk.iter().fold(false, any) {
            return chunk.iter().enumerate().find_map(|(k, block)| {
                let index = CHUNK * i + k;
                block.invalid().map(|kind| Invalid { index, kind })
            });
        }
    }
    None
}

/// One block after another, on any CPU.
pub(super) struct Scalar;

impl InstructionSet for Scalar {
    const NAME: &'static str = "scalar";

    fn is_available() -> bool {
        true
    }

    fn dequantize<B: Block<LEN>, const LEN: usize>(blocks: &[B], out: &mut [[f32; LEN]]) {
        dequantize::<B, LEN, f32>(blocks, out);
    }

    fn quantize_rows<B: Block<LEN>, const LEN: usize>(
        x: &[[f32; LEN]],
        weights: Option<&[[f32; LEN]]>,
        out: &mut [B],
    ) {
        B::quantize_rows::<f32>(x, weights, out);
    }

    fn find_invalid<B: Block<LEN>, const LEN: usize>(blocks: &[B]) -> Option<Invalid> {
        find_invalid(blocks)
    }
}
