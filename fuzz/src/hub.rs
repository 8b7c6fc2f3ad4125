//! Responses of a Hub: the bytes before the first zero byte answer the request for the list of files, the others those for
//! files. Without a zero byte all requests get the same response.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hub::{Hub, HubConfig, Network, Reference, Retry, Timeouts};

use crate::{Run, loopback};

pub(crate) fn answer() -> Run {
    let answer = Arc::new(Mutex::new(Vec::<u8>::new()));
    let served = Arc::clone(&answer);
    let url = loopback::start(move |path| {
        let answer = served.lock().expect("no holder of it panics");
        let mut answers = answer.splitn(2, |&byte| byte == 0);
        let listing = answers.next().unwrap_or_default();
        let file = answers.next().unwrap_or(listing);
        let is_listing = path.starts_with("/api/");
        if is_listing { listing } else { file }.to_vec()
    });
    Box::new(move |bytes| {
        *answer.lock().expect("no holder of it panics") = bytes.to_vec();
        fetch(&url)
    })
}

/// Opens a repository and fetches a file in both ways.
fn fetch(url: &str) -> bool {
    let cache = tempfile::tempdir().expect("the system has room");
    let second = Duration::from_secs(1);
    let hub = Hub::new(HubConfig {
        endpoint: url.to_owned(),
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
        return false;
    };
    let names: Vec<String> = repo.files().take(2).map(str::to_owned).collect();
    let read = names.iter().map(|name| {
        let fetched = repo.fetch(name).is_ok();
        let file = repo.open(name).ok().flatten();
        fetched | file.is_some_and(|file| file.read_at(0, &mut [0; 16]).is_ok())
    });
    read.fold(false, |any, read| any | read)
}
