//! Responses of a Hub: a server on loopback answers every request with the fuzzed bytes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use hub::{Hub, HubConfig, Network, Reference, Retry, Timeouts};

/// Response of the server.
static ANSWER: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Starts the server; returns its port.
fn start() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        listener
            .incoming()
            .flatten()
            .for_each(|stream| serve(stream))
    });
    port
}

/// Sends the response to one request and closes the connection.
fn serve(mut stream: TcpStream) {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part) {
            Ok(n @ 1..) => request.extend(&part[..n]),
            _ => return,
        }
    }
    let answer = ANSWER.lock().expect("no holder of it panics").clone();
    // The client may have closed the connection.
    let _ = stream.write_all(&answer);
}

/// Opens a repository and fetches a file in both ways.
pub(crate) fn answer(bytes: &[u8]) {
    static PORT: OnceLock<u16> = OnceLock::new();
    let port = *PORT.get_or_init(start);
    *ANSWER.lock().expect("no holder of it panics") = bytes.to_vec();
    let cache = tempfile::tempdir().expect("the system has room");
    let second = Duration::from_secs(1);
    let hub = Hub::new(HubConfig {
        endpoint: format!("http://127.0.0.1:{port}"),
        token: None,
        cache: cache.path().to_owned(),
        network: Network::Online,
        retry: Retry {
            attempts: 2,
            ..Retry::default()
        },
        timeouts: Timeouts {
            connect: second,
            answer: second,
            read: second,
        },
        connections: 1,
        piece_bytes: 1 << 16,
        on_retry: Arc::new(|_, _| ()),
        sleep: Arc::new(|_| ()),
    });
    let reference: Reference = "hf://org/name".parse().expect("a valid name");
    let Ok(repo) = hub.open(&reference) else {
        return;
    };
    let names: Vec<String> = repo.files().take(2).map(str::to_owned).collect();
    for name in names {
        let _ = repo.fetch(&name);
        if let Ok(Some(file)) = repo.open(&name) {
            let _ = file.read_at(0, &mut [0; 16]);
        }
    }
}
