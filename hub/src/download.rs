//! Download of a byte range of a file. Truncated responses are continued, and every response must
//! describe the same state of the file.

use std::io::Read;
use std::ops::Range;
use std::sync::Mutex;

use crate::error::{Error, Problem};
use crate::http::{Failure, Http, Request, Response, text};

/// Bytes per read; with one connection, a download keeps no more than this in memory.
const BUFFER_BYTES: usize = 256 << 10;

/// A file on the hub.
pub(crate) struct Target {
    /// Name of the file in messages.
    pub(crate) subject: String,
    pub(crate) address: String,
    pub(crate) commit: String,
    pub(crate) size_bytes: u64,
    /// ETag of the first response; all others must have the same.
    pub(crate) tag: Mutex<Option<String>>,
}

/// Receives bytes and their offset in the file.
pub(crate) type Sink<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Problem> + 'a;

impl Target {
    /// Fetches a range, which must be inside the file and not empty.
    pub(crate) fn fetch(
        &self,
        http: &Http,
        range: Range<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<(), Error> {
        let mut at = range.start;
        http.retry(&self.subject, || {
            let start = at;
            let attempt = self.attempt(http, &range, &mut at, sink);
            attempt.map_err(|failure| Failure {
                n_bytes: at.saturating_sub(start),
                ..failure
            })
        })
    }

    /// Asks the hub for the first byte; returns the hash of the file in Xet storage, if it is there.
    pub(crate) fn xet_hash(&self, http: &Http) -> Result<Option<String>, Error> {
        http.retry(&self.subject, || {
            let request = Request::File {
                commit: &self.commit,
            };
            let response = http.get(&self.address, Some(0..1), request)?;
            self.check_unchanged(&response)?;
            Ok(text(&response.hub, "x-xet-hash").map(str::to_owned))
        })
    }

    /// Makes one request for the rest of a range. `at` is the offset of the first missing byte
    /// before and after.
    fn attempt(
        &self,
        http: &Http,
        range: &Range<u64>,
        at: &mut u64,
        sink: &mut Sink<'_>,
    ) -> Result<(), Failure> {
        let request = Request::File {
            commit: &self.commit,
        };
        let mut response = http.get(&self.address, Some(*at..range.end), request)?;
        self.check_unchanged(&response)?;
        let end = self.check_range(&response, range, at)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        while *at < end {
            let n = BUFFER_BYTES.min((end - *at) as usize);
            let read = response.body.read(&mut buffer[..n]);
            let n = read.map_err(|error| Problem::Transport {
                host: response.host.clone(),
                what: format!("at byte {at} of {}: {error}", range.end),
            })?;
            if n == 0 {
                break;
            }
            sink(*at, &buffer[..n])?;
            http.count(n as u64);
            *at += n as u64;
        }
        // Read to the end of the body, so that the connection can be reused. All bytes have
        // arrived, so a wrong Content-Length does not matter, but surplus bytes do.
        if let Ok(1..) = response.body.read(&mut [0]) {
            return Err(Problem::Range {
                asked: format!("{} to {end}", range.start),
                found: "more".to_owned(),
            }
            .into());
        }
        match *at == range.end {
            true => Ok(()),
            false => Err(Problem::Truncated {
                at: *at,
                end: range.end,
            }
            .into()),
        }
    }

    /// Fails if the response describes another state of the file than the first response.
    fn check_unchanged(&self, response: &Response) -> Result<(), Problem> {
        if let Some(found) = text(&response.hub, "x-repo-commit")
            && found != self.commit
        {
            return Err(Problem::Changed {
                what: "the commit",
                found: found.to_owned(),
                expected: self.commit.clone(),
            });
        }
        let linked = text(&response.hub, "x-linked-etag");
        let Some(found) = linked.or_else(|| text(&response.hub, "etag")) else {
            return Ok(());
        };
        let found = found.trim_start_matches("W/").trim_matches('"');
        let mut first = self.tag.lock().expect("no holder of it panics");
        match first.get_or_insert_with(|| found.to_owned()) {
            first if first == found => Ok(()),
            first => Err(Problem::Changed {
                what: "the ETag",
                found: found.to_owned(),
                expected: first.clone(),
            }),
        }
    }

    /// Checks that the response starts at `at`; returns the offset where it ends. If the whole file
    /// was requested, a server without ranges may send it from the start: `at` is then reset to 0.
    fn check_range(
        &self,
        response: &Response,
        range: &Range<u64>,
        at: &mut u64,
    ) -> Result<u64, Problem> {
        let wrong = |found: &str| Problem::Range {
            asked: format!("{at} to {} of {}", range.end, self.size_bytes),
            found: found.to_owned(),
        };
        if response.status != 206 {
            if *range != (0..self.size_bytes) {
                return Err(wrong("the whole file: this hub does not support ranges"));
            }
            *at = 0;
            return Ok(range.end);
        }
        let found = text(&response.headers, "content-range").unwrap_or("no Content-Range");
        let (start, end, size_bytes) = content_range(found).ok_or_else(|| wrong(found))?;
        match start == *at && end <= range.end && end > start && size_bytes == self.size_bytes {
            true => Ok(end),
            false => Err(wrong(found)),
        }
    }
}

/// Parses start, end (exclusive) and size of `bytes 0-99/1000`.
pub(crate) fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, size_bytes) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let last: u64 = last.parse().ok()?;
    Some((
        first.parse().ok()?,
        last.checked_add(1)?,
        size_bytes.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_read() {
        assert_eq!(content_range("bytes 0-99/1000"), Some((0, 100, 1000)));
        for text in [
            "bytes */0",
            "bytes 1-2/*",
            "1-2/3",
            "bytes 0-18446744073709551615/1",
        ] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }
}
