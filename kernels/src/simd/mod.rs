//! The SIMD operations that kernels are written with, once for all instruction sets.
//!
//! Each instruction set has a folder with three sets of operations: [`Simd`], registers of 32 lanes for
//! reductions (`mod.rs`); [`Packed`], sixteen rows at once for products of quants (`packed.rs`); and [`Lanes`],
//! the vectors of codecs (`lanes.rs`). [`dispatch`] selects the instruction set at run time.
//!
//! A reduction uses 32 lanes: lane `l` accumulates elements `l`, `l + 32`, `l + 64`, ... in order, each by
//! one fused multiply-add; the last elements are padded with zeros. A fixed tree then adds the lanes. No
//! register is wider than 32 lanes and every operation is rounded as in IEEE 754, so all instruction sets
//! give the same bits.

#[cfg(isa = "avx2")]
pub(crate) mod avx2;
#[cfg(isa = "avx512")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
mod cpu_features;
pub(crate) mod dispatch;
pub(crate) mod lanes;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes_macros;
pub(crate) mod matrix;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod packed;
pub(crate) mod portable;
pub(crate) mod steps;

use std::mem::MaybeUninit;
use std::ops::IndexMut;

use dispatch::Implementation;
pub use dispatch::{Isa, UnknownIsa};
use lanes::Lanes;
use matrix::MatrixUnit;
use packed::{Packed, array};

use crate::float::f16_to_f32;

/// Lanes of a reduction, and elements of the smallest quantized block.
pub(crate) const LANES: usize = 32;

/// The elements of a cache line, so that registers of any width are aligned.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct AlignedElements(pub(crate) [f32; LINE / size_of::<f32>()]);

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// The operations of one instruction set.
///
/// A value of an implementing type proves that the CPU has the instructions. Operations on chunks of 32
/// elements take the index of a register; register 0 has the first lanes.
pub(crate) trait Simd: Packed + Copy + Send + Sync {
    /// The vectors of codecs.
    type Codec: Lanes;
    /// The matrix unit.
    type Matrix: MatrixUnit;
    /// A register of `f32`.
    type Vector: Copy;
    /// The registers of all 32 lanes.
    type Lanes: Copy + IndexMut<usize, Output = Self::Vector>;
    /// Number of registers of 32 lanes.
    const REGISTERS: usize;
    /// Activation rows, 1 to 6, whose sums with four weight rows fit the register file.
    const COLUMNS: usize;

    /// Runs a kernel, compiled for these instructions.
    fn run<K: Kernel>(self, kernel: K);
    /// Runs a kernel that writes to `out`, compiled for these instructions.
    fn run_into<K: KernelInto<O>, O: ?Sized>(self, kernel: K, out: &mut O);
    /// The entry of the list of instruction sets, to call functions that take one.
    fn implementation(self) -> Implementation;

    /// Returns whether there is a matrix unit.
    #[inline(always)]
    fn has_matrix_unit(self) -> bool {
        false
    }
    /// Configures the matrix unit for this thread, if there is one.
    #[inline(always)]
    fn matrix_unit(self) -> Option<Self::Matrix> {
        None
    }

    /// `value` in all lanes.
    fn splat(self, value: f32) -> Self::Vector;
    /// Loads one register of a chunk.
    fn load(self, chunk: &[f32; LANES], register: usize) -> Self::Vector;
    /// Stores one register of a chunk.
    fn store(self, vector: Self::Vector, chunk: &mut [f32; LANES], register: usize);
    /// `a * b`.
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a - b`.
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// Loads one register of a chunk of `f32` numbers, the lowest byte first.
    fn load_f32(self, chunk: &[[u8; 4]; LANES], register: usize) -> Self::Vector;
    /// Loads one register of a chunk of f16 numbers.
    fn load_f16(self, chunk: &[[u8; 2]; LANES], register: usize) -> Self::Vector;
    /// Loads one register of a chunk of bf16 numbers.
    fn load_bf16(self, chunk: &[[u8; 2]; LANES], register: usize) -> Self::Vector;
    /// Loads one register of a chunk of signed bytes.
    fn load_i8(self, chunk: &[u8; LANES], register: usize) -> Self::Vector;
    /// An f16 number in all lanes.
    #[inline(always)]
    fn splat_f16(self, number: [u8; 2]) -> Self::Vector {
        self.splat(f16_to_f32(u16::from_le_bytes(number)))
    }

    /// Multiplies elements by `factor` and rounds to the nearest integers, ties to even. Returns the
    /// integers as bytes, four per word, the first in the lowest byte, and the sums of both halves.
    /// Products must be below 128; results for NaN and infinity are unspecified.
    #[inline(always)]
    fn round(self, x: &[f32; LANES], factor: f32) -> ([u32; LANES / 4], [i32; 2]) {
        let rounded: [i32; LANES] = array(|i| round(x[i] * factor));
        let quants: [u8; LANES] = array(|i| rounded[i] as u8);
        let halves = rounded.as_chunks::<{ LANES / 2 }>().0;
        (
            array(|i| u32::from_le_bytes(quants.as_chunks().0[i])),
            array(|half| halves[half].iter().fold(0, |a: i32, &b| a.wrapping_add(b))),
        )
    }

    /// The registers of aligned elements.
    #[inline(always)]
    fn registers(self, elements: &[f32]) -> &[Self::Vector] {
        // SAFETY: registers hold numbers of any bits.
        let (before, registers, after) = unsafe { elements.align_to() };
        assert!(before.is_empty() && after.is_empty(), "whole registers");
        registers
    }

    /// The registers of aligned elements, to be written.
    #[inline(always)]
    fn registers_mut(self, elements: &mut [MaybeUninit<f32>]) -> &mut [MaybeUninit<Self::Vector>] {
        // SAFETY: as above.
        let (before, registers, after) = unsafe { elements.align_to_mut() };
        assert!(before.is_empty() && after.is_empty(), "whole registers");
        registers
    }

    /// Prefetches bytes. Only affects timing.
    fn prefetch(self, bytes: &[u8]);

    /// Creates the registers of all lanes.
    fn lanes(self, register: impl FnMut(usize) -> Self::Vector) -> Self::Lanes;
    /// The sum of all lanes: lane `l` adds lane `l + 16`, then `l + 8`, `l + 4`, `l + 2`, `l + 1`.
    fn sum(self, lanes: Self::Lanes) -> f32;

    /// [`Simd::sum`] of each row.
    #[inline(always)]
    fn sums(self, rows: [Self::Lanes; 8]) -> [f32; 8] {
        array(|i| self.sum(rows[i]))
    }

    /// The largest lane of each row, by the tree of [`Simd::sum`]; each step takes the upper lane if it is larger.
    #[inline(always)]
    fn largest(self, rows: [Self::Lanes; 8]) -> [f32; 8] {
        array(|i| {
            let mut lanes = [0.0; LANES];
            self.store_partial(rows[i], &mut lanes);
            for half in [LANES / 2, LANES / 4, LANES / 8, 2, 1] {
                let (low, high) = lanes.split_at_mut(half);
                for (low, high) in low.iter_mut().zip(high) {
                    *low = if *high > *low { *high } else { *low };
                }
            }
            lanes[0]
        })
    }

    /// Loads up to 32 elements, with zeros in the other lanes.
    #[inline(always)]
    fn load_partial(self, part: &[f32]) -> Self::Lanes {
        let mut padded = [0.0; LANES];
        let chunk = part.first_chunk().unwrap_or_else(|| {
            padded[..part.len()].copy_from_slice(part);
            &padded
        });
        self.lanes(|i| self.load(chunk, i))
    }

    /// Stores the first lanes to up to 32 elements.
    #[inline(always)]
    fn store_partial(self, lanes: Self::Lanes, part: &mut [f32]) {
        if let Some(chunk) = part.first_chunk_mut() {
            return (0..Self::REGISTERS).for_each(|i| self.store(lanes[i], chunk, i));
        }
        let mut chunk = [0.0; LANES];
        (0..Self::REGISTERS).for_each(|i| self.store(lanes[i], &mut chunk, i));
        part.copy_from_slice(&chunk[..part.len()]);
    }

    /// `a * b` in all lanes.
    #[inline(always)]
    fn scale(self, a: Self::Vector, b: Self::Lanes) -> Self::Lanes {
        self.lanes(|i| self.mul(a, b[i]))
    }

    /// `a * b + c` in all lanes.
    #[inline(always)]
    fn scale_add(self, a: Self::Vector, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes {
        self.lanes(|i| self.mul_add(a, b[i], c[i]))
    }

    /// The dot product `a . b`.
    #[inline(always)]
    fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        let (a, a_tail) = a.as_chunks::<LANES>();
        let (b, b_tail) = b.as_chunks::<LANES>();
        let mut acc = self.lanes(|_| self.splat(0.0));
        for (a, b) in a.iter().zip(b) {
            acc = self.lanes(|i| self.mul_add(self.load(a, i), self.load(b, i), acc[i]));
        }
        if !a_tail.is_empty() {
            let (a, b) = (self.load_partial(a_tail), self.load_partial(b_tail));
            acc = self.lanes(|i| self.mul_add(a[i], b[i], acc[i]));
        }
        self.sum(acc)
    }
}

/// Adding this number rounds to an integer: no bits are left for fractions.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// Rounds a small number to the nearest integer, ties to even.
#[inline(always)]
fn round(x: f32) -> i32 {
    (x + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32
}

/// A computation that is compiled for every instruction set.
///
/// Implementations mark `run` and everything it calls `#[inline(always)]`: only code that is inlined into
/// the entry point of an instruction set is compiled for it. A kernel that runs others is divided into functions: the
/// time to compile one grows faster than its size, and the loops of a large one keep their variables in memory.
pub(crate) trait Kernel {
    /// Runs the computation.
    fn run<S: Simd>(self, simd: S);
}

/// A [`Kernel`] whose output is an argument. The compiler then knows that no input overlaps it, which loops
/// that it vectorises itself depend on.
pub(crate) trait KernelInto<O: ?Sized> {
    /// Runs the computation.
    fn run<S: Simd>(self, simd: S, out: &mut O);
}

/// Implements [`Simd::run`] and [`Simd::run_into`] for a type that proves that the CPU has these features.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! entry_points {
    ($simd:ty, $features:literal) => {
        fn run<K: crate::simd::Kernel>(self, kernel: K) {
            #[target_feature(enable = $features)]
            #[inline(never)]
            fn run<K: crate::simd::Kernel>(simd: $simd, kernel: K) {
                kernel.run(simd);
            }
            // SAFETY: self proves that the instructions are available.
            unsafe { run(self.into(), kernel) }
        }

        fn run_into<K: crate::simd::KernelInto<O>, O: ?Sized>(self, kernel: K, out: &mut O) {
            #[target_feature(enable = $features)]
            #[inline(never)]
            fn run<K: crate::simd::KernelInto<O>, O: ?Sized>(simd: $simd, kernel: K, out: &mut O) {
                kernel.run(simd, out);
            }
            // SAFETY: as above.
            unsafe { run(self.into(), kernel, out) }
        }
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use entry_points;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::dispatch::implementations;
    use super::*;

    #[test]
    fn the_best_instruction_set_of_this_cpu_is_compiled() {
        let mut compiled = implementations().into_iter();
        assert!(compiled.any(|found| found.isa() == dispatch::best_of_cpu()));
    }

    /// Sums and the largest lanes of eight rows.
    struct Reduced<'a> {
        rows: &'a [[f32; LANES]; 8],
        out: &'a mut [[f32; 8]; 2],
    }

    impl Kernel for Reduced<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            let rows = array(|i| simd.load_partial(&self.rows[i]));
            *self.out = [simd.sums(rows), simd.largest(rows)];
        }
    }

    fn lane() -> impl Strategy<Value = f32> {
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0];
        prop_oneof![9 => -1e3f32..1e3, 1 => select(odd.to_vec())]
    }

    proptest! {
        /// The portable instruction set is the specification.
        #[test]
        fn instruction_sets_reduce_alike(lanes in prop::collection::vec(lane(), 8 * LANES)) {
            let rows = *lanes.as_chunks::<LANES>().0.first_chunk().expect("eight rows");
            let mut found = implementations().into_iter().map(|implementation| {
                let mut out = [[0.0f32; 8]; 2];
                implementation.run(Reduced { rows: &rows, out: &mut out });
                // All NaN are alike.
                out.map(|row| row.map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }))
            });
            let first = found.next().expect("the portable one at least");
            prop_assert!(found.all(|other| other == first));
        }
    }
}
