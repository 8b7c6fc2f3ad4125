//! SentencePiece: characters are merged into pieces, the neighbours with the best score first,
//! until no two neighbours form a piece.

use std::cmp::Ordering;

use schemas::gguf::Metadata;

use super::TokenKind;
use super::load::{TokenizerError, check_length, missing};
use super::merge::merge;
use super::names::Names;

pub(super) const SCORES: &str = "tokenizer.ggml.scores";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// The spelling of a space in pieces.
pub(super) const SPACE: &str = "\u{2581}";

/// Pieces of text with their scores.
pub(super) struct Pieces {
    names: Names,
    /// Scores by id; `None` for tokens that merging cannot produce.
    scores: Vec<Option<f32>>,
    /// The token of each byte, for characters without a token.
    bytes: [Option<u32>; 256],
    /// The token for characters without a token, if there are no byte tokens.
    unknown: Option<u32>,
    /// True if a space is added at the start of a text and after a token found by name.
    space_prefix: bool,
}

/// A better score has a higher priority.
#[derive(PartialEq)]
struct Score(f32);

impl Eq for Score {}

impl Ord for Score {
    fn cmp(&self, other: &Score) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Score) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Pieces {
    /// Reads the pieces of a file.
    ///
    /// # Errors
    /// There are no scores, or not as many as pieces.
    pub(super) fn read(
        metadata: &Metadata,
        names: Names,
        kinds: &[TokenKind],
        unknown: Option<u32>,
    ) -> Result<Pieces, TokenizerError> {
        let scores = metadata.f32s(SCORES)?.ok_or_else(|| missing(SCORES))?;
        check_length(SCORES, kinds.len(), scores.len())?;
        let is = |id: u32, kind| kinds[id as usize] == kind;
        let byte = |byte: u8| {
            let id = names.id(&format!("<0x{byte:02X}>"));
            id.filter(|&id| is(id, TokenKind::Byte))
        };
        let scores = (0..).zip(scores);
        Ok(Pieces {
            bytes: std::array::from_fn(|i| byte(i as u8)),
            unknown,
            scores: scores
                .map(|(id, &score)| is(id, TokenKind::Normal).then_some(score))
                .collect(),
            space_prefix: metadata.bool(ADD_SPACE_PREFIX)?.unwrap_or(true),
            names,
        })
    }

    /// Appends the tokens of a text. `after_token` is true at the start and after a token found by
    /// name.
    pub(super) fn encode(&self, text: &str, after_token: bool, tokens: &mut Vec<u32>) {
        let prefix = match self.space_prefix && after_token {
            true => SPACE,
            false => "",
        };
        let text = format!("{prefix}{}", text.replace(' ', SPACE));
        let chars = text.char_indices();
        let chars = chars.map(|(start, char)| (start, start + char.len_utf8()));
        let pieces = merge(chars, |(start, _), (_, end)| {
            let (_, score) = self.piece(&text[start..end])?;
            Some((Score(score), (start, end)))
        });
        let mut in_unknown = false;
        for (start, end) in pieces {
            let piece = &text[start..end];
            let was_unknown = std::mem::take(&mut in_unknown);
            if let Some((id, _)) = self.piece(piece) {
                tokens.push(id);
            } else if self.has_bytes() {
                let bytes = piece.bytes().map(|byte| self.bytes[usize::from(byte)]);
                tokens.extend(bytes.flatten());
            } else {
                // Consecutive unknown characters are one unknown token.
                tokens.extend(self.unknown.filter(|_| !was_unknown));
                in_unknown = true;
            }
        }
    }

    /// Returns the token that merging produces for a text, and its score.
    fn piece(&self, text: &str) -> Option<(u32, f32)> {
        let id = self.names.id(text)?;
        Some((id, self.scores[id as usize]?))
    }

    fn has_bytes(&self) -> bool {
        self.bytes.iter().any(Option::is_some)
    }
}
