//! Runs code that may panic: a panic becomes a message instead of the end of the program.
//!
//! The message of the panic is kept with its location and is not printed. Panics outside of
//! [`catch_panic`] are reported as before.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

thread_local! {
    /// Nesting depth of [`catch_panic`] on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// The last panic of this thread that was not printed.
    static OWN: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Number of threads inside [`catch_panic`].
static N_INSIDE: AtomicUsize = AtomicUsize::new(0);
/// The last panic of a worker thread.
static WORKER: Mutex<Option<String>> = Mutex::new(None);
/// Prefix of the names of the CPU backend's worker threads; it resumes their panics on the calling
/// thread.
const WORKER_PREFIX: &str = "cpu-";

/// Runs code and returns its result, or the message of its panic.
///
/// # Errors
/// The code panicked.
pub(super) fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            if !keep(info) {
                previous(info);
            }
        }));
    });
    DEPTH.set(DEPTH.get() + 1);
    N_INSIDE.fetch_add(1, Ordering::SeqCst);
    let result = catch_unwind(AssertUnwindSafe(run));
    N_INSIDE.fetch_sub(1, Ordering::SeqCst);
    DEPTH.set(DEPTH.get() - 1);
    result.map_err(|_| {
        let own = OWN.take();
        let worker = || WORKER.lock().unwrap_or_else(PoisonError::into_inner).take();
        let message = own.or_else(worker);
        format!("panicked{}", message.unwrap_or_default())
    })
}

/// Keeps the message of a panic that [`catch_panic`] will return; false for any other panic.
fn keep(info: &PanicHookInfo<'_>) -> bool {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or_default();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let place = info.location().map(ToString::to_string);
    let place = place.map_or(String::new(), |place| format!(" at {place}"));
    let message = format!("{place}: {}", lines.join(", "));
    let is_worker = || {
        let thread = thread::current();
        thread
            .name()
            .is_some_and(|name| name.starts_with(WORKER_PREFIX))
            && N_INSIDE.load(Ordering::SeqCst) > 0
    };
    if DEPTH.get() > 0 {
        OWN.set(Some(message));
    } else if is_worker() {
        *WORKER.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
    } else {
        return false;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because concurrent callers would take each other's messages of worker threads.
    #[test]
    fn panics_become_messages() {
        assert_eq!(catch_panic(|| 3), Ok(3));
        let message = catch_panic(|| assert_eq!(1, 2, "sizes")).unwrap_err();
        assert!(message.starts_with("panicked at "), "{message}");
        assert!(message.contains("catch_panic.rs:"), "{message}");
        assert!(message.ends_with("sizes, left: 1, right: 2"), "{message}");
        // A panic that was caught inside does not replace the message of a later one.
        let nested = catch_panic(|| catch_panic(|| panic!("inner")).is_err());
        assert_eq!(nested, Ok(true));
        let later = catch_panic(|| std::panic::resume_unwind(Box::new(())));
        assert_eq!(later, Err("panicked".to_owned()));

        let thread = thread::Builder::new().name(format!("{WORKER_PREFIX}0"));
        let message = catch_panic(|| {
            let thread = thread.spawn(|| panic!("far away")).unwrap();
            let panic = thread.join().unwrap_err();
            std::panic::resume_unwind(panic)
        });
        assert!(message.unwrap_err().ends_with(": far away"));
    }
}
