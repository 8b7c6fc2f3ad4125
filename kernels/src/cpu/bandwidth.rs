//! Measures the memory bandwidth of the CPU backend's threads.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::time::Instant;

use super::Cpu;
use super::huge_pages::HugePages;
use super::repack::Line;
use crate::backend::Readers;

/// Upper limit of the bytes read per round: more than the caches hold.
const MAX_BYTES: usize = 512 << 20;
/// Minimum for a measurement: below it, the caches would be measured.
const MIN_BYTES: usize = 64 << 20;
/// At most 1 / `FREE_SHARE` of the free memory is allocated.
const FREE_SHARE: u64 = 8;
/// Cache lines per task.
const TASK_LINES: usize = 1 << 14;
/// Rounds. The fastest counts, because other programs only slow a round down.
const N_ROUNDS: usize = 5;

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
        let read = |i: usize| {
            black_box(sum(&lines[i * TASK_LINES..][..TASK_LINES]));
        };
        let round = || {
            let started = Instant::now();
            match (&self.helpers, readers) {
                (Some(helpers), Readers::All) => helpers.run(tasks, &read),
                _ => (0..tasks).for_each(read),
            }
            started.elapsed().as_secs_f64()
        };
        let fastest = (0..N_ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min);
        let n_bytes = tasks * TASK_LINES * size_of::<Line>();
        (fastest > 0.0).then(|| n_bytes as f64 / fastest)
    }
}

/// Sums the numbers of the lines in eight accumulators, which the compiler vectorises.
fn sum(lines: &[Line]) -> u64 {
    let mut sums = [0u64; 8];
    for line in lines {
        for (sum, number) in sums.iter_mut().zip(line.0.as_chunks().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*number));
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
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
                *number = u64::from(first + i as u8).to_le_bytes();
            }
            Line(line)
        };
        let lines = [1, 9, 17].map(line);
        assert_eq!(sum(&lines), 24 * 25 / 2);
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
