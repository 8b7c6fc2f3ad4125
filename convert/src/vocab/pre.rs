//! `tokenizer.ggml.pre`: readers know a way of splitting text into words by name. The name is
//! found by what `tokenizer.json` says it does, so a new vocabulary trained with a known split
//! needs no entry of its own.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{TokenizerFiles, tokens};
use crate::error::Error;

/// What Llama 3 splits by, and others after it.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// What GPT-2 splits by, which the byte-level step can do by itself.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// One digit or letter-like number at a time.
const SINGLE_DIGITS: &str = r"\p{N}";

/// A reader's name, and the patterns it splits by, each inside the pieces of the one before.
struct PreTokenizer {
    name: &'static str,
    patterns: &'static [&'static str],
    /// An added token of this family alone, where another splits by the same patterns.
    token: Option<&'static str>,
}

/// Names share their patterns in readers; of several the first one that applies is to be written.
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

/// Whether a `tokenizer.json` spells text in bytes.
pub(super) fn is_byte_level(files: &TokenizerFiles) -> bool {
    let mut splits = Splits::default();
    if let Some(step) = files.tokenizer.get("pre_tokenizer") {
        splits.collect(step);
    }
    splits.byte_level
}

/// The name of the checkpoint's pre-tokenizer.
pub(super) fn words(files: &TokenizerFiles) -> Result<&'static str, Error> {
    let mut splits = Splits::default();
    if let Some(step) = files.tokenizer.get("pre_tokenizer") {
        splits.collect(step);
    }
    let added = tokens::json_added_tokens(files)?;
    let has = |text: &str| added.iter().any(|token| token.text == text);
    let known = PRE_TOKENIZERS.iter().find(|known| {
        splits.unknown.is_none() && known.patterns == splits.patterns && known.token.is_none_or(has)
    });
    known.map(|known| known.name).ok_or_else(|| {
        let nearest = nearest(&splits.patterns);
        let patterns = splits.patterns.into_iter();
        let found: Vec<_> = patterns.map(str::to_owned).chain(splits.unknown).collect();
        Error::PreTokenizer {
            path: files.path.clone(),
            found: format!("{found:?}"),
            nearest,
            known: PRE_TOKENIZERS.iter().map(|known| known.name).collect(),
        }
    })
}

/// What is known that comes closest, and how it differs; empty if nothing is like it.
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

/// The alternatives of a pattern, cut at each `|` outside of brackets.
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

/// The patterns of a pre-tokenizer, in order.
#[derive(Default)]
struct Splits<'a> {
    patterns: Vec<&'a str>,
    byte_level: bool,
    /// A step that is no pattern.
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
                // Both keep what the pattern matches as words; these patterns match everything.
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
