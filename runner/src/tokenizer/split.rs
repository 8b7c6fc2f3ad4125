//! Pre-tokenizers: they split text into words, and tokens are merged within words. The file
//! contains only the pre-tokenizer's name, `tokenizer.ggml.pre`, not its patterns.

use regex_automata::Input;
use regex_automata::meta::Regex;

/// A pre-tokenizer with all its names.
pub(super) struct PreTokenizer {
    pub(super) names: &'static [&'static str],
    /// Applied one after another, each to the pieces of the previous one.
    cuts: &'static [Cut],
    /// True if a word that is a token is not merged.
    pub(super) ignore_merges: bool,
    /// True if a text begins with BOS when the file does not specify it.
    pub(super) add_bos: bool,
}

/// One pass over a text. Matches are pieces, and so is the text between them.
enum Cut {
    /// The pattern's matches.
    Words(&'static str),
    /// The pattern's matches and, elsewhere, runs of whitespace. A run gives up its last character
    /// if something follows, because that may belong to the next word. Published patterns express
    /// this with a look-ahead, `\s+(?!\S)|\s+`; without it a search takes linear time and cannot
    /// fail, however long the run.
    WordsAndRuns(&'static str),
}

macro_rules! contractions {
    () => {
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}

/// Words with one leading character of another kind, digits in groups of 1 to 3.
const LLAMA3: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);

/// As [`LLAMA3`], but digits one by one.
const QWEN2: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);

/// As [`QWEN2`], with marks (as in Devanagari) counted as letters.
const QWEN35: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
);

/// Lower-case contractions; words, numbers and other characters with one leading space.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";

/// Words split where lower case changes to upper case, in any script. (llama.cpp only uses the case
/// of ASCII letters here.)
const GPT_4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    contractions!(),
    r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    contractions!(),
    r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
);

/// As [`GPT_4O`], without contractions and with digits one by one.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
);

/// Separates words from punctuation; digits and CJK are split off before.
const DEEPSEEK_V3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
);

/// As [`GPT_4O`], with Han characters in separate words.
const KIMI_K2: &str = concat!(
    r"\p{Han}+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}--\p{Han}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}--\p{Han}]+",
    contractions!(),
    r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}--\p{Han}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}--\p{Han}]*",
    contractions!(),
    r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);

/// Letters of scripts with two cases, with one leading space; other characters are split off before
/// or after.
const DEEPSEEK_LLM: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

const PRE_TOKENIZERS: [PreTokenizer; 13] = [
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        cuts: &[Cut::WordsAndRuns(LLAMA3)],
        ignore_merges: true,
        add_bos: true,
    },
    PreTokenizer {
        names: &["glm4", "glm5"],
        cuts: &[Cut::WordsAndRuns(LLAMA3)],
        ignore_merges: true,
        add_bos: false,
    },
    PreTokenizer {
        names: &["chatglm-bpe", "dbrx", "smaug-bpe"],
        cuts: &[Cut::WordsAndRuns(LLAMA3)],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "grok-2",
            "hunyuan",
            "kormo",
            "megrez",
            "solar-open",
            "stablelm2",
        ],
        cuts: &[Cut::WordsAndRuns(QWEN2)],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["qwen35"],
        cuts: &[Cut::WordsAndRuns(QWEN35)],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "exaone4",
            "granite-docling",
            "gigachat",
            "mellum",
            "a.x-4.0",
        ],
        cuts: &[Cut::WordsAndRuns(GPT2)],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        cuts: &[Cut::Words(r"\p{N}"), Cut::WordsAndRuns(GPT2)],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        cuts: &[
            Cut::Words("[\r\n]"),
            Cut::Words(DEEPSEEK_LLM),
            Cut::Words(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            Cut::Words(r"\s+$"),
            Cut::Words("[一-龥ࠀ-一가-퟿]+"),
            Cut::Words(r"\p{N}"),
        ],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["kimi-k2"],
        cuts: &[Cut::WordsAndRuns(KIMI_K2)],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        cuts: &[
            Cut::Words(r"\p{N}{1,3}"),
            Cut::Words("[一-龥぀-ゟ゠-ヿ]+"),
            Cut::WordsAndRuns(DEEPSEEK_V3),
        ],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"],
        cuts: &[Cut::WordsAndRuns(GPT_4O)],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["tekken"],
        cuts: &[Cut::WordsAndRuns(TEKKEN)],
        ignore_merges: true,
        add_bos: true,
    },
    PreTokenizer {
        names: &["default"],
        cuts: &[
            Cut::Words(r"[\p{P}$+<=>^~|]+"),
            Cut::WordsAndRuns(GPT2),
            Cut::Words(r"\p{N}+"),
            Cut::Words("[0-9][0-9][0-9]"),
        ],
        ignore_merges: false,
        add_bos: false,
    },
];

impl PreTokenizer {
    pub(super) fn find(name: &str) -> Option<&'static PreTokenizer> {
        PRE_TOKENIZERS.iter().find(|pre| pre.names.contains(&name))
    }

    /// Returns all names, for messages.
    pub(super) fn known() -> String {
        let names: Vec<&str> = PRE_TOKENIZERS
            .iter()
            .flat_map(|pre| pre.names)
            .copied()
            .collect();
        names.join(", ")
    }

    pub(super) fn splitter(&self) -> Splitter {
        let cuts = self.cuts.iter().map(|cut| {
            let regex = match cut {
                Cut::Words(words) => Regex::new(words),
                Cut::WordsAndRuns(words) => Regex::new_many(&[words, r"\s+"]),
            };
            regex.expect("the table's patterns are valid")
        });
        Splitter {
            cuts: cuts.collect(),
        }
    }
}

/// The compiled patterns of a pre-tokenizer. A second pattern matches whitespace.
pub(super) struct Splitter {
    cuts: Vec<Regex>,
}

impl Splitter {
    /// Splits a text into words. Concatenated they are the text; none is empty.
    pub(super) fn split<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut pieces = vec![text];
        for cut in &self.cuts {
            let whole = std::mem::take(&mut pieces);
            for piece in whole {
                isolate(cut, piece, &mut pieces);
            }
        }
        pieces
    }
}

/// Appends the matches in `text` and the text between them.
fn isolate<'t>(cut: &Regex, text: &'t str, pieces: &mut Vec<&'t str>) {
    let mut done = 0;
    while let Some(found) = cut.find(Input::new(text).range(done..)) {
        let is_run = found.pattern().as_usize() == 1;
        let (start, mut end) = (found.start(), found.end());
        if is_run && end < text.len() {
            let last = text[start..end].char_indices().next_back();
            end = match last {
                Some((last, _)) if last > 0 => start + last,
                _ => end,
            };
        }
        if done < start {
            pieces.push(&text[done..start]);
        }
        pieces.push(&text[start..end]);
        done = end;
    }
    if done < text.len() {
        pieces.push(&text[done..]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::tokenizer::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _,
        SplitDelimiterBehavior,
    };

    use super::*;

    fn split<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        PreTokenizer::find(name).unwrap().splitter().split(text)
    }

    #[test]
    fn names_are_unique() {
        let names: Vec<&str> = PRE_TOKENIZERS
            .iter()
            .flat_map(|pre| pre.names)
            .copied()
            .collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name}");
        }
        assert!(PreTokenizer::find("no-such-pre").is_none());
    }

    #[test]
    fn a_run_of_spaces_leaves_one_to_the_next_word() {
        for name in ["llama-bpe", "qwen2", "gpt-2"] {
            assert_eq!(split(name, "a   b"), ["a", "  ", " b"]);
            assert_eq!(split(name, "a   "), ["a", "   "]);
        }
        assert_eq!(split("qwen2", "a \n\n  b"), ["a", " \n\n", " ", " b"]);
        assert_eq!(split("gpt-2", "a\n\nb"), ["a", "\n", "\n", "b"]);
        assert_eq!(split("qwen2", "x\t1"), ["x", "\t", "1"]);
    }

    #[test]
    fn digits_and_case() {
        assert_eq!(split("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(split("qwen35", "12"), ["1", "2"]);
        assert_eq!(split("gpt-2", " 12345"), [" 12345"]);
        assert_eq!(split("smollm", "v12 x"), ["v", "1", "2", " x"]);
        assert_eq!(split("gpt-4o", "camelCase's"), ["camel", "Case's"]);
        assert_eq!(split("qwen2", "I'LL it's"), ["I", "'LL", " it", "'s"]);
    }

    /// A backtracking engine gives up after a million steps.
    #[test]
    fn a_very_long_run_is_one_piece() {
        let text = " ".repeat(1_100_000) + "x";
        for pre in &PRE_TOKENIZERS {
            let pieces = pre.splitter().split(&text);
            assert_eq!(pieces.len(), 2, "{:?}", pre.names);
            assert_eq!(pieces[1], " x");
        }
    }

    const PUBLISHED_GPT2: &str =
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    const PUBLISHED_LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    /// Patterns copied from the `tokenizer.json` of released models; `default` is llama.cpp's.
    const PUBLISHED: [(&str, &[&str]); 12] = [
        ("llama-bpe", &[PUBLISHED_LLAMA3]),
        ("glm4", &[PUBLISHED_LLAMA3]),
        (
            "qwen2",
            &[
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ],
        ),
        (
            "qwen35",
            &[
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ],
        ),
        ("gpt-2", &[PUBLISHED_GPT2]),
        ("smollm", &[r"\p{N}", PUBLISHED_GPT2]),
        (
            "deepseek-v3",
            &[
                r"\p{N}{1,3}",
                "[一-龥぀-ゟ゠-ヿ]+",
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
            ],
        ),
        (
            "deepseek-llm",
            &[
                "[\r\n]",
                DEEPSEEK_LLM,
                r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
                r"\s+$",
                "[一-龥ࠀ-一가-퟿]+",
                r"\p{N}",
            ],
        ),
        (
            "kimi-k2",
            &[
                r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ],
        ),
        (
            "gpt-4o",
            &[
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ],
        ),
        (
            "tekken",
            &[
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ],
        ),
        (
            "default",
            &[
                r"[\p{P}\$\+<=>\^~\|]+",
                PUBLISHED_GPT2,
                r"\p{N}+",
                "[0-9][0-9][0-9]",
            ],
        ),
    ];

    /// Letters of both cases and of none, marks, digits, punctuation, symbols and whitespace, each
    /// in ASCII and beyond. U+017F is excluded: only `(?i:)` treats it as a lower-case s.
    const ALPHABET: &str = r"[aAsStTlLvVeErRdDmM019'!./#$+ \t\r\n\x0b\u{85}\u{a0}\u{3000}éÉßǅʰ中ぁ가ก\u{93f}\u{300}²Ⅷ٣½€…🙂\u{200d}\u{ad}]{0,24}";

    #[test]
    fn words_are_those_of_the_published_patterns() {
        let published = PUBLISHED.map(|(name, patterns)| {
            let cut = |pattern: &&str| {
                let pattern = SplitPattern::Regex((*pattern).into());
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap()
            };
            let cuts: Vec<Split> = patterns.iter().map(cut).collect();
            (name, PreTokenizer::find(name).unwrap().splitter(), cuts)
        });
        proptest!(|(text in ALPHABET)| {
            for (name, splitter, cuts) in &published {
                let mut expected = PreTokenizedString::from(text.as_str());
                for cut in cuts {
                    cut.pre_tokenize(&mut expected).unwrap();
                }
                let expected = expected.get_splits(OffsetReferential::Original, OffsetType::Byte);
                let expected: Vec<&str> = expected.iter().map(|(word, ..)| *word).collect();
                prop_assert_eq!(splitter.split(&text), expected, "{}", name);
            }
        });
    }

    #[test]
    fn words_joined_are_the_text() {
        let splitters = PRE_TOKENIZERS.each_ref().map(PreTokenizer::splitter);
        proptest!(|(text in r"(?s)[ \t\r\na-zA-Z0-9'\u{300}é中ก🙂!]{0,40}|.{0,40}")| {
            for splitter in &splitters {
                let words = splitter.split(&text);
                prop_assert_eq!(words.concat(), text.as_str());
                prop_assert!(words.iter().all(|word| !word.is_empty()));
            }
        });
    }
}
