//! [`LogitsHash`]: a number that shows whether two runs computed the same logits, bit for bit.

use std::fmt;

const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a, 64 bits, over the little-endian bytes of the logits in the order given.
///
/// Works on bit patterns: -0 differs from 0, and NaNs differ by their payload. FNV-1a is used
/// because it takes five lines in any language to recompute it. It processes bytes one by one, but
/// that is still cheap compared with the pass that computed the logits. It does not resist
/// deliberate collisions.
///
/// Prints as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitsHash(u64);

impl LogitsHash {
    /// Returns the hash of no logits.
    pub const fn new() -> LogitsHash {
        LogitsHash(OFFSET_BASIS)
    }

    /// Adds the next logits. Rows may be added one by one or together: only their order matters.
    pub fn update(&mut self, logits: &[f32]) {
        self.0 = fnv1a(
            self.0,
            logits.iter().flat_map(|x| x.to_bits().to_le_bytes()),
        );
    }

    /// Returns the hash of all logits so far.
    pub const fn value(self) -> u64 {
        self.0
    }
}

impl Default for LogitsHash {
    fn default() -> LogitsHash {
        LogitsHash::new()
    }
}

impl fmt::Display for LogitsHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

fn fnv1a(state: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(state, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors of the FNV authors (draft-eastlake-fnv, 64-bit FNV-1a).
    #[test]
    fn published_vectors() {
        for (text, expected) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(fnv1a(OFFSET_BASIS, text.bytes()), expected, "{text}");
        }
    }

    fn hash_of(rows: &[&[f32]]) -> LogitsHash {
        let mut hash = LogitsHash::new();
        rows.iter().for_each(|row| hash.update(row));
        hash
    }

    #[test]
    fn a_float_counts_as_its_little_endian_bytes() {
        let foob = f32::from_bits(u32::from_le_bytes(*b"foob"));
        assert_eq!(hash_of(&[&[foob]]).value(), fnv1a(OFFSET_BASIS, *b"foob"));
        assert_eq!(
            hash_of(&[&[1.0]]).value(),
            fnv1a(OFFSET_BASIS, [0x00, 0x00, 0x80, 0x3f])
        );
        assert_eq!(hash_of(&[]).to_string(), "cbf29ce484222325");
    }

    #[test]
    fn rows_may_be_cut_anywhere_but_not_swapped() {
        let whole = hash_of(&[&[1.0, 2.0, 3.0]]);
        assert_eq!(hash_of(&[&[1.0], &[2.0, 3.0]]), whole);
        assert_ne!(hash_of(&[&[2.0, 1.0, 3.0]]), whole);
    }

    #[test]
    fn bit_patterns_are_told_apart() {
        assert_ne!(hash_of(&[&[0.0]]), hash_of(&[&[-0.0]]));
        let other_nan = f32::from_bits(f32::NAN.to_bits() ^ 1);
        assert_ne!(hash_of(&[&[f32::NAN]]), hash_of(&[&[other_nan]]));
    }
}
