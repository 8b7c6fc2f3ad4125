//! Products of quantized weights with quantized activations.
//!
//! One output element is accumulated over blocks of 32 columns: `sum += x.scale * (scale * (quants .
//! x.quants - OFFSET * sum of x.quants) - min * sum of x.quants)`. The integer parts are exact, and every
//! `f32` operation is rounded once, in this order (a type with two scales per block adds its halves one
//! after the other). The result does not depend on other rows, on other activations, or on the number of
//! threads.

use std::marker::PhantomData;
use std::ops::Range;

use super::cpu_fused;
use super::cpu_prefetch::PassPrefetches;
use super::cpu_tiled::{Groups, Scratch};
use crate::cpu::activation::{Activations, Quantized};
use crate::cpu::arena::Arena;
use crate::cpu::columns::ColumnsMut;
use crate::cpu::prefetch::Prefetching;
use crate::cpu::repack::{Geometry, PanelReader};
use crate::cpu::weight::Weight;
use crate::simd::dispatch::Implementation;
use crate::simd::packed::{Packed, ROWS, array};
use crate::simd::{Kernel, LANES, Simd};
use crate::types::common::unpack::{MAX_TILES, TileForm, TileScales, Unpack};

/// Bytes of activations that stay in the L2 cache while weight rows pass by.
const ACTIVATION_BYTES: usize = 1 << 20;

/// The functions of a quantized type that products need.
pub(crate) struct QuantKernels {
    /// Multiplies activations by some rows of a weight.
    pub(crate) multiply: fn(Implementation, QuantProduct<'_>),
    /// Division of a block, by which rows are interleaved.
    pub(crate) geometry: Geometry,
    /// Lines of a block in the order in which unpacking reads them.
    #[cfg(test)]
    pub(crate) lines_as_read: fn() -> Vec<usize>,
}

impl QuantKernels {
    /// The functions of blocks `T`.
    pub(crate) const fn of<T: Unpack>() -> QuantKernels {
        QuantKernels {
            multiply: |on, product| {
                on.run_products(OfType::<T> {
                    product,
                    of: PhantomData,
                });
            },
            geometry: Geometry::of::<T>(),
            #[cfg(test)]
            lines_as_read: crate::cpu::repack::tests::lines_as_read::<T>,
        }
    }
}

/// The product of a range of weight rows with all activations.
pub(crate) struct QuantProduct<'a> {
    pub(crate) w: &'a Weight,
    pub(crate) x: &'a Activations<'a>,
    /// First weight row, a multiple of sixteen.
    pub(crate) first: usize,
    /// One column per weight row, `(n, rows)`.
    pub(crate) out: ColumnsMut<'a>,
    /// The weight rows that the thread multiplies one after another.
    pub(crate) rows: Range<usize>,
    pub(crate) prefetching: Prefetching,
}

/// A product with a weight of blocks `T`.
struct OfType<'a, T> {
    product: QuantProduct<'a>,
    of: PhantomData<T>,
}

impl<T: Unpack> Kernel for OfType<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let product = self.product;
        let n = product.x.len();
        // Constant conditions, so that products that cannot occur are not compiled.
        if const { S::FUSED > 0 } && n <= const { fused_rows::<S, T>() } {
            if const { cpu_fused::panels_at_once::<S, T>() == 2 } && n >= cpu_fused::PAIR_ROWS {
                multiply_fused::<S, T, 2>(simd, product);
            } else {
                multiply_fused::<S, T, 1>(simd, product);
            }
        } else if const { S::PANELS == 2 } {
            multiply_tiled::<S, T, 2>(simd, product);
        } else {
            multiply_tiled::<S, T, 1>(simd, product);
        }
    }
}

/// Returns the number of activation rows up to which products with blocks `T` unpack weights in registers.
const fn fused_rows<S: Simd, T: Unpack>() -> usize {
    match T::Form::BITS {
        // They take longer to unpack: tiles are faster than a second pass.
        5 | 7 if S::WORD_BY_WORD => S::FUSED,
        _ => S::FUSED_ROWS,
    }
}

/// Multiplies with weights that are unpacked in registers, `P` panels at a time.
#[inline(always)]
fn multiply_fused<S: Simd, T: Unpack, const P: usize>(simd: S, product: QuantProduct<'_>) {
    let QuantProduct {
        w,
        x,
        first,
        mut out,
        rows,
        prefetching,
    } = product;
    let n_tile = w.n_cols / LANES;
    let arena = Arena::new();
    let mut panels = PanelReader::new(w, const { Geometry::of::<T>() }, &arena);
    let mut scales = [[TileScales::ZERO; MAX_TILES]; P];
    let n_pass = x.len().div_ceil(S::FUSED);
    for done in (0..out.n_cols()).step_by(P * ROWS) {
        let panels: [_; P] = panels.panels(simd, starts_of_panels(first, done, out.n_cols()), 0);
        for (pass, (first_x, x_part)) in x.parts(S::FUSED).enumerate() {
            let prefetches = PassPrefetches::of_pass::<S, T, P>(
                prefetching,
                x.len(),
                (pass, n_pass),
                panels,
                n_tile,
                first + done,
                &rows,
            );
            let sums = cpu_fused::multiply::<S, T, P>(
                simd,
                panels,
                prefetches,
                x_part,
                n_tile,
                &mut scales,
            );
            let firsts = (done..out.n_cols()).step_by(ROWS);
            for (first, sums) in firsts.zip(&sums) {
                for (i, sums) in sums[..x_part.len() / n_tile].iter().enumerate() {
                    store(simd, &mut out, first_x + i, first, sums);
                }
            }
        }
    }
}

/// Returns the weight rows at which the next `P` panels start, after `done` of `n` rows from row `first` on. After the last
/// panel, it is multiplied once more, and not stored.
#[inline(always)]
fn starts_of_panels<const P: usize>(first: usize, done: usize, n: usize) -> [usize; P] {
    let last = (n - 1) / ROWS * ROWS;
    array(|p| first + (done + p * ROWS).min(last))
}

/// Multiplies with unpacked tiles, `P` panels at a time.
#[inline(always)]
fn multiply_tiled<S: Simd, T: Unpack, const P: usize>(simd: S, product: QuantProduct<'_>) {
    let QuantProduct {
        w,
        x,
        first,
        mut out,
        ..
    } = product;
    let arena = Arena::new();
    let n_tile = w.n_cols / LANES;
    let n_group = ACTIVATION_BYTES / (n_tile * size_of::<Quantized>()).max(1);
    let group = x.group();
    let n_sum = n_group.next_multiple_of(group).min(x.len());
    let mut scratch = Scratch::new(arena.filled([0.0; ROWS], P * n_sum));
    let unit = match x.has_tiny_scales() {
        true => None,
        false => simd.matrix_unit(),
    };
    let mut panels = PanelReader::new(w, const { Geometry::of::<T>() }, &arena);
    for (row, x) in x.parts(n_group) {
        let x = Groups {
            x,
            rows: group,
            n_tile,
            first: 0,
        };
        for done in (0..out.n_cols()).step_by(P * ROWS) {
            let starts = starts_of_panels(first, done, out.n_cols());
            let panels: [_; P] = panels.panels(simd, starts, P * ROWS);
            let sums = scratch.multiply::<S, T, P>(simd, unit.as_ref(), panels, x);
            simd.run(StorePanels::<P> {
                sums,
                out: &mut out,
                row,
                first: done,
            });
        }
    }
}

/// Writes the sums of some panels. A function of its own: in that of the products, which needs all registers, the
/// loop would keep its variables in memory.
struct StorePanels<'a, 'o, const P: usize> {
    /// `(n, P)`
    sums: &'a [[f32; ROWS]],
    out: &'a mut ColumnsMut<'o>,
    /// First activation row.
    row: usize,
    /// First weight row.
    first: usize,
}

impl<const P: usize> Kernel for StorePanels<'_, '_, P> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (i, sums) in self.sums.as_chunks::<P>().0.iter().enumerate() {
            let firsts = (self.first..self.out.n_cols()).step_by(ROWS);
            for (first, sums) in firsts.zip(sums) {
                store(simd, self.out, self.row + i, first, sums);
            }
        }
    }
}

/// Writes the sums of up to sixteen weight rows from `first`, for one activation row.
#[inline(always)]
fn store<S: Simd>(simd: S, out: &mut ColumnsMut<'_>, row: usize, first: usize, sums: &[f32; ROWS]) {
    let rows = first..out.n_cols().min(first + ROWS);
    let out = out.row(row, rows);
    match out.first_chunk_mut() {
        // Not a copy: the compiler would call a function for both cases.
        Some(out) => simd.store_floats(simd.load_floats(sums), out),
        None => out.copy_from_slice(&sums[..out.len()]),
    }
}

/// Returns the negated offset that is left after products that subtract `wide_offset` from quants of 8 bits.
pub(super) const fn minus_offset<T: Unpack>(wide_offset: i32) -> i32 {
    const {
        // Products of 8-bit quants are off by `wide_offset`, which only a form with an offset corrects.
        assert!(<T::Form as TileForm>::HAS_OFFSET || <T::Form as TileForm>::BITS != 8);
    }
    match <T::Form as TileForm>::BITS {
        8 => wide_offset - T::OFFSET,
        _ => -T::OFFSET,
    }
}

/// Scale and minimum of half a tile, or of a whole one, in registers.
#[derive(Clone, Copy)]
pub(super) struct HalfScales<W: Packed> {
    scale: W::Floats,
    minus_min: W::Floats,
    half: usize,
}

impl<W: Packed> HalfScales<W> {
    /// Loads scale number `half`, and the minimum if the form has one.
    #[inline(always)]
    pub(super) fn load<F: TileForm>(simd: W, tile: &TileScales, half: usize) -> HalfScales<W> {
        HalfScales {
            scale: simd.load_floats(&tile.scales[half]),
            minus_min: match F::HAS_MINS {
                true => simd.load_floats(&tile.minus_mins[half]),
                false => simd.splat_floats(0.0),
            },
            half,
        }
    }

    /// Applies the scale to a sum of products with a block of activations, after adding the share of the offset if
    /// it has one, and adds the share of the minimum and `product`, the result of the first half.
    #[inline(always)]
    pub(super) fn apply<F: TileForm>(
        &self,
        simd: W,
        dot: W::Words,
        x: &Quantized,
        minus_offset: Option<W::Floats>,
        product: W::Floats,
    ) -> W::Floats {
        let sum = match F::SCALES {
            1 => x.sum,
            _ => x.half_sums[self.half],
        };
        let sum = simd.splat_floats(sum);
        let mut dot = simd.to_floats(dot);
        if let Some(minus_offset) = minus_offset {
            // Integers of less than 24 bits, so the result is exact.
            dot = simd.mul_add_floats(sum, minus_offset, dot);
        }
        let product = match self.half {
            0 => simd.mul_floats(self.scale, dot),
            _ => simd.mul_add_floats(self.scale, dot, product),
        };
        match F::HAS_MINS {
            true => simd.mul_add_floats(self.minus_min, sum, product),
            false => product,
        }
    }
}
