//! Xet storage: how files are made of chunks, and the chunks. A file has the hash of its SHA-256, and its chunks,
//! of equal size and not compressed, are in one object of the same name. The format is that of the crate `xet-core-structures`.

use super::{Fault, Reply, Request, State, sha256};

/// Bytes of a chunk before its header is added.
const CHUNK_BYTES: usize = 10_000;
/// Bytes of a chunk's header.
const HEADER_BYTES: usize = 8;

/// Answers a request for the parts of a file, or for bytes of an object; `None` if it is another request.
pub(super) fn answer(state: &mut State, request: &Request) -> Option<Reply> {
    let json = "content-type: application/json\r\n";
    if request.path.starts_with("/v2/reconstructions/") {
        // The client then uses the first version.
        return Some(Reply::status(404, ""));
    }
    if let Some(hash) = request.path.strip_prefix("/v1/reconstructions/") {
        if state.xet_fails {
            return Some(Reply::status(400, ""));
        }
        let file = file(state, hash);
        let (first, last) = request.range.unwrap_or((0, file.len() - 1));
        if first >= file.len() {
            return Some(Reply::status(416, ""));
        }
        let last = last.min(file.len() - 1);
        let chunks = first / CHUNK_BYTES..last / CHUNK_BYTES + 1;
        let n_bytes = file.len().min(chunks.end * CHUNK_BYTES) - chunks.start * CHUNK_BYTES;
        let start = chunks.start * (HEADER_BYTES + CHUNK_BYTES);
        let range = format!("{{\"start\":{},\"end\":{}}}", chunks.start, chunks.end);
        let body = format!(
            "{{\"offset_into_first_range\":{},\
             \"terms\":[{{\"hash\":\"{hash}\",\"unpacked_length\":{n_bytes},\"range\":{range}}}],\
             \"fetch_info\":{{\"{hash}\":[{{\"range\":{range},\"url\":\"{}/objects/{hash}\",\
             \"url_range\":{{\"start\":{start},\"end\":{}}}}}]}}}}",
            first - chunks.start * CHUNK_BYTES,
            format_args!("http://127.0.0.1:{}", request.port),
            start + chunks.len() * HEADER_BYTES + n_bytes - 1,
        );
        return Some(Reply::new(200, json, body.into_bytes()));
    }
    let hash = request.path.strip_prefix("/objects/")?;
    let mut file = file(state, hash);
    match state.faults.pop_front() {
        Some(Fault::WrongByte(i)) => file[i] ^= 1,
        Some(fault) => return Some(Reply::of_fault(fault)),
        None => {}
    }
    let object = file.chunks(CHUNK_BYTES).flat_map(|chunk| {
        let [a, b, c, _] = (chunk.len() as u32).to_le_bytes();
        let header: [u8; HEADER_BYTES] = [0, a, b, c, 0, a, b, c];
        [&header, chunk].concat()
    });
    let object: Vec<u8> = object.collect();
    let (first, last) = request.range.unwrap_or((0, object.len() - 1));
    let headers = format!("content-range: bytes {first}-{last}/{}\r\n", object.len());
    Some(Reply::new(206, &headers, object[first..=last].to_vec()))
}

/// Returns the contents of the file with this hash.
fn file(state: &State, hash: &str) -> Vec<u8> {
    let mut files = state.files.values();
    let (bytes, _) = files
        .find(|(bytes, _)| sha256(bytes) == hash)
        .expect("a file with this hash");
    bytes.clone()
}
