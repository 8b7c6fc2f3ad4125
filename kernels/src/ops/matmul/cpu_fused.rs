//! Products with weights that are unpacked in registers: for decoding and short drafts, where a weight is
//! used a few times only. Loads and arithmetic alternate closely, so that arithmetic does not interrupt the
//! stream from memory.

use std::marker::PhantomData;

use super::cpu_quants::{HalfScales, minus_offset};
use crate::cpu::activation::Quantized;
use crate::cpu::repack::Panel;
use crate::simd::packed::{MAX_FUSED, MAX_PARTS, Packed, ROWS};
use crate::simd::{Kernel, Simd};
use crate::types::common::unpack::{
    Blocks, Group, HalfTile, MAX_GROUP, MAX_TILES, TileForm, TileScales, Unpack,
};

/// Multiplies a panel by the activation rows `x`, `(tiles, n)`: one array of sums for each. There are at most
/// [`Packed::FUSED`] of them. `scales` is scratch memory. Reading a line of the panel prefetches the one `distance`
/// lines after it, unless that is 0.
#[inline(always)]
pub(super) fn multiply<S: Simd, T: Unpack>(
    simd: S,
    panel: Panel<'_>,
    distance: usize,
    x: &[Quantized],
    n_tile: usize,
    scales: &mut [TileScales; MAX_TILES],
) -> [[f32; ROWS]; MAX_FUSED] {
    let mut sums = [[0.0; ROWS]; MAX_FUSED];
    let product = PanelProduct::<T> {
        panel,
        distance,
        x,
        scales,
        sums: &mut sums,
        of: PhantomData,
    };
    // Constant conditions, so that numbers of rows that cannot occur are not compiled.
    match x.len() / n_tile {
        1 if distance == 0 => simd.run(OfRows::<T, false, 1>(product)),
        1 => simd.run(OfRows::<T, true, 1>(product)),
        2 if const { S::FUSED >= 2 } => simd.run(OfRows::<T, true, 2>(product)),
        3 if const { S::FUSED >= 3 } => simd.run(OfRows::<T, true, 3>(product)),
        4 if const { S::FUSED >= 4 } => simd.run(OfRows::<T, true, 4>(product)),
        n => unreachable!("{n} activation rows are multiplied by tiles"),
    }
    sums
}

/// The product of a panel with a few activation rows.
struct PanelProduct<'a, T> {
    panel: Panel<'a>,
    distance: usize,
    x: &'a [Quantized],
    /// Scratch memory.
    scales: &'a mut [TileScales; MAX_TILES],
    sums: &'a mut [[f32; ROWS]; MAX_FUSED],
    of: PhantomData<T>,
}

/// A product with `C` activation rows.
struct OfRows<'a, T, const PREFETCH: bool, const C: usize>(PanelProduct<'a, T>);

impl<T: Unpack, const PREFETCH: bool, const C: usize> Kernel for OfRows<'_, T, PREFETCH, C> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let PanelProduct {
            panel,
            distance,
            x,
            scales,
            sums,
            ..
        } = self.0;
        let mut acc = [simd.splat_floats(0.0); C];
        let mut part_acc = [[simd.part(0).splat_floats(0.0); C]; MAX_PARTS];
        let (x, _) = x.as_chunks::<C>();
        for (i, x) in x.chunks_exact(T::TILES).enumerate() {
            let block = panel.prefetching::<T, PREFETCH>(i, distance);
            T::scales(simd, block, &mut scales[..T::TILES]);
            let n_tile = <T::Group<S> as Group<_>>::TILES;
            for group in 0..T::TILES / n_tile {
                let x = &x[group * n_tile..][..n_tile];
                let scales = &scales[group * n_tile..][..n_tile];
                // Not a loop, so that the position of each part is a constant.
                if const { by_parts::<S, T>() } {
                    let [acc, second_acc] = &mut part_acc;
                    add_group::<S::Part, T, C>(simd.part(0), block, group, x, scales, acc);
                    add_group::<S::Part, T, C>(simd.part(1), block, group, x, scales, second_acc);
                } else {
                    add_group::<S, T, C>(simd, block, group, x, scales, &mut acc);
                }
            }
        }
        // Not a loop, which would keep the sums in memory all the time.
        if const { by_parts::<S, T>() } {
            store_part(simd.part(0), &part_acc[0], sums);
            store_part(simd.part(1), &part_acc[1], sums);
        } else {
            store_part(simd, &acc, sums);
        }
    }
}

/// Returns whether the parts of the rows are multiplied one after the other: large groups of tiles, and products of
/// 8 bits, need more registers than there are for all rows.
const fn by_parts<S: Simd, T: Unpack>() -> bool {
    let large = <T::Group<S> as Group<HalfTile<S>>>::TILES == MAX_GROUP || T::Form::BITS == 8;
    S::PARTS == 2 && large
}

/// Writes the sums of some rows.
#[inline(always)]
fn store_part<W: Packed, const C: usize>(
    simd: W,
    acc: &[W::Floats; C],
    sums: &mut [[f32; ROWS]; MAX_FUSED],
) {
    for c in 0..C {
        simd.store_floats(acc[c], &mut sums[c]);
    }
}

/// Adds the products of one group of tiles with `C` activation rows.
#[inline(always)]
fn add_group<W: Packed, T: Unpack, const C: usize>(
    simd: W,
    block: impl Blocks,
    group: usize,
    x: &[[Quantized; C]],
    scales: &[TileScales],
    acc: &mut [W::Floats; C],
) {
    let minus_offset = match T::Form::HAS_OFFSET {
        true => Some(simd.splat_floats(minus_offset::<T>(W::WIDE_OFFSET))),
        false => None,
    };
    let first = T::quants::<W, 0>(simd, block, group);
    let mut dots = [[simd.splat_word(0); C]; MAX_GROUP];
    add_half::<W, T::Form, 0, C>(simd, first.as_ref(), x, &mut dots);
    let mut products = [[simd.splat_floats(0.0); C]; MAX_GROUP];
    if T::Form::SCALES == 2 {
        for (tile, scales) in scales.iter().enumerate() {
            let scales = HalfScales::load::<T::Form>(simd, scales, 0);
            for c in 0..C {
                let (dot, product) = (dots[tile][c], products[tile][c]);
                products[tile][c] =
                    scales.apply::<T::Form>(simd, dot, &x[tile][c], minus_offset, product);
            }
        }
        dots = [[simd.splat_word(0); C]; MAX_GROUP];
    }
    let second = T::quants::<W, 1>(simd, block, group);
    add_half::<W, T::Form, 1, C>(simd, second.as_ref(), x, &mut dots);
    for (tile, scales) in scales.iter().enumerate() {
        let scales = HalfScales::load::<T::Form>(simd, scales, T::Form::SCALES - 1);
        for c in 0..C {
            let (dot, product) = (dots[tile][c], products[tile][c]);
            let product = scales.apply::<T::Form>(simd, dot, &x[tile][c], minus_offset, product);
            let scale = simd.splat_floats(x[tile][c].scale);
            acc[c] = simd.mul_add_floats(scale, product, acc[c]);
        }
    }
}

/// Adds the products of one half of each tile of a group.
#[inline(always)]
fn add_half<W: Packed, F: TileForm, const HALF: usize, const C: usize>(
    simd: W,
    quants: &[HalfTile<W>],
    x: &[[Quantized; C]],
    dots: &mut [[W::Words; C]; MAX_GROUP],
) {
    for (tile, &quants) in quants.iter().enumerate() {
        for c in 0..C {
            let x = x[tile][c].half(HALF);
            // With several activation rows word by word, also for quants of fewer bits: sums of several words need
            // registers that unpacking needs.
            dots[tile][c] = match (F::BITS, C) {
                (4 | 5, 1) => simd.add_products::<5>(dots[tile][c], quants, x),
                (6, 1) => simd.add_products::<6>(dots[tile][c], quants, x),
                (8, _) => simd.add_products::<8>(dots[tile][c], quants, x),
                _ => simd.add_products::<7>(dots[tile][c], quants, x),
            };
        }
    }
}
