//! Journal of an interrupted run, for `--resume`.
//!
//! A journal is a text file with one line per entry: first the identity of the run (outputs,
//! inputs, options), then each finished chunk with a hash of its bytes. It is not synced: a chunk
//! counts only if its bytes in the partial file have the recorded hash, so it does not matter which
//! writes to either file survived a crash.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use twox_hash::XxHash3_64;

use super::layout::FileLayout;
use super::schedule::Chunk;
use super::{Output, WriteError};
use crate::outfile::{OutfileError, beside, open_locked};

/// First line; the number is incremented when the format changes.
const TITLE: &str = "specconv journal 1";
/// Line between the identity of the run and its chunks.
const BEGIN: &str = "begin";
/// Maximum size of a journal in bytes; a chunk takes about 40.
const MAX_BYTES: u64 = 256 << 20;

/// Everything that the output depends on besides its plans.
#[derive(Clone, Copy)]
pub struct Resume<'a> {
    /// Files that the data is computed from.
    pub inputs: &'a [PathBuf],
    /// Path of the journal; a hidden file beside the first output if `None`.
    pub journal: Option<&'a Path>,
    /// All other options that affect the output, including the contents of an importance matrix.
    pub options: &'a str,
}

/// A chunk that the journal records as finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) output: usize,
    pub(super) tensor: usize,
    pub(super) rows: Range<u64>,
    /// Hash of its bytes.
    pub(super) hash: u64,
}

/// Bytes of a file and their hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashedRange {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub size_bytes: u64,
    /// XXH3 in hexadecimal.
    pub xxh3: String,
}

/// Journal of this run, locked against other runs that would write the same files.
pub(super) struct Journal {
    path: PathBuf,
    file: Mutex<File>,
    /// Finished ranges of this run, with the index of the output.
    ranges: Mutex<Vec<(usize, HashedRange)>>,
}

/// Returns the hash used in records.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

impl Journal {
    /// Opens or creates the journal beside the first output; returns its records.
    ///
    /// # Errors
    /// The journal is of a run with other outputs, inputs or options; another run uses it; or a
    /// file operation failed.
    pub(super) fn open(
        outputs: &[Output<'_>],
        layouts: &[FileLayout],
        resume: &Resume<'_>,
    ) -> Result<(Journal, Vec<Record>), WriteError> {
        let path = match resume.journal {
            Some(path) => path.to_path_buf(),
            None => beside(outputs[0].path, "journal"),
        };
        let error = |source| WriteError::Io {
            path: path.clone(),
            source,
        };
        let preamble = preamble(outputs, layouts, resume)?;
        let mut options = File::options();
        options.read(true).append(true).create(true);
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
        let Some(mut file) = open_locked(&path, &options, None).map_err(error)? else {
            return Err(OutfileError::Busy { path }.into());
        };
        let len = file.metadata().map_err(error)?.len();
        if len > MAX_BYTES {
            return Err(error(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{len} bytes, expected a journal of at most {MAX_BYTES}; remove it"),
            )));
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(error)?;
        let text = String::from_utf8_lossy(&text);
        let records = match parse(&text, &preamble) {
            Ok(Some(records)) => {
                // The last line may be incomplete; end it.
                file.write_all(b"\n").map_err(error)?;
                records
            }
            Ok(None) => {
                file.set_len(0).map_err(error)?;
                file.write_all(preamble.as_bytes()).map_err(error)?;
                Vec::new()
            }
            Err((found, expected)) => {
                return Err(WriteError::OtherRun {
                    path,
                    found,
                    expected,
                });
            }
        };
        let journal = Journal {
            path,
            file: Mutex::new(file),
            ranges: Mutex::default(),
        };
        Ok((journal, records))
    }

    /// Records that a chunk with these bytes is in its partial file.
    pub(super) fn record(&self, chunk: &Chunk<'_>, bytes: &[u8]) -> Result<(), WriteError> {
        let hash = hash(bytes);
        let line = format!(
            "chunk {} {} {} {} {hash:016x}\n",
            chunk.output, chunk.tensor_index, chunk.rows.start, chunk.rows.end
        );
        let mut file = self.file.lock().expect("no worker panics while writing");
        file.write_all(line.as_bytes())
            .map_err(|source| WriteError::Io {
                path: self.path.clone(),
                source,
            })?;
        self.keep(chunk.output, chunk.offset, bytes.len() as u64, hash);
        Ok(())
    }

    /// Adds bytes that are in a partial file, and need no record, to the finished ranges.
    pub(super) fn keep(&self, output: usize, offset: u64, size_bytes: u64, hash: u64) {
        if size_bytes == 0 {
            return;
        }
        let range = HashedRange {
            offset,
            size_bytes,
            xxh3: format!("{hash:016x}"),
        };
        let ranges = self.ranges.lock();
        let mut ranges = ranges.expect("no worker panics while it holds this");
        ranges.push((output, range));
    }

    /// Returns the finished ranges of each output, in file order.
    pub(super) fn ranges(&self, n_outputs: usize) -> Vec<Vec<HashedRange>> {
        let ranges = self.ranges.lock();
        let mut outputs = vec![Vec::new(); n_outputs];
        for (output, range) in ranges.expect("all workers have ended").iter() {
            outputs[*output].push(range.clone());
        }
        for ranges in &mut outputs {
            ranges.sort_by_key(|range| range.offset);
        }
        outputs
    }

    /// Removes the journal of a completed run.
    pub(super) fn finish(self) -> Result<(), WriteError> {
        fs::remove_file(&self.path).map_err(|source| WriteError::Io {
            path: self.path,
            source,
        })
    }
}

/// Returns the identity of a run: lines that must be equal for its chunks to be used.
fn preamble(
    outputs: &[Output<'_>],
    layouts: &[FileLayout],
    resume: &Resume<'_>,
) -> Result<String, WriteError> {
    let mut text = format!("{TITLE}\n");
    for (output, layout) in outputs.iter().zip(layouts) {
        let name = output.path.file_name().unwrap_or_default();
        let FileLayout {
            header, size_bytes, ..
        } = layout;
        let header = hash(header);
        let _ = writeln!(text, "output {name:?} {size_bytes} header {header:016x}");
    }
    for path in resume.inputs {
        let input = input(path).map_err(|source| WriteError::Io {
            path: path.clone(),
            source,
        })?;
        let _ = writeln!(text, "input {path:?} {input}");
    }
    let _ = writeln!(text, "options {:?}\n{BEGIN}", resume.options);
    Ok(text)
}

/// Identifies a file without reading it.
fn input(path: &Path) -> io::Result<String> {
    let file = fs::metadata(path)?;
    Ok(format!(
        "size {} modified {}.{:09} inode {}:{}",
        file.len(),
        file.mtime(),
        file.mtime_nsec(),
        file.dev(),
        file.ino()
    ))
}

/// Parses the records of a journal that starts with `preamble`; `None` if it ends before the
/// records. Lines that are not records are skipped: a crash may leave incomplete ones.
///
/// # Errors
/// The first line that differs, and the expected one.
fn parse(text: &str, preamble: &str) -> Result<Option<Vec<Record>>, (String, String)> {
    let Some(rest) = text.strip_prefix(preamble) else {
        if preamble.starts_with(text) || !text.lines().any(|line| line == BEGIN) {
            // The preamble is incomplete, unless this is not a journal at all.
            return match text.is_empty() || text.starts_with(TITLE) || TITLE.starts_with(text) {
                true => Ok(None),
                false => Err((first_line(text), TITLE.to_owned())),
            };
        }
        // Split at LF alone: a line that ends in CR LF is another line.
        let mut lines = text.split('\n').zip(preamble.split('\n'));
        let (found, expected) = lines
            .find(|(found, expected)| found != expected)
            .expect("the first difference is found before either text ends");
        return Err((found.to_owned(), expected.to_owned()));
    };
    Ok(Some(rest.lines().filter_map(record).collect()))
}

fn first_line(text: &str) -> String {
    text.lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(80)
        .collect()
}

fn record(line: &str) -> Option<Record> {
    let mut words = line.split(' ');
    if words.next() != Some("chunk") {
        return None;
    }
    let record = Record {
        output: words.next()?.parse().ok()?,
        tensor: words.next()?.parse().ok()?,
        rows: words.next()?.parse().ok()?..words.next()?.parse().ok()?,
        hash: match words.next()? {
            hex if hex.len() == 16 => u64::from_str_radix(hex, 16).ok()?,
            _ => return None,
        },
    };
    words.next().is_none().then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREAMBLE: &str = "specconv journal 1\noutput \"m\" 10\noptions \"\"\nbegin\n";

    #[test]
    fn lines_cut_off_by_a_crash_are_passed_over() {
        let good = "chunk 0 3 16 32 00000000000000ff";
        let text = format!(
            "{PREAMBLE}{good}\nchunk 0 3 32 48 00ff\n\0\0\0\nchunk 0 3\nchunk 1 -2 0 1 00000000000000ff\n"
        );
        let record = Record {
            output: 0,
            tensor: 3,
            rows: 16..32,
            hash: 255,
        };
        assert_eq!(parse(&text, PREAMBLE), Ok(Some(vec![record])));
    }

    #[test]
    fn a_preamble_that_was_cut_off_means_nothing_was_done() {
        for n in 0..PREAMBLE.len() {
            assert_eq!(parse(&PREAMBLE[..n], PREAMBLE), Ok(None), "{n}");
        }
        let other = PREAMBLE.replace("\"m\" 10", "\"other\" 12");
        assert_eq!(parse(&other[..30], PREAMBLE), Ok(None));
    }

    #[test]
    fn another_run_is_described_by_the_first_difference() {
        let other = PREAMBLE.replace("options \"\"", "options \"pure\"");
        let differs = ("options \"pure\"".to_owned(), "options \"\"".to_owned());
        assert_eq!(parse(&other, PREAMBLE), Err(differs));
        let more = PREAMBLE.replace("options", "input \"x\"\noptions");
        assert!(parse(&more, PREAMBLE).is_err());
        assert!(parse(PREAMBLE, &more).is_err());
        let crlf = PREAMBLE.replace('\n', "\r\n");
        let differs = (format!("{TITLE}\r"), TITLE.to_owned());
        assert_eq!(parse(&crlf, PREAMBLE), Err(differs));
        let foreign = ("my notes".to_owned(), TITLE.to_owned());
        assert_eq!(parse("my notes\n", PREAMBLE), Err(foreign));
    }
}
