//! Vocabularies that differ between a target and its draft: an output trimmed to some of the
//! target's tokens ([`read_d2t`]), and a draft model with another tokenizer ([`VocabMap`]).

mod d2t;
mod map;

use sha2::{Digest, Sha256};

pub use d2t::{D2T, D2tError, check_d2t, read_d2t, write_d2t};
pub use map::{
    ARCHITECTURE, DRAFT_IDS, DRAFT_OFFSETS, DRAFT_SIZE, DRAFT_TOKENS_SHA256, TARGET_IDS,
    TARGET_OFFSETS, TARGET_SIZE, TARGET_TOKENS_SHA256, Translation, VocabMap, VocabMapError,
    Vocabulary,
};

/// Returns the hash that identifies a token table, in lower-case hexadecimal: SHA-256 over all
/// tokens by id, each as its length in bytes (little-endian u64) followed by its bytes.
pub fn tokens_sha256<T: AsRef<[u8]>>(tokens: impl IntoIterator<Item = T>) -> String {
    let mut hash = Sha256::new();
    for token in tokens {
        let token = token.as_ref();
        hash.update((token.len() as u64).to_le_bytes());
        hash.update(token);
    }
    let digest = hash.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_boundaries_are_part_of_the_hash() {
        let hash = |tokens: &[&str]| tokens_sha256(tokens);
        assert_eq!(
            hash(&[]),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "SHA-256 of nothing, as FIPS 180-4 has it"
        );
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        assert_ne!(hash(&["a", ""]), hash(&["a"]));
    }
}
