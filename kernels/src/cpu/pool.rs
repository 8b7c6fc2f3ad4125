//! Thread pool that runs the tasks of one operation after another.
//!
//! Operations follow each other within microseconds, so an idle thread polls for the next one for a while
//! before it sleeps. An operation never waits for a thread that has not started one of its tasks: if other
//! programs occupy the cores, the calling thread does all the work.
//!
//! Each thread begins with a range of consecutive tasks of its own. A thread that has none left takes half of what
//! another has not started, so that a slow thread does not hold up the others.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{hint, io, thread};

use schemas::threads::{self, Shortage};

use super::read_ahead::{ReadAhead, Start};

/// Time that an idle thread polls before it sleeps, longer than the gap between two operations.
const AWAKE: Duration = Duration::from_micros(200);

/// Polls between two reads of the clock, or between two yields.
const POLLS: u32 = 32;

/// The threads other than the calling one.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held by the current operation.
    in_use: Mutex<()>,
}

/// State shared by all threads.
struct Shared {
    /// The number of the operation in the upper half, then [`CLOSED`], then the number of threads that run
    /// its tasks.
    state: AtomicU64,
    /// Written while no thread runs a task, read by threads that do.
    operation: UnsafeCell<Operation>,
    /// The calling thread has the first.
    shares: Box<[Share]>,
    n_asleep: AtomicUsize,
    sleep: Mutex<PoolState>,
    wake: Condvar,
    /// Payload of a panic in a task of the current operation.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: the only field that is not Sync is `operation`; its comment states when it is accessed.
unsafe impl Sync for Shared {}
// SAFETY: as above; the task it points to is Sync.
unsafe impl Send for Shared {}

/// The tasks of an operation. Valid during the call that runs it.
#[derive(Clone, Copy)]
struct Operation {
    task: *const (dyn Fn(usize) + Sync),
}

/// Distribution of the tasks of an operation among the threads, the calling one first.
#[derive(Clone, Copy, Default)]
pub(crate) struct Distribution<'a> {
    /// The tasks that each thread begins with; `None` for equal numbers.
    pub(crate) shares: Option<&'a [Range<usize>]>,
    /// Addresses that each thread prefetches when it waits next; `None` keeps those that it has.
    pub(crate) ahead: Option<&'a [Start]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PoolState {
    Working,
    ShuttingDown,
}

/// Part of an operation that belongs to one thread. On cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Share {
    /// Tasks that no thread has started: the first in the lower half, the end in the upper half.
    tasks: AtomicU64,
    ahead: ReadAhead,
}

impl Share {
    const fn word(tasks: &Range<usize>) -> u64 {
        (tasks.end as u64) << 32 | tasks.start as u64
    }

    /// Replaces the tasks, none of which are left.
    fn set(&self, tasks: Range<usize>) {
        self.tasks.store(Share::word(&tasks), Ordering::Relaxed);
    }

    /// Removes tasks, if there are any: `split` returns those that are left, and those that are removed.
    fn take(
        &self,
        split: impl Fn(Range<usize>) -> (Range<usize>, Range<usize>),
    ) -> Option<Range<usize>> {
        let mut word = self.tasks.load(Ordering::Relaxed);
        loop {
            let tasks = word as u32 as usize..(word >> 32) as usize;
            if tasks.is_empty() {
                return None;
            }
            let (left, taken) = split(tasks);
            match self.tasks.compare_exchange_weak(
                word,
                Share::word(&left),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(taken),
                Err(found) => word = found,
            }
        }
    }

    fn take_first(&self) -> Option<usize> {
        let taken = self.take(|tasks| (tasks.start + 1..tasks.end, tasks.start..tasks.start + 1));
        taken.map(|tasks| tasks.start)
    }

    /// Removes the second half, or the last task.
    fn take_half(&self) -> Option<Range<usize>> {
        self.take(|tasks| {
            let middle = tasks.start + tasks.len() / 2;
            (tasks.start..middle, middle..tasks.end)
        })
    }
}

/// Returns the tasks that thread `i` begins with if all begin with equal numbers.
pub(crate) fn equal_share(n_task: usize, i: usize, n_thread: usize) -> Range<usize> {
    let end = |i: usize| (n_task as u64 * i as u64 / n_thread as u64) as usize;
    end(i)..end(i + 1)
}

/// Set when no further thread may start on the operation.
const CLOSED: u64 = 1 << 31;
/// Increment of the operation number.
const NEXT: u64 = 1 << 32;

const fn number(state: u64) -> u64 {
    state >> 32
}

const fn n_inside(state: u64) -> u64 {
    state & (CLOSED - 1)
}

impl Pool {
    /// Starts `n` threads, or as many as the system allows.
    pub(crate) fn new(n: usize) -> Pool {
        Pool::with_spawner(n, |builder, work| builder.spawn(work))
    }

    fn with_spawner(
        n: usize,
        spawn: impl Fn(thread::Builder, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>,
    ) -> Pool {
        let mut pool = Pool {
            shared: Arc::new(Shared {
                state: AtomicU64::new(CLOSED),
                operation: UnsafeCell::new(Operation { task: &|_| () }),
                shares: (0..=n).map(|_| Share::default()).collect(),
                n_asleep: AtomicUsize::new(0),
                sleep: Mutex::new(PoolState::Working),
                wake: Condvar::new(),
                panic: Mutex::new(None),
            }),
            threads: Vec::with_capacity(n),
            in_use: Mutex::new(()),
        };
        for i in 0..n {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new().name(format!("cpu-{i}"));
            match spawn(builder, Box::new(move || shared.work(i + 1))) {
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

    /// Number of threads, not counting the calling one.
    pub(crate) fn len(&self) -> usize {
        self.threads.len()
    }

    /// Runs `task` for each index below `n_task`, on as many threads as arrive in time.
    ///
    /// # Panics
    /// There are 2^32 tasks or more, or the shares of the distribution are not one after another, or not all tasks.
    pub(crate) fn run(
        &self,
        n_task: usize,
        distribution: Distribution<'_>,
        task: &(dyn Fn(usize) + Sync),
    ) {
        let _in_use = match self.in_use.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another operation is using the threads.
            Err(TryLockError::WouldBlock) => return (0..n_task).for_each(task),
        };
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Before this function returns, the operation is closed and no
        // thread is inside; threads read `task` only while they are inside.
        let task: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(task) };
        // SAFETY: the operation before this one is closed with no thread inside, so none reads it.
        unsafe { *shared.operation.get() = Operation { task } };
        assert!(u32::try_from(n_task).is_ok(), "too many tasks");
        let n_thread = 1 + self.threads.len();
        let mut start = 0;
        for (i, share) in shared.shares[..n_thread].iter().enumerate() {
            let tasks = match distribution.shares {
                Some(shares) => shares[i].clone(),
                None => equal_share(n_task, i, n_thread),
            };
            assert!(
                tasks.start == start && tasks.end >= start,
                "one after another"
            );
            start = tasks.end;
            share.set(tasks);
            if let Some(ahead) = distribution.ahead.and_then(|ahead| ahead.get(i)) {
                share.ahead.set(ahead);
            }
        }
        assert_eq!(start, n_task, "tasks of all shares");
        let number = number(shared.state.load(Ordering::Relaxed)).wrapping_add(1);
        shared.state.store(number << 32, Ordering::SeqCst);
        if shared.n_asleep.load(Ordering::SeqCst) > 0 {
            drop(shared.sleep.lock());
            shared.wake.notify_all();
        }
        shared.tasks(0);
        shared.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut polls = 0u32;
        while n_inside(shared.state.load(Ordering::Acquire)) > 0 {
            if shared.shares[0].ahead.prefetch() {
                continue;
            }
            polls += 1;
            // The thread with the last task may be waiting for this core.
            match polls % POLLS {
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
        if let Ok(mut state) = self.shared.sleep.lock() {
            *state = PoolState::ShuttingDown;
        }
        // No thread may enter, but polling threads see that the state has changed.
        self.shared.state.fetch_add(NEXT, Ordering::SeqCst);
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // Panics have already been propagated.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Main loop of a thread.
    fn work(&self, thread: usize) {
        let mut seen = 0;
        while let Some(number) = self.next_operation(seen, thread) {
            seen = number;
            if self.enter(number) {
                self.tasks(thread);
                self.state.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Runs tasks until all have been started.
    fn tasks(&self, thread: usize) {
        // SAFETY: written before the operation was opened. The caller is inside, or is the thread that
        // opened it, so no thread is writing it now.
        let Operation { task } = unsafe { *self.operation.get() };
        // SAFETY: the task lives until no thread is inside any more.
        let task = unsafe { &*task };
        let own = &self.shares[thread];
        let others = || {
            self.shares[thread + 1..]
                .iter()
                .chain(&self.shares[..thread])
        };
        let work = || loop {
            while let Some(i) = own.take_first() {
                task(i);
            }
            match others().find_map(Share::take_half) {
                Some(tasks) => own.set(tasks),
                None => return,
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work))
            && let Ok(mut first) = self.panic.lock()
        {
            first.get_or_insert(panic);
        }
    }

    /// Enters the operation, counting this thread as inside; returns false if the operation is closed.
    fn enter(&self, operation: u64) -> bool {
        let open = |state| number(state) == operation && state & CLOSED == 0;
        let one_more = |state| open(state).then_some(state + 1);
        let entered = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        entered.is_ok()
    }

    /// Waits for an operation other than `seen`, and prefetches; `None` when the pool is dropped.
    fn next_operation(&self, seen: u64, thread: usize) -> Option<u64> {
        let next = || {
            let number = number(self.state.load(Ordering::SeqCst));
            (number != seen).then_some(number)
        };
        let start = Instant::now();
        let number = loop {
            let found = (0..POLLS).find_map(|_| {
                if !self.shares[thread].ahead.prefetch() {
                    hint::spin_loop();
                }
                next()
            });
            if found.is_some() || start.elapsed() > AWAKE {
                break found;
            }
        };
        if let Some(number) = number {
            let is_shutting_down = || {
                matches!(
                    self.sleep.lock().as_deref(),
                    Ok(PoolState::ShuttingDown) | Err(_)
                )
            };
            // The lock is only taken by threads that find no work.
            return (self.state.load(Ordering::Acquire) & CLOSED == 0 || !is_shutting_down())
                .then_some(number);
        }
        let mut state = self.sleep.lock().ok()?;
        self.n_asleep.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            if *state == PoolState::ShuttingDown {
                break None;
            }
            let found = next();
            if found.is_some() {
                break found;
            }
            match self.wake.wait(state) {
                Ok(guard) => state = guard,
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

    /// Repetitions of tests for races. Miri is slow, but tries interleavings that CPUs seldom produce.
    const TIMES: usize = if cfg!(miri) { 20 } else { 3000 };

    #[test]
    fn each_task_is_run_once_by_operation() {
        let pool = Pool::new(3);
        for n_task in [0, 1, 2, 3, 7, 100].into_iter().cycle().take(TIMES) {
            let counts: Vec<AtomicU32> = (0..n_task).map(|_| AtomicU32::new(0)).collect();
            pool.run(n_task, Distribution::default(), &|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|n| n.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_thread_takes_the_tasks_of_a_slow_one() {
        let pool = Pool::new(1);
        for _ in 0..TIMES / 10 {
            let n_done = AtomicUsize::new(0);
            pool.run(8, Distribution::default(), &|i| {
                // The first task of the calling thread ends after all others.
                while i == 0 && n_done.load(Ordering::Relaxed) < 7 {
                    thread::yield_now();
                }
                n_done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(n_done.into_inner(), 8);
        }
    }

    #[test]
    fn shares_may_be_uneven() {
        let pool = Pool::new(2);
        let sum = AtomicUsize::new(0);
        for [first, second] in [[0, 0], [0, 9], [2, 5], [9, 9]] {
            let distribution = Distribution {
                shares: Some(&[0..first, first..second, second..9]),
                ahead: None,
            };
            pool.run(9, distribution, &|i| {
                sum.fetch_add(1 << i, Ordering::Relaxed);
            });
            assert_eq!(sum.swap(0, Ordering::Relaxed), (1 << 9) - 1);
        }
    }

    #[test]
    #[should_panic(expected = "tasks of all shares")]
    fn shares_have_all_tasks() {
        let distribution = Distribution {
            shares: Some(&[0..4, 4..8]),
            ahead: None,
        };
        Pool::new(1).run(9, distribution, &|_| ());
    }

    #[test]
    fn operations_run_on_the_threads_that_start() {
        for n_start in 0..3 {
            let n_started = AtomicUsize::new(0);
            let pool = Pool::with_spawner(3, |builder, work| {
                if n_started.fetch_add(1, Ordering::Relaxed) < n_start {
                    builder.spawn(work)
                } else {
                    Err(io::ErrorKind::WouldBlock.into())
                }
            });
            assert_eq!(pool.len(), n_start);
            let sum = AtomicUsize::new(0);
            pool.run(20, Distribution::default(), &|i| {
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
            // The barrier passes only with three threads at once.
            pool.run(3, Distribution::default(), &|_| {
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
                        pool.run(20, Distribution::default(), &|i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), 190);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_threads_continue() {
        let pool = Pool::new(2);
        for _ in 0..3 {
            let run = || {
                pool.run(10, Distribution::default(), &|i| {
                    assert_ne!(i, 7, "task seven")
                })
            };
            let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("task seven panics");
            let text = panic.downcast_ref::<String>().expect("a message");
            assert!(text.contains("task seven"), "{text}");
            pool.run(10, Distribution::default(), &|_| ());
        }
    }

    #[test]
    fn tasks_may_run_operations() {
        let pool = Pool::new(1);
        let sum = AtomicUsize::new(0);
        pool.run(4, Distribution::default(), &|_| {
            pool.run(5, Distribution::default(), &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 40);
    }
}
