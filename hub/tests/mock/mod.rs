//! A mock hub on loopback: it answers the three kinds of requests that a client sends, and injects
//! faults.

mod xet;

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The commit of the main branch.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The only valid token.
pub(crate) const TOKEN: &str = "hf_right";

/// The token of Xet storage.
pub(crate) const XET_TOKEN: &str = "xet_token";

/// A fault of one answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// An error status, with the hub's error code.
    Status(u16, &'static str),
    /// Status 429 with a Retry-After header.
    TooMany(&'static str),
    /// The connection ends after this many bytes of the body.
    Cut(usize),
    /// Content-Length is larger than the body.
    LongLength,
    /// Content-Range differs from the requested range.
    WrongRange,
    /// The ETag changed.
    OtherTag,
    /// The commit changed.
    OtherCommit,
    /// The byte at this offset is wrong.
    WrongByte(usize),
    /// The whole file, whatever range was requested.
    NoRanges,
    /// The answer stalls after this many bytes; the connection stays open.
    Stall(usize),
    /// The storage host no longer knows the redirect's address.
    Expired,
    /// Another body.
    Body(&'static str),
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Port that received it: the hub's or the storage's.
    pub(crate) port: u16,
    pub(crate) path: String,
    pub(crate) range: Option<(usize, usize)>,
    pub(crate) token: Option<String>,
    /// Body of a POST request.
    pub(crate) body: Option<Vec<u8>>,
}

/// Contents and behavior of the hub.
#[derive(Default)]
pub(crate) struct State {
    /// Files of `org/name`: contents, and true if the storage host serves them.
    pub(crate) files: BTreeMap<String, (Vec<u8>, bool)>,
    /// Faults of the next answers about files, in order.
    pub(crate) faults: VecDeque<Fault>,
    /// Faults of the next answers about revisions, in order.
    pub(crate) listing_faults: VecDeque<Fault>,
    /// All received requests.
    pub(crate) requests: Vec<Request>,
    /// True if a token is required.
    pub(crate) private: bool,
    /// True if the listing leaves out sizes and hashes.
    pub(crate) terse: bool,
    /// True until the repository is created.
    pub(crate) absent: bool,
    /// True if large files are in Xet storage.
    pub(crate) xet: bool,
    /// True if Xet storage refuses all requests.
    pub(crate) xet_fails: bool,
}

/// A running hub, and a storage host on another port to which it redirects.
#[derive(Clone)]
pub(crate) struct Mock {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) port: u16,
    pub(crate) storage_port: u16,
}

impl Mock {
    pub(crate) fn start() -> Mock {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let (hub, storage) = (listen(), listen());
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let mock = Mock {
            state: Arc::default(),
            port: port(&hub),
            storage_port: port(&storage),
        };
        for listener in [hub, storage] {
            let mock = mock.clone();
            thread::spawn(move || {
                let port = port(&listener);
                for stream in listener.incoming().flatten() {
                    let mock = mock.clone();
                    // A client that disconnects is not a fault of the hub.
                    thread::spawn(move || drop(mock.serve(port, stream)));
                }
            });
        }
        mock
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8], large: bool) {
        let file = (bytes.to_vec(), large);
        self.state
            .lock()
            .unwrap()
            .files
            .insert(name.to_owned(), file);
    }

    pub(crate) fn fault(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state.lock().unwrap().faults.extend(faults);
    }

    pub(crate) fn fault_listing(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state.lock().unwrap().listing_faults.extend(faults);
    }

    /// Returns the requests since the last call.
    pub(crate) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    /// Returns the ranges requested from the storage since the last call.
    pub(crate) fn ranges(&self) -> Vec<(usize, usize)> {
        let requests = self.requests().into_iter();
        let storage = requests.filter(|request| request.port == self.storage_port);
        storage.filter_map(|request| request.range).collect()
    }

    fn serve(&self, port: u16, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
            let is_post = line.starts_with("POST ");
            let is_head = line.starts_with("HEAD ");
            let mut n_body = 0;
            let mut request = Request {
                port,
                path,
                range: None,
                token: None,
                body: None,
            };
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                let Some((name, value)) = line.trim_end().split_once(": ") else {
                    break;
                };
                match name.to_lowercase().as_str() {
                    "range" => {
                        let range = value.strip_prefix("bytes=").unwrap();
                        let (first, last) = range.split_once('-').unwrap();
                        request.range = Some((first.parse().unwrap(), last.parse().unwrap()));
                    }
                    "content-length" => n_body = value.parse().unwrap(),
                    "authorization" => {
                        request.token = value.strip_prefix("Bearer ").map(str::to_owned);
                    }
                    _ => {}
                }
            }
            if is_post {
                let mut body = vec![0; n_body];
                reader.read_exact(&mut body)?;
                request.body = Some(body);
            }
            let answer = self.answer(&request);
            self.state.lock().unwrap().requests.push(request);
            let n_sent = match is_head {
                true => answer.n_head,
                false => answer.bytes.len(),
            };
            stream.write_all(&answer.bytes[..n_sent])?;
            match answer.then {
                Then::Next => {}
                Then::Close => return Ok(()),
                // Wait until the client disconnects.
                Then::Stall => return reader.read_line(&mut String::new()).map(drop),
            }
        }
    }

    fn answer(&self, request: &Request) -> Reply {
        let mut state = self.state.lock().unwrap();
        let at_home = request.port == self.port;
        if at_home && state.private && request.token.as_deref() != Some(TOKEN) {
            return Reply::status(401, "x-error-code: RepoNotFound\r\n");
        }
        if let Some(body) = &request.body {
            return state.post(&request.path, body);
        }
        let token_path = format!("/api/models/org/name/xet-read-token/{COMMIT}");
        if [&token_path, "/api/models/org/name/xet-write-token/main"].contains(&&*request.path) {
            let storage = format!("http://127.0.0.1:{}", self.storage_port);
            let token = format!(
                "{{\"accessToken\":\"{XET_TOKEN}\",\"exp\":9999999999,\"casUrl\":\"{storage}\"}}"
            );
            return Reply::new(
                200,
                "content-type: application/json\r\n",
                token.into_bytes(),
            );
        }
        if state.absent {
            return Reply::status(404, "x-error-code: RepoNotFound\r\n");
        }
        if let Some(rest) = request.path.strip_prefix("/api/models/org/name/revision/") {
            let revision = rest.split('?').next().unwrap_or_default();
            if let Some(fault) = state.listing_faults.pop_front() {
                return Reply::of_fault(fault);
            }
            return match ["main", "refs%2Fpr%2F1", COMMIT].contains(&revision) {
                true => Reply::new(200, "", state.listing().into_bytes()),
                false => Reply::status(404, "x-error-code: RevisionNotFound\r\n"),
            };
        }
        if !at_home && let Some(answer) = xet::answer(&mut state, request) {
            return answer;
        }
        let prefix = format!("/org/name/resolve/{COMMIT}/");
        let Some(name) = request.path.strip_prefix(&prefix) else {
            return Reply::status(404, "x-error-code: RepoNotFound\r\n");
        };
        let name = name.replace("%20", " ");
        let Some((bytes, large)) = state.files.get(&name).cloned() else {
            return Reply::status(404, "x-error-code: EntryNotFound\r\n");
        };
        let of_hub = |fault: &Fault| {
            matches!(
                fault,
                Fault::Status(..) | Fault::TooMany(_) | Fault::OtherTag
            ) || *fault == Fault::OtherCommit
        };
        let next = state.faults.front().copied();
        // The hub applies only its own faults to a redirect; the storage applies the others.
        let is_due = next.is_some_and(|fault| !large || of_hub(&fault) == at_home);
        let fault = if is_due {
            state.faults.pop_front()
        } else {
            None
        };
        let tag = match fault {
            Some(Fault::OtherTag) => "other".to_owned(),
            _ => sha256(&bytes),
        };
        let commit = match fault {
            Some(Fault::OtherCommit) => &COMMIT.replace('0', "f"),
            _ => COMMIT,
        };
        if at_home && large {
            if let Some(fault @ (Fault::Status(..) | Fault::TooMany(_))) = fault {
                return Reply::of_fault(fault);
            }
            let xet = match state.xet {
                true => format!("x-xet-hash: {tag}\r\n"),
                false => String::new(),
            };
            let headers = format!(
                "location: http://127.0.0.1:{}{}\r\nx-linked-etag: \"{tag}\"\r\n\
                 x-linked-size: {}\r\nx-repo-commit: {commit}\r\netag: \"pointer\"\r\n{xet}",
                self.storage_port,
                request.path,
                bytes.len()
            );
            return Reply::status(302, &headers);
        }
        let headers = match at_home {
            true => format!("etag: W/\"{tag}\"\r\nx-repo-commit: {commit}\r\n"),
            false => String::new(),
        };
        file_answer(bytes, request.range, headers, fault)
    }
}

/// Returns a range of a file, with a fault applied.
fn file_answer(
    mut bytes: Vec<u8>,
    range: Option<(usize, usize)>,
    mut headers: String,
    fault: Option<Fault>,
) -> Reply {
    if let Some(Fault::WrongByte(i)) = fault {
        bytes[i] ^= 1;
    }
    let size = bytes.len();
    let (status, body) = match range.filter(|_| fault != Some(Fault::NoRanges)) {
        None => (200, bytes),
        Some((first, last)) => {
            let last = last.min(size - 1);
            let said = if fault == Some(Fault::WrongRange) {
                first + 1
            } else {
                first
            };
            headers.push_str(&format!("content-range: bytes {said}-{last}/{size}\r\n"));
            (206, bytes[first..=last].to_vec())
        }
    };
    match fault {
        Some(Fault::Cut(n)) => Reply::broken(status, &headers, body, n, Then::Close),
        Some(Fault::Stall(n)) => Reply::broken(status, &headers, body, n, Then::Stall),
        Some(Fault::LongLength) => {
            let n = body.len();
            let longer = [body, vec![0; 10]].concat();
            Reply::broken(status, &headers, longer, n, Then::Close)
        }
        Some(fault @ (Fault::Status(..) | Fault::TooMany(_) | Fault::Expired | Fault::Body(_))) => {
            Reply::of_fault(fault)
        }
        _ => Reply::new(status, &headers, body),
    }
}

impl State {
    /// Answers the requests of an upload. A commit has the contents of small files; those of `.gguf` files go to
    /// Xet storage.
    fn post(&mut self, path: &str, body: &[u8]) -> Reply {
        let text = String::from_utf8_lossy(body);
        let json = match path {
            "/api/repos/create" => {
                self.absent = false;
                "{\"url\":\"http://127.0.0.1/org/name\"}".to_owned()
            }
            "/api/models/org/name/preupload/main" => {
                let names = text.split("\"path\":\"").skip(1);
                let names = names.filter_map(|rest| rest.split('"').next());
                let modes = names.map(|name| {
                    let is_large = name.ends_with(".gguf");
                    let mode = if is_large { "lfs" } else { "regular" };
                    format!("{{\"path\":\"{name}\",\"uploadMode\":\"{mode}\"}}")
                });
                format!("{{\"files\":[{}]}}", modes.collect::<Vec<_>>().join(","))
            }
            "/api/models/org/name/commit/main" => {
                let commit = COMMIT.replace('0', "1");
                format!("{{\"success\":true,\"commitOid\":\"{commit}\"}}")
            }
            "/org/name.git/info/lfs/objects/batch" => {
                "{\"transfer\":\"xet\",\"objects\":[]}".to_owned()
            }
            "/v1/shards" => "{\"result\":1}".to_owned(),
            path if path.starts_with("/v1/xorbs/") => "{\"was_inserted\":true}".to_owned(),
            _ => return Reply::status(404, "x-error-code: RepoNotFound\r\n"),
        };
        Reply::new(200, "content-type: application/json\r\n", json.into_bytes())
    }

    fn listing(&self) -> String {
        let files = self.files.iter().map(|(name, (bytes, large))| {
            let size = bytes.len();
            let more = match (self.terse, large) {
                (true, _) => String::new(),
                (false, true) => {
                    let sha256 = sha256(bytes);
                    format!(
                        ",\"size\":{size},\"blobId\":\"{}\",\"lfs\":{{\"sha256\":\"{sha256}\",\
                         \"size\":{size},\"pointerSize\":134}}",
                        "a".repeat(40)
                    )
                }
                (false, false) => {
                    let head = format!("blob {size}\0");
                    let id = hex(&Sha1::new_with_prefix(head).chain_update(bytes).finalize());
                    format!(",\"size\":{size},\"blobId\":\"{id}\"")
                }
            };
            format!("{{\"rfilename\":\"{name}\"{more}}}")
        });
        let files: Vec<String> = files.collect();
        format!(
            "{{\"id\":\"org/name\",\"sha\":\"{COMMIT}\",\"siblings\":[{}]}}",
            files.join(",")
        )
    }
}

enum Then {
    Next,
    Close,
    Stall,
}

struct Reply {
    bytes: Vec<u8>,
    /// Bytes before the body, which is all that a HEAD request gets.
    n_head: usize,
    then: Then,
}

impl Reply {
    fn new(status: u16, headers: &str, body: Vec<u8>) -> Reply {
        let n = body.len();
        Reply::broken(status, headers, body, n, Then::Next)
    }

    fn status(status: u16, headers: &str) -> Reply {
        Reply::new(status, headers, Vec::new())
    }

    /// An answer of which only the first `n_sent` bytes of the body are sent.
    fn broken(status: u16, headers: &str, body: Vec<u8>, n_sent: usize, then: Then) -> Reply {
        let n = body.len();
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {n}\r\n{headers}\r\n");
        let mut bytes = head.into_bytes();
        let n_head = bytes.len();
        bytes.extend_from_slice(&body[..n_sent.min(n)]);
        Reply {
            bytes,
            n_head,
            then,
        }
    }

    fn of_fault(fault: Fault) -> Reply {
        match fault {
            Fault::Status(status, code) => {
                Reply::status(status, &format!("x-error-code: {code}\r\n"))
            }
            Fault::TooMany(seconds) => Reply::status(429, &format!("retry-after: {seconds}\r\n")),
            Fault::Expired => Reply::status(403, ""),
            Fault::Body(text) => Reply::new(200, "", text.as_bytes().to_vec()),
            other => panic!("{other:?} needs a file"),
        }
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
