//! Q4_1: 32 four-bit quants, a scale and a minimum. Q5_1 also uses [`quantize`].

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::fit_affine::{AffineSearch, fit_affine};
use super::float::{Half, map, reciprocal};
use super::lanes::{Lanes, energies};
use super::nibbles;
use super::one_pass::{BATCH, codes, halves, range};
use super::weights::Weights;

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
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        nibbles::decode::<V>(&self.qs, out, |q| q * V::splat(d) + V::splat(m));
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 32]], weights: Option<&[[f32; 32]]>, out: &mut [Self]) {
        for (out, block) in out.iter_mut().zip(quantize::<15, V>(x, weights)) {
            *out = Q4_1 {
                d: block.d,
                m: block.m,
                qs: nibbles::pack(&block.codes),
            };
        }
    }

    #[inline(always)]
    fn invalid(&self) -> Option<InvalidKind> {
        self.d.invalid().or(self.m.invalid())
    }
}

/// A block before its quants are packed.
pub(super) struct Unpacked {
    pub(super) d: Half,
    pub(super) m: Half,
    pub(super) codes: [u8; 32],
}

/// Returns quants `0..=MAX`, scale and minimum of each block.
#[inline(always)]
pub(super) fn quantize<const MAX: u8, V: Lanes>(
    x: &[[f32; 32]],
    weights: Option<&[[f32; 32]]>,
) -> Vec<Unpacked> {
    let mut blocks = Vec::with_capacity(x.len());
    if let Some(columns) = weights {
        let n_cols = 32 * columns.len();
        let energies = energies::<V>(x.as_flattened(), n_cols);
        let sigma2: Vec<f32> = energies.iter().map(|e| e / n_cols as f32).collect();
        let weights = Weights::Importance {
            columns,
            sigma2: &sigma2,
            per: columns.len(),
        };
        let search = AffineSearch::weighted(MAX);
        let fits = fit_affine::<V, 32>(x, weights, &search);
        for (x, fit) in x.iter().zip(fits) {
            blocks.push(Unpacked {
                d: Half::from_f32(fit.scale),
                m: Half::from_f32(-fit.min),
                codes: fit.codes(x, &search),
            });
        }
        return blocks;
    }
    for x in x.chunks(BATCH) {
        let (mut lows, mut spans) = ([0.0; BATCH], [0.0; BATCH]);
        for (k, x) in x.iter().enumerate() {
            let (lo, hi) = range::<V>(x);
            (lows[k], spans[k]) = (lo, hi - lo);
        }
        let d = map(&spans, |span| span / f32::from(MAX));
        let inverses = map(&d, reciprocal);
        let (d, m) = (halves(&d), halves(&lows));
        for (k, x) in x.iter().enumerate() {
            let (lo, inverse) = (V::splat(lows[k]), V::splat(inverses[k]));
            let mut codes = codes::<V, 32>(x, |x| (x - lo) * inverse + V::splat(0.5));
            for code in &mut codes {
                *code = (*code as i8).min(MAX as i8) as u8;
            }
            let (d, m) = (d[k], m[k]);
            blocks.push(Unpacked { d, m, codes });
        }
    }
    blocks
}
