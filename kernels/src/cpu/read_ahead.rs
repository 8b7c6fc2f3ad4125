//! Read-ahead: a thread that waits for others prefetches what it will read in the next operation.
//!
//! Memory would be idle while one thread normalises a row or finishes the last task of a product. Passes of a model
//! read its weights and caches in the same order, so each of them remembers what was read after it.

use std::array;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::simd::LINE;

/// Activation rows up to which operations wait for memory more than for arithmetic.
pub(crate) const MAX_ROWS: usize = 8;

/// Bytes that a thread prefetches: no more than the L2 caches of all CPUs have room for.
const MAX_BYTES: usize = 256 << 10;

/// Maximum number of ranges that a thread prefetches.
const MAX_RANGES: usize = 8;

/// Cache lines that are prefetched before a thread looks for work again.
const LINES_AT_ONCE: usize = 8;

/// Addresses that a thread reads first in an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Start([Range<usize>; MAX_RANGES]);

impl FromIterator<Range<usize>> for Start {
    /// Takes the first ranges, as many as are prefetched.
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(ranges: I) -> Start {
        let mut left = MAX_BYTES;
        let mut ranges = ranges.into_iter().map(|Range { start, end }| {
            let len = left.min(end - start);
            left -= len;
            start..start + len
        });
        Start(array::from_fn(|_| ranges.next().unwrap_or_default()))
    }
}

/// The addresses that each thread reads first in the operation that follows one with a weight or a cache, once there was
/// such an operation.
#[derive(Default)]
pub(crate) struct Follower(Arc<Mutex<Vec<Start>>>);

impl Follower {
    /// Returns the addresses, by thread.
    pub(crate) fn starts(&self) -> MutexGuard<'_, Vec<Start>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The order in which weights and caches are read.
#[derive(Default)]
pub(crate) struct ReadOrder {
    /// The follower of the last weight or cache.
    last: Mutex<Weak<Mutex<Vec<Start>>>>,
}

impl ReadOrder {
    /// Records that the weight or cache with this follower is read now; `update` changes the follower of the last one.
    pub(crate) fn record(&self, follower: &Follower, update: impl FnOnce(&mut Vec<Start>)) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.upgrade() {
            update(&mut Follower(last).starts());
        }
        *last = Arc::downgrade(&follower.0);
    }
}

/// Addresses that one thread has not prefetched yet.
#[derive(Default)]
pub(crate) struct ReadAhead([Left; MAX_RANGES]);

/// The rest of a range.
#[derive(Default)]
struct Left {
    next: AtomicUsize,
    end: AtomicUsize,
}

impl ReadAhead {
    /// Replaces the addresses.
    pub(crate) fn set(&self, start: &Start) {
        // A thread that sees only some of the stores prefetches other addresses, which does no harm.
        for (left, range) in self.0.iter().zip(&start.0) {
            left.next.store(range.start, Ordering::Relaxed);
            left.end.store(range.end, Ordering::Relaxed);
        }
    }

    /// Prefetches some cache lines; returns false if none are left.
    pub(crate) fn prefetch(&self) -> bool {
        self.0.iter().any(Left::prefetch)
    }
}

impl Left {
    /// Prefetches some cache lines; returns false if none are left.
    fn prefetch(&self) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        let is_left = next < self.end.load(Ordering::Relaxed);
        if is_left {
            (0..LINES_AT_ONCE).for_each(|line| prefetch(next.wrapping_add(line * LINE)));
            let after = next.saturating_add(LINES_AT_ONCE * LINE);
            self.next.store(after, Ordering::Relaxed);
        }
        is_left
    }
}

/// Prefetches a cache line into the L2 cache. Any address is allowed.
fn prefetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: prefetching any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address)) }
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "prfm pldl2keep, [{address}]",
            address = in(reg) address,
            options(readonly, nostack, preserves_flags),
        );
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses of two threads, the first of them `address`.
    fn starts(address: usize) -> Vec<Start> {
        let ranges = [0, 1].map(|thread| address + thread..address + 2);
        ranges
            .map(|range| Some(range).into_iter().collect())
            .to_vec()
    }

    #[test]
    fn each_remembers_what_came_after_it() {
        let order = ReadOrder::default();
        let [first, second] = [Follower::default(), Follower::default()];
        assert_eq!(*first.starts(), []);
        for pass in 0..2 {
            order.record(&first, |last| *last = starts(10 + pass));
            order.record(&second, |last| *last = starts(20 + pass));
        }
        assert_eq!(*first.starts(), starts(21));
        assert_eq!(*second.starts(), starts(11));
    }

    #[test]
    fn what_is_gone_is_not_updated() {
        let order = ReadOrder::default();
        order.record(&Follower::default(), |_| {
            unreachable!("nothing came before")
        });
        order.record(&Follower::default(), |_| unreachable!("the weight is gone"));
    }

    #[test]
    fn a_thread_starts_with_few_bytes() {
        let ranges = [0..5, 10..10, 20..20 + MAX_BYTES, 7..9];
        let start: Start = ranges.into_iter().collect();
        assert_eq!(start.0[..4], [0..5, 10..10, 20..20 + MAX_BYTES - 5, 7..7]);
        let many: Start = (0..20).map(|i| i..i + 1).collect();
        assert_eq!(many.0[7], 7..8);
    }

    #[test]
    fn all_lines_are_prefetched_once() {
        let memory = [0u8; 3 * LINES_AT_ONCE * LINE];
        let start = memory.as_ptr().addr();
        let ahead = ReadAhead::default();
        assert!(!ahead.prefetch());
        let ranges = [start..start + memory.len() - LINE, start..start + 1];
        ahead.set(&ranges.into_iter().collect());
        let n = std::iter::from_fn(|| ahead.prefetch().then_some(())).count();
        assert_eq!(n, 4);
        // Ranges of freed memory, or of none.
        ahead.set(&Some(usize::MAX - LINE..usize::MAX).into_iter().collect());
        assert!(ahead.prefetch() && !ahead.prefetch());
    }
}
