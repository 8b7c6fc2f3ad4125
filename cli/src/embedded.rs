//! Commands that run inside of another program: the caller passes the arguments, and receives the report and
//! the messages instead of a terminal.
//!
//! Everything belongs to the thread that calls [`run`], so that several threads can run commands at once.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use schemas::report::Verdict;

use crate::interrupt::Interrupted;
use crate::{exit, flags, specconv, specrun};

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Converts, quantizes, splits and grafts.
    Specconv,
    /// Runs and verifies models.
    Specrun,
}

impl Program {
    /// Returns the program of that name.
    pub fn by_name(name: &str) -> Option<Program> {
        match name {
            "specconv" => Some(Program::Specconv),
            "specrun" => Some(Program::Specrun),
            _ => None,
        }
    }

    /// Runs a command as the process itself, and returns the exit code. Ends the process if the arguments are
    /// invalid.
    pub fn main(self, args: Vec<OsString>) -> u8 {
        crate::start();
        with_call(Call::new(args.clone(), Caller::Process), || {
            exit::code(match self {
                Program::Specconv => specconv::run(&specconv::Cli::from_args(args)),
                Program::Specrun => specrun::run(&specrun::Cli::from_args(args)),
            })
        })
        .0
    }
}

/// A line for the user: its kind (`note`, `warning`), if it has one, and its text.
pub type OnMessage = Box<dyn Fn(Option<&'static str>, &str)>;

/// The result of a command that ran.
#[derive(Clone, Debug)]
pub struct Done {
    /// Standard output of the command: its report as JSON, if `--json` is one of the arguments.
    pub stdout: Vec<u8>,
    /// False if a check failed: exit code 1.
    pub passed: bool,
}

/// The error of a command that could not run: exit code 2.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The error, on one line.
    pub message: String,
    /// The advice for the user.
    pub hint: Option<String>,
    /// True if the caller stopped the command.
    pub is_interrupted: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// Describes an error of a library as the programs do.
    pub fn of(error: impl Into<anyhow::Error>) -> Failure {
        let (message, hint) = exit::describe(&error.into());
        Failure {
            message,
            hint,
            is_interrupted: false,
        }
    }
}

/// A command that runs on this thread.
struct Call {
    args: Vec<OsString>,
    caller: Caller,
}

impl Call {
    fn new(args: Vec<OsString>, caller: Caller) -> Call {
        Call { args, caller }
    }
}

/// The receiver of a command's output.
enum Caller {
    /// The process itself: standard output and signals belong to the command.
    Process,
    /// Other code of the process.
    Code {
        stdout: Vec<u8>,
        on_message: OnMessage,
        stop: Arc<AtomicBool>,
    },
}

thread_local! {
    static CALL: RefCell<Option<Call>> = const { RefCell::new(None) };
}

/// Runs `work` as a call, and returns its result with the standard output.
fn with_call<T>(call: Call, work: impl FnOnce() -> T) -> (T, Vec<u8>) {
    CALL.set(Some(call));
    let result = work();
    let stdout = match CALL.take().map(|call| call.caller) {
        Some(Caller::Code { stdout, .. }) => stdout,
        _ => Vec::new(),
    };
    (result, stdout)
}

/// Runs a command. `args` begin with the name of the program. `stop` ends commands that write files or verify
/// models.
///
/// # Errors
/// The arguments are invalid, or the command could not run.
pub fn run(
    program: Program,
    args: Vec<OsString>,
    on_message: OnMessage,
    stop: &Arc<AtomicBool>,
) -> Result<Done, Failure> {
    let call = Call::new(
        args.clone(),
        Caller::Code {
            stdout: Vec::new(),
            on_message,
            stop: Arc::clone(stop),
        },
    );
    let (result, stdout) = with_call(call, || {
        let parsed = match program {
            Program::Specconv => specconv::Cli::parse_args(args).map(|cli| specconv::run(&cli)),
            Program::Specrun => specrun::Cli::parse_args(args).map(|cli| specrun::run(&cli)),
        };
        match parsed {
            Ok(Ok(verdict)) => Ok(verdict),
            Ok(Err(error)) => Err((exit::describe(&error), error.is::<Interrupted>())),
            Err(error) => Err((flags::describe(&error), false)),
        }
    });
    match result {
        Ok(verdict) => Ok(Done {
            stdout,
            passed: verdict == Verdict::Pass,
        }),
        Err(((message, hint), is_interrupted)) => Err(Failure {
            message,
            hint,
            is_interrupted: is_interrupted || stop.load(Ordering::Relaxed),
        }),
    }
}

/// Returns the arguments of the command on this thread; `None` if they are those of the process.
pub(crate) fn args() -> Option<Vec<OsString>> {
    CALL.with_borrow(|call| Some(call.as_ref()?.args.clone()))
}

/// Returns the flag that stops the command on this thread; `None` if signals do.
pub(crate) fn stop() -> Option<Arc<AtomicBool>> {
    CALL.with_borrow(|call| match &call.as_ref()?.caller {
        Caller::Process => None,
        Caller::Code { stop, .. } => Some(Arc::clone(stop)),
    })
}

/// True if the caller stops the command on this thread.
pub(crate) fn is_stopped() -> bool {
    stop().is_some_and(|stop| stop.load(Ordering::Relaxed))
}

/// Keeps standard output for the caller. Returns false if the command prints it.
pub(crate) fn write(bytes: &[u8]) -> bool {
    CALL.with_borrow_mut(|call| match call.as_mut().map(|call| &mut call.caller) {
        Some(Caller::Code { stdout, .. }) => {
            stdout.extend_from_slice(bytes);
            true
        }
        _ => false,
    })
}

/// Passes a line to the caller. Returns false if the command prints it.
pub(crate) fn message(kind: Option<&'static str>, text: &str) -> bool {
    CALL.with_borrow(|call| match call.as_ref().map(|call| &call.caller) {
        Some(Caller::Code { on_message, .. }) => {
            on_message(kind, text);
            true
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(args: &[&str], stop: bool) -> Result<Done, Failure> {
        let args = args.iter().map(OsString::from).collect();
        let stop = Arc::new(AtomicBool::new(stop));
        run(Program::Specconv, args, Box::new(|_, _| {}), &stop)
    }

    #[test]
    fn the_caller_receives_the_output() {
        let classes = call(&["specconv", "convert", "--print-supported-models"], false).unwrap();
        let text = String::from_utf8(classes.stdout).unwrap();
        assert!(classes.passed && text.contains("Qwen3ForCausalLM\n"));
    }

    #[test]
    fn an_error_has_the_texts_of_the_program() {
        let failure = call(&["specconv", "inspect", "/no/such.gguf"], false).unwrap_err();
        assert!(failure.message.starts_with("/no/such.gguf: "), "{failure}");
        let failure = call(&["specconv", "inspect", "--nope"], false).unwrap_err();
        assert_eq!(failure.message, "unexpected argument '--nope' found");
        let hint = failure.hint.unwrap();
        assert_eq!(hint, "\"specconv inspect --help\" lists all flags");
    }

    #[test]
    fn a_stopped_command_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out.gguf");
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-qwen35-mtp");
        let args = ["specconv", "convert", models, "-o", out.to_str().unwrap()];
        let failure = call(&args, true).unwrap_err();
        assert!(failure.is_interrupted && !out.exists(), "{failure}");
    }
}
