//! HTTP servers on loopback that answer with fuzzed bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Longest request body that is read.
const MAX_BODY: u64 = 1 << 20;

/// Starts a server; returns its URL. `answer` gets the path of a request and returns the whole response.
pub(crate) fn start(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            thread::spawn(move || serve(&stream, &*answer));
        }
    });
    format!("http://127.0.0.1:{port}")
}

/// Sends the response to one request and closes the connection.
fn serve(mut stream: &TcpStream, answer: &dyn Fn(&str) -> Vec<u8>) {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        match reader.read_line(&mut line) {
            Ok(1..) if line != "\r\n" => head.push(line.to_ascii_lowercase()),
            Ok(1..) => break,
            _ => return,
        }
    }
    let lengths = head
        .iter()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length = lengths.and_then(|length| length.trim().parse().ok());
    // A response before the end of the request may be lost.
    let body = &mut reader.take(length.unwrap_or(0).min(MAX_BODY));
    let _ = std::io::copy(body, &mut std::io::sink());
    let path = head
        .first()
        .and_then(|line| line.split(' ').nth(1))
        .unwrap_or_default();
    // The client may have closed the connection.
    let _ = stream.write_all(&answer(path));
}
