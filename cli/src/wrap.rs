//! Breaks long lines at the width of the terminal, between words.

use std::env;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use terminal_size::{Width, terminal_size_of};

use crate::embedded;

/// Columns under which lines are not broken: every word would be a line.
const MIN_WIDTH: usize = 20;
/// Additional indentation of the lines that continue another.
const INDENT: usize = 2;

/// Returns the width of the terminal that shows a stream. `None` for files and pipes, whose lines are kept
/// whole for grep, and for output that the caller of an embedded command receives.
///
/// COLUMNS decides only where the terminal does not know its width: libraries such as readline set it, and the
/// programs that an interpreter starts inherit it.
pub(crate) fn width_of(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    if embedded::stop().is_some() {
        return None;
    }
    let of_terminal = || terminal_size_of(stream).map(|(Width(columns), _)| columns.into());
    let of_variable = || env::var("COLUMNS").ok()?.parse().ok();
    if !stream.is_terminal() {
        return None;
    }
    let width = of_terminal().or_else(of_variable);
    width.filter(|&width| width >= MIN_WIDTH)
}

/// Breaks lines that are longer than `width`. The lines that continue one are indented. Text in double quotes
/// stays on one line, and so do lines that begin with "$ ", so that commands can be copied.
pub(crate) fn wrap(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else {
        return text.to_owned();
    };
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| wrap_line(line, width))
        .collect();
    lines.join("\n")
}

fn wrap_line(line: &str, width: usize) -> String {
    let body = line.trim_start_matches(' ');
    if len(line) <= width || body.starts_with("$ ") {
        return line.to_owned();
    }
    let indent = line.len() - body.len();
    let mut wrapped = " ".repeat(indent);
    let mut column = indent;
    // Nothing was written after the indentation.
    let mut is_empty = true;
    for (gap, word) in words(body) {
        let is_over = column + gap + len(word) > width;
        if is_over && !is_empty {
            column = indent + INDENT;
            wrapped += "\n";
            wrapped += &" ".repeat(column);
        } else {
            column += gap;
            wrapped += &" ".repeat(gap);
        }
        wrapped += word;
        column += len(word);
        is_empty = false;
    }
    wrapped
}

fn len(text: &str) -> usize {
    text.chars().count()
}

/// Returns the words of a line, each with the number of spaces before it. A quoted text is part of a word.
fn words(line: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let mut rest = line;
    while !rest.is_empty() {
        let word = rest.trim_start_matches(' ');
        let gap = rest.len() - word.len();
        let (word, after) = word.split_at(word_len(word));
        words.push((gap, word));
        rest = after;
    }
    words
}

/// Returns the length of the first word in bytes, to the next space outside of quotes.
fn word_len(text: &str) -> usize {
    let mut quoted_until = 0;
    for (i, c) in text.char_indices() {
        match c {
            _ if i < quoted_until => {}
            ' ' => return i,
            // A quote without its end is an ordinary character.
            '"' => quoted_until = text[i + 1..].find('"').map_or(0, |n| i + n + 2),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        let at = |text| wrap(text, Some(20));
        assert_eq!(at("one two three four five"), "one two three four\n  five");
        assert_eq!(
            at("  indented: two three four\nnext"),
            "  indented: two\n    three four\nnext"
        );
        assert_eq!(
            wrap("one two three four five", None),
            "one two three four five"
        );
        // A word that is longer than a line is kept whole.
        assert_eq!(
            at("/a/very/long/path/model.gguf: fault"),
            "/a/very/long/path/model.gguf:\n  fault"
        );
        // Aligned columns stay aligned where nothing is broken.
        assert_eq!(at("  a    1  b    2"), "  a    1  b    2");
    }

    #[test]
    fn commands_stay_on_one_line() {
        let at = |text| wrap(text, Some(20));
        assert_eq!(
            at("hint: run \"specconv convert DIR -o m.gguf\" first"),
            "hint: run\n  \"specconv convert DIR -o m.gguf\"\n  first"
        );
        assert_eq!(
            at("  $ curl -s http://localhost"),
            "  $ curl -s http://localhost"
        );
        assert_eq!(
            at("a screen of 5\" is too small"),
            "a screen of 5\" is\n  too small"
        );
        assert_eq!(at("äöü äöü äöü äöü äöü"), "äöü äöü äöü äöü äöü");
    }
}
