//! Q4_1: 32 codes of four bits above a minimum, and a scale. [`quantize`] also serves Q5_1.

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::float::{Half, energy, map, reciprocal, truncate};
use super::lanes::Lanes;
use super::nibbles;
use super::search::{AffineSearch, fit_affine, importance_weights};

#[repr(C)]
pub(super) struct Q4_1 {
    d: Half,
    m: Half,
    qs: [u8; 16],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<32> for Q4_1 {
    const DTYPE: DType = DType::Q4_1;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        nibbles::decode(&self.qs, out, |q| f32::from(q) * d + m);
    }

    #[inline(always)]
    fn quantize_row<V: Lanes>(x: &[[f32; 32]], weights: Option<&[[f32; 32]]>, out: &mut [Self]) {
        quantize::<15, V>(x, weights, |i, block| {
            out[i] = Q4_1 {
                d: block.d,
                m: block.m,
                qs: nibbles::pack(&block.codes),
            };
        });
    }

    fn invalid(&self) -> Option<InvalidKind> {
        InvalidKind::of(self.d.to_f32()).or(InvalidKind::of(self.m.to_f32()))
    }
}

/// A block before its codes are packed.
pub(super) struct Unpacked {
    pub(super) d: Half,
    pub(super) m: Half,
    pub(super) codes: [u8; 32],
}

/// Codes `0..=MAX`, scale and minimum of each block of a row; `emit` gets the block's index.
#[inline(always)]
pub(super) fn quantize<const MAX: u8, V: Lanes>(
    x: &[[f32; 32]],
    weights: Option<&[[f32; 32]]>,
    mut emit: impl FnMut(usize, Unpacked),
) {
    if let Some(weights) = weights {
        let row = x.as_flattened();
        let sigma2 = energy(row) / row.len() as f32;
        let w = importance_weights(x, weights, &[sigma2], x.len());
        let search = AffineSearch::weighted(MAX);
        let fits = fit_affine::<V, 32>(x, &w, &search);
        for (i, (x, fit)) in x.iter().zip(fits).enumerate() {
            let (d, m) = (Half::from_f32(fit.scale), Half::from_f32(-fit.min));
            emit(
                i,
                Unpacked {
                    d,
                    m,
                    codes: fit.codes(x, &search),
                },
            );
        }
        return;
    }
    for (i, x) in x.iter().enumerate() {
        let (mut lo, mut hi) = (f32::MAX, -f32::MAX);
        for &v in x {
            if v < lo {
                lo = v;
            }
            if v > hi {
                hi = v;
            }
        }
        let d = (hi - lo) / f32::from(MAX);
        let inverse = reciprocal(d);
        let codes = map(x, |x| {
            let code = truncate((x - lo) * inverse + 0.5) as i8;
            code.min(MAX as i8) as u8
        });
        emit(
            i,
            Unpacked {
                d: Half::from_f32(d),
                m: Half::from_f32(lo),
                codes,
            },
        );
    }
}
