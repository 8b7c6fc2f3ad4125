//! Products with weights that are unpacked in registers: for decoding and short drafts, where a weight is
//! used a few times only. Loads and arithmetic alternate closely, so that arithmetic does not interrupt the
//! stream from memory.

use super::cpu_quants::{HalfScales, minus_offset};
use crate::cpu::activation::Quantized;
use crate::simd::Simd;
use crate::simd::packed::{MAX_FUSED, MAX_PARTS, Packed, ROWS};
use crate::types::common::unpack::{
    Blocks, Group, HalfTile, MAX_GROUP, MAX_TILES, TileForm, TileScales, Unpack,
};

/// Multiplies sixteen weight rows, block by block, by the activation rows `x`, `(tiles, n)`: one array of sums
/// for each. There are at most `WIDTH` of them, and at most
/// [`Packed::FUSED`](crate::simd::packed::Packed::FUSED).
#[inline(always)]
pub(super) fn multiply<S: Simd, T: Unpack, B: Blocks, const WIDTH: usize>(
    simd: S,
    block: impl Fn(usize) -> B,
    x: &[Quantized],
    n_tile: usize,
) -> [[f32; ROWS]; MAX_FUSED] {
    let blocks = (0..n_tile / T::TILES).map(block);
    let mut sums = [[0.0; ROWS]; MAX_FUSED];
    // Constant conditions, so that widths that cannot occur are not compiled.
    match x.len() / n_tile {
        1 => add::<S, T, 1>(simd, blocks, x, &mut sums),
        2 if const { width::<S, WIDTH>() >= 2 } => add::<S, T, 2>(simd, blocks, x, &mut sums),
        3 if const { width::<S, WIDTH>() >= 3 } => add::<S, T, 3>(simd, blocks, x, &mut sums),
        4 if const { width::<S, WIDTH>() >= 4 } => add::<S, T, 4>(simd, blocks, x, &mut sums),
        n => unreachable!("{n} activation rows are multiplied by tiles"),
    }
    sums
}

/// The smaller of both widths.
const fn width<S: Simd, const WIDTH: usize>() -> usize {
    if WIDTH < S::FUSED { WIDTH } else { S::FUSED }
}

/// Computes the products with `C` activation rows.
#[inline(always)]
fn add<S: Simd, T: Unpack, const C: usize>(
    simd: S,
    blocks: impl Iterator<Item = impl Blocks>,
    x: &[Quantized],
    sums: &mut [[f32; ROWS]; MAX_FUSED],
) {
    let mut scales = [TileScales::ZERO; MAX_TILES];
    let mut acc = [[simd.part(0).splat_floats(0.0); C]; MAX_PARTS];
    let (x, _) = x.as_chunks::<C>();
    for (block, x) in blocks.zip(x.chunks_exact(T::TILES)) {
        T::scales(simd, block, &mut scales[..T::TILES]);
        let n_tile = <T::Group<S> as Group<_>>::TILES;
        for group in 0..T::TILES / n_tile {
            let x = &x[group * n_tile..][..n_tile];
            let scales = &scales[group * n_tile..][..n_tile];
            // Not a loop, so that the position of each part is a constant.
            add_group::<S::Part, T, C>(simd.part(0), block, group, x, scales, &mut acc[0]);
            if S::PARTS == 2 {
                add_group::<S::Part, T, C>(simd.part(1), block, group, x, scales, &mut acc[1]);
            }
        }
    }
    for (i, acc) in acc[..S::PARTS].iter().enumerate() {
        for (sums, acc) in sums.iter_mut().zip(acc) {
            simd.part(i).store_floats(*acc, sums);
        }
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
    let minus_offset = simd.splat_floats(minus_offset::<T>(W::WIDE_OFFSET));
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
            // Word by word, also for quants of fewer bits: sums of several words need registers that unpacking needs.
            dots[tile][c] = match F::BITS {
                8 => simd.add_products::<8>(dots[tile][c], quants, x),
                _ => simd.add_products::<7>(dots[tile][c], quants, x),
            };
        }
    }
}
