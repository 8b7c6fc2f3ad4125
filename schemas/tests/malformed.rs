//! One hand-made file for each fault, with the complete error message.

use schemas::gguf::check;

/// Bytes of a file under construction, in file order.
#[derive(Clone)]
struct Bytes(Vec<u8>);

impl Bytes {
    /// Magic, version 3 and the two counts: 24 bytes.
    fn header(n_tensors: u64, n_keys: u64) -> Bytes {
        Bytes(b"GGUF".to_vec()).u32(3).u64(n_tensors).u64(n_keys)
    }

    fn raw(mut self, bytes: &[u8]) -> Bytes {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, v: u32) -> Bytes {
        self.raw(&v.to_le_bytes())
    }

    fn u64(self, v: u64) -> Bytes {
        self.raw(&v.to_le_bytes())
    }

    fn text(self, text: &[u8]) -> Bytes {
        self.u64(text.len() as u64).raw(text)
    }

    /// A key and its type; 13 bytes for a key of one byte.
    fn key(self, key: &str, value_type: u32) -> Bytes {
        self.text(key.as_bytes()).u32(value_type)
    }

    fn tensor(self, name: &str, shape: &[u64], dtype: u32, offset: u64) -> Bytes {
        let named = self.text(name.as_bytes()).u32(shape.len() as u32);
        let shaped = shape.iter().fold(named, |bytes, &ne| bytes.u64(ne));
        shaped.u32(dtype).u64(offset)
    }

    /// Zeros up to the alignment, then `len` bytes of data.
    fn data(mut self, len: usize) -> Bytes {
        self.0.resize(self.0.len().next_multiple_of(32) + len, 0);
        self
    }
}

const U8: u32 = 0;
const U32: u32 = 4;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const F32: u32 = 0;
const Q8_0: u32 = 8;
const UNKNOWN: u32 = 99;

#[track_caller]
fn refused(bytes: Bytes, message: &str) {
    match check(&bytes.0) {
        Ok(()) => panic!("accepted, expected: {message}"),
        Err(error) => assert_eq!(error.to_string(), message),
    }
}

#[test]
fn not_a_gguf_file() {
    refused(
        Bytes(Vec::new()),
        "byte 0: expected the magic \"GGUF\", found \"\"",
    );
    refused(
        Bytes(b"GGML----".to_vec()),
        "byte 0: expected the magic \"GGUF\", found \"GGML\"",
    );
    refused(
        Bytes(b"GGUF".to_vec()).raw(&3u32.to_be_bytes()),
        "byte 4: big-endian file (version bytes 0x03000000); only little-endian files are supported",
    );
    for version in [1, 4] {
        refused(
            Bytes(b"GGUF".to_vec()).u32(version),
            &format!("byte 4: version {version}, expected 2 or 3"),
        );
    }
}

#[test]
fn ends_early() {
    refused(
        Bytes(b"GGUF".to_vec()).raw(&[3]),
        "byte 4: version needs 4 bytes, the file has 1 left",
    );
    refused(
        Bytes(b"GGUF".to_vec()).u32(3).u64(0),
        "byte 16: key count needs 8 bytes, the file has 0 left",
    );
    // Counts that cannot fit in the file are rejected before memory is reserved.
    refused(
        Bytes::header(0, 1 << 32).data(64),
        "byte 24: the key list needs 60129542144 bytes, the file has 72 left",
    );
    refused(
        Bytes::header(u64::MAX, 0).data(64),
        "byte 24: the tensor list needs 18446744073709551615 bytes, the file has 72 left",
    );
    refused(
        Bytes::header(0, 1).u64(1 << 40).data(64),
        "byte 32: key needs 1099511627776 bytes, the file has 64 left",
    );
    refused(
        Bytes::header(0, 1).key("k", ARRAY).u32(U32).u64(1 << 62),
        "byte 49: k needs 18446744073709551615 bytes, the file has 0 left",
    );
    refused(
        Bytes::header(0, 1)
            .key("k", ARRAY)
            .u32(STRING)
            .u64(9)
            .u64(0),
        "byte 49: k needs 72 bytes, the file has 8 left",
    );
}

#[test]
fn broken_keys() {
    refused(
        Bytes::header(0, 1).text(b"\xff").u32(U8).data(0),
        "byte 24: key is not UTF-8",
    );
    refused(
        Bytes::header(0, 1).text(b"").u32(U32).u32(0).data(0),
        "byte 24: empty key",
    );
    refused(
        Bytes::header(0, 2)
            .key("k", U8)
            .raw(&[1])
            .key("k", U8)
            .raw(&[2]),
        "byte 38: key k appears twice",
    );
    refused(
        Bytes::header(0, 1).key("k", 13).data(0),
        "byte 33: key k: value type 13 is not supported",
    );
    refused(
        Bytes::header(0, 1).key("k", ARRAY).u32(ARRAY).u64(0),
        "byte 37: key k: value type 9 is not supported inside an array",
    );
    refused(
        Bytes::header(0, 1).key("k", BOOL).raw(&[2]),
        "byte 37: key k: boolean byte 2, expected 0 or 1",
    );
    let align = "general.alignment";
    refused(
        Bytes::header(0, 1).key(align, U32).u32(0),
        "key general.alignment: expected a power of two as u32, found u32 0",
    );
    refused(
        Bytes::header(0, 1).key(align, U8).raw(&[32]),
        "key general.alignment: expected a power of two as u32, found u8 32",
    );
}

#[test]
fn broken_tensors() {
    refused(
        Bytes::header(1, 0).tensor("", &[1], F32, 0).data(32),
        "byte 24: tensor \"\": name of 0 bytes, expected 1 to 63",
    );
    let long = "n".repeat(64);
    refused(
        Bytes::header(1, 0).tensor(&long, &[1], F32, 0).data(32),
        &format!("byte 24: tensor {long:?}: name of 64 bytes, expected 1 to 63"),
    );
    refused(
        Bytes::header(2, 0)
            .tensor("t", &[1], F32, 0)
            .tensor("t", &[1], F32, 32)
            .data(64),
        "byte 57: tensor t appears twice",
    );
    refused(
        Bytes::header(1, 0).tensor("t", &[], F32, 0).data(64),
        "byte 24: tensor t: 0 dimensions, expected 1 to 4",
    );
    refused(
        Bytes::header(1, 0).tensor("t", &[1; 5], F32, 0).data(64),
        "byte 24: tensor t: 5 dimensions, expected 1 to 4",
    );
    refused(
        Bytes::header(1, 0).tensor("t", &[33], Q8_0, 0).data(64),
        "tensor t: rows of 33 elements are not a multiple of Q8_0 blocks of 32",
    );
    let huge = [1 << 40, 1 << 40];
    for dtype in [F32, UNKNOWN] {
        refused(
            Bytes::header(1, 0).tensor("t", &huge, dtype, 0).data(64),
            "tensor t: shape [1099511627776, 1099511627776] has more elements than fit in 63 bits",
        );
    }
}

#[test]
fn data_out_of_place() {
    let expects = |found: u64, expected: u64| {
        format!(
            "tensor u (F32): data at offset {found}, expected {expected} from the sizes of the tensors before it; a fork may use another block size for the type of the tensor before"
        )
    };
    for found in [0, 64, 1 << 63] {
        refused(
            Bytes::header(2, 0)
                .tensor("t", &[1], F32, 0)
                .tensor("u", &[1], F32, found)
                .data(96),
            &expects(found, 32),
        );
    }
    // A tensor of unknown type extends to the next one, so only a smaller offset is an error.
    refused(
        Bytes::header(3, 0)
            .tensor("t", &[8], F32, 0)
            .tensor("x", &[1], UNKNOWN, 32)
            .tensor("u", &[1], F32, 0)
            .data(96),
        &expects(0, 32),
    );
    refused(
        Bytes::header(1, 0).tensor("t", &[8], F32, 0).data(31),
        "tensor t (F32): data ends at byte 96, the file has 95",
    );
}

#[test]
fn odd_but_legal() {
    for bytes in [
        Bytes::header(0, 0),
        // The padding after the last tensor may be missing.
        Bytes::header(1, 0).tensor("t", &[1], F32, 0).data(4),
        // Bytes after the last tensor are allowed.
        Bytes::header(1, 0).tensor("t", &[1], F32, 0).data(100),
        Bytes::header(1, 0).tensor("t", &[0], F32, 0).data(0),
        Bytes::header(1, 0).tensor("t", &[5], UNKNOWN, 0).data(7),
    ] {
        assert_eq!(check(&bytes.0), Ok(()));
    }
}
