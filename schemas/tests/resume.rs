//! Resumed runs write the same bytes as uninterrupted ones, whatever a crash lost of the kept
//! files.

mod common;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use schemas::gguf::{
    DType, Output, Plan, Resume, Source, SourceError, Tensor, WriteConfig, WriteError, WriteReport,
    write,
};

/// Rows are so long that a chunk has only a few.
const ROW_BYTES: u64 = 600 << 10;
const N_ROWS: u64 = 21;

/// A source that fails after `left` rows were produced.
struct Mortal {
    left: Arc<AtomicI64>,
}

impl Source for Mortal {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        for (row, out) in rows.zip(out.chunks_exact_mut(ROW_BYTES as usize)) {
            if self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
                return Err("the machine stops".into());
            }
            for (i, byte) in out.iter_mut().enumerate() {
                *byte = (row as usize * 7 + i / 3) as u8;
            }
        }
        Ok(())
    }
}

/// Two files whose sources together produce `n_rows` rows before they fail.
fn plans(n_rows: i64) -> [Plan; 2] {
    let left = Arc::new(AtomicI64::new(n_rows));
    ["a", "b"].map(|name| {
        let source = Mortal {
            left: Arc::clone(&left),
        };
        let shape = vec![ROW_BYTES, N_ROWS];
        let tensor = Tensor::new(name, shape, DType::I8, Arc::new(source)).unwrap();
        let mut plan = common::one_of_everything();
        plan.tensors.push(tensor);
        plan
    })
}

fn run(
    folder: &Path,
    n_rows: i64,
    threads: usize,
    options: &str,
) -> Result<WriteReport, WriteError> {
    let plans = plans(n_rows);
    let paths = ["a.gguf", "b.gguf"].map(|name| folder.join(name));
    let outputs = [0, 1].map(|i| Output {
        plan: &plans[i],
        path: &paths[i],
    });
    let config = WriteConfig {
        threads,
        resume: Some(Resume {
            inputs: &[folder.join("input")],
            journal: None,
            options,
        }),
        ..WriteConfig::new()
    };
    write(&outputs, &config)
}

fn start(folder: &Path) -> [PathBuf; 2] {
    fs::write(folder.join("input"), "weights").unwrap();
    [".a.gguf.partial", ".a.gguf.journal"].map(|name| folder.join(name))
}

/// Returns the names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[track_caller]
fn assert_whole(folder: &Path) {
    assert_eq!(names(folder), ["a.gguf", "b.gguf", "input"]);
    for (name, plan) in ["a.gguf", "b.gguf"].iter().zip(plans(i64::MAX)) {
        let bytes = fs::read(folder.join(name)).unwrap();
        assert!(bytes == common::file_bytes(&plan), "{name} is another file");
    }
}

#[test]
fn each_run_goes_on_where_the_last_one_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder);
    // 42 rows, at most 6 per chunk: each run makes some progress.
    for n_runs in 1.. {
        let before = fs::metadata(folder.join(".a.gguf.journal")).map_or(0, |file| file.len());
        match run(folder, 10, n_runs % 3 + 1, "") {
            Ok(report) => {
                assert!(n_runs > 3 && report.resumed_bytes > 32 * ROW_BYTES);
                break;
            }
            Err(error) => assert!(error.to_string().ends_with("the machine stops")),
        }
        let after = fs::metadata(folder.join(".a.gguf.journal")).unwrap().len();
        assert!(after > before && n_runs < 20);
        let kept = [
            ".a.gguf.journal",
            ".a.gguf.partial",
            ".b.gguf.partial",
            "input",
        ];
        assert_eq!(names(folder), kept);
    }
    assert_whole(folder);
}

#[test]
fn partial_files_of_another_run_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let [_, journal] = start(folder);
    run(folder, 10, 1, "Q4_K_M").unwrap_err();
    let kept = fs::read(&journal).unwrap();
    let error = run(folder, i64::MAX, 1, "Q5_K_M").unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "{}: belongs to another run: recorded options \"Q4_K_M\", now options \"Q5_K_M\"; use the recorded options and inputs, or remove the file to start again",
            journal.display()
        )
    );
    fs::write(folder.join("input"), "other weights").unwrap();
    let error = run(folder, i64::MAX, 1, "Q4_K_M").unwrap_err().to_string();
    assert!(error.contains("input\" size 7 modified"), "{error}");
    assert!(error.contains("input\" size 13 modified"), "{error}");
    assert_eq!(
        fs::read(&journal).unwrap(),
        kept,
        "a refusal changes nothing"
    );
    fs::remove_file(&journal).unwrap();
    assert_eq!(run(folder, i64::MAX, 1, "Q4_K_M").unwrap().resumed_bytes, 0);
    assert_whole(folder);
}

#[test]
fn one_run_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let [_, journal] = start(folder);
    run(folder, 10, 1, "").unwrap_err();
    let other = fs::File::open(&journal).unwrap();
    other.lock().unwrap();
    let error = run(folder, i64::MAX, 1, "").unwrap_err().to_string();
    assert!(
        error.ends_with("another run is writing this file"),
        "{error}"
    );
    drop(other);
    run(folder, i64::MAX, 1, "").unwrap();
    assert_whole(folder);
}

#[test]
fn links_in_place_of_our_files_are_not_followed() {
    for i in 0..2 {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let name = &start(folder)[i];
        let victim = folder.join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, name).unwrap();
        run(folder, i64::MAX, 1, "").unwrap_err();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }
}

/// Damage to the kept files by a crash or another program.
#[derive(Clone, Debug)]
enum Damage {
    /// The file is truncated to this fraction of its length.
    Cut(f64),
    /// The byte at this fraction of the length is changed.
    Flip(f64),
    /// The file is removed.
    Lost,
    /// These lines are appended.
    Lines(String),
}

impl Damage {
    fn apply(&self, path: &Path) {
        let Ok(mut bytes) = fs::read(path) else {
            return;
        };
        match self {
            Damage::Cut(part) => bytes.truncate((bytes.len() as f64 * part) as usize),
            Damage::Flip(part) if !bytes.is_empty() => {
                let at = (bytes.len() as f64 * part) as usize;
                bytes[at] ^= 0x11;
            }
            Damage::Flip(_) => {}
            Damage::Lost => return fs::remove_file(path).unwrap(),
            Damage::Lines(lines) => bytes.extend(lines.as_bytes()),
        }
        fs::write(path, bytes).unwrap();
    }
}

fn any_damage() -> impl Strategy<Value = Damage> {
    let hostile = vec((0..3usize, 0..6usize, any::<u64>(), any::<u64>()), 1..9).prop_map(|lines| {
        let line = |(output, tensor, start, end)| {
            format!("chunk {output} {tensor} {start} {end} {:016x}\n", 0)
        };
        Damage::Lines(lines.into_iter().map(line).collect())
    });
    let near = vec((0..2usize, 0..25u64, 0..9u64), 1..9).prop_map(|lines| {
        let line = |(output, start, n)| {
            format!("chunk {output} 4 {start} {} 0123456789abcdef\n", start + n)
        };
        Damage::Lines(lines.into_iter().map(line).collect())
    });
    prop_oneof![
        (0.0..1.0f64).prop_map(Damage::Cut),
        (0.0..1.0f64).prop_map(Damage::Flip),
        Just(Damage::Lost),
        "\\PC{0,20}\n?".prop_map(Damage::Lines),
        hostile,
        near,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn whatever_happened_the_bytes_are_right(
        runs in vec((0..20i64, 1..4usize, any_damage(), any_damage()), 1..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let [partial, journal] = start(folder);
        for (n_rows, threads, to_partial, to_journal) in runs {
            if run(folder, n_rows, threads, "").is_err() {
                to_partial.apply(&partial);
                to_journal.apply(&journal);
            }
        }
        // A journal with a changed preamble is taken for that of another run.
        if let Err(WriteError::OtherRun { .. }) = run(folder, i64::MAX, 2, "") {
            fs::remove_file(&journal).unwrap();
            run(folder, i64::MAX, 2, "").unwrap();
        }
        assert_whole(folder);
    }
}
