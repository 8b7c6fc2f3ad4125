//! Vocabularies of tiktoken: a file has one line per token, with the token's bytes in base64 and its rank,
//! which is its id. Merges are rebuilt from the ranks.

use std::collections::HashMap;
use std::path::Path;

use super::bpe::Bpe;
use super::files::TokenizerFiles;
use super::tokens::{self, TokenType, check_unique, pad, slot};
use crate::error::Error;
use crate::hf_config::read_file;

/// Number of special tokens after the ordinary ones; those without a name are reserved.
const N_SPECIAL: u64 = 256;
/// Upper limit of a token's length in bytes: merging takes quadratic time.
const MAX_TOKEN_BYTES: usize = 1024;

/// Reads a vocabulary of `n_vocab` tokens: the ordinary ones, then the special ones that
/// `tokenizer_config.json` names; other ids are padded.
pub(super) fn read(path: &Path, files: &TokenizerFiles, n_vocab: u64) -> Result<Bpe, Error> {
    let ranked = ranked_tokens(path, &read_file(path)?)?;
    let ranks: HashMap<&[u8], u64> = ranked
        .iter()
        .map(|(bytes, rank)| (&**bytes, *rank))
        .collect();
    let mut slots: Vec<Option<(String, TokenType)>> = Vec::new();
    slots.resize_with(n_vocab as usize, || None);
    let mut merges = Vec::new();
    for (bytes, rank) in &ranked {
        let text = spelling(bytes);
        let slot = slot(path, &mut slots, &text, *rank)?;
        if let Some((first, _)) = slot {
            return Err(Error::TokenClash {
                path: path.to_path_buf(),
                id: *rank,
                first: first.clone(),
                second: text,
            });
        }
        *slot = Some((text, TokenType::Normal));
        // A single byte is not merged from others.
        if let [left, right] = parts(bytes, *rank, &ranks).as_slice() {
            merges.push(format!("{} {}", spelling(left), spelling(right)));
        }
    }
    let first = ranked.len() as u64;
    let mut named: HashMap<u64, String> = tokens::config_added_tokens(files)?
        .into_iter()
        .map(|token| (token.id, token.text))
        .collect();
    for id in first..n_vocab.min(first + N_SPECIAL) {
        let name = named.remove(&id);
        let text = name.unwrap_or_else(|| format!("<|reserved_token_{id}|>"));
        *slot(path, &mut slots, &text, id)? = Some((text.clone(), TokenType::Control));
    }
    let tokens = pad(slots);
    check_unique(path, &tokens)?;
    let (tokens, types) = tokens.into_iter().map(|(text, t)| (text, t as i32)).unzip();
    Ok(Bpe {
        tokens,
        types,
        merges,
    })
}

/// Returns the tokens of a file with their ranks, in file order.
fn ranked_tokens(path: &Path, file: &[u8]) -> Result<Vec<(Vec<u8>, u64)>, Error> {
    let lines = file.split(|&byte| byte == b'\n').zip(1..);
    let lines = lines.filter(|(line, _)| !line.trim_ascii().is_empty());
    let tokens = lines.map(|(line, number)| {
        ranked_token(line.trim_ascii()).ok_or_else(|| Error::Field {
            path: path.to_path_buf(),
            field: format!("line {number}"),
            expected: format!("a token of 1 to {MAX_TOKEN_BYTES} bytes in base64, and its rank"),
            found: String::from_utf8_lossy(line).chars().take(80).collect(),
        })
    });
    tokens.collect()
}

fn ranked_token(line: &[u8]) -> Option<(Vec<u8>, u64)> {
    let space = line.iter().position(|&byte| byte == b' ')?;
    let (token, rank) = line.split_at(space);
    let rank = std::str::from_utf8(rank.trim_ascii()).ok()?.parse().ok()?;
    let bytes = base64(token)?;
    (1..=MAX_TOKEN_BYTES)
        .contains(&bytes.len())
        .then_some((bytes, rank))
}

/// Decodes base64 with padding.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| {
        Some(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        })
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    for (i, group) in text.chunks(4).enumerate() {
        let is_last = 4 * (i + 1) == text.len();
        let n_padding = match group {
            [_, _, b'=', b'='] if is_last => 2,
            [_, _, _, b'='] if is_last => 1,
            _ => 0,
        };
        let mut bits: u32 = 0;
        for &byte in &group[..4 - n_padding] {
            bits = bits << 6 | u32::from(digit(byte)?);
        }
        bits <<= 6 * n_padding;
        bytes.extend_from_slice(&bits.to_be_bytes()[1..4 - n_padding]);
    }
    Some(bytes)
}

/// Splits a token into the parts that are left after all merges of lower rank than its own.
fn parts<'a>(token: &'a [u8], rank: u64, ranks: &HashMap<&[u8], u64>) -> Vec<&'a [u8]> {
    // Boundaries of the parts.
    let mut ends: Vec<usize> = (0..=token.len()).collect();
    loop {
        let pairs = (0..ends.len().saturating_sub(2)).filter_map(|i| {
            let joined = &token[ends[i]..ends[i + 2]];
            ranks.get(joined).map(|&rank| (rank, i))
        });
        match pairs.min().filter(|&(lowest, _)| lowest < rank) {
            None => break,
            Some((_, i)) => drop(ends.remove(i + 1)),
        }
    }
    ends.windows(2)
        .map(|ends| &token[ends[0]..ends[1]])
        .collect()
}

/// Returns bytes in byte-level spelling: one character for each.
fn spelling(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| character(byte)).collect()
}

/// Returns the character of a byte: itself if it is visible, else one after those of all bytes.
fn character(byte: u8) -> char {
    let is_visible = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    match is_visible(byte) {
        true => char::from(byte),
        false => {
            let n_before = (0..byte).filter(|&byte| !is_visible(byte)).count();
            char::from_u32(256 + n_before as u32).expect("a character below 512")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_decoded() {
        let token = |line: &str| ranked_token(line.as_bytes());
        assert_eq!(token("YQ== 0"), Some((b"a".to_vec(), 0)));
        assert_eq!(token("YWI= 7"), Some((b"ab".to_vec(), 7)));
        assert_eq!(token("YWJj 9"), Some((b"abc".to_vec(), 9)));
        assert_eq!(token("////AAAA 1").unwrap().0, [255, 255, 255, 0, 0, 0]);
        for line in [
            "YQ==",
            "YQ== x",
            "YQ== -1",
            "Y=== 1",
            "YQ= 1",
            "Y Q== 1",
            " 1",
            "Y*== 1",
            "YQ==YQ== 1",
        ] {
            assert_eq!(token(line), None, "{line}");
        }
        let long = format!("{} 1", "YWJj".repeat(MAX_TOKEN_BYTES / 3 + 1));
        assert_eq!(token(&long), None);
    }

    /// Ids after the special tokens are padding.
    #[test]
    fn unused_ids_are_padded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiktoken.model");
        std::fs::write(&path, "YQ== 0\nYg== 1\nYWI= 2\n").unwrap();
        let config =
            r#"{"added_tokens_decoder": {"4": {"content": "[BOS]"}, "999": {"content": "no"}}}"#;
        std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
        let files = TokenizerFiles::open(folder.path()).unwrap();
        let bpe = read(&path, &files, 262).unwrap();
        assert_eq!(bpe.merges, ["a b"]);
        let token = |id: usize| (bpe.tokens[id].as_str(), bpe.types[id]);
        assert_eq!(token(2), ("ab", TokenType::Normal as i32));
        assert_eq!(
            token(3),
            ("<|reserved_token_3|>", TokenType::Control as i32)
        );
        assert_eq!(token(4), ("[BOS]", TokenType::Control as i32));
        assert_eq!(token(258).1, TokenType::Control as i32);
        assert_eq!(token(259), ("[PAD259]", TokenType::Unused as i32));
        assert_eq!(bpe.tokens.len(), 262);
    }

    #[test]
    fn bytes_are_spelled_as_by_gpt2() {
        assert_eq!(spelling(b" a\n"), "\u{120}a\u{10a}");
        assert_eq!(spelling(&[0, 127, 173, 255]), "\u{100}\u{121}\u{143}\u{ff}");
        let mut all: Vec<char> = (0..=255).map(character).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn merges_are_those_of_lower_rank() {
        let ranks: HashMap<&[u8], u64> = [
            (&b"a"[..], 0),
            (b"b", 1),
            (b"c", 2),
            (b"bc", 3),
            (b"ab", 4),
            (b"abc", 5),
        ]
        .into();
        let of = |token: &'static [u8], rank| parts(token, rank, &ranks);
        assert_eq!(of(b"a", 0), [b"a"]);
        assert_eq!(of(b"ab", 4), [b"a", b"b"]);
        assert_eq!(of(b"abc", 5), [&b"a"[..], b"bc"]);
        // A rank that no merge reaches leaves more than two parts.
        assert_eq!(of(b"abc", 3), [&b"a"[..], b"b", b"c"]);
    }
}
