//! The same code compiled for several instruction sets, chosen when the program runs.
//!
//! Nothing here changes a result: vector instructions do to each lane what the scalar ones do,
//! and the compiler neither reorders sums nor fuses products into them.

use super::block::Block;
use super::lanes::Lanes;
use super::search::{self, AffineFits, AffineSearch, SymmetricFits};

/// Runs the formulas of a [`Block`] in code generated for one instruction set that has `L` lanes.
/// Nothing but `is_available` may be called where that is false.
pub(super) trait InstructionSet<const L: usize>: Sized + 'static {
    const NAME: &'static str;

    fn is_available() -> bool;

    /// The slices have one length.
    fn dequantize<B: Block<LEN>, const LEN: usize>(blocks: &[B], out: &mut [[f32; LEN]]);

    /// One row; the slices have one length.
    fn quantize_row<B: Block<LEN>, const LEN: usize>(
        x: &[[f32; LEN]],
        weights: Option<&[[f32; LEN]]>,
        out: &mut [B],
    );

    /// [`search::fit_affine_lanes`].
    fn fit_affine<const N: usize>(
        x: &[Lanes<L>; N],
        w: &[Lanes<L>; N],
        search: &AffineSearch,
    ) -> AffineFits<L>;

    /// [`search::fit_symmetric_lanes`].
    fn fit_symmetric<const N: usize>(
        x: &[Lanes<L>; N],
        w: &[Lanes<L>; N],
        middle: i32,
    ) -> SymmetricFits<L>;
}

#[inline(always)]
fn dequantize<B: Block<LEN>, const LEN: usize>(blocks: &[B], out: &mut [[f32; LEN]]) {
    for (block, out) in blocks.iter().zip(out) {
        block.dequantize(out);
    }
}

/// One block after another, on any machine.
pub(super) struct Scalar;

impl InstructionSet<1> for Scalar {
    const NAME: &'static str = "scalar";

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
        B::quantize_row::<Self, 1>(x, weights, out);
    }

    fn fit_affine<const N: usize>(
        x: &[Lanes<1>; N],
        w: &[Lanes<1>; N],
        search: &AffineSearch,
    ) -> AffineFits<1> {
        search::fit_affine_lanes(x, w, search)
    }

    fn fit_symmetric<const N: usize>(
        x: &[Lanes<1>; N],
        w: &[Lanes<1>; N],
        middle: i32,
    ) -> SymmetricFits<1> {
        search::fit_symmetric_lanes(x, w, middle)
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{
        AffineFits, AffineSearch, Block, InstructionSet, Lanes, SymmetricFits, dequantize, search,
    };

    macro_rules! instruction_set {
        ($(#[$doc:meta])* $type:ident, $name:literal, $lanes:literal, [$($feature:tt),+]) => {
            $(#[$doc])*
            pub(crate) struct $type;

            impl InstructionSet<$lanes> for $type {
                const NAME: &'static str = $name;

                fn is_available() -> bool {
                    $(is_x86_feature_detected!($feature))&&+
                }

                fn dequantize<B: Block<LEN>, const LEN: usize>(
                    blocks: &[B],
                    out: &mut [[f32; LEN]],
                ) {
                    $(#[target_feature(enable = $feature)])+
                    fn inner<B: Block<LEN>, const LEN: usize>(
                        blocks: &[B],
                        out: &mut [[f32; LEN]],
                    ) {
                        dequantize(blocks, out);
                    }
                    // SAFETY: the caller has seen `is_available`, which asks for the same features.
                    unsafe { inner(blocks, out) }
                }

                fn quantize_row<B: Block<LEN>, const LEN: usize>(
                    x: &[[f32; LEN]],
                    weights: Option<&[[f32; LEN]]>,
                    out: &mut [B],
                ) {
                    $(#[target_feature(enable = $feature)])+
                    fn inner<B: Block<LEN>, const LEN: usize>(
                        x: &[[f32; LEN]],
                        weights: Option<&[[f32; LEN]]>,
                        out: &mut [B],
                    ) {
                        B::quantize_row::<$type, $lanes>(x, weights, out);
                    }
                    // SAFETY: as above.
                    unsafe { inner(x, weights, out) }
                }

                fn fit_affine<const N: usize>(
                    x: &[Lanes<$lanes>; N],
                    w: &[Lanes<$lanes>; N],
                    search: &AffineSearch,
                ) -> AffineFits<$lanes> {
                    // Not inlined: only what comes from memory as vectors stays in vectors.
                    $(#[target_feature(enable = $feature)])+
                    #[inline(never)]
                    fn inner<const N: usize>(
                        x: &[Lanes<$lanes>; N],
                        w: &[Lanes<$lanes>; N],
                        search: &AffineSearch,
                    ) -> AffineFits<$lanes> {
                        search::fit_affine_lanes(x, w, search)
                    }
                    // SAFETY: as above.
                    unsafe { inner(x, w, search) }
                }

                fn fit_symmetric<const N: usize>(
                    x: &[Lanes<$lanes>; N],
                    w: &[Lanes<$lanes>; N],
                    middle: i32,
                ) -> SymmetricFits<$lanes> {
                    $(#[target_feature(enable = $feature)])+
                    #[inline(never)]
                    fn inner<const N: usize>(
                        x: &[Lanes<$lanes>; N],
                        w: &[Lanes<$lanes>; N],
                        middle: i32,
                    ) -> SymmetricFits<$lanes> {
                        search::fit_symmetric_lanes(x, w, middle)
                    }
                    // SAFETY: as above.
                    unsafe { inner(x, w, middle) }
                }
            }
        };
    }

    instruction_set!(
        /// Eight lanes.
        Avx2, "avx2", 8, ["avx2"]
    );
    instruction_set!(
        /// Sixteen lanes.
        Avx512, "avx512", 16, ["avx512f", "avx512bw", "avx512dq", "avx512vl"]
    );
}
