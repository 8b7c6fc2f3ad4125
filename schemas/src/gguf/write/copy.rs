//! What the kernel does better than a loop of reads and writes, where it can.
//!
//! `copy_file_range` alone is asked to copy: the kernel shares blocks by itself where the file
//! system can and the places allow it, so there is nothing left for a clone request of our own.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use rustix::io::Errno;

use super::super::reserve::SHARED_BLOCK_BYTES;

/// What the kernel did of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Copied {
    /// Bytes that are there: fewer than asked for where the kernel cannot, or the input ends.
    pub(super) n_bytes: u64,
    /// Bytes of these in blocks that it shared instead.
    pub(super) shared_bytes: u64,
}

/// Whether the file system of a folder shares blocks with a file.
pub(super) fn can_share(input: &File, folder: &Path) -> bool {
    #[cfg(target_os = "linux")]
    return tempfile::tempfile_in(folder)
        .is_ok_and(|scratch| rustix::fs::ioctl_ficlone(&scratch, input).is_ok());
    #[cfg(not(target_os = "linux"))]
    false
}

/// The whole blocks of a stretch of the output that lie in the input's blocks as they should in the
/// output's: those that can be shared.
pub(super) fn whole_blocks(offset_in: u64, offset_out: u64, n_bytes: u64) -> Range<u64> {
    if offset_in % SHARED_BLOCK_BYTES != offset_out % SHARED_BLOCK_BYTES {
        return offset_out..offset_out;
    }
    let end = offset_out + n_bytes;
    let start = offset_out.next_multiple_of(SHARED_BLOCK_BYTES).min(end);
    start..(end - end % SHARED_BLOCK_BYTES).max(start)
}

/// Makes a file that many bytes long, and takes the room for them where the file system knows how.
pub(super) fn reserve(file: &File, size_bytes: u64) -> io::Result<()> {
    // What an earlier run left may be longer.
    file.set_len(file.metadata()?.len().min(size_bytes))?;
    #[cfg(target_os = "linux")]
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, size_bytes) {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    file.set_len(size_bytes)
}

/// Has the kernel begin to bring a stretch of a file to disk, so that the disk is busy from the
/// start and little is left for the sync at the end.
pub(super) fn begin_writeback(file: &File, offset: u64, size_bytes: u64) {
    // The advice promises nothing, so neither does its refusal.
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(
        file,
        offset,
        std::num::NonZeroU64::new(size_bytes),
        rustix::fs::Advice::DontNeed,
    );
}

/// Copies bytes from file to file without a buffer of ours, and says how many: fewer than asked
/// for where the kernel cannot, or where the input ends.
#[cfg(target_os = "linux")]
pub(super) fn in_kernel(
    input: &File,
    mut offset_in: u64,
    output: &File,
    mut offset_out: u64,
    n_bytes: u64,
) -> io::Result<u64> {
    // What comes before the first whole block is asked for apart, or none would be shared.
    let first_block = whole_blocks(offset_in, offset_out, n_bytes).start;
    let mut left = n_bytes;
    while left > 0 {
        let want = match first_block.checked_sub(offset_out) {
            Some(before @ 1..) => before,
            _ => left,
        };
        let want = usize::try_from(want).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(
            input,
            Some(&mut offset_in),
            output,
            Some(&mut offset_out),
            want,
        ) {
            Ok(0) => break,
            Ok(n) => left -= n as u64,
            Err(Errno::INTR) => {}
            // Other file systems, or kernels and sandboxes without the call.
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM) => {
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(n_bytes - left)
}

/// Only Linux has the call.
#[cfg(not(target_os = "linux"))]
pub(super) fn in_kernel(_: &File, _: u64, _: &File, _: u64, _: u64) -> io::Result<u64> {
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_and_at_one_place() {
        assert_eq!(whole_blocks(0, 4096, 8192), 4096..12_288);
        assert_eq!(whole_blocks(96, 4192, 8192), 8192..12_288);
        assert_eq!(whole_blocks(96, 96, 4000), 4096..4096, "a block's end only");
        assert_eq!(whole_blocks(96, 96, 100), 196..196);
        assert!(whole_blocks(96, 128, 1 << 20).is_empty());
    }

    #[test]
    fn any_stretch_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..50_000u32).map(|i| (i % 251) as u8).collect();
        let path = folder.path().join("in");
        std::fs::write(&path, &bytes).unwrap();
        let input = File::open(&path).unwrap();
        for (from, to, n) in [
            (0, 0, 50_000),
            (96, 4192, 9000),
            (33, 64, 20_000),
            (7, 7, 5),
        ] {
            let output = tempfile::NamedTempFile::new_in(folder.path()).unwrap();
            let copied = in_kernel(&input, from, output.as_file(), to, n).unwrap();
            let found = std::fs::read(output.path()).unwrap();
            let (from, to, n) = (from as usize, to as usize, copied as usize);
            assert_eq!(found.get(to..to + n), bytes.get(from..from + n));
        }
    }
}
