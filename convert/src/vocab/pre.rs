//! `tokenizer.ggml.pre`: readers know a way of splitting text into words by name. The name is
//! found by what `tokenizer.json` says it does, so a new vocabulary trained with a known split
//! needs no entry of its own.

use serde_json::Value;

use super::TokenizerFiles;
use crate::error::Error;

/// What GPT-2 splits by, which the byte-level step can do by itself.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// One digit or letter-like number at a time.
const SINGLE_DIGITS: &str = r"\p{N}";

/// A reader's name, and the patterns it splits by, each inside the pieces of the one before.
struct PreTokenizer {
    name: &'static str,
    patterns: &'static [&'static str],
}

/// Names share their patterns in readers; the first of several is the one to write.
const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer {
        name: "llama-bpe",
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    },
    PreTokenizer {
        name: "qwen2",
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    },
    PreTokenizer {
        name: "qwen35",
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    },
    PreTokenizer {
        name: "gpt-2",
        patterns: &[GPT2],
    },
    PreTokenizer {
        name: "smollm",
        patterns: &[SINGLE_DIGITS, GPT2],
    },
    PreTokenizer {
        name: "deepseek-v3",
        patterns: &[
            r"\p{N}{1,3}",
            r"[一-龥぀-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ],
    },
    PreTokenizer {
        name: "gpt-4o",
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    },
    PreTokenizer {
        name: "tekken",
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    },
];

/// The name of the checkpoint's pre-tokenizer.
pub(super) fn words(files: &TokenizerFiles) -> Result<&'static str, Error> {
    let mut splits = Splits::default();
    if let Some(step) = files.tokenizer.get("pre_tokenizer") {
        splits.collect(step);
    }
    if !splits.byte_level {
        return Err(Error::UnsupportedTokenizer {
            path: files.path.clone(),
            found: "a tokenizer that does not work on bytes (SentencePiece or WordPiece)".into(),
        });
    }
    let known = PRE_TOKENIZERS
        .iter()
        .find(|known| splits.unknown.is_none() && known.patterns == splits.patterns);
    known.map(|known| known.name).ok_or_else(|| {
        let patterns = splits.patterns.into_iter();
        let found: Vec<_> = patterns.map(str::to_owned).chain(splits.unknown).collect();
        Error::PreTokenizer {
            path: files.path.clone(),
            found: format!("{found:?}"),
            known: PRE_TOKENIZERS.iter().map(|known| known.name).collect(),
        }
    })
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
