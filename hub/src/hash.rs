//! Hashes by which the hub identifies contents: SHA-256 for LFS files, git's SHA-1 for others.

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::error::Problem;

/// The expected hash of a file's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hash {
    /// SHA-256 of the contents.
    Sha256(String),
    /// SHA-1 of a git blob: a header with the length, then the contents.
    Git(String),
}

/// Fills a buffer with the bytes at an offset.
type Read<'a> = dyn Fn(u64, &mut [u8]) -> Result<(), Problem> + 'a;

/// Bytes hashed per step.
const BUFFER_BYTES: u64 = 1 << 20;

impl Hash {
    /// Returns the hash in hexadecimal, which is the blob's name in the cache.
    pub(crate) fn text(&self) -> &str {
        match self {
            Hash::Sha256(text) | Hash::Git(text) => text,
        }
    }

    /// Computes the hash of the same kind over `size_bytes` bytes from `read`.
    pub(crate) fn of(&self, size_bytes: u64, read: &Read<'_>) -> Result<String, Problem> {
        match self {
            Hash::Sha256(_) => digest(Sha256::new(), size_bytes, read),
            Hash::Git(_) => {
                let head = format!("blob {size_bytes}\0");
                digest(Sha1::new_with_prefix(head), size_bytes, read)
            }
        }
    }

    /// Fails if `found` differs from this hash.
    pub(crate) fn check(&self, found: String) -> Result<(), Problem> {
        let expected = self.text().to_lowercase();
        match found == expected {
            true => Ok(()),
            false => Err(Problem::Hash {
                what: match self {
                    Hash::Sha256(_) => "SHA-256",
                    Hash::Git(_) => "git's SHA-1",
                },
                found,
                expected,
            }),
        }
    }
}

fn digest<D: Digest>(mut digest: D, size_bytes: u64, read: &Read<'_>) -> Result<String, Problem> {
    let mut buffer = vec![0; BUFFER_BYTES.min(size_bytes) as usize];
    let mut at = 0;
    while at < size_bytes {
        let n = BUFFER_BYTES.min(size_bytes - at);
        let buffer = &mut buffer[..n as usize];
        read(at, buffer)?;
        digest.update(buffer);
        at += n;
    }
    let bytes = digest.finalize();
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values were printed by `sha256sum` and `git hash-object`.
    #[test]
    fn hashes_are_those_of_the_usual_programs() {
        let text = b"hello\n";
        let read = |at: u64, out: &mut [u8]| {
            out.copy_from_slice(&text[at as usize..][..out.len()]);
            Ok(())
        };
        for (hash, expected) in [
            (
                Hash::Sha256(String::new()),
                "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
            ),
            (
                Hash::Git(String::new()),
                "ce013625030ba8dba906f756967f9e9ca394464a",
            ),
        ] {
            assert_eq!(hash.of(6, &read).unwrap(), expected);
        }
    }
}
