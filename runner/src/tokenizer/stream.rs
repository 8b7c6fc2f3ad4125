//! Text from tokens as they come, although a character may be spread over several of them.

use super::{ControlText, Tokenizer};

/// Turns tokens into text one by one. What all calls return, joined, is what
/// [`Tokenizer::decode`] makes of all the tokens.
#[derive(Clone)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    control: ControlText,
    /// The beginning of a character: 3 bytes at most between calls.
    held: Vec<u8>,
}

impl<'a> TextStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, control: ControlText) -> TextStream<'a> {
        TextStream {
            tokenizer,
            control,
            held: Vec::new(),
        }
    }

    /// The text that the token completes; empty while a character is incomplete. Bytes that
    /// cannot become a character any more are returned as U+FFFD.
    pub fn push(&mut self, token: u32) -> String {
        self.held
            .extend_from_slice(self.tokenizer.shown_bytes(token, self.control));
        let keep = unfinished(&self.held);
        let rest = self.held.split_off(self.held.len() - keep);
        let whole = std::mem::replace(&mut self.held, rest);
        String::from_utf8_lossy(&whole).into_owned()
    }

    /// What is still held back: U+FFFD if the tokens stop inside a character, else nothing.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}

/// How many bytes at the end may yet become a character.
fn unfinished(bytes: &[u8]) -> usize {
    let Some(last) = bytes.utf8_chunks().last() else {
        return 0;
    };
    let tail = last.invalid();
    // Only the very end of the input can be too short; anything else is broken for good.
    match std::str::from_utf8(tail) {
        Err(error) if error.error_len().is_none() => tail.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_character_is_held_back() {
        for (bytes, expected) in [
            (&b""[..], 0),
            (b"abc", 0),
            (b"a\xc3", 1),
            (b"a\xc3\xa9", 0),
            (b"\xf0\x9f\x99", 3),
            // No character begins like these.
            (b"\xff", 0),
            (b"\xc0", 0),
            (b"\xed\xa0", 0),
            (b"\xa9", 0),
            (b"\xff\xe4\xbd", 2),
        ] {
            assert_eq!(unfinished(bytes), expected, "{bytes:x?}");
        }
    }
}
