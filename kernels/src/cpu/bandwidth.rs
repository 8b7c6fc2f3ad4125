//! Measures the memory bandwidth of the CPU backend's threads.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::time::Instant;

use super::Cpu;
use super::huge_pages::HugePages;
use super::pool::Distribution;
use super::repack::Line;
use crate::backend::Readers;
use crate::simd::packed::{Packed, each};
use crate::simd::{Kernel, Simd};

/// Upper limit of the bytes read per round: more than the caches hold.
const MAX_BYTES: usize = 512 << 20;
/// Minimum for a measurement: below it, the caches would be measured.
const MIN_BYTES: usize = 64 << 20;
/// At most 1 / `FREE_SHARE` of the free memory is allocated.
const FREE_SHARE: u64 = 8;
/// Cache lines per task.
const TASK_LINES: usize = 1 << 14;
/// Cache lines between a load and a prefetch.
const DISTANCE: usize = 64;
/// Rounds without and with prefetches. The fastest counts, because other programs only slow a round down, and CPUs
/// differ in what is faster.
const N_ROUNDS: usize = 6;

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
        let round = |round: usize| {
            let read = |i: usize| {
                let lines = &lines[i * TASK_LINES..][..TASK_LINES];
                let sum = match round % 2 {
                    0 => self.sum::<false>(lines),
                    _ => self.sum::<true>(lines),
                };
                black_box(sum);
            };
            let started = Instant::now();
            match (&self.helpers, readers) {
                (Some(helpers), Readers::All) => helpers.run(tasks, Distribution::default(), &read),
                _ => (0..tasks).for_each(read),
            }
            started.elapsed().as_secs_f64()
        };
        let fastest = (0..N_ROUNDS).map(round).fold(f64::INFINITY, f64::min);
        let n_bytes = tasks * TASK_LINES * size_of::<Line>();
        (fastest > 0.0).then(|| n_bytes as f64 / fastest)
    }

    /// Sums the numbers of the lines, with the registers of products: smaller ones load a line several times, so
    /// that fewer lines are on their way from memory.
    fn sum<const PREFETCH: bool>(&self, lines: &[Line]) -> u32 {
        let mut sum = 0;
        let read = ReadLines::<PREFETCH> {
            lines,
            sum: &mut sum,
        };
        self.implementation.run(read);
        sum
    }
}

/// Sums 32-bit numbers.
struct ReadLines<'a, const PREFETCH: bool> {
    lines: &'a [Line],
    sum: &'a mut u32,
}

impl<const PREFETCH: bool> Kernel for ReadLines<'_, PREFETCH> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // Several sums, so that no addition waits for the one before.
        let mut sums = [simd.splat_word(0); 4];
        let (fours, rest) = self.lines.as_chunks::<4>();
        for lines in fours {
            sums = each!(4, i => add_line::<S, PREFETCH>(simd, sums[i], &lines[i]));
        }
        for line in rest {
            sums[0] = add_line::<S, PREFETCH>(simd, sums[0], line);
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

#[inline(always)]
fn add_line<W: Packed, const PREFETCH: bool>(simd: W, sum: W::Words, line: &Line) -> W::Words {
    if PREFETCH {
        let ahead = std::ptr::from_ref(line).wrapping_add(DISTANCE);
        simd.prefetch_early(ahead.cast());
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
        let lines = [1, 17, 33, 49, 65].map(line);
        for isa in Cpu::available() {
            let config = CpuConfig {
                threads: 1,
                isa: Some(isa),
                ..CpuConfig::default()
            };
            let cpu = Cpu::new(config).unwrap();
            assert_eq!(cpu.sum::<false>(&lines), 80 * 81 / 2, "{isa}");
            assert_eq!(cpu.sum::<true>(&lines), 80 * 81 / 2, "{isa}");
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
