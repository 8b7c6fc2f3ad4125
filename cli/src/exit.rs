//! Exit codes, the same for every command: 0 done, 1 a check ran and failed, 2 could not run, 128 +
//! signal number if a signal ended the program (130 SIGINT, 143 SIGTERM, 129 SIGHUP).

use std::io;
use std::process::ExitCode;

use schemas::report::Verdict;

use crate::interrupt::Interrupted;
use crate::{hint, output};

/// Ends a program: prints an error on one line, then the hint that belongs to it, and returns the exit
/// code.
pub fn finish(result: anyhow::Result<Verdict>) -> ExitCode {
    ExitCode::from(code(result))
}

/// Prints the error of a command, if there is one, and returns the exit code.
///
/// A reader that closes our output early (`| head`) is not an error.
pub fn code(result: anyhow::Result<Verdict>) -> u8 {
    match result {
        Ok(Verdict::Pass) => 0,
        Ok(Verdict::Fail) => 1,
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) => {
            let (message, hint) = describe(&error);
            output::error(&message);
            if let Some(hint) = hint {
                output::hint(&hint);
            }
            let interrupted = error.downcast_ref::<Interrupted>();
            interrupted.map_or(2, Interrupted::exit_code)
        }
    }
}

/// Returns the message of an error, on one line, and its hint.
pub(crate) fn describe(error: &anyhow::Error) -> (String, Option<String>) {
    (chain(error), hint::of(error))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<output::StdoutError>()
        .is_some_and(|error| error.0.kind() == io::ErrorKind::BrokenPipe)
}

/// Formats an error and its causes, without causes that an earlier message already contains.
fn chain(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_chain_is_one_line_without_repetition() {
        let cause = io::Error::other("no\nspace");
        let error = Err::<(), _>(cause).context("m.gguf: no\nspace");
        let error = error.context("write").unwrap_err();
        assert_eq!(chain(&error), "write: m.gguf: no space");
    }
}
