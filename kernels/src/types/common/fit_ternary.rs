//! Fits scales to blocks of the values -1, 0 and 1, all shifted up or down by 1/8: the searches of IQ1.
//! Every sum is in ggml's order, because another order rounds differently.

use std::sync::LazyLock;

use super::grid::{self, Grid, GroupBytes, Levels, Target, levels_of_pairs};
use super::grid_points;
use crate::simd::lanes::{Lanes, MAX_LANES};

/// The shift of the values.
const SHIFT: f32 = 0.125;

/// The values of quants, shifted up and down.
pub(crate) const VALUES: [[f32; 3]; 2] = [
    [SHIFT - 1.0, SHIFT, SHIFT + 1.0],
    [-1.0 - SHIFT, -SHIFT, 1.0 - SHIFT],
];

/// [`VALUES`] by quant and, above its two bits, shift.
pub(crate) const NUMBERS: [f32; 16] = {
    let mut numbers = [0.0; 16];
    let mut i = 0;
    while i < 3 {
        numbers[i] = VALUES[0][i];
        numbers[i + 4] = VALUES[1][i];
        i += 1;
    }
    numbers
};

/// Value to subtract from [`QUANTS`].
pub(crate) const OFFSET: i32 = 9;

/// Eight times [`NUMBERS`], with an offset.
pub(crate) const QUANTS: [u8; 16] = {
    let mut quants = [0; 16];
    let mut i = 0;
    while i < 16 {
        quants[i] = ((8.0 * NUMBERS[i]) as i32 + OFFSET) as u8;
        i += 1;
    }
    quants
};

pub(crate) static POINTS: [u32; grid_points::IQ1.len()] = grid::words(&grid_points::IQ1);

pub(crate) static GRID: LazyLock<Grid<8>> = LazyLock::new(|| Grid::new(&grid_points::IQ1, 3));

/// [`VALUES`], arranged for groups.
const LEVELS: [Levels; 2] = [levels_of_pairs(VALUES[0]), levels_of_pairs(VALUES[1])];

/// A fitted block: its scale, the points of its groups of eight, and which of these are shifted down.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ternary {
    pub(crate) scale: f32,
    pub(crate) indices: [u16; 4],
    pub(crate) is_down: [bool; 4],
}

/// Returns the largest scale of some fits.
#[inline(always)]
pub(crate) fn max_scale(fits: &[Ternary]) -> f32 {
    let larger = |max: f32, fit: &Ternary| if max > fit.scale { max } else { fit.scale };
    fits.iter().fold(0.0, larger)
}

/// Length of the prefix sums of 32 numbers, with room for a vector after them.
const SUMS_LEN: usize = 33 + MAX_LANES;

/// Returns the indices of the elements in ascending order; equal elements keep their order.
#[inline(always)]
fn ascending<V: Lanes, const N: usize>(x: &[f32; N]) -> [usize; N] {
    let mut order = [0; N];
    for i in 0..N {
        let element = V::splat(x[i]);
        let (mut smaller, mut equal) = (0, 0);
        for at in (0..N).step_by(V::N) {
            let others = V::load(&x[at..]);
            smaller |= V::bits(element.gt(others)) << at;
            equal |= V::bits(element.eq(others)) << at;
        }
        let before = smaller | (equal & ((1 << i) - 1));
        order[before.count_ones() as usize] = i;
    }
    order
}

/// The best split of the sorted elements: the first `split.0` have the lowest value, those from `split.1` on
/// the highest.
struct Best {
    scale: f32,
    score: f32,
    split: (usize, usize),
    variant: Option<usize>,
}

impl Best {
    const NONE: Best = Best {
        scale: 0.0,
        score: -f32::MAX,
        split: (0, 0),
        variant: None,
    };

    /// Tries splits whose second parts start at `second` and the `n - 1` places after it, `K` variants of
    /// each: sums of `w x q` and `w q q`.
    #[inline(always)]
    fn improve<V: Lanes, const K: usize>(
        &mut self,
        sums: [(V, V); K],
        first: usize,
        second: usize,
        n: usize,
    ) {
        let zero = V::splat(0.0);
        let mut better = 0;
        for (xq, q2) in sums {
            let is_better = q2.gt(zero) & (xq * xq).gt(V::splat(self.score) * q2);
            better |= V::bits(is_better);
        }
        if n < V::N {
            better &= (1 << n) - 1;
        }
        if better == 0 {
            return;
        }
        let mut stored = [[[0.0; MAX_LANES]; 2]; K];
        for (stored, (xq, q2)) in stored.iter_mut().zip(sums) {
            xq.store(&mut stored[0]);
            q2.store(&mut stored[1]);
        }
        // Splits before the first better one stay worse: the score has not changed.
        for lane in better.trailing_zeros() as usize..n.min(V::N) {
            for (variant, [xq, q2]) in stored.iter().enumerate() {
                let (xq, q2) = (xq[lane], q2[lane]);
                if q2 > 0.0 && xq * xq > self.score * q2 {
                    self.scale = xq / q2;
                    self.score = self.scale * xq;
                    self.split = (first, second + lane);
                    self.variant = Some(variant);
                }
            }
        }
    }
}

/// Fits 32 elements, all shifted alike.
#[inline(always)]
pub(crate) fn fit_one_shift<V: Lanes>(
    grid: &Grid<8>,
    x: &[f32; 32],
    w: &[f32; 32],
    zero_below: f32,
) -> Ternary {
    if is_below(x, zero_below) {
        return Ternary::default();
    }
    let order = ascending::<V, 32>(x);
    let (mut sum_x, mut sum_w) = ([0.0; SUMS_LEN], [0.0; SUMS_LEN]);
    for (j, &i) in order.iter().enumerate() {
        sum_x[j + 1] = sum_x[j] + w[i] * x[i];
        sum_w[j + 1] = sum_w[j] + w[i];
    }
    let (all_x, all_w) = (V::splat(sum_x[32]), V::splat(sum_w[32]));
    let mut best = Best::NONE;
    for first in 0..=32 {
        let (low_x, low_w) = (V::splat(sum_x[first]), V::splat(sum_w[first]));
        for second in (first..=32).step_by(V::N) {
            let (x, w) = (V::load(&sum_x[second..]), V::load(&sum_w[second..]));
            let x = [low_x, x - low_x, all_x - x];
            let w = [low_w, w - low_w, all_w - w];
            let sums = [split_sums(x, w, &VALUES[0]), split_sums(x, w, &VALUES[1])];
            best.improve(sums, first, second, 33 - second);
        }
    }
    let down = best.variant.map(|variant| [variant == 1; 4]);
    round::<V, 32>(grid, x, w, &order, &best, down)
}

/// Returns the sums of `w x q` and `w q q` from those of `w x` and `w` of the parts of a split.
#[inline(always)]
fn split_sums<V: Lanes>(x: [V; 3], w: [V; 3], values: &[f32; 3]) -> (V, V) {
    let [a, b, c] = [
        V::splat(values[0]),
        V::splat(values[1]),
        V::splat(values[2]),
    ];
    (
        x[0] * a + x[1] * b + x[2] * c,
        w[0] * a * a + w[1] * b * b + w[2] * c * c,
    )
}

/// Prefix sums of `w x` and `w` of one half of a block, in the order of all its elements.
struct HalfSums {
    x: [f32; SUMS_LEN],
    w: [f32; SUMS_LEN],
}

impl HalfSums {
    #[inline(always)]
    fn new(x: &[f32; 16], w: &[f32; 16], order: &[usize; 16], half: usize) -> HalfSums {
        let mut sums = HalfSums {
            x: [0.0; SUMS_LEN],
            w: [0.0; SUMS_LEN],
        };
        for (j, &i) in order.iter().enumerate() {
            (sums.x[j + 1], sums.w[j + 1]) = (sums.x[j], sums.w[j]);
            if i / 8 == half {
                sums.x[j + 1] += w[i] * x[i];
                sums.w[j + 1] += w[i];
            }
        }
        sums
    }

    /// Returns the sums of `w x q` and `w q q` of splits, with the given values. Neighbouring values differ
    /// by 1, so sums of three parts follow from two prefixes.
    #[inline(always)]
    fn of_splits<V: Lanes>(&self, first: usize, second: usize, values: &[f32; 3]) -> (V, V) {
        let [a, b, c] = *values;
        let high = V::splat(c);
        let prefixes = V::splat(self.x[first]) + V::load(&self.x[second..]);
        let low_w = V::splat(self.w[first]) * V::splat(a * a - b * b);
        let w = V::load(&self.w[second..]) * V::splat(b * b - c * c);
        (
            V::splat(self.x[16]) * high - prefixes,
            V::splat(self.w[16]) * high * high + low_w + w,
        )
    }
}

/// Fits sixteen elements; each half has its own shift.
#[inline(always)]
pub(crate) fn fit_two_shifts<V: Lanes>(
    grid: &Grid<8>,
    x: &[f32; 16],
    w: &[f32; 16],
    zero_below: f32,
) -> Ternary {
    if is_below(x, zero_below) {
        return Ternary::default();
    }
    let order = ascending::<V, 16>(x);
    let halves = [
        HalfSums::new(x, w, &order, 0),
        HalfSums::new(x, w, &order, 1),
    ];
    let mut best = Best::NONE;
    for first in 0..=16 {
        for second in (first..=16).step_by(V::N) {
            let up = [
                halves[0].of_splits::<V>(first, second, &VALUES[0]),
                halves[1].of_splits::<V>(first, second, &VALUES[0]),
            ];
            let down = [
                halves[0].of_splits::<V>(first, second, &VALUES[1]),
                halves[1].of_splits::<V>(first, second, &VALUES[1]),
            ];
            let sums = [
                (up[0].0 + up[1].0, up[0].1 + up[1].1),
                (up[0].0 + down[1].0, up[0].1 + down[1].1),
                (down[0].0 + up[1].0, down[0].1 + up[1].1),
                (down[0].0 + down[1].0, down[0].1 + down[1].1),
            ];
            best.improve(sums, first, second, 17 - second);
        }
    }
    let down = best
        .variant
        .map(|variant| [variant & 2 != 0, variant & 1 != 0, false, false]);
    round::<V, 16>(grid, x, w, &order, &best, down)
}

/// True if all magnitudes are below a limit.
#[inline(always)]
fn is_below(x: &[f32], limit: f32) -> bool {
    x.iter()
        .fold(0.0, |max: f32, x| if max > x.abs() { max } else { x.abs() })
        < limit
}

/// Rounds the groups of the best split to points of the grid. `down` is `None` without a split.
#[inline(always)]
fn round<V: Lanes, const N: usize>(
    grid: &Grid<8>,
    x: &[f32; N],
    w: &[f32; N],
    order: &[usize; N],
    best: &Best,
    down: Option<[bool; 4]>,
) -> Ternary {
    let Some(mut is_down) = down else {
        return Ternary::default();
    };
    let mut quants = [0; N];
    for (j, &i) in order.iter().enumerate() {
        quants[i] = usize::from(j >= best.split.0) + usize::from(j >= best.split.1);
    }
    let mut scale = best.scale;
    if scale < 0.0 {
        scale = -scale;
        quants.iter_mut().for_each(|quant| *quant = 2 - *quant);
        is_down
            .iter_mut()
            .take(N / 8)
            .for_each(|is_down| *is_down = !*is_down);
    }
    let mut indices = [0; 4];
    let mut on_grid = true;
    let mut groups: [GroupBytes; 4] = [[0; 4]; 4];
    for (g, quants) in quants.as_chunks::<8>().0.iter().enumerate() {
        let number = quants
            .iter()
            .rev()
            .fold(0, |number, quant| 3 * number + quant);
        let target = Target {
            x: x.as_chunks().0.get(g).expect("a group"),
            weights: w.as_chunks().0.get(g).expect("a group"),
            levels: &LEVELS[usize::from(is_down[g])],
        };
        let group = grid.best::<V>(number, &target, scale);
        on_grid &= group.on_grid;
        groups[g] = group.bytes;
        indices[g] = grid.index(group.bytes);
    }
    if !on_grid {
        let (mut sum_xq, mut sum_q2) = (0.0, 0.0);
        for i in 0..N {
            let byte = groups[i / 8][i % 8 / 2];
            let quant = byte >> (2 * (i % 2)) & 3;
            let wq = w[i] * VALUES[usize::from(is_down[i / 8])][usize::from(quant)];
            sum_xq += wq * x[i];
            sum_q2 += wq * VALUES[usize::from(is_down[i / 8])][usize::from(quant)];
        }
        if sum_xq > 0.0 && sum_q2 > 0.0 {
            scale = sum_xq / sum_q2;
        }
    }
    Ternary {
        scale,
        indices,
        is_down,
    }
}
