//! Work on several threads, as many as the system can start.
//!
//! Containers and users have limits on threads. If a thread cannot be started, the work takes
//! longer but is complete: the running threads, at least the calling one, do all of it, and
//! [`on_shortage`] reports it once.

use std::fmt;
use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle, available_parallelism, scope};

/// The system started fewer threads than requested.
#[derive(Debug)]
pub struct Shortage {
    /// Number of threads requested, including the calling one.
    pub wanted: usize,
    /// Number of running threads, including the calling one.
    pub running: usize,
    /// Error of starting the next thread.
    pub source: io::Error,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage {
            wanted,
            running,
            source,
        } = self;
        write!(
            f,
            "running on {running} of {wanted} threads, which takes longer: cannot start more: {source}. \
             Ask for fewer threads, or raise the limit on processes or memory"
        )
    }
}

/// Callback for the first shortage.
static REPORT: OnceLock<fn(&Shortage)> = OnceLock::new();

/// Sets the callback for the first shortage of the process; later calls have no effect.
pub fn on_shortage(report: fn(&Shortage)) {
    let _ = REPORT.set(report);
}

/// Reports a shortage if it is the first one of the process.
pub fn report(shortage: &Shortage) {
    static FIRST: Once = Once::new();
    if let Some(report) = REPORT.get() {
        FIRST.call_once(|| report(shortage));
    }
}

/// Number of threads for work without a number of its own, 0 if unlimited.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// Limits work without a number of threads of its own; 0 means one thread per core.
pub fn set_limit(threads: usize) {
    LIMIT.store(threads, Ordering::Relaxed);
}

/// Resolves a number of threads given by the user: 0 means one per core, at most the limit of the process.
pub fn count(threads: usize) -> usize {
    match (threads, LIMIT.load(Ordering::Relaxed)) {
        (0, 0) => cores(),
        (0, limit) => limit.min(cores()),
        (threads, _) => threads,
    }
}

/// Returns the number of cores that the process may use.
pub fn cores() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// Runs `work` on `wanted` threads, including the calling one, and returns when all have finished.
pub fn run(wanted: usize, work: impl Fn() + Sync) {
    run_with(wanted, work, |builder, scope, work| {
        builder.spawn_scoped(scope, work)
    });
}

fn run_with<W: Fn() + Sync>(
    wanted: usize,
    work: W,
    spawn: impl for<'scope, 'env> Fn(
        Builder,
        &'scope Scope<'scope, 'env>,
        &'scope W,
    ) -> io::Result<ScopedJoinHandle<'scope, ()>>,
) {
    scope(|scope| {
        for running in 1..wanted {
            if let Err(source) = spawn(Builder::new(), scope, &work) {
                report(&Shortage {
                    wanted,
                    running,
                    source,
                });
                break;
            }
        }
        work();
    });
}

/// Maps items on one thread per core; results have the order of the items. `init` creates the state
/// that a thread keeps between items.
///
/// # Errors
/// The error of the first item that fails; no item is started after an error.
pub fn try_map<T: Sync, S, R: Send, E: Send>(
    items: &[T],
    init: impl Fn() -> S + Sync,
    map: impl Fn(&mut S, &T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    run(count(0).min(items.len()), || {
        let mut state = init();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { return };
            let result = map(&mut state, item);
            if result.is_err() {
                next.store(items.len(), Ordering::Relaxed);
            }
            done.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((i, result));
        }
    });
    // Items are started in order, so all items before a failed one are done.
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|&(i, _)| i);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_by_the_threads_that_start() {
        for n_start in 0..4 {
            let n_started = AtomicUsize::new(0);
            let n_ran = AtomicUsize::new(0);
            let work = || {
                n_ran.fetch_add(1, Ordering::Relaxed);
            };
            run_with(4, work, |builder, scope, work| {
                match n_started.fetch_add(1, Ordering::Relaxed) < n_start {
                    true => builder.spawn_scoped(scope, work),
                    false => Err(io::ErrorKind::WouldBlock.into()),
                }
            });
            assert_eq!(n_ran.into_inner(), 1 + n_start.min(3));
        }
    }

    #[test]
    fn results_are_in_order() {
        let items: Vec<usize> = (0..1000).collect();
        let doubled = try_map(&items, || (), |(), &i| Ok::<_, ()>(2 * i)).unwrap();
        assert_eq!(doubled, items.iter().map(|i| 2 * i).collect::<Vec<_>>());
        let empty = try_map(&[], || (), |(), &i: &u8| Ok::<_, ()>(i)).unwrap();
        assert!(empty.is_empty());
    }

    #[test]
    fn the_first_item_that_fails_gives_the_error() {
        let items: Vec<usize> = (0..1000).collect();
        for _ in 0..100 {
            let failed = try_map(
                &items,
                || (),
                |(), &i| match i % 7 {
                    6 => Err(i),
                    _ => Ok(()),
                },
            );
            assert_eq!(failed, Err(6));
        }
    }
}
