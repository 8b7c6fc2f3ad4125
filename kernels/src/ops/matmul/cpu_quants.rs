//! Products of quantized weights with quantized activations.
//!
//! One output element is accumulated over blocks of 32 columns: `sum += x.scale * (scale * (quants .
//! x.quants - OFFSET * sum of x.quants) - min * sum of x.quants)`. The integer parts are exact, and every
//! `f32` operation is rounded once, in this order (a type with two scales per block adds its halves one
//! after the other). The result does not depend on other rows, on other activations, or on the number of
//! threads.

use std::marker::PhantomData;

use super::cpu_fused;
use super::cpu_tiled::Scratch;
use crate::cpu::Cpu;
use crate::cpu::activation::{Activations, BLOCK, Quantized};
use crate::cpu::arena::Arena;
use crate::cpu::columns::ColumnsMut;
use crate::cpu::repack::{Panels, sixteen_rows};
use crate::cpu::weight::Weight;
use crate::simd::dispatch::Implementation;
use crate::simd::packed::{MAX_FUSED, Packed, ROWS, array};
use crate::simd::{Kernel, LANES, Simd};
use crate::types::common::unpack::{InRows, TileForm, TileScales, Unpack};

/// Bytes of activations that stay in the L2 cache while weight rows pass by.
const ACTIVATION_BYTES: usize = 1 << 20;

/// Passes over a panel, each with up to [`BLOCK`] activation rows, that take less time than unpacking to tiles.
const FUSED_PASSES: usize = 4;

/// The functions of a quantized type that products need.
pub(crate) struct QuantKernels {
    /// Multiplies activations by some rows of a weight.
    pub(crate) multiply: fn(Implementation, QuantProduct<'_>),
    /// Interleaves the rows of a weight.
    pub(crate) repack: fn(&Cpu, &Weight) -> Panels,
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
            repack: Panels::new::<T>,
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
    /// Distance at which the weight is prefetched, in cache lines; 0 for none.
    pub(crate) prefetch: usize,
}

/// A product with a weight of blocks `T`.
struct OfType<'a, T> {
    product: QuantProduct<'a>,
    of: PhantomData<T>,
}

impl<T: Unpack> Kernel for OfType<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let QuantProduct {
            w,
            x,
            first,
            mut out,
            prefetch,
        } = self.product;
        let n_tile = w.n_cols / LANES;
        let n = x.len();
        let panels = w.panels();
        // With more than one pass, tiles are faster where a register has only a part of the rows.
        let n_fused = match panels {
            Some(_) if S::PARTS == 1 && S::FUSED == BLOCK => FUSED_PASSES * BLOCK,
            Some(_) => S::FUSED,
            None => S::FUSED.min(1),
        };
        // A constant condition, so that products that cannot occur are not compiled.
        if const { S::FUSED > 0 } && n <= n_fused {
            for done in (0..out.n_cols()).step_by(ROWS) {
                let start = first + done;
                let panel = panels.map(|panels| panels.panel(start, start));
                for (first_x, x) in x.parts(BLOCK) {
                    let sums = match panel {
                        Some(panel) if prefetch == 0 && n == 1 => {
                            let block = |i| panel.block::<T>(i);
                            cpu_fused::multiply::<S, T, _, 1>(simd, block, x, n_tile)
                        }
                        Some(panel) => {
                            // The first pass brings the panel into the caches, so the others prefetch the
                            // next one.
                            let distance = match first_x {
                                0 => prefetch,
                                _ => panel.len(),
                            };
                            let block = |i| panel.prefetching::<T, true>(i, distance);
                            cpu_fused::multiply::<S, T, _, MAX_FUSED>(simd, block, x, n_tile)
                        }
                        None => {
                            let rows = InOrder::<T>::new(w, start);
                            let block = |i| rows.block(simd, i);
                            cpu_fused::multiply::<S, T, _, 1>(simd, block, x, n_tile)
                        }
                    };
                    for (i, sums) in sums[..x.len() / n_tile].iter().enumerate() {
                        store(simd, &mut out, first_x + i, done, sums);
                    }
                }
            }
            return;
        }
        let n_group = ACTIVATION_BYTES / (n_tile * size_of::<Quantized>()).max(1);
        let arena = Arena::new();
        let n_sum = n_group.next_multiple_of(BLOCK).min(x.len());
        let mut scratch = Scratch::new(arena.filled([0.0; ROWS], S::PANELS * n_sum));
        for (first_x, x) in x.parts(n_group) {
            let n = x.len() / n_tile;
            let mut done = 0;
            while done < out.n_cols() {
                let start = first + done;
                let sums = match panels {
                    Some(panels) if const { S::PANELS == 2 } && done + ROWS < out.n_cols() => {
                        let next = start + 2 * ROWS;
                        let pair: [_; 2] =
                            array(|p| panels.panel(start + p * ROWS, next + p * ROWS));
                        let block = |p: usize, i| pair[p].block::<T>(i);
                        let ahead = |p: usize, blocks| pair[p].ahead::<T>(blocks);
                        scratch.multiply::<S, T, 2, _>(simd, block, ahead, x, n)
                    }
                    Some(panels) => {
                        let panel = panels.panel(start, start + ROWS);
                        let block = |_, i| panel.block::<T>(i);
                        let ahead = |_, blocks| panel.ahead::<T>(blocks);
                        scratch.multiply::<S, T, 1, _>(simd, block, ahead, x, n)
                    }
                    None => {
                        let rows = InOrder::<T>::new(w, start);
                        let block = |_, i| rows.block(simd, i);
                        let ahead = |_, _| &[][..];
                        scratch.multiply::<S, T, 1, _>(simd, block, ahead, x, n)
                    }
                };
                let n_panel = sums.len() / n;
                simd.run(StorePanels {
                    sums,
                    n_panel,
                    out: &mut out,
                    row: first_x,
                    first: done,
                });
                done += n_panel * ROWS;
            }
        }
    }
}

/// Writes the sums of some panels. A function of its own: in that of the products, which needs all registers, the
/// loop would keep its variables in memory.
struct StorePanels<'a, 'o> {
    /// `(n, n_panel)`
    sums: &'a [[f32; ROWS]],
    n_panel: usize,
    out: &'a mut ColumnsMut<'o>,
    /// First activation row.
    row: usize,
    /// First weight row.
    first: usize,
}

impl Kernel for StorePanels<'_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (i, sums) in self.sums.chunks_exact(self.n_panel).enumerate() {
            for (panel, sums) in sums.iter().enumerate() {
                let first = self.first + panel * ROWS;
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

/// Sixteen rows in file order, and those after them.
struct InOrder<'a, T> {
    rows: [&'a [T]; ROWS],
    next: [&'a [T]; ROWS],
}

impl<'a, T: Unpack> InOrder<'a, T> {
    #[inline(always)]
    fn new(w: &'a Weight, first: usize) -> InOrder<'a, T> {
        InOrder {
            rows: sixteen_rows::<T>(w, first),
            next: sixteen_rows::<T>(w, first + ROWS),
        }
    }

    /// Returns one block of each row.
    #[inline(always)]
    fn block<S: Simd>(&self, simd: S, i: usize) -> InRows<'a, T> {
        // Rows are too short for the hardware prefetcher to predict the next ones.
        self.next
            .iter()
            .for_each(|row| simd.prefetch(row[i].as_bytes()));
        InRows(array(|row| &self.rows[row][i]))
    }
}

/// Returns the negated offset that is left after products that subtract `wide_offset` from quants of 8 bits.
pub(super) const fn minus_offset<T: Unpack>(wide_offset: i32) -> f32 {
    const {
        // Products of 8-bit quants are off by `wide_offset`, which only a form with an offset corrects.
        assert!(<T::Form as TileForm>::HAS_OFFSET || <T::Form as TileForm>::BITS != 8);
    }
    match <T::Form as TileForm>::BITS {
        8 => (wide_offset - T::OFFSET) as f32,
        _ => -T::OFFSET as f32,
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

    /// Applies the scale to a sum of products with a block of activations, and adds the share of the minimum
    /// and `product`, the result of the first half.
    #[inline(always)]
    pub(super) fn apply<F: TileForm>(
        &self,
        simd: W,
        dot: W::Words,
        x: &Quantized,
        minus_offset: W::Floats,
        product: W::Floats,
    ) -> W::Floats {
        let sum = match F::SCALES {
            1 => x.sum,
            _ => x.half_sums[self.half],
        };
        let sum = simd.splat_floats(sum);
        let mut dot = simd.to_floats(dot);
        if F::HAS_OFFSET {
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
