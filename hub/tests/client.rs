//! Tests of the client against a mock hub on loopback that injects faults.

mod mock;

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hub::{Error, Hub, HubConfig, Network, Reference, RemoteFile, Repo, Retry, Timeouts};
use mock::{COMMIT, Fault, Mock, TOKEN, sha256};
use tempfile::TempDir;

/// A mock hub with two files, and an empty cache.
struct Setup {
    mock: Mock,
    cache: TempDir,
    /// Pauses that the client asked for; no test sleeps.
    pauses: Arc<Mutex<Vec<Duration>>>,
}

const WEIGHTS: &str = "model.safetensors";

/// 300,000 pseudo-random bytes.
fn weights() -> Vec<u8> {
    let mut x = 1u32;
    let next = |_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    };
    (0..300_000).map(next).collect()
}

impl Setup {
    fn new() -> Setup {
        let mock = Mock::start();
        mock.put("config.json", b"{\"a\": 1}\n", false);
        mock.put("empty.txt", b"", false);
        mock.put("sub/dir/x y.json", b"[]", false);
        mock.put(WEIGHTS, &weights(), true);
        Setup {
            mock,
            cache: TempDir::new().unwrap(),
            pauses: Arc::default(),
        }
    }

    fn config(&self) -> HubConfig {
        let pauses = Arc::clone(&self.pauses);
        HubConfig {
            endpoint: self.mock.endpoint(),
            token: None,
            cache: self.cache.path().join("hub"),
            network: Network::Online,
            retry: Retry {
                attempts: 4,
                min_progress: 500,
                first_pause: Duration::from_millis(500),
                max_pause: Duration::from_millis(800),
                max_asked: Duration::from_secs(60),
            },
            timeouts: Timeouts {
                connect: Duration::from_secs(5),
                answer: Duration::from_secs(5),
                read: Duration::from_secs(5),
            },
            connections: 3,
            piece_bytes: 50_000,
            on_retry: Arc::new(|_, _| ()),
            sleep: Arc::new(move |pause| pauses.lock().unwrap().push(pause)),
        }
    }

    fn try_open(&self, text: &str, config: HubConfig) -> Result<Repo, Error> {
        Hub::new(config).open(&text.parse::<Reference>().unwrap())
    }

    fn repo(&self) -> Repo {
        self.repo_of(self.config())
    }

    fn repo_of(&self, config: HubConfig) -> Repo {
        let repo = self.try_open("hf://org/name", config);
        let repo = repo.unwrap_or_else(|error| panic!("{error}"));
        self.mock.requests();
        repo
    }

    /// Returns the pauses since the last call, in milliseconds.
    fn pauses(&self) -> Vec<u128> {
        let pauses = std::mem::take(&mut *self.pauses.lock().unwrap());
        pauses.iter().map(Duration::as_millis).collect()
    }
}

fn read(file: &RemoteFile, offset: usize, len: usize) -> Result<Vec<u8>, Error> {
    let mut out = vec![0; len];
    file.read_at(offset as u64, &mut out).map(|()| out)
}

fn open(repo: &Repo) -> Arc<RemoteFile> {
    repo.open(WEIGHTS).unwrap().expect("the file is there")
}

#[test]
fn a_revision_becomes_a_commit() {
    let setup = Setup::new();
    for (text, revision) in [
        ("hf://org/name", "main"),
        ("hf://org/name@refs/pr/1", "refs/pr/1"),
        (
            "hf://org/name@0123456789abcdef0123456789abcdef01234567",
            COMMIT,
        ),
    ] {
        let repo = setup.try_open(text, setup.config()).unwrap();
        assert_eq!((repo.revision(), repo.commit()), (revision, COMMIT));
        assert_eq!(repo.files().count(), 4);
        assert_eq!(repo.size_bytes(WEIGHTS), Some(300_000));
    }
    // A known commit is not requested again.
    setup.mock.requests();
    let commit = format!("hf://org/name@{COMMIT}");
    setup.try_open(&commit, setup.config()).unwrap();
    assert_eq!(setup.mock.requests().len(), 0);
    let references = setup.config().cache.join("models--org--name/refs");
    assert_eq!(
        fs::read_to_string(references.join("refs/pr/1")).unwrap(),
        COMMIT
    );
}

#[test]
fn small_files_are_cached_in_the_common_layout() {
    let setup = Setup::new();
    let repo = setup.repo();
    let path = repo.fetch("config.json").unwrap().unwrap();
    let folder = setup.config().cache.join("models--org--name");
    assert_eq!(
        path,
        folder.join("snapshots").join(COMMIT).join("config.json")
    );
    assert_eq!(fs::read(&path).unwrap(), b"{\"a\": 1}\n");
    // Printed by `git hash-object`.
    let id = "cb5b2f69babc53f9145b45ad20b9a075d48717ef";
    assert_eq!(
        fs::read_link(&path).unwrap(),
        Path::new("../../blobs").join(id)
    );
    let nested = repo.fetch("sub/dir/x y.json").unwrap().unwrap();
    assert_eq!(fs::read(nested).unwrap(), b"[]");
    let empty = repo.fetch("empty.txt").unwrap().unwrap();
    assert_eq!(fs::read(empty).unwrap(), b"");
    assert_eq!(repo.fetch("other.json").unwrap(), None);
    setup.mock.requests();
    // A second fetch sends no request.
    setup.repo().fetch("config.json").unwrap();
    assert!(setup.mock.requests().is_empty());
}

#[test]
fn files_cached_by_other_programs_are_used() {
    let setup = Setup::new();
    let folder = setup.config().cache.join("models--org--name");
    let snapshot = folder.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), COMMIT).unwrap();
    fs::write(snapshot.join(WEIGHTS), weights()).unwrap();
    let offline = HubConfig {
        network: Network::Offline,
        ..setup.config()
    };
    for config in [setup.config(), offline.clone()] {
        let repo = setup.try_open("hf://org/name", config).unwrap();
        setup.mock.requests();
        let file = open(&repo);
        assert_eq!(file.size_bytes(), 300_000);
        assert_eq!(read(&file, 1234, 99).unwrap(), weights()[1234..][..99]);
        assert!(setup.mock.requests().is_empty());
    }
    // The hub has been asked, so its listing is known, but not every file is cached.
    let repo = setup.try_open("hf://org/name", offline).unwrap();
    let error = repo.fetch("config.json").unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "hf://org/name/config.json: not in the cache at {}, and offline mode \
             (HF_HUB_OFFLINE) does not allow downloads",
            folder.display()
        )
    );
}

/// Part of a file is in the cache; offline mode must not fetch the rest.
#[test]
fn offline_mode_does_not_complete_a_file() {
    let setup = Setup::new();
    read(&open(&setup.repo()), 1234, 99).unwrap();
    setup.mock.requests();
    let offline = HubConfig {
        network: Network::Offline,
        ..setup.config()
    };
    let repo = setup.try_open("hf://org/name", offline).unwrap();
    let error = repo.fetch(WEIGHTS).unwrap_err().to_string();
    assert!(error.contains("offline mode (HF_HUB_OFFLINE)"), "{error}");
    assert!(setup.mock.requests().is_empty());
}

#[test]
fn offline_without_a_cache_says_so() {
    let setup = Setup::new();
    let offline = HubConfig {
        network: Network::Offline,
        ..setup.config()
    };
    let error = setup.try_open("hf://org/name", offline).err().unwrap();
    assert!(
        error
            .to_string()
            .starts_with("hf://org/name: not in the cache at ")
    );
    assert!(setup.mock.requests().is_empty());
}

#[test]
fn links_to_devices_in_the_cache_are_no_answers() {
    let setup = Setup::new();
    let refs = setup.config().cache.join("models--org--name/refs");
    fs::create_dir_all(&refs).unwrap();
    std::os::unix::fs::symlink("/dev/zero", refs.join("main")).unwrap();
    let offline = HubConfig {
        network: Network::Offline,
        ..setup.config()
    };
    let error = setup.try_open("hf://org/name", offline).err().unwrap();
    assert!(
        error.to_string().contains("not in the cache at "),
        "{error}"
    );
}

#[test]
fn only_what_is_needed_is_fetched() {
    let setup = Setup::new();
    let repo = setup.repo();
    let wanted = [
        (WEIGHTS, 1000..3000),
        (WEIGHTS, 3000..60_000),
        (WEIGHTS, 200_000..200_001),
    ];
    assert_eq!(repo.missing_bytes(&wanted).unwrap(), 59_001);
    let progress = Mutex::new(0);
    repo.prefetch(&wanted, &|n| *progress.lock().unwrap() += n)
        .unwrap();
    assert_eq!(*progress.lock().unwrap(), 59_001);
    assert_eq!(repo.fetched_bytes(), 59_001);
    let mut ranges = setup.mock.ranges();
    ranges.sort_unstable();
    assert_eq!(
        ranges,
        [(1000, 50_999), (51_000, 59_999), (200_000, 200_000)]
    );
    assert_eq!(repo.missing_bytes(&wanted).unwrap(), 0);
    let file = open(&repo);
    assert_eq!(read(&file, 1000, 59_000).unwrap(), weights()[1000..60_000]);
    assert!(setup.mock.requests().is_empty());
    drop((file, repo));

    // Another run finds the pieces.
    let repo = setup.repo();
    let file = open(&repo);
    assert_eq!(read(&file, 2000, 100).unwrap(), weights()[2000..2100]);
    assert!(setup.mock.requests().is_empty());
    // Missing bytes are fetched when they are read, and none twice.
    assert_eq!(read(&file, 0, 2000).unwrap(), weights()[..2000]);
    assert_eq!(setup.mock.ranges(), [(0, 999)]);
    // Reads fetch some bytes ahead.
    read(&file, 250_000, 1).unwrap();
    assert_eq!(setup.mock.ranges(), [(250_000, 299_999)]);
    let error = read(&file, 299_999, 2).unwrap_err().to_string();
    assert_eq!(
        error,
        "hf://org/name/model.safetensors: requested bytes 2 at 299999, the response has a file of \
         300000 bytes"
    );
}

#[test]
fn a_file_that_is_whole_joins_the_cache() {
    let setup = Setup::new();
    let repo = setup.repo();
    repo.prefetch(&[(WEIGHTS, 0..300_000)], &|_| ()).unwrap();
    let folder = setup.config().cache.join("models--org--name");
    let blob = folder.join("blobs").join(sha256(&weights()));
    assert_eq!(fs::read(&blob).unwrap(), weights());
    assert_eq!(fs::read(repo.folder().join(WEIGHTS)).unwrap(), weights());
    assert_eq!(fs::read_dir(folder.join("blobs")).unwrap().count(), 1);
    assert_eq!(read(&open(&repo), 5, 5).unwrap(), weights()[5..10]);
}

#[test]
fn a_wrong_byte_is_noticed() {
    let setup = Setup::new();
    let repo = setup.repo();
    setup.mock.fault([Fault::WrongByte(777); 6]);
    let error = repo
        .prefetch(&[(WEIGHTS, 0..300_000)], &|_| ())
        .unwrap_err();
    let mut wrong = weights();
    wrong[777] ^= 1;
    assert_eq!(
        error.to_string(),
        format!(
            "hf://org/name/model.safetensors: SHA-256 is {}, expected {} from the hub's listing; the download was deleted, run again",
            sha256(&wrong),
            sha256(&weights())
        )
    );
    assert!(!repo.folder().join(WEIGHTS).exists());
    drop(repo);
    let repo = setup.repo();
    repo.prefetch(&[(WEIGHTS, 0..300_000)], &|_| ()).unwrap();
    assert_eq!(fs::read(repo.folder().join(WEIGHTS)).unwrap(), weights());

    setup.mock.fault([Fault::WrongByte(3)]);
    let error = repo.fetch("config.json").unwrap_err().to_string();
    assert!(
        error.starts_with("hf://org/name/config.json: git's SHA-1 is "),
        "{error}"
    );
    assert!(!repo.folder().join("config.json").exists());
    assert!(repo.fetch("config.json").unwrap().is_some());
}

#[test]
fn a_cut_answer_is_continued() {
    let setup = Setup::new();
    let repo = setup.repo();
    let file = open(&repo);
    setup
        .mock
        .fault([Fault::Cut(1000), Fault::Cut(0), Fault::Cut(500)]);
    assert_eq!(read(&file, 0, 200_000).unwrap(), weights()[..200_000]);
    let starts: Vec<usize> = setup.mock.ranges().iter().map(|range| range.0).collect();
    assert_eq!(starts, [0, 1000, 1000, 1500]);
    // Progress resets the count of failed attempts.
    assert_eq!(setup.pauses(), [500, 800, 500]);
    assert_eq!(repo.fetched_bytes(), 200_000);
}

#[test]
fn bytes_before_a_failure_are_kept() {
    let setup = Setup::new();
    let repo = setup.repo();
    setup.mock.fault([
        Fault::Cut(40_000),
        Fault::Cut(0),
        Fault::Cut(0),
        Fault::Cut(0),
        Fault::Cut(0),
    ]);
    let error = read(&open(&repo), 0, 200_000).unwrap_err().to_string();
    assert!(
        error.starts_with("hf://org/name/model.safetensors: "),
        "{error}"
    );
    assert!(error.ends_with("(4 attempts)"), "{error}");
    drop(repo);
    setup.mock.state.lock().unwrap().faults.clear();
    let repo = setup.repo();
    assert_eq!(
        repo.missing_bytes(&[(WEIGHTS, 0..200_000)]).unwrap(),
        160_000
    );
    setup.mock.requests();
    assert_eq!(
        read(&open(&repo), 0, 200_000).unwrap(),
        weights()[..200_000]
    );
    assert_eq!(setup.mock.ranges(), [(40_000, 199_999)]);
}

#[test]
fn a_hub_that_stalls_is_not_waited_for() {
    let setup = Setup::new();
    let config = setup.config();
    let repo = setup.repo_of(HubConfig {
        timeouts: Timeouts {
            read: Duration::from_millis(100),
            ..config.timeouts
        },
        // On a busy machine other answers may time out too.
        retry: Retry {
            attempts: 50,
            ..config.retry
        },
        ..config
    });
    setup.mock.fault([Fault::Stall(700), Fault::Stall(0)]);
    assert_eq!(
        read(&open(&repo), 0, 150_000).unwrap(),
        weights()[..150_000]
    );
    let starts: Vec<usize> = setup.mock.ranges().iter().map(|range| range.0).collect();
    assert_eq!(starts.first(), Some(&0));
    assert!(starts.contains(&700), "{starts:?}");
}

#[test]
fn busy_hubs_are_asked_again() {
    let setup = Setup::new();
    let repo = setup.repo();
    setup
        .mock
        .fault([Fault::Status(503, ""), Fault::TooMany("7"), Fault::Expired]);
    assert_eq!(read(&open(&repo), 0, 10).unwrap(), weights()[..10]);
    assert_eq!(setup.pauses(), [500, 7000, 800]);
    setup.mock.fault([Fault::Status(502, ""); 4]);
    let error = read(&open(&repo), 290_000, 10).unwrap_err().to_string();
    assert_eq!(
        error,
        "hf://org/name/model.safetensors: the hub returned status 502 (4 attempts)"
    );
    assert_eq!(setup.pauses(), [500, 800, 800]);
    setup.mock.fault([Fault::TooMany("61")]);
    let error = read(&open(&repo), 290_000, 10).unwrap_err().to_string();
    assert_eq!(
        error,
        "hf://org/name/model.safetensors: the hub asks to wait 61 s (status 429): try again later; \
         requests with HF_TOKEN have a higher limit"
    );
    assert!(setup.pauses().is_empty());
    setup
        .mock
        .fault_listing([Fault::Status(500, ""), Fault::Body("{\"sha\": 1}")]);
    let error = setup
        .try_open("hf://org/name", setup.config())
        .err()
        .unwrap();
    assert_eq!(
        error.to_string(),
        "hf://org/name: unexpected response of the hub: invalid type: integer `1`, expected a \
         string at line 1 column 9"
    );
    assert_eq!(setup.pauses(), [500]);
}

#[test]
fn a_server_that_sends_byte_after_byte_is_given_up() {
    let setup = Setup::new();
    let repo = setup.repo();
    setup.mock.fault([Fault::Cut(1); 1000]);
    let error = read(&open(&repo), 0, 10).unwrap_err().to_string();
    assert!(error.ends_with("(4 attempts)"), "{error}");
    assert_eq!(setup.pauses().len(), 3);
    assert_eq!(repo.fetched_bytes(), 4);
}

#[test]
fn pauses_that_a_hub_asks_for_have_a_limit_in_all() {
    let setup = Setup::new();
    let repo = setup.repo();
    // The configuration allows 60 s.
    setup.mock.fault([Fault::TooMany("35"); 4]);
    let error = read(&open(&repo), 0, 10).unwrap_err().to_string();
    assert!(error.contains("asks to wait 35 s (status 429)"), "{error}");
    assert_eq!(setup.pauses(), [35_000]);
    setup.mock.state.lock().unwrap().faults.clear();
    // Retry-After headers with more seconds than a u64 holds, and with no number.
    setup
        .mock
        .fault([Fault::TooMany("99999999999999999999999")]);
    let error = read(&open(&repo), 0, 10).unwrap_err().to_string();
    assert!(error.contains("asks to wait"), "{error}");
    assert!(setup.pauses().is_empty());
    setup
        .mock
        .fault([Fault::TooMany("Wed, 21 Oct 2065 07:28:00 GMT")]);
    assert_eq!(read(&open(&repo), 0, 10).unwrap(), weights()[..10]);
    assert_eq!(setup.pauses(), [500]);
}

#[test]
fn a_token_that_no_header_can_carry_is_refused_at_once() {
    let setup = Setup::new();
    for token in ["hf_a\nb", "hf_a b", "hf_\u{e4}", "hf_a\r\nX-Evil: 1"] {
        let config = HubConfig {
            token: Some(token.to_owned()),
            ..setup.config()
        };
        let error = setup.try_open("hf://org/name", config).err().unwrap();
        let error = error.to_string();
        assert!(error.contains("set HF_TOKEN to the token only"), "{error}");
        assert!(!error.contains(token), "{error}");
        assert!(setup.pauses().is_empty());
        assert!(setup.mock.requests().is_empty());
    }
}

#[test]
fn hashes_that_are_none_are_reported() {
    let setup = Setup::new();
    let sha256 = "0".repeat(63);
    for (file, message) in [
        (
            "\"blobId\":\"not a hash\"".to_owned(),
            "file \"a.json\": blobId \"not a hash\", expected 40 hexadecimal digits",
        ),
        (
            format!("\"lfs\":{{\"sha256\":\"{sha256}\",\"size\":1}}"),
            ", expected 64 hexadecimal digits",
        ),
    ] {
        let listing =
            format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{{\"rfilename\":\"a.json\",{file}}}]}}");
        setup.mock.fault_listing([Fault::Body(listing.leak())]);
        let error = setup
            .try_open("hf://org/name", setup.config())
            .err()
            .unwrap();
        let error = error.to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn answers_about_other_bytes_are_refused() {
    let setup = Setup::new();
    for (faults, message) in [
        (
            vec![Fault::WrongRange],
            "requested bytes 0 to 131072 of 300000, the response has bytes 1-131071/300000",
        ),
        (
            vec![Fault::NoRanges],
            "requested bytes 0 to 131072 of 300000, the response has the whole file: this hub does not support ranges",
        ),
        (
            vec![Fault::Cut(9), Fault::OtherTag],
            "changed on the hub while it was read: the ETag is other, was TAG; run again",
        ),
        (
            vec![Fault::OtherCommit],
            "changed on the hub while it was read: the commit is \
             f123456789abcdeff123456789abcdeff1234567, was \
             0123456789abcdef0123456789abcdef01234567; run again",
        ),
    ] {
        setup.mock.state.lock().unwrap().faults.clear();
        setup.mock.fault(faults);
        fs::remove_dir_all(setup.config().cache).ok();
        let repo = setup.repo();
        let error = read(&open(&repo), 0, 100).unwrap_err().to_string();
        let message = message.replace("TAG", &sha256(&weights()));
        assert_eq!(error, format!("hf://org/name/model.safetensors: {message}"));
    }
}

#[test]
fn a_length_that_is_wrong_costs_nothing() {
    let setup = Setup::new();
    let repo = setup.repo();
    setup.mock.fault([Fault::LongLength]);
    assert_eq!(read(&open(&repo), 0, 100).unwrap(), weights()[..100]);
    // For a small file, the whole file is a valid answer to a range request.
    setup.mock.fault([Fault::NoRanges]);
    assert!(repo.fetch("config.json").unwrap().is_some());
}

#[test]
fn access_errors_say_what_to_do() {
    let setup = Setup::new();
    setup.mock.state.lock().unwrap().private = true;
    let refused = |token: Option<&str>| {
        let config = HubConfig {
            token: token.map(str::to_owned),
            ..setup.config()
        };
        setup.try_open("hf://org/name", config).map(drop)
    };
    assert_eq!(
        refused(None).unwrap_err().to_string(),
        "hf://org/name: no such repository, or a private one: check the name, or set HF_TOKEN to a \
         token that may read it"
    );
    assert_eq!(
        refused(Some("hf_wrong")).unwrap_err().to_string(),
        "hf://org/name: the hub rejects the token (status 401): set HF_TOKEN to a valid one that \
         may read this repository, or unset it"
    );
    refused(Some(TOKEN)).unwrap();
    setup.mock.fault_listing([
        Fault::Status(403, "GatedRepo"),
        Fault::Status(401, "GatedRepo"),
    ]);
    for _ in 0..2 {
        let message = refused(Some(TOKEN)).unwrap_err().to_string();
        let page = format!("{}/org/name", setup.mock.endpoint());
        assert_eq!(
            message,
            format!(
                "hf://org/name: the repository is gated: accept its terms at {page}, then set HF_TOKEN to a token of \
                 that account"
            )
        );
    }
    assert!(setup.pauses().is_empty());
}

#[test]
fn missing_files_are_named() {
    let setup = Setup::new();
    let refused = |text: &str| {
        let opened = setup.try_open(text, setup.config());
        opened.err().expect("it is not there").to_string()
    };
    assert_eq!(
        refused("hf://org/other"),
        "hf://org/other: no such repository (404): check the name"
    );
    assert_eq!(
        refused("hf://org/name@v9"),
        "hf://org/name@v9: no such revision: v9"
    );
    let repo = setup.repo();
    setup.mock.state.lock().unwrap().files.remove("config.json");
    assert_eq!(
        repo.fetch("config.json").unwrap_err().to_string(),
        format!("hf://org/name/config.json: no such file in commit {COMMIT}")
    );
}

#[test]
fn the_token_stays_with_the_hub() {
    let setup = Setup::new();
    setup.mock.state.lock().unwrap().private = true;
    let config = HubConfig {
        token: Some(TOKEN.to_owned()),
        ..setup.config()
    };
    let repo = setup.try_open("hf://org/name", config).unwrap();
    read(&open(&repo), 0, 10).unwrap();
    let requests = setup.mock.requests();
    assert_eq!(requests.len(), 3);
    for request in requests {
        let expected = (request.port == setup.mock.port).then_some(TOKEN);
        assert_eq!(request.token.as_deref(), expected, "{request:?}");
    }
}

#[test]
fn a_hub_that_says_little_is_asked_more() {
    let setup = Setup::new();
    setup.mock.state.lock().unwrap().terse = true;
    let repo = setup.repo();
    assert_eq!(repo.size_bytes(WEIGHTS), None);
    let file = open(&repo);
    assert_eq!(file.size_bytes(), 300_000);
    assert_eq!(read(&file, 100, 10).unwrap(), weights()[100..110]);
    assert!(repo.fetch("config.json").unwrap().is_some());
}

#[test]
fn listings_cannot_reach_out_of_the_cache() {
    let setup = Setup::new();
    for (body, what) in [
        (
            "{\"sha\": \"../../x\", \"siblings\": []}",
            "commit \"../../x\"",
        ),
        (
            "{\"sha\": \"0123456789abcdef0123456789abcdef01234567\", \
             \"siblings\": [{\"rfilename\": \"../../x\"}]}",
            "file \"../../x\"",
        ),
    ] {
        setup.mock.fault_listing([Fault::Body(body)]);
        let error = setup
            .try_open("hf://org/name", setup.config())
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            format!("hf://org/name: unexpected response of the hub: {what}")
        );
    }
}

#[test]
fn two_programs_do_not_write_the_same_file() {
    let setup = Setup::new();
    let first = setup.repo();
    read(&open(&first), 0, 10).unwrap();
    let second = setup.repo();
    let error = second.open(WEIGHTS).err().unwrap().to_string();
    assert!(
        error.starts_with("hf://org/name/model.safetensors: another process is downloading it ("),
        "{error}"
    );
}

#[test]
fn connection_failures_are_reported() {
    let setup = Setup::new();
    let config = HubConfig {
        // A port that was free a moment ago, so that connections are refused.
        endpoint: {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            format!("http://{}", listener.local_addr().unwrap())
        },
        ..setup.config()
    };
    let error = setup
        .try_open("hf://org/name", config)
        .err()
        .unwrap()
        .to_string();
    assert!(error.starts_with("hf://org/name: 127.0.0.1:"), "{error}");
    assert!(error.ends_with("(4 attempts)"), "{error}");
}
