//! Semantics of arithmetic instructions: PTX ISA 8.0, "Instruction Set".

use half::f16;

use super::memory::WARP;

/// A register of each thread of a warp. Narrower registers use the low bits.
pub(super) type Lanes = [u64; WARP];

/// The function of an instruction on up to four registers, lane by lane.
pub(super) type Map = Box<dyn Fn([&Lanes; 4]) -> Lanes + Send + Sync>;

/// Propagation of undefined bits from operands to the result. In a mask, ones mark undefined bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// All bits of the result are undefined.
    All,
    /// The mask moves like the bits, for that many operands; the other operands must be defined.
    Moved(usize),
    /// The mask of the only operand.
    Same,
    /// Bits that are undefined in either operand.
    Either,
    /// As `Either`, except where the other operand has a defined zero.
    And,
    /// As `Either`, except where the other operand has a defined one.
    Or,
    /// The mask of the selected operand, if the selector is defined.
    Chosen,
    /// The result is between those of the least and of the largest operands, so higher bits are defined.
    Between,
}

impl Rule {
    pub(super) fn of(name: &str) -> Rule {
        let (kind, types) = name.split_once('.').unwrap_or((name, ""));
        match kind {
            "mov" | "shl" | "shr" => Rule::Moved(1),
            "cvt" if !types.contains('f') => Rule::Moved(1),
            "prmt" | "bfi" | "shf" => Rule::Moved(2),
            "not" => Rule::Same,
            "xor" => Rule::Either,
            "and" => Rule::And,
            "or" => Rule::Or,
            "selp" => Rule::Chosen,
            "add" if matches!(types, "s64" | "u64") => Rule::Between,
            "mul" if types.starts_with("wide.u") => Rule::Between,
            _ => Rule::All,
        }
    }

    /// Returns the mask of the result of `map` for operands with these values and masks.
    pub(super) fn unmeant(self, map: &Map, values: [&Lanes; 4], masks: [&Lanes; 4]) -> Lanes {
        if masks.iter().all(|mask| is_meant(mask)) {
            return [0; WARP];
        }
        let of = |f: &dyn Fn(usize) -> u64| std::array::from_fn(f);
        let any = |masks: &[&Lanes], lane: usize| masks.iter().any(|mask| mask[lane] != 0);
        let [a, b, choice, _] = values;
        let [ma, mb, mc, _] = masks;
        match self {
            Rule::All => of(&|i| if any(&masks, i) { u64::MAX } else { 0 }),
            Rule::Moved(n) => {
                let mixed = std::array::from_fn(|i| if i < n { masks[i] } else { values[i] });
                let moved = map(mixed);
                of(&|i| {
                    if any(&masks[n..], i) {
                        u64::MAX
                    } else {
                        moved[i]
                    }
                })
            }
            Rule::Same => *ma,
            Rule::Either => of(&|i| ma[i] | mb[i]),
            Rule::And => of(&|i| (ma[i] | mb[i]) & (ma[i] | a[i]) & (mb[i] | b[i])),
            Rule::Or => of(&|i| (ma[i] | mb[i]) & (ma[i] | !a[i]) & (mb[i] | !b[i])),
            Rule::Chosen => of(&|i| match (mc[i] & 1, choice[i] & 1) {
                (1, _) => u64::MAX,
                (_, 1) => ma[i],
                _ => mb[i],
            }),
            Rule::Between => {
                let least = std::array::from_fn(|k| of(&|i| values[k][i] & !masks[k][i]));
                let largest = std::array::from_fn(|k| of(&|i| values[k][i] | masks[k][i]));
                let [least, largest] =
                    [least, largest].map(|ends: [Lanes; 4]| map(ends.each_ref()));
                of(&|i| match largest[i].checked_sub(least[i]) {
                    Some(0) => 0,
                    Some(_) => u64::MAX >> (least[i] ^ largest[i]).leading_zeros(),
                    None => u64::MAX,
                })
            }
        }
    }
}

/// Returns true if all bits are defined.
pub(super) fn is_meant(mask: &Lanes) -> bool {
    mask.iter().fold(0, |a, b| a | b) == 0
}

fn map<F: Fn([u64; 4]) -> u64 + Send + Sync + 'static>(f: F) -> Map {
    Box::new(move |[a, b, c, d]| std::array::from_fn(|i| f([a[i], b[i], c[i], d[i]])))
}

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn f64_of(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// Arithmetic returns one bit pattern for every NaN.
fn of_f32(x: f32) -> u64 {
    u64::from(if x.is_nan() { 0x7fff_ffff } else { x.to_bits() })
}

fn of_f64(x: f64) -> u64 {
    if x.is_nan() {
        0x7fff_ffff_ffff_ffff
    } else {
        x.to_bits()
    }
}

fn one(f: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Map {
    map(move |[a, ..]| f(a))
}

fn two(f: impl Fn(u64, u64) -> u64 + Send + Sync + 'static) -> Map {
    map(move |[a, b, ..]| f(a, b))
}

fn of_words(f: impl Fn(u32, u32) -> u32 + Send + Sync + 'static) -> Map {
    two(move |a, b| u64::from(f(a as u32, b as u32)))
}

fn of_floats(f: impl Fn(f32, f32) -> f32 + Send + Sync + 'static) -> Map {
    two(move |a, b| of_f32(f(f32_of(a), f32_of(b))))
}

fn of_doubles(f: impl Fn(f64, f64) -> f64 + Send + Sync + 'static) -> Map {
    two(move |a, b| of_f64(f(f64_of(a), f64_of(b))))
}

fn float(f: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Map {
    one(move |a| of_f32(f(f32_of(a))))
}

fn compare_words(f: impl Fn(u32, u32) -> bool + Send + Sync + 'static) -> Map {
    two(move |a, b| u64::from(f(a as u32, b as u32)))
}

fn compare_signed(f: impl Fn(i32, i32) -> bool + Send + Sync + 'static) -> Map {
    compare_words(move |a, b| f(a as i32, b as i32))
}

fn compare_longs(f: impl Fn(u64, u64) -> bool + Send + Sync + 'static) -> Map {
    two(move |a, b| u64::from(f(a, b)))
}

fn compare_floats(f: impl Fn(f32, f32) -> bool + Send + Sync + 'static) -> Map {
    two(move |a, b| u64::from(f(f32_of(a), f32_of(b))))
}

/// Selects bytes of two words by the four nibbles of a selector; the highest bit of a nibble replicates the
/// sign.
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let byte = |i: u32| {
        let which = selector >> (4 * i) & 15;
        let byte = (bytes >> (8 * (which & 7))) as u8;
        let sign = (byte as i8 >> 7) as u8;
        u32::from(if which & 8 == 0 { byte } else { sign }) << (8 * i)
    };
    (0..4).map(byte).sum()
}

/// Replaces some bits of one word by the lowest bits of another.
fn insert<const BITS: u32>(from: u64, to: u64, at: u64, n: u64) -> u64 {
    let all = (1u128 << BITS) - 1;
    let (at, n) = (at & 255, n & 255);
    let ones = (((1u128 << n.min(64)) - 1) << at.min(63)) & all;
    let from = u128::from(from) << at.min(63);
    (u128::from(to) & all & !ones | from & ones) as u64
}

/// Returns the larger or smaller of two numbers; if one is NaN, the other.
fn chosen(a: f32, b: f32, is_first: bool) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if is_first => a,
        _ => b,
    }
}

/// Returns the function of an instruction by name; `None` if it is unknown.
pub(super) fn arithmetic(name: &str) -> Option<Map> {
    Some(match name {
        // 32-bit integers.
        "add.s32" | "add.u32" => of_words(u32::wrapping_add),
        "sub.s32" | "sub.u32" => of_words(u32::wrapping_sub),
        "mul.lo.s32" | "mul.lo.u32" => of_words(u32::wrapping_mul),
        "mad.lo.s32" => map(|[a, b, c, _]| {
            let product = (a as u32).wrapping_mul(b as u32);
            u64::from(product.wrapping_add(c as u32))
        }),
        // Products of the halves of one word with the two low bytes of another.
        "dp2a.lo.u32.u32" => map(|[a, b, c, _]| {
            let products = (a & 0xffff) * (b & 0xff) + (a >> 16 & 0xffff) * (b >> 8 & 0xff);
            u64::from((products as u32).wrapping_add(c as u32))
        }),
        "mul.wide.u16" => two(|a, b| (a & 0xffff) * (b & 0xffff)),
        "mul.wide.u32" => two(|a, b| u64::from(a as u32) * u64::from(b as u32)),
        "div.u32" => of_words(|a, b| a.checked_div(b).unwrap_or(u32::MAX)),
        "rem.u32" => of_words(|a, b| a.checked_rem(b).unwrap_or(a)),
        "min.u32" => of_words(u32::min),
        "max.u32" => of_words(u32::max),
        "and.b32" | "and.b16" => of_words(|a, b| a & b),
        "or.b32" | "or.b16" => of_words(|a, b| a | b),
        "xor.b32" => of_words(|a, b| a ^ b),
        "popc.b32" => one(|a| u64::from((a as u32).count_ones())),
        "not.b32" => one(|a| u64::from(!(a as u32))),
        "shl.b32" => of_words(|a, n| a.checked_shl(n).unwrap_or(0)),
        "mul.lo.s16" => of_words(|a, b| a.wrapping_mul(b) & 0xffff),
        "shl.b16" => of_words(|a, n| a.checked_shl(n).unwrap_or(0) & 0xffff),
        "shr.u32" => of_words(|a, n| a.checked_shr(n).unwrap_or(0)),
        "shr.s32" => of_words(|a, n| (a as i32 >> n.min(31)) as u32),
        "shr.s16" => of_words(|a, n| i32::from(a as i16 >> n.min(15)) as u32),
        "shr.u16" => of_words(|a, n| u32::from((a as u16).checked_shr(n).unwrap_or(0))),
        "shf.r.wrap.b32" => map(|[low, high, n, _]| {
            let both = (high & 0xffff_ffff) << 32 | low & 0xffff_ffff;
            both >> (n & 31) & 0xffff_ffff
        }),
        "prmt.b32" => map(|[a, b, c, _]| u64::from(permute(a as u32, b as u32, c as u32))),
        "bfi.b32" => map(|[a, b, c, d]| insert::<32>(a, b, c, d)),
        "bfi.b64" => map(|[a, b, c, d]| insert::<64>(a, b, c, d)),
        // 64-bit integers.
        "add.s64" | "add.u64" => two(u64::wrapping_add),
        "sub.s64" => two(u64::wrapping_sub),
        "mul.lo.s64" => two(u64::wrapping_mul),
        "div.u64" => two(|a, b| a.checked_div(b).unwrap_or(u64::MAX)),
        "rem.u64" => two(|a, b| a.checked_rem(b).unwrap_or(a)),
        "and.b64" => two(|a, b| a & b),
        "or.b64" => two(|a, b| a | b),
        "xor.b64" => two(|a, b| a ^ b),
        "shl.b64" => two(|a, n| a.checked_shl(n as u32).unwrap_or(0)),
        "shr.u64" => two(|a, n| a.checked_shr(n as u32).unwrap_or(0)),
        "shr.s64" => two(|a, n| (a as i64 >> (n as u32).min(63)) as u64),
        // Predicates.
        "and.pred" => two(|a, b| a & b & 1),
        "or.pred" => two(|a, b| (a | b) & 1),
        "xor.pred" => two(|a, b| (a ^ b) & 1),
        "not.pred" => one(|a| !a & 1),
        "mov.pred" => one(|a| a & 1),
        "mov.b32" | "mov.u32" | "mov.f32" | "mov.b64" | "mov.u64" | "mov.f64" | "mov.u16"
        | "mov.b16" => one(|a| a),
        "selp.b32" | "selp.u32" | "selp.f32" | "selp.b64" | "selp.f64" => {
            map(|[a, b, p, _]| if p & 1 == 1 { a } else { b })
        }
        "setp.eq.b32" | "setp.eq.s32" => compare_words(|a, b| a == b),
        "setp.ne.s32" => compare_words(|a, b| a != b),
        "setp.lt.u32" => compare_words(|a, b| a < b),
        "setp.le.u32" => compare_words(|a, b| a <= b),
        "setp.gt.u32" => compare_words(|a, b| a > b),
        "setp.ge.u32" => compare_words(|a, b| a >= b),
        "setp.lt.s32" => compare_signed(|a, b| a < b),
        "setp.gt.s32" => compare_signed(|a, b| a > b),
        "setp.eq.b64" | "setp.eq.s64" => compare_longs(|a, b| a == b),
        "setp.lt.u64" => compare_longs(|a, b| a < b),
        "setp.le.u64" => compare_longs(|a, b| a <= b),
        "setp.ge.u64" => compare_longs(|a, b| a >= b),
        "setp.eq.f32" => compare_floats(|a, b| a == b),
        "setp.lt.f32" => compare_floats(|a, b| a < b),
        "setp.gt.f32" => compare_floats(|a, b| a > b),
        "setp.neu.f32" => compare_floats(|a, b| a != b),
        "setp.nan.f32" => compare_floats(|a, b| a.is_nan() || b.is_nan()),
        // Floats, rounded to nearest, with subnormal numbers.
        "add.rn.f32" => of_floats(|a, b| a + b),
        "sub.rn.f32" => of_floats(|a, b| a - b),
        "mul.rn.f32" => of_floats(|a, b| a * b),
        "div.rn.f32" => of_floats(|a, b| a / b),
        "rcp.rn.f32" => float(|a| 1.0 / a),
        "sqrt.rn.f32" => float(f32::sqrt),
        "fma.rn.f32" => map(|[a, b, c, _]| of_f32(f32_of(a).mul_add(f32_of(b), f32_of(c)))),
        // Negation also changes the sign of NaN.
        "neg.f32" => one(|a| u64::from(a as u32 ^ 1 << 31)),
        "neg.f64" => one(|a| a ^ 1 << 63),
        // The positive zero is the larger one.
        "max.f32" => of_floats(|a, b| chosen(a, b, a > b || a == b && a.is_sign_positive())),
        "min.f32" => of_floats(|a, b| chosen(a, b, a < b || a == b && a.is_sign_negative())),
        "add.rn.f64" => of_doubles(|a, b| a + b),
        "mul.rn.f64" => of_doubles(|a, b| a * b),
        "div.rn.f64" => of_doubles(|a, b| a / b),
        // Conversions.
        "cvt.f32.f16" => one(|a| of_f32(f16::from_bits(a as u16).to_f32())),
        "cvt.f64.f32" => one(|a| of_f64(f64::from(f32_of(a)))),
        "cvt.rn.f32.f64" => one(|a| of_f32(f64_of(a) as f32)),
        "cvt.rn.f32.s16" => one(|a| of_f32(f32::from(a as i16))),
        "cvt.rn.f32.u16" => one(|a| of_f32(f32::from(a as u16))),
        "cvt.rn.f32.s32" => one(|a| of_f32(a as i32 as f32)),
        "cvt.rn.f32.u32" => one(|a| of_f32(a as u32 as f32)),
        "cvt.rn.f64.s64" => one(|a| of_f64(a as i64 as f64)),
        "cvt.rzi.s32.f32" => one(|a| f32_of(a) as i32 as u64),
        "cvt.s16.s8" | "cvt.s32.s8" => one(|a| a as i8 as u64),
        "cvt.u16.u32" | "cvt.u32.u16" | "cvt.u64.u16" => one(|a| a & 0xffff),
        "cvt.u32.u64" | "cvt.u64.u32" => one(|a| a & 0xffff_ffff),
        _ => return None,
    })
}

/// Decodes a matrix operand from registers of a warp: `ROWS` rows of 32 bytes, as in "Matrix fragments for
/// mma.m16n8k16" and "mma.m16n8k32". With two registers for sixteen rows, or one for eight, the second half
/// is zero.
fn rows<const ROWS: usize>(registers: &[&Lanes]) -> [[u8; 32]; ROWS] {
    let mut rows = [[0; 32]; ROWS];
    for (r, words) in registers.iter().enumerate() {
        let (half, eight) = (r / (ROWS / 8), r % (ROWS / 8));
        for (lane, word) in words.iter().enumerate() {
            let at = half * 16 + lane % 4 * 4;
            rows[eight * 8 + lane / 4][at..at + 4].copy_from_slice(&word.to_le_bytes()[..4]);
        }
    }
    rows
}

/// Encodes 16 rows and 8 columns of words as registers of a warp.
fn words_of(element: impl Fn(usize, usize) -> u64) -> [Lanes; 4] {
    std::array::from_fn(|r| {
        std::array::from_fn(|lane| element(lane / 4 + r / 2 * 8, lane % 4 * 2 + r % 2))
    })
}

/// Returns `a . b` as 16 rows and 8 columns, of signed bytes.
pub(super) fn products(a: &[&Lanes], b: &[&Lanes]) -> [Lanes; 4] {
    let (a, b) = (rows::<16>(a), rows::<8>(b));
    words_of(|row, column| {
        let pairs = a[row].iter().zip(&b[column]);
        let sum: i32 = pairs
            .map(|(&a, &b)| i32::from(a as i8) * i32::from(b as i8))
            .sum();
        u64::from(sum as u32)
    })
}

/// Returns its mask: an element is undefined if it depends on an undefined byte, unless that is multiplied
/// by a defined zero.
pub(super) fn products_unmeant([a, b]: [&[&Lanes]; 2], [of_a, of_b]: [&[&Lanes]; 2]) -> [Lanes; 4] {
    if of_a.iter().chain(of_b).all(|mask| is_meant(mask)) {
        return [[0; WARP]; 4];
    }
    let (a, b, of_a, of_b) = (
        rows::<16>(a),
        rows::<8>(b),
        rows::<16>(of_a),
        rows::<8>(of_b),
    );
    // Pairs of byte and mask.
    let is_unmeant = |a: (u8, u8), b: (u8, u8)| a != (0, 0) && b != (0, 0) && a.1 | b.1 != 0;
    words_of(|row, column| {
        let a = a[row].iter().copied().zip(of_a[row]);
        let b = b[column].iter().copied().zip(of_b[column]);
        match a.zip(b).any(|(a, b)| is_unmeant(a, b)) {
            true => u64::MAX,
            false => 0,
        }
    })
}
