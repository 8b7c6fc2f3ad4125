//! [`ReasoningSplitter`]: separates the reasoning of a reply from its content.

/// The tags around the reasoning of a reply.
pub(crate) const TAGS: [&str; 2] = ["<think>", "</think>"];

/// Separates the reasoning of a text that arrives in pieces. Whitespace around the tags belongs to neither
/// part.
#[derive(Clone, Debug)]
pub(crate) struct ReasoningSplitter {
    state: State,
    /// Text that may be whitespace at the end of a part, or the beginning of a tag.
    held: String,
}

/// Position in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first tag.
    Start,
    /// After the opening tag, before the first character.
    Opened,
    /// Inside the reasoning.
    Reasoning,
    /// After the closing tag, before the first character.
    Closed,
    /// After the reasoning, or in a text without any.
    Content,
}

/// The two parts of a reply, or of a piece of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplyParts {
    pub(crate) reasoning: String,
    pub(crate) content: String,
}

impl ReplyParts {
    /// Appends the parts of the next piece.
    pub(crate) fn extend(&mut self, next: &ReplyParts) {
        self.reasoning.push_str(&next.reasoning);
        self.content.push_str(&next.content);
    }
}

impl ReasoningSplitter {
    /// Creates a splitter; all text is content unless `is_split` is set.
    pub(crate) fn new(is_split: bool) -> ReasoningSplitter {
        ReasoningSplitter {
            state: match is_split {
                true => State::Start,
                false => State::Content,
            },
            held: String::new(),
        }
    }

    /// Adds a piece of text.
    pub(crate) fn push(&mut self, piece: &str) -> ReplyParts {
        let mut parts = ReplyParts::default();
        self.held.push_str(piece);
        while self.advance(&mut parts) {}
        parts
    }

    /// Returns the text that was held back at the end.
    pub(crate) fn finish(mut self) -> ReplyParts {
        let mut parts = ReplyParts::default();
        match self.state {
            State::Start | State::Content => parts.content = self.held,
            State::Opened | State::Reasoning => {
                self.held.truncate(self.held.trim_end().len());
                parts.reasoning = self.held;
            }
            State::Closed => {}
        }
        parts
    }

    /// Takes text from what is held. Returns true if the state has changed.
    fn advance(&mut self, parts: &mut ReplyParts) -> bool {
        let [opening, closing] = TAGS;
        let next = match self.state {
            State::Start => {
                let text = self.held.trim_start();
                if opening.starts_with(text) {
                    return false;
                }
                match text.strip_prefix(opening) {
                    Some(rest) => {
                        self.held = rest.to_owned();
                        State::Opened
                    }
                    None => State::Content,
                }
            }
            State::Opened | State::Closed => {
                self.held = self.held.trim_start().to_owned();
                match (self.held.is_empty(), self.state) {
                    (true, _) => return false,
                    (false, State::Opened) => State::Reasoning,
                    (false, _) => State::Content,
                }
            }
            State::Reasoning => match self.held.split_once(closing) {
                Some((reasoning, rest)) => {
                    parts.reasoning.push_str(reasoning.trim_end());
                    self.held = rest.to_owned();
                    State::Closed
                }
                None => {
                    let certain = n_certain(&self.held, closing);
                    parts.reasoning.extend(self.held.drain(..certain));
                    return false;
                }
            },
            State::Content => {
                parts.content.push_str(&std::mem::take(&mut self.held));
                return false;
            }
        };
        self.state = next;
        true
    }
}

/// Returns the length of the text without whitespace and the beginning of a tag at its end.
fn n_certain(text: &str, tag: &str) -> usize {
    let ends = text.char_indices().map(|(at, _)| &text[at..]);
    let begun = ends.into_iter().find(|end| tag.starts_with(end));
    let rest = text.len() - begun.map_or(0, str::len);
    text[..rest].trim_end().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, n: usize) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(true);
        let mut whole = ReplyParts::default();
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(n) {
            whole.extend(&splitter.push(&piece.iter().collect::<String>()));
        }
        whole.extend(&splitter.finish());
        (whole.reasoning, whole.content)
    }

    #[test]
    fn the_parts_do_not_depend_on_the_pieces() {
        for (text, reasoning, content) in [
            ("<think>\na < b\n\n</think>\n\nc\n", "a < b", "c\n"),
            ("\n<think>é </thin </think>x", "é </thin", "x"),
            ("<think>\n\n</think>\n\nx </think>", "", "x </think>"),
            ("<think>open \n", "open", ""),
            ("no <think>tag</think>", "", "no <think>tag</think>"),
            (" <thi", "", " <thi"),
            ("", "", ""),
        ] {
            for n in 1..8 {
                let expected = (reasoning.to_owned(), content.to_owned());
                assert_eq!(split(text, n), expected, "{text:?} in pieces of {n}");
            }
        }
    }

    #[test]
    fn text_that_is_not_split_is_content() {
        let mut splitter = ReasoningSplitter::new(false);
        assert_eq!(splitter.push("<think>a").content, "<think>a");
        assert_eq!(splitter.finish(), ReplyParts::default());
    }
}
