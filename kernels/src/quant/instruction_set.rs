//! The same code compiled for several instruction sets, chosen when the program runs.
//!
//! Nothing here changes a result: vector instructions do to each lane what the scalar ones do,
//! and the compiler neither reorders sums nor fuses products into them.

use super::block::Block;
use super::lanes::Lanes;

/// Runs the formulas of a [`Block`] in code generated for one instruction set. Nothing but
/// `is_available` may be called where that is false.
pub(super) trait InstructionSet: 'static {
    const NAME: &'static str;

    /// Blocks that a search works on at once.
    type Lanes: Lanes;

    fn is_available() -> bool;

    /// The slices have one length.
    fn dequantize<B: Block<LEN>, const LEN: usize>(blocks: &[B], out: &mut [[f32; LEN]]);

    /// One row; the slices have one length.
    fn quantize_row<B: Block<LEN>, const LEN: usize>(
        x: &[[f32; LEN]],
        weights: Option<&[[f32; LEN]]>,
        out: &mut [B],
    );
}

#[inline(always)]
pub(super) fn dequantize<B: Block<LEN>, const LEN: usize>(blocks: &[B], out: &mut [[f32; LEN]]) {
    for (block, out) in blocks.iter().zip(out) {
        block.dequantize(out);
    }
}

/// One block after another, on any machine.
pub(super) struct Scalar;

impl InstructionSet for Scalar {
    const NAME: &'static str = "scalar";

    type Lanes = f32;

    fn is_available() -> bool {
        true
    }

    fn dequantize<B: Block<LEN>, const LEN: usize>(blocks: &[B], out: &mut [[f32; LEN]]) {
        dequantize(blocks, out);
    }

    fn quantize_row<B: Block<LEN>, const LEN: usize>(
        x: &[[f32; LEN]],
        weights: Option<&[[f32; LEN]]>,
        out: &mut [B],
    ) {
        B::quantize_row::<f32>(x, weights, out);
    }
}
