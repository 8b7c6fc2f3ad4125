//! Compares pre-tokenizers by behaviour: two lists of patterns count as equal if they split every text of a
//! fixed set identically.
//!
//! The set has every kind of character in several positions, and random mixtures of what patterns
//! distinguish (cases, scripts, marks, digits, punctuation, contractions, all sorts of whitespace). It is
//! the same in every run.

use fancy_regex::Regex;

/// A list of patterns, each applied to the pieces of the one before.
pub(super) struct Splitter(Vec<Regex>);

impl Splitter {
    /// `None` if a pattern cannot be compiled.
    pub(super) fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Option<Splitter> {
        let regexes = patterns.into_iter().map(|pattern| Regex::new(pattern).ok());
        regexes.collect::<Option<_>>().map(Splitter)
    }

    /// Splits a text into words; `None` if a pattern fails.
    fn split<'t>(&self, text: &'t str) -> Option<Vec<&'t str>> {
        let mut pieces = vec![text];
        for regex in &self.0 {
            let mut cut = Vec::with_capacity(pieces.len());
            for piece in pieces {
                let mut done = 0;
                for found in regex.find_iter(piece) {
                    let found = found.ok()?;
                    let between = &piece[done..found.start()];
                    cut.extend(
                        [between, found.as_str()]
                            .into_iter()
                            .filter(|s| !s.is_empty()),
                    );
                    done = found.end();
                }
                cut.extend(Some(&piece[done..]).filter(|s| !s.is_empty()));
            }
            pieces = cut;
        }
        Some(pieces)
    }

    /// Returns true if both split every probe text identically.
    pub(super) fn behaves_like(&self, other: &Splitter, probe: &[String]) -> bool {
        probe.iter().all(|text| {
            let words = self.split(text);
            words.is_some() && words == other.split(text)
        })
    }
}

/// Building blocks of random texts.
const PARTS: [&str; 96] = [
    " ", " ", " ", "  ", "    ", "\n", "\n", "\r", "\r\n", "\t", "\u{a0}", "\u{3000}", "\u{85}",
    "\u{2028}", "\u{b}", "a", "b", "z", "A", "Z", "é", "Ñ", "ß", "ǅ", "ʰ", "ª", "中", "国", "あ",
    "ア", "한", "ก", "ا", "д", "Ж", "\u{301}", "ा", "\u{20dd}", "0", "1", "7", "9", "٣", "Ⅷ", "½",
    "²", "12", "345", "6789012", "'s", "'S", "'t", "'re", "'VE", "'m", "'lL", "'d", "'x", "’s",
    "'", "\"", "!", "?", ".", ",", ";", ":", "/", "//", "\\", "(", ")[", "]", "{", "}", "#", "$",
    "€", "+", "=", "<", ">", "|", "~", "^", "`", "_", "-", "—", "…", "。", "「", "😀", "\0",
    "\u{200d}", "word",
];

/// Number of random texts, and maximum number of parts in each.
const N_RANDOM: usize = 1500;
const MAX_PARTS: u64 = 40;

/// Returns the texts of the probe.
pub(super) fn texts() -> Vec<String> {
    let mut texts = Vec::new();
    // Short runs come first: they distinguish most patterns.
    for part in PARTS {
        texts.extend((1..=9).map(|n| format!("a{}b 1", part.repeat(n))));
        texts.push(part.repeat(12));
    }
    // Knuth's 64-bit generator; its upper half is random enough.
    let mut state = 1u64;
    let mut next = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    for _ in 0..N_RANDOM {
        let n = 1 + next(MAX_PARTS);
        texts.push(
            (0..n)
                .map(|_| PARTS[next(PARTS.len() as u64) as usize])
                .collect(),
        );
    }
    texts.extend(characters().map(|c| format!("a{c}b {c}B 1{c}2{c}{c} {c}\n{c}")));
    texts
}

/// Returns every character of European alphabets, and a sample of all others.
fn characters() -> impl Iterator<Item = char> {
    let dense = (0..0x530).chain((0x530..0x3400).step_by(5));
    let han_and_hangul = (0x3400..0xd800).step_by(89);
    let rest = (0xe000..0x1_0000)
        .step_by(11)
        .chain((0x1_0000..0x2_0000).step_by(61));
    let all = dense
        .chain(han_and_hangul)
        .chain(rest)
        .chain([0x2_0000, 0xe_0001, 0x10_fffd]);
    all.filter_map(char::from_u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_and_gaps_are_pieces() {
        let splitter = Splitter::new([r"\d", "[ab]+"]).unwrap();
        assert_eq!(
            splitter.split("xab1ab23").unwrap(),
            ["x", "ab", "1", "ab", "2", "3"]
        );
        assert!(Splitter::new(["("]).is_none());
    }
}
