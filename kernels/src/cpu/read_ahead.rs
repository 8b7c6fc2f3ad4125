//! Read-ahead: a thread that waits for others prefetches what it will read of the next weight.
//!
//! Memory would be idle while one thread normalises a row or finishes the last task of a product. Passes of a model
//! read its weights in the same order, so each weight remembers the product that followed it.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Bytes of a weight that a thread prefetches: no more than the L2 caches of all CPUs have room for.
pub(crate) const MAX_BYTES: usize = 256 << 10;

/// Cache lines that are prefetched before a thread looks for work again.
const LINES_AT_ONCE: usize = 8;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Addresses that each thread reads first in a product.
type Starts = Box<[Range<usize>]>;

/// The product that follows that of a weight, once there was one.
#[derive(Default)]
pub(crate) struct Follower(Arc<OnceLock<Starts>>);

impl Follower {
    /// Returns the addresses that each thread reads first in the product that follows.
    pub(crate) fn starts(&self) -> Option<&[Range<usize>]> {
        self.0.get().map(Box::as_ref)
    }
}

/// The order of products.
#[derive(Default)]
pub(crate) struct ProductOrder {
    /// The follower of the last product's weight.
    last: Mutex<Weak<OnceLock<Starts>>>,
}

impl ProductOrder {
    /// Records that the product of a weight with this follower comes now, with these `starts`.
    pub(crate) fn record(&self, follower: &Follower, starts: impl FnOnce() -> Starts) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.upgrade() {
            last.get_or_init(starts);
        }
        *last = Arc::downgrade(&follower.0);
    }
}

/// Addresses that one thread has not prefetched yet.
#[derive(Default)]
pub(crate) struct ReadAhead {
    next: AtomicUsize,
    end: AtomicUsize,
}

impl ReadAhead {
    /// Replaces the addresses.
    pub(crate) fn set(&self, addresses: &Range<usize>) {
        // A thread that sees only one of the two stores prefetches other addresses, which does no harm.
        self.next.store(addresses.start, Ordering::Relaxed);
        self.end.store(addresses.end, Ordering::Relaxed);
    }

    /// Prefetches some cache lines; returns false if none are left.
    pub(crate) fn prefetch(&self) -> bool {
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

    fn starts(address: usize) -> Starts {
        // One for each of two threads.
        Box::new([0, 1].map(|thread| address + thread..address + 2))
    }

    #[test]
    fn a_weight_remembers_the_first_product_after_its_own() {
        let order = ProductOrder::default();
        let [first, second] = [Follower::default(), Follower::default()];
        assert_eq!(first.starts(), None);
        for pass in 0..2 {
            order.record(&first, || starts(10 + pass));
            order.record(&second, || starts(20 + pass));
        }
        assert_eq!(first.starts(), Some(&starts(20)[..]));
        assert_eq!(second.starts(), Some(&starts(11)[..]), "in the second pass");
    }

    #[test]
    fn a_weight_that_is_gone_is_not_recorded() {
        let order = ProductOrder::default();
        order.record(&Follower::default(), || unreachable!("nothing came before"));
        order.record(&Follower::default(), || unreachable!("the weight is gone"));
    }

    #[test]
    fn all_lines_are_prefetched_once() {
        let memory = [0u8; 3 * LINES_AT_ONCE * LINE];
        let start = memory.as_ptr().addr();
        let ahead = ReadAhead::default();
        assert!(!ahead.prefetch());
        ahead.set(&(start..start + memory.len() - LINE));
        let n = std::iter::from_fn(|| ahead.prefetch().then_some(())).count();
        assert_eq!(n, 3);
        // Ranges of freed memory, or of none.
        ahead.set(&(usize::MAX - LINE..usize::MAX));
        assert!(ahead.prefetch() && !ahead.prefetch());
    }
}
