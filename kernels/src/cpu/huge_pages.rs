//! Memory for repacked weights and caches, in huge pages where the system offers them. A stream over 4 KiB pages waits
//! for an address translation every 64 cache lines; over huge pages it is up to half faster.

use std::alloc::{self, Layout};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::repack::Line;

/// Bytes of a huge page on x86-64 and on AArch64 with 4 KiB pages.
const HUGE_PAGE: usize = 2 << 20;

/// Bytes that are reserved at once; the system commits pages when they are written. Weights smaller than a
/// huge page share one.
const CHUNK: usize = 64 << 20;

/// Asks the system for huge pages for the whole ones in some memory. Without them the memory is as good, only
/// slower.
pub(crate) fn advise<T>(memory: *mut T, bytes: usize) {
    let start = memory.addr().next_multiple_of(HUGE_PAGE);
    let end = (memory.addr() + bytes) / HUGE_PAGE * HUGE_PAGE;
    #[cfg(target_os = "linux")]
    if start < end {
        // SAFETY: the call changes neither the contents nor the validity of memory.
        unsafe {
            libc::madvise(
                memory.with_addr(start).cast(),
                end - start,
                libc::MADV_HUGEPAGE,
            );
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, end);
}

/// Reserves memory for weights or caches, one after another. A chunk is freed with the last of them in it.
#[derive(Default)]
pub(crate) struct HugePages {
    /// The last chunk, and the lines of it that are taken.
    current: Mutex<(Weak<Chunk>, usize)>,
}

impl HugePages {
    /// Takes `len` uninitialised cache lines.
    pub(crate) fn take(&self, len: usize) -> Lines {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (chunk, start) = match (current.0.upgrade(), current.1) {
            (Some(chunk), taken) if len <= chunk.len - taken => (chunk, taken),
            _ => (Arc::new(Chunk::new(len)), 0),
        };
        *current = (Arc::downgrade(&chunk), start + len);
        Lines { chunk, start, len }
    }

    /// Takes `len` bytes, each with all bits set.
    pub(crate) fn take_ones(&self, len: usize) -> Bytes {
        let mut lines = self.take(len.div_ceil(size_of::<Line>()));
        lines.uninit().fill(MaybeUninit::new(Line([u8::MAX; 64])));
        Bytes { lines, len }
    }
}

/// A chunk of uninitialised cache lines.
struct Chunk {
    lines: NonNull<Line>,
    len: usize,
}

// SAFETY: a chunk owns its memory, and each part is accessed by the one `Lines` that took it.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// At least `len` lines.
    fn new(len: usize) -> Chunk {
        let bytes = (len * size_of::<Line>()).max(CHUNK);
        let layout = Chunk::layout(bytes / size_of::<Line>());
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc::alloc(layout) };
        let Some(lines) = NonNull::new(memory.cast::<Line>()) else {
            alloc::handle_alloc_error(layout)
        };
        advise(memory, layout.size());
        Chunk {
            lines,
            len: layout.size() / size_of::<Line>(),
        }
    }

    fn layout(len: usize) -> Layout {
        let bytes = (len * size_of::<Line>()).next_multiple_of(HUGE_PAGE);
        Layout::from_size_align(bytes, HUGE_PAGE).expect("a size that fits the address space")
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout, and nothing refers to it any more.
        unsafe { alloc::dealloc(self.lines.as_ptr().cast(), Chunk::layout(self.len)) }
    }
}

/// Cache lines of a weight.
pub(crate) struct Lines {
    chunk: Arc<Chunk>,
    start: usize,
    len: usize,
}

impl Lines {
    /// The lines, to be written.
    pub(crate) fn uninit(&mut self) -> &mut [MaybeUninit<Line>] {
        // SAFETY: the range lies in the chunk and belongs to this value alone.
        unsafe {
            let first = self.chunk.lines.as_ptr().add(self.start);
            slice::from_raw_parts_mut(first.cast(), self.len)
        }
    }

    /// The lines.
    ///
    /// # Safety
    /// All of them have been written.
    #[inline(always)]
    pub(crate) unsafe fn get(&self) -> &[Line] {
        // SAFETY: the range lies in the chunk and belongs to this value alone; the caller has written it.
        unsafe { slice::from_raw_parts(self.chunk.lines.as_ptr().add(self.start), self.len) }
    }
}

/// Bytes in cache lines of their own.
pub(crate) struct Bytes {
    /// All written.
    lines: Lines,
    len: usize,
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: all lines have been written, and have at least `len` bytes.
        unsafe { slice::from_raw_parts(self.lines.get().as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the exclusive borrow passes on.
        unsafe { slice::from_raw_parts_mut(self.lines.uninit().as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_freed_with_its_last_weight() {
        let pages = HugePages::default();
        let (first, second) = (pages.take(3), pages.take(3));
        let chunk = Arc::downgrade(&first.chunk);
        drop(first);
        assert!(chunk.upgrade().is_some());
        drop(second);
        assert!(chunk.upgrade().is_none());
        assert_eq!(pages.take(3).start, 0, "a new chunk");
    }

    #[test]
    fn parts_are_apart_and_chunks_are_shared() {
        let pages = HugePages::default();
        let chunk_len = CHUNK / size_of::<Line>();
        let sizes = [1, 33, chunk_len - 34, 1, chunk_len + 5, 2];
        let mut parts: Vec<Lines> = sizes.iter().map(|&len| pages.take(len)).collect();
        let chunks: Vec<_> = parts.iter().map(|part| Arc::as_ptr(&part.chunk)).collect();
        assert_eq!(chunks[0], chunks[2], "the first three fill a chunk");
        assert_ne!(chunks[2], chunks[3]);
        assert_ne!(chunks[3], chunks[4], "larger than a chunk");
        for (i, part) in parts.iter_mut().enumerate() {
            let lines = part.uninit();
            assert!(lines.as_ptr().is_aligned());
            let last = lines.len() - 1;
            lines[0].write(Line([i as u8; 64]));
            lines[last].write(Line([i as u8; 64]));
        }
        for (i, part) in parts.iter_mut().enumerate() {
            let lines = part.uninit();
            for line in [&lines[0], &lines[lines.len() - 1]] {
                // SAFETY: written above.
                assert_eq!(unsafe { line.assume_init_ref() }.0, [i as u8; 64]);
            }
        }
    }
}
