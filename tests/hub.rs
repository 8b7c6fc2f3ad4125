//! Checkpoints on a mock Hub on loopback: the same output as from a folder, with no more bytes
//! downloaded than needed.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::mock::{COMMIT, Fault, Mock, TOKEN};
use crate::util::{Cmd, Dir, reference, sha256, specconv};

/// Starts a mock Hub with a reference checkpoint.
pub(crate) fn hub(name: &str) -> Mock {
    let mock = Mock::start();
    for entry in fs::read_dir(reference(name)).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        let large = file.ends_with(".safetensors");
        mock.put(file, &fs::read(&path).unwrap(), large);
    }
    mock
}

/// Returns a command that uses the mock Hub and a cache folder.
pub(crate) fn with_hub(command: Cmd, mock: &Mock, dir: &Dir) -> Cmd {
    command
        .env("HF_ENDPOINT", &mock.endpoint())
        .env("HF_HOME", dir.join("cache").to_str().unwrap())
        .env("HF_TOKEN", "")
        .env("HF_HUB_OFFLINE", "")
        .env("HF_HUB_CACHE", "")
        .env("HF_TOKEN_PATH", "")
        .current_dir(dir.path())
}

fn convert(mock: &Mock, dir: &Dir, flags: &[&str]) -> Value {
    let convert = specconv("convert").arg("hf://org/name").args(flags);
    with_hub(convert, mock, dir).json()
}

/// Returns the hash of the output of `specconv convert` for the same files in a folder called `name`.
fn hash_from_folder(checkpoint: &str, dir: &Dir, flags: &[&str]) -> String {
    let folder = dir.join("name");
    fs::create_dir(&folder).unwrap();
    for entry in fs::read_dir(reference(checkpoint)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    sha256(&fs::read(dir.convert(&folder, "folder.gguf", flags)).unwrap())
}

fn hash(path: &Path) -> String {
    sha256(&fs::read(path).unwrap())
}

#[test]
fn a_checkpoint_on_the_hub_is_the_same_as_in_a_folder() {
    let dir = Dir::new();
    let mock = hub("llama");
    let report = convert(&mock, &dir, &["-o", "hub.gguf"]);
    assert_eq!(report["input"], "hf://org/name");
    assert_eq!(report["source"]["repository"], "org/name");
    assert_eq!(report["source"]["revision"], "main");
    assert_eq!(report["source"]["commit"], COMMIT);
    let weights: u64 = ["1", "2"]
        .map(|i| format!("model-0000{i}-of-00002.safetensors"))
        .map(|name| fs::metadata(reference("llama").join(name)).unwrap().len())
        .iter()
        .sum();
    let total = report["source"]["total_bytes"].as_u64().unwrap();
    assert!(total > weights, "{report}");
    assert_eq!(report["source"]["fetched_bytes"], total);
    assert_eq!(
        hash(&dir.join("hub.gguf")),
        hash_from_folder("llama", &dir, &[])
    );

    // All files are in the cache now, under their own names.
    mock.requests();
    let offline = specconv("convert")
        .arg("hf://org/name")
        .args(["-o", "offline.gguf"]);
    let offline = with_hub(offline, &mock, &dir)
        .env("HF_HUB_OFFLINE", "1")
        .json();
    assert_eq!(offline["source"]["commit"], COMMIT);
    assert_eq!(offline["source"]["fetched_bytes"], 0);
    assert!(mock.requests().is_empty());
    assert_eq!(hash(&dir.join("offline.gguf")), hash(&dir.join("hub.gguf")));
    let snapshot = dir
        .join("cache/hub/models--org--name/snapshots")
        .join(COMMIT);
    let first = "model-00001-of-00002.safetensors";
    assert_eq!(
        fs::read(snapshot.join(first)).unwrap(),
        fs::read(reference("llama").join(first)).unwrap()
    );
}

#[test]
fn of_a_head_only_the_head_is_fetched() {
    let dir = Dir::new();
    let mock = hub("qwen35-256");
    let flags = ["--mtp", "--outtype", "bf16"];
    let report = convert(&mock, &dir, &flags);
    let path = Path::new(report["output"]["path"].as_str().unwrap());
    assert_eq!(path, Path::new("mtp-Name-BF16.gguf"));
    let bytes = |field: &str| report["source"][field].as_u64().unwrap();
    assert!(
        bytes("fetched_bytes") * 2 < bytes("total_bytes"),
        "{report}"
    );
    assert_eq!(
        hash(&dir.join("mtp-Name-BF16.gguf")),
        hash_from_folder("qwen35-256", &dir, &flags)
    );
    // Converting the body later downloads only the missing bytes.
    let all = convert(&mock, &dir, &["--no-mtp", "-o", "body.gguf"]);
    let fetched = all["source"]["fetched_bytes"].as_u64().unwrap();
    assert!(
        fetched + bytes("fetched_bytes") <= bytes("total_bytes"),
        "{all}"
    );
}

/// The head is the minimum download; tensors for the comparison and readahead come on top.
#[test]
fn of_a_donor_only_the_head_is_fetched() {
    /// Bytes of the `mtp` tensors.
    const HEAD: usize = 1_182_464;
    let dir = Dir::new();
    let donor = reference("qwen35-256");
    let body = dir.convert(&donor, "body.gguf", &["--no-mtp"]);
    let mock = hub("qwen35-256");
    let graft = |donor: &OsStr, out: &str| {
        let graft = specconv("graft-mtp").arg("--target").arg(&body);
        let graft = graft.arg("--mtp").arg(donor).arg("-o").arg(dir.join(out));
        let ran = with_hub(graft, &mock, &dir).run();
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
        ran.stderr
    };
    let said = graft("hf://org/name".as_ref(), "hub.gguf");
    let fetched: usize = mock
        .ranges()
        .iter()
        .map(|(first, last)| last + 1 - first)
        .sum();
    assert!((HEAD..2 * HEAD).contains(&fetched), "{fetched}");
    let line = said.lines().last().unwrap();
    assert!(line.starts_with("note: downloaded "), "{said}");
    let whole = format!(" of 5.87 MB from hf://org/name at commit {COMMIT}");
    assert!(line.ends_with(&whole), "{said}");
    graft(donor.as_os_str(), "local.gguf");
    assert_eq!(hash(&dir.join("hub.gguf")), hash(&dir.join("local.gguf")));
}

#[test]
fn a_dry_run_fetches_no_weights() {
    let dir = Dir::new();
    let mock = hub("qwen35-256");
    let report = convert(&mock, &dir, &["--dry-run"]);
    assert_eq!(report["written"], false);
    let fetched = report["source"]["fetched_bytes"].as_u64().unwrap();
    assert!(fetched < 700_000, "{fetched}");
    assert_eq!(dir.names(), ["cache"]);
}

#[test]
fn every_command_that_takes_a_checkpoint_takes_it_from_the_hub() {
    let dir = Dir::new();
    let mock = hub("qwen3");
    let quantize = specconv("quantize").args(["hf://org/name@main", "hub.gguf", "q8_0"]);
    with_hub(quantize, &mock, &dir).ok();
    let local = specconv("quantize").arg(
        dir.join("cache/hub/models--org--name/snapshots")
            .join(COMMIT),
    );
    local.arg(dir.join("local.gguf")).arg("q8_0").ok();
    let data = |name: &str| {
        let plan = schemas::gguf::open(&dir.join(name)).unwrap();
        let bytes = plan.tensors.iter().map(|t| sha256(&t.read_all().unwrap()));
        bytes.collect::<Vec<_>>()
    };
    assert_eq!(data("hub.gguf"), data("local.gguf"));
}

#[test]
fn failed_downloads_name_the_reason_and_leave_nothing() {
    let dir = Dir::new();
    let mock = hub("qwen3");
    let error = |reference: &str, token: &str| {
        let convert = specconv("convert").arg(reference).args(["-o", "m.gguf"]);
        let error = with_hub(convert, &mock, &dir)
            .env("HF_TOKEN", token)
            .error();
        assert!(!dir.join("m.gguf").exists());
        error
    };
    assert_eq!(
        error("hf://org", ""),
        "\"hf://org\" is not a reference to a repository, expected hf://org/name[@revision][/file]"
    );
    assert_eq!(
        error("hf://org/name@v2", ""),
        "hf://org/name@v2: no such revision: v2"
    );
    mock.state.lock().unwrap().private = true;
    let refused = error("hf://org/name", "");
    assert!(refused.contains("set HF_TOKEN"), "{refused}");
    mock.fault_listing([Fault::Status(403, "GatedRepo")]);
    let gated = error("hf://org/name", TOKEN);
    assert!(
        gated.contains("the repository is gated: accept its terms at "),
        "{gated}"
    );
    let planned = specconv("convert").args(["hf://org/name", "--dry-run"]);
    let planned = with_hub(planned, &mock, &dir);
    planned.env("HF_TOKEN", TOKEN).ok();
    mock.fault([Fault::WrongByte(500_000); 40]);
    let changed = error("hf://org/name", TOKEN);
    assert!(
        changed.starts_with("hf://org/name/model.safetensors: SHA-256 is "),
        "{changed}"
    );
}

#[test]
fn machines_share_a_checkpoint_on_the_hub() {
    let dir = Dir::new();
    let mock = hub("llama");
    let plan = specconv("plan").args(["convert", "hf://org/name", "--outfile", "hub.gguf"]);
    let plan = plan.args(["--shards", "4", "-o", "plan.json"]);
    with_hub(plan, &mock, &dir).ok();
    for (shard, cache) in ["0", "1", "2", "3"].into_iter().zip(["a", "b", "c", "d"]) {
        // Each machine has its own cache.
        let run = specconv("run").args(["plan.json", "--shard", shard]);
        let run = with_hub(run, &mock, &dir);
        let ran = run.env("HF_HOME", dir.join(cache).to_str().unwrap()).run();
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        // Its rows are a fourth of the weights.
        let note = ran.stderr.lines().find(|line| line.contains("downloaded "));
        let words: Vec<&str> = note.unwrap().split(' ').collect();
        let at = words.iter().position(|word| *word == "of").unwrap();
        assert_ne!(words[at - 2..at], words[at + 1..at + 3], "{}", ran.stderr);
    }
    // No input is needed to join the parts.
    specconv("finish")
        .arg("plan.json")
        .current_dir(dir.path())
        .ok();
    assert_eq!(
        hash(&dir.join("hub.gguf")),
        hash_from_folder("llama", &dir, &[])
    );
    // Another commit is another input.
    let plan = fs::read_to_string(dir.join("plan.json")).unwrap();
    fs::write(dir.join("plan.json"), plan.replace(COMMIT, &"0".repeat(40))).unwrap();
    let run = specconv("run").args(["plan.json", "--shard", "0"]);
    let ran = with_hub(run, &mock, &dir).run();
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.contains("of hf://org/name, expected 0000"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("hint: name the commit when planning"),
        "{}",
        ran.stderr
    );
}
