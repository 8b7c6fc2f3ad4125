//! [`Tokenizer`]: text to tokens and back, loaded from the metadata of a GGUF file.
//!
//! There are two kinds. Both first cut out special tokens that appear in the text by name. Then
//! byte-level BPE splits the rest into words ([`split`]) and merges the bytes of each ([`words`]);
//! SentencePiece merges the characters of the rest without splitting it ([`pieces`]). No Unicode
//! normalization is applied, whatever the model's own tokenizer does: GGUF does not describe it.

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

/// Large metadata arrays that only a [`Tokenizer`] reads.
pub(crate) const OWN_KEYS: [&str; 3] = [words::MERGES, pieces::SCORES, load::TOKEN_TYPE];

/// Converts text to tokens and back.
pub struct Tokenizer {
    merger: Merger,
    /// The text of each token.
    texts: Strings,
    kinds: Vec<TokenKind>,
    /// Tokens found by name, the longest name first.
    named: Vec<NamedToken>,
    bos: Option<u32>,
    eos: Option<u32>,
    /// BOS and EOS, if the file asks for them around a text.
    prefix: Option<u32>,
    suffix: Option<u32>,
    ends: BTreeSet<u32>,
}

/// Converts text without special tokens to tokens.
enum Merger {
    /// Byte-level BPE.
    Words(Box<words::Words>),
    /// SentencePiece.
    Pieces(Box<pieces::Pieces>),
}

/// Type of a token, from `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    /// Produced by merging.
    Normal,
    /// Structure rather than text: begin, end, roles. Its text is its name.
    Control,
    /// Text that is always one token, such as `<think>`. Its text is its name.
    UserDefined,
    /// A gap in the ids. It has no text.
    Unused,
    /// One byte, such as `<0x0A>`, of a character without a token.
    Byte,
}

struct NamedToken {
    name: String,
    token: u32,
    kind: TokenKind,
}

/// Configuration of encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeConfig {
    /// Adds BOS and EOS if the file asks for them.
    pub add_special: bool,
    /// Converts names of control tokens to these tokens. If false, `<|im_end|>` is ten ordinary
    /// characters, so that untrusted text cannot forge the structure of a prompt. Names of
    /// user-defined tokens are always converted.
    pub parse_special: bool,
}

impl EncodeConfig {
    /// The encoding of trusted prompts: special tokens are added, and names of control tokens are
    /// converted.
    pub const PROMPT: EncodeConfig = EncodeConfig {
        add_special: true,
        parse_special: true,
    };
}

/// Text of control tokens when decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlText {
    /// Empty.
    Skip,
    /// Their names.
    Show,
}

impl Tokenizer {
    /// Converts a text to tokens.
    ///
    /// A byte without a token is dropped; vocabularies in use have tokens for all 256.
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

    /// Converts tokens to text, including the space that a tokenizer may have added at the start.
    /// Invalid UTF-8 becomes U+FFFD, and so do characters cut off at either end; ids outside the
    /// vocabulary have no text.
    pub fn decode(&self, tokens: &[u32], control: ControlText) -> String {
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|&token| self.shown_bytes(token, control))
            .copied()
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns a decoder for tokens that arrive one by one.
    pub fn stream(&self, control: ControlText) -> TextStream<'_> {
        TextStream::new(self, control)
    }

    /// Returns the text of a token, which may contain partial characters: the name, for a control
    /// or user-defined token. Empty for an unused token or an id outside the vocabulary.
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

    /// Returns true if the token ends a text.
    pub fn is_end_of_generation(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// Returns the tokens that end a text: the file's end of text, turn and message, and tokens
    /// that end one in some model by their name, because files can leave them out.
    pub fn end_tokens(&self) -> &BTreeSet<u32> {
        &self.ends
    }

    /// Returns true if a BOS token is added to texts.
    pub fn adds_bos(&self) -> bool {
        self.prefix.is_some()
    }

    /// Returns true if an EOS token is added to texts.
    pub fn adds_eos(&self) -> bool {
        self.suffix.is_some()
    }

    /// Returns the BOS token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Returns the EOS token.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Returns the size of the vocabulary, unused ids included.
    pub fn n_tokens(&self) -> usize {
        self.kinds.len()
    }

    /// True if ordinary text can contain the token.
    pub fn is_text(&self, token: u32) -> bool {
        self.kinds.get(token as usize) == Some(&TokenKind::Normal)
    }
}

#[derive(Clone, Copy)]
enum Part<'t> {
    Text(&'t str),
    Token(u32),
}

#[cfg(test)]
mod tests;
