//! File operations that are delegated to the kernel.
//!
//! Only `copy_file_range` is used to copy: the kernel shares blocks if the file system supports it
//! and offsets are aligned, so an explicit clone request (FICLONE) would gain nothing.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use rustix::io::Errno;

use super::super::reserve::SHARED_BLOCK_BYTES;

/// Result of a copy by the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Copied {
    /// Bytes copied: fewer than requested if the kernel cannot copy, or the input ends.
    pub(super) n_bytes: u64,
    /// Bytes of these whose blocks are shared with the input.
    pub(super) shared_bytes: u64,
}

/// Checks whether the file system of a folder can share blocks with a file.
pub(super) fn can_share(input: &File, folder: &Path) -> bool {
    #[cfg(target_os = "linux")]
    return tempfile::tempfile_in(folder)
        .is_ok_and(|scratch| rustix::fs::ioctl_ficlone(&scratch, input).is_ok());
    #[cfg(not(target_os = "linux"))]
    false
}

/// Returns the range of the output that consists of whole blocks aligned with blocks of the input;
/// these can be shared.
pub(super) fn whole_blocks(offset_in: u64, offset_out: u64, n_bytes: u64) -> Range<u64> {
    if offset_in % SHARED_BLOCK_BYTES != offset_out % SHARED_BLOCK_BYTES {
        return offset_out..offset_out;
    }
    let end = offset_out + n_bytes;
    let start = offset_out.next_multiple_of(SHARED_BLOCK_BYTES).min(end);
    start..(end - end % SHARED_BLOCK_BYTES).max(start)
}

/// Sets the size of a file, and allocates its disk space if the file system supports it. The bytes of the file stay,
/// so another process can already write it.
pub(super) fn reserve(file: &File, size_bytes: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, size_bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    // A file from an earlier run may be longer.
    match file.metadata()?.len() == size_bytes {
        true => Ok(()),
        false => file.set_len(size_bytes),
    }
}

/// Starts writeback of a range of a file, so that the disk is busy early and the final sync has
/// little to write.
pub(super) fn begin_writeback(file: &File, offset: u64, size_bytes: u64) {
    // This is only a hint, so errors do not matter.
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(
        file,
        offset,
        std::num::NonZeroU64::new(size_bytes),
        rustix::fs::Advice::DontNeed,
    );
}

/// Copies bytes between files without a user-space buffer. Returns the number of bytes copied:
/// fewer than requested if the kernel cannot copy, or the input ends.
#[cfg(target_os = "linux")]
pub(super) fn in_kernel(
    input: &File,
    mut offset_in: u64,
    output: &File,
    mut offset_out: u64,
    n_bytes: u64,
) -> io::Result<u64> {
    // The bytes before the first whole block are requested separately, or no block would be shared.
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
            // Not supported between these file systems, or by this kernel or sandbox.
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM) => {
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(n_bytes - left)
}

/// `copy_file_range` exists on Linux only.
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
