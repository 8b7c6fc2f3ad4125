//! Memory limit for the buffers of all worker threads.

use std::sync::{Condvar, Mutex, MutexGuard};

/// Bytes that buffers may use. A request above the limit waits until no bytes are in use and is
/// then granted, so the actual limit is `max_bytes` or the largest request.
pub(super) struct Budget {
    max_bytes: u64,
    use_: Mutex<Use>,
    given_back: Condvar,
}

#[derive(Default)]
struct Use {
    held_bytes: u64,
    peak_bytes: u64,
}

/// Reserved bytes of the budget, released on drop.
pub(super) struct Share<'a> {
    budget: &'a Budget,
    n_bytes: u64,
}

impl Budget {
    pub(super) fn new(max_bytes: u64) -> Budget {
        Budget {
            max_bytes,
            use_: Mutex::default(),
            given_back: Condvar::new(),
        }
    }

    /// Waits until `n_bytes` are available and reserves them.
    pub(super) fn take(&self, n_bytes: u64) -> Share<'_> {
        let too_much = |now: &mut Use| {
            now.held_bytes > 0 && now.held_bytes.saturating_add(n_bytes) > self.max_bytes
        };
        let mut now = self
            .given_back
            .wait_while(self.lock(), too_much)
            .expect("no thread panics while it holds the lock");
        now.held_bytes += n_bytes;
        now.peak_bytes = now.peak_bytes.max(now.held_bytes);
        Share {
            budget: self,
            n_bytes,
        }
    }

    /// Returns the maximum of bytes in use so far.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.lock().peak_bytes
    }

    fn lock(&self) -> MutexGuard<'_, Use> {
        self.use_
            .lock()
            .expect("no thread panics while it holds the lock")
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.budget.lock().held_bytes -= self.n_bytes;
        self.budget.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_together_stay_below_the_bound() {
        let budget = Budget::new(10);
        std::thread::scope(|scope| {
            for n_bytes in [3, 4, 5, 6] {
                let budget = &budget;
                scope.spawn(move || (0..200).for_each(|_| drop(budget.take(n_bytes))));
            }
        });
        assert!((6..=10).contains(&budget.peak_bytes()));
    }

    #[test]
    fn a_request_beyond_the_bound_is_granted_alone() {
        let budget = Budget::new(10);
        let share = budget.take(25);
        assert_eq!(budget.peak_bytes(), 25);
        drop(share);
        drop(budget.take(10));
        assert_eq!(budget.peak_bytes(), 25);
    }
}
