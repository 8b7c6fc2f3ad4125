//! Signals, for both programs.
//!
//! SIGINT, SIGTERM and SIGHUP end a program with exit code 128 and the number of the signal. While files
//! are being written the first signal makes the writer stop and remove what it began; the second one
//! ends the program at once. A command whose files are published ends with 0.

use std::fmt;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// A signal ended the work.
#[derive(Debug)]
pub struct Interrupted(pub u8);

impl Interrupted {
    /// The exit code, by the convention of shells.
    pub fn exit_code(&self) -> u8 {
        128 + self.0
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by signal {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

struct Signals {
    /// Whether a signal ends the program at once.
    deadly: Arc<AtomicBool>,
    /// The last signal, 0 for none.
    received: Arc<AtomicUsize>,
}

static SIGNALS: OnceLock<Signals> = OnceLock::new();

/// Takes the signals over. Both programs call this first.
pub fn install() {
    SIGNALS.get_or_init(|| {
        let signals = Signals {
            deadly: Arc::new(AtomicBool::new(true)),
            received: Arc::default(),
        };
        // A system that does not allow handlers keeps its own rules.
        let _ = signals.register();
        signals
    });
}

impl Signals {
    /// Actions run in the order in which they are registered: the first signal makes the next one
    /// deadly.
    fn register(&self) -> io::Result<()> {
        // A limit on the size of files is an error like a full disk, not a reason to die.
        flag::register(SIGXFSZ, Arc::default())?;
        let ignored = ignored_signals();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            if ignored >> (signal - 1) & 1 == 1 {
                continue;
            }
            let exit_code = i32::from(Interrupted(signal as u8).exit_code());
            let deadly = || Arc::clone(&self.deadly);
            flag::register_conditional_shutdown(signal, exit_code, deadly())?;
            flag::register_usize(signal, Arc::clone(&self.received), signal as usize)?;
            flag::register(signal, deadly())?;
        }
        Ok(())
    }
}

/// The signals that the caller had this program ignore, as `nohup` does with SIGHUP: one bit each,
/// from signal 1. They stay ignored.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Does work that writes files. The work is given a function that tells whether to give up, and fails
/// with [`Interrupted`] if it gave up because of a signal.
///
/// When the work has succeeded, its files are published and the command is done but for printing. A
/// signal that arrives then does not change the exit code, which would claim that nothing was written.
/// Commands that continue call [`after_writing`].
///
/// # Errors
/// Those of the work.
pub(crate) fn while_writing<T>(
    work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let Some(signals) = SIGNALS.get() else {
        return work(&|| false);
    };
    signals.deadly.store(false, Ordering::Relaxed);
    let done = work(&|| signals.received.load(Ordering::Relaxed) != 0);
    match (done, signals.received.load(Ordering::Relaxed)) {
        (Err(_), signal @ 1..) => Err(Interrupted(signal as u8).into()),
        (done, _) => done,
    }
}

/// Lets a signal end the program at once again, in a command that continues after it has written files.
///
/// # Errors
/// A signal arrived since.
pub(crate) fn after_writing() -> Result<(), Interrupted> {
    let Some(signals) = SIGNALS.get() else {
        return Ok(());
    };
    signals.deadly.store(true, Ordering::Relaxed);
    match signals.received.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(Interrupted(signal as u8)),
    }
}
