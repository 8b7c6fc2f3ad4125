//! Hashes of files: of the ranges that were written, or of samples of a large file.

use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use twox_hash::XxHash3_64;

use crate::gguf::HashedRange;
use crate::input;

/// Bytes per read: few enough to be in the CPU's caches when they are hashed.
const CHUNK_BYTES: u64 = 256 << 10;
/// Files up to this size are read whole.
const WHOLE_BYTES: u64 = 16 << 20;
/// Number and size of the samples of larger files.
const N_SAMPLES: u64 = 256;
const SAMPLE_BYTES: u64 = 4 << 10;

/// Returns the XXH3 hash of bytes in hexadecimal.
pub fn hash(bytes: &[u8]) -> String {
    format!("{:016x}", XxHash3_64::oneshot(bytes))
}

/// Error of a file that has other bytes than expected.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    /// The file cannot be read, or the check was cancelled.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Bytes have another hash.
    #[error("bytes {} to {}: hash {found}, expected {expected}", .bytes.start, .bytes.end)]
    Hash {
        /// The bytes.
        bytes: Range<u64>,
        /// Their hash.
        found: String,
        /// The expected hash.
        expected: String,
    },
    /// Bytes without a hash are not zero.
    #[error("bytes {} to {}: not zero, expected padding", .bytes.start, .bytes.end)]
    Padding {
        /// The bytes.
        bytes: Range<u64>,
    },
    /// A range is not within the expected parts of the file, or before the end of the one before it.
    #[error("hash of {size_bytes} bytes at byte {offset}, expected other ranges")]
    Misplaced {
        /// Its first byte.
        offset: u64,
        /// Number of bytes.
        size_bytes: u64,
    },
}

/// Checks that parts of a file, in file order, consist of ranges with these hashes, and of zeros. Stops when
/// `cancelled`, called before every read, returns true.
///
/// # Errors
/// Bytes differ, a range is elsewhere, the file cannot be read, or the check was cancelled.
pub fn check_ranges(
    path: &Path,
    parts: &[Range<u64>],
    ranges: &[HashedRange],
    cancelled: &dyn Fn() -> bool,
) -> Result<(), RangeError> {
    let file = input::open(path)?;
    let mut ranges = ranges.iter().peekable();
    for part in parts {
        let mut at = part.start;
        while let Some(range) = ranges.next_if(|range| range.offset < part.end) {
            let end = range.offset.saturating_add(range.size_bytes);
            if range.offset < at || end > part.end {
                return Err(misplaced(range));
            }
            check_zeros(&file, at..range.offset, cancelled)?;
            let mut hasher = XxHash3_64::new();
            let bytes = range.offset..end;
            read(&file, steps(bytes.clone()), cancelled, |b| hasher.write(b))?;
            let found = format!("{:016x}", hasher.finish());
            if found != range.xxh3 {
                let expected = range.xxh3.clone();
                return Err(RangeError::Hash {
                    bytes,
                    found,
                    expected,
                });
            }
            at = end;
        }
        check_zeros(&file, at..part.end, cancelled)?;
    }
    ranges.next().map_or(Ok(()), |range| Err(misplaced(range)))
}

fn misplaced(range: &HashedRange) -> RangeError {
    RangeError::Misplaced {
        offset: range.offset,
        size_bytes: range.size_bytes,
    }
}

fn check_zeros(
    file: &File,
    bytes: Range<u64>,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), RangeError> {
    let mut is_zero = true;
    read(file, steps(bytes.clone()), cancelled, |found| {
        is_zero &= found.iter().all(|&byte| byte == 0);
    })?;
    match is_zero {
        true => Ok(()),
        false => Err(RangeError::Padding { bytes }),
    }
}

/// Splits bytes into ranges (start and size) of one read each.
fn steps(bytes: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let starts = bytes.clone().step_by(CHUNK_BYTES as usize);
    starts.map(move |start| (start, CHUNK_BYTES.min(bytes.end - start)))
}

/// Returns a hash of the size and of samples of a file: all bytes of a file up to 16 MiB, else 256 blocks of
/// 4 KiB at equal distances, with the first and the last one. A shard reads 1 MiB of each input to know it, however
/// many inputs a split model has.
///
/// # Errors
/// The file cannot be read.
pub fn fingerprint(path: &Path) -> io::Result<String> {
    let file = input::open(path)?;
    let size_bytes = file.metadata()?.len();
    let mut hasher = XxHash3_64::new();
    hasher.write_u64(size_bytes);
    let put = |bytes: &[u8]| hasher.write(bytes);
    if size_bytes <= WHOLE_BYTES {
        read(&file, steps(0..size_bytes), &|| false, put)?;
    } else {
        let last = u128::from(size_bytes - SAMPLE_BYTES);
        let samples = (0..N_SAMPLES).map(|i| {
            let start = last * u128::from(i) / u128::from(N_SAMPLES - 1);
            (start as u64, SAMPLE_BYTES)
        });
        read(&file, samples, &|| false, put)?;
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// Reads ranges (start and size) of a file, and passes their bytes on.
fn read(
    file: &File,
    ranges: impl Iterator<Item = (u64, u64)>,
    cancelled: &dyn Fn() -> bool,
    mut put: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut buffer = Vec::new();
    for (start, size_bytes) in ranges {
        if cancelled() {
            return Err(io::Error::other("interrupted"));
        }
        buffer.resize(size_bytes as usize, 0);
        file.read_exact_at(&mut buffer, start)?;
        put(&buffer);
    }
    Ok(())
}

#[cfg(test)]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "a list of parts of a file may have one part"
)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn ranges_and_padding_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
        bytes[500_000..500_010].fill(0);
        let range = |start: u64, end: u64| HashedRange {
            offset: start,
            size_bytes: end - start,
            xxh3: hash(&bytes[start as usize..end as usize]),
        };
        let ranges = [range(0, 500_000), range(500_010, 900_000)];
        let check = |bytes: &[u8], parts: &[Range<u64>], ranges: &[HashedRange]| {
            fs::write(&path, bytes).unwrap();
            let found = check_ranges(&path, parts, ranges, &|| false);
            found.map_err(|error| error.to_string())
        };
        let whole = [0..900_000];
        assert_eq!(check(&bytes, &whole, &ranges), Ok(()));
        // Bytes outside of the parts are those of others.
        assert_eq!(check(&bytes, &[500_005..900_000], &ranges[1..]), Ok(()));
        let changed = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            check(&bytes, &whole, &ranges)
        };
        assert_eq!(changed(950_000), Ok(()));
        let error = changed(400_000).unwrap_err();
        assert!(error.starts_with("bytes 0 to 500000: hash "), "{error}");
        let error = changed(500_003).unwrap_err();
        assert_eq!(error, "bytes 500000 to 500010: not zero, expected padding");
        let misplaced = "hash of 399990 bytes at byte 500010, expected other ranges";
        for (parts, ranges) in [
            (&[0..500_000][..], &ranges[..]),
            (&[0..500_000, 500_020..900_000][..], &ranges[..]),
            (&[0..899_999][..], &ranges[..]),
            (&whole[..], &[ranges[1].clone(), ranges[1].clone()][..]),
        ] {
            let error = check(&bytes, parts, ranges).unwrap_err();
            let is_other = error == misplaced || error.ends_with("expected padding");
            assert!(is_other, "{error}");
        }
        let short = check(&bytes[..800_000], &whole, &ranges);
        assert!(short.is_err());
        assert!(check_ranges(&path, &whole, &ranges, &|| true).is_err());
    }

    #[test]
    fn small_files_are_sampled_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
        let sample = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            fingerprint(&path).unwrap()
        };
        let sampled = sample(&bytes);
        bytes[654_321] ^= 1;
        assert_ne!(sampled, sample(&bytes));
        bytes.resize(20 << 20, 7);
        let large = sample(&bytes);
        // A change of one tensor is larger than the distance of samples.
        bytes[5 << 20..6 << 20].fill(8);
        assert_ne!(large, sample(&bytes));
        *bytes.last_mut().unwrap() = 9;
        let last = sample(&bytes);
        bytes.pop();
        assert_ne!(last, sample(&bytes));
    }
}
