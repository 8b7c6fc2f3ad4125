//! [`Tokenizer`]: text to tokens and back, rebuilt from the metadata of a GGUF file.
//!
//! There are two kinds. Both begin by cutting out the tokens that stand in a text by name. Then
//! byte-level BPE cuts the rest into words ([`split`]) and merges the bytes of each ([`words`]);
//! SentencePiece merges the characters of the rest as they stand ([`pieces`]). No Unicode normalisation takes place, whatever the model's own tokenizer does:
//! GGUF does not carry it.

mod bytes;
mod end;
mod load;
mod merge;
mod names;
mod pieces;
mod split;
mod stream;
mod words;

use std::collections::BTreeSet;

use schemas::gguf::Strings;

pub use load::TokenizerError;
pub use stream::TextStream;

/// Long keys that nothing but a [`Tokenizer`] reads.
pub(crate) const OWN_KEYS: [&str; 3] = [words::MERGES, pieces::SCORES, load::TOKEN_TYPE];

/// Text to tokens and back.
pub struct Tokenizer {
    merger: Merger,
    /// What each token stands for.
    texts: Strings,
    kinds: Vec<TokenKind>,
    /// Tokens looked for by name, the longest name first.
    named: Vec<NamedToken>,
    bos: Option<u32>,
    eos: Option<u32>,
    /// BOS and EOS where the file asks for them around a text.
    prefix: Option<u32>,
    suffix: Option<u32>,
    ends: BTreeSet<u32>,
}

/// From text without named tokens to tokens.
enum Merger {
    /// Byte-level BPE.
    Words(Box<words::Words>),
    /// SentencePiece.
    Pieces(Box<pieces::Pieces>),
}

/// `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    /// Made by merging.
    Normal,
    /// Structure rather than text: begin, end, roles. Stands for its name.
    Control,
    /// Text that is always one token, as `<think>`. Stands for its name.
    UserDefined,
    /// A gap in the ids. Stands for nothing.
    Unused,
    /// One byte, `<0x0A>`, of a character without a token.
    Byte,
}

struct NamedToken {
    name: String,
    token: u32,
    kind: TokenKind,
}

/// How to read a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeConfig {
    /// Begin with BOS and finish with EOS where the file asks for them.
    pub add_special: bool,
    /// Turn names of control tokens into the tokens. Off, `<|im_end|>` is ten characters like any
    /// others, so that text from outside cannot forge the structure of a prompt. Names of
    /// user-defined tokens are always tokens.
    pub parse_special: bool,
}

/// What control tokens look like as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlText {
    /// Nothing.
    Skip,
    /// Their names.
    Show,
}

impl Tokenizer {
    /// The tokens of a text.
    ///
    /// A byte for which the vocabulary has no token is dropped; vocabularies in use have all 256.
    pub fn encode(&self, text: &str, config: EncodeConfig) -> Vec<u32> {
        let mut tokens = Vec::new();
        if config.add_special {
            tokens.extend(self.prefix);
        }
        let mut after_token = true;
        for part in self.cut_out_named(text, config) {
            match part {
                Part::Token(token) => tokens.push(token),
                Part::Text("") => continue,
                Part::Text(text) => self.merge(text, after_token, &mut tokens),
            }
            after_token = matches!(part, Part::Token(_));
        }
        if config.add_special {
            tokens.extend(self.suffix);
        }
        tokens
    }

    fn cut_out_named<'t>(&self, text: &'t str, config: EncodeConfig) -> Vec<Part<'t>> {
        let mut parts = vec![Part::Text(text)];
        for named in &self.named {
            let wanted = config.parse_special || named.kind == TokenKind::UserDefined;
            if !wanted || !text.contains(&named.name) {
                continue;
            }
            let whole = std::mem::take(&mut parts);
            for part in whole {
                match part {
                    Part::Token(_) => parts.push(part),
                    Part::Text(text) => {
                        for (i, piece) in text.split(&named.name).enumerate() {
                            if i > 0 {
                                parts.push(Part::Token(named.token));
                            }
                            parts.push(Part::Text(piece));
                        }
                    }
                }
            }
        }
        parts
    }

    fn merge(&self, text: &str, after_token: bool, tokens: &mut Vec<u32>) {
        match &self.merger {
            Merger::Words(words) => words.encode(text, tokens),
            Merger::Pieces(pieces) => pieces.encode(text, after_token, tokens),
        }
    }

    /// The text of tokens, with the space before it that a tokenizer may have added. Bytes that are
    /// no UTF-8 become U+FFFD, and so do characters cut off at either end; ids outside the
    /// vocabulary stand for nothing.
    pub fn decode(&self, tokens: &[u32], control: ControlText) -> String {
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|&token| self.shown_bytes(token, control))
            .copied()
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Text as tokens come, one by one.
    pub fn stream(&self, control: ControlText) -> TextStream<'_> {
        TextStream::new(self, control)
    }

    /// What a token stands for, not always whole characters: the name, for a control or
    /// user-defined token. Nothing for an unused one and outside the vocabulary.
    pub fn token_bytes(&self, token: u32) -> &[u8] {
        self.shown_bytes(token, ControlText::Show)
    }

    fn shown_bytes(&self, token: u32, control: ControlText) -> &[u8] {
        let token = token as usize;
        match self.kinds.get(token) {
            Some(TokenKind::Control) if control == ControlText::Skip => &[],
            Some(_) => &self.texts[token],
            None => &[],
        }
    }

    /// Whether the text is over with this token.
    pub fn is_end_of_generation(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// Tokens that end a text: the file's end of text, turn and message, and tokens known by name
    /// to end one in some model, for files that leave them out.
    pub fn end_tokens(&self) -> &BTreeSet<u32> {
        &self.ends
    }

    /// Whether texts get a BOS token in front.
    pub fn adds_bos(&self) -> bool {
        self.prefix.is_some()
    }

    /// Whether texts get an EOS token at their end.
    pub fn adds_eos(&self) -> bool {
        self.suffix.is_some()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Size of the vocabulary, unused ids included.
    pub fn n_tokens(&self) -> usize {
        self.kinds.len()
    }
}

#[derive(Clone, Copy)]
enum Part<'t> {
    Text(&'t str),
    Token(u32),
}

#[cfg(test)]
mod tests;
