//! Threads that share out the tasks of one operation after another.
//!
//! Operations follow each other within microseconds, so a thread without work looks out for the next
//! one for a while before it sleeps. An operation never waits for a thread that has not begun a task
//! of it: where other programs hold the processors, the calling thread does all the work itself.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{hint, io, thread};

use schemas::threads::{self, Shortage};

/// How long a thread looks out for the next operation: longer than what runs between two of them.
const AWAKE: Duration = Duration::from_micros(200);

/// Looks between two looks at the clock, or between two offers of the processor to others.
const LOOKS: u32 = 32;

/// Threads besides the one that calls.
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held by the operation at hand.
    in_use: Mutex<()>,
}

/// What the threads look at.
struct Shared {
    /// The number of the operation in the upper half, then [`CLOSED`], then how many threads are at
    /// its tasks.
    state: AtomicU64,
    /// Written while no thread is at a task, read by those that are.
    operation: UnsafeCell<Operation>,
    /// The next task that nobody has begun.
    next: AtomicUsize,
    n_asleep: AtomicUsize,
    sleep: Mutex<Mood>,
    wake: Condvar,
    /// What a task of the operation at hand panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: the only field that is not Sync is `operation`; see there.
unsafe impl Sync for Shared {}
// SAFETY: likewise; what it points at is Sync.
unsafe impl Send for Shared {}

/// The tasks of an operation. Lives as long as the call that runs it.
#[derive(Clone, Copy)]
struct Operation {
    task: *const (dyn Fn(usize) + Sync),
    n_task: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Working,
    Leaving,
}

/// No thread may begin with the operation any more.
const CLOSED: u64 = 1 << 31;
/// One more operation.
const NEXT: u64 = 1 << 32;

const fn number(state: u64) -> u64 {
    state >> 32
}

const fn n_inside(state: u64) -> u64 {
    state & (CLOSED - 1)
}

impl Pool {
    /// Starts `n` threads, or as many as the system has left.
    pub(super) fn new(n: usize) -> Pool {
        Pool::with_spawner(n, |builder, work| builder.spawn(work))
    }

    fn with_spawner(
        n: usize,
        spawn: impl Fn(thread::Builder, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>,
    ) -> Pool {
        let mut pool = Pool {
            shared: Arc::new(Shared {
                state: AtomicU64::new(CLOSED),
                operation: UnsafeCell::new(Operation {
                    task: &|_| (),
                    n_task: 0,
                }),
                next: AtomicUsize::new(0),
                n_asleep: AtomicUsize::new(0),
                sleep: Mutex::new(Mood::Working),
                wake: Condvar::new(),
                panic: Mutex::new(None),
            }),
            threads: Vec::with_capacity(n),
            in_use: Mutex::new(()),
        };
        for i in 0..n {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new().name(format!("cpu-{i}"));
            match spawn(builder, Box::new(move || shared.work())) {
                Ok(thread) => pool.threads.push(thread),
                Err(source) => {
                    threads::report(&Shortage {
                        wanted: n + 1,
                        running: i + 1,
                        source,
                    });
                    break;
                }
            }
        }
        pool
    }

    /// Threads besides the one that calls.
    pub(super) fn len(&self) -> usize {
        self.threads.len()
    }

    /// Runs `task` for each number below `n_task`, on as many threads as come in time.
    pub(super) fn run(&self, n_task: usize, task: &(dyn Fn(usize) + Sync)) {
        let _in_use = match self.in_use.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another operation has the threads.
            Err(TryLockError::WouldBlock) => return (0..n_task).for_each(task),
        };
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The operation is closed, and no thread is inside, before
        // this function is left, and threads look at `task` only when they are inside.
        let task: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(task) };
        // SAFETY: the operation before this one is closed with no thread inside, so none reads it.
        unsafe { *shared.operation.get() = Operation { task, n_task } };
        shared.next.store(0, Ordering::Relaxed);
        let number = number(shared.state.load(Ordering::Relaxed)).wrapping_add(1);
        shared.state.store(number << 32, Ordering::SeqCst);
        if shared.n_asleep.load(Ordering::SeqCst) > 0 {
            drop(shared.sleep.lock());
            shared.wake.notify_all();
        }
        shared.tasks();
        shared.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut looks = 0u32;
        while n_inside(shared.state.load(Ordering::Acquire)) > 0 {
            looks += 1;
            // Whoever holds the last task may be waiting for this processor.
            match looks % LOOKS {
                0 => thread::yield_now(),
                _ => hint::spin_loop(),
            }
        }
        let panic = shared.panic.lock().map_or(None, |mut panic| panic.take());
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Ok(mut mood) = self.shared.sleep.lock() {
            *mood = Mood::Leaving;
        }
        // Nobody may enter, but those who look out see that something has changed.
        self.shared.state.fetch_add(NEXT, Ordering::SeqCst);
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // Panics have been passed on.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// What a thread does for as long as it lives.
    fn work(&self) {
        let mut seen = 0;
        while let Some(number) = self.next_operation(seen) {
            seen = number;
            if self.enter(number) {
                self.tasks();
                self.state.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Works off tasks until all are begun.
    fn tasks(&self) {
        // SAFETY: written before the operation was opened; the caller of this is inside, or is the
        // thread that opened it, so it is not written now.
        let Operation { task, n_task } = unsafe { *self.operation.get() };
        // SAFETY: what it points at lives until no thread is inside any more.
        let task = unsafe { &*task };
        let work = || loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= n_task {
                return;
            }
            task(i);
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work))
            && let Ok(mut first) = self.panic.lock()
        {
            first.get_or_insert(panic);
        }
    }

    /// Whether the operation is still open; then this thread counts as inside.
    fn enter(&self, operation: u64) -> bool {
        let open = |state| number(state) == operation && state & CLOSED == 0;
        let one_more = |state| open(state).then_some(state + 1);
        let entered = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        entered.is_ok()
    }

    /// Waits for another operation than the one last seen; `None` when the pool goes.
    fn next_operation(&self, seen: u64) -> Option<u64> {
        let next = || {
            let number = number(self.state.load(Ordering::SeqCst));
            (number != seen).then_some(number)
        };
        let start = Instant::now();
        let number = loop {
            let found = (0..LOOKS).find_map(|_| {
                hint::spin_loop();
                next()
            });
            if found.is_some() || start.elapsed() > AWAKE {
                break found;
            }
        };
        if let Some(number) = number {
            let leaving = || matches!(self.sleep.lock().as_deref(), Ok(Mood::Leaving) | Err(_));
            // Locks are for those who find nothing to do.
            return (self.state.load(Ordering::Acquire) & CLOSED == 0 || !leaving())
                .then_some(number);
        }
        let mut mood = self.sleep.lock().ok()?;
        self.n_asleep.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            if *mood == Mood::Leaving {
                break None;
            }
            let found = next();
            if found.is_some() {
                break found;
            }
            match self.wake.wait(mood) {
                Ok(guard) => mood = guard,
                Err(_) => return None,
            }
        };
        self.n_asleep.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// How often what could go wrong is tried; Miri is slow, but tries orders that processors seldom do.
    const TIMES: usize = if cfg!(miri) { 20 } else { 3000 };

    #[test]
    fn each_task_is_run_once_by_operation() {
        let pool = Pool::new(3);
        for n_task in [0, 1, 2, 3, 7, 100].into_iter().cycle().take(TIMES) {
            let counts: Vec<AtomicU32> = (0..n_task).map(|_| AtomicU32::new(0)).collect();
            pool.run(n_task, &|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|n| n.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn operations_run_on_the_threads_that_start() {
        for n_start in 0..3 {
            let n_started = AtomicUsize::new(0);
            let pool = Pool::with_spawner(3, |builder, work| {
                match n_started.fetch_add(1, Ordering::Relaxed) < n_start {
                    true => builder.spawn(work),
                    false => Err(io::ErrorKind::WouldBlock.into()),
                }
            });
            assert_eq!(pool.len(), n_start);
            let sum = AtomicUsize::new(0);
            pool.run(20, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 190);
        }
    }

    #[test]
    fn threads_that_sleep_are_woken() {
        let pool = Pool::new(2);
        for _ in 0..5 {
            thread::sleep(4 * AWAKE);
            let meet = std::sync::Barrier::new(3);
            // Only three threads at once can pass.
            pool.run(3, &|_| {
                meet.wait();
            });
        }
    }

    #[test]
    fn operations_of_several_callers_do_not_mix() {
        let pool = Pool::new(2);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..TIMES / 6 {
                        let sum = AtomicUsize::new(0);
                        pool.run(20, &|i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), 190);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_threads_go_on() {
        let pool = Pool::new(2);
        for _ in 0..3 {
            let run = || pool.run(10, &|i| assert_ne!(i, 7, "task seven"));
            let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("task seven panics");
            let text = panic.downcast_ref::<String>().expect("a message");
            assert!(text.contains("task seven"), "{text}");
            pool.run(10, &|_| ());
        }
    }

    #[test]
    fn tasks_may_run_operations() {
        let pool = Pool::new(1);
        let sum = AtomicUsize::new(0);
        pool.run(4, &|_| {
            pool.run(5, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 40);
    }
}
