//! Rejected arguments: flags that clap would misread, and flags of llama.cpp that were renamed.

use std::ffi::OsString;

use clap::Command;
use clap::error::ErrorKind;

use crate::{help, output};

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

/// Names of commands in other tools, and the command here.
const OTHER_NAMES: [(&[&str], &str); 6] = [
    (&["chat", "cli", "run"], "specrun generate"),
    (&["server"], "specrun serve"),
    (&["ppl"], "specrun perplexity"),
    (&["convert-hf-to-gguf", "import"], "specconv convert"),
    (&["show", "info", "dump"], "specconv inspect"),
    (&["gguf-split"], "specconv split"),
];

/// Rejects arguments that begin with `-h` or `-V` but are longer: clap would read `-hf` as `-h`, print the
/// help and report success.
pub(crate) fn check(command: &mut Command, args: &[OsString]) -> Result<(), clap::Error> {
    reject(command, flags(args).find_map(misread))
}

/// Rejects flags that llama.cpp removed, and names the new ones.
pub(crate) fn check_removed(command: &mut Command, args: &[OsString]) -> Result<(), clap::Error> {
    reject(command, flags(args).find_map(removed))
}

fn reject(command: &mut Command, problem: Option<String>) -> Result<(), clap::Error> {
    match problem {
        Some(problem) => Err(command.error(ErrorKind::UnknownArgument, problem)),
        None => Ok(()),
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
    let (message, hint) = describe(error);
    output::error(&message);
    if let Some(hint) = hint {
        output::hint(&hint);
    }
    std::process::exit(2);
}

/// Returns the message of a failed parse, on one line, and its hint.
pub(crate) fn describe(error: &clap::Error) -> (String, Option<String>) {
    message_and_hint(&error.to_string())
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
    if let Some(hint) = advice(&message.join(" ")) {
        return (message.join(" "), Some(hint));
    }
    let tip = paragraphs.find_map(|text| text.trim().strip_prefix("tip: "));
    let hint = tip.map(str::to_owned).or_else(|| {
        let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
        let names: Vec<&str> = usage.split(' ').take_while(is_name).collect();
        let command = names.join(" ");
        (!names.is_empty()).then(|| format!("\"{command} --help\" lists all flags"))
    });
    (message.join(" "), hint)
}

/// Advice for a word where a command belongs, and for a negative number.
fn advice(message: &str) -> Option<String> {
    if message == "unexpected argument '-1' found" {
        return Some(
            "numbers here are not negative; for long texts pass a large one: -n 100000".to_owned(),
        );
    }
    let word = message
        .strip_prefix("unrecognized subcommand '")?
        .strip_suffix('\'')?;
    if word.ends_with(".gguf") || word.contains('/') {
        return Some(format!(
            "a command comes first: specrun generate {word}, specrun verify {word} or specconv inspect {word}"
        ));
    }
    if ["serve", "server"].contains(&word) && cfg!(not(feature = "serve")) {
        return Some(
            "this program was built without the feature serve; install it with its default features: cargo install --locked --path cli"
                .to_owned(),
        );
    }
    let programs = [
        ("specconv", help::specconv::TOPICS),
        ("specrun", help::specrun::TOPICS),
    ];
    let own = programs
        .into_iter()
        .find(|(_, topics)| topics.iter().any(|t| t.command == word));
    let own = own.map(|(program, _)| format!("{program} {word}"));
    let other = OTHER_NAMES.iter().find(|(names, _)| names.contains(&word));
    let command = own.or_else(|| other.map(|(_, command)| (*command).to_owned()))?;
    Some(format!("the command is \"{command}\""))
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
    fn words_that_are_no_command_get_advice() {
        let hint = |word: &str| advice(&format!("unrecognized subcommand '{word}'"));
        assert!(hint("m.gguf").is_some_and(|hint| hint.contains("specrun generate m.gguf")));
        assert_eq!(
            hint("run").as_deref(),
            Some("the command is \"specrun generate\"")
        );
        assert_eq!(
            hint("quantize").as_deref(),
            Some("the command is \"specconv quantize\"")
        );
        assert_eq!(hint("quantise"), None);
        assert!(advice("unexpected argument '-1' found").is_some());
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
