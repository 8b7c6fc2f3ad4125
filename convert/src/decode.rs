//! Decodes stored elements to `f32`.

use std::sync::LazyLock;

use kernels::float::f16_to_f32;
use kernels::types::{Codec, codec};
use safetensors::Dtype;
use schemas::gguf::DType;

/// A decoder of stored elements to `f32`.
#[derive(Clone, Copy)]
pub(crate) enum Decoder {
    Codec(Codec),
    F64,
    /// One byte per element, by table lookup.
    Byte(&'static [f32; 256]),
}

impl Decoder {
    pub(crate) fn of(dtype: Dtype) -> Option<Decoder> {
        let dtype = match dtype {
            Dtype::F64 => return Some(Decoder::F64),
            Dtype::F8_E4M3 => return Some(Decoder::Byte(&E4M3)),
            Dtype::F8_E5M2 => return Some(Decoder::Byte(&E5M2)),
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            _ => return None,
        };
        codec(dtype).map(Decoder::Codec)
    }

    /// Returns the decoder of FP8 scales: also of powers of two.
    pub(crate) fn of_scales(dtype: Dtype) -> Option<Decoder> {
        match dtype {
            Dtype::F8_E8M0 => Some(Decoder::Byte(&E8M0)),
            other => Decoder::of(other),
        }
    }

    /// Returns the GGUF element type, if there is one.
    pub(crate) fn dtype(self) -> Option<DType> {
        match self {
            Decoder::Codec(codec) => Some(codec.dtype()),
            Decoder::F64 | Decoder::Byte(_) => None,
        }
    }

    pub(crate) fn element_bytes(self) -> usize {
        match self {
            Decoder::Codec(codec) if codec.dtype() == DType::F32 => 4,
            Decoder::Codec(_) => 2,
            Decoder::F64 => 8,
            Decoder::Byte(_) => 1,
        }
    }

    pub(crate) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Decoder::Codec(codec) => codec.dequantize(bytes, out),
            Decoder::F64 => {
                let (elements, _) = bytes.as_chunks();
                for (out, &element) in out.iter_mut().zip(elements) {
                    *out = f64::from_le_bytes(element) as f32;
                }
            }
            Decoder::Byte(table) => {
                for (out, &code) in out.iter_mut().zip(bytes) {
                    *out = table[usize::from(code)];
                }
            }
        }
    }
}

/// FP8 E4M3: a sign, four exponent bits (bias 7), three fraction bits; no infinities, a single NaN.
static E4M3: LazyLock<[f32; 256]> = LazyLock::new(|| {
    std::array::from_fn(|code| {
        let (exponent, fraction) = (code as i32 >> 3 & 15, (code & 7) as f32);
        let magnitude = match (exponent, code & 7) {
            (15, 7) => f32::NAN,
            (0, _) => fraction / 8.0 * 2f32.powi(-6),
            _ => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
        };
        if code & 128 == 0 {
            magnitude
        } else {
            -magnitude
        }
    })
});

/// FP8 E5M2: the upper byte of a half-precision number.
static E5M2: LazyLock<[f32; 256]> =
    LazyLock::new(|| std::array::from_fn(|code| f16_to_f32((code as u16) << 8)));

/// E8M0: eight exponent bits (bias 127), no sign, a single NaN.
static E8M0: LazyLock<[f32; 256]> = LazyLock::new(|| {
    std::array::from_fn(|code| match code {
        0 => f32::MIN_POSITIVE / 2.0,
        255 => f32::NAN,
        exponent => f32::from_bits((exponent as u32) << 23),
    })
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_powers_of_two() {
        let decoder = Decoder::of_scales(Dtype::F8_E8M0).expect("has a decoder");
        let mut out = [0.0; 5];
        decoder.decode(&[0, 1, 127, 254, 255], &mut out);
        assert_eq!(out[..4], [-127, -126, 0, 127].map(|n| 2f64.powi(n) as f32));
        assert!(out[4].is_nan());
    }

    /// Expected values are PyTorch's for float8_e4m3fn and float8_e5m2.
    #[test]
    fn bytes_are_floats_of_eight_bits() {
        let decoded = |dtype, code: u8| {
            let mut out = [0.0];
            Decoder::of(dtype).unwrap().decode(&[code], &mut out);
            out[0]
        };
        for (code, e4m3, e5m2) in [
            (0x00, 0.0, 0.0),
            (0x01, 0.001_953_125, 0.000_015_258_789),
            (0x07, 0.013_671_875, 0.000_106_811_52),
            (0x38, 1.0, 0.5),
            (0x3B, 1.375, 0.875),
            (0x7E, 448.0, f32::NAN),
            (0x7C, 384.0, f32::INFINITY),
            (0x7B, 352.0, 57_344.0),
            (0xC5, -3.25, -5.0),
            (0x7F, f32::NAN, f32::NAN),
        ] {
            for (dtype, expected) in [(Dtype::F8_E4M3, e4m3), (Dtype::F8_E5M2, e5m2)] {
                let found = decoded(dtype, code);
                let same = found == expected || (found.is_nan() && expected.is_nan());
                assert!(same, "{dtype:?} {code:#x}: {found}, expected {expected}");
            }
        }
    }
}
