//! Progress of long work, as `log` does it for messages: libraries report to [`Task`], and the program
//! installs one observer that shows it. Without an observer, reports cost nothing and go nowhere.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Unit of a task's amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes read or written.
    Bytes,
    /// Texts, passes or other equal steps, with their plural name.
    Steps(&'static str),
}

/// A change of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The task begins.
    Started {
        /// Name for the user.
        label: &'a str,
        /// Amount of work.
        total: u64,
        /// Unit of the amounts.
        unit: Unit,
    },
    /// Some of the work is done.
    Advanced {
        /// Amount done since the last event.
        n: u64,
    },
    /// The task ended, complete or not.
    Finished,
}

/// Receiver of all events; the number identifies the task.
pub type Observer = fn(u64, Event<'_>);

static OBSERVER: OnceLock<Observer> = OnceLock::new();
static N_TASKS: AtomicU64 = AtomicU64::new(0);

/// Installs the observer of this process; only the first call has an effect.
pub fn observe(observer: Observer) {
    let _ = OBSERVER.set(observer);
}

/// Work that takes long enough to be watched. Threads may share it; it ends when it is dropped.
#[derive(Debug)]
pub struct Task {
    id: u64,
}

impl Task {
    /// Begins work of `total` units under a name such as `hash model.gguf`.
    pub fn start(label: &str, total: u64, unit: Unit) -> Task {
        let id = N_TASKS.fetch_add(1, Ordering::Relaxed);
        report(id, Event::Started { label, total, unit });
        Task { id }
    }

    /// Reports that `n` more units are done.
    pub fn advance(&self, n: u64) {
        report(self.id, Event::Advanced { n });
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        report(self.id, Event::Finished);
    }
}

fn report(id: u64, event: Event<'_>) {
    if let Some(observer) = OBSERVER.get() {
        observer(id, event);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn record(id: u64, event: Event<'_>) {
        SEEN.lock().unwrap().push(format!("{id} {event:?}"));
    }

    #[test]
    fn a_task_ends_when_it_is_dropped() {
        observe(record);
        let task = Task::start("read", 2, Unit::Steps("files"));
        task.advance(1);
        drop(task);
        let expected = [
            "0 Started { label: \"read\", total: 2, unit: Steps(\"files\") }",
            "0 Advanced { n: 1 }",
            "0 Finished",
        ];
        assert_eq!(*SEEN.lock().unwrap(), expected);
    }
}
