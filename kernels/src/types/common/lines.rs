//! Finds the best neighbour of a group without ggml's sums, where they cannot decide otherwise.
//!
//! The error of a neighbour with quants `q` at scale `s` is `c + s (s a - b)`: `a` is the sum of `w q q`, `b`
//! that of `2 w x q`, `c` that of `w x x`, the same for all. So the best neighbour has the lowest line
//! `s a - b`.
//!
//! Rounding. Let `m` be the largest `s |q| + |x|` of each element and `u` half the last place of 1. ggml's sum
//! differs from the error by at most `13 u` times the sum `M` of `w m m`, a line here by at most
//! `12 u M / s`, and `M / s` is at most twice `s reach^2 sum(w) + sum(w x x) / s`. [`margin`] is `64 u`
//! times that bound: a line that is lower by the margin belongs to a lower sum.

use super::grid::{GroupBytes, NeighbourRow, Neighbours, PLACES, Target, bytes_at, nearest};
use crate::simd::lanes::{Lanes, MAX_LANES};

/// `128 u`.
const MARGIN: f32 = 1.0 / (1 << 17) as f32;

/// The smallest and the largest scale for which no term that the margin notices underflows or overflows.
const SCALES: [f32; 2] = [1e-9, 1e9];

/// The least `reach^2 sum(w)`, for the same reason.
const LEAST_WEIGHT: f32 = 1e-9;

/// Returns `a` and `b` of the quants in a byte, for values of the byte from `at` on.
#[inline(always)]
fn terms<V: Lanes, const G: usize>(target: &Target<'_, G>, byte: usize, at: usize) -> (V, V) {
    let (mut a, mut b) = (V::splat(0.0), V::splat(0.0));
    for i in byte * (G / 4)..(byte + 1) * (G / 4) {
        let level = V::load(&target.levels[i % (G / 4)][at..]);
        let weighted = V::splat(target.weights[i]) * level;
        a = a + weighted * level;
        b = b + V::splat(2.0 * target.x[i]) * weighted;
    }
    (a, b)
}

/// Returns a difference of lines that decides for the sums too, at scales from the smallest to the largest; NaN if
/// none does.
#[inline(always)]
fn margin<const G: usize>(target: &Target<'_, G>, smallest: f32, largest: f32) -> f32 {
    let (mut weight, mut energy) = (0.0, 0.0);
    for (x, w) in target.x.iter().zip(target.weights) {
        weight += w;
        energy += w * x * x;
    }
    weight *= target.reach * target.reach;
    let bound = largest * weight + energy / smallest;
    let is_ordinary = smallest >= SCALES[0]
        && largest <= SCALES[1]
        && weight >= LEAST_WEIGHT
        && bound <= SCALES[1];
    if is_ordinary {
        MARGIN * bound
    } else {
        f32::NAN
    }
}

/// Looks up and adds the terms of neighbours, as many as lanes.
#[inline(always)]
fn sum<V: Lanes>(terms: &[[f32; 16]; 4], row: &NeighbourRow, at: usize) -> V {
    let mut sum = V::look_up(&terms[0], &row[0][at..]);
    for byte in 1..4 {
        sum = sum + V::look_up(&terms[byte], &row[byte][at..]);
    }
    sum
}

/// Returns the first neighbour of least error.
#[inline(always)]
pub(crate) fn best_neighbour<V: Lanes, const G: usize>(
    neighbours: Neighbours<'_>,
    target: &Target<'_, G>,
    scale: f32,
) -> GroupBytes {
    match lowest::<V, G>(neighbours, target, scale) {
        Some(place) => bytes_at(neighbours.rows, place),
        None => nearest::<V, G>(neighbours, target, scale),
    }
}

/// Returns the place of the neighbour of the lowest line, if it decides. Lanes are neighbours.
#[inline(always)]
fn lowest<V: Lanes, const G: usize>(
    neighbours: Neighbours<'_>,
    target: &Target<'_, G>,
    scale: f32,
) -> Option<usize> {
    let mut lines = [[0.0; 16]; 4];
    for (byte, lines) in lines.iter_mut().enumerate() {
        for at in (0..16).step_by(V::N) {
            let (a, b) = terms::<V, G>(target, byte, at);
            (V::splat(scale) * a - b).store(&mut lines[at..]);
        }
    }
    let (mut least, mut place) = (V::splat(f32::MAX), V::splat(0.0));
    let (mut second, mut here) = (least, V::load(&PLACES));
    for row in neighbours.rows {
        for at in (0..16).step_by(V::N) {
            let line = sum::<V>(&lines, row, at);
            let is_less = least.gt(line);
            // Lines of absent neighbours are NaN.
            second = V::select(is_less, least, line).min(second);
            least = V::select(is_less, line, least);
            place = V::select(is_less, here, place);
            here = here + V::splat(V::N as f32);
        }
    }
    let margin = margin(target, scale, scale);
    let limit = V::splat(margin - (V::splat(-1.0) * least).largest());
    let close = V::bits(limit.gt(least));
    let mut places = [0.0; MAX_LANES];
    place.store(&mut places);
    let place = places[close.trailing_zeros() as usize % MAX_LANES] as usize;
    (close.count_ones() == 1 && !V::any(limit.gt(second))).then_some(place)
}

/// Terms of the lines of a group's neighbours, by the byte that contains the quants.
pub(crate) struct Lines {
    a: [[f32; 16]; 4],
    b: [[f32; 16]; 4],
    /// [`margin`]
    margin: f32,
}

impl Lines {
    /// Prepares the lines for scales from the smallest to the largest.
    #[inline(always)]
    pub(crate) fn new<V: Lanes, const G: usize>(
        target: &Target<'_, G>,
        smallest: f32,
        largest: f32,
    ) -> Lines {
        let mut lines = Lines {
            a: [[0.0; 16]; 4],
            b: [[0.0; 16]; 4],
            margin: margin(target, smallest, largest),
        };
        for byte in 0..4 {
            for at in (0..16).step_by(V::N) {
                let (a, b) = terms::<V, G>(target, byte, at);
                a.store(&mut lines.a[byte][at..]);
                b.store(&mut lines.b[byte][at..]);
            }
        }
        lines
    }

    /// Returns the places of the best neighbours at some scales, and which are certain. Lanes are scales.
    #[inline(always)]
    pub(crate) fn lowest_at<V: Lanes>(
        &self,
        neighbours: Neighbours<'_>,
        scales: V,
    ) -> (V, V::Mask) {
        let (mut least, mut place) = (V::splat(f32::MAX), V::splat(0.0));
        let mut second = least;
        let rows = neighbours.rows.iter().zip(PLACES.as_chunks::<16>().0);
        for (i, (row, places)) in rows.enumerate() {
            let (mut a, mut b) = ([0.0; 16], [0.0; 16]);
            for at in (0..16).step_by(V::N) {
                sum::<V>(&self.a, row, at).store(&mut a[at..]);
                sum::<V>(&self.b, row, at).store(&mut b[at..]);
            }
            let lines = a.iter().zip(&b).zip(places);
            for ((&a, &b), &here) in lines.take(neighbours.len - 16 * i) {
                let line = scales * V::splat(a) - V::splat(b);
                place = V::select(least.gt(line), V::splat(here), place);
                second = line.max(least).min(second);
                least = line.min(least);
            }
        }
        (place, second.gt(least + V::splat(self.margin)))
    }
}
