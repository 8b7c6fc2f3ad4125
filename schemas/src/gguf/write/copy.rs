//! What the kernel does better than a loop of reads and writes, where it can.
//!
//! `copy_file_range` alone is asked to copy: the kernel shares blocks by itself where the file
//! system can and the places allow it, so there is nothing left for a clone request of our own.

use std::fs::File;
use std::io;

use rustix::io::Errno;

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
    let mut left = n_bytes;
    while left > 0 {
        let want = usize::try_from(left).unwrap_or(usize::MAX);
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
