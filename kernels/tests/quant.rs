//! Compares the codecs with ggml by hashes of encoded bytes and decoded numbers.
//! `tests/reference/quant_goldens.py` created the hashes; these functions reproduce its data bit for bit.

use kernels::cpu::Cpu;
use kernels::types::{Codec, TYPES, element_type};
use schemas::gguf::DType;

const N_ROWS: usize = 6;
const N_COLS: usize = 512;

struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn gaussian(&mut self) -> f64 {
        let sum: u64 = (0..12).map(|_| self.next() >> 44).sum();
        (sum as f64 - f64::from(6 << 20)) / f64::from(1 << 20)
    }
}

fn bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

/// Returns an element of a data set. All arithmetic is exact in `f64`; the result is rounded once.
fn element(data: &str, rng: &mut SplitMix64, row: usize, col: usize) -> f32 {
    let power = |exponent: usize, offset: i32| 2f64.powi(exponent as i32 + offset);
    let value = match data {
        "gaussian" => rng.gaussian() / 64.0,
        "bf16" => f64::from(bf16((rng.gaussian() / 64.0) as f32)),
        "heavy_tail" => {
            let zeros = (rng.next() | 1 << 12).trailing_zeros();
            rng.gaussian() / 64.0 * power(zeros as usize, 0)
        }
        "zero" => 0.0,
        "minus_zero" => -0.0,
        "signed_zeros" => [0.0, -0.0][(rng.next() & 1) as usize],
        "constant" => (row as f64 - 2.0) * 0.3125,
        "positive" => rng.gaussian().abs() / 64.0,
        "negative" => -rng.gaussian().abs() / 64.0,
        "tiny" => rng.gaussian() * 2f64.powi(-116 - 5 * row as i32),
        "huge" => rng.gaussian() * power(20 * row, 15),
        "mixed_scales" => rng.gaussian() * power(5 * (col / 32 % 9), -30),
        "ternary" => ((rng.next() % 3) as f64 - 1.0) / 32.0,
        "sparse" => {
            let value = rng.gaussian() / 64.0;
            if rng.next().is_multiple_of(10) {
                value
            } else {
                0.0
            }
        }
        "random_bits" => {
            let bits = (rng.next() >> 32) as u32;
            let finite = bits & 0x7f80_0000 != 0x7f80_0000;
            f64::from(f32::from_bits(if finite {
                bits
            } else {
                bits & !0x0080_0000
            }))
        }
        "below_powers" => {
            let mut value = rng.gaussian() / 8.0;
            if col.is_multiple_of(32) {
                value = 1.0 - (rng.next() % 64 + 1) as f64 * power(0, -24);
            }
            value * power(2 * (col / 32 + 16 * row) + 1, -126)
        }
        "subnormal" => f64::from(f32::from_bits((rng.next() >> 32) as u32 & 0x807f_ffff)),
        "mixed_blocks" => {
            let value = rng.gaussian() / 64.0;
            let lonely = if col % 32 == 5 { value } else { 0.0 };
            [0.0, 0.25, value, -0.5, lonely][(col / 32 + 16 * row) * 7 % 5]
        }
        other => panic!("no data set {other}"),
    };
    value as f32
}

const DATA: [&str; 18] = [
    "gaussian",
    "bf16",
    "heavy_tail",
    "zero",
    "minus_zero",
    "signed_zeros",
    "constant",
    "positive",
    "negative",
    "tiny",
    "huge",
    "mixed_scales",
    "ternary",
    "sparse",
    "random_bits",
    "below_powers",
    "subnormal",
    "mixed_blocks",
];

const IMPORTANCE: [&str; 5] = ["none", "squares", "zeros", "ones", "third_zero"];

/// Cases that end ggml's process, as tests/reference/quant_goldens.py lists them: seven types with three data
/// sets, and three of these types without importance.
const N_ABORTED: usize = 7 * 3 * IMPORTANCE.len() + 3 * (DATA.len() - 3);

fn rows(data: &str) -> Vec<f32> {
    let seed = DATA
        .iter()
        .position(|&name| name == data)
        .expect("a data set");
    let mut rng = SplitMix64(seed as u64);
    (0..N_ROWS * N_COLS)
        .map(|i| element(data, &mut rng, i / N_COLS, i % N_COLS))
        .collect()
}

fn importance(name: &str) -> Option<Vec<f32>> {
    let seed = IMPORTANCE
        .iter()
        .position(|&n| n == name)
        .expect("an importance");
    let mut rng = SplitMix64(1000 + seed as u64);
    let mut weight = |col: usize| match name {
        "squares" => rng.gaussian().powi(2),
        "zeros" => 0.0,
        "ones" => 1.0,
        "third_zero" => {
            let square = rng.gaussian().powi(2);
            if col.is_multiple_of(3) { 0.0 } else { square }
        }
        other => panic!("no importance {other}"),
    };
    (name != "none").then(|| (0..N_COLS).map(|col| weight(col) as f32).collect())
}

fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn encode(codec: Codec, x: &[f32], weights: Option<&[f32]>) -> Vec<u8> {
    let row_bytes = codec
        .dtype()
        .row_bytes(N_COLS as u64)
        .expect("whole blocks") as usize;
    let mut bytes = vec![0xa5; N_ROWS * row_bytes];
    for (x, out) in x
        .chunks_exact(N_COLS)
        .zip(bytes.chunks_exact_mut(row_bytes))
    {
        codec.quantize(x, weights, out);
    }
    bytes
}

fn decode(codec: Codec, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; N_ROWS * N_COLS];
    codec.dequantize(bytes, &mut out);
    out
}

#[test]
fn bytes_are_those_of_ggml() {
    let mut failed = Vec::new();
    let mut n_cases = 0;
    for line in include_str!("golden/quant.txt").lines().skip(1) {
        let [name, data, weights, bytes_hash, f32_hash] =
            *line.split(' ').collect::<Vec<_>>().as_slice()
        else {
            panic!("five columns: {line}");
        };
        let dtype = DType::by_name(name).expect("a type's name");
        let (x, importance) = (rows(data), importance(weights));
        for isa in Cpu::available() {
            let codec = element_type(dtype).and_then(|t| t.codec(isa));
            let codec = codec.expect("a codec");
            let bytes = encode(codec, &x, importance.as_deref());
            let decoded = decode(codec, &bytes);
            let f32_bytes = decoded.iter().flat_map(|x| {
                // The script writes every NaN as this pattern.
                let bits = if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() };
                bits.to_le_bytes()
            });
            // The sign of a computed NaN depends on the CPU. A block with such a scale is rejected, never
            // written.
            let is_refused =
                cfg!(not(target_arch = "x86_64")) && codec.find_invalid(&bytes).is_some();
            let encoded_right =
                is_refused || format!("{:016x}", fnv1a(bytes.iter().copied())) == bytes_hash;
            if !encoded_right || format!("{:016x}", fnv1a(f32_bytes)) != f32_hash {
                let part = if encoded_right { "decoded" } else { "encoded" };
                failed.push(format!("{isa} {name} {data} {weights}: {part}"));
            }
        }
        n_cases += 1;
    }
    assert_eq!(
        n_cases + N_ABORTED,
        TYPES.len() * DATA.len() * IMPORTANCE.len()
    );
    assert!(
        failed.is_empty(),
        "{} of {n_cases}:\n{}",
        failed.len(),
        failed.join("\n")
    );
}
