//! Rejected arguments: flags that clap would misread, and flags of llama.cpp that were renamed or have no
//! counterpart.

use std::env;
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

/// Flags of llama.cpp and `hf` without a counterpart, and what to do instead.
const ABSENT: [(&[&str], &str); 10] = [
    (
        &[
            "-b",
            "--batch-size",
            "-ub",
            "--ubatch-size",
            "-fa",
            "--flash-attn",
            "--mlock",
            "--mmap",
            "--no-mmap",
            "--numa",
            "-kvu",
            "--kv-unified",
            "--no-warmup",
            "--color",
            "--jinja",
            "-e",
            "--escape",
            "--log-disable",
            "--no-perf",
            "--perf",
            "--no-display-prompt",
        ],
        "leave it out: specrun has no such setting",
    ),
    (
        &["-no-cnv", "--no-conversation"],
        "leave it out: without --chat the text is continued",
    ),
    (
        &[
            "-cnv",
            "--conversation",
            "-st",
            "--single-turn",
            "-i",
            "--interactive",
            "-sys",
            "--system-prompt",
        ],
        "--chat answers one prompt; for conversations run \"specrun serve\" and a client of its chat API",
    ),
    (
        &["-hff", "--hf-file"],
        "name the file with its repository: -m hf://org/name/FILE.gguf",
    ),
    (
        &["-hft", "--hf-token", "--token"],
        "set the variable HF_TOKEN",
    ),
    (
        &["--lora", "--lora-scaled", "--control-vector"],
        "merge the adapter into the model before it is converted",
    ),
    (
        &["-mm", "--mmproj", "-mmu", "--image", "--audio"],
        "specrun reads text; leave the vision or audio part of the model out",
    ),
    (
        &[
            "--rope-scaling",
            "--rope-scale",
            "--rope-freq-base",
            "--rope-freq-scale",
        ],
        "the keys of the file decide; \"specconv set-metadata\" changes them",
    ),
    (
        &[
            "--repeat-penalty",
            "--presence-penalty",
            "--frequency-penalty",
            "--grammar",
            "--grammar-file",
            "-j",
            "--json-schema",
        ],
        "leave it out: tokens are sampled with --temp, --top-k, --top-p and --min-p alone",
    ),
    (
        &["--type", "--ftype", "--quant", "--qtype"],
        "the type follows the output: \"specconv quantize model.gguf out.gguf Q4_K_M\"",
    ),
];

/// Messages of Rust's number parsers, and the same in the user's words.
const NUMBERS: [(&str, &str); 6] = [
    ("invalid digit found in string", "expected a whole number"),
    (
        "cannot parse integer from empty string",
        "expected a whole number",
    ),
    (
        "number would be zero for non-zero type",
        "expected 1 or more",
    ),
    (
        "number too large to fit in target type",
        "the number is too large",
    ),
    ("invalid float literal", "expected a number"),
    ("cannot parse float from empty string", "expected a number"),
];

/// Names of commands in other tools, and the command here.
const OTHER_NAMES: [(&[&str], &str); 8] = [
    (&["chat", "cli", "run"], "specrun generate"),
    (&["server"], "specrun serve"),
    (&["ppl"], "specrun perplexity"),
    (&["convert-hf-to-gguf", "import"], "specconv convert"),
    (&["show", "info", "dump"], "specconv inspect"),
    (&["gguf-split"], "specconv split"),
    (
        &["check", "lint", "preflight", "validate"],
        "specrun verify --check fit",
    ),
    (
        &["download", "fetch", "pull"],
        "specrun generate -hf org/name[:TYPE], which downloads the file once",
    ),
];

/// Rejects arguments that begin with `-h` or `-V` but are longer: clap would read `-hf` as `-h`, print the
/// help and report success. Other short flags of llama.cpp with several letters would be read as a flag
/// with its value.
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
    let (message, hint) = message_and_hint(&error.to_string());
    let variable = variable(&message, variables());
    (message, variable.or(hint))
}

/// Returns the environment variables that are text.
fn variables() -> impl Iterator<Item = (String, String)> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    env::vars_os().filter_map(text)
}

/// Names the environment variable that an invalid value comes from.
fn variable(message: &str, variables: impl Iterator<Item = (String, String)>) -> Option<String> {
    let (value, _) = message
        .strip_prefix("invalid value '")?
        .split_once("' for '")?;
    let is_ours = |name: &str| {
        ["LLAMA_", "SPEC"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let mut variables = variables.filter(|(name, found)| is_ours(name) && found == value);
    let (name, _) = variables.next()?;
    Some(format!("the environment sets it: {name}={value}"))
}

/// Splits clap's text into the error on one line and the hint, if there is one.
fn message_and_hint(text: &str) -> (String, Option<String>) {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let (text, usage) = text.split_once("\n\nUsage: ").unwrap_or((text, ""));
    let text = text.split("\n\nFor more information").next();
    let text = text.unwrap_or_default();
    let mut paragraphs = text.split("\n\n");
    let lines = paragraphs.next().unwrap_or_default().lines();
    let lines: Vec<&str> = lines.map(str::trim).collect();
    let mut message = lines.join(" ");
    for (found, plain) in NUMBERS {
        if let Some(start) = message.strip_suffix(found) {
            message = format!("{start}{plain}");
        }
    }
    let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
    let names: Vec<&str> = usage.split(' ').take_while(is_name).collect();
    if let Some(hint) = advice(&message, &names) {
        return (message, Some(hint));
    }
    let tip = paragraphs.find_map(|text| text.trim().strip_prefix("tip: "));
    let tip = tip.filter(|tip| is_similar(tip, &message));
    let hint = tip.map(str::to_owned).or_else(|| {
        let list = format!("\"{} --help\" lists all flags", names.join(" "));
        // A wrong number of arguments needs the whole line, not a list of flags.
        let example = example(&names).filter(|_| !message.starts_with("unexpected argument '-"));
        let example = example.filter(|_| !message.starts_with("invalid value"));
        (!names.is_empty()).then(|| match example {
            Some(example) => format!("for example \"{example}\"; {list}"),
            None => list,
        })
    });
    (message, hint)
}

/// Returns the first example of a command.
fn example(names: &[&str]) -> Option<String> {
    let [program, command] = names else {
        return None;
    };
    let topics = match *program {
        "specconv" => help::specconv::TOPICS,
        _ => help::specrun::TOPICS,
    };
    let topic = topics.iter().find(|topic| topic.command == *command)?;
    let example = topic.examples.first()?;
    Some(format!("{program} {command} {example}"))
}

/// Checks whether the name that clap suggests can be what the user meant: it also suggests names that share
/// a few letters, and to pass an unknown flag as a value.
fn is_similar(tip: &str, message: &str) -> bool {
    let quoted = |text: &str| Some(text.split('\'').nth(1)?.trim_start_matches('-').to_owned());
    let is_alike = |(found, suggested): (String, String)| {
        quantize::nearest(&found, [suggested.as_str()]).is_some()
    };
    tip.contains("similar") && quoted(message).zip(quoted(tip)).is_some_and(is_alike)
}

/// Advice for flags and words of other tools, for a word where a command belongs, and for a negative number.
/// `names` are program and command.
fn advice(message: &str, names: &[&str]) -> Option<String> {
    if message == "unexpected argument '-1' found" {
        return Some(
            "numbers here are not negative; for long texts pass a large one: -n 100000".to_owned(),
        );
    }
    let flag = message.strip_prefix("unexpected argument '");
    if let Some(flag) = flag.and_then(|flag| flag.strip_suffix("' found"))
        && flag.starts_with('-')
    {
        let absent = ABSENT.iter().find(|(flags, _)| flags.contains(&flag));
        if let Some((_, hint)) = absent {
            return Some((*hint).to_owned());
        }
        if ["-p", "--prompt"].contains(&flag) && names.get(1) == Some(&"verify") {
            return Some(
                "the prompts are in a file: -f prompts.jsonl, with lines such as {\"id\": \"a\", \"prompt\": \"text\"}"
                    .to_owned(),
            );
        }
        if let [program] = names {
            let command = if *program == "specrun" {
                "generate"
            } else {
                "quantize"
            };
            return Some(format!(
                "a command comes first, such as \"{program} {command}\"; \"{program} --help\" lists all"
            ));
        }
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
            "this program was built without the feature serve; install it with all: cargo install --locked --path cli --features full"
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
    // "run" is a command of specconv, but not the one that users of other tools mean.
    let other = other.map(|(_, command)| (*command).to_owned());
    let command = other.or(own)?;
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
    let is_long = flag.starts_with("--") || flag.len() == 2;
    let is_absent = !is_long && ABSENT.iter().any(|(flags, _)| flags.contains(&flag));
    (is_longer || is_absent).then(|| format!("unexpected argument '{flag}' found"))
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
            &["x", "generate", "m.gguf", "-cnv"],
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
                "error: unexpected argument '--no-xi' found\n\n  tip: a similar argument exists: \
                 '--no-x'\n\nUsage: x run --no-x\n\nFor more information, try '--help'.\n"
            ),
            owned((
                "unexpected argument '--no-xi' found",
                "a similar argument exists: '--no-x'"
            ))
        );
        // Suggestions that are not similar are left out.
        for tip in [
            "to pass '--why' as a value, use '-- --why'",
            "a similar argument exists: '--no-x'",
        ] {
            let text = format!(
                "error: unexpected argument '--why' found\n\n  tip: {tip}\n\nUsage: x run --no-x\n"
            );
            let hint = message_and_hint(&text).1.unwrap();
            assert_eq!(hint, "\"x run --help\" lists all flags");
        }
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
        let (message, _) =
            parts("error: invalid value 'a' for '-n <N>': invalid digit found in string\n");
        assert_eq!(
            message,
            "invalid value 'a' for '-n <N>': expected a whole number"
        );
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let variables = [set("HOME", "a"), set("LLAMA_ARG_N_PREDICT", "a")];
        assert_eq!(
            variable(&message, variables.into_iter()).as_deref(),
            Some("the environment sets it: LLAMA_ARG_N_PREDICT=a")
        );
    }

    #[test]
    fn words_that_are_no_command_get_advice() {
        let hint = |word: &str| advice(&format!("unrecognized subcommand '{word}'"), &["x"]);
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
        assert!(advice("unexpected argument '-1' found", &["x", "y"]).is_some());
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
