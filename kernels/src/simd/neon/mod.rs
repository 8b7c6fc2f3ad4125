//! NEON with 128-bit registers, available on every 64-bit Arm CPU. Newer CPUs have products of four bytes.

use std::arch::aarch64::*;
use std::arch::asm;

mod lanes;
mod registers;

use crate::simd::dispatch::Implementation;
use crate::simd::{Kernel, KernelInto, entry_points};
use registers::{Registers, instructions, memory_instructions};

/// Proof that NEON and the instructions of `P` are available.
#[derive(Clone, Copy)]
pub(crate) struct Neon<P>(P);

impl<P: QuantDots> From<P> for Neon<P> {
    fn from(products: P) -> Self {
        Neon(products)
    }
}

/// Instructions that multiply quants. A value of an implementing type proves that they are available.
pub(crate) trait QuantDots: Copy + Send + Sync {
    /// Runs a kernel, compiled for these instructions and NEON.
    fn run<K: Kernel>(self, kernel: K);

    /// Runs a kernel that writes to `out`, compiled likewise.
    fn run_into<K: KernelInto<O>, O: ?Sized>(self, kernel: K, out: &mut O);

    /// The entry of the list of instruction sets.
    fn implementation(self) -> Implementation;

    /// Adds four products of signed bytes to each 32-bit integer; the bytes of `x` are -127 to 127.
    fn add(self, sums: int32x4_t, quants: int8x16_t, x: int8x16_t) -> int32x4_t;
}

/// 16-bit products, then pairwise additions.
#[derive(Clone, Copy)]
pub(crate) struct Widened(());

/// The instructions of the feature `dotprod`.
#[derive(Clone, Copy)]
pub(crate) struct Dotted(());

impl Neon<Widened> {
    pub(crate) fn new() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Neon(Widened(())))
    }
}

impl Neon<Dotted> {
    pub(crate) fn new() -> Option<Self> {
        (std::arch::is_aarch64_feature_detected!("neon")
            && std::arch::is_aarch64_feature_detected!("dotprod"))
        .then_some(Neon(Dotted(())))
    }
}

impl QuantDots for Widened {
    entry_points!(Neon<Widened>, "neon");

    #[inline(always)]
    fn implementation(self) -> Implementation {
        Implementation::Neon(Neon(self))
    }

    #[inline(always)]
    fn add(self, sums: int32x4_t, quants: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: self proves that the instructions are available.
        unsafe {
            let low = vmull_s8(vget_low_s8(quants), vget_low_s8(x));
            let high = vmull_high_s8(quants, x);
            // The sum of two products fits 16 bits.
            vpadalq_s16(sums, vpaddq_s16(low, high))
        }
    }
}

impl QuantDots for Dotted {
    entry_points!(Neon<Dotted>, "neon,dotprod");

    #[inline(always)]
    fn implementation(self) -> Implementation {
        Implementation::Dotprod(Neon(self))
    }

    #[inline(always)]
    fn add(self, sums: int32x4_t, quants: int8x16_t, x: int8x16_t) -> int32x4_t {
        /// The `sdot` instruction, which has no stable intrinsic.
        #[target_feature(enable = "neon,dotprod")]
        #[inline]
        fn sdot(mut sums: int32x4_t, quants: int8x16_t, x: int8x16_t) -> int32x4_t {
            // SAFETY: the function is compiled for the instruction, which changes one register.
            unsafe {
                asm!(
                    "sdot {sums:v}.4s, {quants:v}.16b, {x:v}.16b",
                    sums = inout(vreg) sums,
                    quants = in(vreg) quants,
                    x = in(vreg) x,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            sums
        }
        // SAFETY: self proves that the instructions are available.
        unsafe { sdot(sums, quants, x) }
    }
}

/// Converts half precision to single precision.
#[target_feature(enable = "neon")]
#[inline]
fn from_halves(halves: uint16x4_t) -> float32x4_t {
    let numbers: float32x4_t;
    // SAFETY: the instruction is part of NEON and changes one register. (Older compilers have no stable
    // intrinsic for it.)
    unsafe {
        asm!(
            "fcvtl {numbers:v}.4s, {halves:v}.4h",
            numbers = lateout(vreg) numbers,
            halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    numbers
}

impl<P: QuantDots> Registers for Neon<P> {
    type Floats = float32x4_t;
    type Integers = uint32x4_t;
    type Lanes = [float32x4_t; 8];
    type RowFloats = [float32x4_t; 4];
    type Words = [uint32x4_t; 4];
    const WIDTH: usize = 4;
    const COLUMNS: usize = 6;
    const SUMS: usize = 2;

    fn run<K: Kernel>(self, kernel: K) {
        self.0.run(kernel);
    }

    fn run_into<K: KernelInto<O>, O: ?Sized>(self, kernel: K, out: &mut O) {
        self.0.run_into(kernel, out);
    }

    #[inline(always)]
    fn implementation(self) -> Implementation {
        self.0.implementation()
    }

    instructions! {
        fn splat(value: f32) -> float32x4_t { vdupq_n_f32(value) }
        fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t { vmulq_f32(a, b) }
        fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t { vsubq_f32(a, b) }
        fn mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
            vfmaq_f32(c, a, b)
        }
        fn sum(lanes: [float32x4_t; 8]) -> f32 {{
            let [a, b, c, d, e, f, g, h] = lanes;
            let (a, b, c, d) = (vaddq_f32(a, e), vaddq_f32(b, f), vaddq_f32(c, g), vaddq_f32(d, h));
            let by_4 = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let by_2 = vadd_f32(vget_low_f32(by_4), vget_high_f32(by_4));
            vpadds_f32(by_2)
        }}
        fn prefetch(line: *const u8) -> () {
            asm!(
                "prfm pldl1keep, [{line}]",
                line = in(reg) line,
                options(readonly, nostack, preserves_flags),
            )
        }
        fn splat_word(value: u32) -> uint32x4_t { vdupq_n_u32(value) }
        fn and(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t { vandq_u32(a, b) }
        fn or(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t { vorrq_u32(a, b) }
        fn xor(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t { veorq_u32(a, b) }
        fn add(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t { vaddq_u32(a, b) }
        fn look_up(table: &[u8; 16], words: uint32x4_t) -> uint32x4_t {{
            let table = vld1q_u8(table.as_ptr());
            vreinterpretq_u32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(words)))
        }}
        fn to_floats(words: uint32x4_t) -> float32x4_t {
            vcvtq_f32_s32(vreinterpretq_s32_u32(words))
        }
        fn halves_to_floats(words: uint32x4_t) -> float32x4_t { from_halves(vmovn_u32(words)) }
        fn bits_to_floats(words: uint32x4_t) -> float32x4_t { vreinterpretq_f32_u32(words) }
    }

    memory_instructions! {
        fn load(from: *const f32) -> float32x4_t { vld1q_f32(from) }
        fn store(register: float32x4_t, to: *mut f32) { vst1q_f32(to, register) }
        fn load_f32(from: *const u8) -> float32x4_t { vreinterpretq_f32_u8(vld1q_u8(from)) }
        fn load_f16(from: *const u8) -> float32x4_t {
            from_halves(vreinterpret_u16_u8(vld1_u8(from)))
        }
        fn load_bf16(from: *const u8) -> float32x4_t {
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(from))))
        }
        fn load_i8(from: *const u8) -> float32x4_t {{
            let bytes = vcreate_s8(u64::from(from.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))
        }}
        fn load_words(from: *const u8) -> uint32x4_t { vreinterpretq_u32_u8(vld1q_u8(from)) }
        fn store_words(words: uint32x4_t, to: *mut u8) { vst1q_u8(to, vreinterpretq_u8_u32(words)) }
    }

    #[inline(always)]
    fn interleave(self, rows: &[&[u8; 16]]) -> [uint32x4_t; 4] {
        // SAFETY: the instructions are available; each load reads one array.
        unsafe {
            let row = |i: usize| vreinterpretq_u32_u8(vld1q_u8(rows[i].as_ptr()));
            let (a, b, c, d) = (row(0), row(1), row(2), row(3));
            let even = [vtrn1q_u32(a, b), vtrn1q_u32(c, d)].map(|x| vreinterpretq_u64_u32(x));
            let odd = [vtrn2q_u32(a, b), vtrn2q_u32(c, d)].map(|x| vreinterpretq_u64_u32(x));
            [
                vreinterpretq_u32_u64(vtrn1q_u64(even[0], even[1])),
                vreinterpretq_u32_u64(vtrn1q_u64(odd[0], odd[1])),
                vreinterpretq_u32_u64(vtrn2q_u64(even[0], even[1])),
                vreinterpretq_u32_u64(vtrn2q_u64(odd[0], odd[1])),
            ]
        }
    }

    #[inline(always)]
    fn shift_right_by(self, words: uint32x4_t, n: u32) -> uint32x4_t {
        // SAFETY: the instructions are available.
        unsafe { vshlq_u32(words, vdupq_n_s32(-(n as i32))) }
    }

    #[inline(always)]
    fn shift_left<const N: u32>(self, words: uint32x4_t) -> uint32x4_t {
        // SAFETY: the instructions are available.
        unsafe { vshlq_u32(words, vdupq_n_s32(N as i32)) }
    }

    #[inline(always)]
    fn add_products<const BITS: u32>(
        self,
        sums: uint32x4_t,
        quants: uint32x4_t,
        x: u32,
    ) -> uint32x4_t {
        // SAFETY: the instructions are available.
        unsafe {
            let x = vreinterpretq_s8_u32(vdupq_n_u32(x));
            let quants = match BITS {
                8 => veorq_u32(quants, vdupq_n_u32(0x8080_8080)),
                _ => quants,
            };
            let quants = vreinterpretq_s8_u32(quants);
            let sums = self.0.add(vreinterpretq_s32_u32(sums), quants, x);
            vreinterpretq_u32_s32(sums)
        }
    }
}
