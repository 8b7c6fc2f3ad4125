//! `tokenizer.ggml.pre`: readers know pre-tokenizers by name. The name is found from the patterns of
//! `tokenizer.json`, so a new vocabulary with a known pre-tokenizer needs no entry of its own.

use std::collections::BTreeSet;

use serde_json::Value;

use super::files::TokenizerFiles;
use super::probe::{self, Splitter};
use super::tokens;
use crate::error::Error;
use crate::note::Note;

/// The pattern of Llama 3, used by others as well.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pattern of GPT-2, which is built into the byte-level step.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Splits off each digit or letter-like number.
const SINGLE_DIGITS: &str = r"\p{N}";

/// A reader's name with its patterns, each applied to the pieces of the one before.
struct PreTokenizer {
    name: &'static str,
    patterns: &'static [&'static str],
    /// An added token that identifies this family, if another name has the same patterns.
    token: Option<&'static str>,
}

/// Several names may have the same patterns; the first match is written.
const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer {
        name: "glm4",
        patterns: &[LLAMA3],
        token: Some("[gMASK]"),
    },
    PreTokenizer {
        name: "llama-bpe",
        patterns: &[LLAMA3],
        token: None,
    },
    PreTokenizer {
        name: "qwen2",
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        token: None,
    },
    PreTokenizer {
        name: "qwen35",
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        token: None,
    },
    PreTokenizer {
        name: "gpt-2",
        patterns: &[GPT2],
        token: None,
    },
    PreTokenizer {
        name: "smollm",
        patterns: &[SINGLE_DIGITS, GPT2],
        token: None,
    },
    PreTokenizer {
        name: "deepseek-llm",
        patterns: &[
            "[\r\n]",
            r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-퟿]+",
            SINGLE_DIGITS,
        ],
        token: None,
    },
    PreTokenizer {
        name: "deepseek-v3",
        patterns: &[
            r"\p{N}{1,3}",
            r"[一-龥぀-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ],
        token: None,
    },
    PreTokenizer {
        name: "gpt-4o",
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        token: None,
    },
    PreTokenizer {
        name: "tekken",
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        token: None,
    },
];

/// Returns true if `tokenizer.json` uses byte-level spelling.
pub(super) fn is_byte_level(files: &TokenizerFiles) -> bool {
    let mut splits = Splits::default();
    if let Some(step) = files.tokenizer.get("pre_tokenizer") {
        splits.collect(step);
    }
    splits.byte_level
}

/// Returns the name of the checkpoint's pre-tokenizer: the known one with equal patterns, else one that
/// splits all probe texts identically.
pub(super) fn name(files: &TokenizerFiles, notes: &mut Vec<Note>) -> Result<&'static str, Error> {
    let mut splits = Splits::default();
    if let Some(step) = files.tokenizer.get("pre_tokenizer") {
        splits.collect(step);
    }
    let added = tokens::json_added_tokens(files)?;
    let has = |text: &str| added.iter().any(|token| token.text == text);
    let candidates = || {
        let known = PRE_TOKENIZERS.iter();
        known.filter(|known| splits.unknown.is_none() && known.token.is_none_or(has))
    };
    let all = |patterns: &[&str]| -> Vec<String> {
        patterns.iter().map(|pattern| normalized(pattern)).collect()
    };
    let wanted = all(&splits.patterns);
    if let Some(known) = candidates().find(|known| all(known.patterns) == wanted) {
        return Ok(known.name);
    }
    if let Some(known) = behaving_alike(&splits.patterns, candidates()) {
        notes.push(Note::SamePieces { pre: known.name });
        return Ok(known.name);
    }
    let nearest = nearest(&splits.patterns);
    let patterns = splits.patterns.into_iter();
    let found: Vec<_> = patterns.map(str::to_owned).chain(splits.unknown).collect();
    Err(Error::PreTokenizer {
        path: files.path.clone(),
        found: format!("{found:?}"),
        nearest,
        known: PRE_TOKENIZERS.iter().map(|known| known.name).collect(),
    })
}

/// Returns the first pre-tokenizer that splits every probe text as these patterns do.
fn behaving_alike<'k>(
    patterns: &[&str],
    mut known: impl Iterator<Item = &'k PreTokenizer>,
) -> Option<&'k PreTokenizer> {
    if patterns.is_empty() {
        return None;
    }
    let found = Splitter::new(patterns.iter().copied())?;
    let probe = probe::texts();
    known.find(|known| {
        let known = Splitter::new(known.patterns.iter().copied());
        known.is_some_and(|known| found.behaves_like(&known, &probe))
    })
}

/// Control characters in patterns, with their short escapes.
const ESCAPES: [(char, &str); 5] = [
    ('\t', r"\t"),
    ('\n', r"\n"),
    ('\u{b}', r"\v"),
    ('\u{c}', r"\f"),
    ('\r', r"\r"),
];

fn escape(char: char) -> Option<&'static str> {
    let known = ESCAPES.iter().find(|(raw, _)| *raw == char);
    known.map(|&(_, escape)| escape)
}

/// Replaces every control character of a pattern by its short escape: JSON files may contain the escape,
/// its code, or the character itself.
fn normalized(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        match (char, escape(char)) {
            ('\\', _) => match coded(chars.as_str()) {
                Some((escape, rest)) => {
                    out.push_str(escape);
                    chars = rest.chars();
                }
                None => {
                    out.push(char);
                    out.extend(chars.next());
                }
            },
            (_, Some(escape)) => out.push_str(escape),
            (_, None) => out.push(char),
        }
    }
    out
}

/// Parses the code of a control character after a backslash: `x0A`, `u000A`, `x{a}` or `u{a}`. Returns its
/// short escape and the text after the code.
fn coded(text: &str) -> Option<(&'static str, &str)> {
    let (digits, rest) = match text.strip_prefix("x{").or(text.strip_prefix("u{")) {
        Some(braced) => braced.split_once('}')?,
        None => {
            let (n, code) = match text.strip_prefix('x') {
                Some(code) => (2, code),
                None => (4, text.strip_prefix('u')?),
            };
            code.split_at_checked(n)?
        }
    };
    let code = u32::from_str_radix(digits, 16).ok()?;
    Some((escape(char::from_u32(code)?)?, rest))
}

/// Describes the closest known pre-tokenizer and its differences; empty if none is similar.
fn nearest(found: &[&str]) -> String {
    let parts = |patterns: &[&'_ str]| -> BTreeSet<String> {
        let parts = patterns.iter().flat_map(|pattern| alternatives(pattern));
        parts.map(str::to_owned).collect()
    };
    let found = parts(found);
    let distance =
        |known: &PreTokenizer| found.symmetric_difference(&parts(known.patterns)).count();
    let nearest = PRE_TOKENIZERS.iter().min_by_key(|known| distance(known));
    let nearest = nearest.filter(|known| !found.is_disjoint(&parts(known.patterns)));
    nearest.map_or(String::new(), |known| {
        let expected = parts(known.patterns);
        let list = |a: &BTreeSet<String>, b: &BTreeSet<String>| {
            let only: Vec<_> = a.difference(b).map(String::as_str).collect();
            match only.is_empty() {
                true => "nothing".to_owned(),
                false => only.join(" and "),
            }
        };
        format!(
            "; nearest is {}, which has {} where this has {}",
            known.name,
            list(&expected, &found),
            list(&found, &expected)
        )
    })
}

/// Splits a pattern at each `|` outside of brackets.
fn alternatives(pattern: &str) -> Vec<&str> {
    let (mut depth, mut in_class, mut escaped) = (0u32, false, false);
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, char) in pattern.char_indices() {
        let was_escaped = std::mem::replace(&mut escaped, false);
        match char {
            _ if was_escaped => {}
            '\\' => escaped = true,
            '[' if !in_class => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth = depth.saturating_sub(1),
            '|' if !in_class && depth == 0 => {
                parts.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&pattern[start..]);
    parts
}

/// The patterns of a `tokenizer.json`, in order.
#[derive(Default)]
struct Splits<'a> {
    patterns: Vec<&'a str>,
    byte_level: bool,
    /// A step that is not a pattern.
    unknown: Option<String>,
}

impl<'a> Splits<'a> {
    fn collect(&mut self, step: &'a Value) {
        let flag = |name: &str| step.get(name).and_then(Value::as_bool);
        let text = |name: &str| step.get(name).and_then(Value::as_str);
        match text("type") {
            Some("Sequence") => {
                let steps = step.get("pretokenizers").and_then(Value::as_array);
                steps
                    .into_iter()
                    .flatten()
                    .for_each(|step| self.collect(step));
            }
            Some("ByteLevel") => {
                self.byte_level = true;
                if flag("use_regex").unwrap_or(true) {
                    self.patterns.push(GPT2);
                }
            }
            Some("Digits") if flag("individual_digits") == Some(true) => {
                self.patterns.push(SINGLE_DIGITS);
            }
            Some("Split") => {
                let pattern = step.pointer("/pattern/Regex").and_then(Value::as_str);
                // Both settings keep the matches as words; these patterns match everything.
                let isolated = matches!(
                    (text("behavior"), flag("invert")),
                    (Some("Isolated"), Some(false) | None) | (Some("Removed"), Some(true))
                );
                match pattern.filter(|_| isolated) {
                    Some(pattern) => self.patterns.push(pattern),
                    None => self.unknown = Some(step.to_string()),
                }
            }
            _ => self.unknown = Some(step.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_control_characters_are_one() {
        for pattern in [
            "[^\r\n]+",
            r"[^\r\n]+",
            r"[^\x0d\x0A]+",
            r"[^\u000D\u{a}]+",
            "[^\r\\n]+",
        ] {
            assert_eq!(normalized(pattern), r"[^\r\n]+", "{pattern:?}");
        }
        // Other escapes, and an escaped backslash before a letter, are unchanged.
        for pattern in [r"\p{L}\s\x41\\n\", r"\u{}", "é"] {
            assert_eq!(normalized(pattern), pattern);
        }
    }

    /// The probe distinguishes all known pre-tokenizers.
    #[test]
    fn the_probe_tells_all_known_ones_apart() {
        for (i, known) in PRE_TOKENIZERS.iter().enumerate() {
            let alike = behaving_alike(known.patterns, PRE_TOKENIZERS.iter());
            let first = PRE_TOKENIZERS
                .iter()
                .find(|other| other.patterns == known.patterns);
            assert_eq!(alike.map(|k| k.name), first.map(|k| k.name), "{i}");
        }
    }

    #[test]
    fn small_changes_of_patterns_are_found() {
        let unlike = |pattern: &str| behaving_alike(&[pattern], PRE_TOKENIZERS.iter()).is_none();
        for (from, to) in [
            ("{1,3}", "{1,4}"),
            (r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\n\p{L}\p{N}]?\p{L}+"),
            (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"'s|'t|'re|'ve|'m|'ll|'d"),
            (r"[\r\n]*|", r"[\r\n]?|"),
            (r"\s+(?!\S)|", ""),
            (" ?[^", "[^"),
            (r"\p{L}+", r"[\p{L}\p{M}]+"),
        ] {
            let changed = LLAMA3.replacen(from, to, 1);
            assert_ne!(changed, LLAMA3);
            assert!(unlike(&changed), "{changed}");
        }
        assert!(unlike("("));
    }

    #[test]
    fn the_same_words_from_another_text_are_recognized() {
        // The spelling of tiktoken, and one with contractions spelled out.
        let spelt = LLAMA3
            .replace(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"'(?i:[sdmt]|ll|ve|re)")
            .replace(r"\p{L}+|", r"\p{L}++|")
            .replace(r"\s+(?!\S)|\s+", r"\s+(?!\S)|\s");
        let alike = behaving_alike(&[&spelt], PRE_TOKENIZERS.iter().skip(1));
        assert_eq!(alike.map(|known| known.name), Some("llama-bpe"));
    }

    #[test]
    fn patterns_are_cut_at_their_alternatives() {
        assert_eq!(
            alternatives(r"(a|b)|[|\]]c|\||d"),
            ["(a|b)", r"[|\]]c", r"\|", "d"]
        );
    }

    #[test]
    fn the_nearest_one_is_named() {
        let changed = LLAMA3.replace("{1,3}", "{1,2}");
        assert_eq!(
            nearest(&[&changed]),
            r"; nearest is glm4, which has \p{N}{1,3} where this has \p{N}{1,2}"
        );
        assert_eq!(nearest(&["x+"]), "");
    }
}
