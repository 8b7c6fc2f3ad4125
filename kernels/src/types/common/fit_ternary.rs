//! Fits scales to blocks of the values -1, 0 and 1, all shifted up or down by 1/8: the searches of IQ1.
//! Every sum is in ggml's order, because another order rounds differently. Lanes are blocks; in the search for the
//! best neighbour, lanes are neighbours.

use std::sync::LazyLock;

use super::grid::{self, Grid, GroupBytes, Levels, Place, Target, levels_of_pairs};
use super::grid_points;
use super::lines::best_neighbour;
use super::one_pass::max_abs;
use crate::simd::lanes::{Lanes, MAX_LANES, transpose};

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

/// The most elements of a block.
const MAX_LEN: usize = 32;

/// The place of each element of several blocks in ascending order, by element and lane; equal elements keep their
/// order.
type Ranks<const N: usize> = [[u8; MAX_LANES]; N];

#[inline(always)]
fn ranks<V: Lanes, const N: usize>(x: &[[f32; N]]) -> Ranks<N> {
    let x = transpose::<V, N>(x);
    let one = V::splat(1.0);
    let mut ranks = [V::splat(0.0); N];
    for j in 0..N {
        let mut rank = V::splat(j as f32);
        for i in 0..j {
            let is_after = x[i].gt(x[j]);
            rank = V::select(is_after, rank - one, rank);
            ranks[i] = V::select(is_after, ranks[i] + one, ranks[i]);
        }
        ranks[j] = rank;
    }
    let mut bytes = [[0; MAX_LANES]; N];
    for (bytes, rank) in bytes.iter_mut().zip(ranks) {
        rank.truncate_to_bytes(bytes);
    }
    bytes
}

/// Prefix sums of `w x` and `w` of several blocks in ascending order, by the number of elements.
#[derive(Clone, Copy)]
struct Prefixes<V> {
    x: [V; MAX_LEN + 1],
    w: [V; MAX_LEN + 1],
}

/// Returns the prefix sums of each of `K` parts of the blocks.
#[inline(always)]
fn prefixes<V: Lanes, const N: usize, const K: usize>(
    x: &[[f32; N]],
    w: &[[f32; N]],
    ranks: &Ranks<N>,
) -> [Prefixes<V>; K] {
    let mut sums_x = vec![[[0.0; N]; K]; V::N];
    let mut sums_w = vec![[[0.0; N]; K]; V::N];
    for (lane, (x, w)) in x.iter().zip(w).enumerate() {
        let mut order = [0; N];
        for (i, ranks) in ranks.iter().enumerate() {
            order[usize::from(ranks[lane]) % N] = i;
        }
        let (mut sum_x, mut sum_w) = ([0.0; K], [0.0; K]);
        for (j, i) in order.into_iter().enumerate() {
            for part in 0..K {
                let is_in = i / (N / K) == part;
                sum_x[part] += if is_in { w[i] * x[i] } else { 0.0 };
                sum_w[part] += if is_in { w[i] } else { 0.0 };
                sums_x[lane][part][j] = sum_x[part];
                sums_w[lane][part][j] = sum_w[part];
            }
        }
    }
    let mut prefixes = [Prefixes {
        x: [V::splat(0.0); MAX_LEN + 1],
        w: [V::splat(0.0); MAX_LEN + 1],
    }; K];
    for (part, prefixes) in prefixes.iter_mut().enumerate() {
        let (x, w) = (&mut prefixes.x[1..=N], &mut prefixes.w[1..=N]);
        V::columns(&sums_x.as_flattened().as_flattened()[part * N..], K * N, x);
        V::columns(&sums_w.as_flattened().as_flattened()[part * N..], K * N, w);
    }
    prefixes
}

/// Sums of `w x q` and `w q q`.
type Sums<V> = (V, V);

/// The best splits of the sorted elements of several blocks: the first elements have the lowest value, the last
/// ones the highest.
struct Best<V> {
    scale: V,
    score: V,
    /// Two places where a block is split, and a variant of the values, as a number; below 0 for none.
    code: V,
}

impl<V: Lanes> Best<V> {
    #[inline(always)]
    fn none() -> Best<V> {
        Best {
            scale: V::splat(0.0),
            score: V::splat(-f32::MAX),
            code: V::splat(-1.0),
        }
    }

    #[inline(always)]
    fn is_better(&self, (xq, q2): Sums<V>) -> V::Mask {
        q2.gt(V::splat(0.0)) & (xq * xq).gt(self.score * q2)
    }

    /// Tries the variants of a split, in order.
    #[inline(always)]
    fn improve<const K: usize>(&mut self, sums: [Sums<V>; K], split: (usize, usize)) {
        let mut may_be_better = V::splat(0.0).gt(V::splat(0.0));
        for (xq, q2) in sums {
            may_be_better = may_be_better | (xq * xq).gt(self.score * q2);
        }
        if !V::any(may_be_better) {
            return;
        }
        for (variant, sums) in sums.into_iter().enumerate() {
            let is_better = self.is_better(sums);
            let (xq, q2) = sums;
            let scale = xq / q2;
            let code = (split.0 * (MAX_LEN + 1) + split.1) * K + variant;
            self.scale = V::select(is_better, scale, self.scale);
            self.score = V::select(is_better, scale * xq, self.score);
            self.code = V::select(is_better, V::splat(code as f32), self.code);
        }
    }

    /// Returns no splits, with a score just below that of these. A search of all splits from there ends like
    /// one from the lowest score, after fewer improvements. `weight` is the sum of `w`.
    ///
    /// The score is that of a split, so some split is clearly above the lower score. Both searches take the
    /// first such split, because neither has a better one before, and then continue alike. All `q2` are
    /// nearly `weight / 64` or more, so for ordinary numbers nothing underflows.
    #[inline(always)]
    fn just_below(self, weight: V) -> Best<V> {
        let is_ordinary = is_within(weight, 1e10) & is_within(self.score, 1e15);
        let below = self.score * V::splat(1.0 - 1.0 / 1024.0);
        Best {
            score: V::select(is_ordinary, below, V::splat(-f32::MAX)),
            ..Best::none()
        }
    }

    /// Returns the scale, the split and the variant of each lane.
    #[inline(always)]
    fn lanes<const K: usize>(&self) -> [Option<Split>; MAX_LANES] {
        let (mut scales, mut codes) = ([0.0; MAX_LANES], [0.0; MAX_LANES]);
        self.scale.store(&mut scales);
        self.code.store(&mut codes);
        let mut splits = [None; MAX_LANES];
        for (split, (scale, code)) in splits
            .iter_mut()
            .zip(scales.into_iter().zip(codes))
            .take(V::N)
        {
            if code >= 0.0 {
                let (places, variant) = (code as usize / K, code as usize % K);
                let places = [places / (MAX_LEN + 1), places % (MAX_LEN + 1)];
                *split = Some(Split {
                    scale,
                    places,
                    variant,
                });
            }
        }
        splits
    }
}

/// Tests for numbers between `1 / limit` and `limit`.
#[inline(always)]
fn is_within<V: Lanes>(x: V, limit: f32) -> V::Mask {
    x.gt(V::splat(1.0 / limit)) & V::splat(limit).gt(x)
}

/// A way to split sorted elements: those before the first place have the lowest value, those from the second on
/// the highest.
#[derive(Clone, Copy)]
struct Split {
    scale: f32,
    places: [usize; 2],
    variant: usize,
}

/// Fits blocks whose elements are all shifted alike.
#[inline(always)]
pub(crate) fn fit_one_shift<V: Lanes>(
    grid: &Grid<8>,
    x: &[[f32; 32]],
    w: &[[f32; 32]],
    zero_below: f32,
) -> Vec<Ternary> {
    let mut fits = Vec::with_capacity(x.len());
    for (x, w) in x.chunks(V::N).zip(w.chunks(V::N)) {
        let ranks = ranks::<V, 32>(x);
        let best = best_of_one_shift(&prefixes::<V, 32, 1>(x, w, &ranks));
        for (lane, split) in best.lanes::<2>()[..x.len()].iter().enumerate() {
            let split = split.filter(|_| max_abs::<V>(&x[lane]) >= zero_below);
            fits.push(match split {
                Some(split) => {
                    let is_down = [split.variant == 1; 4];
                    round::<V, 32>(grid, &x[lane], &w[lane], &ranks, lane, &split, is_down)
                }
                None => Ternary::default(),
            });
        }
    }
    fits
}

/// Returns the sums of elements that all have one value, from those of `w x` and `w`.
#[inline(always)]
fn weighted<V: Lanes>(x: V, w: V, value: f32) -> Sums<V> {
    let value = V::splat(value);
    (x * value, w * value * value)
}

/// Tries every split of 32 elements, shifted up and down.
#[inline(always)]
fn best_of_one_shift<V: Lanes>([sums]: &[Prefixes<V>; 1]) -> Best<V> {
    const N: usize = 32;
    let zero = V::splat(0.0);
    let mut high = [[(zero, zero); 2]; N + 1];
    for (second, high) in high.iter_mut().enumerate() {
        let (x, w) = (sums.x[N] - sums.x[second], sums.w[N] - sums.w[second]);
        for shift in 0..2 {
            high[shift] = weighted(x, w, VALUES[shift][2]);
        }
    }
    let mut best = Best::none();
    for step in [N / 4, 1] {
        best = best.just_below(sums.w[N]);
        for first in (step / 2..=N).step_by(step) {
            let (low_x, low_w) = (sums.x[first], sums.w[first]);
            let mut low = [(zero, zero); 2];
            for shift in 0..2 {
                low[shift] = weighted(low_x, low_w, VALUES[shift][0]);
            }
            for second in (first..=N).step_by(step) {
                let (x, w) = (sums.x[second] - low_x, sums.w[second] - low_w);
                let mut tried = [(zero, zero); 2];
                for shift in 0..2 {
                    let middle = weighted(x, w, VALUES[shift][1]);
                    let (low, high) = (low[shift], high[second][shift]);
                    tried[shift] = (low.0 + middle.0 + high.0, low.1 + middle.1 + high.1);
                }
                best.improve(tried, (first, second));
            }
        }
    }
    best
}

/// Fits blocks whose halves are each shifted.
#[inline(always)]
pub(crate) fn fit_two_shifts<V: Lanes>(
    grid: &Grid<8>,
    x: &[[f32; 16]],
    w: &[[f32; 16]],
    zero_below: f32,
) -> Vec<Ternary> {
    let mut fits = Vec::with_capacity(x.len());
    for (x, w) in x.chunks(V::N).zip(w.chunks(V::N)) {
        let ranks = ranks::<V, 16>(x);
        let best = best_of_two_shifts(&prefixes::<V, 16, 2>(x, w, &ranks));
        for (lane, split) in best.lanes::<4>()[..x.len()].iter().enumerate() {
            let split = split.filter(|_| max_abs::<V>(&x[lane]) >= zero_below);
            fits.push(match split {
                Some(split) => {
                    let is_down = [split.variant & 2 != 0, split.variant & 1 != 0, false, false];
                    round::<V, 16>(grid, &x[lane], &w[lane], &ranks, lane, &split, is_down)
                }
                None => Ternary::default(),
            });
        }
    }
    fits
}

/// Tries every split of sixteen elements with every shift of the halves. Neighbouring values differ by 1, so the
/// sums of three parts follow from two prefixes.
#[inline(always)]
fn best_of_two_shifts<V: Lanes>(halves: &[Prefixes<V>; 2]) -> Best<V> {
    const N: usize = 16;
    let zero = V::splat(0.0);
    // By half and shift: of all elements, and of those from the second place on.
    let mut all = [[(zero, zero); 2]; 2];
    let mut high = [[[zero; 2]; 2]; N + 1];
    for (half, sums) in halves.iter().enumerate() {
        for (shift, [_, b, c]) in VALUES.into_iter().enumerate() {
            let value = V::splat(c);
            all[half][shift] = (sums.x[N] * value, sums.w[N] * value * value);
            for (high, &w) in high.iter_mut().zip(&sums.w) {
                high[half][shift] = w * V::splat(b * b - c * c);
            }
        }
    }
    let mut best = Best::none();
    for step in [N / 4, 1] {
        best = best.just_below(halves[0].w[N] + halves[1].w[N]);
        for first in (step / 2..=N).step_by(step) {
            let mut low = [[zero; 2]; 2];
            for (half, sums) in halves.iter().enumerate() {
                for (shift, [a, b, _]) in VALUES.into_iter().enumerate() {
                    low[half][shift] = all[half][shift].1 + sums.w[first] * V::splat(a * a - b * b);
                }
            }
            for second in (first..=N).step_by(step) {
                let mut parts = [[(zero, zero); 2]; 2];
                for (half, sums) in halves.iter().enumerate() {
                    let prefixes = sums.x[first] + sums.x[second];
                    for shift in 0..2 {
                        parts[half][shift] = (
                            all[half][shift].0 - prefixes,
                            low[half][shift] + high[second][half][shift],
                        );
                    }
                }
                let mut tried = [(zero, zero); 4];
                for (variant, tried) in tried.iter_mut().enumerate() {
                    let (a, b) = (parts[0][variant / 2], parts[1][variant % 2]);
                    *tried = (a.0 + b.0, a.1 + b.1);
                }
                best.improve(tried, (first, second));
            }
        }
    }
    best
}

/// Rounds the groups of a split to points of the grid. `is_down` says which groups are shifted down.
#[inline(always)]
fn round<V: Lanes, const N: usize>(
    grid: &Grid<8>,
    x: &[f32; N],
    w: &[f32; N],
    ranks: &Ranks<N>,
    lane: usize,
    split: &Split,
    mut is_down: [bool; 4],
) -> Ternary {
    let mut quants = [0; N];
    for (quant, ranks) in quants.iter_mut().zip(ranks) {
        let rank = usize::from(ranks[lane]);
        *quant = usize::from(rank >= split.places[0]) + usize::from(rank >= split.places[1]);
    }
    let mut scale = split.scale;
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
            reach: 1.0 + SHIFT,
        };
        groups[g] = match grid.place(number) {
            Place::On(bytes) => bytes,
            Place::Between(neighbours) => {
                on_grid = false;
                best_neighbour::<V, 8>(neighbours, &target, scale)
            }
        };
        indices[g] = grid.index(groups[g]);
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
