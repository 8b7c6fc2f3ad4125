//! Ctrl-C and its like while files are being written: the writer stops and tidies up. At any other
//! time, and the second time, they end the process as they always do.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// A signal ended the work; the exit code is 128 and its number, as shells have it.
#[derive(Debug)]
pub struct Interrupted(pub u8);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by signal {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

struct Signals {
    /// Whether a signal does what it does by default.
    deadly: Arc<AtomicBool>,
    /// The last signal, 0 for none.
    received: Arc<AtomicUsize>,
}

impl Signals {
    /// Takes the signals over. Actions run in the order in which they are registered: the first
    /// signal makes the next one deadly.
    fn install() -> io::Result<Signals> {
        let signals = Signals {
            deadly: Arc::default(),
            received: Arc::default(),
        };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_default(signal, Arc::clone(&signals.deadly))?;
            flag::register_usize(signal, Arc::clone(&signals.received), signal as usize)?;
            flag::register(signal, Arc::clone(&signals.deadly))?;
        }
        // A limit on the size of files is an error like a full disk, not a reason to die.
        flag::register(SIGXFSZ, Arc::default())?;
        Ok(signals)
    }
}

/// Does work that asks whether to give up.
pub(crate) fn while_writing<T>(work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> T) -> T {
    static SIGNALS: OnceLock<Option<Signals>> = OnceLock::new();
    // A system that lets nobody handle signals handles them itself.
    let Some(signals) = SIGNALS.get_or_init(|| Signals::install().ok()) else {
        return work(&|| false);
    };
    signals.deadly.store(false, Ordering::Relaxed);
    let done = work(&|| signals.received.load(Ordering::Relaxed) != 0);
    signals.deadly.store(true, Ordering::Relaxed);
    LAST.store(signals.received.load(Ordering::Relaxed), Ordering::Relaxed);
    done
}

/// The signal that ended work, for those who report it.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// What work that gave up fails with.
pub(crate) fn interrupted() -> Interrupted {
    Interrupted(LAST.load(Ordering::Relaxed) as u8)
}
