//! SentencePiece's way from text to tokens: characters are merged into pieces, of all neighbours
//! those with the best score first, until no two make a piece together.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use tokenizers::models::bpe::Vocab;

/// The space as pieces spell it.
pub(super) const SPACE: &str = "\u{2581}";

/// Pieces of text with their scores.
pub(super) struct Pieces {
    /// What merging can make.
    pub(super) ids: Vocab,
    /// By id.
    pub(super) scores: Vec<f32>,
    /// The token of each byte, for characters without one.
    pub(super) bytes: [Option<u32>; 256],
    /// For characters without a token where there are none for bytes either.
    pub(super) unknown: Option<u32>,
    /// Whether a text, and what follows a token found by name, begins with a space that nobody
    /// wrote.
    pub(super) space_prefix: bool,
}

/// A run of the text, linked to its neighbours.
struct Symbol {
    start: usize,
    end: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that make a piece together.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both; one of them has grown if this is another number.
    len: usize,
}

/// The best score first, of equal ones the leftmost.
impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        let score = self.score.total_cmp(&other.score);
        score.then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl Pieces {
    /// Appends the tokens of a text.
    pub(super) fn merge(&self, text: &str, tokens: &mut Vec<u32>) {
        let text = text.replace(' ', SPACE);
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, char))| Symbol {
                start,
                end: start + char.len_utf8(),
                previous: i.checked_sub(1),
                next: Some(i + 1),
            })
            .collect();
        let Some(last) = symbols.last_mut() else {
            return;
        };
        last.next = None;

        let mut pairs = BinaryHeap::new();
        for right in 1..symbols.len() {
            pairs.extend(self.pair(&text, &symbols, right - 1, right));
        }
        while let Some(Pair {
            left, right, len, ..
        }) = pairs.pop()
        {
            let (start, end) = (symbols[left].start, symbols[right].end);
            // An empty symbol has been merged into one before it.
            let is_gone = |symbol: &Symbol| symbol.start == symbol.end;
            let has_grown = end.checked_sub(start) != Some(len);
            if is_gone(&symbols[left]) || is_gone(&symbols[right]) || has_grown {
                continue;
            }
            symbols[left].end = end;
            symbols[right].start = end;
            let next = symbols[right].next;
            symbols[left].next = next;
            if let Some(next) = next {
                symbols[next].previous = Some(left);
                pairs.extend(self.pair(&text, &symbols, left, next));
            }
            if let Some(previous) = symbols[left].previous {
                pairs.extend(self.pair(&text, &symbols, previous, left));
            }
        }

        let mut at = Some(0);
        let mut in_unknown = false;
        while let Some(symbol) = at.map(|i| &symbols[i]) {
            let piece = &text[symbol.start..symbol.end];
            let was_unknown = std::mem::take(&mut in_unknown);
            if let Some(&id) = self.ids.get(piece) {
                tokens.push(id);
            } else if self.has_bytes() {
                tokens.extend(
                    piece
                        .bytes()
                        .filter_map(|byte| self.bytes[usize::from(byte)]),
                );
            } else {
                // A run of unknown characters is one unknown token.
                tokens.extend(self.unknown.filter(|_| !was_unknown));
                in_unknown = true;
            }
            at = symbol.next;
        }
    }

    fn has_bytes(&self) -> bool {
        self.bytes.iter().any(Option::is_some)
    }

    /// The piece that two neighbours make, if they make one.
    fn pair(&self, text: &str, symbols: &[Symbol], left: usize, right: usize) -> Option<Pair> {
        let (start, end) = (symbols[left].start, symbols[right].end);
        let &id = self.ids.get(&text[start..end])?;
        Some(Pair {
            score: self.scores[id as usize],
            left,
            right,
            len: end - start,
        })
    }
}
