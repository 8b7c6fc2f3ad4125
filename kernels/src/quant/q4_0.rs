//! Q4_0: 32 codes of four bits around a middle, and a scale. [`quantize`] also serves Q5_0.

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::float::{Half, energy, extreme, map, reciprocal, truncate};
use super::lanes::Lanes;
use super::nibbles;
use super::search::{fit_symmetric, importance_weights};

#[repr(C)]
pub(super) struct Q4_0 {
    d: Half,
    qs: [u8; 16],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<32> for Q4_0 {
    const DTYPE: DType = DType::Q4_0;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        nibbles::decode(&self.qs, out, |q| (f32::from(q) - 8.0) * d);
    }

    #[inline(always)]
    fn quantize_row<V: Lanes>(x: &[[f32; 32]], weights: Option<&[[f32; 32]]>, out: &mut [Self]) {
        quantize::<8, V>(x, weights, |i, d, codes| {
            out[i] = Q4_0 {
                d,
                qs: nibbles::pack(codes),
            };
        });
    }

    fn invalid(&self) -> Option<InvalidKind> {
        InvalidKind::of(self.d.to_f32())
    }
}

/// Codes `0..2 * MIDDLE` and the scale of each block of a row; `emit` gets the block's index.
#[inline(always)]
pub(super) fn quantize<const MIDDLE: i8, V: Lanes>(
    x: &[[f32; 32]],
    weights: Option<&[[f32; 32]]>,
    mut emit: impl FnMut(usize, Half, &[u8; 32]),
) {
    if let Some(weights) = weights {
        let row = x.as_flattened();
        let sigma2 = energy(row) / row.len() as f32;
        let w = importance_weights(x, weights, &[sigma2], x.len());
        let middle = i32::from(MIDDLE);
        let fits = fit_symmetric::<V, 32>(x, &w, middle);
        for (i, (x, fit)) in x.iter().zip(fits).enumerate() {
            emit(i, Half::from_f32(fit.scale), &fit.codes(x, middle));
        }
        return;
    }
    for (i, x) in x.iter().enumerate() {
        // The largest magnitude gets the code 0, which alone reaches that far.
        let d = extreme(x) / -f32::from(MIDDLE);
        let inverse = reciprocal(d);
        let codes = map(x, |x| {
            let code = truncate(x * inverse + (f32::from(MIDDLE) + 0.5)) as i8;
            code.min(2 * MIDDLE - 1) as u8
        });
        emit(i, Half::from_f32(d), &codes);
    }
}
