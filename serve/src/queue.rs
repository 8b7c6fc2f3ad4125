//! [`Queue`]: jobs that wait for a slot.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::ApiError;
use crate::job::Job;

/// Jobs that wait for a slot, first come, first served.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    max_len: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

/// Interval at which an idle engine looks for jobs whose client has left.
const IDLE: Duration = Duration::from_millis(500);

impl Queue {
    pub(crate) fn new(max_len: usize) -> Queue {
        Queue {
            waiting: Mutex::default(),
            changed: Condvar::new(),
            max_len,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic cannot leave the queue half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds all jobs of a request, or none.
    ///
    /// # Errors
    /// The queue is full, or the server is shutting down.
    pub(crate) fn push(&self, jobs: Vec<Job>) -> Result<(), ApiError> {
        let mut waiting = self.lock();
        if waiting.is_closed {
            return Err(ApiError::busy("the server is shutting down"));
        }
        // Jobs whose client has left do not count.
        waiting.jobs.retain(|job| !job.events.is_closed());
        let n_waiting = waiting.jobs.len();
        if n_waiting > 0 && n_waiting + jobs.len() > self.max_len {
            let max_len = self.max_len;
            let message = format!("{n_waiting} requests are waiting, expected at most {max_len}");
            return Err(ApiError::busy(message));
        }
        waiting.jobs.extend(jobs);
        self.changed.notify_one();
        Ok(())
    }

    /// Returns the first job that `can_run` accepts. If there is none and `wait` is set, waits for one.
    /// Returns `None` when the queue is closed and empty, or without a job to run.
    pub(crate) fn pop(&self, wait: bool, can_run: impl Fn(&Job) -> bool) -> Option<Job> {
        let mut waiting = self.lock();
        loop {
            waiting.jobs.retain(|job| !job.events.is_closed());
            if let Some(i) = waiting.jobs.iter().position(&can_run) {
                return waiting.jobs.remove(i);
            }
            if !wait || waiting.is_closed {
                return None;
            }
            let woken = self.changed.wait_timeout(waiting, IDLE);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the number of waiting jobs.
    pub(crate) fn len(&self) -> usize {
        self.lock().jobs.len()
    }

    /// Refuses further jobs. Those that wait are still run.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Drops all waiting jobs, which ends their streams.
    pub(crate) fn clear(&self) {
        self.lock().jobs.clear();
        self.changed.notify_all();
    }

    /// True if no further jobs are accepted.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }
}
