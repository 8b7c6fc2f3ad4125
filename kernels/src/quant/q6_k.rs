//! Q6_K: superblocks of 256, six-bit quants with an offset, a signed scale per 16 elements.

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::fit_symmetric::{Symmetric, fit_symmetric};
use super::float::{Half, extreme, nearest_int};
use super::lanes::Lanes;
use super::one_pass;
use super::weights::{NEARLY_ZERO, Weights};

#[repr(C)]
pub(crate) struct Q6_K {
    /// Low nibbles, 64 bytes per half of the superblock: see [`place`].
    pub(crate) ql: [u8; 128],
    /// High pairs of bits, 32 bytes per half.
    pub(crate) qh: [u8; 64],
    pub(crate) scales: [i8; 16],
    pub(crate) d: Half,
}

/// Position of the bits of an element.
struct Place {
    /// Byte of `ql`, and the shift of the nibble in it.
    low: (usize, usize),
    /// Byte of `qh`, and the shift of the pair in it.
    high: (usize, usize),
}

/// Returns the position of element `l` of 32, in quarter `q` of half `h`.
#[inline(always)]
fn place(h: usize, q: usize, l: usize) -> Place {
    Place {
        low: (64 * h + 32 * (q % 2) + l, 4 * (q / 2)),
        high: (32 * h + l, 2 * q),
    }
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<256> for Q6_K {
    const DTYPE: DType = DType::Q6_K;

    #[inline(always)]
    fn dequantize<V: Lanes>(&self, out: &mut [f32; 256]) {
        let d = self.d.to_f32();
        for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (h, q) = (i / 4, i % 4);
            for (l, out) in out.iter_mut().enumerate() {
                let Place { low, high } = place(h, q, l);
                let code =
                    ((self.ql[low.0] >> low.1) & 15) | (((self.qh[high.0] >> high.1) & 3) << 4);
                let scale = d * f32::from(self.scales[2 * i + l / 16]);
                *out = scale * f32::from(code as i8 - 32);
            }
        }
    }

    #[inline(always)]
    fn quantize_rows<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        let sub_blocks = x.as_flattened().as_chunks().0;
        let weights = match weights {
            Some(importance) => Weights::Given(importance.as_flattened().as_chunks().0),
            None => Weights::Squares,
        };
        let fits = fit_symmetric::<V, 16>(sub_blocks, weights, 32);
        let fits = fits.as_chunks().0;
        for ((x, fits), out) in sub_blocks.as_chunks().0.iter().zip(fits).zip(out) {
            *out = round::<V>(x, fits);
        }
    }

    #[inline(always)]
    fn invalid(&self) -> Option<InvalidKind> {
        self.d.invalid()
    }
}

/// Rounds the scales, then the elements with the rounded scales.
#[inline(always)]
fn round<V: Lanes>(x: &[[f32; 16]; 16], fits: &[Symmetric; 16]) -> Q6_K {
    let mut block = Q6_K {
        ql: [0; 128],
        qh: [0; 64],
        scales: [0; 16],
        d: Half::ZERO,
    };
    let scales = fits.map(|fit| fit.scale);
    let max_scale = extreme(&scales);
    if max_scale.abs() < NEARLY_ZERO {
        return block;
    }
    let inverse = -128.0 / max_scale;
    block.d = Half::from_f32(1.0 / inverse);
    block.scales = scales.map(|scale| nearest_int(inverse * scale).min(127) as i8);

    let d = block.d.to_f32();
    let mut codes = [[0; 32]; 8];
    let halves = codes.as_flattened_mut().as_chunks_mut::<16>().0;
    for (j, (x, codes)) in x.iter().zip(halves).enumerate() {
        let scale = d * f32::from(block.scales[j]);
        *codes = if scale == 0.0 {
            fits[j].codes(x, 32)
        } else {
            let code = |x: V| (x / V::splat(scale)).round_to_code(-32, 31) + V::splat(32.0);
            one_pass::codes::<V, 16>(x, code)
        };
    }
    let bytes = block.ql.as_chunks_mut::<64>().0.iter_mut();
    let bytes = bytes.zip(block.qh.as_chunks_mut::<32>().0);
    for ((ql, qh), codes) in bytes.zip(codes.as_chunks::<4>().0) {
        for l in 0..32 {
            ql[l] = (codes[0][l] & 15) | (codes[2][l] << 4);
            ql[32 + l] = (codes[1][l] & 15) | (codes[3][l] << 4);
            let high = |q: usize| (codes[q][l] >> 4) << (2 * q);
            qh[l] = high(0) | high(1) | high(2) | high(3);
        }
    }
    block
}
