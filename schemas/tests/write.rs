//! The writer: all files or none, bounded memory, inputs read once, and errors that name the input.

mod common;

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use schemas::gguf::{
    DType, FilePosition, Metadata, Output, Plan, RowError, Source, SourceError, Tensor,
    WriteConfig, open_one, write,
};

const ONE: WriteConfig<'_> = WriteConfig {
    threads: 1,
    max_buffer_bytes: 1 << 20,
    resume: None,
    progress: &|_| {},
    cancelled: &|| false,
};

/// Row size in bytes and requested rows.
type Log = Arc<Mutex<Vec<(u64, Range<u64>)>>>;

/// A source of computed rows: they depend on an input file, but are not its bytes.
struct Made {
    row_bytes: u64,
    input: Option<(&'static str, u64)>,
    /// Requested rows.
    log: Log,
    /// The row that fails.
    bad_row: Option<u64>,
}

impl Made {
    fn new(row_bytes: u64) -> Made {
        Made {
            row_bytes,
            input: None,
            log: Arc::default(),
            bad_row: None,
        }
    }

    fn tensor(self, name: &str, n_rows: u64) -> Tensor {
        let shape = vec![self.row_bytes, n_rows];
        Tensor::new(name, shape, DType::I8, Arc::new(self)).unwrap()
    }
}

impl Source for Made {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let mut log = self.log.lock().unwrap();
        log.push((self.row_bytes, rows.clone()));
        if let Some(row) = self.bad_row.filter(|row| rows.contains(row)) {
            let error = format!("row {row}, element 5: not a number").into();
            return Err(RowError { row, error }.into());
        }
        for (row, out) in rows.zip(out.chunks_exact_mut(self.row_bytes as usize)) {
            out.fill(row as u8);
        }
        Ok(())
    }

    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        let (path, start) = self.input?;
        Some(FilePosition {
            path: Path::new(path),
            offset: start + row * 100,
        })
    }
}

fn plan(tensors: Vec<Tensor>) -> Plan {
    Plan {
        tensors,
        ..Plan::new(Metadata::new())
    }
}

#[test]
fn files_appear_together_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["1.gguf", "2.gguf"].map(|name| folder.path().join(name));
    fs::write(&first, "what was there before").unwrap();
    let good = common::one_of_everything();
    let mut bad = good.clone();
    let source = Made {
        bad_row: Some(2),
        ..Made::new(8)
    };
    bad.tensors.push(source.tensor("blk.1.bad", 3));
    let outputs = |second_plan| {
        [
            Output {
                plan: &good,
                path: &first,
            },
            Output {
                plan: second_plan,
                path: &second,
            },
        ]
    };
    let error = write(&outputs(&bad), &ONE).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor blk.1.bad: row 2, element 5: not a number"
    );
    assert_eq!(fs::read_to_string(&first).unwrap(), "what was there before");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    let report = write(&outputs(&good), &ONE).unwrap();
    let bytes = common::file_bytes(&good);
    assert_eq!(report.size_bytes, [bytes.len() as u64; 2]);
    assert_eq!(fs::read(&first).unwrap(), bytes);
    assert_eq!(fs::read(&second).unwrap(), bytes);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn two_outputs_need_two_names() {
    let folder = tempfile::tempdir().unwrap();
    let plan = common::one_of_everything();
    let path = folder.path().join("m.gguf");
    let roundabout = folder.path().join(".").join("m.gguf");
    let outputs = [&path, &roundabout].map(|path| Output { plan: &plan, path });
    let error = write(&outputs, &ONE).unwrap_err().to_string();
    assert!(error.ends_with("expected different files"), "{error}");
    assert!(!path.exists());
}

#[test]
fn failed_writes_leave_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let plan = plan(vec![Made::new(1 << 20).tensor("t", 16)]);
    let n_written = AtomicU64::new(0);
    let config = WriteConfig {
        progress: &|n| {
            n_written.fetch_add(n, Ordering::Relaxed);
        },
        cancelled: &|| n_written.load(Ordering::Relaxed) > 4 << 20,
        ..ONE
    };
    let output = Output {
        plan: &plan,
        path: &path,
    };
    let error = write(&[output], &config).unwrap_err();
    assert_eq!(
        error.to_string(),
        "interrupted before the output was complete"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn bad_data_is_named_by_its_input() {
    let folder = tempfile::tempdir().unwrap();
    let source = Made {
        input: Some(("model.safetensors", 4096)),
        bad_row: Some(7),
        ..Made::new(32)
    };
    let plan = plan(vec![source.tensor("blk.0.ffn_up.weight", 9)]);
    let output = Output {
        plan: &plan,
        path: &folder.path().join("m.gguf"),
    };
    assert_eq!(
        write(&[output], &ONE).unwrap_err().to_string(),
        "model.safetensors: tensor blk.0.ffn_up.weight: row 7, element 5: not a number \
         (row at byte 4796)"
    );
}

#[test]
fn an_input_that_shrank_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in.gguf", "out.gguf"].map(|name| folder.path().join(name));
    fs::write(&input, common::file_bytes(&common::one_of_everything())).unwrap();
    let plan = open_one(&input).unwrap();
    let last = plan.tensors[3].source.origin().unwrap().offset;
    fs::File::options()
        .write(true)
        .open(&input)
        .unwrap()
        .set_len(last + 5)
        .unwrap();
    let output = Output {
        plan: &plan,
        path: &output,
    };
    assert_eq!(
        write(&[output], &ONE).unwrap_err().to_string(),
        format!(
            "{}: tensor blk.0.ids: failed to fill whole buffer (row at byte {last})",
            input.display()
        )
    );
}

#[test]
fn rows_of_one_input_are_produced_one_after_the_other() {
    let log = Log::default();
    let made = |row_bytes, input: &'static str| Made {
        input: Some((input, 0)),
        log: Arc::clone(&log),
        ..Made::new(row_bytes)
    };
    let wide = plan(vec![
        made(600 << 10, "a").tensor("a", 4),
        made(900 << 10, "b").tensor("b", 2),
    ]);
    let narrow = plan(vec![
        made(800 << 10, "b").tensor("b", 2),
        made(300 << 10, "a").tensor("a", 4),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let outputs = [
        Output {
            plan: &wide,
            path: &folder.path().join("wide.gguf"),
        },
        Output {
            plan: &narrow,
            path: &folder.path().join("narrow.gguf"),
        },
    ];
    write(&outputs, &ONE).unwrap();
    let log = log.lock().unwrap();
    let rows: Vec<_> = log.iter().map(|(n, rows)| (n >> 10, rows.start)).collect();
    let (a, b) = ([600, 300], [900, 800]);
    let expected: Vec<_> = (0..4)
        .flat_map(|row| a.map(|n| (n, row)))
        .chain((0..2).flat_map(|row| b.map(|n| (n, row))))
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn buffers_stay_below_their_bound_or_one_row() {
    let folder = tempfile::tempdir().unwrap();
    let write = |row_bytes: u64| {
        let plan = plan(vec![Made::new(row_bytes).tensor("t", 40)]);
        let config = WriteConfig {
            threads: 4,
            max_buffer_bytes: 100_000,
            ..ONE
        };
        let output = Output {
            plan: &plan,
            path: &folder.path().join("m.gguf"),
        };
        let report = write(&[output], &config).unwrap();
        assert_eq!(report.produced_bytes, 40 * row_bytes);
        report.peak_buffer_bytes
    };
    assert!(write(1_000) <= 100_000);
    assert!(write(60_000) <= 100_000, "two rows do not fit");
    assert_eq!(write(300_000), 300_000, "one row is the least");
}

#[test]
fn copies_between_files_need_no_buffer() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in.gguf", "out.gguf"].map(|name| folder.path().join(name));
    let bytes = common::file_bytes(&common::one_of_everything());
    fs::write(&input, &bytes).unwrap();
    let plan = open_one(&input).unwrap();
    let output_file = Output {
        plan: &plan,
        path: &output,
    };
    let report = write(&[output_file], &ONE).unwrap();
    assert_eq!(fs::read(&output).unwrap(), bytes);
    let copied = report.kernel_copied_bytes + report.produced_bytes;
    assert_eq!(copied, plan.data_bytes());
    assert!(report.peak_buffer_bytes <= report.produced_bytes);
}

/// Rows read before and after the change would be of two different files.
#[test]
fn an_input_that_changes_while_it_is_read_gives_no_output() {
    let folder = tempfile::tempdir().unwrap();
    let (input, path) = (
        folder.path().join("in.gguf"),
        folder.path().join("out.gguf"),
    );
    fs::write(&input, common::file_bytes(&common::one_of_everything())).unwrap();
    let plan = open_one(&input).unwrap();
    let file = fs::File::options().write(true).open(&input).unwrap();
    let config = WriteConfig {
        progress: &|_| file.set_modified(std::time::UNIX_EPOCH).unwrap(),
        ..ONE
    };
    let output = Output {
        plan: &plan,
        path: &path,
    };
    let error = write(&[output], &config).unwrap_err().to_string();
    let expected = format!(
        "{}: the file changed while it was being read",
        input.display()
    );
    assert!(error.starts_with(&expected), "{error}");
    assert!(!path.exists());
}
