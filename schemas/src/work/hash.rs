//! Hashes of files: whole, or of samples of a large one.

use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use twox_hash::XxHash3_64;

use crate::input;

/// Bytes per read.
const CHUNK_BYTES: u64 = 1 << 20;
/// Number and size of the samples of a file; smaller files are read whole.
const N_SAMPLES: u64 = 256;
const SAMPLE_BYTES: u64 = 64 << 10;

/// Returns the XXH3 hash of bytes in hexadecimal.
pub fn hash(bytes: &[u8]) -> String {
    format!("{:016x}", XxHash3_64::oneshot(bytes))
}

/// Returns the XXH3 hash of a file in hexadecimal. Stops when `cancelled`, called before every read, returns
/// true.
///
/// # Errors
/// The file cannot be read, or the computation was cancelled.
pub fn file_hash(path: &Path, cancelled: &dyn Fn() -> bool) -> io::Result<String> {
    let file = input::open(path)?;
    let size_bytes = file.metadata()?.len();
    let mut hasher = XxHash3_64::new();
    let ranges = (0..size_bytes).step_by(CHUNK_BYTES as usize);
    let ranges = ranges.map(|start| (start, CHUNK_BYTES.min(size_bytes - start)));
    read(&file, ranges, &mut hasher, cancelled)?;
    Ok(format!("{:016x}", hasher.finish()))
}

/// Returns a hash of the size and of samples of a file: all bytes of a file up to 16 MiB, else 256 blocks of
/// 64 KiB at equal distances, with the first and the last one.
///
/// # Errors
/// The file cannot be read.
pub fn fingerprint(path: &Path) -> io::Result<String> {
    let file = input::open(path)?;
    let size_bytes = file.metadata()?.len();
    let mut hasher = XxHash3_64::new();
    hasher.write_u64(size_bytes);
    let is_whole = size_bytes <= N_SAMPLES * SAMPLE_BYTES;
    let sample = |i: u64| match is_whole {
        true => {
            let start = (i * SAMPLE_BYTES).min(size_bytes);
            (start, SAMPLE_BYTES.min(size_bytes - start))
        }
        false => {
            let last = u128::from(size_bytes - SAMPLE_BYTES);
            let start = last * u128::from(i) / u128::from(N_SAMPLES - 1);
            (start as u64, SAMPLE_BYTES)
        }
    };
    read(&file, (0..N_SAMPLES).map(sample), &mut hasher, &|| false)?;
    Ok(format!("{:016x}", hasher.finish()))
}

/// Hashes ranges (start and size) of a file.
fn read(
    file: &File,
    ranges: impl Iterator<Item = (u64, u64)>,
    hasher: &mut XxHash3_64,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    for (start, size_bytes) in ranges {
        if cancelled() {
            return Err(io::Error::other("interrupted"));
        }
        buffer.resize(size_bytes as usize, 0);
        file.read_exact_at(&mut buffer, start)?;
        hasher.write(&buffer);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn small_files_are_hashed_whole_and_large_ones_sampled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
        let both = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let hash = file_hash(&path, &|| false).unwrap();
            (hash, fingerprint(&path).unwrap())
        };
        let (before, sampled) = both(&bytes);
        assert_eq!(before, hash(&bytes));
        bytes[654_321] ^= 1;
        let (after, sampled_after) = both(&bytes);
        assert_ne!(before, after);
        assert_ne!(sampled, sampled_after);
        bytes.resize(20 << 20, 7);
        let (_, large) = both(&bytes);
        // A change of one tensor is larger than the distance of samples.
        bytes[5 << 20..6 << 20].fill(8);
        assert_ne!(large, both(&bytes).1);
        *bytes.last_mut().unwrap() = 9;
        let last = both(&bytes).1;
        bytes.pop();
        assert_ne!(last, both(&bytes).1);
        assert!(file_hash(&path, &|| true).is_err());
    }
}
