//! Memory map of a file: read-only bytes, shared by all views.
//!
//! Pages read through the map stay in the process's memory until the kernel reclaims them, so data
//! that is only copied is read from the open file instead ([`Map::read_at`]).
//!
//! Mapped bytes can disappear: another process truncates the file, or its disk fails. The access then
//! raises SIGBUS, which no Rust code can catch as an error. [`exit_on_lost_bytes`] makes the process
//! print the file's name and exit instead of dying by the signal.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::{ptr, slice};

use super::plan::{FilePosition, Origin, Source, SourceError};
use super::read::ReadError;
use super::stamp::Stamp;
use crate::input;

/// Bytes that Linux maps around a page fault (fault-around).
const READ_AROUND: usize = 1 << 16;

/// A whole file, open and mapped read-only.
pub struct Map {
    path: PathBuf,
    file: File,
    /// The file's state when it was mapped.
    stamp: Stamp,
    /// Dropped before the bytes are unmapped, so that [`MAPPED`] never names other memory.
    _entry: Option<Entry>,
    /// `None` for an empty file, which cannot be mapped.
    bytes: Option<memmap2::Mmap>,
}

impl Map {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// The file cannot be opened, is not a regular file, or cannot be mapped.
    pub fn open(path: &Path) -> io::Result<Arc<Map>> {
        let file = input::open(path)?;
        let metadata = file.metadata()?;
        let bytes = if metadata.len() == 0 {
            None
        } else {
            // SAFETY: the map is read-only. Another process that writes to the file changes the bytes
            // that we see; every value is a valid `u8`, and what is computed from them is checked.
            // Our own writer renames a finished file into place and never does this. Bytes that
            // disappear raise SIGBUS (see `exit_on_lost_bytes`).
            Some(unsafe { memmap2::Mmap::map(&file)? })
        };
        Ok(Arc::new(Map {
            path: path.to_path_buf(),
            stamp: Stamp::new(&metadata),
            file,
            _entry: bytes.as_ref().and_then(|bytes| Entry::new(path, bytes)),
            bytes,
        }))
    }

    /// Compares the file's size and modification time with those at [`Map::open`].
    ///
    /// # Errors
    /// The file has changed since, or its state cannot be read.
    pub fn check_unchanged(&self) -> Result<(), ReadError> {
        self.stamp.check(&self.path, &self.file)
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns all bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }

    /// Lets the kernel release the pages of a byte range, and those that fault-around mapped with
    /// them. Later reads load them from the file again.
    pub fn release_pages(&self, bytes: Range<usize>) {
        use memmap2::UncheckedAdvice::DontNeed;
        if let Some(map) = &self.bytes {
            // The kernel's blocks are aligned in the address space, not in the file.
            let address = map.as_ptr().addr();
            let start = (address + bytes.start) / READ_AROUND * READ_AROUND;
            let start = start.saturating_sub(address);
            let end = (address + bytes.end).next_multiple_of(READ_AROUND) - address;
            let end = end.min(map.len());
            // SAFETY: released pages of a read-only file mapping are read from the file again.
            let done = unsafe { map.unchecked_advise_range(DontNeed, start, end - start) };
            // If the kernel keeps the pages, nothing is wrong.
            let _ = done;
        }
    }

    /// Reads bytes of the file without keeping them in memory.
    ///
    /// # Errors
    /// The file cannot be read, or has become shorter.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    /// Returns a byte range of the file as a tensor source; `None` if it exceeds the file.
    pub fn part(self: &Arc<Map>, range: Range<usize>, row_bytes: u64) -> Option<Mapped> {
        self.bytes().get(range.clone())?;
        Some(Mapped {
            map: Arc::clone(self),
            range,
            row_bytes,
        })
    }
}

/// A tensor's bytes in a mapped file.
pub struct Mapped {
    map: Arc<Map>,
    range: Range<usize>,
    row_bytes: u64,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.map.bytes()[self.range.clone()]
    }
}

impl Source for Mapped {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let offset = self.range.start as u64 + rows.start * self.row_bytes;
        Ok(self.map.read_at(offset, out)?)
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(self.as_ref())
    }

    fn release_pages(&self, bytes: Range<usize>) {
        let start = self.range.start;
        self.map
            .release_pages(start + bytes.start..start + bytes.end);
    }

    fn origin(&self) -> Option<Origin<'_>> {
        Some(Origin {
            path: self.map.path(),
            file: &self.map.file,
            offset: self.range.start as u64,
        })
    }

    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        Some(FilePosition {
            path: self.map.path(),
            offset: self.range.start as u64 + row * self.row_bytes,
        })
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        self.map.check_unchanged()
    }
}

/// Exit code of a process that lost mapped bytes.
const EXIT_CODE: c_int = 2;

/// The mapped ranges of this process, for the signal handler: it may neither lock nor allocate.
static MAPPED: [Slot; 4096] = [const { Slot::new() }; 4096];

/// An entry of [`MAPPED`]: one mapped range, or unused.
struct Slot {
    /// First address; [`Slot::UNUSED`], or [`Slot::TAKEN`] while the other fields are being written.
    start: AtomicUsize,
    end: AtomicUsize,
    /// The message to print, which its [`Entry`] owns.
    message: AtomicPtr<u8>,
    message_len: AtomicUsize,
}

impl Slot {
    const UNUSED: usize = 0;
    /// Not a valid start address: those are multiples of the page size.
    const TAKEN: usize = 1;

    const fn new() -> Slot {
        Slot {
            start: AtomicUsize::new(Slot::UNUSED),
            end: AtomicUsize::new(0),
            message: AtomicPtr::new(ptr::null_mut()),
            message_len: AtomicUsize::new(0),
        }
    }

    fn contains(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Acquire);
        start > Slot::TAKEN && (start..self.end.load(Ordering::Relaxed)).contains(&address)
    }
}

/// A used slot of [`MAPPED`], and its message.
struct Entry {
    slot: &'static Slot,
    _message: Box<[u8]>,
}

impl Entry {
    /// Claims a slot for a map; `None` if all are in use: SIGBUS then has its default effect.
    fn new(path: &Path, bytes: &[u8]) -> Option<Entry> {
        // Control characters in a name could act on a terminal.
        let name: String = path.display().to_string();
        let name = name.replace(|c: char| c.is_control(), "?");
        let message = format!(
            "error: {name}: mapped bytes cannot be read: the file was truncated or its disk failed \
             while it was in use\n"
        );
        let mut message = message.into_bytes().into_boxed_slice();
        let take = |slot: &&Slot| {
            let taken = slot.start.compare_exchange(
                Slot::UNUSED,
                Slot::TAKEN,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            taken.is_ok()
        };
        let slot = MAPPED.iter().find(take)?;
        let range = bytes.as_ptr_range();
        slot.end.store(range.end.addr(), Ordering::Relaxed);
        slot.message.store(message.as_mut_ptr(), Ordering::Relaxed);
        slot.message_len.store(message.len(), Ordering::Relaxed);
        slot.start.store(range.start.addr(), Ordering::Release);
        Some(Entry {
            slot,
            _message: message,
        })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.slot.start.store(Slot::UNUSED, Ordering::Release);
    }
}

/// The SIGBUS action before ours was installed.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs a handler for SIGBUS, for programs: when mapped bytes of a file can no longer be read, the
/// process prints the file's name to stderr and exits with code 2. For all other addresses the handler
/// that was installed before runs; a SIGBUS that another process sends has its default effect.
///
/// (A handler of signal-hook would run after the one of the standard library, which restores the
/// default action: a second thread that reads the same file would end the process by the signal.)
pub fn exit_on_lost_bytes() {
    PREVIOUS.get_or_init(|| {
        // SAFETY: all fields are integers or optional pointers, for which zero is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both are valid, and the handler calls only async-signal-safe functions. If it cannot
        // be installed, the signal keeps its effect.
        unsafe { libc::sigaction(libc::SIGBUS, &action, &mut previous) };
        previous
    });
}

/// Async-signal-safe: reads atomics, and calls write, pause, _exit, sigaction and raise.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    /// Set by the first thread that prints.
    static EXITING: AtomicBool = AtomicBool::new(false);
    // SAFETY: with SA_SIGINFO the system passes a valid pointer.
    let info = unsafe { &*info };
    // Signals that a process sends have no address.
    let by_access = info.si_code > 0;
    // SAFETY: a SIGBUS that an access raised has the address.
    let address = unsafe { info.si_addr() }.addr();
    let slot = MAPPED.iter().find(|slot| slot.contains(address));
    let Some(slot) = slot.filter(|_| by_access) else {
        // SAFETY: as in `exit_on_lost_bytes`; it is the default action.
        let default: libc::sigaction = unsafe { std::mem::zeroed() };
        // The handler of the standard library assumes that an access raised the signal, so a signal
        // that was sent gets the default action instead.
        let action = PREVIOUS.get().filter(|_| by_access).unwrap_or(&default);
        // SAFETY: the action is valid. An access is repeated on return and raises the signal again,
        // with this action.
        unsafe { libc::sigaction(signal, action, ptr::null_mut()) };
        if !by_access {
            // SAFETY: no preconditions.
            unsafe { libc::raise(signal) };
        }
        return;
    };
    while EXITING.swap(true, Ordering::Relaxed) {
        // SAFETY: no preconditions.
        unsafe { libc::pause() };
    }
    let len = slot.message_len.load(Ordering::Relaxed);
    // SAFETY: the interrupted access reads the map through a reference, so the map and its entry,
    // which owns these bytes, are alive.
    let message = unsafe { slice::from_raw_parts(slot.message.load(Ordering::Relaxed), len) };
    // SAFETY: the bytes are valid; a closed stderr is an error that changes nothing.
    unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
    // SAFETY: no preconditions.
    unsafe { libc::_exit(EXIT_CODE) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output};

    use super::*;

    /// Environment variable with the case that a child process of these tests runs.
    const CASE: &str = "SCHEMAS_TEST_LOST_BYTES";

    /// Runs one test of this module in its own process.
    fn in_child(test: &str, case: &str) -> Output {
        let mut child = Command::new(std::env::current_exe().expect("a test has a program"));
        let test = format!("gguf::map::tests::{test}");
        child.args(["--exact", &test, "--nocapture", "--test-threads=1"]);
        child.env(CASE, case).output().expect("it runs")
    }

    /// Reads the last byte of a new file after it was truncated.
    fn read_lost_byte(name: &str, is_registered: bool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, vec![1; 1 << 16]).unwrap();
        let map = Map::open(&path).unwrap();
        if !is_registered {
            let entry = map._entry.as_ref().expect("the table has room");
            entry.slot.start.store(Slot::UNUSED, Ordering::Release);
        }
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(0).unwrap();
        assert_eq!(std::hint::black_box(map.bytes())[(1 << 16) - 1], 1);
    }

    #[test]
    fn lost_bytes_end_the_process_with_the_files_name() {
        if std::env::var_os(CASE).is_some() {
            exit_on_lost_bytes();
            read_lost_byte("lost\u{1b}[31m.gguf", true);
            unreachable!("the byte is lost");
        }
        let output = in_child("lost_bytes_end_the_process_with_the_files_name", "read");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("error: "), "{stderr}");
        assert!(
            stderr.contains("lost?[31m.gguf: mapped bytes cannot be read"),
            "{stderr}"
        );
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }

    #[test]
    fn several_threads_that_lose_bytes_print_one_message() {
        if std::env::var_os(CASE).is_some() {
            exit_on_lost_bytes();
            let meet = std::sync::Barrier::new(8);
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        meet.wait();
                        read_lost_byte("lost.gguf", true);
                    });
                }
            });
        }
        for _ in 0..20 {
            let output = in_child("several_threads_that_lose_bytes_print_one_message", "read");
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(stderr.lines().count(), 1, "{stderr}");
        }
    }

    #[test]
    fn other_addresses_and_sent_signals_keep_their_effect() {
        match std::env::var(CASE).as_deref() {
            Ok("read") => {
                exit_on_lost_bytes();
                read_lost_byte("lost.gguf", false);
            }
            Ok(_) => {
                exit_on_lost_bytes();
                // SAFETY: no preconditions.
                unsafe { libc::raise(libc::SIGBUS) };
            }
            Err(_) => {
                for case in ["read", "raise"] {
                    let test = "other_addresses_and_sent_signals_keep_their_effect";
                    let output = in_child(test, case);
                    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
                }
            }
        }
    }

    #[test]
    fn a_file_that_changes_after_it_was_opened_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, [0; 64]).unwrap();
        let map = Map::open(&path).unwrap();
        map.check_unchanged().unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(65).unwrap();
        let error = map.check_unchanged().unwrap_err().to_string();
        assert!(error.contains("found 65 bytes, expected 64"), "{error}");
        file.set_len(64).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        let error = map.check_unchanged().unwrap_err().to_string();
        assert!(error.contains("another modification time"), "{error}");
    }
}
