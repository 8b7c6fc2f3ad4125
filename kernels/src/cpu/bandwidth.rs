//! Measures the memory bandwidth of the CPU backend's threads.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::time::Instant;

use super::Cpu;
use super::huge_pages::HugePages;
use super::pool::Distribution;
use super::prefetch::{CHOICES, Prefetching};
use super::repack::Line;
use crate::backend::Readers;
use crate::simd::packed::{Packed, Prefetches, each};
use crate::simd::{Kernel, Simd};

/// Upper limit of the bytes read per round: more than the caches hold.
const MAX_BYTES: usize = 512 << 20;
/// Minimum for a measurement: below it, the caches would be measured.
const MIN_BYTES: usize = 64 << 20;
/// At most 1 / `FREE_SHARE` of the free memory is allocated.
const FREE_SHARE: u64 = 8;
/// Cache lines per task.
const TASK_LINES: usize = 1 << 14;
/// Rounds with each of [`CHOICES`]. The fastest of all counts, because other programs only slow a round down, and CPUs
/// differ in what is faster.
const N_ROUNDS: usize = 3;

impl Cpu {
    /// Returns the bytes per second that one thread or all threads together read from memory; `None` if too
    /// little memory is free to measure it.
    pub(crate) fn measure_read_rate(
        &self,
        free_bytes: Option<u64>,
        readers: Readers,
    ) -> Option<f64> {
        let free = free_bytes.unwrap_or(u64::MAX) / FREE_SHARE;
        let n_bytes = usize::try_from(free).unwrap_or(MAX_BYTES).min(MAX_BYTES);
        if n_bytes < MIN_BYTES {
            return None;
        }
        // Like weights, in huge pages if there are some. Written, because untouched pages would all map to
        // one physical page.
        let mut lines = HugePages::default().take(n_bytes / size_of::<Line>());
        lines.uninit().fill(MaybeUninit::new(Line([1; 64])));
        // SAFETY: all lines have just been written.
        let lines = unsafe { lines.get() };
        let tasks = lines.len() / TASK_LINES;
        let round = |prefetching: Prefetching| {
            let read = |i: usize| {
                black_box(self.sum(&lines[i * TASK_LINES..][..TASK_LINES], prefetching));
            };
            let started = Instant::now();
            match (&self.helpers, readers) {
                (Some(helpers), Readers::All) => helpers.run(tasks, Distribution::default(), &read),
                _ => (0..tasks).for_each(read),
            }
            started.elapsed().as_secs_f64()
        };
        let rounds = (0..N_ROUNDS).flat_map(|_| CHOICES);
        let fastest = rounds.map(round).fold(f64::INFINITY, f64::min);
        let n_bytes = tasks * TASK_LINES * size_of::<Line>();
        (fastest > 0.0).then(|| n_bytes as f64 / fastest)
    }

    /// Sums the numbers of the lines, with the registers of products: smaller ones load a line several times, so
    /// that fewer lines are on their way from memory.
    fn sum(&self, lines: &[Line], prefetching: Prefetching) -> u32 {
        let mut sum = 0;
        let read = ReadLines {
            lines,
            prefetching,
            sum: &mut sum,
        };
        self.implementation.run(read);
        sum
    }
}

/// Sums 32-bit numbers.
struct ReadLines<'a> {
    lines: &'a [Line],
    prefetching: Prefetching,
    sum: &'a mut u32,
}

impl Kernel for ReadLines<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        /// Streams, and the lines of each, one page of 4 KiB.
        const N_STREAM: usize = 8;
        const STREAM_LINES: usize = 64;
        let mut sums = [simd.splat_word(0); 4];
        match self.prefetching {
            Prefetching::Distance(0) => {
                let mut none = Prefetches::NONE;
                add_lines::<S, false>(simd, self.lines, &mut none, &mut sums);
            }
            Prefetching::Distance(distance) => {
                let ahead = self.lines.as_ptr().wrapping_add(distance);
                let mut prefetches = Prefetches::consecutive(ahead.cast());
                add_lines::<S, true>(simd, self.lines, &mut prefetches, &mut sums);
            }
            Prefetching::Streams => {
                for lines in self.lines.chunks(N_STREAM * STREAM_LINES) {
                    let next = lines.as_ptr().wrapping_add(N_STREAM * STREAM_LINES);
                    let stride = STREAM_LINES * size_of::<Line>();
                    let mut prefetches = Prefetches::of_streams(next.cast(), N_STREAM, stride);
                    add_lines::<S, true>(simd, lines, &mut prefetches, &mut sums);
                }
            }
        }
        for sum in sums {
            let mut words = Line::ZERO;
            simd.store_words(sum, &mut words.0);
            for word in words.0.as_chunks().0 {
                *self.sum = self.sum.wrapping_add(u32::from_le_bytes(*word));
            }
        }
    }
}

/// Adds lines to several sums, so that no addition waits for the one before, and prefetches as many.
#[inline(always)]
fn add_lines<W: Packed, const PREFETCH: bool>(
    simd: W,
    lines: &[Line],
    prefetches: &mut Prefetches,
    sums: &mut [W::Words; 4],
) {
    // As many as there are streams, so that the number of the next stream is a constant.
    let (eights, rest) = lines.as_chunks::<8>();
    for lines in eights {
        *sums = each!(4, i => add_line::<W, PREFETCH>(simd, sums[i], &lines[i], prefetches));
        *sums = each!(4, i => add_line::<W, PREFETCH>(simd, sums[i], &lines[4 + i], prefetches));
    }
    for line in rest {
        sums[0] = add_line::<W, PREFETCH>(simd, sums[0], line, prefetches);
    }
}

#[inline(always)]
fn add_line<W: Packed, const PREFETCH: bool>(
    simd: W,
    sum: W::Words,
    line: &Line,
    prefetches: &mut Prefetches,
) -> W::Words {
    if PREFETCH {
        prefetches.prefetch(simd, 1);
    }
    simd.add(sum, simd.load_words(&line.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuConfig;

    #[test]
    fn every_number_is_read() {
        let line = |first: u8| {
            let mut line = [0; 64];
            for (i, number) in line.as_chunks_mut().0.iter_mut().enumerate() {
                *number = u32::from(first + i as u8).to_le_bytes();
            }
            Line(line)
        };
        let lines = Vec::from_iter((0..13).map(|i| line(1 + 16 * i)));
        for isa in Cpu::available() {
            let config = CpuConfig {
                threads: 1,
                isa: Some(isa),
                ..CpuConfig::default()
            };
            let cpu = Cpu::new(config).unwrap();
            for prefetching in CHOICES {
                assert_eq!(cpu.sum(&lines, prefetching), 208 * 209 / 2, "{isa}");
            }
        }
    }

    #[test]
    fn without_room_nothing_is_measured() {
        let config = CpuConfig {
            threads: 2,
            ..CpuConfig::default()
        };
        let cpu = Cpu::new(config).unwrap();
        assert_eq!(
            cpu.measure_read_rate(Some(MIN_BYTES as u64), Readers::All),
            None
        );
        let room = (MIN_BYTES as u64) * FREE_SHARE;
        for readers in [Readers::One, Readers::All] {
            assert!(cpu.measure_read_rate(Some(room), readers).unwrap() > 0.0);
        }
    }
}
