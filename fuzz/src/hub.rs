//! Responses of a Hub: every request is answered with the fuzzed bytes.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use hub::{Hub, HubConfig, Network, Reference, Retry, Timeouts};

use crate::loopback;

/// Response of the server.
static ANSWER: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Opens a repository and fetches a file in both ways.
pub(crate) fn answer(bytes: &[u8]) {
    static URL: OnceLock<String> = OnceLock::new();
    let current = |_: &str| ANSWER.lock().expect("no holder of it panics").clone();
    let url = URL.get_or_init(|| loopback::start(current));
    *ANSWER.lock().expect("no holder of it panics") = bytes.to_vec();
    let cache = tempfile::tempdir().expect("the system has room");
    let second = Duration::from_secs(1);
    let hub = Hub::new(HubConfig {
        endpoint: url.clone(),
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
