//! Rejected arguments: flags that clap would misread, and flags of llama.cpp that were renamed.

use std::ffi::OsString;

use clap::Command;
use clap::error::ErrorKind;

use crate::output;

/// Flags that llama.cpp removed, and their replacements.
const REMOVED: [(&[&str], &str); 5] = [
    (
        &["--draft", "--draft-n", "--draft-max"],
        "--spec-draft-n-max for draft models and heads, or --spec-ngram-mod-n-max for ngram-mod",
    ),
    (
        &["--draft-min", "--draft-n-min"],
        "--spec-draft-n-min for draft models and heads, or --spec-ngram-mod-n-min for ngram-mod",
    ),
    (
        &["--spec-ngram-size-n"],
        "the --spec-ngram-*-size-n of the speculator, or --spec-ngram-mod-n-match",
    ),
    (
        &["--spec-ngram-size-m"],
        "the --spec-ngram-*-size-m of the speculator",
    ),
    (&["--spec-ngram-min-hits"], "--spec-ngram-map-k4v-min-hits"),
];

/// Ends the program if an argument begins with `-h` or `-V` but is longer: clap would read `-hf` as
/// `-h`, print the help and report success.
pub(crate) fn check(command: &mut Command, args: &[OsString]) {
    exit_with(command, flags(args).find_map(misread));
}

/// Ends the program if an argument is a flag that llama.cpp removed, and prints the new one.
pub(crate) fn check_removed(command: &mut Command, args: &[OsString]) {
    exit_with(command, flags(args).find_map(removed));
}

fn exit_with(command: &mut Command, problem: Option<String>) {
    if let Some(problem) = problem {
        exit(&command.error(ErrorKind::UnknownArgument, problem));
    }
}

/// Ends the program after a failed parse: prints the help that was asked for, or the error in the form of
/// all other errors.
pub(crate) fn exit(error: &clap::Error) -> ! {
    let is_error = error.exit_code() != 0
        && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !is_error {
        error.exit();
    }
    let (message, hint) = message_and_hint(&error.to_string());
    output::error(&message);
    if let Some(hint) = hint {
        output::hint(&hint);
    }
    std::process::exit(2);
}

/// Splits clap's text into the error on one line and the hint, if there is one.
fn message_and_hint(text: &str) -> (String, Option<String>) {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let (text, usage) = text.split_once("\n\nUsage: ").unwrap_or((text, ""));
    let text = text.split("\n\nFor more information").next();
    let text = text.unwrap_or_default();
    let mut paragraphs = text.split("\n\n");
    let lines = paragraphs.next().unwrap_or_default().lines();
    let message: Vec<&str> = lines.map(str::trim).collect();
    let tip = paragraphs.find_map(|text| text.trim().strip_prefix("tip: "));
    let hint = tip.map(str::to_owned).or_else(|| {
        let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
        let names: Vec<&str> = usage.split(' ').take_while(is_name).collect();
        let command = names.join(" ");
        (!names.is_empty()).then(|| format!("\"{command} --help\" lists all flags"))
    });
    (message.join(" "), hint)
}

/// Returns the arguments after the program name that can be flags.
fn flags(args: &[OsString]) -> impl Iterator<Item = &str> {
    let args = args.iter().skip(1);
    let args = args.take_while(|arg| *arg != "--");
    args.filter_map(|arg| arg.to_str())
}

fn misread(flag: &str) -> Option<String> {
    let mut shorts = ["-h", "-V"].iter();
    let is_longer = shorts.any(|short| flag.len() > 2 && flag.starts_with(short));
    is_longer.then(|| format!("unexpected argument '{flag}' found"))
}

fn removed(flag: &str) -> Option<String> {
    let name = flag.split_once('=').map_or(flag, |(name, _)| name);
    let found = REMOVED.iter().find(|(old, _)| old.contains(&name));
    found.map(|(_, new)| format!("{name} was removed. Use {new}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(args: &[&str], problem: fn(&str) -> Option<String>) -> Option<String> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        flags(&args).find_map(problem)
    }

    #[test]
    fn longer_forms_of_the_help_flag_are_rejected() {
        for args in [
            &["x", "-hg", "a"][..],
            &["x", "run", "-help"],
            &["x", "-Version"],
        ] {
            assert!(found(args, misread).is_some_and(|m| m.starts_with("unexpected argument '-")));
        }
        for args in [
            &["x", "-h"][..],
            &["x", "--help"],
            &["x", "--", "-hf"],
            &["-hx", "run"],
        ] {
            assert_eq!(found(args, misread), None);
        }
    }

    #[test]
    fn parse_errors_look_like_other_errors() {
        let parts = |text| message_and_hint(text);
        let owned = |(a, b): (&str, &str)| (a.to_owned(), Some(b.to_owned()));
        assert_eq!(
            parts(
                "error: unexpected argument '--nope' found\n\n  tip: a similar argument exists: \
                 '--no-x'\n\nUsage: x run --no-x\n\nFor more information, try '--help'.\n"
            ),
            owned((
                "unexpected argument '--nope' found",
                "a similar argument exists: '--no-x'"
            ))
        );
        assert_eq!(
            parts(
                "error: the following required arguments were not provided:\n  --file <F>\n\nUsage: \
                 x run --file <F>\n\nFor more information, try '--help'.\n"
            ),
            owned((
                "the following required arguments were not provided: --file <F>",
                "\"x run --help\" lists all flags"
            ))
        );
        let invalid =
            "error: invalid value 'a' for '-n <N>': b\n\nFor more information, try '--help'.\n";
        assert_eq!(
            parts(invalid),
            ("invalid value 'a' for '-n <N>': b".to_owned(), None)
        );
    }

    #[test]
    fn removed_flags_name_their_replacements() {
        let message = found(&["x", "generate", "--draft-max=8"], removed);
        assert_eq!(
            message.as_deref(),
            Some(
                "--draft-max was removed. Use --spec-draft-n-max for draft models and heads, or \
                 --spec-ngram-mod-n-max for ngram-mod"
            )
        );
        assert!(
            found(&["x", "--draft-min", "1"], removed)
                .is_some_and(|m| m.contains("--spec-draft-n-min"))
        );
    }
}
