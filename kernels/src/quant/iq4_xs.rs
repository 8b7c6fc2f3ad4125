//! IQ4_XS: superblocks of 256, codes as in IQ4_NL, a signed six-bit scale for each 32.

use schemas::gguf::DType;

use super::InvalidKind;
use super::block::Block;
use super::float::{Half, extreme, nearest_int, reciprocal};
use super::lanes::{Lanes, energies};
use super::search::importance_weights;
use super::{iq4_nl, nibbles};

#[repr(C)]
pub(super) struct IQ4_XS {
    d: Half,
    scales_high: [u8; 2],
    scales_low: [u8; 4],
    qs: [[u8; 16]; 8],
}

// SAFETY: repr(C) of byte arrays.
unsafe impl Block<256> for IQ4_XS {
    const DTYPE: DType = DType::IQ4_XS;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let high = u16::from_le_bytes(self.scales_high);
        for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = (self.scales_low[b / 2] >> (4 * (b % 2))) & 15;
            let code = low | (((high >> (2 * b)) & 3) << 4) as u8;
            let scale = self.d.to_f32() * f32::from(code as i8 - 32);
            nibbles::decode(&self.qs[b], out, |code| scale * iq4_nl::value(code));
        }
    }

    #[inline(always)]
    fn quantize_row<V: Lanes>(x: &[[f32; 256]], weights: Option<&[[f32; 256]]>, out: &mut [Self]) {
        let sub_blocks = x.as_flattened().as_chunks().0;
        let w = match weights {
            None => sub_blocks
                .iter()
                .map(|x: &[f32; 32]| x.map(|x| x * x))
                .collect(),
            Some(importance) => {
                let importance = importance.as_flattened().as_chunks().0;
                let energies = energies::<V, 256>(x);
                let sigma2: Vec<f32> = energies.iter().map(|e| e * (2.0 / 256.0)).collect();
                importance_weights(sub_blocks, importance, &sigma2, 8)
            }
        };
        let (x, w) = (sub_blocks.as_chunks().0, w.as_chunks().0);
        for ((x, w), out) in x.iter().zip(w).zip(out) {
            *out = quantize(x, w);
        }
    }

    fn invalid(&self) -> Option<InvalidKind> {
        InvalidKind::of(self.d.to_f32())
    }
}

#[inline(always)]
fn quantize(x: &[[f32; 32]; 8], w: &[[f32; 32]; 8]) -> IQ4_XS {
    let scales: [f32; 8] = std::array::from_fn(|b| iq4_nl::fit(&x[b], &w[b]));
    let d = -extreme(&scales) / 32.0;
    let inverse = reciprocal(d);
    let mut high = 0;
    let mut scales_low = [0; 4];
    let qs = std::array::from_fn(|b| {
        let multiple = nearest_int(inverse * scales[b]).clamp(-32, 31);
        let code = (multiple + 32) as u8;
        scales_low[b / 2] |= (code & 15) << (4 * (b % 2));
        high |= u16::from(code >> 4) << (2 * b);
        nibbles::pack(&iq4_nl::codes(&x[b], reciprocal(d * multiple as f32)))
    });
    IQ4_XS {
        d: Half::from_f32(d),
        scales_high: high.to_le_bytes(),
        scales_low,
        qs,
    }
}
