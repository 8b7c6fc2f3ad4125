//! Activations quantized to 8 bits, the right-hand side of products with quantized weights.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::arena::Arena;
use super::{Cpu, parts};
use crate::simd::packed::{ROWS, TileEncoding};
use crate::simd::{Kernel, LANES, Simd};

/// One block of [`LANES`] elements of an activation row. An element is `scale * quant`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Quantized {
    /// Quants from -127 to 127, four per word, the first in the lowest byte; or raised ones, larger by 128.
    pub(crate) quants: [u32; LANES / 4],
    /// The largest magnitude divided by 127; NaN if an element is NaN or infinite, so that products become
    /// NaN.
    pub(crate) scale: f32,
    /// Sum of the quants, an exact integer.
    pub(crate) sum: f32,
    /// Sums of the first and the second half of the quants.
    pub(crate) half_sums: [f32; 2],
    /// Products of sums and negated offsets: see [`Quantized::start_of`].
    starts: [i32; 4],
}

impl Quantized {
    /// Returns the number of the stored product of `minus_offset` and the sum of the quants that share scale number
    /// `part` of `n_scale`, if it is stored. Products with quants that have an offset begin with it.
    pub(crate) const fn start_of(minus_offset: i32, n_scale: usize, part: usize) -> Option<usize> {
        match (minus_offset, n_scale) {
            (-128, 1) => Some(0),
            (-8, 1) => Some(1),
            (-32, 2) => Some(2 + part),
            _ => None,
        }
    }

    /// Returns a stored product of a sum and a negated offset.
    #[inline(always)]
    pub(crate) fn start(&self, number: usize) -> i32 {
        self.starts[number]
    }

    /// Zeros.
    const ZERO: Quantized = Quantized {
        quants: [0; LANES / 4],
        scale: 0.0,
        sum: 0.0,
        half_sums: [0.0; 2],
        starts: [0; 4],
    };

    /// Rounds to the nearest quant, ties to even. `raise` is 0, or [`RAISE`] for raised quants.
    #[inline(always)]
    fn new<S: Simd>(simd: S, x: &[f32; LANES], raise: u32) -> Quantized {
        // Without the sign, the bits of floats have the order of the numbers, with NaN on top.
        let mut largest = 0;
        for x in x {
            largest = largest.max(x.abs().to_bits());
        }
        let largest = f32::from_bits(largest);
        let scale = if largest.is_finite() {
            largest / 127.0
        } else {
            f32::NAN
        };
        let inverse = 127.0 / largest;
        // The inverse of zero and of tiny numbers is infinite.
        let inverse = if inverse.is_finite() { inverse } else { 0.0 };
        let (mut quants, [first, second]) = simd.round(x, inverse);
        flip(&mut quants, raise);
        let sum = first.wrapping_add(second);
        Quantized {
            quants,
            scale,
            sum: sum as f32,
            half_sums: [first as f32, second as f32],
            starts: [
                sum.wrapping_mul(-128),
                sum.wrapping_mul(-8),
                first.wrapping_mul(-32),
                second.wrapping_mul(-32),
            ],
        }
    }

    /// The quants of the first (0) or the second (1) half.
    #[inline(always)]
    pub(crate) fn half(&self, half: usize) -> [u32; LANES / 8] {
        self.quants.as_chunks().0[half]
    }
}

/// Bits of each word by which raised quants differ from others.
const RAISE: u32 = 0x8080_8080;

/// Changes the given bits of each word.
#[inline(always)]
fn flip(quants: &mut [u32; LANES / 4], bits: u32) {
    for word in quants {
        *word ^= bits;
    }
}

/// Fewest rows whose blocks are interleaved, those that are multiplied together by tiles: a group.
pub(crate) const GROUP: usize = 4;

/// 2^-96, of which scales are multiples of 2^-119: smaller ones can make sums vanish.
const TINY: f32 = f32::from_bits((127 - 96) << 23);

/// The form in which the products of an instruction set read activations.
#[derive(Clone, Copy)]
struct Form {
    /// Rows of a group: [`GROUP`], or [`ROWS`] for a matrix unit.
    group: usize,
    /// [`RAISE`] if the quants are raised, or 0: see [`TileEncoding::Signed`].
    raise: u32,
}

impl Form {
    /// Returns the form of `n` rows.
    fn new(cpu: &Cpu, n: usize) -> Form {
        struct Find<'a> {
            n: usize,
            form: &'a mut Form,
        }
        impl Kernel for Find<'_> {
            #[inline(always)]
            fn run<S: Simd>(self, simd: S) {
                if self.n <= S::FUSED_ROWS {
                    return;
                }
                if S::TILES == TileEncoding::Signed {
                    self.form.raise = RAISE;
                }
                if simd.has_matrix_unit() {
                    self.form.group = ROWS;
                }
            }
        }
        let mut form = Form {
            group: GROUP,
            raise: 0,
        };
        let find = Find { n, form: &mut form };
        cpu.implementation.run_products(find);
        form
    }
}

/// Quantized activation rows.
#[derive(Clone, Copy)]
pub(crate) struct Activations<'a> {
    /// Groups of up to `form.group` rows: the first block of each row, then the second of each, and so on.
    quants: &'a [Quantized],
    n: usize,
    /// Blocks per row.
    n_tile: usize,
    form: Form,
    /// True if there are scales below [`TINY`] other than zero.
    has_tiny_scales: bool,
}

impl<'a> Activations<'a> {
    /// Quantizes rows of `n_cols` elements, `(n, n_cols)`.
    pub(crate) fn new(cpu: &Cpu, arena: &'a Arena, x: &[f32], n_cols: usize) -> Activations<'a> {
        let (n, n_tile) = (x.len() / n_cols, n_cols / LANES);
        let form = Form::new(cpu, n);
        let quants = arena.room(n * n_tile);
        let rows = x.chunks(form.group * n_cols);
        let tasks = rows.zip(quants.chunks_mut(form.group * n_tile));
        let has_tiny_scales = AtomicBool::new(false);
        cpu.run(ENCODE_WORK * x.len(), tasks, |(x, quants)| Encode {
            x,
            n_tile,
            raise: form.raise,
            has_tiny_scales: &has_tiny_scales,
            quants,
        });
        // SAFETY: the tasks have written all of them.
        let quants = unsafe { &*(ptr::from_ref(quants) as *const [Quantized]) };
        Activations {
            quants,
            n,
            n_tile,
            form,
            has_tiny_scales: has_tiny_scales.into_inner(),
        }
    }

    /// Copies the given rows, in that order.
    pub(crate) fn gather<'b>(
        &self,
        cpu: &Cpu,
        arena: &'b Arena,
        rows: &[usize],
    ) -> Activations<'b> {
        let form = Form::new(cpu, rows.len());
        let quants = arena.filled(Quantized::ZERO, rows.len() * self.n_tile);
        let mut places = quants.iter_mut();
        for rows in rows.chunks(form.group) {
            for tile in 0..self.n_tile {
                for (&row, quant) in rows.iter().zip(places.by_ref()) {
                    *quant = self.quants[self.place(row, tile)];
                    flip(&mut quant.quants, form.raise ^ self.form.raise);
                }
            }
        }
        Activations {
            quants,
            n: rows.len(),
            n_tile: self.n_tile,
            form,
            has_tiny_scales: self.has_tiny_scales,
        }
    }

    /// Rows.
    pub(crate) fn len(&self) -> usize {
        self.n
    }

    /// Returns the index of block `tile` of a row.
    fn place(&self, row: usize, tile: usize) -> usize {
        let first = row - row % self.form.group;
        let width = self.form.group.min(self.n - first);
        first * self.n_tile + tile * width + row - first
    }

    /// Returns whether there are scales below 2^-96 other than zero.
    pub(crate) fn has_tiny_scales(&self) -> bool {
        self.has_tiny_scales
    }

    /// Rows per group.
    pub(crate) fn group(&self) -> usize {
        self.form.group
    }

    /// Splits the rows into parts of `n_rows`, rounded up to whole groups: the first row of
    /// each part, and its blocks.
    pub(crate) fn parts(&self, n_rows: usize) -> impl Iterator<Item = (usize, &[Quantized])> {
        let rows = n_rows.next_multiple_of(self.form.group);
        parts(self.n, rows).map(|rows| {
            let quants = rows.start * self.n_tile..rows.end * self.n_tile;
            (rows.start, &self.quants[quants])
        })
    }
}

/// Approximate cost of quantizing an element, in multiply-adds.
const ENCODE_WORK: usize = 4;

/// Quantizes one group of rows.
struct Encode<'a> {
    x: &'a [f32],
    n_tile: usize,
    raise: u32,
    has_tiny_scales: &'a AtomicBool,
    /// All are written.
    quants: &'a mut [MaybeUninit<Quantized>],
}

impl Kernel for Encode<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n = self.quants.len() / self.n_tile;
        let x = self.x.as_chunks().0;
        let mut is_tiny = false;
        for tile in 0..self.n_tile {
            for row in 0..n {
                let x = &x[row * self.n_tile + tile];
                let quantized = Quantized::new(simd, x, self.raise);
                is_tiny |= quantized.scale != 0.0 && quantized.scale < TINY;
                self.quants[tile * n + row].write(quantized);
            }
        }
        if is_tiny {
            self.has_tiny_scales.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::dispatch::{Implementation, implementations};

    struct Code<'a> {
        x: &'a [f32; LANES],
        out: &'a mut Quantized,
    }

    impl Kernel for Code<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            *self.out = Quantized::new(simd, self.x, 0);
        }
    }

    /// The result on each instruction set.
    fn quants(x: &[f32; LANES]) -> Vec<Quantized> {
        let quant = |implementation: Implementation| {
            let mut out = Quantized::ZERO;
            implementation.run(Code { x, out: &mut out });
            out
        };
        implementations().into_iter().map(quant).collect()
    }

    proptest! {
        /// Compares with the definition, element by element. Multiples of one half give many ties.
        #[test]
        fn codes_are_the_nearest_integers(
            halves in any::<[[i8; 16]; 2]>(),
            exponent in -126..120i32,
        ) {
            let unit = 0.5 * 2f32.powi(exponent);
            let x: [f32; LANES] = std::array::from_fn(|i| f32::from(halves[i / 16][i % 16]) * unit);
            let largest = x.iter().fold(0f32, |a, b| a.max(b.abs()));
            let inverse = Some(127.0 / largest).filter(|inverse| inverse.is_finite());
            let expected = x.map(|x| (x * inverse.unwrap_or(0.0)).round_ties_even());
            let sums = [0, 1].map(|half| expected[16 * half..][..16].iter().sum::<f32>());
            for found in quants(&x) {
                let bytes = found.quants.map(u32::to_le_bytes);
                let quants: Vec<f32> = bytes.as_flattened().iter().map(|&b| f32::from(b as i8)).collect();
                prop_assert_eq!(&quants[..], &expected[..]);
                prop_assert_eq!(found.scale, largest / 127.0);
                prop_assert_eq!(found.half_sums, sums);
                prop_assert_eq!(found.sum, sums[0] + sums[1]);
                let sum = [found.sum];
                for (minus_offset, sums) in [(-128, &sum[..]), (-8, &sum), (-32, &sums)] {
                    for (part, &sum) in sums.iter().enumerate() {
                        let number = Quantized::start_of(minus_offset, sums.len(), part);
                        let start = found.start(number.expect("a stored product"));
                        prop_assert_eq!(start, minus_offset * sum as i32);
                    }
                }
            }
        }

        #[test]
        fn numbers_that_are_not_finite_give_nan(place in 0..LANES, bits in 0x7f80_0000..=0x7fff_ffffu32) {
            let mut x = [1.0; LANES];
            x[place] = f32::from_bits(bits);
            for found in quants(&x) {
                prop_assert!(found.scale.is_nan());
            }
        }
    }
}
