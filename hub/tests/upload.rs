//! Uploads to a mock hub on loopback: the requests are those of the Hub's own client.

#[allow(dead_code, reason = "the tests of downloads need more of it")]
mod mock;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hub::{Change, Hub, HubConfig, LocalFile, Network, Reference, Retry, Timeouts, Upload};
use mock::{COMMIT, Fault, Mock, TOKEN, XET_TOKEN, sha256};
use serde_json::{Value, json};

fn hub(mock: &Mock, cache: &Path, token: Option<&str>) -> Hub {
    Hub::new(HubConfig {
        endpoint: mock.endpoint(),
        token: token.map(str::to_owned),
        cache: cache.to_path_buf(),
        network: Network::Online,
        retry: Retry::default(),
        timeouts: Timeouts::default(),
        connections: 2,
        piece_bytes: 1 << 20,
        on_retry: Arc::new(|_, _| ()),
        sleep: Arc::new(|_| ()),
    })
}

fn local(folder: &Path, files: &[(&str, &str)]) -> Vec<LocalFile> {
    let local = files.iter().map(|(name, content)| {
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        LocalFile {
            name: (*name).to_owned(),
            path,
            size_bytes: content.len() as u64,
        }
    });
    local.collect()
}

/// Returns the lines of the commit among the requests.
fn committed(mock: &Mock) -> Vec<Value> {
    let requests = mock.requests();
    assert!(
        requests
            .iter()
            .all(|request| request.token.as_deref() == Some(TOKEN))
    );
    let commit = requests
        .iter()
        .find(|request| request.path.contains("/commit/"));
    let body = commit.unwrap().body.clone().unwrap();
    let lines = body
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

#[test]
fn one_commit_has_the_files_that_differ() {
    let dir = tempfile::tempdir().unwrap();
    let mock = Mock::start();
    mock.state.lock().unwrap().private = true;
    mock.put("same.txt", b"same", false);
    mock.put("card.md", b"old", false);
    mock.put("large.gguf", b"large", true);
    mock.put("theirs.txt", b"theirs", false);
    let hub = hub(&mock, dir.path(), Some(TOKEN));
    let files = [
        ("same.txt", "same"),
        ("card.md", "new"),
        ("large.gguf", "large"),
        ("more.txt", "more"),
    ];
    let compared = hub.compare("org/name", "main", local(dir.path(), &files), &|_| ());
    let compared = compared.unwrap();
    let changes: Vec<Change> = compared.files.iter().map(|(_, change)| *change).collect();
    assert_eq!(
        changes,
        [Change::Equal, Change::Changed, Change::Equal, Change::New]
    );
    assert_eq!(compared.only_on_hub, ["theirs.txt"]);
    assert_eq!(compared.parent.as_deref(), Some(COMMIT));

    let upload = Upload {
        message: "message".to_owned(),
        is_private: false,
    };
    let done = Arc::new(AtomicU64::new(0));
    let progress = Arc::clone(&done);
    let commit = hub.upload(&compared, &upload, move |n| {
        progress.store(n, Ordering::Relaxed)
    });
    assert_eq!(commit.unwrap(), COMMIT.replace('0', "1"));
    let file = |path: &str, content: &str| {
        let content = STANDARD.encode(content);
        json!({"key": "file", "value": {"content": content, "path": path, "encoding": "base64"}})
    };
    let header = json!({"key": "header", "value":
        {"summary": "message", "description": "", "parentCommit": COMMIT}});
    let expected = [header, file("card.md", "new"), file("more.txt", "more")];
    assert_eq!(committed(&mock), expected);
}

#[test]
fn a_missing_repository_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let mock = Mock::start();
    mock.state.lock().unwrap().absent = true;
    let hub = hub(&mock, dir.path(), Some(TOKEN));
    let files = local(dir.path(), &[("a.txt", "a")]);
    let compared = hub.compare("org/name", "main", files, &|_| ()).unwrap();
    assert_eq!(compared.parent, None);
    let upload = Upload {
        message: "first".to_owned(),
        is_private: true,
    };
    hub.upload(&compared, &upload, |_| ()).unwrap();
    let requests = mock.requests();
    let created = requests
        .iter()
        .find(|request| request.path == "/api/repos/create");
    let created: Value = serde_json::from_slice(created.unwrap().body.as_ref().unwrap()).unwrap();
    let expected = json!({"name": "name", "organization": "org", "private": true, "type": "model"});
    assert_eq!(created, expected);
}

#[test]
fn uploads_need_a_token_and_do_not_print_it() {
    let dir = tempfile::tempdir().unwrap();
    let mock = Mock::start();
    let upload = Upload {
        message: "m".to_owned(),
        is_private: false,
    };
    let files = || local(dir.path(), &[("a.txt", "a")]);
    let without = hub(&mock, dir.path(), None);
    let compared = without
        .compare("org/name", "main", files(), &|_| ())
        .unwrap();
    let error = without
        .upload(&compared, &upload, |_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("set HF_TOKEN"), "{error}");
    // The token is refused after the comparison.
    mock.state.lock().unwrap().private = true;
    let wrong = hub(&mock, dir.path(), Some("hf_secret"));
    let error = wrong
        .upload(&compared, &upload, |_| ())
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("hf://org/name: upload failed"), "{error}");
    assert!(!error.contains("hf_secret"), "{error}");
}

/// Set in the process that has its own cache of Xet storage.
const CACHE: &str = "SPECCONV_TEST_XET_CACHE";

/// Runs a test in a process of its own: Xet storage has a cache in HF_HOME, which a process reads from its
/// environment. Returns true in the process that is to do the work.
fn has_own_cache(name: &str) -> bool {
    if env::var_os(CACHE).is_some() {
        return true;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut own = Command::new(env::current_exe().unwrap());
    own.args(["--exact", name, "--nocapture"]);
    let run = own
        .env(CACHE, "1")
        .env("HF_HOME", dir.path())
        .output()
        .unwrap();
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    false
}

/// Returns bytes that cannot be compressed.
fn incompressible() -> Vec<u8> {
    let hashes = (0..3000u32).map(|i| sha256(&i.to_le_bytes()).into_bytes());
    hashes.flatten().collect()
}

#[test]
fn large_files_go_to_xet_storage() {
    if !has_own_cache("large_files_go_to_xet_storage") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mock = Mock::start();
    let hub = hub(&mock, dir.path(), Some(TOKEN));
    let content = incompressible();
    let path = dir.path().join("model.gguf");
    fs::write(&path, &content).unwrap();
    let mut files = local(dir.path(), &[("card.md", "new")]);
    files.push(LocalFile {
        name: "model.gguf".to_owned(),
        path,
        size_bytes: content.len() as u64,
    });
    let compared = hub.compare("org/name", "main", files, &|_| ()).unwrap();
    let upload = Upload {
        message: "m".to_owned(),
        is_private: false,
    };
    let done = Arc::new(AtomicU64::new(0));
    let progress = Arc::clone(&done);
    hub.upload(&compared, &upload, move |n| {
        _ = progress.fetch_max(n, Ordering::Relaxed)
    })
    .unwrap();
    assert_eq!(done.load(Ordering::Relaxed), content.len() as u64 + 3);

    let requests = mock.requests();
    let posted = |path: &str| {
        requests
            .iter()
            .any(|request| request.path.starts_with(path))
    };
    assert!(
        posted("/v1/xorbs/default/") && posted("/v1/shards"),
        "{requests:?}"
    );
    // Each host gets its own token.
    for request in &requests {
        let expected = if request.port == mock.storage_port {
            XET_TOKEN
        } else {
            TOKEN
        };
        assert_eq!(request.token.as_deref(), Some(expected), "{}", request.path);
    }
    let commit = requests
        .iter()
        .find(|request| request.path.contains("/commit/"))
        .unwrap();
    let body = String::from_utf8(commit.body.clone().unwrap()).unwrap();
    let line = body.lines().find(|line| line.contains("lfsFile")).unwrap();
    let expected = json!({"key": "lfsFile", "value": {"path": "model.gguf", "algo": "sha256",
        "oid": sha256(&content), "size": content.len()}});
    assert_eq!(serde_json::from_str::<Value>(line).unwrap(), expected);
}

/// Fetches a whole file from a mock hub; returns its path and the bytes that progress counted.
fn fetch_whole(mock: &Mock, cache: &Path, n_bytes: usize) -> Result<(PathBuf, u64), hub::Error> {
    let reference: Reference = "hf://org/name".parse().unwrap();
    let repo = hub(mock, cache, Some(TOKEN)).open(&reference)?;
    let counted = AtomicU64::new(0);
    repo.prefetch(&[("model.gguf", 0..n_bytes as u64)], &|n| {
        counted.fetch_add(n, Ordering::Relaxed);
    })?;
    Ok((repo.folder().join("model.gguf"), counted.into_inner()))
}

#[test]
fn whole_files_come_from_xet_storage() {
    if !has_own_cache("whole_files_come_from_xet_storage") {
        return;
    }
    let mock = Mock::start();
    let content = incompressible();
    mock.put("model.gguf", &content, true);
    mock.state.lock().unwrap().xet = true;
    let fetch = |dir: &Path| fetch_whole(&mock, dir, content.len());
    // Requests for objects of Xet storage, and for more of the file than its first byte.
    let requested = || {
        let requests = std::mem::take(&mut mock.state.lock().unwrap().requests);
        let objects = requests
            .iter()
            .filter(|request| request.path.starts_with("/objects/"));
        let ranges = requests.iter().filter(|request| {
            request.port == mock.storage_port
                && request.path.starts_with("/org/name/resolve/")
                && request.range.is_some_and(|range| range != (0, 0))
        });
        (objects.count(), ranges.count())
    };

    let dir = tempfile::tempdir().unwrap();
    let (path, counted) = fetch(dir.path()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content);
    assert_eq!(counted, content.len() as u64);
    let requests = mock.state.lock().unwrap().requests.clone();
    for request in &requests {
        let token = request.token.as_deref();
        assert_ne!(request.path, "/v1/telemetry");
        let expected = match request.path.starts_with("/v") {
            true => Some(XET_TOKEN),
            false if request.port == mock.port => Some(TOKEN),
            // Addresses of objects carry their own permission.
            false => None,
        };
        assert_eq!(token, expected, "{}", request.path);
    }
    let (n_objects, n_ranges) = requested();
    assert!(n_objects > 0);
    assert_eq!(n_ranges, 0);

    // Only the missing bytes are fetched.
    let dir = tempfile::tempdir().unwrap();
    let reference: Reference = "hf://org/name".parse().unwrap();
    let repo = hub(&mock, dir.path(), Some(TOKEN))
        .open(&reference)
        .unwrap();
    let part = 0..content.len() as u64 - 5000;
    repo.prefetch(&[("model.gguf", part)], &|_| ()).unwrap();
    drop(repo);
    assert_eq!(requested(), (0, 1));
    let (path, counted) = fetch(dir.path()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content);
    assert_eq!(counted, 5000);
    assert_eq!(requested(), (1, 0));

    // A wrong byte is found by the hash, and the download is deleted.
    let dir = tempfile::tempdir().unwrap();
    // The first is that of the request for the first byte.
    mock.state.lock().unwrap().faults = [Fault::WrongByte(20_000); 2].into();
    let error = fetch(dir.path()).unwrap_err().to_string();
    assert!(error.contains("the download was deleted"), "{error}");
    fetch(dir.path()).unwrap();

    // Without an answer of the storage, ordinary requests download the file.
    let dir = tempfile::tempdir().unwrap();
    mock.state.lock().unwrap().xet_fails = true;
    requested();
    let (path, counted) = fetch(dir.path()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content);
    assert_eq!(counted, content.len() as u64);
    let (n_objects, n_ranges) = requested();
    assert_eq!(n_objects, 0);
    assert!(n_ranges > 0);
}
