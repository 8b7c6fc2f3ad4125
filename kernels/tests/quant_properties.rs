//! Properties that hold for every codec and any input.

use kernels::cpu::{Cpu, Isa};
use kernels::types::{Codec, Invalid, InvalidKind, TYPES, choose, codec, codecs};
use proptest::collection::vec;
use proptest::prelude::*;
use schemas::gguf::DType;

fn encode(codec: Codec, x: &[f32], weights: Option<&[f32]>) -> Vec<u8> {
    let n_bytes = codec
        .dtype()
        .row_bytes(x.len() as u64)
        .expect("whole blocks");
    let mut bytes = vec![0; n_bytes as usize];
    codec.quantize(x, weights, &mut bytes);
    bytes
}

fn decode(codec: Codec, bytes: &[u8], len: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; len];
    codec.dequantize(bytes, &mut out);
    out
}

fn squares(x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| (x * x).min(f32::MAX)).collect()
}

/// Bit patterns, with one pattern for all NaNs: the NaN that arithmetic produces depends on the CPU.
fn bits(x: Vec<f32>) -> Vec<u32> {
    x.iter()
        .map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() })
        .collect()
}

fn rms(x: impl Iterator<Item = f32>) -> f64 {
    let (n, sum) = x.fold((0, 0.0), |(n, sum), x| (n + 1, sum + f64::from(x).powi(2)));
    (sum / f64::from(n)).sqrt()
}

/// Upper bound of RMS error over RMS, for numbers uniform around 0. A step of `2 / 2^bits` over the range
/// `-1..1` gives `1 / 2^bits` of the row's RMS; the bound leaves a factor of two for shared scales, their
/// rounding and the uneven steps of 4-bit floats.
fn error_bound(dtype: DType) -> f64 {
    let bits = match dtype {
        DType::F32 => return 0.0,
        DType::F16 => 11,
        DType::BF16 | DType::Q8_0 => 8,
        DType::Q6_K => 6,
        DType::Q5_0 | DType::Q5_1 | DType::Q5_K => 5,
        DType::Q3_K | DType::MXFP4 => 3,
        DType::Q2_K | DType::IQ3_S | DType::IQ3_XXS => 2,
        DType::IQ2_S | DType::IQ2_XS | DType::IQ2_XXS | DType::IQ1_M | DType::IQ1_S => 1,
        DType::Q1_0 | DType::Q2_0 | DType::TQ1_0 | DType::TQ2_0 => 1,
        // Its scales have no values for numbers this small.
        DType::NVFP4 => 1,
        _ => 4,
    };
    2.0 / f64::from(1 << bits)
}

fn finite() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(|bits| {
        let x = f32::from_bits(bits);
        if x.is_finite() {
            x
        } else {
            f32::from_bits(bits & !0x0080_0000)
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn decoding_gives_nearly_what_was_encoded(
        x in vec(-1f32..1.0, 512),
        weights in vec(0.5f32..2.0, 512),
        exponent in -10i32..10,
    ) {
        let x: Vec<f32> = x.iter().map(|x| x * 2f32.powi(exponent)).collect();
        for codec in codecs() {
            for weights in [None, Some(&weights[..])] {
                let bytes = encode(codec, &x, weights);
                prop_assert_eq!(codec.find_invalid(&bytes), None);
                let decoded = decode(codec, &bytes, x.len());
                let error = rms(x.iter().zip(&decoded).map(|(x, y)| x - y));
                let relative = error / rms(x.iter().copied());
                let dtype = codec.dtype();
                prop_assert!(relative <= error_bound(dtype), "{}: {}", dtype, relative);
            }
        }
    }

    /// Any finite numbers (subnormal, huge), row lengths that leave lanes unused, any bytes.
    #[test]
    fn instruction_sets_agree_on_anything(
        n_cols in (1usize..8).prop_map(|n| 256 * n),
        x in vec(finite(), 2048),
        ordinary in vec(-1f32..1.0, 2048),
        weights in vec(finite().prop_map(f32::abs), 2048),
        noise in vec(any::<u8>(), 8192),
    ) {
        for element_type in TYPES {
            let on = |isa| element_type.codec(isa).expect("an available instruction set");
            let specification = on(Isa::Portable);
            for x in [&x[..n_cols], &ordinary[..n_cols]] {
                for weights in [None, Some(&weights[..n_cols]), Some(&squares(x)[..])] {
                    let bytes = encode(specification, x, weights);
                    let noise = &noise[..bytes.len()];
                    let decoded = bits(decode(specification, noise, n_cols));
                    specification.find_invalid(noise);
                    for isa in Cpu::available() {
                        let dtype = specification.dtype();
                        let same = encode(on(isa), x, weights) == bytes;
                        prop_assert!(same, "{isa} {dtype} encodes");
                        let same = bits(decode(on(isa), noise, n_cols)) == decoded;
                        prop_assert!(same, "{isa} {dtype} decodes");
                    }
                }
            }
        }
    }

    /// Quantizing several rows at once, including rows of zeros and of equal numbers, gives the same bytes
    /// as row by row.
    #[test]
    fn rows_do_not_depend_on_each_other(
        n_cols in (1usize..4).prop_map(|n| 256 * n),
        mut x in vec(-1f32..1.0, 768 * 5),
        weights in vec(0f32..1.0, 768),
    ) {
        x[n_cols..n_cols + 300].fill(0.0);
        x[2 * n_cols..2 * n_cols + 300].fill(-0.25);
        let (x, weights) = (&x[..5 * n_cols], &weights[..n_cols]);
        for isa in Cpu::available() {
            for element_type in TYPES {
                let codec = element_type.codec(isa).expect("an available instruction set");
                for weights in [None, Some(weights)] {
                    let row = |x| encode(codec, x, weights);
                    let rows: Vec<u8> = x.chunks(n_cols).flat_map(row).collect();
                    let same = encode(codec, x, weights) == rows;
                    prop_assert!(same, "{isa} {}", codec.dtype());
                }
            }
        }
    }
}

/// Offsets of the half-precision fields of a block.
const HALF_FIELDS: [(DType, &[usize]); 23] = [
    (DType::F16, &[0]),
    (DType::Q4_0, &[0]),
    (DType::Q4_1, &[0, 2]),
    (DType::Q5_0, &[0]),
    (DType::Q5_1, &[0, 2]),
    (DType::Q8_0, &[0]),
    (DType::Q2_K, &[80, 82]),
    (DType::Q3_K, &[108]),
    (DType::Q4_K, &[0, 2]),
    (DType::Q5_K, &[0, 2]),
    (DType::Q6_K, &[208]),
    (DType::IQ4_NL, &[0]),
    (DType::IQ4_XS, &[0]),
    (DType::IQ1_S, &[0]),
    (DType::IQ2_XXS, &[0]),
    (DType::IQ2_XS, &[0]),
    (DType::IQ2_S, &[0]),
    (DType::IQ3_XXS, &[0]),
    (DType::IQ3_S, &[0]),
    (DType::Q1_0, &[0]),
    (DType::Q2_0, &[0]),
    (DType::TQ1_0, &[52]),
    (DType::TQ2_0, &[64]),
];

#[test]
fn a_scale_that_is_not_finite_is_found() {
    for (dtype, fields) in HALF_FIELDS {
        let codec = codec(dtype).expect("a codec");
        let block_bytes = dtype.layout().expect("known").block_bytes as usize;
        for &field in fields {
            for (bits, kind) in [
                (0x7e00u16, InvalidKind::Nan),
                (0xfc01, InvalidKind::Nan),
                (0x7c00, InvalidKind::Infinity),
                (0xfc00, InvalidKind::Infinity),
            ] {
                let mut bytes = vec![0; 600 * block_bytes];
                assert_eq!(codec.find_invalid(&bytes), None);
                let at = 523 * block_bytes + field;
                bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
                let found = codec.find_invalid(&bytes);
                assert_eq!(
                    found,
                    Some(Invalid { index: 523, kind }),
                    "{dtype} at {field}"
                );
            }
        }
    }
}

#[test]
fn other_invalid_numbers_are_found() {
    let find = |dtype, bytes: &[u8]| codec(dtype).expect("a codec").find_invalid(bytes);
    let nan = |index| {
        Some(Invalid {
            index,
            kind: InvalidKind::Nan,
        })
    };
    let infinity = |index| {
        Some(Invalid {
            index,
            kind: InvalidKind::Infinity,
        })
    };
    assert_eq!(
        find(DType::F32, &[1.0, f32::NAN].map(f32::to_le_bytes).concat()),
        nan(1)
    );
    assert_eq!(
        find(
            DType::F32,
            &[f32::NEG_INFINITY].map(f32::to_le_bytes).concat()
        ),
        infinity(0)
    );
    assert_eq!(find(DType::BF16, &[0x80, 0x3f, 0x80, 0xff]), infinity(1));
    assert_eq!(find(DType::BF16, &[0x81, 0xff]), nan(0));
    let mut blocks = [0xfe; 34];
    assert_eq!(find(DType::MXFP4, &blocks), None);
    blocks[17] = 0xff;
    assert_eq!(find(DType::MXFP4, &blocks), nan(1));
}

#[test]
fn large_weights_fit_some_types_only() {
    let x = [1.6e7; 256];
    for (dtype, fits) in [
        (DType::Q4_K, true),
        (DType::Q8_0, false),
        (DType::F16, false),
    ] {
        let codec = codec(dtype).expect("a codec");
        let found = codec.find_invalid(&encode(codec, &x, None));
        let kind = InvalidKind::Infinity;
        assert_eq!(
            found,
            (!fits).then_some(Invalid { index: 0, kind }),
            "{dtype}"
        );
    }
}

#[test]
fn each_type_is_listed_once_with_the_block_its_layout_names() {
    for codec in codecs() {
        let dtype = codec.dtype();
        assert_eq!(
            codecs().filter(|other| other.dtype() == dtype).count(),
            1,
            "{dtype}"
        );
        let layout = dtype.layout().expect("known");
        let mut out = vec![f32::NAN; layout.block_len as usize];
        codec.dequantize(&vec![0; layout.block_bytes as usize], &mut out);
        assert!(out.iter().all(|x| x.is_finite()), "{dtype}");
    }
    assert!(codec(DType::I64).is_none());
}

#[test]
fn an_unavailable_instruction_set_is_refused() {
    let error = choose("mmx").expect_err("no codec has one").to_string();
    assert!(error.starts_with("instruction set \"mmx\": not available on this CPU, which has "));
    assert!(error.ends_with("portable"), "{error}");
}
