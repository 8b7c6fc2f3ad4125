//! A server on loopback, and a client that sees every byte of a reply.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::util::{Dir, bundled, send, specrun};

/// A running server, stopped by SIGTERM at the end of the test.
pub(super) struct Server {
    pub(super) child: Child,
    pub(super) address: String,
}

impl Server {
    pub(super) fn start(flags: &[&str]) -> (Dir, Server) {
        let dir = Dir::new();
        let model = dir.convert(&bundled("tiny-qwen35-mtp"), "target.gguf", &[]);
        let serve = specrun("serve").arg("-m").arg(model).args(["--port", "0"]);
        let mut command = serve.args(flags).with_default_signals();
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("the server starts").unwrap();
            if let Some((_, address)) = line.split_once("listening on http://") {
                break address.to_owned();
            }
        };
        // Later lines must not block the server.
        thread::spawn(move || lines.for_each(drop));
        (dir, Server { child, address })
    }

    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }

    /// Sends a request and returns the status and the body.
    pub(super) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: impl AsRef<[u8]>,
    ) -> (u16, String) {
        let (mut stream, body) = (self.connect(), body.as_ref());
        let n = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {n}\r\n{headers}\r\n"
        )
        .unwrap();
        stream.write_all(body).unwrap();
        read_reply(stream)
    }

    pub(super) fn get(&self, path: &str) -> Value {
        let (status, body) = self.send("GET", path, "", "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    #[track_caller]
    pub(super) fn post(&self, path: &str, body: &Value) -> Value {
        let (status, reply) = self.send("POST", path, "", body.to_string());
        assert_eq!(status, 200, "{reply}");
        serde_json::from_str(&reply).unwrap()
    }

    /// Returns the data of all events of a stream.
    pub(super) fn events(&self, path: &str, body: &Value) -> Vec<String> {
        let (status, reply) = self.send("POST", path, "", body.to_string());
        assert_eq!(status, 200, "{reply}");
        let lines = reply.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.map(str::to_owned).collect()
    }

    pub(super) fn refused(&self, path: &str, body: &str) -> (u16, Value) {
        let (status, reply) = self.send("POST", path, "", body);
        let reply: Value = serde_json::from_str(&reply).unwrap_or_else(|_| panic!("{reply}"));
        assert_eq!(reply["error"]["code"], status, "{reply}");
        (status, reply["error"].clone())
    }

    pub(super) fn terminate(&self) {
        send(&self.child, "TERM");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A second signal would end the server at once.
        if let Ok(None) = self.child.try_wait() {
            self.terminate();
        }
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(20) {
            if let Ok(Some(status)) = self.child.try_wait() {
                if !thread::panicking() {
                    assert_eq!(status.code(), Some(0));
                }
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        assert!(thread::panicking(), "the server did not stop");
    }
}

/// Reads a whole reply; chunks are joined.
pub(super) fn read_reply(mut stream: TcpStream) -> (u16, String) {
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    let reply = String::from_utf8(reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(0);
    let head = head.to_ascii_lowercase();
    if !head.contains("transfer-encoding: chunked") {
        return (status, body.to_owned());
    }
    let (mut rest, mut whole) = (body, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        whole += &after[..size];
        rest = &after[size + 2..];
    }
    (status, whole)
}
