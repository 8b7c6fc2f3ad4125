//! Q4_0: 32 codes of four bits around a middle, and a scale. [`quantize`] also serves Q5_0.

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::float::{Half, energy, error_weights, extreme, reciprocal, truncate};
use super::nibbles;
use super::search::fit_symmetric;

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
        *out = nibbles::unpack(&self.qs).map(|q| (f32::from(q) - 8.0) * d);
    }

    #[inline(always)]
    fn quantize_row(x: &[[f32; 32]], weights: Option<&[[f32; 32]]>, out: &mut [Self]) {
        quantize::<8>(x, weights, |i, d, codes| {
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
pub(super) fn quantize<const MIDDLE: i8>(
    x: &[[f32; 32]],
    weights: Option<&[[f32; 32]]>,
    mut emit: impl FnMut(usize, Half, &[u8; 32]),
) {
    if let Some(weights) = weights {
        let n_columns = x.as_flattened().len();
        let sigma2 = energy(x.as_flattened()) / n_columns as f32;
        for (i, (x, importance)) in x.iter().zip(weights).enumerate() {
            let fit = fit_symmetric(x, &error_weights(x, importance, sigma2), i32::from(MIDDLE));
            emit(i, Half::from_f32(fit.scale), &fit.codes);
        }
        return;
    }
    for (i, x) in x.iter().enumerate() {
        // The largest magnitude gets the code 0, which alone reaches that far.
        let d = extreme(x) / -f32::from(MIDDLE);
        let inverse = reciprocal(d);
        let codes = x.map(|x| {
            let code = truncate(x * inverse + (f32::from(MIDDLE) + 0.5)) as i8;
            code.min(2 * MIDDLE - 1) as u8
        });
        emit(i, Half::from_f32(d), &codes);
    }
}
