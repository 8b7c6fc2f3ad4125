//! Fits scales and points of a grid to blocks of magnitudes: the searches of IQ2 and IQ3. Every sum is in
//! ggml's order, because another order rounds differently.
//!
//! Lanes are candidates of the scale; in the search for the best neighbour at one scale, lanes are neighbours.

use super::fit_positive::fit_positive;
use super::grid::{Grid, Group, GroupBytes, Levels, Place, Target, nearest, odd_levels};
use super::lines::{Lines, best_neighbour};
use crate::float::nearest_int;
use crate::simd::lanes::{Lanes, energies};

/// The search of a type.
pub(crate) struct GridSearch {
    /// Numerator of the variance term of the weights, in mean squares of the superblock.
    pub(crate) sigma2: f32,
    /// Weights without importance.
    pub(crate) plain: PlainWeights,
    /// True if the number of signs in a group of eight is even.
    pub(crate) even_signs: bool,
    /// A sub-block whose largest number is below is zero.
    pub(crate) zero_below: f32,
    /// The base of candidate scales.
    pub(crate) base: Base,
    /// Candidates on each side of the first one.
    pub(crate) n_steps: i32,
    /// Distance of candidates.
    pub(crate) step: f32,
    /// The groups that are rounded again with the best scale.
    pub(crate) refit: Refit,
}

/// Weights of squared errors without importance.
#[derive(Clone, Copy)]
pub(crate) enum PlainWeights {
    /// As with an importance of 1; ggml refuses.
    Ones,
    /// `x^2`.
    Squares,
    /// `x^2` plus a quarter of the variance term.
    SquaresPlusQuarter,
}

/// The number that candidate scales are relative to.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Base {
    /// The largest number of the sub-block.
    Largest,
    /// The scale of the best fit without a grid, times the largest quant.
    Fitted,
}

/// Groups that are rounded again with the best scale.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Refit {
    /// All groups.
    All,
    /// Groups that were not on the grid.
    OffGrid,
    /// All groups if any was not on the grid.
    AllIfOffGrid,
}

/// A fitted superblock.
pub(crate) struct Superblock {
    /// The scale of each sub-block; 0 for a sub-block of zeros.
    pub(crate) scales: [f32; 16],
    /// The index of the point of each group.
    pub(crate) indices: [u16; 64],
    /// One bit per element, set for minus.
    pub(crate) signs: [u8; 32],
    /// The sub-blocks of zeros.
    pub(crate) is_zero: [bool; 16],
    /// The largest scale.
    pub(crate) max_scale: f32,
}

impl Superblock {
    /// Quantizes the scale of sub-block `b` to an odd multiple `2 s + 1` of 1/31 of the largest.
    #[inline(always)]
    pub(crate) fn scale_quant(&self, b: usize) -> u8 {
        scale_quant(self.scales[b], self.max_scale / 31.0, 15)
    }

    /// Returns the quantized scales, two per byte, the first in the low nibble; zeros if all are zero.
    #[inline(always)]
    pub(crate) fn scale_nibbles<const N: usize>(&self) -> [u8; N] {
        if self.max_scale == 0.0 {
            return [0; N];
        }
        std::array::from_fn(|i| self.scale_quant(2 * i) | (self.scale_quant(2 * i + 1) << 4))
    }

    /// Returns the codes of 32 elements: seven signs of each eight, and above them the quantized scale.
    #[inline(always)]
    pub(crate) fn codes(&self, b: usize) -> [u8; 4] {
        let mut codes = u32::from(self.scale_quant(b)) << 28;
        for (k, signs) in self.signs[4 * b..4 * b + 4].iter().enumerate() {
            codes |= u32::from(signs & 127) << (7 * k);
        }
        codes.to_le_bytes()
    }
}

/// Quantizes a scale to an odd multiple `2 s + 1` of `d`, `s` at most `max`.
#[inline(always)]
pub(crate) fn scale_quant(scale: f32, d: f32, max: i32) -> u8 {
    nearest_int(0.5 * (1.0 / d * scale - 1.0)).clamp(0, max) as u8
}

/// Returns the weights of the errors of superblocks. The variance term is `sigma2` times the mean square.
#[inline(always)]
pub(crate) fn weights<V: Lanes>(
    x: &[[f32; 256]],
    importance: Option<&[[f32; 256]]>,
    plain: PlainWeights,
    sigma2: f32,
) -> Vec<[f32; 256]> {
    let energies = energies::<V>(x.as_flattened(), 256);
    let mut all = vec![[0.0; 256]; x.len()];
    for (i, (x, weights)) in x.iter().zip(&mut all).enumerate() {
        let importance = importance.map(|row| &row[i % row.len()]);
        let sigma2 = V::splat(sigma2 * energies[i] / 256.0);
        for at in (0..256).step_by(V::N) {
            let x = V::load(&x[at..]);
            let squares = x * x;
            let weight = match (importance, plain) {
                (Some(importance), _) => V::load(&importance[at..]) * (sigma2 + squares).sqrt(),
                (None, PlainWeights::Ones) => (sigma2 + squares).sqrt(),
                (None, PlainWeights::Squares) => squares,
                (None, PlainWeights::SquaresPlusQuarter) => V::splat(0.25) * sigma2 + squares,
            };
            weight.store(&mut weights[at..]);
        }
    }
    all
}

/// The sub-blocks of a chunk, prepared for the search.
struct Prepared<const N: usize> {
    /// Magnitudes; with even signs, one of them may be negative.
    y: Vec<[f32; N]>,
    w: Vec<[f32; N]>,
    signs: Vec<u8>,
}

#[inline(always)]
fn prepare<V: Lanes, const N: usize>(
    x: &[[f32; 256]],
    importance: Option<&[[f32; 256]]>,
    search: &GridSearch,
) -> Prepared<N> {
    let weights = weights::<V>(x, importance, search.plain, search.sigma2);
    let mut prepared = Prepared {
        y: Vec::with_capacity(x.len() * 256 / N),
        w: Vec::with_capacity(x.len() * 256 / N),
        signs: Vec::with_capacity(x.len() * 32),
    };
    for (x, w) in x.iter().zip(&weights) {
        let mut y = *x;
        for y in y.chunks_exact_mut(V::N) {
            let x = V::load(y);
            V::select(V::splat(0.0).gt(x), V::splat(0.0) - x, x).store(y);
        }
        for (k, x) in x.as_chunks::<8>().0.iter().enumerate() {
            let mut signs = 0;
            for (i, x) in x.iter().enumerate() {
                signs |= u8::from(*x < 0.0) << i;
            }
            if search.even_signs && signs.count_ones() % 2 == 1 {
                let error = |i: usize| w[8 * k + i] * x[i] * x[i];
                let least = (1..8).fold(
                    0,
                    |least, i| if error(i) < error(least) { i } else { least },
                );
                y[8 * k + least] = -y[8 * k + least];
                signs ^= 1 << least;
            }
            prepared.signs.push(signs);
        }
        prepared.y.extend(y.as_chunks().0);
        prepared.w.extend(w.as_chunks().0);
    }
    prepared
}

/// Fits the superblocks of whole rows, and writes them with `pack`.
#[inline(always)]
pub(crate) fn fit_grid<B, V: Lanes, const N: usize, const G: usize>(
    grid: &Grid<G>,
    x: &[[f32; 256]],
    importance: Option<&[[f32; 256]]>,
    search: &GridSearch,
    out: &mut [B],
    pack: impl Fn(&Superblock) -> B,
) {
    let largest_quant = (Grid::<G>::RADIX - 1) as f32;
    let top = 2.0 * largest_quant + 1.0;
    let prepared = prepare::<V, N>(x, importance, search);
    let fitted = match search.base {
        Base::Largest => Vec::new(),
        Base::Fitted => fit_positive::<V, N>(&prepared.y, &prepared.w, Grid::<G>::RADIX as u8 + 1),
    };
    let n_sub = 256 / N;
    let mut candidates = Candidates {
        bytes: [[[0; 2 * MAX_CANDIDATES]; 4]; MAX_GROUPS],
        is_off_grid: [[0; 2 * MAX_CANDIDATES]; MAX_GROUPS],
    };
    for (i, out) in out.iter_mut().enumerate() {
        let mut block = Superblock {
            scales: [0.0; 16],
            indices: [0; 64],
            signs: [0; 32],
            is_zero: [true; 16],
            max_scale: 0.0,
        };
        for b in 0..n_sub {
            let at = i * n_sub + b;
            let (y, w) = (&prepared.y[at], &prepared.w[at]);
            let largest = y[1..]
                .iter()
                .fold(y[0], |max, &y| if max > y { max } else { y });
            if largest < search.zero_below {
                continue;
            }
            let (base, start) = match search.base {
                Base::Largest => (largest, largest / top),
                Base::Fitted => (fitted[at].0 * (largest_quant + 1.0), fitted[at].0),
            };
            if base <= 0.0 {
                continue;
            }
            let (mut scale, groups) =
                fit::<V, N, G>(grid, search, &mut candidates, y, w, base, start);
            let signs = &mut block.signs[b * N / 8..][..N / 8];
            signs.copy_from_slice(&prepared.signs[at * N / 8..][..N / 8]);
            if scale < 0.0 {
                scale = -scale;
                signs.iter_mut().for_each(|signs| *signs = !*signs);
            }
            let indices = &mut block.indices[b * N / G..][..N / G];
            for (index, bytes) in indices.iter_mut().zip(groups) {
                *index = grid.index(bytes);
            }
            block.scales[b] = scale;
            block.is_zero[b] = false;
            block.max_scale = if block.max_scale > scale {
                block.max_scale
            } else {
                scale
            };
        }
        *out = pack(&block);
    }
}

/// Maximum number of candidates, rounded up to whole vectors.
const MAX_CANDIDATES: usize = 32;

/// Maximum number of groups of a sub-block.
const MAX_GROUPS: usize = 8;

/// A number per candidate, with room to fill [`MAX_CANDIDATES`] from any candidate on.
type Row = [u8; 2 * MAX_CANDIDATES];

/// The groups of each candidate.
struct Candidates {
    bytes: [[Row; 4]; MAX_GROUPS],
    is_off_grid: [Row; MAX_GROUPS],
}

impl Candidates {
    /// Sets group `g` of candidate `t` and of those after it.
    #[inline(always)]
    fn set_from(&mut self, t: usize, g: usize, group: Group) {
        for (row, byte) in self.bytes[g].iter_mut().zip(group.bytes) {
            row[t..t + MAX_CANDIDATES].fill(byte);
        }
        self.is_off_grid[g][t..t + MAX_CANDIDATES].fill(u8::from(group.is_off_grid));
    }

    #[inline(always)]
    fn groups(&self, t: usize) -> [GroupBytes; MAX_GROUPS] {
        let mut groups = [[0; 4]; MAX_GROUPS];
        for (group, rows) in groups.iter_mut().zip(&self.bytes) {
            for (byte, row) in group.iter_mut().zip(rows) {
                *byte = row[t];
            }
        }
        groups
    }
}

/// The candidate scales of a sub-block, ascending inverses.
struct Scales {
    n: usize,
    inverses: [f32; MAX_CANDIDATES],
    scales: [f32; MAX_CANDIDATES],
    /// True if no number times an inverse reaches [`NEAR`].
    is_near: bool,
}

impl Scales {
    #[inline(always)]
    fn new<V: Lanes>(search: &GridSearch, top: f32, base: f32, y: &[f32]) -> Scales {
        let n = 2 * search.n_steps as usize + 1;
        let (mut inverses, mut scales) = ([0.0; MAX_CANDIDATES], [0.0; MAX_CANDIDATES]);
        for (t, inverse) in inverses.iter_mut().enumerate() {
            let step = (t.min(n - 1) as i32 - search.n_steps) as f32;
            *inverse = top + step * search.step;
        }
        for at in (0..n).step_by(V::N) {
            let inverse = V::load(&inverses[at..]) / V::splat(base);
            inverse.store(&mut inverses[at..]);
            (V::splat(1.0) / inverse).store(&mut scales[at..]);
        }
        let mut largest = V::splat(0.0);
        for y in y.chunks_exact(V::N) {
            largest = V::load(y).abs().max(largest);
        }
        let is_near = largest.largest() * inverses[n - 1] < NEAR;
        Scales {
            n,
            inverses,
            scales,
            is_near,
        }
    }
}

/// Sets group `g` of every candidate. Candidates whose groups have the same number, which are neighbours, are
/// rounded together.
#[inline(always)]
fn set_groups<V: Lanes, const G: usize>(
    grid: &Grid<G>,
    target: &Target<'_, G>,
    scales: &Scales,
    g: usize,
    candidates: &mut Candidates,
) {
    let n = scales.n;
    let lines = Lines::new::<V, G>(target, scales.scales[n - 1], scales.scales[0]);
    // What each candidate is rounded to, by its identity, after one that is none.
    let mut ids = [-1.0; 1 + MAX_CANDIDATES];
    let mut uncertain = 0;
    for at in (0..n).step_by(V::N) {
        let inverse = V::load(&scales.inverses[at..]);
        let numbers = match scales.is_near {
            true => near_number::<V, G>(target.x, inverse),
            false => group_number::<V, G>(target.x, inverse),
        };
        numbers.store(&mut ids[1 + at..]);
        let (mut id, mut rest) = (numbers, u64::MAX >> (64 - V::N));
        while rest != 0 {
            let number = ids[1 + at + rest.trailing_zeros() as usize];
            let same = numbers.eq(V::splat(number));
            rest &= !V::bits(same);
            if let Place::Between(neighbours) = grid.place(number as usize) {
                let scale = V::load(&scales.scales[at..]);
                let (place, certain) = lines.lowest_at::<V>(neighbours, scale);
                id = V::select(same, place + V::splat(neighbours.first as f32), id);
                uncertain |= (V::bits(same) & !V::bits(certain)) << at;
            }
        }
        id.store(&mut ids[1 + at..]);
    }
    let mut starts = uncertain | uncertain << 1;
    for at in (0..n).step_by(V::N) {
        let is_start = V::load(&ids[1 + at..]).ne(V::load(&ids[at..]));
        starts |= V::bits(is_start) << at;
    }
    starts &= (1 << n) - 1;
    while starts != 0 {
        let t = starts.trailing_zeros() as usize;
        starts &= starts - 1;
        let mut group = grid.group(ids[1 + t] as usize);
        if uncertain >> t & 1 == 1 {
            let number = group_number::<f32, G>(target.x, scales.inverses[t]);
            if let Place::Between(neighbours) = grid.place(number as usize) {
                group.bytes = nearest::<V, G>(neighbours, target, scales.scales[t]);
            }
        }
        candidates.set_from(t, g, group);
    }
}

/// Returns scale and groups of least weighted squared error among the candidates.
#[inline(always)]
fn fit<V: Lanes, const N: usize, const G: usize>(
    grid: &Grid<G>,
    search: &GridSearch,
    candidates: &mut Candidates,
    y: &[f32; N],
    w: &[f32; N],
    base: f32,
    start: f32,
) -> (f32, [GroupBytes; MAX_GROUPS]) {
    let top = (2 * Grid::<G>::RADIX - 1) as f32;
    let levels = const { odd_levels::<G>() };
    let (mut roots, mut wy) = ([0.0; N], [0.0; N]);
    for at in (0..N).step_by(V::N) {
        let w = V::load(&w[at..]);
        w.sqrt().store(&mut roots[at..]);
        (w * V::load(&y[at..])).store(&mut wy[at..]);
    }
    let target = |g: usize| Target {
        x: y.as_chunks().0.get(g).expect("a group"),
        weights: roots.as_chunks().0.get(g).expect("a group"),
        levels: &levels,
        reach: top,
    };
    let scales = Scales::new::<V>(search, top, base, y);
    let n = scales.n;
    for g in 0..N / G {
        set_groups::<V, G>(grid, &target(g), &scales, g, candidates);
    }
    let mut sums = [[0.0; MAX_CANDIDATES]; 2];
    for at in (0..n).step_by(V::N) {
        let rows = candidates.bytes.as_flattened();
        let (sum_xq, sum_q2) = weighted_sums::<V, N, G, _>(&levels, w, &wy, rows, at);
        sum_xq.store(&mut sums[0][at..]);
        sum_q2.store(&mut sums[1][at..]);
    }
    let (mut scale, mut best, mut chosen) = (start, 0.0, None);
    let [sums_xq, sums_q2] = sums;
    for (t, (sum_xq, sum_q2)) in sums_xq.into_iter().zip(sums_q2).enumerate().take(n) {
        if sum_q2 > 0.0 && sum_xq * sum_xq > best * sum_q2 {
            scale = sum_xq / sum_q2;
            best = scale * sum_xq;
            chosen = Some(t);
        }
    }
    let mut groups = chosen.map_or([[0; 4]; MAX_GROUPS], |t| candidates.groups(t));
    let mut off_grid = 0u8;
    if let Some(t) = chosen {
        for (g, row) in candidates.is_off_grid.iter().enumerate().take(N / G) {
            off_grid |= row[t] << g;
        }
    }
    let off_grid = match (search.refit, off_grid) {
        (Refit::All, _) => u8::MAX,
        (Refit::OffGrid, off_grid) => off_grid,
        (Refit::AllIfOffGrid, 0) if chosen.is_some() => 0,
        (Refit::AllIfOffGrid, _) => u8::MAX,
    };
    if off_grid != 0 && scale > 0.0 {
        let inverse = 1.0 / scale;
        for (g, group) in groups.iter_mut().enumerate().take(N / G) {
            if off_grid >> g & 1 == 1 {
                let number = group_number::<f32, G>(&y[g * G..], inverse) as usize;
                *group = match grid.place(number) {
                    Place::On(bytes) => bytes,
                    Place::Between(near) => best_neighbour::<V, G>(near, &target(g), scale),
                };
            }
        }
        let mut rows = [[0; 1]; 4 * MAX_GROUPS];
        for (row, byte) in rows.iter_mut().zip(groups.as_flattened()) {
            row[0] = *byte;
        }
        let (sum_xq, sum_q2) = weighted_sums::<f32, N, G, 1>(&levels, w, &wy, &rows, 0);
        if sum_q2 > 0.0 {
            scale = sum_xq / sum_q2;
        }
    }
    (scale, groups)
}

/// Returns the number of the group of quants nearest to the odd multiples of `1 / inverse`.
#[inline(always)]
fn group_number<V: Lanes, const G: usize>(y: &[f32], inverse: V) -> V {
    let (half, one) = (V::splat(0.5), V::splat(1.0));
    let mut number = V::splat(0.0);
    let mut place = 1;
    for &y in &y[..G] {
        let quant = half * (inverse * V::splat(y) - one);
        let quant = quant.round_to_quant(0, Grid::<G>::RADIX as i32 - 1);
        number = number + quant * V::splat(place as f32);
        place *= Grid::<G>::RADIX;
    }
    number
}

/// [`group_number`] if no product of `inverse` reaches [`NEAR`].
#[inline(always)]
fn near_number<V: Lanes, const G: usize>(y: &[f32], inverse: V) -> V {
    let mut number = V::splat(0.0);
    let mut place = 1.0;
    for &y in &y[..G] {
        let multiple = inverse * V::splat(y);
        if G == 8 {
            // From 2 to 4, both excluded, the quant is 1.
            let is_above = [
                multiple.gt(V::splat(2.0)),
                multiple.gt(V::splat(BELOW_FOUR)),
            ];
            for is_above in is_above {
                number = V::select(is_above, number + V::splat(place), number);
            }
        } else {
            let quant = (V::splat(0.5) * (multiple - V::splat(1.0))).round_within(0.0, 7.0);
            number = number + quant * V::splat(place);
        }
        place *= Grid::<G>::RADIX as f32;
    }
    number
}

/// A bound of numbers that are rounded without care for large ones.
const NEAR: f32 = (1 << 22) as f32;

/// The largest number below 4.
const BELOW_FOUR: f32 = 4.0 - 2.0 * f32::EPSILON;

/// Sums `w y q` and `w q q` over the values `q` of the quants, for the candidates from `at` on.
#[inline(always)]
fn weighted_sums<V: Lanes, const N: usize, const G: usize, const WIDTH: usize>(
    levels: &Levels,
    w: &[f32; N],
    wy: &[f32; N],
    rows: &[[u8; WIDTH]],
    at: usize,
) -> (V, V) {
    let (mut sum_xq, mut sum_q2) = (V::splat(0.0), V::splat(0.0));
    for i in 0..N {
        let q = V::look_up(&levels[i % (G / 4)], &rows[i / (G / 4)][at..]);
        sum_xq = sum_xq + V::splat(wy[i]) * q;
        sum_q2 = sum_q2 + V::splat(w[i]) * q * q;
    }
    (sum_xq, sum_q2)
}
