//! What the hub says a file's contents are: SHA-256 of a large file, git's SHA-1 of a small one.

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::error::Problem;

/// The hash that a file's contents must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hash {
    /// Of the contents.
    Sha256(String),
    /// Of a git blob: a header with the length, then the contents.
    Git(String),
}

/// Fills a buffer with the bytes at a place.
type Read<'a> = dyn Fn(u64, &mut [u8]) -> Result<(), Problem> + 'a;

/// Bytes that are hashed at a time.
const BUFFER_BYTES: u64 = 1 << 20;

impl Hash {
    /// The hash in hexadecimal, by which the cache names contents.
    pub(crate) fn text(&self) -> &str {
        match self {
            Hash::Sha256(text) | Hash::Git(text) => text,
        }
    }

    /// The hash of the same kind of what `read` gives, of that many bytes.
    pub(crate) fn of(&self, size_bytes: u64, read: &Read<'_>) -> Result<String, Problem> {
        match self {
            Hash::Sha256(_) => digest(Sha256::new(), size_bytes, read),
            Hash::Git(_) => {
                let head = format!("blob {size_bytes}\0");
                digest(Sha1::new_with_prefix(head), size_bytes, read)
            }
        }
    }

    /// Refuses another hash than this.
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

    /// Expectations are what `sha256sum` and `git hash-object` print.
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
