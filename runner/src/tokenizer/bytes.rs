//! The printable spelling of bytes: byte-level vocabularies write each byte as one printable
//! character (GPT-2's `bytes_to_unicode`).

/// The character of each byte: printable Latin-1 is itself, the other 68 bytes are the characters
/// from U+0100 on, in order.
const BYTE_CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let mut next = 0x100;
    let mut byte = 0;
    while byte < 256 {
        let shown = matches!(byte as u8, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let code = if shown { byte as u32 } else { next };
        if !shown {
            next += 1;
        }
        chars[byte] = match char::from_u32(code) {
            Some(char) => char,
            None => panic!("codes below U+0200 are characters"),
        };
        byte += 1;
    }
    chars
};

/// Returns the character for a byte.
pub(super) fn spelled(byte: u8) -> char {
    BYTE_CHARS[usize::from(byte)]
}

/// Converts each byte of a text to its character.
pub(super) fn spell(text: &str) -> String {
    text.bytes().map(spelled).collect()
}

/// Converts characters back to bytes. A character that is not the spelling of a byte is kept as
/// UTF-8.
pub(super) fn unspell(spelling: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(spelling.len());
    for char in spelling.chars() {
        match byte_of(char) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(char.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    bytes
}

fn byte_of(char: char) -> Option<u8> {
    match u32::from(char) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spellings found in every byte-level vocabulary.
    #[test]
    fn well_known_spellings() {
        assert_eq!(spell(" a\n\t"), "ĠaĊĉ");
        assert_eq!(spell("é"), "Ã©");
        assert_eq!(unspell("Ġthe"), b" the");
    }

    #[test]
    fn every_byte_comes_back() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of(spelled(byte)), Some(byte));
        }
        assert_eq!(unspell("中"), "中".as_bytes());
    }
}
