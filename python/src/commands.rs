//! Commands of both programs, as programs and as functions that return their reports.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use cli::embedded::{self, Program};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use schemas::progress::{self, Event, Unit};

use crate::error::raise;
use crate::wait;

fn program(name: &str) -> PyResult<Program> {
    Program::by_name(name).ok_or_else(|| PyValueError::new_err(format!("no program {name:?}")))
}

/// Runs a program with its arguments, and returns its exit code.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, name: &str, args: Vec<OsString>) -> PyResult<u8> {
    let program = program(name)?;
    let args = [OsString::from(name)].into_iter().chain(args).collect();
    Ok(py.detach(|| program.main(args)))
}

/// Runs a command. Returns its standard output, and false if a check failed.
///
/// `on_message` receives the kind of a line and its text, `on_progress` the label, the amount done, the total and
/// the unit of a task.
#[pyfunction]
pub(crate) fn call<'py>(
    py: Python<'py>,
    name: &str,
    args: Vec<OsString>,
    on_message: Py<PyAny>,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<(Bound<'py, PyBytes>, bool)> {
    let program = program(name)?;
    let args = [OsString::from(name)].into_iter().chain(args).collect();
    progress::observe(observe);
    let watch = Arc::new(Watch::default());
    let stop = Arc::new(AtomicBool::new(false));
    let tick = |py: Python<'_>| watch.report(py, &on_message, on_progress.as_ref());
    let result = wait::run(py, &stop, &tick, {
        let (watch, stop) = (Arc::clone(&watch), Arc::clone(&stop));
        move || {
            WATCH.set(Some(Arc::clone(&watch)));
            let on_message = Box::new(move |kind: Option<&'static str>, text: &str| {
                lock(&watch.messages).push((kind.unwrap_or("status"), text.to_owned()));
            });
            let result = embedded::run(program, args, on_message, &stop);
            WATCH.set(None);
            result
        }
    })?;
    match result {
        Ok(done) => Ok((PyBytes::new(py, &done.stdout), done.passed)),
        Err(failure) => Err(raise(py, failure)),
    }
}

thread_local! {
    /// The call that this thread works for.
    static WATCH: RefCell<Option<Arc<Watch>>> = const { RefCell::new(None) };
}

/// The call of each task in progress.
static TASKS: LazyLock<Mutex<HashMap<u64, Arc<Watch>>>> = LazyLock::new(Mutex::default);

/// Messages and tasks of a call, until the calling thread reports them.
#[derive(Default)]
struct Watch {
    messages: Mutex<Vec<(&'static str, String)>>,
    tasks: Mutex<Vec<Task>>,
}

/// A task in progress.
struct Task {
    id: u64,
    label: String,
    done: u64,
    total: u64,
    unit: &'static str,
    is_reported: bool,
    is_finished: bool,
}

impl Watch {
    /// Calls the callbacks with everything that is new.
    fn report(
        &self,
        py: Python<'_>,
        on_message: &Py<PyAny>,
        on_progress: Option<&Py<PyAny>>,
    ) -> PyResult<()> {
        let messages = std::mem::take(&mut *lock(&self.messages));
        for message in messages {
            on_message.call1(py, message)?;
        }
        let mut tasks = lock(&self.tasks);
        let mut changed = Vec::new();
        for task in tasks.iter_mut().filter(|task| !task.is_reported) {
            task.is_reported = true;
            changed.push((task.label.clone(), task.done, task.total, task.unit));
        }
        tasks.retain(|task| !task.is_finished);
        drop(tasks);
        if let Some(on_progress) = on_progress {
            for task in changed {
                on_progress.call1(py, task)?;
            }
        }
        Ok(())
    }
}

fn observe(id: u64, event: Event<'_>) {
    if let Event::Started { label, total, unit } = event {
        let Some(watch) = WATCH.with_borrow(Clone::clone) else {
            return;
        };
        lock(&watch.tasks).push(Task {
            id,
            label: label.to_owned(),
            done: 0,
            total,
            unit: match unit {
                Unit::Bytes => "bytes",
                Unit::Steps(name) => name,
            },
            is_reported: false,
            is_finished: false,
        });
        lock(&TASKS).insert(id, watch);
        return;
    }
    let watch = match event {
        Event::Finished => lock(&TASKS).remove(&id),
        _ => lock(&TASKS).get(&id).cloned(),
    };
    let Some(watch) = watch else { return };
    let mut tasks = lock(&watch.tasks);
    let Some(task) = tasks.iter_mut().find(|task| task.id == id) else {
        return;
    };
    match event {
        Event::Advanced { n } => {
            task.done = task.done.saturating_add(n).min(task.total);
            task.is_reported = false;
        }
        _ => task.is_finished = true,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
