//! Measures the memory bandwidth of the CPU backend's threads.

use std::hint::black_box;
use std::time::Instant;

use super::Cpu;

/// Upper limit of the bytes read per round: more than the caches hold.
const MAX_BYTES: usize = 512 << 20;
/// Minimum for a measurement: below it, the caches would be measured.
const MIN_BYTES: usize = 64 << 20;
/// At most 1 / `FREE_SHARE` of the free memory is allocated.
const FREE_SHARE: u64 = 8;
/// `u64` numbers per task.
const TASK_NUMBERS: usize = 1 << 17;
/// Rounds. The fastest counts, because other programs only slow a round down.
const N_ROUNDS: usize = 5;

impl Cpu {
    /// Returns the bytes per second that all threads together read from memory; `None` if too little memory
    /// is free to measure it.
    pub(crate) fn measure_read_rate(&self, free_bytes: Option<u64>) -> Option<f64> {
        let free = free_bytes.unwrap_or(u64::MAX) / FREE_SHARE;
        let n_bytes = usize::try_from(free).unwrap_or(MAX_BYTES).min(MAX_BYTES);
        if n_bytes < MIN_BYTES {
            return None;
        }
        // Ones, because untouched zero pages would all map to one physical page.
        let mut numbers = vec![1u64; n_bytes / size_of::<u64>()];
        numbers.resize(numbers.len() / TASK_NUMBERS * TASK_NUMBERS, 1);
        let tasks = numbers.len() / TASK_NUMBERS;
        let read = |i: usize| {
            let part = &numbers[i * TASK_NUMBERS..][..TASK_NUMBERS];
            black_box(sum(part));
        };
        let round = || {
            let started = Instant::now();
            match &self.helpers {
                Some(helpers) => helpers.run(tasks, &read),
                None => (0..tasks).for_each(read),
            }
            started.elapsed().as_secs_f64()
        };
        let fastest = (0..N_ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min);
        let n_bytes = numbers.len() * size_of::<u64>();
        (fastest > 0.0).then(|| n_bytes as f64 / fastest)
    }
}

/// Sums numbers in eight accumulators, which the compiler vectorises.
fn sum(numbers: &[u64]) -> u64 {
    let (rows, rest) = numbers.as_chunks::<8>();
    let mut sums = [0u64; 8];
    for row in rows {
        for (sum, number) in sums.iter_mut().zip(row) {
            *sum = sum.wrapping_add(*number);
        }
    }
    sums.iter().chain(rest).fold(0, |a, b| a.wrapping_add(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuConfig;

    #[test]
    fn every_number_is_read() {
        let numbers: Vec<u64> = (1..=1003).collect();
        assert_eq!(sum(&numbers), 1003 * 1004 / 2);
    }

    #[test]
    fn without_room_nothing_is_measured() {
        let config = CpuConfig {
            threads: 2,
            ..CpuConfig::default()
        };
        let cpu = Cpu::new(config).unwrap();
        assert_eq!(cpu.measure_read_rate(Some(MIN_BYTES as u64)), None);
        let room = (MIN_BYTES as u64) * FREE_SHARE;
        assert!(cpu.measure_read_rate(Some(room)).unwrap() > 0.0);
    }
}
