//! Signal handling of both programs.
//!
//! SIGINT, SIGTERM and SIGHUP end a program with exit code 128 + signal number. While files are being
//! written, the first signal makes the writer stop and remove its partial files; the second signal ends
//! the program at once. A command whose files are published ends with 0.

use std::fmt;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::embedded;

/// The error of work that a signal interrupted.
#[derive(Debug)]
pub struct Interrupted(pub u8);

impl Interrupted {
    /// Returns the exit code, 128 + signal number as in shells.
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
    /// True if the next signal ends the program at once.
    ends_program: Arc<AtomicBool>,
    /// The last signal received; 0 for none.
    received: Arc<AtomicUsize>,
}

static SIGNALS: OnceLock<Signals> = OnceLock::new();

/// Installs the signal handlers. Both programs call this first.
pub fn install() {
    SIGNALS.get_or_init(|| {
        let signals = Signals {
            ends_program: Arc::new(AtomicBool::new(true)),
            received: Arc::default(),
        };
        // If handlers cannot be installed, the system's defaults apply.
        let _ = signals.register();
        signals
    });
}

impl Signals {
    /// Registers the actions of each signal. They run in the order of registration, so the first signal
    /// lets the next one end the program.
    fn register(&self) -> io::Result<()> {
        // Exceeding the file size limit is an error like a full disk, not a reason to be killed.
        flag::register(SIGXFSZ, Arc::default())?;
        let ignored = ignored_signals();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            if ignored >> (signal - 1) & 1 == 1 {
                continue;
            }
            let exit_code = i32::from(Interrupted(signal as u8).exit_code());
            let ends_program = || Arc::clone(&self.ends_program);
            flag::register_conditional_shutdown(signal, exit_code, ends_program())?;
            flag::register_usize(signal, Arc::clone(&self.received), signal as usize)?;
            flag::register(signal, ends_program())?;
        }
        Ok(())
    }
}

/// Returns the signals that the parent process set to be ignored, as `nohup` does with SIGHUP: one bit
/// each, from signal 1. They stay ignored.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Runs work that writes files. The work gets a function that returns true when it should stop, and
/// fails with [`Interrupted`] if a signal stopped it.
///
/// When the work has succeeded, its files are published and only printing remains. A signal that arrives
/// then does not change the exit code, which would claim that nothing was written. Commands that
/// continue call [`after_writing`].
///
/// # Errors
/// The work failed, or a signal stopped it.
pub(crate) fn while_writing<T>(
    work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if let Some(stop) = embedded::stop() {
        return work(&|| stop.load(Ordering::Relaxed));
    }
    let Some(signals) = SIGNALS.get() else {
        return work(&|| false);
    };
    signals.ends_program.store(false, Ordering::Relaxed);
    let done = work(&|| signals.received.load(Ordering::Relaxed) != 0);
    match (done, signals.received.load(Ordering::Relaxed)) {
        (Err(_), signal @ 1..) => Err(Interrupted(signal as u8).into()),
        (done, _) => done,
    }
}

/// Runs work that a signal asks to end, such as a server. The work gets a function that returns true from
/// then on; the second signal ends the program at once.
#[cfg(feature = "serve")]
pub(crate) fn while_serving<T>(work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> T) -> T {
    let Some(signals) = SIGNALS.get() else {
        return work(&|| false);
    };
    signals.ends_program.store(false, Ordering::Relaxed);
    work(&|| signals.received.load(Ordering::Relaxed) != 0)
}

/// Lets a signal end the program at once again, in a command that continues after writing files.
///
/// # Errors
/// A signal has arrived since the files were written.
pub(crate) fn after_writing() -> Result<(), Interrupted> {
    let Some(signals) = SIGNALS.get() else {
        return Ok(());
    };
    signals.ends_program.store(true, Ordering::Relaxed);
    match signals.received.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(Interrupted(signal as u8)),
    }
}
