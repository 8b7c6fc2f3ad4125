//! Generic implementations of [`Simd`] and [`Packed`] from single-register instructions. Each instruction
//! set defines its instructions in its own file; splitting 32 lanes or sixteen rows into registers is
//! written here once. Closures are compiled for the build target, so this suits instructions that are
//! always part of it, such as NEON.

use std::ops::IndexMut;

use super::lanes::F32x4;
use crate::simd::dispatch::Implementation;
use crate::simd::matrix::NoMatrixUnit;
use crate::simd::packed::{Packed, ROWS, WordBytes};
use crate::simd::{Kernel, KernelInto, LANES, Simd};

/// An array of registers.
pub(crate) trait RegisterArray<T>: Copy + IndexMut<usize, Output = T> {
    /// Creates each register from its index.
    fn each(register: impl FnMut(usize) -> T) -> Self;
}

// Without loops: unpacking calls this hundreds of times, and the compiler would take many minutes to unroll them.
impl<T: Copy> RegisterArray<T> for [T; 4] {
    #[inline(always)]
    fn each(mut register: impl FnMut(usize) -> T) -> Self {
        [register(0), register(1), register(2), register(3)]
    }
}

impl<T: Copy> RegisterArray<T> for [T; 8] {
    #[inline(always)]
    fn each(mut register: impl FnMut(usize) -> T) -> Self {
        [
            register(0),
            register(1),
            register(2),
            register(3),
            register(4),
            register(5),
            register(6),
            register(7),
        ]
    }
}

/// Single-register instructions of an instruction set. Methods that [`Simd`] and [`Packed`] also have are
/// documented there.
///
/// A value of an implementing type proves that the CPU has the instructions.
pub(crate) trait Registers: Copy + Send + Sync {
    /// A register of `f32`.
    type Floats: Copy;
    /// A register of words: integers of 32 bits, or four bytes.
    type Integers: Copy;
    /// The registers of 32 lanes.
    type Lanes: RegisterArray<Self::Floats>;
    /// An `f32` for each of [`ROWS`] rows.
    type RowFloats: RegisterArray<Self::Floats>;
    /// A word for each of [`ROWS`] rows.
    type Words: RegisterArray<Self::Integers>;
    /// Lanes of a register.
    const WIDTH: usize;
    /// [`Simd::COLUMNS`].
    const COLUMNS: usize;
    /// [`Packed::SUMS`].
    const SUMS: usize;

    /// Runs a kernel, compiled for these instructions.
    fn run<K: Kernel>(self, kernel: K);
    /// Runs a kernel that writes to `out`, compiled for these instructions.
    fn run_into<K: KernelInto<O>, O: ?Sized>(self, kernel: K, out: &mut O);
    fn implementation(self) -> Implementation;

    fn splat(self, value: f32) -> Self::Floats;
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    fn sum(self, lanes: Self::Lanes) -> f32;
    /// Prefetches the cache line of an address; any address is allowed.
    fn prefetch(self, line: *const u8);

    /// # Safety
    /// `from` must point to a register of elements.
    unsafe fn load(self, from: *const f32) -> Self::Floats;
    /// # Safety
    /// `to` must have room for a register of elements.
    unsafe fn store(self, register: Self::Floats, to: *mut f32);
    /// # Safety
    /// `from` must point to four bytes per lane.
    unsafe fn load_f32(self, from: *const u8) -> Self::Floats;
    /// # Safety
    /// `from` must point to two bytes per lane.
    unsafe fn load_f16(self, from: *const u8) -> Self::Floats;
    /// # Safety
    /// `from` must point to two bytes per lane.
    unsafe fn load_bf16(self, from: *const u8) -> Self::Floats;
    /// # Safety
    /// `from` must point to one byte per lane.
    unsafe fn load_i8(self, from: *const u8) -> Self::Floats;
    /// # Safety
    /// `from` must point to a register of words.
    unsafe fn load_words(self, from: *const u8) -> Self::Integers;
    /// # Safety
    /// `to` must have room for a register of words.
    unsafe fn store_words(self, words: Self::Integers, to: *mut u8);

    /// Loads sixteen bytes of each row as four words per row, one row per lane.
    fn interleave(self, rows: &[&[u8; 16]]) -> [Self::Integers; 4];
    fn splat_word(self, value: u32) -> Self::Integers;
    fn and(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;
    fn or(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;
    fn xor(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;
    fn shift_right_by(self, words: Self::Integers, n: u32) -> Self::Integers;
    fn shift_left<const N: u32>(self, words: Self::Integers) -> Self::Integers;
    fn look_up(self, table: &[u8; 16], words: Self::Integers) -> Self::Integers;
    fn add(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;
    fn add_products<const BITS: u32>(
        self,
        sums: Self::Integers,
        quants: Self::Integers,
        x: u32,
    ) -> Self::Integers;
    fn to_floats(self, words: Self::Integers) -> Self::Floats;
    fn halves_to_floats(self, words: Self::Integers) -> Self::Floats;
    fn bits_to_floats(self, words: Self::Integers) -> Self::Floats;
}

/// Defines methods of [`Registers`] by instructions.
macro_rules! instructions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $out:ty { $instructions:expr })*) => {
        $(#[inline(always)]
        fn $name(self, $($argument: $type),*) -> $out {
            // SAFETY: self proves that the instructions are available; arrays are as long as the loads
            // from them.
            unsafe { $instructions }
        })*
    };
}

/// Defines methods that read or write memory.
macro_rules! memory_instructions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $out:ty)? { $instructions:expr })*) => {
        $(#[inline(always)]
        unsafe fn $name(self, $($argument: $type),*) $(-> $out)? {
            // SAFETY: self proves that the instructions are available, the caller that the memory is
            // valid.
            unsafe { $instructions }
        })*
    };
}

pub(super) use {instructions, memory_instructions};

/// Returns the elements of one register.
#[inline(always)]
fn part<R: Registers, T>(elements: &[T], register: usize) -> &[T] {
    &elements[register * R::WIDTH..][..R::WIDTH]
}

/// Returns the elements of one register, mutable.
#[inline(always)]
fn part_mut<R: Registers, T>(elements: &mut [T], register: usize) -> &mut [T] {
    &mut elements[register * R::WIDTH..][..R::WIDTH]
}

// In the SAFETY comments: `part` returns exactly as many elements as a register holds.
impl<R: Registers> Simd for R {
    type Codec = F32x4;
    type Matrix = NoMatrixUnit;
    type Vector = R::Floats;
    type Lanes = R::Lanes;
    const REGISTERS: usize = LANES / R::WIDTH;
    const COLUMNS: usize = R::COLUMNS;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        Registers::run(self, kernel);
    }

    #[inline(always)]
    fn run_into<K: KernelInto<O>, O: ?Sized>(self, kernel: K, out: &mut O) {
        Registers::run_into(self, kernel, out);
    }

    #[inline(always)]
    fn implementation(self) -> Implementation {
        Registers::implementation(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> R::Floats {
        Registers::splat(self, value)
    }

    #[inline(always)]
    fn load(self, chunk: &[f32; LANES], register: usize) -> R::Floats {
        // SAFETY: a register of elements.
        unsafe { Registers::load(self, part::<R, _>(chunk, register).as_ptr()) }
    }

    #[inline(always)]
    fn store(self, vector: R::Floats, chunk: &mut [f32; LANES], register: usize) {
        let to = part_mut::<R, _>(chunk, register).as_mut_ptr();
        // SAFETY: a register of elements.
        unsafe { Registers::store(self, vector, to) }
    }

    #[inline(always)]
    fn mul(self, a: R::Floats, b: R::Floats) -> R::Floats {
        Registers::mul(self, a, b)
    }

    #[inline(always)]
    fn sub(self, a: R::Floats, b: R::Floats) -> R::Floats {
        Registers::sub(self, a, b)
    }

    #[inline(always)]
    fn mul_add(self, a: R::Floats, b: R::Floats, c: R::Floats) -> R::Floats {
        Registers::mul_add(self, a, b, c)
    }

    #[inline(always)]
    fn load_f32(self, chunk: &[[u8; 4]; LANES], register: usize) -> R::Floats {
        let bytes = part::<R, _>(chunk, register).as_flattened();
        // SAFETY: four bytes for each lane.
        unsafe { Registers::load_f32(self, bytes.as_ptr()) }
    }

    #[inline(always)]
    fn load_f16(self, chunk: &[[u8; 2]; LANES], register: usize) -> R::Floats {
        let halves = part::<R, _>(chunk, register).as_flattened();
        // SAFETY: two bytes for each lane.
        unsafe { Registers::load_f16(self, halves.as_ptr()) }
    }

    #[inline(always)]
    fn load_bf16(self, chunk: &[[u8; 2]; LANES], register: usize) -> R::Floats {
        let halves = part::<R, _>(chunk, register).as_flattened();
        // SAFETY: two bytes for each lane.
        unsafe { Registers::load_bf16(self, halves.as_ptr()) }
    }

    #[inline(always)]
    fn load_i8(self, chunk: &[u8; LANES], register: usize) -> R::Floats {
        // SAFETY: a byte for each lane.
        unsafe { Registers::load_i8(self, part::<R, _>(chunk, register).as_ptr()) }
    }

    #[inline(always)]
    fn prefetch(self, bytes: &[u8]) {
        for line in bytes.chunks(64) {
            Registers::prefetch(self, line.as_ptr());
        }
    }

    #[inline(always)]
    fn lanes(self, register: impl FnMut(usize) -> R::Floats) -> R::Lanes {
        RegisterArray::each(register)
    }

    #[inline(always)]
    fn sum(self, lanes: R::Lanes) -> f32 {
        Registers::sum(self, lanes)
    }
}

impl<R: Registers> Packed for R {
    type Words = R::Words;
    type Floats = R::RowFloats;
    type Part = R;
    const SUMS: usize = R::SUMS;
    const WIDE_OFFSET: i32 = 128;

    #[inline(always)]
    fn part(self, _: usize) -> R {
        self
    }

    #[inline(always)]
    fn prefetch_early(self, line: *const u8) {
        Registers::prefetch(self, line);
    }

    #[inline(always)]
    fn interleave(self, pieces: [&[u8; 16]; ROWS]) -> [R::Words; 4] {
        let mut words = [R::Words::each(|_| Registers::splat_word(self, 0)); 4];
        for register in 0..ROWS / R::WIDTH {
            let of_some = Registers::interleave(self, part::<R, _>(&pieces, register));
            for (words, of_some) in words.iter_mut().zip(of_some) {
                words[register] = of_some;
            }
        }
        words
    }

    #[inline(always)]
    fn load_words(self, bytes: &WordBytes) -> R::Words {
        let words = bytes.as_chunks::<4>().0;
        RegisterArray::each(|register| {
            let from = part::<R, _>(words, register).as_flattened().as_ptr();
            // SAFETY: a register of words.
            unsafe { Registers::load_words(self, from) }
        })
    }

    #[inline(always)]
    fn store_words(self, words: R::Words, bytes: &mut WordBytes) {
        let to = bytes.as_chunks_mut::<4>().0;
        for register in 0..ROWS / R::WIDTH {
            let to = part_mut::<R, _>(to, register)
                .as_flattened_mut()
                .as_mut_ptr();
            // SAFETY: a register of words.
            unsafe { Registers::store_words(self, words[register], to) }
        }
    }

    #[inline(always)]
    fn splat_word(self, value: u32) -> R::Words {
        RegisterArray::each(|_| Registers::splat_word(self, value))
    }

    #[inline(always)]
    fn and(self, a: R::Words, b: R::Words) -> R::Words {
        RegisterArray::each(|i| Registers::and(self, a[i], b[i]))
    }

    #[inline(always)]
    fn or(self, a: R::Words, b: R::Words) -> R::Words {
        RegisterArray::each(|i| Registers::or(self, a[i], b[i]))
    }

    #[inline(always)]
    fn xor(self, a: R::Words, b: R::Words) -> R::Words {
        RegisterArray::each(|i| Registers::xor(self, a[i], b[i]))
    }

    #[inline(always)]
    fn shift_right_by(self, words: R::Words, n: u32) -> R::Words {
        RegisterArray::each(|i| Registers::shift_right_by(self, words[i], n))
    }

    #[inline(always)]
    fn shift_left<const N: u32>(self, words: R::Words) -> R::Words {
        RegisterArray::each(|i| Registers::shift_left::<N>(self, words[i]))
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], words: R::Words) -> R::Words {
        RegisterArray::each(|i| Registers::look_up(self, table, words[i]))
    }

    #[inline(always)]
    fn add(self, a: R::Words, b: R::Words) -> R::Words {
        RegisterArray::each(|i| Registers::add(self, a[i], b[i]))
    }

    #[inline(always)]
    fn add_products<const BITS: u32>(
        self,
        mut sums: R::Words,
        quants: [R::Words; 4],
        x: [u32; 4],
    ) -> R::Words {
        for (quants, x) in quants.into_iter().zip(x) {
            sums = RegisterArray::each(|i| {
                Registers::add_products::<BITS>(self, sums[i], quants[i], x)
            });
        }
        sums
    }

    #[inline(always)]
    fn to_floats(self, words: R::Words) -> R::RowFloats {
        RegisterArray::each(|i| Registers::to_floats(self, words[i]))
    }

    #[inline(always)]
    fn halves_to_floats(self, words: R::Words) -> R::RowFloats {
        RegisterArray::each(|i| Registers::halves_to_floats(self, words[i]))
    }

    #[inline(always)]
    fn bits_to_floats(self, words: R::Words) -> R::RowFloats {
        RegisterArray::each(|i| Registers::bits_to_floats(self, words[i]))
    }

    #[inline(always)]
    fn load_halves(self, halves: &[[u8; 2]; ROWS]) -> R::RowFloats {
        RegisterArray::each(|register| {
            let from = part::<R, _>(halves, register).as_flattened().as_ptr();
            // SAFETY: two bytes for each lane.
            unsafe { Registers::load_f16(self, from) }
        })
    }

    #[inline(always)]
    fn load_floats(self, values: &[f32; ROWS]) -> R::RowFloats {
        RegisterArray::each(|register| {
            // SAFETY: a register of elements.
            unsafe { Registers::load(self, part::<R, _>(values, register).as_ptr()) }
        })
    }

    #[inline(always)]
    fn store_floats(self, rows: R::RowFloats, values: &mut [f32; ROWS]) {
        for register in 0..ROWS / R::WIDTH {
            let to = part_mut::<R, _>(values, register).as_mut_ptr();
            // SAFETY: a register of elements.
            unsafe { Registers::store(self, rows[register], to) }
        }
    }

    #[inline(always)]
    fn splat_floats(self, value: f32) -> R::RowFloats {
        RegisterArray::each(|_| Registers::splat(self, value))
    }

    #[inline(always)]
    fn mul_floats(self, a: R::RowFloats, b: R::RowFloats) -> R::RowFloats {
        RegisterArray::each(|i| Registers::mul(self, a[i], b[i]))
    }

    #[inline(always)]
    fn mul_add_floats(self, a: R::RowFloats, b: R::RowFloats, c: R::RowFloats) -> R::RowFloats {
        RegisterArray::each(|i| Registers::mul_add(self, a[i], b[i], c[i]))
    }
}
