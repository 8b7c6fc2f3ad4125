//! Invalid files: every truncation of a file with all features, and every change of one byte. Each
//! is read or rejected, without a panic and with memory of at most a small multiple of the file's
//! size.

mod common;

use std::fs;

use peak_alloc::PeakAlloc;
use schemas::gguf::{check, open};

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// Far above the memory for reading the file and for the test harness, far below that of a trusted
/// count of 2^24 items.
const MAX_BYTES: usize = 8 << 20;

#[test]
fn every_truncation_and_every_changed_byte() {
    let good = common::file_bytes(&common::one_of_everything());
    assert_eq!(check(&good), Ok(()));
    let data_start = schemas::gguf::layout(&common::one_of_everything())
        .unwrap()
        .header
        .len();

    for len in 0..good.len() {
        let result = check(&good[..len]);
        // Only the padding after the last tensor may be missing.
        assert!(
            len > data_start || result.is_err(),
            "{len} bytes: {result:?}"
        );
    }
    let mut bytes = good.clone();
    let mut n_valid = 0;
    for at in 0..data_start {
        for change in 1..=255u8 {
            bytes[at] = good[at] ^ change;
            n_valid += usize::from(check(&bytes).is_ok());
        }
        bytes[at] = good[at];
    }
    // Changes of values and names can be valid; those of lengths, counts, types and offsets are
    // not.
    assert!(n_valid > 0);
    assert!(
        ALLOCATED.peak_usage() < MAX_BYTES,
        "{} bytes were allocated at once",
        ALLOCATED.peak_usage()
    );
}

/// Every valid file can be read completely: no tensor exceeds the file.
#[test]
fn opened_files_can_be_read() {
    let good = common::file_bytes(&common::one_of_everything());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut n_opened = 0;
    let mut try_bytes = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        match open(&path) {
            Ok(plan) => {
                n_opened += 1;
                for tensor in &plan.tensors {
                    let bytes = tensor.read_all().unwrap();
                    assert_eq!(bytes.len() as u64, tensor.size_bytes, "{}", tensor.name);
                }
            }
            Err(error) => assert!(error.to_string().starts_with(path.to_str().unwrap())),
        }
    };
    for len in (0..good.len()).rev() {
        try_bytes(&good[..len]);
    }
    let mut bytes = good.clone();
    for at in 0..good.len() {
        for change in [0x01, 0x80, 0xff] {
            bytes[at] = good[at] ^ change;
            try_bytes(&bytes);
        }
        bytes[at] = good[at];
    }
    assert!(n_opened > 0);
}
