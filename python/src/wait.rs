//! Work on another thread, while the calling thread waits without the interpreter's lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Time between two checks for signals.
const INTERVAL: Duration = Duration::from_millis(50);

/// Stack of a worker: that of a program's main thread.
const STACK_BYTES: usize = 8 << 20;

/// Starts a thread.
pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> PyResult<()> {
    let thread = thread::Builder::new().name("specconv".to_owned());
    let thread = thread.stack_size(STACK_BYTES).spawn(work);
    thread.map(drop).map_err(PyErr::from)
}

/// Runs `work` on a thread. Meanwhile calls `tick` about twenty times per second, and once at the end. If a
/// signal handler or `tick` raises an exception, as at Ctrl-C, `stop` is set and the exception is raised when the
/// work has ended.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    stop: &AtomicBool,
    tick: &dyn Fn(Python<'_>) -> PyResult<()>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = mpsc::channel();
    spawn(move || {
        // The receiver waits for the result.
        let _ = sender.send(work());
    })?;
    let receiver = Mutex::new(receiver);
    let mut raised = None;
    loop {
        match next(py, &receiver) {
            Next::Event(result) => {
                return match raised.map_or_else(|| tick(py), Err) {
                    Ok(()) => Ok(result),
                    Err(error) => Err(error),
                };
            }
            Next::Gone => return Err(gone()),
            Next::Waiting if raised.is_some() => {}
            Next::Waiting => {
                if let Err(error) = py.check_signals().and_then(|()| tick(py)) {
                    stop.store(true, Ordering::Relaxed);
                    raised = Some(error);
                }
            }
        }
    }
}

/// Waits for the next event of a thread. Sets `stop` if a signal handler raises an exception.
pub(crate) fn event<T: Send>(
    py: Python<'_>,
    receiver: &Mutex<Receiver<T>>,
    stop: &Arc<AtomicBool>,
) -> PyResult<T> {
    loop {
        match next(py, receiver) {
            Next::Event(event) => return Ok(event),
            Next::Gone => return Err(gone()),
            Next::Waiting => py.check_signals().inspect_err(|_| {
                stop.store(true, Ordering::Relaxed);
            })?,
        }
    }
}

enum Next<T> {
    Event(T),
    Waiting,
    Gone,
}

fn next<T: Send>(py: Python<'_>, receiver: &Mutex<Receiver<T>>) -> Next<T> {
    let received = py.detach(|| {
        let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.recv_timeout(INTERVAL)
    });
    match received {
        Ok(event) => Next::Event(event),
        Err(RecvTimeoutError::Timeout) => Next::Waiting,
        Err(RecvTimeoutError::Disconnected) => Next::Gone,
    }
}

fn gone() -> PyErr {
    PyRuntimeError::new_err("internal error: the thread ended without a result")
}
