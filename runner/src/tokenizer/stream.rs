//! Incremental decoding: a character may be spread over several tokens.

use super::{ControlText, Tokenizer};

/// Converts tokens to text one by one. The concatenation of all results is what
/// [`Tokenizer::decode`] returns for all tokens.
#[derive(Clone)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    control: ControlText,
    /// Bytes of an incomplete character: at most 3 between calls.
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

    /// Returns the text that the token completes; empty while a character is incomplete. Bytes that
    /// cannot become a character any more are returned as U+FFFD.
    pub fn push(&mut self, token: u32) -> String {
        self.held
            .extend_from_slice(self.tokenizer.shown_bytes(token, self.control));
        let keep = unfinished(&self.held);
        let rest = self.held.split_off(self.held.len() - keep);
        let whole = std::mem::replace(&mut self.held, rest);
        String::from_utf8_lossy(&whole).into_owned()
    }

    /// Returns the remaining text: U+FFFD if the tokens stop inside a character, else empty.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}

/// Returns the number of bytes at the end that may still become a character.
fn unfinished(bytes: &[u8]) -> usize {
    let Some(last) = bytes.utf8_chunks().last() else {
        return 0;
    };
    let tail = last.invalid();
    // Only the end of the input can be incomplete; invalid bytes elsewhere stay invalid.
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
            // These bytes cannot start a character.
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
