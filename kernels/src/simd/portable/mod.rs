//! Portable Rust: the specification of the other instruction sets.

mod lanes;
mod packed;

use super::dispatch::Implementation;
use super::matrix::NoMatrixUnit;
use super::packed::array;
use super::{Kernel, KernelInto, LANES, Simd};
use crate::float::f16_to_f32;

/// Plain Rust: the specification of the other instruction sets, available on every CPU.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Lanes of a [`Portable`] register.
const WIDTH: usize = 8;

impl Portable {
    /// Returns the elements of one register.
    #[inline(always)]
    fn part<T: Copy>(chunk: &[T; LANES], register: usize) -> [T; WIDTH] {
        chunk.as_chunks().0[register]
    }
}

impl Simd for Portable {
    type Codec = f32;
    type Matrix = NoMatrixUnit;
    type Vector = [f32; WIDTH];
    type Lanes = [Self::Vector; LANES / WIDTH];
    const REGISTERS: usize = LANES / WIDTH;
    const COLUMNS: usize = 2;

    fn run<K: Kernel>(self, kernel: K) {
        kernel.run(self);
    }

    fn run_into<K: KernelInto<O>, O: ?Sized>(self, kernel: K, out: &mut O) {
        kernel.run(self, out);
    }

    #[inline(always)]
    fn implementation(self) -> Implementation {
        Implementation::Portable(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        [value; WIDTH]
    }

    #[inline(always)]
    fn load(self, chunk: &[f32; LANES], register: usize) -> Self::Vector {
        Self::part(chunk, register)
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, chunk: &mut [f32; LANES], register: usize) {
        chunk.as_chunks_mut().0[register] = vector;
    }

    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|l| a[l] * b[l])
    }

    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|l| a[l] - b[l])
    }

    #[inline(never)]
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        std::array::from_fn(|l| a[l].mul_add(b[l], c[l]))
    }

    #[inline(always)]
    fn load_f32(self, chunk: &[[u8; 4]; LANES], register: usize) -> Self::Vector {
        Self::part(chunk, register).map(f32::from_le_bytes)
    }

    #[inline(never)]
    fn load_f16(self, chunk: &[[u8; 2]; LANES], register: usize) -> Self::Vector {
        let halves = Self::part(chunk, register);
        array(|i| f16_to_f32(u16::from_le_bytes(halves[i])))
    }

    #[inline(always)]
    fn load_bf16(self, chunk: &[[u8; 2]; LANES], register: usize) -> Self::Vector {
        Self::part(chunk, register).map(|x| f32::from_bits(u32::from(u16::from_le_bytes(x)) << 16))
    }

    #[inline(always)]
    fn load_i8(self, chunk: &[u8; LANES], register: usize) -> Self::Vector {
        Self::part(chunk, register).map(|x| f32::from(x as i8))
    }

    #[inline(always)]
    fn prefetch(self, _bytes: &[u8]) {}

    #[inline(always)]
    fn lanes(self, register: impl FnMut(usize) -> Self::Vector) -> Self::Lanes {
        std::array::from_fn(register)
    }

    #[inline(always)]
    fn sum(self, lanes: Self::Lanes) -> f32 {
        let mut lanes: [f32; LANES] = *lanes.as_flattened().first_chunk().expect("32 lanes");
        let mut half = LANES / 2;
        while half > 0 {
            for l in 0..half {
                lanes[l] += lanes[l + half];
            }
            half /= 2;
        }
        lanes[0]
    }
}
