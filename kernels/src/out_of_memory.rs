//! Exits with a message and an exit code, not a signal, when the process is out of memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of a process that ran out of memory: it could not do its work.
const EXIT_CODE: libc::c_int = 2;

/// A global allocator for programs: the system's allocator, but if an allocation fails, the process prints
/// the requested size and exits with code 2. (The standard library would abort, and its hook for that is
/// unstable.)
#[derive(Debug)]
pub struct ExitOutOfMemory;

// SAFETY: `System` is a global allocator, and what it returns is passed on, except for null.
unsafe impl GlobalAlloc for ExitOutOfMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: `System` requires the same of its caller.
        some(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        some(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        some(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[inline(always)]
fn some(memory: *mut u8, n_bytes: usize) -> *mut u8 {
    if memory.is_null() {
        exit(n_bytes);
    }
    memory
}

/// Prints without allocating and exits at once, without destructors.
#[cold]
fn exit(n_bytes: usize) -> ! {
    static EXITING: AtomicBool = AtomicBool::new(false);
    while EXITING.swap(true, Ordering::Relaxed) {
        // SAFETY: no preconditions.
        unsafe { libc::pause() };
    }
    let mut line = Line {
        bytes: [0; 256],
        len: 0,
    };
    let _ = writeln!(
        line,
        "error: out of memory: {n_bytes} bytes could not be allocated. Use smaller files, contexts or \
         fewer threads, or raise the memory limit"
    );
    // SAFETY: the bytes are valid; if stderr is closed, the message is lost and nothing else.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
    // SAFETY: no preconditions.
    unsafe { libc::_exit(EXIT_CODE) }
}

/// A line of text in a fixed array: formatting must not allocate.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let rest = &mut self.bytes[self.len..];
        let n = text.len().min(rest.len());
        rest[..n].copy_from_slice(&text.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}
