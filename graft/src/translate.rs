//! Translates tokens between two vocabularies by their bytes.

use std::collections::HashMap;

use schemas::vocab::{Translation, VocabMap, Vocabulary};

/// A token of one vocabulary.
#[derive(Clone, Copy, Debug)]
pub struct TokenText<'a> {
    /// Bytes of the token's text; the name of a control token.
    pub bytes: &'a [u8],
    /// True for control tokens: they are translated to one control token or not at all, and their
    /// names are never spelled with text tokens.
    pub is_control: bool,
}

/// One vocabulary of a translation.
pub struct Side<'a> {
    /// Description of the vocabulary for the map.
    pub vocabulary: Vocabulary,
    /// Its tokens by id.
    pub tokens: Vec<TokenText<'a>>,
    /// Tokens by role (beginning of sequence, end of text, end of turn), in the same order on both
    /// sides. Control tokens of the same role are translated to each other if their names differ.
    pub roles: Vec<Option<u32>>,
}

/// Number of tokens of one side per kind of translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Translated to one token.
    pub n_exact: u64,
    /// Translated to a sequence of several tokens.
    pub n_sequence: u64,
    /// Not translated.
    pub n_none: u64,
}

/// Translates in both directions: to the token with the same bytes if there is one, else greedily
/// to the longest tokens that match the remaining bytes. Returns the map, and the coverage of the
/// target's and of the draft model's tokens.
pub fn map_vocab(target: &Side<'_>, draft: &Side<'_>) -> (VocabMap, [Coverage; 2]) {
    let (target_to_draft, of_target) = translate(target, draft);
    let (draft_to_target, of_draft) = translate(draft, target);
    let map = VocabMap {
        target: target.vocabulary.clone(),
        draft: draft.vocabulary.clone(),
        target_to_draft,
        draft_to_target,
    };
    (map, [of_target, of_draft])
}

/// Maps bytes to token ids, for control or text tokens; of tokens with the same bytes, the first.
fn by_bytes<'a>(side: &Side<'a>, control: bool) -> HashMap<&'a [u8], u32> {
    let mut ids = HashMap::new();
    for (id, token) in (0u32..).zip(&side.tokens) {
        if token.is_control == control && !token.bytes.is_empty() {
            ids.entry(token.bytes).or_insert(id);
        }
    }
    ids
}

fn translate(from: &Side<'_>, to: &Side<'_>) -> (Translation, Coverage) {
    let texts = by_bytes(to, false);
    let controls = by_bytes(to, true);
    let longest = texts.keys().map(|bytes| bytes.len()).max().unwrap_or(0);
    let roles: HashMap<u32, u32> = from
        .roles
        .iter()
        .zip(&to.roles)
        .filter_map(|(from, to)| Some(((*from)?, (*to)?)))
        .collect();
    let mut coverage = Coverage::default();
    let sequences = (0u32..).zip(&from.tokens).map(|(id, token)| {
        let sequence = match token.is_control {
            true => {
                let same = controls.get(token.bytes).or_else(|| roles.get(&id));
                same.map(|&id| vec![id]).unwrap_or_default()
            }
            false => spell(token.bytes, &texts, longest).unwrap_or_default(),
        };
        match sequence.len() {
            0 => coverage.n_none += 1,
            1 => coverage.n_exact += 1,
            _ => coverage.n_sequence += 1,
        }
        sequence
    });
    let sequences: Vec<Vec<u32>> = sequences.collect();
    (Translation::new(sequences), coverage)
}

/// Splits bytes into the longest matching tokens; `None` if no token matches the remaining bytes.
fn spell(mut bytes: &[u8], ids: &HashMap<&[u8], u32>, longest: usize) -> Option<Vec<u32>> {
    let mut sequence = Vec::new();
    while !bytes.is_empty() {
        let lengths = (1..=longest.min(bytes.len())).rev();
        let mut found = lengths.filter_map(|n| Some((n, *ids.get(&bytes[..n])?)));
        let (n, id) = found.next()?;
        sequence.push(id);
        bytes = &bytes[n..];
    }
    Some(sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side<'a>(texts: &[&'a str], controls: &[&'a str]) -> Side<'a> {
        let names = texts.iter().chain(controls);
        let text = |is_control| {
            move |text: &&'a str| TokenText {
                bytes: text.as_bytes(),
                is_control,
            }
        };
        let all = texts.iter().map(text(false));
        Side {
            vocabulary: Vocabulary::of(&names.collect()),
            tokens: all.chain(controls.iter().map(text(true))).collect(),
            roles: vec![Some(texts.len() as u32)],
        }
    }

    #[test]
    fn exact_first_then_the_longest_prefixes() {
        let target = side(&["a", "b", "ab", "abc", "é", "<end>"], &["<end>", "<x>"]);
        let draft = side(&["c", "ab", "a", "b", "abx"], &["<stop>"]);
        let (map, [of_target, of_draft]) = map_vocab(&target, &draft);
        let to_draft = |id| map.target_to_draft.of(id);
        assert_eq!(to_draft(0), [2]);
        assert_eq!(to_draft(2), [1]);
        assert_eq!(to_draft(3), [1, 0], "ab, c");
        assert!(to_draft(4).is_empty());
        assert!(
            to_draft(5).is_empty(),
            "text, though it looks like a control token"
        );
        assert_eq!(to_draft(6), [5], "by role");
        assert!(to_draft(7).is_empty());
        let expected = Coverage {
            n_exact: 4,
            n_sequence: 1,
            n_none: 3,
        };
        assert_eq!(of_target, expected);
        let to_target = |id| map.draft_to_target.of(id);
        assert!(to_target(0).is_empty(), "no c alone");
        assert!(to_target(4).is_empty(), "ab, but no x");
        assert_eq!(of_draft.n_exact, 4);
    }

    /// A translation has the same bytes as its token.
    #[test]
    fn sequences_spell_their_token() {
        let target = side(&["a", "b", "aab", "baba", "bb"], &["<end>"]);
        let draft = side(&["aa", "b", "ab", "a"], &["<end>"]);
        let (map, _) = map_vocab(&target, &draft);
        for (id, token) in target.tokens.iter().enumerate() {
            let ids = map.target_to_draft.of(id as u32).iter();
            let spelled = ids.flat_map(|&id| draft.tokens[id as usize].bytes);
            assert!(spelled.eq(token.bytes));
        }
    }
}
