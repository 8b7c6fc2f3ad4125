//! Lines that products with few activation rows prefetch while they multiply a panel, or rows of floats.

use std::ops::Range;

use super::cpu_fused::group_tiles;
use crate::cpu::prefetch::Prefetching;
use crate::cpu::repack::{Geometry, Interleaved, Line, Panel};
use crate::simd::packed::{MAX_FUSED, MAX_PASSES, Packed, Prefetches, ROWS, array};
use crate::simd::{LANES, Simd};
use crate::types::common::unpack::Unpack;

/// Lines that a pass over a panel prefetches.
#[derive(Clone, Copy)]
pub(super) struct PassPrefetches {
    distances: Distances,
    /// Instead of the lines at a distance.
    streams: Option<Streams>,
    /// Lines of a panel.
    len: usize,
    /// End of the first panel.
    end: *const Line,
}

impl PassPrefetches {
    /// Returns the lines of one of several passes over `P` panels that start at `row`, for `n` activation rows in all.
    /// `rows` are the weight rows that the thread multiplies one after another.
    #[inline(always)]
    pub(super) fn of_pass<W: Packed, T: Unpack, const P: usize>(
        prefetching: Prefetching,
        n: usize,
        (pass, n_pass): (usize, usize),
        panels: [Panel<'_>; P],
        n_tile: usize,
        row: usize,
        rows: &Range<usize>,
    ) -> Self {
        let distance = prefetching.distance().unwrap_or(Prefetching::WIDE_DISTANCE);
        let has_streams = prefetching == Prefetching::Streams && n_pass == 1;
        let len = panels[0].len();
        let streams = match has_streams && waits_for_memory::<T>(n) {
            true => {
                let number = (row - rows.start) / (P * ROWS);
                let n_panel = rows.len().div_ceil(P * ROWS);
                let n_step = const { Shape::of::<W, T>(P) }.n_step(n_tile / group_tiles::<W, T>());
                Streams::of_panel(panels[0].start(), P * len, n_step, (number, n_panel))
            }
            false => None,
        };
        PassPrefetches {
            distances: Distances::of_pass(pass, n_pass, distance, len, P),
            streams,
            len,
            end: panels[0].start().wrapping_add(len),
        }
    }

    /// Returns whether a pass with one row prefetches nothing.
    #[inline(always)]
    pub(super) fn is_none(self) -> bool {
        self.distances.short == 0
    }

    /// Returns the distance at which a pass with `N` rows prefetches the lines of a group of tiles.
    #[inline(always)]
    pub(super) fn distance<const N: usize>(self, group: usize) -> usize {
        self.distances.of_group::<N>(group)
    }

    /// Returns the lines to prefetch while group `group` of a block of `P` panels is multiplied by `N` rows, group `number`
    /// of the panels. `block` is that of the first.
    #[inline(always)]
    pub(super) fn of_group<W: Packed, T: Unpack, const N: usize, const P: usize>(
        self,
        block: Interleaved<'_, T>,
        group: usize,
        number: usize,
    ) -> Prefetches {
        match self.streams {
            // A constant condition: with an unknown stride, products that compute longer take up to a tenth more time.
            Some(streams) if const { waits_for_memory::<T>(N) } => {
                streams.of_group(const { Shape::of::<W, T>(P) }, number)
            }
            _ => {
                let n_line = const { Shape::of::<W, T>(1) }.n_line;
                let line = block.address(group * n_line + self.distance::<N>(number));
                if P == 1 {
                    return Prefetches::consecutive(line.cast());
                }
                self.of_pair(line)
            }
        }
    }

    /// Returns the lines of a pair of panels for a line at a distance from one of the first panel.
    #[inline(always)]
    fn of_pair(self, line: *const Line) -> Prefetches {
        // After the first panel comes the second, which is in the caches, and then the next pair.
        let line = match line >= self.end {
            true => line.wrapping_add(self.len),
            false => line,
        };
        Prefetches::of_streams(line.cast(), 2, self.len * size_of::<Line>())
    }
}

/// Returns whether products with `n` activation rows take less time for arithmetic than for reading blocks `T`.
const fn waits_for_memory<T: Unpack>(n: usize) -> bool {
    /// Multiply-adds per cache line.
    const MAX_WORK: usize = 384;
    let weights = T::TILES * LANES * ROWS;
    n * weights <= MAX_WORK * Geometry::of::<T>().max_lines()
}

/// Distances at which a pass over a panel prefetches, in cache lines.
#[derive(Clone, Copy)]
struct Distances {
    /// The distance of a pass with less than half of [`MAX_FUSED`] rows.
    short: usize,
    /// Distances of consecutive groups of tiles; 0 for groups of other passes, whose lines are in the caches.
    by_group: [usize; MAX_PASSES],
}

impl Distances {
    /// Returns the distances of one of several passes over `n_panel` panels of `len` lines. A single pass prefetches
    /// `distance` lines ahead. Of several, each prefetches the lines of its groups in the next panels, so that memory is
    /// read all the time. Nothing is prefetched if `distance` is 0.
    #[inline(always)]
    fn of_pass(pass: usize, n_pass: usize, distance: usize, len: usize, n_panel: usize) -> Self {
        let next = if distance == 0 { 0 } else { len };
        Distances {
            // It multiplies one panel after the other.
            short: if pass == 0 { distance } else { n_panel * next },
            by_group: array(|group| match (n_pass, group % n_pass) {
                (1, _) => distance,
                (_, owner) if owner == pass => next,
                _ => 0,
            }),
        }
    }

    /// Returns the distance for a group in a pass with `N` rows. A pass with less than half of the rows of others, which
    /// is the last one, is too short to share the next panel.
    #[inline(always)]
    fn of_group<const N: usize>(self, group: usize) -> usize {
        match 2 * N {
            MAX_FUSED.. => self.by_group[group % MAX_PASSES],
            _ => self.short,
        }
    }
}

/// Minimum number of cache lines from a stream to the next: a page of 4 KiB, in which hardware prefetchers follow one
/// stream.
const MIN_STRIDE: usize = 64;

/// Fewest windows of a thread's panels for which streams are faster: nothing prefetches the first.
const MIN_WINDOWS: usize = 16;

/// The lines of a window, some consecutive panels, as streams of equal length, whose lines are interleaved. They are
/// prefetched while the window before it is multiplied.
#[derive(Clone, Copy)]
struct Streams {
    /// The line of the first stream for the first group of tiles of the panel that is multiplied.
    first: *const Line,
    /// Lines from a stream to the next.
    stride: usize,
}

impl Streams {
    /// Returns the panels of a window.
    #[inline(always)]
    fn window(n_step: usize) -> usize {
        MIN_STRIDE.div_ceil(n_step.max(1))
    }

    /// Returns the streams for panel `number` of `n_panel` consecutive ones, which starts at `start` and has `len` lines,
    /// `n_step` of each stream; `None` if there are few windows. In the last window, and where the next one is shorter,
    /// these are lines of the panel itself, which are in the caches.
    #[inline(always)]
    fn of_panel(
        start: *const Line,
        len: usize,
        n_step: usize,
        (number, n_panel): (usize, usize),
    ) -> Option<Streams> {
        let window = Streams::window(n_step);
        if n_panel < MIN_WINDOWS * window {
            return None;
        }
        let at = number % window;
        let next = number - at + window;
        let n_next = window.min(n_panel.saturating_sub(next));
        let (first, stride) = match at < n_next {
            true => ((window - at) * len + at * n_step, n_next * n_step),
            false => (0, 0),
        };
        Some(Streams {
            first: start.wrapping_add(first),
            stride,
        })
    }

    /// Returns the lines to prefetch while group `number` of the panel is multiplied.
    #[inline(always)]
    fn of_group(self, shape: Shape, number: usize) -> Prefetches {
        let line = self.first.wrapping_add(shape.n_step(number));
        let stride = self.stride * size_of::<Line>();
        Prefetches::of_streams(line.cast(), shape.n_stream, stride)
    }
}

/// Lines that a product prefetches while it multiplies some weight rows of floats.
#[derive(Clone, Copy)]
pub(super) struct RowPrefetches {
    /// The first line to prefetch, if there are no streams.
    first: *const Line,
    streams: Option<Streams>,
}

impl RowPrefetches {
    /// Groups have one line of each stream.
    const SHAPE: Shape = Shape::new(8);

    /// Returns the lines for `n` rows from row `first` on, whose bytes are given. `rows` are the weight rows that the thread
    /// multiplies one after another.
    #[inline(always)]
    pub(super) fn of_rows(
        prefetching: Prefetching,
        bytes: &[u8],
        (first, n): (usize, usize),
        rows: &Range<usize>,
    ) -> Option<Self> {
        let start = bytes.as_ptr().cast::<Line>();
        let streams = match prefetching {
            Prefetching::Distance(0) => return None,
            Prefetching::Distance(_) => None,
            Prefetching::Streams => {
                let len = n * bytes.len() / size_of::<Line>();
                let n_step = len.div_ceil(RowPrefetches::SHAPE.n_line);
                let place = ((first - rows.start) / n, rows.len().div_ceil(n));
                Streams::of_panel(start, len, n_step, place)
            }
        };
        let distance = prefetching.distance().unwrap_or(Prefetching::WIDE_DISTANCE);
        Some(RowPrefetches {
            first: start.wrapping_add(distance),
            streams,
        })
    }

    /// Prefetches as many lines as chunk `number` of `BYTES` has, before it is multiplied. `lines` are those of the group
    /// that are left.
    #[inline(always)]
    pub(super) fn prefetch<S: Simd, const BYTES: usize>(
        self,
        simd: S,
        number: usize,
        lines: &mut Prefetches,
    ) {
        let n_line = const { BYTES / size_of::<Line>() };
        let n_chunk = const { RowPrefetches::SHAPE.n_line / (BYTES / size_of::<Line>()) };
        if number.is_multiple_of(n_chunk) {
            *lines = self.of_group(number / n_chunk);
        }
        lines.prefetch(simd, n_line);
    }

    /// Returns the lines of a group.
    #[inline(always)]
    fn of_group(self, number: usize) -> Prefetches {
        match self.streams {
            Some(streams) => streams.of_group(RowPrefetches::SHAPE, number),
            None => {
                let line = self
                    .first
                    .wrapping_add(number * RowPrefetches::SHAPE.n_line);
                Prefetches::consecutive(line.cast())
            }
        }
    }
}

/// Streams among the lines of a type.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Lines per group of tiles.
    pub(super) n_line: usize,
    /// Streams of which each group prefetches lines, a divisor of `n_line`.
    n_stream: usize,
}

impl Shape {
    /// The lines of a group of tiles of `panels` panels.
    pub(super) const fn of<W: Packed, T: Unpack>(panels: usize) -> Shape {
        let n_tile = group_tiles::<W, T>();
        let n_line = Geometry::of::<T>().max_lines().div_ceil(T::TILES / n_tile);
        // Each tile has four pairs of words.
        assert!(n_line <= 4 * n_tile * Prefetches::MAX_COUNT);
        Shape::new(panels * n_line)
    }

    const fn new(n_line: usize) -> Shape {
        /// Hardware prefetchers follow about thirty streams, half of them those of another thread of the core.
        const MAX_STREAMS: usize = 16;
        let mut n_stream = n_line;
        while n_stream > MAX_STREAMS || !n_line.is_multiple_of(n_stream) {
            n_stream -= 1;
        }
        Shape { n_line, n_stream }
    }

    /// Returns the lines of each stream that `n_group` groups prefetch.
    const fn n_step(self, n_group: usize) -> usize {
        n_group * (self.n_line / self.n_stream)
    }
}

/// Returns how many lines of a group of `n_line` are prefetched after one of `n_step` steps.
#[inline(always)]
pub(super) const fn share(n_line: usize, step: usize, n_step: usize) -> usize {
    (step + 1) * n_line / n_step - step * n_line / n_step
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn steps_share_all_lines() {
        for (n_line, n_step) in [(9, 64), (9, 16), (27, 128), (9, 8), (9, 4), (5, 8), (0, 32)] {
            let shares = Vec::from_iter((0..n_step).map(|step| share(n_line, step, n_step)));
            assert!(shares.iter().all(|&n| n <= Prefetches::MAX_COUNT));
            assert_eq!(shares.iter().sum::<usize>(), n_line);
        }
    }

    proptest! {
        /// Groups have up to `n_line` lines, and panels up to one line per group less.
        #[test]
        fn streams_have_the_lines_of_the_next_window(
            n_line in 1..40usize,
            n_group in 1..40usize,
            n_window in 0..24usize,
            n_more in 0..4usize,
            missing in 0..2usize,
        ) {
            let shape = Shape::new(n_line);
            let n_step = shape.n_step(n_group);
            let len = n_group * n_line - missing * (n_group - 1);
            let window = Streams::window(n_step);
            let n_panel = n_window * window + n_more % window;
            // The panel during which each line is prefetched first.
            let mut found = HashMap::new();
            for number in 0..n_panel {
                let start = std::ptr::null::<Line>().wrapping_add(number * len);
                let streams = Streams::of_panel(start, len, n_step, (number, n_panel));
                prop_assert_eq!(streams.is_some(), n_window >= MIN_WINDOWS);
                let Some(streams) = streams else { return Ok(()) };
                for group in 0..n_group {
                    let mut lines = streams.of_group(shape, group);
                    for _ in 0..n_line {
                        let line = lines.next().addr() / size_of::<Line>();
                        found.entry(line).or_insert(number);
                    }
                }
            }
            for line in window * len..n_panel * len {
                let during = found.get(&line).copied().unwrap_or(n_panel);
                prop_assert!(during < line / len, "line {line} in panel {during}");
            }
            // Streams are as long as those of the longest groups.
            let end = n_panel * len + window * n_step * shape.n_stream;
            prop_assert!(found.keys().all(|&line| line < end));
        }
    }

    proptest! {
        /// Rows of floats, one or four at a time. Those of a thread begin at a multiple of four.
        #[test]
        fn rows_prefetch_the_lines_of_later_rows(
            n_line in 1..100usize,
            n_row in prop::sample::select(&[1, 4][..]),
            n_more in 0..40usize,
            distance in 1..200usize,
        ) {
            let row_bytes = n_line * size_of::<Line>();
            let len = n_row * n_line;
            let n_group = len.div_ceil(RowPrefetches::SHAPE.n_line);
            let first_window = Streams::window(n_group) * len;
            let n_rows = n_row * MIN_WINDOWS * Streams::window(n_group) + n_more;
            let bytes = vec![0; (4 + n_rows) * row_bytes];
            let rows = 4..4 + n_rows;
            let number = |line: *const u8| {
                (line.addr() - bytes[4 * row_bytes..].as_ptr().addr()) / size_of::<Line>()
            };
            for prefetching in [Prefetching::Streams, Prefetching::Distance(distance)] {
                // The row during which each line is prefetched first.
                let mut found = HashMap::new();
                for first in rows.clone().step_by(n_row) {
                    let bytes = &bytes[first * row_bytes..][..row_bytes];
                    let prefetches = RowPrefetches::of_rows(prefetching, bytes, (first, n_row), &rows);
                    let prefetches = prefetches.expect("lines to prefetch");
                    for group in 0..n_group {
                        let mut lines = prefetches.of_group(group);
                        for _ in 0..RowPrefetches::SHAPE.n_line {
                            found.entry(number(lines.next())).or_insert(first - rows.start);
                        }
                    }
                }
                let (start, before) = match prefetching {
                    Prefetching::Streams => (first_window, 0),
                    Prefetching::Distance(distance) => (distance, 1),
                };
                for line in start..n_rows * n_line {
                    let during = found.get(&line).copied().unwrap_or(n_rows);
                    prop_assert!(during < line / n_line + before, "line {line} in row {during}");
                }
            }
            let bytes = &bytes[..row_bytes];
            let none = RowPrefetches::of_rows(Prefetching::Distance(0), bytes, (4, n_row), &rows);
            prop_assert!(none.is_none());
        }
    }

    #[test]
    fn streams_are_a_page_apart() {
        for n_step in [1, 16, 48, 64, 100] {
            let streams = Streams::of_panel(std::ptr::null(), 9 * n_step, n_step, (0, 2000));
            assert!(streams.is_some_and(|streams| streams.stride >= MIN_STRIDE));
        }
    }

    #[test]
    fn pairs_prefetch_lines_of_both_panels() {
        let start = std::ptr::null::<Line>();
        for distance in [0, 96, NEXT] {
            let pass = PassPrefetches {
                distances: Distances::of_pass(0, 1, distance, NEXT, 2),
                streams: None,
                len: NEXT,
                end: start.wrapping_add(NEXT),
            };
            for line in 0..NEXT {
                let mut lines = pass.of_pair(start.wrapping_add(line + pass.distance::<4>(0)));
                for panel in 0..2 {
                    let found = lines.next().addr() / size_of::<Line>();
                    let (number, at) = (found / NEXT, found % NEXT);
                    assert_eq!(number % 2, panel);
                    let expected = (line + distance) % NEXT;
                    assert_eq!((number / 2 * NEXT + at, at), (line + distance, expected));
                }
            }
        }
    }

    /// The distances of a group in each pass.
    fn distances<const N: usize>(n_pass: usize, distance: usize, group: usize) -> Vec<usize> {
        let pass = |pass| Distances::of_pass(pass, n_pass, distance, NEXT, 1).of_group::<N>(group);
        (0..n_pass).map(pass).collect()
    }

    /// Lines of a panel.
    const NEXT: usize = 144;

    #[test]
    fn one_pass_prefetches_each_group_of_the_next_panel() {
        for group in 0..12 {
            assert_eq!(distances::<MAX_FUSED>(1, 64, group), [64]);
            for n_pass in 2..=MAX_PASSES {
                let found = distances::<MAX_FUSED>(n_pass, 64, group);
                let prefetched = found.into_iter().filter(|&distance| distance > 0);
                assert_eq!(prefetched.collect::<Vec<_>>(), [NEXT]);
            }
        }
    }

    #[test]
    fn a_short_pass_prefetches_the_whole_next_panel() {
        assert_eq!(distances::<1>(1, 64, 0), [64]);
        for group in 0..4 {
            assert_eq!(distances::<1>(2, 64, group)[1], NEXT);
        }
    }

    #[test]
    fn a_distance_of_0_prefetches_nothing() {
        for n_pass in 1..=MAX_PASSES {
            for group in 0..4 {
                assert_eq!(distances::<MAX_FUSED>(n_pass, 0, group), vec![0; n_pass]);
                assert_eq!(distances::<2>(n_pass, 0, group), vec![0; n_pass]);
            }
        }
    }
}
