//! [`StopStrings`]: finds stop strings in a text that arrives in pieces.

/// Searches a text for strings that end it. Text that may be the beginning of one is held back.
#[derive(Clone, Debug)]
pub(crate) struct StopStrings {
    strings: Vec<String>,
    held: String,
}

/// The result of adding a piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Text that is certainly part of the completion.
    pub(crate) text: String,
    /// The stop string that was found; `text` ends before it.
    pub(crate) found: Option<String>,
}

impl StopStrings {
    pub(crate) fn new(strings: &[String]) -> StopStrings {
        StopStrings {
            strings: strings.to_vec(),
            held: String::new(),
        }
    }

    /// Adds a piece of text.
    pub(crate) fn push(&mut self, piece: &str) -> Piece {
        self.held.push_str(piece);
        let found = self.strings.iter().filter_map(|stop| {
            let at = self.held.find(stop.as_str())?;
            Some((at, stop.clone()))
        });
        // The first in the text wins; of several that begin there, the first of the list.
        if let Some((at, stop)) = found.min_by_key(|&(at, _)| at) {
            self.held.truncate(at);
            return Piece {
                text: std::mem::take(&mut self.held),
                found: Some(stop),
            };
        }
        let n_held = self.n_possible();
        let rest = self.held.split_off(self.held.len() - n_held);
        Piece {
            text: std::mem::replace(&mut self.held, rest),
            found: None,
        }
    }

    /// Returns the text that was held back.
    pub(crate) fn finish(self) -> String {
        self.held
    }

    /// Returns the length of the longest end of the text that begins a stop string.
    fn n_possible(&self) -> usize {
        let ends = self.held.char_indices().map(|(at, _)| &self.held[at..]);
        let is_beginning = |end: &str| self.strings.iter().any(|stop| stop.starts_with(end));
        ends.into_iter()
            .find(|end| is_beginning(end))
            .map_or(0, str::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(strings: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let strings: Vec<String> = strings.iter().map(|&s| s.to_owned()).collect();
        let mut stops = StopStrings::new(&strings);
        let mut text = String::new();
        for piece in pieces {
            let piece = stops.push(piece);
            text += &piece.text;
            if piece.found.is_some() {
                return (text, piece.found);
            }
        }
        (text + &stops.finish(), None)
    }

    #[test]
    fn a_stop_string_may_be_spread_over_pieces() {
        for pieces in [&["a\n\nb"][..], &["a\n", "\nb"], &["a", "\n", "\n", "b"]] {
            let (text, found) = run(&["\n\n"], pieces);
            assert_eq!((&text[..], found.as_deref()), ("a", Some("\n\n")));
        }
    }

    #[test]
    fn the_first_one_in_the_text_wins() {
        assert_eq!(run(&["c", "b"], &["abc"]), ("a".into(), Some("b".into())));
        assert_eq!(
            run(&["bc", "b"], &["ab", "c"]),
            ("a".into(), Some("b".into()))
        );
    }

    #[test]
    fn text_without_one_is_complete() {
        assert_eq!(
            run(&["xyz", "é!"], &["ax", "xy", "é", "é"]),
            ("axxyéé".into(), None)
        );
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
    }
}
