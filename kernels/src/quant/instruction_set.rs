//! The same code compiled for several instruction sets, chosen when the program runs.
//!
//! Nothing here changes a result: vector instructions do to each lane what the scalar ones do,
//! and the compiler neither reorders sums nor fuses products into them.

use super::Invalid;
use super::block::Block;
use super::lanes::Lanes;

/// Runs the formulas of a [`Block`] in code generated for one instruction set. Nothing but
/// `is_available` may be called where that is false.
pub(super) trait InstructionSet: 'static {
    const NAME: &'static str;

    fn is_available() -> bool;

    /// The slices have one length.
    fn dequantize<B: Block<LEN>, const LEN: usize>(blocks: &[B], out: &mut [[f32; LEN]]);

    /// As [`Block::quantize_rows`].
    fn quantize_rows<B: Block<LEN>, const LEN: usize>(
        x: &[[f32; LEN]],
        weights: Option<&[[f32; LEN]]>,
        out: &mut [B],
    );

    /// The first invalid block.
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
        // First without an early exit: nearly every chunk is good, and a plain loop is fast.
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

/// One block after another, on any machine.
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
